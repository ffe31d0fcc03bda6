"""Namespaces from device plugins to DRA in waves: who is next, who is left alone and why. Pure.

Times are seconds since the epoch. What a namespace's lane is its label says, whoever wrote it; what this code knows of
it is the record that its own commands leave beside the label (`Move`). Where the two disagree somebody else moved the
namespace: that is told, and never undone unless the namespace is named.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from dra_gate.kube.raw import mapping, text
from dra_gate.migration.compare import FAILURES
from dra_gate.policy.switch import DRA, PLUGIN

SETTLE = 3600  # seconds that a lane stays as it is before `enroll` and `step` touch it again
_TENANTS = "tenant:"


class PlanError(ValueError):
    """A wave or a plan that can't be read; the message says what is wrong and what to write instead."""


@dataclass(frozen=True, slots=True)
class Move:
    """One change of lane by command. `source` is empty for a namespace that had no lane label."""

    source: str
    to: str
    at: int
    by: str
    why: str

    def dumps(self) -> str:
        """As the annotation has it."""
        said = {"from": self.source, "to": self.to, "at": stamp(self.at), "by": self.by, "why": self.why}
        return json.dumps(said, ensure_ascii=False)


def read_move(annotation: str) -> Move | None:
    """What the annotation records; None where it is none of ours, or was spoilt."""
    try:
        said = mapping(json.loads(annotation))
        at = seconds(text(said.get("at")))
    except (ValueError, RecursionError):
        return None
    return Move(text(said.get("from")), text(said.get("to")), at, text(said.get("by")), text(said.get("why")))


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace that is gated or a tenant's. `lane` is its label, empty for none; `tenant` empty for nobody's.

    `labelled_by` and `labelled_at` (0: not known) are who wrote the label last, as far as the API server tells.
    """

    name: str
    tenant: str
    lane: str
    move: Move | None = None
    labelled_by: str = ""
    labelled_at: int = 0
    leaving: bool = False  # being deleted

    @property
    def own(self) -> Move | None:
        """The move that made the lane what it is; None where no command did."""
        return self.move if self.move is not None and self.move.to == self.lane else None

    @property
    def since(self) -> int:
        """When the lane became what it is, or the latest that may be; 0 where nobody knows."""
        return self.own.at if self.own is not None else self.labelled_at

    @property
    def by(self) -> str:
        """Who made the lane what it is; empty where nobody knows."""
        return self.own.by if self.own is not None else self.labelled_by

    @property
    def told(self) -> str:
        """What is worth telling about how it came by its lane."""
        if self.own is not None:
            return "rolled back" if self.lane == PLUGIN else ""
        if self.move is not None:
            return f"moved to {self.move.to} by {self.move.by or 'a command'}, and elsewhere by somebody else since"
        return "labelled by somebody else" if self.lane == DRA else ""


@dataclass(frozen=True, slots=True)
class Wave:
    """One of: so many percent of all namespaces, all of some tenants, or a list."""

    percent: int = 0
    tenants: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.percent:
            return f"{self.percent}%"
        return _TENANTS + ",".join(self.tenants) if self.tenants else ",".join(self.namespaces)


def read_wave(word: str) -> Wave:
    """The wave that `10%`, `tenant:lilac,mint` or `lilac-train,mint-dev` stands for. Raises PlanError."""
    if word.endswith("%"):
        number = word[:-1]
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= 100:
            raise PlanError(f"wave {word}: a percentage is a whole number from 1% to 100%")
        return Wave(percent=int(number))
    names = tuple(dict.fromkeys(word.removeprefix(_TENANTS).split(",")))
    if "" in names:
        raise PlanError(f"wave {word!r}: a name is empty: write 10%, tenant:NAME,NAME or NAMESPACE,NAMESPACE")
    return Wave(tenants=names) if word.startswith(_TENANTS) else Wave(namespaces=names)


@dataclass(frozen=True, slots=True)
class Paused:
    """Who holds the plan, since when and why."""

    by: str
    at: int
    why: str


Act = Literal["alert", "pause", "rollback"]
ACTS: tuple[Act, ...] = get_args(Act)


@dataclass(frozen=True, slots=True)
class OnStop:
    """What the controller does on a hard stop, and from which share of failures on it is one. Only Pods count that
    were created after `since`: whoever switched it on, or ended a pause, has seen what there was.
    """

    act: Act = "alert"
    failures: float = FAILURES
    since: int = 0


@dataclass(frozen=True, slots=True)
class Stopped:
    """What the controller did about a hard stop. `done`: when nobody was left to move back; 0 while it is at it."""

    act: Act
    at: int
    why: str
    done: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The waves in order and how many of them were begun; `seed` orders the namespaces for percentages. `stopped` is
    what became of the last hard stop, until somebody ends the pause that came of it.
    """

    seed: str
    waves: tuple[Wave, ...] = ()
    begun: int = 0
    paused: Paused | None = None
    on_stop: OnStop = OnStop()
    stopped: Stopped | None = None

    def with_waves(self, waves: Iterable[Wave]) -> Plan:
        """The plan with more waves at its end. Raises PlanError for one that would add nobody."""
        all_waves = (*self.waves, *waves)
        highest = 0
        for number, wave in enumerate(all_waves):
            if wave in all_waves[:number] or 0 < wave.percent <= highest:
                raise PlanError(f"wave {wave} adds nobody: the plan has {', '.join(map(str, all_waves[:number]))}")
            highest = max(highest, wave.percent)
        return replace(self, waves=all_waves)

    def resumed(self, now: int) -> Plan:
        """The plan without pause. What stopped it is over: Pods that were there before stop it no more."""
        return replace(self, paused=None, stopped=None, on_stop=replace(self.on_stop, since=now))

    def dumps(self) -> str:
        """As the ConfigMap has it."""
        held = self.paused and {"by": self.paused.by, "at": stamp(self.paused.at), "why": self.paused.why}
        said = {"seed": self.seed, "waves": [str(wave) for wave in self.waves], "done": self.begun, "paused": held}
        if self.on_stop != OnStop():
            rule = self.on_stop
            said["onStop"] = {"act": rule.act, "failures": rule.failures, "since": stamp(rule.since)}
        if self.stopped is not None:
            stop = self.stopped
            done = stamp(stop.done) if stop.done else None
            said["stopped"] = {"act": stop.act, "at": stamp(stop.at), "why": stop.why, "done": done}
        return json.dumps(said, indent=2, ensure_ascii=False) + "\n"


def read_plan(content: str) -> Plan:
    """The plan that a ConfigMap has. Raises PlanError: a plan that is not understood moves nobody."""
    try:
        said: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"it is no JSON: {error}") from None
    said = mapping(said)
    words, begun, held = said.get("waves"), said.get("done"), said.get("paused")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise PlanError("waves: it is no list of texts such as 10% or tenant:NAME")
    if not isinstance(begun, int) or isinstance(begun, bool) or not 0 <= begun <= len(words):
        raise PlanError("done: it is no number of waves of the plan")
    paused = None
    if held is not None and held is not False:
        entry = mapping(held)  # whatever else stands there holds the plan as well
        try:
            at = seconds(text(entry.get("at")))
        except ValueError:
            at = 0
        paused = Paused(text(entry.get("by")), at, text(entry.get("why")))
    plan = Plan(text(said.get("seed")), (), begun, paused, _on_stop(said.get("onStop")), _stopped(said.get("stopped")))
    return plan.with_waves(map(read_wave, words))


def _on_stop(said: object) -> OnStop:
    if said is None:
        return OnStop()
    failures = mapping(said).get("failures")
    if not isinstance(failures, (int, float)) or isinstance(failures, bool) or not 0 < failures < 1:
        raise PlanError("onStop.failures: it is no share between 0 and 1, such as 0.05")
    return OnStop(_act(said, "onStop"), failures, _time(said, "since", "onStop"))


def _stopped(said: object) -> Stopped | None:
    if said is None:
        return None
    done = 0 if mapping(said).get("done") is None else _time(said, "done", "stopped")
    why = text(mapping(said).get("why"))
    return Stopped(_act(said, "stopped"), _time(said, "at", "stopped"), why, done)


def _act(said: object, where: str) -> Act:
    for act in ACTS:
        if mapping(said).get("act") == act:
            return act
    raise PlanError(f"{where}.act: it is none of {', '.join(ACTS)}")


def _time(said: object, field: str, where: str) -> int:
    try:
        return seconds(text(mapping(said).get(field)))
    except ValueError:
        raise PlanError(f"{where}.{field}: it is no time such as 2026-11-30T08:00:00Z") from None


@dataclass(frozen=True, slots=True)
class Left:
    """A namespace that is not moved, and why."""

    space: Space
    why: str


@dataclass(frozen=True, slots=True)
class Moves:
    """What a command moves, in this order, and what it leaves alone. `wave` counts from 1; 0: it is about none."""

    moves: tuple[Space, ...]
    left: tuple[Left, ...]
    wave: int = 0


def order(spaces: Iterable[Space], seed: str) -> list[Space]:
    """By a hash of the name and the seed: whoever is within 10 % of them is within 50 % too."""
    return sorted(spaces, key=lambda space: (hashlib.sha256(f"{seed}/{space.name}".encode()).digest(), space.name))


def members(wave: Wave, spaces: Sequence[Space], seed: str) -> list[Space]:
    """Those that the wave is about, in order. A percentage is rounded up."""
    ordered = order(spaces, seed)
    if wave.percent:
        return ordered[: -(-len(ordered) * wave.percent // 100)]
    return [space for space in ordered if space.tenant in wave.tenants or space.name in wave.namespaces]


def wave_of(plan: Plan, spaces: Sequence[Space]) -> dict[str, int]:
    """The first wave that each namespace is in, counted from 1; those that are in none are left out."""
    found: dict[str, int] = {}
    for number, wave in enumerate(plan.waves, 1):
        for space in members(wave, spaces, plan.seed):
            found.setdefault(space.name, number)
    return found


def enroll(
    spaces: Iterable[Space], now: int, *, settle: int = SETTLE, force: bool = False, named: bool = True
) -> Moves:
    """Move these to lane dra. `named`: somebody named them, whatever their past; else what others or a rollback did
    stands. `force`: also those whose lane changed less than `settle` seconds ago.
    """
    moves, left = [], []
    for space in spaces:
        why = _kept(space, now, 0 if force else settle, named=named)
        if why:
            left.append(Left(space, why))
        else:
            moves.append(space)
    return Moves(tuple(moves), tuple(left))


def _kept(space: Space, now: int, settle: int, *, named: bool) -> str:
    """Why the namespace is not moved to lane dra; empty where it is."""
    if space.lane == DRA:
        return "it is in lane dra already"
    if space.leaving:
        return "it is being deleted"
    if not space.tenant:
        return "it belongs to no tenant: its Pods with devices would be refused; list it in a Tenant first"
    if not named:
        if space.own is not None:
            return f"it was rolled back by {space.by or 'a command'}: name it (enroll), or step --again"
        if space.move is not None:
            return "somebody else took it back from lane dra: name it (enroll) to move it again"
        if space.lane not in ("", PLUGIN):
            return f"its lane {space.lane} is none: name it (enroll) to move it"
    if space.since and now - space.since < settle:
        rest = -(-(settle - max(now - space.since, 0)) // 60)
        return f"its lane changed a moment ago: wait {rest} min, or --force"
    return ""


def step(
    plan: Plan, spaces: Sequence[Space], now: int, *, settle: int = SETTLE, force: bool = False, again: bool = False
) -> Moves:
    """The rest of the waves that were begun, where somebody in them can be moved; else the next wave.

    With `again` those that were rolled back go too, and the next wave waits for them; what others did stands. Nobody is
    moved while the plan is paused, and nobody who was enrolled is ever taken out.
    """
    found = Moves((), (), plan.begun)
    if plan.paused is not None:
        return found
    waves = wave_of(plan, spaces)
    for number in range(max(plan.begun, 1), min(plan.begun + 1, len(plan.waves)) + 1):
        due = [one for one in order(spaces, plan.seed) if 0 < waves.get(one.name, 0) <= number and one.lane != DRA]
        back = [one for one in due if again and one.own is not None]
        rest = [one for one in due if one not in back]
        first = enroll(rest, now, settle=settle, force=force, named=False)
        second = enroll(back, now, settle=settle, force=force)
        found = Moves((*first.moves, *second.moves), (*first.left, *second.left), number)
        if found.moves or second.left:
            break
    return found


def rollback(spaces: Iterable[Space], *, named: bool) -> Moves:
    """Move these back to lane device-plugin, at once, however short a time they were in dra.

    Those that others labelled are left alone unless they are `named`.
    """
    moves, left = [], []
    for space in spaces:
        if space.leaving:
            left.append(Left(space, "it is being deleted"))
        elif space.lane != DRA:
            if named:
                left.append(Left(space, f"it is in lane {space.lane}" if space.lane else "it is not gated"))
        elif space.own is None and not named:
            left.append(Left(space, "somebody else labelled it: name it to roll it back"))
        else:
            moves.append(space)
    return Moves(tuple(moves), tuple(left))


def stamp(at: int) -> str:
    """RFC 3339 in UTC, as the API server writes times."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(said: str) -> int:
    """The time that RFC 3339 says. Raises ValueError."""
    when = dt.datetime.fromisoformat(said)
    if when.tzinfo is None:
        raise ValueError(f"{said}: no time zone")
    return int(when.timestamp())
