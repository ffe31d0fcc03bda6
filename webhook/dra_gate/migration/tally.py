"""The counts of all Pods, as one controller keeps them and hands them to the next. Pure.

What is known of Pods that are there stands beside the cohorts, Pod by Pod, and goes into them when a Pod is gone. So a
Pod is counted once, however often it is seen and by however many controllers: who takes over reads both at one moment,
adds what it saw itself, and drops what the counts hold already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dra_gate.migration.cohort import HOUR, OTHERS, Cell, Cohorts, Key, Mark
from dra_gate.migration.counting import Facts, counted
from dra_gate.policy.switch import DRA, PLUGIN

OPEN = 50_000  # Pods that are there; who comes later is not counted
GONE = 20_000  # Pods that are remembered after they went, for who takes over,
REMEMBERED = 900_000  # and for how long
DENIALS = 5_000  # owners and hours
_DAY = 24 * HOUR


class _Open(Struct):
    key: Key
    facts: Facts


class _State(Struct):
    at: int
    begun: int
    version: int
    cohorts: msgspec.Raw
    keys: tuple[Key, ...]
    open: tuple[tuple[str, int, Facts], ...]
    denied: tuple[tuple[str, int, int], ...]
    standing: tuple[str, ...]
    known: dict[str, Any]
    parted: int = 0
    part: msgspec.Raw = msgspec.Raw(b"")


class Tally:
    """What is counted. `begun`: Pods that were created earlier are not, for nobody saw those that had gone by then; 0
    for who only remembers what it sees, until it takes over.

    `uncounted` are Pods and denials that were left out for want of room, or for a time that can't be.
    `known` is for whoever counts: what it last saw of what it marks. JSON values.
    """

    def __init__(self, begun: int = 0) -> None:
        self.begun = begun
        self.known: dict[str, Any] = {}
        self.uncounted = 0
        self._closed = Cohorts()
        self._parted = 0  # a time, and the hour that it is in: of that
        self._part = Cohorts()  # what is counted of Pods that were created then or later
        self._open: dict[str, _Open] = {}
        self._gone: OrderedDict[str, tuple[int, _Open]] = OrderedDict()  # -> when it went
        self._denied: dict[tuple[str, int], Key] = {}  # owner and hour
        self._standing: dict[str, bool] = {}  # what is wrong now -> whether it is counted
        self._version = 0  # the newest that was seen of any Pod
        self._newest = 0  # time that the API server wrote
        self._refused: set[str] = set()

    @property
    def pods(self) -> int:
        """Pods that are there."""
        return len(self._open)

    @property
    def cells(self) -> int:
        """Cells that are kept."""
        return sum(map(len, self._closed.hours.values()))

    def time(self, now: int) -> int:
        """`now`, unless it is ahead of all that the API server has written by more than a day: one wrong clock must not
        put two weeks of counts away as too old."""
        return min(now, self._newest + _DAY) if self._newest else now

    # -- what is seen -------------------------------------------------------------------------------------------------

    def see(self, uid: str, key: Key, facts: Facts, now: int) -> None:
        """A Pod was seen: `facts` of one look, or of several."""
        self._version = max(self._version, facts.version)
        if self.note(uid, facts) or facts.created < self.begun:
            return
        if facts.created > now + HOUR or len(self._open) >= OPEN:
            if uid not in self._refused and len(self._refused) < OPEN:
                self._refused.add(uid)
                self.uncounted += 1
            return
        self._newest = max(self._newest, facts.created)
        self._closed.cell(facts.created, key)  # a place for it, so that it stays where it is counted first
        self._open[uid] = _Open(key, facts)

    def note(self, uid: str, facts: Facts) -> bool:
        """Something tells `facts` of a Pod that was seen, however late; False where it was not."""
        found = self._open.get(uid)
        if found is not None:
            found.facts = found.facts.merge(facts)
            return True
        if uid not in self._gone:
            return False
        found = self._gone[uid][1]
        self._close(uid, found, -1)
        found.facts = found.facts.merge(facts)
        self._close(uid, found)
        return True

    def key(self, uid: str) -> Key | None:
        """The cohort of a Pod that was seen."""
        found = self._open.get(uid) or (self._gone[uid][1] if uid in self._gone else None)
        return None if found is None else found.key

    def gone(self, uid: str, now: int) -> None:
        """The Pod is there no more: what is known of it goes into the cohorts."""
        found = self._open.pop(uid, None)
        self._refused.discard(uid)
        if found is None:
            return
        found.facts = found.facts.merge(Facts(0, ended=max(now, found.facts.created)))
        self._close(uid, found)
        self._gone[uid] = now, found
        while self._gone and (len(self._gone) > GONE or next(iter(self._gone.values()))[0] < now - REMEMBERED):
            self._gone.popitem(last=False)

    def denied(self, owner: str, at: int, key: Key, now: int) -> None:
        """A Pod that `owner` (a UID) wanted was refused at that time: counted once an owner and hour."""
        hour = at - at % HOUR
        if (owner, hour) in self._denied or at < self.begun or hour < self.time(now) - 3 * HOUR:
            return
        if at > now + HOUR or len(self._denied) >= DENIALS:
            self.uncounted += 1
            return
        self._newest = max(self._newest, at)
        self._denied[owner, hour] = key

    def knows_denial(self, owner: str, at: int) -> bool:
        """Whether that one is counted already."""
        return (owner, at - at % HOUR) in self._denied

    def stands(self, what: Literal["over_cap", "doubled"], wrong: Mapping[str, Key], now: int) -> None:
        """What is wrong now of a kind, `over_cap` or `doubled`, by name, and where it counts. It counts when it is seen
        for the second time: one change may come in two parts. And again only after it was right meanwhile.
        """
        for name, key in wrong.items():
            named = f"{what} {name}"
            if self._standing.get(named) is False:
                for cell in self._cells(self.time(now), key):
                    setattr(cell, what, getattr(cell, what) + 1)
            self._standing[named] = named in self._standing
        for named in [one for one in self._standing if one.startswith(f"{what} ")]:
            if named.partition(" ")[2] not in wrong:
                del self._standing[named]

    def mark(self, at: int, text: str) -> None:
        """Remember that something happened."""
        self._closed.mark(Mark(self.time(at), text))

    def settle(self, now: int) -> None:
        """Put denials away that can't come again."""
        for owner, hour in [one for one in self._denied if one[1] < self.time(now) - 3 * HOUR]:
            self._closed.cell(hour, self._denied.pop((owner, hour))).denied += 1

    # -- what is asked ------------------------------------------------------------------------------------------------

    def cohorts(self, now: int) -> Cohorts:
        """All counts, as known at `now`."""
        total = Cohorts()
        total.merge(self._closed)
        total.since = self._closed.since
        for uid, one in self._open.items():
            total.cell(one.facts.created, one.key).add(counted(one.facts, one.key, uid, now))
        for (_, hour), key in self._denied.items():
            total.cell(hour, key).denied += 1
        return total

    def after(self, since: int, now: int) -> Cohorts:
        """The counts, as known at `now`, of Pods that were created at `since` or later, less denials.

        Who asks again asks of the same time, or of a later one. Of the hour that it is in, what happened before it was
        first asked of is left out, but for Pods that went in the quarter of an hour before.
        """
        if since != self._parted:
            self._parted, self._part = since, Cohorts()
            for uid, (_, one) in self._gone.items():
                if self._in_part(one.facts.created):
                    self._part.cell(one.facts.created, one.key).add(counted(one.facts, one.key, uid, one.facts.ended))
        total = Cohorts()
        total.merge(self._part)
        for hour, key, cell in self._closed.between(_next_hour(since), now + _DAY):
            total.cell(hour, key).add(cell)
        for uid, one in self._open.items():
            if one.facts.created >= since:
                total.cell(one.facts.created, one.key).add(counted(one.facts, one.key, uid, now))
        return total

    def held(self) -> dict[tuple[str, str], int]:
        """Devices of bound Pods that have not ended, by tenant and lane."""
        found: dict[tuple[str, str], int] = {}
        for one in self._open.values():
            if one.facts.bound and not one.facts.ended:
                place = one.key.tenant, one.key.lane
                found[place] = found.get(place, 0) + one.key.size
        return found

    # -- from one controller to the next ------------------------------------------------------------------------------

    def dumps(self, now: int, version: int) -> bytes:
        """Everything, as JSON. `version`: what the caches have heard of Pods is at least that new."""
        keys: dict[Key, int] = {}
        opened = tuple((uid, keys.setdefault(one.key, len(keys)), one.facts) for uid, one in sorted(self._open.items()))
        denied = tuple((*one, keys.setdefault(key, len(keys))) for one, key in sorted(self._denied.items()))
        return msgspec.json.encode(
            _State(
                at=now,
                begun=self.begun,
                version=max(version, self._version),
                cohorts=msgspec.Raw(self._closed.dumps()),
                keys=tuple(keys),
                open=opened,
                denied=denied,
                standing=tuple(sorted(name for name, counted_ in self._standing.items() if counted_)),
                known=self.known,
                parted=self._parted,
                part=msgspec.Raw(self._part.dumps()),
            )
        )

    @classmethod
    def loads(cls, data: bytes) -> tuple[Tally, int]:
        """What `dumps` wrote, and when. Raises ValueError for anything else."""
        try:
            state = msgspec.json.decode(data, type=_State)
            keys = state.keys
            found = cls(state.begun)
            found._closed = Cohorts.loads(bytes(state.cohorts))
            if state.parted:
                found._parted, found._part = state.parted, Cohorts.loads(bytes(state.part))
            found._open = {uid: _Open(keys[number], facts) for uid, number, facts in state.open}
            found._denied = {(owner, hour): keys[number] for owner, hour, number in state.denied}
        except (msgspec.DecodeError, IndexError) as error:
            raise ValueError(f"these are no counts: {error}") from None
        found._standing = dict.fromkeys(state.standing, True)
        found._version, found.known = state.version, state.known
        found._newest = max((one.facts.created for one in found._open.values()), default=0)
        found._newest = max(found._newest, *found._closed.hours, 0)
        return found, state.at

    def begin(self, begun: int) -> None:
        """Nothing is stored: count what was seen of Pods that were created since then."""
        self.begun, self._closed = begun, Cohorts()
        self._open = {uid: one for uid, one in self._open.items() if one.facts.created >= begun}
        for one in self._open.values():
            self._closed.cell(one.facts.created, one.key)
        for uid, (_, one) in self._gone.items():
            if one.facts.created >= begun:
                self._close(uid, one)

    def adopt(self, stored: Tally, at: int, alive: Collection[str]) -> Tally:
        """The counts of `stored`, written at `at`, with what was seen here: for who takes over. `alive` are the UIDs of
        all Pods that are there.

        A Pod that went in between counts as it was seen here last, else as it was stored. One that neither stands in
        `stored` nor was seen later than it is in the counts already.
        """
        found, before = stored, stored._open
        found._open = {}
        found._gone, found.uncounted, found._refused = self._gone, self.uncounted, self._refused
        for uid, one in before.items():
            mine = self._open.get(uid) or (self._gone[uid][1] if uid in self._gone else None)
            if mine is not None:
                one.facts = one.facts.merge(mine.facts)
            if uid in alive:
                found._open[uid] = one
            else:
                if not one.facts.ended:
                    one.facts.ended = max(at, one.facts.created)
                found._close(uid, one)
        for uid, one in self._open.items():
            if uid not in before and one.facts.created >= found.begun:
                found._closed.cell(one.facts.created, one.key)
                found._open[uid] = one
        for uid, (_, one) in self._gone.items():
            if uid not in before and one.facts.version > stored._version and one.facts.created >= found.begun:
                found._close(uid, one)
        for mine_denied, key in self._denied.items():
            found._denied.setdefault(mine_denied, key)
        found._version = max(found._version, self._version)
        found._newest = max(found._newest, self._newest)
        return found

    def _close(self, uid: str, one: _Open, times: int = 1) -> None:
        for cell in self._cells(one.facts.created, one.key):
            cell.add(counted(one.facts, one.key, uid, one.facts.ended), times)

    def _cells(self, created: int, key: Key) -> list[Cell]:
        """The cells of all counts that a Pod of that time belongs to."""
        found = [self._closed.cell(created, key)]
        return [*found, self._part.cell(created, key)] if self._in_part(created) else found

    def _in_part(self, created: int) -> bool:
        return self._parted <= created < _next_hour(self._parted)


def _next_hour(at: int) -> int:
    return at - at % HOUR + HOUR


def nowhere(lane: str, tenant: str) -> Key:
    """A cohort for what is no Pod's: nothing is compared with it."""
    return Key(DRA if lane == DRA else PLUGIN, tenant, 0, OTHERS)
