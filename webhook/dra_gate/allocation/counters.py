"""Counters of a pool while devices are tried: what is there, less what allocated devices and picked ones take."""

from __future__ import annotations

from dra_gate.allocation.held import Held
from dra_gate.allocation.pools import Device, Pool


class Counters:
    """The counters of one pool, in billionths."""

    __slots__ = ("_left", "_overdrawn")

    def __init__(self, pool: Pool, held: Held) -> None:
        self._left = {(name, counter): have for name, of in pool.counters.items() for counter, have in of.items()}
        for found in (*pool.slices, *pool.others):
            for device in found.devices:
                if device.consumes and device.id in held:
                    self._move(device, -1)
        # The scheduler looks at every counter of the pool: one that is below nothing stops all partitions.
        self._overdrawn = min(self._left.values(), default=0) < 0

    def lacking(self, device: Device) -> str:
        """The first counter that has not enough for the device, as `set/counter`; "" if all have."""
        if self._overdrawn:
            return next(f"{name}/{counter}" for (name, counter), left in self._left.items() if left < 0)
        wanted: dict[tuple[str, str], int] = {}
        for name, amounts in device.consumes:
            for counter, amount in amounts.items():
                wanted[name, counter] = wanted.get((name, counter), 0) + amount
        return next((f"{key[0]}/{key[1]}" for key, amount in wanted.items() if self._left[key] < amount), "")

    def reserve(self, device: Device) -> bool:
        """Takes what the device consumes, or nothing if that is not there."""
        if self.lacking(device):
            return False
        self._move(device, -1)
        return True

    def give_back(self, device: Device) -> None:
        """Undoes `reserve`."""
        self._move(device, 1)

    def _move(self, device: Device, sign: int) -> None:
        for name, amounts in device.consumes:
            for counter, amount in amounts.items():
                if (name, counter) in self._left:
                    self._left[name, counter] += sign * amount
