"""How busy devices were, as somebody measured it, among what is counted of both lanes. Pure.

Times are milliseconds since 1970. A measurement says in which hour a Pod's devices were looked at; whose it is, and in
which lane, is told by the namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_gate.migration.cohort import HOUR, Cohorts
from dra_gate.migration.tally import nowhere
from dra_gate.migration.waves import Space
from dra_gate.policy.switch import DRA, PLUGIN


@dataclass(frozen=True, slots=True)
class Used:
    """What was measured of a Pod's devices in [`since`, `until`): device-seconds, and those times utilisation."""

    namespace: str
    pod: str
    since: int
    until: int
    measured: float
    busy: float


def lane_of(space: Space, since: int, until: int) -> str:
    """The lane of Pods that were created there in that time; empty where it changed within, or is not known.

    Of the past no more is known than the last change. A namespace without a label is not gated: device plugins.
    """
    after = space.lane or PLUGIN
    changed = 1000 * space.since
    if changed <= since:
        return after if after in (DRA, PLUGIN) else ""
    if changed < until or space.own is None:
        return ""
    before = space.own.source or PLUGIN
    return before if before in (DRA, PLUGIN) else ""


def add_usage(cohorts: Cohorts, used: Iterable[Used], spaces: Mapping[str, Space]) -> float:
    """Count `measured` and `busy` in the hours in which the devices were looked at. Gives the device-seconds that were
    left out: of Pods whose lane is not known.

    A Pod has the lane that its namespace had when it was first measured. Pods of other namespaces than `spaces` are
    none of ours, exporters among them.
    """
    by_pod: dict[tuple[str, str], list[Used]] = {}
    for one in used:
        if one.namespace in spaces:
            by_pod.setdefault((one.namespace, one.pod), []).append(one)
    left = 0.0
    sums: dict[tuple[int, str, str], list[float]] = {}
    for (namespace, _), found in by_pod.items():
        first = min(found, key=lambda one: one.since)
        lane = lane_of(spaces[namespace], first.since, first.until)
        if not lane:
            left += sum(one.measured for one in found)
            continue
        for one in found:
            total = sums.setdefault((one.since - one.since % HOUR, lane, spaces[namespace].tenant), [0.0, 0.0])
            total[0] += one.measured
            total[1] += one.busy
    for (hour, lane, tenant), (measured, busy) in sums.items():
        cell = cohorts.cell(hour, nowhere(lane, tenant))
        cell.measured += round(measured)
        cell.busy += round(busy)
    return left
