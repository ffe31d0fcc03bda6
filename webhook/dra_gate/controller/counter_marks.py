"""What the counter watches beside Pods: what is worth a mark, and who is above a cap. Pure.

What was last seen stands in a mapping that is kept with the counts, so that whoever leads next marks each change once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dra_gate.admission.sets import PolicySets
from dra_gate.controller.counter_inbox import Space
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.migration.cohort import Key
from dra_gate.migration.tally import nowhere
from dra_gate.policy.model import PolicySet, Quota, Tenant
from dra_gate.policy.switch import DRA, NO_SWITCH, PLUGIN
from dra_gate.policy.words import many

ILL_MS = 60_000  # what falls ill within it is one mark
LOOKS = 3  # a grant, and what it makes a tenant hold, are not seen in one look
LOWERED_MS = 3_600_000  # so long what was granted under a higher cap may still come to be held
NAMED = 5  # namespaces in one mark
LONGEST = 300  # characters

Marked = tuple[int, str]  # when, in milliseconds since 1970, and what


class Marks:
    """What has changed from look to look."""

    def __init__(self) -> None:
        self._turns: Mapping[tuple[str, str], int] | None = None
        self._ill = Counter[str]()
        self._ill_since = 0

    def look(
        self,
        known: dict[str, Any],
        sets: PolicySets,
        spaces: Mapping[str, Space],
        turns: Mapping[tuple[str, str], int],
        now: int,
    ) -> list[Marked]:
        """What is new beside what `known` says, which is brought up to date. `turns` are devices so far that turned
        healthy or unhealthy, by model and that word.
        """
        found = [*_lanes(known, spaces, now), *_policies(known, sets, now), *self._devices(turns, now)]
        return [(when, said[:LONGEST]) for when, said in found]

    def _devices(self, turns: Mapping[tuple[str, str], int], now: int) -> Iterator[Marked]:
        before, self._turns = self._turns, dict(turns)
        for (model, word), count in turns.items() if before is not None else ():
            new = count - (before or {}).get((model, word), 0)
            if word == "unhealthy" and new > 0 and model:
                self._ill_since = self._ill_since or now
                self._ill[model] += new
        if self._ill and now - self._ill_since >= ILL_MS:
            told = ", ".join(f"{count} {model}" for model, count in sorted(self._ill.items()))
            yield self._ill_since, f"devices fell ill: {told}"
            self._ill.clear()
            self._ill_since = 0


class Caps:
    """Which tenants are above a cap for what they were given: a cap that was lowered is no breach.

    Nor is what they had when policies changed, or when we began: a namespace may have come to another tenant.
    """

    def __init__(self) -> None:
        self._above: dict[str, Key] = {}
        self._held: deque[Mapping[tuple[str, str], int]] = deque(maxlen=LOOKS)
        self._active: PolicySet | None = None
        self._earlier: list[tuple[int, PolicySet]] = []  # until when they count, too
        self._had: dict[str, Charge] = {}

    def look(
        self,
        active: PolicySet,
        used: Mapping[str, Charge],
        held: Mapping[tuple[str, str], int],
        spaces: Mapping[str, Space],
        now: int,
    ) -> Mapping[str, Key]:
        """Who is above it now, and in which lane that counts: in dra where only its Pods became more. `held` are the
        devices of bound Pods by tenant and lane. Where the gate does not enforce, nothing is held back.
        """
        self._earlier = [one for one in self._earlier if one[0] > now]
        if self._active is None or self._active.digest != active.digest:
            if self._active is not None:
                self._earlier.append((now + LOWERED_MS, self._active))
            self._active, self._had = active, dict(used)
            self._above.clear()
        for name, tenant in active.tenants.items():
            now_used = used.get(name, NOTHING)
            had = self._had[name] = _lower(self._had.get(name, NOTHING), now_used)
            before = (one.tenants[name].quota for _, one in self._earlier if name in one.tenants)
            if not _is_above((tenant.quota, *before), now_used, had) or not _enforced(tenant, spaces):
                self._above.pop(name, None)
            elif name not in self._above:
                more = [lane for lane in (DRA, PLUGIN) if self._more((name, lane), held)]
                if more:
                    self._above[name] = nowhere(more[-1], name)
        self._held.append(dict(held))
        return {name: key for name, key in self._above.items() if name in active.tenants}

    def _more(self, place: tuple[str, str], held: Mapping[tuple[str, str], int]) -> bool:
        return any(held.get(place, 0) > before.get(place, 0) for before in self._held)


def _lower(one: Charge, other: Charge) -> Charge:
    models = {model: min(count, other.models.get(model, 0)) for model, count in one.models.items()}
    return Charge(min(one.devices, other.devices), models)


def _is_above(quotas: Sequence[Quota], used: Charge, had: Charge) -> bool:
    """Above what all of them allow, and above what it had."""
    if _passes([quota.devices for quota in quotas], used.devices, had.devices):
        return True
    return any(
        _passes([quota.models.get(model) for quota in quotas], count, had.models.get(model, 0))
        for model, count in used.models.items()
    )


def _passes(caps: Iterable[int | None], used: int, had: int) -> bool:
    return all(cap is not None and used > max(cap, had) for cap in caps)


def _enforced(tenant: Tenant, spaces: Mapping[str, Space]) -> bool:
    there = [spaces[namespace] for namespace in tenant.namespaces if namespace in spaces]
    return bool(there) and all(space.mode in ("", "enforce") for space in there)


def _lanes(known: dict[str, Any], spaces: Mapping[str, Space], now: int) -> Iterator[Marked]:
    before, after = known.get("lanes"), {name: space.lane for name, space in spaces.items()}
    known["lanes"] = after
    if not isinstance(before, dict) or before == after:
        return
    moved: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            move = spaces[name].move if name in spaces else None
            if move is None or move.to != after.get(name):
                who, when = ("", ""), now
            else:
                who, when = (move.by, move.why), min(now, 1000 * move.at)
            moved.setdefault((after.get(name, ""), *who), []).append((when, name))
    for (lane, by, why), names in moved.items():
        shown = ", ".join(name for _, name in names[:NAMED]) + (", …" if len(names) > NAMED else "")
        said = f"{many(len(names), 'namespace')} {f'to lane {lane}' if lane else 'gated no more'}: {shown}"
        yield min(names)[0], said + (f"; by {by}" if by else "") + (f": {why}" if why else "")


def _policies(known: dict[str, Any], sets: PolicySets, now: int) -> Iterator[Marked]:
    switch = "" if sets.switch.same_lanes(NO_SWITCH) else str(sets.switch)
    for word, value, said in (
        ("active", sets.active.digest, f"policy set {sets.active.digest[:12]} is active"),
        ("switch", switch, f"switch: {switch}" if switch else ""),
    ):
        before = known.get(word)
        known[word] = value
        if isinstance(before, str) and before != value:
            yield now, said or "switch: lanes are as labelled"
