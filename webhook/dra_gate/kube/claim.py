"""A ResourceClaim spec as the gate reads it (resource.k8s.io/v1): requests and the alternatives in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dra_gate.kube.raw import Object, at, mapping, sequence, text

ALL_MODE_DEVICES = 32  # an All request may take as many devices as a claim can hold: AllocationResultsMaxSize

MAX_REQUESTS = 32  # DeviceRequestsMaxSize
MAX_ALTERNATIVES = 8  # FirstAvailableDeviceRequestMaxSize


class UnknownAllocationMode(ValueError):
    """A mode that this version does not know: refuse to guess what it takes (the API asks clients to)."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to satisfy a request: an `exactly`, or one entry of `firstAvailable` (then `name` is set)."""

    name: str
    device_class: str
    selectors: tuple[str, ...]
    raw: Object

    def devices(self) -> int:
        """The most devices that it can take.

        Raises UnknownAllocationMode for a mode other than ExactCount and All.
        """
        mode = self.raw.get("allocationMode") or "ExactCount"
        if mode == "All":
            return ALL_MODE_DEVICES
        if mode != "ExactCount":
            message = f"allocation mode {mode!r} is not known"
            raise UnknownAllocationMode(message)
        count = self.raw.get("count")
        # The API stores an absent or zero count as 1.
        return count if isinstance(count, int) and count > 0 else 1


@dataclass(frozen=True, slots=True)
class Request:
    """One entry of `spec.devices.requests`."""

    name: str
    alternatives: tuple[Alternative, ...]


def requests(spec: Object) -> Iterator[Request]:
    """The requests of a claim spec, in order. A request that has no form we know yields no alternatives."""
    for raw in sequence(at(spec, "devices", "requests")):
        request = mapping(raw)
        listed = [mapping(sub) for sub in sequence(request.get("firstAvailable"))]
        exact = mapping(request.get("exactly"))
        alternatives = [_alternative(text(sub.get("name")), sub) for sub in listed]
        if exact:
            alternatives.append(_alternative("", exact))
        yield Request(text(request.get("name")), tuple(alternatives))


def _alternative(name: str, raw: Object) -> Alternative:
    selectors = tuple(text(at(selector, "cel", "expression")) for selector in sequence(raw.get("selectors")))
    return Alternative(name, text(raw.get("deviceClassName")), selectors, raw)
