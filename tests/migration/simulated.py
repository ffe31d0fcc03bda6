"""Cohorts of which it is known how they differ."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_gate.migration.cohort import HOUR, Cohorts, Key
from dra_gate.policy.switch import Lane

START = 1_790_000_000_000 // HOUR * HOUR
HOURS = 8


@dataclass(frozen=True)
class Fares:
    """How Pods of a lane fare: rates, and seconds to bound (log-normal, its median for one device)."""

    success: float = 0.98
    first: float = 0.6
    bind: float = 0.005
    prepare: float = 0.005
    restarts: float = 0.01
    denied: float = 0.02
    median: float = 20.0
    sizes: Mapping[int, int] = field(default_factory=lambda: {1: 6, 2: 2, 8: 1})  # how often
    by_hour: Sequence[int] = (1,) * HOURS  # likewise
    slower: Mapping[int, float] = field(default_factory=lambda: {1: 1.0, 2: 1.5, 8: 4.0})  # times by size
    riskier: Mapping[int, float] = field(default_factory=lambda: {1: 1.0, 2: 1.0, 8: 1.0})  # failures by size
    busy: Sequence[float] = (1.0,) * HOURS  # times by hour
    unsteady: float = 0.0  # by how much (log) the hours of the lane differ, in times and failures


def simulate(dra: Fares, plugin: Fares, pods: tuple[int, int], seed: int, tenants: int = 3) -> Cohorts:
    """So many Pods of each lane over HOURS hours."""
    draw = random.Random(seed)
    found = Cohorts()
    lanes: tuple[tuple[Lane, Fares, int], ...] = (("dra", dra, pods[0]), ("device-plugin", plugin, pods[1]))
    for lane, fares, count in lanes:
        mood = [draw.lognormvariate(0, fares.unsteady) if fares.unsteady else 1.0 for _ in range(HOURS)]
        hours = draw.choices(range(HOURS), fares.by_hour, k=count)
        sizes = draw.choices(list(fares.sizes), list(fares.sizes.values()), k=count)
        for hour, size in zip(hours, sizes, strict=True):
            model = "h100" if draw.random() < 0.7 else "a100"
            cell = found.cell(START + hour * HOUR, Key(lane, f"team-{draw.randrange(tenants)}", size, model))
            if draw.random() < fares.denied:
                cell.denied += 1
                continue
            cell.submitted += 1
            cell.bind_failed += draw.random() < fares.bind
            wait = fares.median * fares.slower[size] * fares.busy[hour] * mood[hour] * draw.lognormvariate(0, 1)
            cell.bind(int(1000 * wait))
            cell.first += draw.random() < fares.first
            cell.prepare_failed += draw.random() < fares.prepare
            cell.held += int(600 * size)
            if draw.random() < (1 - fares.success) * fares.riskier[size] * mood[hour]:
                cell.failed += 1
            else:
                cell.started += 1
                cell.restarted += draw.random() < fares.restarts
    return found


USUAL = Fares()
LARGE = replace(USUAL, sizes={1: 1, 2: 2, 8: 6})
UNEVEN = {1: 1.0, 2: 2.0, 8: 5.0}
RISING = tuple(1.5**hour for hour in range(HOURS))
UNSTEADY = replace(USUAL, unsteady=0.4)
# How DRA's Pods fare, and the others'; the share of all Pods that are DRA's.
ALIKE: Mapping[str, tuple[Fares, Fares, float]] = {
    "alike": (USUAL, USUAL, 0.5),
    "alike, a tenth of the Pods under DRA": (USUAL, USUAL, 0.1),
    "large Pods under DRA, which fail and wait more in either lane": (
        replace(LARGE, riskier=UNEVEN),
        replace(USUAL, riskier=UNEVEN),
        0.5,
    ),
    "more and more under DRA, while queues grow": (
        replace(USUAL, by_hour=range(1, HOURS + 1), busy=RISING),
        replace(USUAL, by_hour=range(HOURS, 0, -1), busy=RISING),
        0.5,
    ),
    "each lane with good and bad hours of its own": (UNSTEADY, UNSTEADY, 0.5),
}
WORSE: Mapping[str, tuple[Fares, Fares, float]] = {
    "96 % start, not 98 %": (replace(USUAL, success=0.96), USUAL, 0.5),
    "93 % start, not 98 %": (replace(USUAL, success=0.93), USUAL, 0.5),
    "80 % start, not 98 %": (replace(USUAL, success=0.8), USUAL, 0.5),
    "80 % start, not 98 %, a tenth under DRA": (replace(USUAL, success=0.8), USUAL, 0.1),
    "first choice 50 %, not 60 %": (replace(USUAL, first=0.5), USUAL, 0.5),
    "first choice 30 %, not 60 %": (replace(USUAL, first=0.3), USUAL, 0.5),
    "devices of 5 % can't be prepared, not 0.5 %": (replace(USUAL, prepare=0.05), USUAL, 0.5),
    "5 % restart, not 1 %": (replace(USUAL, restarts=0.05), USUAL, 0.5),
    "times 1.25 as long": (replace(USUAL, median=25), USUAL, 0.5),
    "times 1.5 as long": (replace(USUAL, median=30), USUAL, 0.5),
    "times twice as long": (replace(USUAL, median=40), USUAL, 0.5),
    "times twice as long, good and bad hours": (replace(UNSTEADY, median=40), UNSTEADY, 0.5),
}
