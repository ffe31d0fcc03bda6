"""What allocated claims hold of the devices: whole ones, and shares of capacity."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dra_gate.allocation.amounts import nano, quantity_of
from dra_gate.allocation.pools import DeviceId
from dra_gate.kube.raw import Object, at, mapping, sequence, text


class Held:
    """`whole` and `shared` name the holders of each device, `capacity` what the shares take of it, in billionths.

    Admin access holds nothing. A share without consumed capacity is in `shared` alone.
    """

    def __init__(self, claims: Iterable[Object], ignore: Collection[str] = ()) -> None:
        self.whole: dict[DeviceId, list[str]] = {}
        self.shared: dict[DeviceId, list[str]] = {}
        self.capacity: dict[DeviceId, dict[str, int]] = {}
        for claim in claims:
            if at(claim, "metadata", "uid") not in ignore:
                self.add(claim)

    def __contains__(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def holders(self, device: DeviceId) -> tuple[str, ...]:
        """Who holds it or a share of it, as namespace/name, in the order of names."""
        return tuple(sorted({*self.whole.get(device, ()), *self.shared.get(device, ())}))

    def add(self, claim: Object) -> None:
        """One claim more; what is not allocated holds nothing."""
        holder = f"{text(at(claim, 'metadata', 'namespace'))}/{text(at(claim, 'metadata', 'name'))}"
        for result in map(mapping, sequence(at(claim, "status", "allocation", "devices", "results"))):
            if result.get("adminAccess") is True:
                continue
            device = (text(result.get("driver")), text(result.get("pool")), text(result.get("device")))
            if result.get("shareID") is None:
                self.whole.setdefault(device, []).append(holder)
                continue
            self.shared.setdefault(device, []).append(holder)
            if result.get("consumedCapacity") is not None:
                taken = self.capacity.setdefault(device, {})
                for name, value in mapping(result["consumedCapacity"]).items():
                    taken[name] = taken.get(name, 0) + nano(quantity_of(value, f"consumedCapacity[{name}]"))
