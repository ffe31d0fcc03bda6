"""The search of one node: claims in order, requests in order, alternatives in order, devices in order; first fit wins.

Exhaustive, with backtracking over everything that came before, as kube-scheduler's allocator does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from dra_gate.allocation.asked import MAX_RESULTS, Alternative, Claim
from dra_gate.allocation.constraints import Tally
from dra_gate.allocation.consumption import Amounts, Share, fits, missing, shares
from dra_gate.allocation.counters import Counters
from dra_gate.allocation.held import Held
from dra_gate.allocation.outcome import Check
from dra_gate.allocation.pools import Device, DeviceId, Pool, PoolId, View, device_reached
from dra_gate.allocation.problems import CannotEvaluate, Failed
from dra_gate.allocation.verdicts import Verdict, Verdicts, failure
from dra_gate.allocation.versions import Rules
from dra_gate.kube.raw import Object, mapping
from dra_gate.kube.taint import tolerated

MAX_STEPS: Final = 200_000
"""Devices looked at before the search gives up, about half a second's worth. The scheduler gives up after 10 s
(DRASchedulerFilterTimeout), where that is depends on its machine: what takes longer than this is not known here."""
MAX_DEPTH: Final = 128  # claims and their requests: each is some levels of recursion


class End(Enum):
    """How a part of the search ends."""

    DONE = auto()
    NOTHING = auto()
    TOO_MANY = auto()  # more devices than a claim can hold: alternatives that ask for fewer may do


@dataclass(frozen=True, slots=True)
class Picked:
    """A device that is picked for an alternative of a claim, and what it takes of the device's capacity."""

    claim: int
    alternative: Alternative
    device: Device
    pool: Pool
    taken: Mapping[str, Share]
    reserved: bool  # whether its counters were charged
    shared_before: bool


class Search:
    """One attempt at one node, of so many steps at most. `picked` are the devices so far, by claim."""

    def __init__(
        self, view: View, claims: Sequence[Claim], held: Held, verdicts: Verdicts, rules: Rules, steps: int
    ) -> None:
        self.picked: list[list[Picked]] = [[] for _ in claims]
        self.every: dict[Alternative, list[tuple[Device, Pool]]] = {}  # for mode All
        self._view = view
        self._claims = claims
        self._held = held
        self._verdicts = verdicts
        self._rules = rules
        self._steps = self._most_steps = steps
        self._tallies = [[Tally(one) for one in claim.constraints if one is not None] for claim in claims]
        self._counters: dict[PoolId, Counters] = {}
        self._at_node: dict[Device, bool] = {}  # of slices whose devices choose their nodes
        self._picking: dict[DeviceId, set[int]] = {}  # claims that pick a device for themselves
        self._sharing: dict[DeviceId, dict[str, int]] = {}  # what picked shares take, in billionths

    def prepare(self) -> None:
        """Checks the claims before anything is picked. Raises Failed and CannotEvaluate."""
        if sum(1 + len(claim.requests) for claim in self._claims) > MAX_DEPTH:
            raise CannotEvaluate(f"more than {MAX_DEPTH} claims and requests")
        for index, claim in enumerate(self._claims):
            total = 0
            for request in claim.requests:
                least = min(self._wanted(index, alternative) for alternative in request.alternatives)
                if self._rules.new and least > MAX_RESULTS - total:
                    limit = f"exceeds the claim limit of {MAX_RESULTS}, with {total} already accounted for"
                    raise Failed(f"claim {claim.name}, request {request.name}: adding {least} devices {limit}")
                total += least
            if total > MAX_RESULTS:
                limit = f"number of requested devices {total} exceeds the claim limit of {MAX_RESULTS}"
                raise Failed(f"claim {claim.name}: {limit}")
            if None in claim.constraints:
                number = claim.constraints.index(None)
                what = "empty constraint (unsupported constraint type?)"
                raise Failed(f"claim {claim.name}, constraint #{number}: {what}")

    def run(self) -> bool:
        """Whether all claims get their devices, which are then `picked`. Raises Failed and CannotEvaluate."""
        end = self._claim(0)
        if end is End.TOO_MANY:
            raise Failed("allocation max size exceeded")
        return end is End.DONE

    # --- claims, requests, alternatives -------------------------------------------------------------------------------

    def _wanted(self, index: int, alternative: Alternative) -> int:
        """How many devices an alternative takes; of mode All every one that is selectable and large enough."""
        if not alternative.every:
            return alternative.count
        found = self.every[alternative] = []
        claim = self._claims[index]
        for pool in self._view.pools:
            if pool.state != "used":
                trouble = "being updated" if pool.state == "incomplete" else "invalid"
                raise Failed(
                    f"claim {claim.name}, request {alternative.name}: asks for all devices, but resource pool "
                    f"{pool.name} is currently {trouble}"
                )
            for device in (device for part in pool.slices for device in part.devices):
                self._step()
                if self.unselected(index, alternative, device):
                    continue
                try:
                    large = (device.is_whole and not alternative.capacity) or not self._short(alternative, device)
                except Failed as error:
                    where = f"claim {claim.name}, request {alternative.name}: checking capacity for device"
                    raise Failed(f"{where} {device.name}: {error}") from error
                if large:
                    found.append((device, pool))
        return len(found)

    def _claim(self, index: int) -> End:
        return End.DONE if index == len(self._claims) else self._request(index, 0)

    def _request(self, index: int, number: int) -> End:
        claim = self._claims[index]
        if number == len(claim.requests):
            end = self._claim(index + 1)
            # Other choices here may let the next claim do with fewer devices: that is no reason to give up this one.
            return End.NOTHING if end is End.TOO_MANY else end
        request = claim.requests[number]
        if not request.listed:
            return self._alternative(index, number, request.alternatives[0])
        all_too_many = True
        for alternative in request.alternatives:
            end = self._alternative(index, number, alternative)
            if end is End.DONE:
                return end
            all_too_many = all_too_many and end is End.TOO_MANY
        return End.TOO_MANY if all_too_many else End.NOTHING

    def _alternative(self, index: int, number: int, alternative: Alternative) -> End:
        every = self.every.get(alternative)
        count = alternative.count if every is None else len(every)
        if count == 0:
            return End.NOTHING
        if count > MAX_RESULTS - len(self.picked[index]):
            return End.TOO_MANY
        start = len(self.picked[index])
        if every is not None:
            end = self._take_all(index, number, alternative, every)
        else:
            end = self._take_first(index, number, alternative)
        if end is not End.DONE:
            while len(self.picked[index]) > start:
                self._undo(index)
        return end

    def _take_all(
        self, index: int, number: int, alternative: Alternative, devices: Sequence[tuple[Device, Pool]]
    ) -> End:
        for device, pool in devices:
            self._step()
            if not self._must(index, alternative, device, pool):
                return End.NOTHING
            self.pick(index, alternative, device, pool)
        return self._request(index, number + 1)

    def _take_first(self, index: int, number: int, alternative: Alternative) -> End:
        """Combinations of devices in order, the first with which all that follows is satisfied, too."""
        devices, positions, position = self._view.devices, list[int](), 0
        while True:
            while len(positions) < alternative.count and position < len(devices):
                self._step()
                device, pool = devices[position]
                if not self.objection(index, alternative, device, pool):
                    self.pick(index, alternative, device, pool)
                    positions.append(position)
                position += 1
            if len(positions) == alternative.count:
                end = self._request(index, number + 1)
                if end is not End.NOTHING:
                    return end
            if not positions:
                return End.NOTHING
            self._undo(index)
            position = positions.pop() + 1

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise CannotEvaluate(f"the search takes more than {self._most_steps:,} steps")

    # --- one device ---------------------------------------------------------------------------------------------------

    def objection(self, index: int, alternative: Alternative, device: Device, pool: Pool) -> Check:
        """The first check that a device fails beside what is picked, "" if it fits. Raises Failed, CannotEvaluate."""
        if self._in_use(index, alternative, device):
            return "in-use"
        unselected = self.unselected(index, alternative, device)
        if unselected:
            return unselected
        try:
            if self.short_of(alternative, device):
                return "capacity"
        except Failed as error:
            where = f"claim {self._claims[index].name}, request {alternative.name}: checking capacity for device"
            raise Failed(f"{where} {'/'.join(device.id)}: {error}") from error
        return self._blocked(index, alternative, device, pool)

    def _must(self, index: int, alternative: Alternative, device: Device, pool: Pool) -> bool:
        """Whether a device of mode All can be had. Raises Failed where a constraint forbids it."""
        if self._in_use(index, alternative, device):
            return False
        blocked = self._blocked(index, alternative, device, pool)
        if blocked == "constraint":
            raise Failed(
                f"claim {self._claims[index].name}, request {alternative.name}: cannot add device "
                f"{'/'.join(device.id)} because a claim constraint would not be satisfied"
            )
        return not blocked and not self.short_of(alternative, device)

    def _in_use(self, index: int, alternative: Alternative, device: Device) -> bool:
        picking = self._picking.get(device.id)
        if alternative.admin:
            return picking is not None and index in picking
        return device.id in self._held.whole or bool(picking)

    def unselected(self, index: int, alternative: Alternative, device: Device) -> Check:
        """Which of the selectors and the node does not accept a device, in use or not. Raises as `objection` does."""
        verdict = self.verdict(alternative, device)
        if verdict.error:
            raise failure(verdict, alternative, self._claims[index], device if self._rules.new else None)
        if not verdict.check and device.slice.per_device and not self._reached(device):
            return "node"
        return verdict.check

    def _reached(self, device: Device) -> bool:
        known = self._at_node.get(device)
        if known is None:
            known = self._at_node[device] = device_reached(device, self._view.node)
        return known

    def verdict(self, alternative: Alternative, device: Device) -> Verdict:
        """What the selectors say of a device; see `Verdicts`."""
        return self._verdicts.judge(alternative, device)

    def short_of(self, alternative: Alternative, device: Device) -> str:
        """The capacity of which the device has not enough left, "" if it has. Raises Failed without a place."""
        used, sharing = self._held.capacity.get(device.id), self._sharing.get(device.id)
        if device.is_whole and not alternative.capacity and not used and not sharing:
            return ""
        return self._short(alternative, device, *(of for of in (used, sharing) if of))

    def _short(self, alternative: Alternative, device: Device, *used: Amounts) -> str:
        capacity = device.capacity(self._rules.fractional)
        absent = missing(alternative.capacity, capacity)
        return absent or fits(shares(alternative.capacity, capacity), capacity, *used)

    def _blocked(self, index: int, alternative: Alternative, device: Device, pool: Pool) -> Check:
        if device.consumes and not self._counted(device) and self.counters(pool).lacking(device):
            return "counters"
        if untolerated(alternative, device):
            return "taint"
        if not all(tally.accepts(alternative, device) for tally in self._tallies[index]):
            return "constraint"
        return ""

    def _counted(self, device: Device) -> bool:
        """Whether another share of the device has charged its counters already."""
        return device.multiple and (device.id in self._held.shared or device.id in self._sharing)

    def counters(self, pool: Pool) -> Counters:
        """The counters of a pool, less what is picked."""
        found = self._counters.get(pool.id)
        if found is None:
            found = self._counters[pool.id] = Counters(pool, self._held)
        return found

    def refusing(self, index: int, alternative: Alternative, device: Device) -> tuple[int, str]:
        """The first constraint of a claim that does not accept the device, and its words."""
        return next(
            (number, tally.objection(device))
            for number, tally in enumerate(self._tallies[index])
            if not tally.accepts(alternative, device)
        )

    def pick(self, index: int, alternative: Alternative, device: Device, pool: Pool) -> None:
        """Picks a device that nothing speaks against."""
        reserved = bool(device.consumes) and not self._counted(device)
        if reserved:
            self.counters(pool).reserve(device)
        for tally in self._tallies[index]:
            tally.add(alternative, device)
        taken: Mapping[str, Share] = {}
        if device.multiple:
            taken = shares(alternative.capacity, device.capacity(self._rules.fractional))
        picked = Picked(index, alternative, device, pool, taken, reserved, device.id in self._sharing)
        if device.multiple:
            sharing = self._sharing.setdefault(device.id, {})
            for name, share in taken.items():
                sharing[name] = sharing.get(name, 0) + share.amount
        else:
            self._picking.setdefault(device.id, set()).add(index)
        self.picked[index].append(picked)

    def _undo(self, index: int) -> None:
        """Puts the last device of a claim back."""
        picked = self.picked[index].pop()
        device = picked.device
        if device.multiple:
            sharing = self._sharing[device.id]
            for name, share in picked.taken.items():
                sharing[name] -= share.amount
            # The entry tells that the device is shared. It goes once it is empty, unless this was a further share.
            if not any(sharing.values()):
                del self._sharing[device.id]
                if picked.shared_before:
                    self._sharing[device.id] = {}
        else:
            self._picking[device.id].discard(index)
        for tally in reversed(self._tallies[index]):
            tally.remove(picked.alternative)
        if picked.reserved:
            self.counters(picked.pool).give_back(device)


def untolerated(alternative: Alternative, device: Device) -> Object | None:
    """The first NoSchedule or NoExecute taint that no toleration of the request takes."""
    for taint in device.taints:
        if not tolerated(taint, alternative.tolerations):
            return mapping(taint)
    return None
