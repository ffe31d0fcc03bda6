"""Can a claim give somebody a gated device? Judged from classes, selectors and published devices, not from names.

Compiles CEL, so it runs when objects arrive, never inside a decision; what a decision may ask is `of_new_spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy

from dra_gate import cel
from dra_gate.admission.facts import Reached
from dra_gate.kube.claim import Alternative, requests
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import Model

# Tenants write selectors too: an expression that needs more steps than this counts as accepting, it does not stall us.
_STEPS = 20_000
# So does a claim whose selectors on broad classes have more text than this: parsing 1 MiB of them takes ten seconds.
_TEXT = 4096
_REMEMBERED = 4096


class Reach:
    """Which device classes are gated, and which claims can reach a device through them.

    A class is gated when a catalogue model names it, or when its selectors accept a published device of a driver that
    the catalogue uses. Each such driver also counts as publishing one device without any attribute: a class that says
    only `device.driver == …` is caught before its first slice appears. A selector that fails or does not compile
    accepts: unknown means gated.
    """

    def __init__(self, models: Iterable[Model]) -> None:
        listed = list(models)
        self._named = frozenset(model.device_class for model in listed)
        self._drivers = tuple(sorted({model.driver for model in listed}))
        self._classes: dict[str, tuple[str, ...]] = {}
        self._programs: dict[str, cel.Program | None] = {}  # of classes, which are few
        self._gated: dict[str, str] = {}
        self._answers: dict[tuple[str, str], bool] = {}  # (selector, driver) -> could accept

    def same_as(self, models: Iterable[Model]) -> bool:
        """Other models would be judged alike: they name the same classes and use the same drivers."""
        other = Reach(models)
        return (self._named, self._drivers) == (other._named, other._drivers)

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers that the catalogue uses."""
        return self._drivers

    @property
    def gated(self) -> Mapping[str, str]:
        """The gated classes that are known or named by the catalogue, and why each is."""
        return {**dict.fromkeys(self._named, "the catalogue names it"), **self._gated}

    @property
    def classes(self) -> Iterable[str]:
        """The names of the classes that exist."""
        return self._classes.keys()

    def set_class(self, name: str, spec: Object) -> bool:
        """A DeviceClass was made or changed. True when published devices should be judged again for it."""
        self._classes[name] = tuple(
            text(at(selector, "cel", "expression")) for selector in sequence(mapping(spec).get("selectors"))
        )
        self._gated.pop(name, None)
        for driver in self._drivers:
            self._judge(name, cel.Device(driver))
        return name not in self._gated

    def drop_class(self, name: str) -> None:
        """A DeviceClass is gone."""
        self._classes.pop(name, None)
        self._gated.pop(name, None)

    def judge_slice(self, spec: Object) -> bool:
        """Look at a slice's devices (`driver` and `devices`). True when a class became gated by them.

        A class stays gated when the device that it accepted goes: it may come back, and nothing is lost by knowing.
        """
        driver = text(spec.get("driver"))
        open_classes = [name for name in self._classes if name not in self._gated]
        if driver not in self._drivers or not open_classes:
            return False
        before = len(self._gated)
        for raw in sequence(spec.get("devices")):
            try:
                device = cel.device_of(driver, mapping(raw))
            except ValueError:
                continue  # the API server refuses such a device; a recorded file may hold one
            for name in open_classes:
                self._judge(name, device)
        return len(self._gated) != before

    def frozen(self) -> Reach:
        """As it is now, for decisions: they are made while another thread judges classes, and a class that is being
        judged is gated by nothing until that has been found again. Answers are shared: they never change.
        """
        found = copy(self)
        found._classes, found._gated = dict(self._classes), dict(self._gated)
        return found

    def of_spec(self, spec: Object) -> tuple[Reached, ...]:
        """The requests of a claim spec that can give a gated device."""
        return self._of_spec(spec, self._could_accept)

    def of_new_spec(self, spec: Object) -> tuple[Reached, ...]:
        """The same of a spec that is only now being written, without compiling anything: inside a decision.

        A selector that no object in the cluster has carried yet narrows nothing: the request is judged by its class.
        """
        return self._of_spec(spec, lambda selector, driver: self._answers.get((selector, driver), True))

    def _of_spec(self, spec: Object, could_accept: Callable[[str, str], bool]) -> tuple[Reached, ...]:
        found = []
        text_left = _TEXT
        for request in requests(spec):
            if not request.alternatives:
                found.append(Reached(request.name, "it has no form that this version knows"))
                continue
            for alternative in request.alternatives:
                if alternative.device_class in self._gated:
                    text_left -= sum(map(len, alternative.selectors))
                why = self._why(alternative, could_accept, too_long=text_left < 0)
                if why:
                    found.append(Reached(request.name, why))
                    break
        return tuple(found)

    def _why(self, alternative: Alternative, could_accept: Callable[[str, str], bool], *, too_long: bool) -> str:
        name = alternative.device_class
        if name in self._named:
            return f"device class {name} is one that the catalogue names"
        if name not in self._classes:
            return f"device class {name or '(none)'} is not known"
        if name not in self._gated:
            return ""
        if too_long:
            return f"device class {name} can, and selectors of more than {_TEXT} characters are not looked at"
        # A broad class, narrowed by the request's own selectors to another driver's devices, gives no gated one. More
        # than the driver is not looked at: whoever writes selectors must not choose how much work that is.
        for driver in self._drivers:
            if all(could_accept(selector, driver) for selector in (*self._classes[name], *alternative.selectors)):
                return f"device class {name} and its selectors can accept a device of driver {driver}"
        return ""

    def _could_accept(self, selector: str, driver: str) -> bool:
        key = (selector, driver)
        if key not in self._answers:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[key] = cel.could_accept(selector, driver, _STEPS)
        return self._answers[key]

    def _judge(self, name: str, device: cel.Device) -> None:
        if name not in self._gated and self._accepts(self._classes[name], device):
            self._gated[name] = f"it accepts a device of driver {device.driver}"

    def _accepts(self, expressions: tuple[str, ...], device: cel.Device) -> bool:
        for expression in expressions:
            program = self._program(expression)
            if program is None:
                continue
            try:
                if not program.evaluate(device, steps=_STEPS):
                    return False
            except (cel.EvaluationError, cel.BudgetExceeded):
                continue
        return True

    def _program(self, expression: str) -> cel.Program | None:
        if expression not in self._programs:
            if len(self._programs) >= _REMEMBERED:
                self._programs.clear()
            try:
                self._programs[expression] = cel.compile(expression)
            except cel.CelError:
                self._programs[expression] = None
        return self._programs[expression]
