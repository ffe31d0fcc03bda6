"""Can a claim give somebody a gated device? Judged from classes, selectors and published devices, not from names.

Compiles CEL, so it runs when objects arrive, never inside a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_gate import cel
from dra_gate.admission.facts import Reached
from dra_gate.kube.claim import Alternative, requests
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import Model

# Tenants write selectors too: an expression that needs more steps than this counts as accepting, it does not stall us.
_STEPS = 20_000
_PROGRAMS = 4096


class Reach:
    """What is known of device classes and of the published devices of the drivers that the catalogue uses.

    A class is gated when a catalogue model names it, or when its selectors accept such a device. Each driver also
    counts as publishing one device without any attribute: a class that says only `device.driver == …` is caught before
    its first slice appears. A selector that fails or does not compile accepts: unknown means gated.
    """

    def __init__(self, models: Iterable[Model]) -> None:
        listed = list(models)
        self._named = frozenset(model.device_class for model in listed)
        self._drivers = sorted({model.driver for model in listed})
        self._bare = [cel.Device(driver, {}, {}, allow_multiple_allocations=False) for driver in self._drivers]
        self._classes: dict[str, tuple[str, ...]] = {}
        self._devices: dict[str, list[cel.Device]] = {}
        self._gated: dict[str, str] = {}
        self._programs: dict[str, cel.Program | None] = {}

    @property
    def gated(self) -> Mapping[str, str]:
        """The gated classes that are known or named by the catalogue, and why each is."""
        return {**dict.fromkeys(self._named, "the catalogue names it"), **self._gated}

    @property
    def classes(self) -> Iterable[str]:
        """The names of the classes that exist."""
        return self._classes.keys()

    def set_class(self, name: str, spec: Object) -> None:
        """A DeviceClass was made or changed."""
        self._classes[name] = tuple(
            text(at(selector, "cel", "expression")) for selector in sequence(mapping(spec).get("selectors"))
        )
        self._gated.pop(name, None)
        self._judge_class(name, self._all_devices())

    def drop_class(self, name: str) -> None:
        """A DeviceClass is gone."""
        self._classes.pop(name, None)
        self._gated.pop(name, None)

    def set_slice(self, name: str, spec: Object) -> bool:
        """A ResourceSlice was made or changed. True when a class became gated by it.

        A class stays gated when the device that it accepted goes: it may come back, and nothing is lost by knowing.
        """
        driver = text(spec.get("driver"))
        if driver not in self._drivers:
            return False
        devices = []
        for raw in sequence(spec.get("devices")):
            try:
                devices.append(cel.device_of(driver, mapping(raw)))
            except ValueError:
                continue  # the API server refuses such a device; a recorded file may hold one
        self._devices[name] = devices
        before = len(self._gated)
        for class_name in self._classes:
            if class_name not in self._gated:
                self._judge_class(class_name, devices)
        return len(self._gated) != before

    def drop_slice(self, name: str) -> None:
        """A ResourceSlice is gone."""
        self._devices.pop(name, None)

    def of_spec(self, spec: Object) -> tuple[Reached, ...]:
        """The requests of a claim spec that can give a gated device."""
        found = []
        for request in requests(spec):
            if not request.alternatives:
                found.append(Reached(request.name, "it has no form that this version knows"))
                continue
            for alternative in request.alternatives:
                why = self._why(alternative)
                if why:
                    found.append(Reached(request.name, why))
                    break
        return tuple(found)

    def _why(self, alternative: Alternative) -> str:
        name = alternative.device_class
        if name in self._named:
            return f"device class {name} is one that the catalogue names"
        if name not in self._classes:
            return f"device class {name or '(none)'} is not known"
        if name not in self._gated:
            return ""
        # A broad class narrowed by the request's own selectors (a NIC picked out of everything) gives no gated device.
        for device in self._all_devices():
            if self._accepts(self._classes[name], device) and self._accepts(alternative.selectors, device):
                return f"device class {name} and its selectors accept a device of driver {device.driver}"
        return ""

    def _judge_class(self, name: str, devices: Iterable[cel.Device]) -> None:
        for device in devices:
            if self._accepts(self._classes[name], device):
                self._gated[name] = f"it accepts a device of driver {device.driver}"
                return

    def _all_devices(self) -> Iterable[cel.Device]:
        yield from self._bare
        for devices in self._devices.values():
            yield from devices

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
            if len(self._programs) >= _PROGRAMS:
                self._programs.clear()
            try:
                self._programs[expression] = cel.compile(expression)
            except cel.CelError:
                self._programs[expression] = None
        return self._programs[expression]
