"""What selectors say of devices. Equal devices are asked once, and each expression is compiled once."""

from __future__ import annotations

from itertools import chain
from typing import Final, Literal, NamedTuple

import msgspec

from dra_gate import cel
from dra_gate.allocation.asked import Alternative, Claim
from dra_gate.allocation.pools import Device
from dra_gate.allocation.problems import CannotEvaluate, Failed
from dra_gate.cel.reads import Read
from dra_gate.kube.raw import mapping

ADVICE: Final = (
    ". consider using CEL optional chaining (.? followed by orValue()) "
    "or guarding the check with has() for optional fields"
)


class Verdict(NamedTuple):
    """The first selector, of the class's and then of the request's, that is not true; `check` is "" if all are.

    `error` says why that selector cannot be evaluated: then the scheduler gives up on all nodes.
    """

    check: Literal["class-selector", "selector", ""]
    number: int = 0
    error: str = ""


_ACCEPTED: Final = Verdict("")
_TRUE: Final = "true"


_Selectors = tuple[tuple[str, ...], tuple[str, ...]]


class Verdicts:
    """Verdicts by selectors and what these read of a device."""

    def __init__(self) -> None:
        self._programs: dict[str, cel.Program | str] = {}
        self._reads: dict[_Selectors, frozenset[Read] | None] = {}
        self._known: dict[_Selectors, dict[bytes, Verdict]] = {}
        self._of: dict[_Selectors, dict[Device, Verdict]] = {}

    def judge(self, alternative: Alternative, device: Device) -> Verdict:
        """The verdict on a device. Raises CannotEvaluate for a selector or a device that is not understood here."""
        selectors = (alternative.class_selectors, alternative.selectors)
        found = self._of.setdefault(selectors, {})
        verdict = found.get(device)
        if verdict is None:
            verdict = found[device] = self._verdict(selectors, device)
        return verdict

    def _verdict(self, selectors: _Selectors, device: Device) -> Verdict:
        if selectors not in self._reads:
            self._reads[selectors] = self._all_reads(selectors)
        known, content = self._known.setdefault(selectors, {}), _content(device, self._reads[selectors])
        verdict = known.get(content)
        if verdict is None:
            verdict = known[content] = self._judged(selectors, device)
        return verdict

    def _all_reads(self, selectors: _Selectors) -> frozenset[Read] | None:
        """What the verdict depends on, None if that may be anything."""
        found: set[Read] = set()
        for program in map(self._program, chain(*selectors)):
            if isinstance(program, str) or program.reads is None:
                return None
            found |= program.reads
        return frozenset(found)

    def _judged(self, selectors: _Selectors, device: Device) -> Verdict:
        _refuse_two_values(device, self._reads[selectors])
        for number, expression in enumerate(selectors[0]):
            said = self._said(expression, device)
            if said != _TRUE:
                return Verdict("class-selector", number, said)
        for number, expression in enumerate(selectors[1]):
            said = self._said(expression, device)
            if said != _TRUE:
                return Verdict("selector", number, said)
        return _ACCEPTED

    def _said(self, expression: str, device: Device) -> str:
        """_TRUE, "" for false, or the run-time error."""
        program = self._program(expression)
        if isinstance(program, str):
            raise CannotEvaluate(program)
        if device.as_cel is None:
            device.as_cel = _read(device)
        try:
            return _TRUE if program.evaluate(device.as_cel) else ""
        except cel.EvaluationError as error:
            return str(error)
        except cel.BudgetExceeded as error:
            raise CannotEvaluate(f"selector {expression!r} takes too many steps here") from error

    def _program(self, expression: str) -> cel.Program | str:
        """The compiled expression, or why there is none."""
        program = self._programs.get(expression)
        if program is None:
            program = self._programs[expression] = _compiled(expression)
        return program


def failure(verdict: Verdict, alternative: Alternative, claim: Claim, device: Device | None) -> Failed:
    """The scheduler's error for a verdict that has one; before 1.37 it named no device and gave no advice."""
    whose = f"class {alternative.class_name}" if verdict.check == "class-selector" else f"claim {claim.name}"
    where = f" on device {'/'.join(device.id)}" if device else ""
    advice = ADVICE if device and "no such key:" in verdict.error else ""
    return Failed(f"{whose}: selector #{verdict.number}{where}: CEL runtime error: {verdict.error}{advice}")


def _content(device: Device, names: frozenset[Read] | None) -> bytes:
    """All of a device that a verdict which reads those names can depend on."""
    raw, driver = device.raw, device.id[0]
    if names is None:
        return msgspec.json.encode((driver, device.multiple, raw.get("attributes"), raw.get("capacity")))
    entries = {"attributes": mapping(raw.get("attributes")), "capacity": mapping(raw.get("capacity"))}
    read: list[object] = [driver, device.multiple]
    for kind, domain, name in names:
        of = entries[kind]
        read.append(of.get(f"{domain}/{name}"))
        if domain == driver:
            read.append(of.get(name))
    return msgspec.json.encode(read)


def _refuse_two_values(device: Device, names: frozenset[Read] | None) -> None:
    """A name with the driver's domain and the same without may both be published: the scheduler goes by either."""
    driver = device.id[0]
    for kind in ("attributes", "capacity"):
        entries = mapping(device.raw.get(kind))
        for name in entries:
            full = f"{driver}/{name}"
            if full in entries and (names is None or (kind, driver, name) in names) and entries[full] != entries[name]:
                raise CannotEvaluate(f"device {'/'.join(device.id)} has two values for {full}, one without its domain")


def _compiled(expression: str) -> cel.Program | str:
    try:
        return cel.compile(expression)
    except cel.CelError as error:
        return f"selector {expression!r}: {error}"


def _read(device: Device) -> cel.Device:
    try:
        return cel.device_of(device.id[0], device.raw)
    except ValueError as error:
        raise CannotEvaluate(f"device {'/'.join(device.id)}: {error}") from error
