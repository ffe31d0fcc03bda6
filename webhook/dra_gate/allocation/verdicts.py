"""What selectors say of devices. Equal devices are asked once, and each expression is compiled once."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from dra_gate import cel
from dra_gate.allocation.asked import Alternative, Claim
from dra_gate.allocation.pools import Device
from dra_gate.allocation.problems import CannotEvaluate, Failed

_HINT: Final = (
    ". consider using CEL optional chaining (.? followed by orValue()) "
    "or guarding the check with has() for optional fields"
)


class Verdict(NamedTuple):
    """The first selector, of the class's and then of the request's, that is not true; `check` is "" if all are.

    `error` is the scheduler's text when that selector cannot be evaluated: then it gives up on all nodes.
    """

    check: Literal["class-selector", "selector", ""]
    number: int = 0
    error: str = ""


_ACCEPTED: Final = Verdict("")


class Verdicts:
    """Verdicts by alternative and content of a device."""

    def __init__(self) -> None:
        self._programs: dict[str, cel.Program | str] = {}
        self._devices: dict[bytes, cel.Device | str] = {}
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...], bytes], Verdict] = {}

    def judge(self, alternative: Alternative, device: Device) -> Verdict:
        """The verdict on a device. Raises CannotEvaluate for a selector or a device that is not understood here."""
        content = device.content
        if content is None:
            raw = device.raw
            key = (device.id[0], device.multiple, raw.get("attributes"), raw.get("capacity"))
            content = device.content = msgspec.json.encode(key)
        place = (alternative.class_selectors, alternative.selectors, content)
        verdict = self._known.get(place)
        if verdict is None:
            verdict = self._known[place] = self._judged(alternative, device, content)
        return verdict

    def _judged(self, alternative: Alternative, device: Device, content: bytes) -> Verdict:
        for index, expression in enumerate(alternative.class_selectors):
            said = self._said(expression, device, content)
            if said != "true":
                return Verdict("class-selector", index, said)
        for index, expression in enumerate(alternative.selectors):
            said = self._said(expression, device, content)
            if said != "true":
                return Verdict("selector", index, said)
        return _ACCEPTED

    def _said(self, expression: str, device: Device, content: bytes) -> str:
        """ "true", "" for false, or the run-time error."""
        program = self._programs.get(expression)
        if program is None:
            program = self._programs[expression] = _compiled(expression)
        subject = self._devices.get(content)
        if subject is None:
            subject = self._devices[content] = _read(device)
        if isinstance(program, str):
            raise CannotEvaluate(program)
        if isinstance(subject, str):
            raise CannotEvaluate(subject)
        try:
            return "true" if program.evaluate(subject) else ""
        except cel.EvaluationError as error:
            message = str(error)
            return message + _HINT if "no such key:" in message else message
        except cel.BudgetExceeded as error:
            raise CannotEvaluate(f"selector {expression!r} takes too many steps here") from error


def failure(verdict: Verdict, alternative: Alternative, claim: Claim, device: Device) -> Failed:
    """The scheduler's error for a verdict that has one."""
    whose = f"class {alternative.class_name}" if verdict.check == "class-selector" else f"claim {claim.name}"
    where = f"selector #{verdict.number} on device {'/'.join(device.id)}"
    return Failed(f"{whose}: {where}: CEL runtime error: {verdict.error}")


def _compiled(expression: str) -> cel.Program | str:
    try:
        return cel.compile(expression)
    except cel.CelError as error:
        return f"selector {expression!r}: {error}"


def _read(device: Device) -> cel.Device | str:
    try:
        return cel.device_of(device.id[0], device.raw)
    except ValueError as error:
        return f"device {'/'.join(device.id)}: {error}"
