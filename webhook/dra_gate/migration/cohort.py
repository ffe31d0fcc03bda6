"""What is counted of the Pods of both lanes, so that they can be compared. Integers; pure.

A cohort is the Pods that were created in one hour, in one lane, of one tenant, asking for as many devices, with the
same first choice. Whatever comes of a Pod is counted in the cohort that it was created in, however late: so every rate
is of Pods that had the same hour. Times are milliseconds since 1970.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import isqrt

import msgspec
from msgspec import Struct

from dra_gate.policy.switch import Lane

HOUR = 3_600_000
HOURS = 336  # kept at most: two weeks
CELLS = 4_000  # kept at most; the oldest hour goes first
KEYS = 250  # in an hour; who comes later is counted under OTHERS
MARKS = 200
OTHERS = "others"

# Upper bounds of the buckets of waits, in milliseconds: from 0.1 s to 29 h, eight to a doubling, so that a quantile is
# known to 9 % at worst. One more bucket is for what is longer.
BOUNDS = tuple(isqrt(isqrt(isqrt(100**8 << n))) for n in range(161))
STEP = 2 ** (1 / 8)


class Key(Struct, frozen=True, array_like=True):
    """Which Pods. `size` is the devices that a Pod asks for, `first` the model that its policy prefers, `policy` the
    policy that its stamp names, as name@version; empty where nobody knows.
    """

    lane: Lane
    tenant: str
    size: int
    first: str
    policy: str = ""


class Cell(Struct, array_like=True):
    """What is counted of a cohort: Pods, each once, where nothing else is said. Counts only grow.

    `submitted` were let in; `denied` weren't: requests, one an owner and hour, as controllers try again and again.
    `first` of the bound Pods got their first choice, in all of their claims. `started`: all containers ran, within ten
    minutes of binding, or of the end of its init containers. `failed`: bound, and did not start in that time, or ended
    before. Neither: a Pod whose init containers run, what its owner got wrong (an image that isn't there), and what was
    taken away before it started, unless its devices could not be
    prepared. `bind_failed`: a node was chosen for the Pod and its binding failed, at least once; that none was free is
    waiting. `prepare_failed`: likewise, of bound Pods; in the lane of device plugins it is UnexpectedAdmissionError.
    `restarted`: within ten minutes of its start. `over_cap` and `doubled` are the times that a tenant came above its
    cap and devices that came to be in two claims in use. `held` are device-seconds from binding to the end. `measured`
    are those of which somebody measured how busy the device was, in the hour in which that was (of no Pod's cohort),
    and `busy` these times utilisation.
    `waits` counts bound Pods by the bucket of their time from creation to binding.
    """

    submitted: int = 0
    denied: int = 0
    first: int = 0
    started: int = 0
    failed: int = 0
    bind_failed: int = 0
    prepare_failed: int = 0
    restarted: int = 0
    over_cap: int = 0
    doubled: int = 0
    held: int = 0
    measured: int = 0
    busy: int = 0
    waits: dict[int, int] = {}

    @property
    def bound(self) -> int:
        """Pods."""
        return sum(self.waits.values())

    def bind(self, waited: int) -> None:
        """A Pod was bound, `waited` milliseconds after its creation."""
        bucket = bisect_left(BOUNDS, waited)
        self.waits[bucket] = self.waits.get(bucket, 0) + 1

    def add(self, other: Cell, times: int = 1) -> None:
        """Count what `other` counted, too; -1 times: count it no more."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for bucket, pods in other.waits.items():
            self.waits[bucket] = self.waits.get(bucket, 0) + times * pods
            if not self.waits[bucket]:
                del self.waits[bucket]


COUNTS = tuple(name for name in Cell.__struct_fields__ if name != "waits")


class Mark(Struct, frozen=True, array_like=True):
    """Something that happened meanwhile and matters to who compares: a wave, a rollback, devices that fell ill."""

    at: int
    text: str


class _Hour(Struct, array_like=True):
    at: int
    cells: tuple[tuple[Key, Cell], ...]


class _Stored(Struct):
    hours: tuple[_Hour, ...]
    marks: tuple[Mark, ...] = ()
    since: int = 0


class Cohorts:
    """The cells of the last two weeks at most, by hour and key, and the marks.

    `since` is the oldest hour of which nothing was thrown away. Not more than CELLS are kept, whatever comes: as JSON
    150 bytes each of a few Pods, up to 1 kB of thousands.
    """

    def __init__(self) -> None:
        self.hours: dict[int, dict[Key, Cell]] = {}
        self.marks: list[Mark] = []
        self.since = 0
        self._cells = 0

    def cell(self, created: int, key: Key) -> Cell:
        """The cell to count in of a Pod created at that time. Nothing is kept of what is older than `since`."""
        hour = created - created % HOUR
        if hour < self.since:
            return Cell()
        cells = self.hours.setdefault(hour, {})
        if key not in cells:
            if len(cells) >= KEYS:
                key = Key(key.lane, OTHERS, 0, OTHERS)  # they have no counterpart of their size: never compared
            if key not in cells:
                cells[key] = Cell()
                self._cells += 1
                self._forget(hour)
        return cells[key]

    def mark(self, mark: Mark) -> None:
        """Remember it, among the last MARKS."""
        self.marks = sorted({*self.marks, mark}, key=lambda one: (one.at, one.text))[-MARKS:]

    def merge(self, other: Cohorts) -> None:
        """Count what `other` counted, too: of other Pods, or of the same ones at other times."""
        for hour, cells in sorted(other.hours.items()):
            for key, cell in cells.items():
                self.cell(hour, key).add(cell)
        for mark in other.marks:
            self.mark(mark)

    def between(self, since: int, until: int) -> Iterator[tuple[int, Key, Cell]]:
        """The cells of the hours that begin in [since, until), oldest hour first."""
        for hour in sorted(self.hours):
            if since <= hour < until:
                for key, cell in self.hours[hour].items():
                    yield hour, key, cell

    def dumps(self) -> bytes:
        """As JSON: the same counts always give the same bytes."""
        hours = []
        for hour, cells in sorted(self.hours.items()):
            for cell in cells.values():
                cell.waits = dict(sorted(cell.waits.items()))
            ordered = sorted(cells.items(), key=lambda item: msgspec.structs.astuple(item[0]))
            hours.append(_Hour(hour, tuple(ordered)))
        return msgspec.json.encode(_Stored(tuple(hours), tuple(self.marks), self.since))

    @classmethod
    def loads(cls, data: bytes) -> Cohorts:
        """What `dumps` wrote. Raises ValueError for anything else, and for counts that can't be."""
        try:
            stored = msgspec.json.decode(data, type=_Stored)
        except msgspec.DecodeError as error:
            raise ValueError(f"these are no cohorts: {error}") from None
        found = cls()
        for hour in stored.hours:
            for key, cell in hour.cells:
                counts = (*(getattr(cell, name) for name in COUNTS), *cell.waits.values())
                if hour.at % HOUR or min(counts) < 0:
                    raise ValueError(f"these are no cohorts: hour {hour.at} of tenant {key.tenant!r} can't be so")
                if not all(0 <= bucket <= len(BOUNDS) for bucket in cell.waits):
                    raise ValueError(f"these are no cohorts: there is no bucket {max(cell.waits)} of waits")
                found.cell(hour.at, key).add(cell)
        for mark in stored.marks:
            found.mark(mark)
        found.since = max(found.since, stored.since)
        return found

    def _forget(self, newest: int) -> None:
        newest = max(newest, *self.hours)
        while len(self.hours) > 1 and (self._cells > CELLS or min(self.hours) <= newest - HOURS * HOUR):
            oldest = min(self.hours)
            self._cells -= len(self.hours.pop(oldest))
            self.since = oldest + HOUR
