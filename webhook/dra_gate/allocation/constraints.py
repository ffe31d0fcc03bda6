"""Constraints while devices are tried: each remembers the values of the devices that are picked."""

from __future__ import annotations

from dra_gate.allocation.asked import Alternative, Constraint
from dra_gate.allocation.pools import Device
from dra_gate.kube.raw import Object

NOT_PUBLISHED = "is not published"
_Value = tuple[str, object]  # kind, value: a number never equals a bool
_NOT_COMPARED: _Value = ("", None)
_KINDS = ("string", "int", "bool", "version")


class Tally:
    """One constraint of a claim under way. Every `add` has its `remove`, in reverse order."""

    __slots__ = ("constraint", "values")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.values: list[_Value] = []

    def accepts(self, alternative: Alternative, device: Device) -> bool:
        """Whether the device can join those that are picked."""
        if not self.constraint.binds(alternative):
            return True
        attribute = device.attribute(self.constraint.attribute)
        if attribute is None or not self.values:
            return attribute is not None
        value = _value(attribute)
        if value is None:
            return False
        return value not in self.values if self.constraint.distinct else value == self.values[0]

    def objection(self, device: Device) -> str:
        """What keeps a device that is not accepted from joining, in words."""
        attribute = device.attribute(self.constraint.attribute)
        if attribute is None:
            return f"{self.constraint.attribute} {NOT_PUBLISHED}"
        shown = f"{self.constraint.attribute} is {_shown(_value(attribute))}"
        return f"{shown}, as on another" if self.constraint.distinct else f"{shown}, elsewhere {_shown(self.values[0])}"

    def add(self, alternative: Alternative, device: Device) -> None:
        """Takes in a device that is accepted."""
        if self.constraint.binds(alternative):
            attribute = device.attribute(self.constraint.attribute)
            self.values.append(_value(attribute or {}) or _NOT_COMPARED)

    def remove(self, alternative: Alternative) -> None:
        """Takes the last device out again."""
        if self.constraint.binds(alternative):
            self.values.pop()


def _value(attribute: Object) -> _Value | None:
    """The first value that is there, None for kinds that cannot be compared."""
    for kind in _KINDS:
        if attribute.get(kind) is not None:
            return kind, attribute[kind]
    return None


def _shown(value: _Value | None) -> str:
    return "of a kind that is not compared" if value in (None, _NOT_COMPARED) else str(value[1])
