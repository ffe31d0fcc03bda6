"""Whether Pods fare better or worse on one side than on the other, and whether that is known at all. Pure.

The sides are the lanes, DRA on trial, or two policy versions. Pods of both that were created in the same hour and are
alike (`Sides.likeness`) are compared; what has no such counterpart is left out, and said. Differences are the figure of
the side on trial less the other's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from dra_gate.migration import intervals
from dra_gate.migration.cohort import BOUNDS, HOUR, Cell, Cohorts
from dra_gate.migration.sides import LANES, Sides

Verdict = Literal["better", "worse", "same", "too few"]

ERROR = 0.05  # a comparison says "worse" or "better" without cause no more often, over all of its measures
ENOUGH = 50  # Pods that a side needs in a measure for any verdict
TAIL = 200  # in that of a 95th percentile: only the Pods around it tell
NOTICED = 1000  # milliseconds: shorter waits are compared as if they were that long, since nobody notices
FAILURES = 0.05  # the rate above which the side on trial must take no more Pods, unless somebody says another
LOOK = 0.001  # a hard stop without cause, at each look
FIRST_CHOICE = "first-choice"
RECENT = 2 * HOUR  # a hard stop looks at these Pods by themselves, too


@dataclass(frozen=True, slots=True)
class RateOf:
    """A share of Pods that is compared. `of`: how many, of how many. `good`: more is better. A difference of less than
    `margin` is none.
    """

    name: str
    title: str
    good: bool
    margin: float
    of: Callable[[Cell], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TimeOf:
    """A quantile of the time to bound, no wait shorter than NOTICED. A ratio of less than `margin`, or more than
    1 / `margin`, is none.
    """

    name: str
    title: str
    share: float
    margin: float


RATES = (
    RateOf("success", "Pods that started, of those that started or failed", True, 0.02,
           lambda cell: (cell.started, cell.started + cell.failed)),
    RateOf(FIRST_CHOICE, "bound Pods with their first choice; the others fell back", True, 0.05,
           lambda cell: (cell.first, cell.bound)),
    RateOf("bind-failures", "Pods that could not be bound at least once", False, 0.02,
           lambda cell: (cell.bind_failed, cell.submitted)),
    RateOf("prepare-failures", "bound Pods whose devices could not be prepared at least once", False, 0.02,
           lambda cell: (cell.prepare_failed, cell.bound)),
    RateOf("restarts", "started Pods that restarted within ten minutes", False, 0.02,
           lambda cell: (cell.restarted, cell.started)),
    RateOf("denials", "requests that were refused", False, 0.02,
           lambda cell: (cell.denied, cell.denied + cell.submitted)),
)  # fmt: skip
TIMES = (
    TimeOf("bound-p50", "time from creation to bound, median", 0.5, 1.25),
    TimeOf("bound-p95", "time from creation to bound, 95th percentile", 0.95, 1.5),
)
MEASURES = len(RATES) + len(TIMES)


@dataclass(frozen=True, slots=True)
class Figure:
    """One side's figure of a measure: a rate, or seconds, with its own interval; `n` Pods. Of all of its Pods that have
    counterparts, not weighted. None: not known, or longer than anything that is counted (29 h).
    """

    n: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure of both sides, `figures` by their names. `change` is the difference of rates or the ratio of times,
    like with like, and `low` and `high` its interval; None: without bound.
    """

    name: str
    title: str
    unit: Literal["rate", "seconds"]
    figures: Mapping[str, Figure]
    change: float | None
    low: float | None
    high: float | None
    margin: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the side on trial must not take more Pods."""

    reason: Literal["CapBreach", "DoubleAllocation", "Failures", "PrepareFailures"]
    text: str


@dataclass(frozen=True, slots=True)
class Held:
    """Device-hours of a side: held by its Pods, and measured in the same hours, of which `busy` is the share in use."""

    hours: float
    measured: float
    busy: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of [since, until).

    By side: `pods`, of these `left_out` as they have no counterpart, `waiting` not bound yet or gone before that,
    `firsts` the models that they prefer. Where versions prefer different ones, `measures` lack first-choice: it would
    tell two models apart. A hard stop stands beside the verdict: it needs no comparison.
    """

    since: int
    until: int
    pods: Mapping[str, int]
    left_out: Mapping[str, int]
    waiting: Mapping[str, int]
    held: Mapping[str, Held]
    firsts: Mapping[str, tuple[str, ...]]
    measures: tuple[Measured, ...]
    stops: tuple[Stop, ...]
    verdict: Verdict


def compare(
    cohorts: Cohorts,
    since: int,
    until: int,
    *,
    sides: Sides = LANES,
    failures: float = FAILURES,
    error: float = ERROR,
    tenant: str | None = None,
    first: str | None = None,
) -> Comparison:
    """Compare the Pods created in the hours that begin in [since, until).

    `failures` is the rate above which the side on trial must stop. `tenant`: what this one pays for (`Sides.pays`);
    `first`: Pods that prefer this model. Who makes several comparisons divides `error` among them.
    """
    strata: dict[tuple[int, Hashable], tuple[Cell, Cell]] = {}
    mine = (Cell(), Cell())
    recent = Cell()
    firsts: tuple[set[str], set[str]] = (set(), set())
    for hour, key, cell in cohorts.between(since, until):
        side = sides.of(key)
        if side is None or (tenant is not None and not sides.pays(key, tenant)) or first not in (None, key.first):
            continue
        if key.size:  # without one they are some of any size, of an hour that had too many keys
            strata.setdefault((hour, sides.likeness(key)), (Cell(), Cell()))[side].add(cell)
        mine[side].add(cell)
        firsts[side].add(key.first)
        if not side and hour >= until - RECENT:
            recent.add(cell)
    pairs = [(hour, *pair) for (hour, _), pair in strata.items() if all(cell.submitted + cell.denied for cell in pair)]
    paired = (Cell(), Cell())
    for _, *pair in pairs:
        for whole, cell in zip(paired, pair, strict=True):
            whole.add(cell)
    comparable = not sides.versions or firsts[0] == firsts[1]
    rates = (one for one in RATES if comparable or one.name != FIRST_CHOICE)
    each = error / MEASURES
    measures = (
        *(_rate(one, pairs, _by(sides, paired), each) for one in rates),
        *(_time(one, pairs, _by(sides, paired), each) for one in TIMES),
    )
    return Comparison(
        since,
        until,
        pods={name: cell.submitted for name, cell in _by(sides, mine).items()},
        left_out={
            name: cell.submitted - with_.submitted for name, cell, with_ in zip(sides.names, mine, paired, strict=True)
        },
        waiting={name: cell.submitted - cell.bound for name, cell in _by(sides, mine).items()},
        held={name: _held(cell) for name, cell in _by(sides, mine).items()},
        firsts={name: tuple(sorted(models)) for name, models in zip(sides.names, firsts, strict=True)},
        measures=measures,
        stops=stops(mine[0], recent, failures),
        verdict=overall(one.verdict for one in measures),
    )


def stops(trial: Cell, recent: Cell, failures: float) -> tuple[Stop, ...]:
    """What of the counts of the side on trial stops it at once; `recent` are those of its newest Pods.

    A rate counts as above `failures` when a true rate of just that would give so many less than once in a thousand
    times: at 5 % if three of three Pods failed.
    """
    found = []
    if trial.over_cap:
        found.append(Stop("CapBreach", f"a tenant was above its cap, {_times(trial.over_cap)}"))
    if trial.doubled:
        found.append(Stop("DoubleAllocation", f"a device was given to two Pods, {_times(trial.doubled)}"))
    for when, cell in (("", trial), (" in the last two hours", recent)):
        ended, bound = cell.started + cell.failed, cell.bound
        if ended and intervals.at_least(cell.failed, ended, failures) < LOOK:
            text = f"{cell.failed} of {ended} Pods failed{when}: above {100 * failures:.3g} % for certain"
            found.append(Stop("Failures", text))
        if bound and intervals.at_least(cell.prepare_failed, bound, failures) < LOOK:
            text = f"the devices of {cell.prepare_failed} of {bound} bound Pods could not be prepared{when}"
            found.append(Stop("PrepareFailures", f"{text}: above {100 * failures:.3g} % for certain"))
    return tuple(found)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Worse if anything is; else too few if that is said of anything, for it may be worse; else better, else same."""
    said = set(verdicts)
    order: tuple[Verdict, ...] = ("worse", "too few", "better", "same")
    return next((one for one in order if one in said), "too few")


def _by(sides: Sides, cells: tuple[Cell, Cell]) -> dict[str, Cell]:
    return dict(zip(sides.names, cells, strict=True))


def _rate(what: RateOf, pairs: Sequence[tuple[int, Cell, Cell]], paired: Mapping[str, Cell], alpha: float) -> Measured:
    counts = [(hour, *what.of(trial), *what.of(other)) for hour, trial, other in pairs]
    change, low, high = intervals.difference(counts, alpha)
    figures = {name: _share(*what.of(cell), alpha) for name, cell in paired.items()}
    enough = min(one.n for one in figures.values()) >= ENOUGH
    known = any(n and m for _, _, n, _, m in counts)
    worse, better = (high < 0, low > 0) if what.good else (low > 0, high < 0)
    return Measured(
        what.name, what.title, "rate", figures, change if known else None, low, high, what.margin,
        _verdict(enough and known, -what.margin < low and high < what.margin, worse, better),
    )  # fmt: skip


def _time(what: TimeOf, pairs: Sequence[tuple[int, Cell, Cell]], paired: Mapping[str, Cell], alpha: float) -> Measured:
    times = [
        (hour, _noticed(trial.waits), trial.submitted, _noticed(other.waits), other.submitted)
        for hour, trial, other in pairs
    ]
    change, low, high = intervals.ratio(times, what.share, alpha)
    figures = {name: _waits(cell, what.share, alpha) for name, cell in paired.items()}
    enough = min(one.n for one in figures.values()) >= (ENOUGH if what.share == 0.5 else TAIL)
    known = bool(pairs) and high > low
    return Measured(
        what.name, what.title, "seconds", figures, change if known else None, low, None if high == inf else high,
        what.margin, _verdict(enough and known, 1 / what.margin < low and high < what.margin, low >= 1, high <= 1),
    )  # fmt: skip


def _share(x: int, n: int, alpha: float) -> Figure:
    return Figure(n, x / n, *intervals.rate(x, n, alpha)) if n else Figure(0, None, None, None)


def _noticed(waits: Mapping[int, int]) -> dict[int, int]:
    shortest, found = bisect_left(BOUNDS, NOTICED), Counter[int]()
    for bucket, pods in waits.items():
        found[max(bucket, shortest)] += pods
    return found


def _waits(cell: Cell, share: float, alpha: float) -> Figure:
    n = cell.submitted
    if not n:
        return Figure(0, None, None, None)
    first, last = intervals.order_limits(cell.waits, n, share, alpha)
    value = intervals.quantile(cell.waits, n, share)
    return Figure(n, _seconds(value), _seconds(first - 1) if first else 0.0, _seconds(last))


def _verdict(enough: bool, same: bool, worse: bool, better: bool) -> Verdict:
    if not enough:
        return "too few"
    if same:
        return "same"
    return "worse" if worse else "better" if better else "too few"


def _seconds(bucket: int) -> float | None:
    return None if bucket >= len(BOUNDS) else BOUNDS[bucket] / 1000


def _held(cell: Cell) -> Held:
    return Held(cell.held / 3600, cell.measured / 3600, cell.busy / cell.measured if cell.measured else None)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
