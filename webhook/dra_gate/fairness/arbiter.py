"""The arbiter: which of the Pods that wait may go, with which candidates (docs/decisions/0033-arbiter.md).

A state machine: events in, decisions out. It has no clock and asks nobody; the same events and times give the same
decisions, so that its log can be replayed. One thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct

from dra_gate.fairness.events import (
    NEVER,
    NO_LIMIT,
    NOW,
    SCALE,
    Account,
    Candidate,
    Capacity,
    Config,
    Decision,
    Event,
    Granted,
    Held,
    Kind,
    Left,
    Opened,
    PolicyRules,
    Reason,
    Revised,
    Settled,
    State,
    Tags,
    TenantRules,
    Used,
    Why,
    left_of,
)

MOST_OPEN = 1_000  # grants of one tenant: more would make its ledger too large an object
WIDEN_AFTER = 5_000  # milliseconds that a grant is open before its claims get what else is free

_NEAREST: tuple[Reason, ...] = ("Queued", "Share", "Reserved", "NoDevices", "Quota", "Unsatisfiable")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Shape:
    """What requests ask for. There is one object for all that ask for the same: what is reckoned for it holds for
    each of them, whoever asks."""

    policy: str
    only: str  # the one model that they may have; empty: what the policy allows
    size: int  # devices of the largest member: they lie on one home
    late: int  # devices of late claims, all members together
    total: int
    pods: int
    fixed: Mapping[str, int]  # by model, what can't be narrowed

    def worst(self, model: str) -> Mapping[str, int]:
        """What it costs by model if the late claims get `model`."""
        if not self.fixed:
            return {model: self.late} if self.late else {}
        worst = Counter(self.fixed)
        worst[model] += self.late
        return +worst


class _Unit(Struct, gc=False, eq=False):
    """A request: one Pod, or a group that is all there. There are many, and none is part of a cycle: the garbage
    collector need not visit them."""

    members: tuple[Held, ...]
    order: tuple[int, int, str]  # inside its tenant: priority, age, UID
    shape: _Shape
    waits: bool = True

    @property
    def queued(self) -> int:
        return self.order[1]


class _Open(NamedTuple):
    """An open grant."""

    request: Held
    model: str
    candidates: tuple[str, ...]
    borrowed: bool
    at: int
    left: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        return _devices(self.request)

    @property
    def size(self) -> int:
        """Devices that have to lie on one home: at least one, as a request's."""
        return max(1, self.devices)

    @property
    def charge(self) -> Mapping[str, int]:
        charge = Counter(self.request.fixed_models)
        for model in (*self.candidates, *self.left):
            charge[model] += sum(self.request.claims)
        return +charge

    @property
    def takes(self) -> tuple[str, ...]:
        """Models of which it may take devices, as far as that is counted: claims from templates are external demand."""
        return self.candidates or ((self.model,) if self.model else ())


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    rules: TenantRules | None = None
    used: Used | None = None
    devices: int = 0  # the account: used and open grants
    models: Counter[str] = field(default_factory=Counter)
    open: dict[str, _Open] = field(default_factory=dict)
    tags: dict[str, tuple[int, int]] = field(default_factory=dict)
    queues: dict[_Shape, list[tuple[tuple[int, int, str], int, _Unit]]] = field(default_factory=dict)
    waiting: int = 0
    saves: _Unit | None = None  # an old request of its own for which room under its caps is kept

    @property
    def account(self) -> Account:
        return Account(self.devices, dict(sorted((+self.models).items())))

    def charge(self, devices: int, models: Mapping[str, int], sign: int) -> None:
        self.devices += sign * devices
        for model, count in models.items():
            self.models[model] += sign * count

    def head(self, shape: _Shape) -> _Unit | None:
        """The first of that shape; who waits no more is forgotten here."""
        queue = self.queues.get(shape)
        while queue:
            if queue[0][2].waits:
                return queue[0][2]
            heappop(queue)
        self.queues.pop(shape, None)
        return None


class _Entry(Struct, order=True, gc=False):
    """A head in the queue of a model: the smallest goes first, by the first three. A pass makes thousands: they are
    not counted either for when the collector runs."""

    start: int  # tag
    queued: int  # since when it waits
    uid: str
    tenant: _Tenant
    unit: _Unit
    tier: int
    model: str
    young: bool  # nothing is kept for it


class Arbiter:
    """Knows who waits, who holds what and what there is. `take` tells it, `decide` asks it."""

    def __init__(self) -> None:
        self._config: Config | None = None
        self._capacity: Capacity | None = None
        self._kinds: tuple[Kind, ...] = ()
        self._masks: dict[tuple[str, str], int] = {}  # policy, model -> bits of the kinds that suit
        self._tenants: dict[str, _Tenant] = {}
        self._held: dict[str, Held] = {}
        self._units: dict[str, _Unit] = {}  # by UID of each member
        self._shapes = WeakValueDictionary[tuple[object, ...], _Shape]()  # of those that wait
        self._groups: dict[tuple[str, str], dict[str, Held]] = {}
        self._holder: dict[str, _Tenant] = {}  # of each open grant
        self._taken: dict[str, dict[int, Counter[int]]] = {}  # model -> kinds -> size of a grant -> how many are open
        self._virtual: Counter[str] = Counter()  # model -> start tag of its last grant
        self._weights: Counter[str] = Counter()
        self._healthy: Counter[str] = Counter()
        self._lenders: dict[str, list[_Tenant]] = {}  # model -> tenants with a reserve of it
        self._policies: Mapping[str, PolicyRules] = {}
        self._orders: dict[str, tuple[str, ...]] = {}  # policy -> candidates
        self._models: tuple[str, ...] = ()  # all of them, in catalogue order
        # What was reckoned from the rest, until it changes.
        self._slots: dict[tuple[int, int], int] = {}
        self._whole: dict[tuple[int, int], int] = {}
        self._costs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._rooming: dict[_Shape, tuple[str, ...]] = {}
        self._rooms: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
        self._shares: dict[tuple[str, str], int] = {}
        self._reserved: dict[str, tuple[int, _Unit]] = {}  # model -> tier from which on it is kept, and for whom
        self._serial = 0
        self._next: int | None = None

    # -- what it is told ----------------------------------------------------------------------------------------------

    def take(self, event: Event | State) -> None:
        """Take in one event. An event about a Pod that is not known changes nothing."""
        match event:
            case Held():
                self._hold(event)
            case Left():
                self._leave(event.uid)
            case Used():
                tenant = self._tenant(event.tenant)
                if tenant.used is not None:
                    tenant.charge(tenant.used.devices, tenant.used.models, -1)
                tenant.charge(event.devices, event.models, 1)
                tenant.used = event
            case Settled():
                self._settle(event)
            case Opened():
                self._leave(event.request.uid)
                grant = _Open(event.request, event.model, event.candidates, event.borrowed, event.at, event.left)
                self._open(self._tenant(event.request.tenant), grant)
            case Tags():
                self._tenant(event.tenant).tags = dict(event.tags)
                for model, (start, _) in event.tags.items():
                    self._virtual[model] = max(self._virtual[model], start)
            case Capacity():
                self._capacity = event
                same = [(kind.model, kind.holds) for kind in event.kinds] == [
                    (kind.model, kind.holds) for kind in self._kinds
                ]
                self._kinds = event.kinds
                self._forget()
                self._healthy = Counter()
                for kind in event.kinds:
                    self._healthy[kind.model] += kind.healthy
                if not same:
                    self._mask_again()
            case Config():
                self._config, self._policies = event, event.policies
                named = {one.model for policy in event.policies.values() for one in policy.candidates}
                self._models = (*event.models, *sorted(named.difference(event.models)))
                self._orders = {
                    ref: tuple(one.model for one in policy.candidates) for ref, policy in event.policies.items()
                }
                self._weigh()
                self._mask_again()
            case State():
                for part in (event.config, event.capacity, *event.tags, *event.used, *event.open, *event.waiting):
                    if part is not None:
                        self.take(part)

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            rules = None if self._config is None else self._config.tenants.get(name)
            tenant = self._tenants[name] = _Tenant(name, rules)
        return tenant

    def _weigh(self) -> None:
        assert self._config is not None  # noqa: S101 - called for one
        for name in self._config.tenants:
            self._tenant(name)
        self._weights = Counter()
        self._lenders = {}
        for name, tenant in sorted(self._tenants.items()):
            tenant.rules = rules = self._config.tenants.get(name)
            for model in rules.wants if rules is not None else ():
                self._weights[model] += rules.weight if rules is not None else 0
            for model in rules.reserve if rules is not None else ():
                self._lenders.setdefault(model, []).append(tenant)

    def _mask_again(self) -> None:
        """Other kinds or constraints: which kinds suit whom, and of which the open grants may take."""
        self._masks = {
            (ref, candidate.model): self._mask_of(candidate)
            for ref, policy in self._policies.items()
            for candidate in policy.candidates
        }
        self._taken = {}
        self._forget()
        for tenant in self._tenants.values():
            for grant in tenant.open.values():
                self._count(grant, 1)

    def _forget(self) -> None:
        for reckoned in (self._slots, self._whole, self._costs, self._rooms, self._rooming, self._shares):
            reckoned.clear()

    def _mask_of(self, candidate: Candidate) -> int:
        return sum(
            1 << index
            for index, kind in enumerate(self._kinds)
            if kind.model == candidate.model and kind.holds & candidate.needs == candidate.needs
        )

    def _hold(self, held: Held) -> None:
        if held.uid in self._holder:
            return
        self._leave(held.uid)
        self._held[held.uid] = held
        self._tenant(held.tenant).waiting += 1
        if held.group:
            self._groups.setdefault((held.tenant, held.group), {})[held.uid] = held
            self._gather(held.tenant, held.group)
        else:
            self._enqueue((held,))

    def _leave(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is None:
            return
        self._tenant(held.tenant).waiting -= 1
        unit = self._units.pop(uid, None)
        if unit is not None:
            unit.waits = False
        if held.group:
            members = self._groups[held.tenant, held.group]
            del members[uid]
            if members:
                self._gather(held.tenant, held.group)
            else:
                del self._groups[held.tenant, held.group]

    def _gather(self, tenant: str, group: str) -> None:
        members = self._groups[tenant, group]
        for uid in members:
            unit = self._units.pop(uid, None)
            if unit is not None:
                unit.waits = False
        one_policy = len({held.policy for held in members.values()}) == 1  # else no model need suit all of them
        if one_policy and len(members) >= max(held.members for held in members.values()):
            self._enqueue(tuple(sorted(members.values(), key=lambda held: (held.queued, held.uid))))

    def _enqueue(self, members: tuple[Held, ...]) -> None:
        order = (-max(held.priority for held in members), members[0].queued, members[0].uid)
        unit = _Unit(members, order, self._shape(members))
        for held in members:
            self._units[held.uid] = unit
        self._serial += 1
        heappush(self._tenant(members[0].tenant).queues.setdefault(unit.shape, []), (order, self._serial, unit))

    def _shape(self, members: tuple[Held, ...]) -> _Shape:
        fixed = Counter[str]()
        for held in members:
            fixed.update(held.fixed_models)
        late = sum(sum(held.claims) for held in members)
        total = sum(_devices(held) for held in members)
        size = max(1, *(_devices(held) for held in members))  # a template that no set knows any more costs nothing
        only = max(held.only for held in members)
        key = (members[0].policy, only, size, late, total, len(members), tuple(sorted(fixed.items())))
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(*key[:-1], dict(key[-1]))
        return shape

    def _open(self, tenant: _Tenant, grant: _Open) -> None:
        self._close(self._holder.get(grant.request.uid, tenant), grant.request.uid)
        tenant.open[grant.request.uid] = grant
        self._holder[grant.request.uid] = tenant
        tenant.charge(grant.devices, grant.charge, 1)
        self._count(grant, 1)

    def _close(self, tenant: _Tenant, uid: str) -> _Open | None:
        grant = tenant.open.pop(uid, None)
        if grant is not None:
            del self._holder[uid]
            tenant.charge(grant.devices, grant.charge, -1)
            self._count(grant, -1)
        return grant

    def _count(self, grant: _Open, sign: int) -> None:
        for model in grant.takes:
            mask = self._masks.get((grant.request.policy, model), 0)
            sizes = self._taken.setdefault(model, {}).setdefault(mask, Counter())
            sizes[grant.devices] += sign
            if not sizes[grant.devices]:
                del sizes[grant.devices]
            self._rooms.pop(model, None)
        self._rooming.clear()

    def _settle(self, event: Settled) -> None:
        tenant = self._holder.get(event.uid)
        if tenant is None:
            return
        grant = self._close(tenant, event.uid)
        if grant is None or not grant.model or event.model == grant.model:
            return
        paid = self._price(tenant, grant.devices)
        start, finish = tenant.tags.get(grant.model, (0, 0))
        tenant.tags[grant.model] = (start, max(0, finish - paid))
        if event.model:
            start, finish = tenant.tags.get(event.model, (0, 0))
            tenant.tags[event.model] = (start, max(finish, self._virtual[event.model]) + paid)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, now: int, limit: int = 256) -> list[Decision]:
        """What may be done at `now` (milliseconds since 1970): at most about `limit` grants, a group being whole."""
        if self._config is None or self._capacity is None:
            return []
        self._next = None
        self._reserved = {}
        revised = list(self._revise(now))
        for tenant in self._tenants.values():
            tenant.saves = self._saved_for(tenant, now) if tenant.waiting else None
        units = list(self._plain(now, limit))
        units += self._fair(now, max(0, limit - sum(len(grant.unit.members) for grant in units)))
        if sum(len(grant.unit.members) for grant in units) >= limit:
            self._next = now  # there may be more
        return [*revised, *self._said(units, now)]

    def next_time(self) -> int | None:
        """When a pass may decide otherwise though nothing is told until then; None: never. May be now: there was more
        than the limit."""
        return self._next

    def _later(self, now: int, time: int) -> None:
        if time > now and (self._next is None or time < self._next):
            self._next = time

    def _plain(self, now: int, limit: int) -> Iterator[_Grant]:
        """Tenants without a fair queue: in their own order, as far as their cap goes."""
        for tenant in sorted(self._tenants.values(), key=lambda one: one.name):
            if tenant.rules is None or tenant.rules.weight or not tenant.waiting:
                continue
            heads = [(unit.order, shape) for shape in list(tenant.queues) if (unit := tenant.head(shape))]
            heads.sort(key=lambda head: head[0])
            while heads and limit > 0 and len(tenant.open) < MOST_OPEN:
                _, shape = heads.pop(0)
                unit = tenant.head(shape)
                if unit is None or not self._within_caps(tenant, unit, ""):
                    continue
                yield self._grant(tenant, unit, "", 0, now=now)
                limit -= len(unit.members)
                following = tenant.head(shape)
                if following is not None:
                    heads.append((following.order, shape))
                    heads.sort(key=lambda head: head[0])

    def _fair(self, now: int, limit: int) -> Iterator[_Grant]:
        heaps: list[dict[str, list[_Entry]]] = [{model: [] for model in self._models} for _ in range(2)]  # by tier
        below: dict[str, dict[int, _Entry]] = {}  # model -> heads that contend elsewhere, and for which it is tier 0
        touched: set[str] = set()  # models of which something went: who waits for them may have to look elsewhere

        def put(entry: _Entry) -> None:
            heappush(heaps[entry.tier][entry.model], entry)
            if entry.tier:
                for model in self._within_share(entry.tenant, entry.unit, now):
                    below.setdefault(model, {})[id(entry.unit)] = entry

        def push(tenant: _Tenant, shape: _Shape) -> None:
            unit = tenant.head(shape)
            if unit is None or len(tenant.open) >= MOST_OPEN:
                return
            entry = self._entry(tenant, unit, now)
            if entry is not None:
                put(entry)

        def lost(entry: _Entry) -> bool:
            """It went, or there is nothing left that it could have: most, once others went."""
            return not entry.unit.waits or (entry.young and not self._roomy(entry.unit.shape))

        def grant(entry: _Entry, model: str, tier: int) -> _Grant:
            queued = entry.unit.queued
            older = sum(1 for other in heaps[tier][model] if other.queued < queued and other.unit.waits)
            found = self._grant(entry.tenant, entry.unit, model, tier, now=now, overtakes=older)
            touched.add(model)
            push(entry.tenant, entry.unit.shape)
            return found

        for tenant in self._tenants.values():
            if tenant.waiting and tenant.rules is not None and tenant.rules.weight:
                for shape in list(tenant.queues):
                    push(tenant, shape)
        while limit > 0:
            tier = 0 if any(heaps[0].values()) else 1
            models = [model for model, heap in heaps[tier].items() if heap]
            if not models:
                return
            # Nobody above its share before somebody below: who is within it here first has its turn elsewhere.
            free = [one for one in models if not self._is_below(below, one, now)] if tier else models
            model = free[0] if free else models[0]
            if touched - {model}:
                left = [one for heap in heaps for name in touched - {model} for one in heap[name]]
                touched &= {model}
                for entry in left:
                    if not lost(entry) and not self._fits(entry.tenant, entry.unit.shape, entry.model, entry.tier):
                        push(entry.tenant, entry.unit.shape)
                continue
            if not free:
                entry = min(below[model].values())
                del below[model][id(entry.unit)]
                found = grant(entry, model, 0)
                limit -= len(found.unit.members)
                yield found
                continue
            heap, again = heaps[tier][model], None
            while heap and again is None:
                entry = heappop(heap)
                again = None if lost(entry) else self._entry(entry.tenant, entry.unit, now)
            if again is None:
                continue
            if again != entry:
                if len(entry.tenant.open) < MOST_OPEN:
                    put(again)
            elif self._fits(entry.tenant, entry.unit.shape, model, tier):
                urgent = self._most_urgent(entry, now)
                found = grant(urgent, model, tier)
                if urgent is not entry:
                    push(entry.tenant, entry.unit.shape)
                limit -= len(found.unit.members)
                yield found
            else:  # its turn, nothing for it, and old enough for what it waits for to be kept for it
                self._reserved.setdefault(model, (tier, entry.unit))

    def _most_urgent(self, entry: _Entry, now: int) -> _Entry:
        """Its tenant has a turn: of its requests that could use it the one with the highest priority."""
        found = entry
        for shape in list(entry.tenant.queues):
            unit = entry.tenant.head(shape)
            if (
                unit is None
                or unit.order[0] >= entry.unit.order[0]
                or (found is not entry and unit.order >= found.unit.order)
            ):
                continue  # which shape came first says nothing: a replay may know them in another order
            other = self._entry(entry.tenant, unit, now)
            same = other is not None and (other.tier, other.model) == (entry.tier, entry.model)
            if other is not None and same and self._fits(entry.tenant, unit.shape, entry.model, entry.tier):
                found = other
        return found

    def _is_below(self, below: dict[str, dict[int, _Entry]], model: str, now: int) -> bool:
        entries = below.get(model, {})
        for number, entry in list(entries.items()):
            if not entry.unit.waits or model not in self._within_share(entry.tenant, entry.unit, now):
                del entries[number]
        return bool(entries)

    def _entry(self, tenant: _Tenant, unit: _Unit, now: int) -> _Entry | None:
        """Where the request contends: at the first candidate that it may have and that is there.

        Where there is none an old one waits at the first that it could ever have; a young one nowhere.
        """
        rules, shape = tenant.rules, unit.shape
        if rules is None:
            return None
        queued = unit.queued
        self._later(now, queued + rules.reserve_after)
        young = now - queued < rules.reserve_after
        roomy = self._roomy(shape)
        place = None
        for model in self._allowed(unit, now):
            if (young and model not in roomy) or not self._within_caps(tenant, unit, model):
                continue
            tier = self._tier(tenant, shape, model)
            kept = self._reserved.get(model)
            if kept is not None and kept[1] is not unit and tier >= kept[0]:
                continue
            if model in roomy and (not tier or self._fits(tenant, shape, model, tier)):
                place = tier, model
                break
            if place is None and not young and self._could_fit(shape, model):
                place = tier, model
        if place is None:
            return None
        tier, model = place
        start = max(self._virtual[model], tenant.tags.get(model, (0, 0))[1])
        return _Entry(start, queued, unit.order[2], tenant, unit, tier, model, young)

    def _within_share(self, tenant: _Tenant, unit: _Unit, now: int) -> list[str]:
        """The models that it may have now, where its tenant would be within its share."""
        return [
            model
            for model in self._allowed(unit, now)
            if model in self._roomy(unit.shape)
            and self._tier(tenant, unit.shape, model) == 0
            and model not in self._reserved
            and self._within_caps(tenant, unit, model)
        ]

    def _allowed(self, unit: _Unit, now: int) -> tuple[str, ...]:
        """The candidates that count by now, in the policy's order."""
        shape = unit.shape
        policy = self._policies.get(shape.policy)
        if policy is None:
            return ()
        models = self._orders[shape.policy]
        if shape.only and shape.late:
            return (shape.only,) if shape.only in models else ()
        if policy.fallback == NOW or not shape.late:
            return models
        if policy.fallback != NEVER:
            if now - unit.queued >= policy.fallback:
                return models
            self._later(now, unit.queued + policy.fallback)
        return models[:1]

    def _within_caps(self, tenant: _Tenant, unit: _Unit, model: str) -> bool:
        """Its caps have room for it, beside what is kept for an older request of the same tenant."""
        rules = tenant.rules
        if rules is None:
            return False
        saved = tenant.saves if tenant.saves is not None and tenant.saves is not unit and tenant.saves.waits else None
        others = tenant.devices + (saved.shape.total if saved is not None else 0)
        if rules.devices != NO_LIMIT and others + unit.shape.total > rules.devices:
            return False
        if not rules.models:
            return True
        kept = saved.shape.worst(model) if saved is not None else {}
        for one, count in unit.shape.worst(model).items():
            cap = rules.models.get(one)
            if cap is not None and tenant.models.get(one, 0) + kept.get(one, 0) + count > cap:
                return False
        return True

    def _saved_for(self, tenant: _Tenant, now: int) -> _Unit | None:
        """The oldest request that is old enough, and that only what its tenant holds keeps from its turn."""
        rules = tenant.rules
        if rules is None or (rules.devices == NO_LIMIT and not rules.models):
            return None
        tenant.saves = None
        oldest = None
        for shape in list(tenant.queues):
            unit = tenant.head(shape)
            if unit is None or now - unit.queued < rules.reserve_after or NO_LIMIT != rules.devices < unit.shape.total:
                continue
            models = self._allowed(unit, now) if rules.weight else ("",)
            possible = [
                model
                for model in models
                if all(n <= rules.models.get(m, n) for m, n in unit.shape.worst(model).items())
            ]
            if possible and not any(self._within_caps(tenant, unit, model) for model in possible):
                oldest = unit if oldest is None or unit.order[1:] < oldest.order[1:] else oldest
        return oldest

    def _share(self, tenant: _Tenant, model: str) -> int:
        share = self._shares.get((tenant.name, model))
        if share is None:
            rules = tenant.rules
            share = 0
            if rules is not None and model in rules.wants:
                share = self._healthy[model] * rules.weight // self._weights[model]
            self._shares[tenant.name, model] = share
        return share

    def _tier(self, tenant: _Tenant, shape: _Shape, model: str) -> int:
        asked = shape.late + (shape.fixed.get(model, 0) if shape.fixed else 0)
        return 0 if tenant.models.get(model, 0) + asked <= self._share(tenant, model) else 1

    def _fits(self, tenant: _Tenant, shape: _Shape, model: str, tier: int) -> bool:
        """What is free and not spoken for is enough, wherever those before it land. The model is a candidate."""
        if model not in self._roomy(shape):
            return False
        kept = self._lent_not(tenant, model) if tier else 0
        return not kept or self._has_room(shape, model, kept)

    def _roomy(self, shape: _Shape) -> tuple[str, ...]:
        """Candidates that have room for it, whoever asks."""
        found = self._rooming.get(shape)
        if found is None:
            found = tuple(one for one in self._orders.get(shape.policy, ()) if self._has_room(shape, one, 0))
            self._rooming[shape] = found
        return found

    def _has_room(self, shape: _Shape, model: str, kept: int) -> bool:
        return self._room(self._masks.get((shape.policy, model), 0), model, shape.total, shape.size, shape.pods, kept)

    def _room(self, mask: int, model: str, total: int, size: int, pods: int, kept: int) -> bool:
        rooms = self._rooms.setdefault(model, {})
        room = rooms.get((mask, size))
        if room is None:
            taken, spoilt = self._spoken_for(model, mask, size)
            room = rooms[mask, size] = self._slots_in(mask, 1) - taken, self._slots_in(mask, size) - spoilt
        return room[0] - kept >= total and (size == 1 or room[1] >= pods)

    def _slots_in(self, mask: int, size: int) -> int:
        """How often `size` devices are free on one home."""
        found = self._slots.get((mask, size))
        if found is None:
            kinds = (kind for index, kind in enumerate(self._kinds) if mask >> index & 1)
            found = sum(homes * (free // size) for kind in kinds for free, homes in kind.free)
            self._slots[mask, size] = found
        return found

    def _spoken_for(self, model: str, mask: int, size: int) -> tuple[int, int]:
        """Devices that open grants may take of these kinds, and how many places for `size` they may spoil at worst."""
        taken = spoilt = 0
        for other, sizes in self._taken.get(model, {}).items():
            if other & mask:
                for devices, count in sizes.items():
                    taken += devices * count
                    spoilt += -(-devices // size) * count
        return taken, min(spoilt, self._spoilable(mask, size, taken)) if size > 1 else spoilt

    def _spoilable(self, mask: int, size: int, devices: int) -> int:
        """How many places for `size` so many devices can spoil at most, each wherever it does most harm: the first of
        a home takes one more than what is left over there, each other one takes `size`."""
        costs = self._costs.get((mask, size))
        if costs is None:
            found = Counter[int]()
            for index, kind in enumerate(self._kinds):
                for free, homes in kind.free if mask >> index & 1 else ():
                    if free >= size:
                        found[free % size + 1] += homes
                        found[size] += homes * (free // size - 1)
            costs = self._costs[mask, size] = sorted(found.items())
        spoilt = 0
        for cost, places in costs:
            most = min(places, devices // cost)
            spoilt, devices = spoilt + most, devices - most * cost
        return spoilt

    def _lent_not(self, tenant: _Tenant, model: str) -> int:
        """What others have reserved of the model and do not hold."""
        kept = 0
        for lender in self._lenders.get(model, ()):
            if lender is not tenant and lender.rules is not None:
                kept += max(0, lender.rules.reserve[model] - lender.models[model])
        return kept

    def _could_fit(self, shape: _Shape, model: str) -> bool:
        """There are that many healthy devices on so many homes, were they free."""
        key = self._masks.get((shape.policy, model), 0), shape.size
        found = self._whole.get(key)
        if found is None:
            kinds = (kind for index, kind in enumerate(self._kinds) if key[0] >> index & 1)
            found = self._whole[key] = sum(homes * (n // shape.size) for kind in kinds for n, homes in kind.whole)
        return found >= shape.pods

    def _price(self, tenant: _Tenant, devices: int) -> int:
        weight = tenant.rules.weight if tenant.rules is not None and tenant.rules.weight else 1
        return devices * SCALE // weight

    def _grant(self, tenant: _Tenant, unit: _Unit, model: str, tier: int, *, now: int, overtakes: int = 0) -> _Grant:
        taken = self._spoken_for(model, self._masks.get((unit.shape.policy, model), 0), 1)[0]
        lines = []
        start = max(self._virtual[model], tenant.tags.get(model, (0, 0))[1]) if model else 0
        finish = start
        for held in unit.members:
            before = tenant.account
            candidates = (model,) if model and held.claims else ()
            self._leave_granted(tenant, held)
            self._open(tenant, _Open(held, model, candidates, bool(tier), now))
            finish += self._price(tenant, _devices(held)) if model else 0
            lines.append((held, before, tenant.account, start, finish, taken))
            taken += _devices(held)
        if model:
            self._virtual[model] = start
            tenant.tags[model] = (start, finish)
        aged = model != "" and tenant.rules is not None and now - unit.queued >= tenant.rules.reserve_after
        return _Grant(unit, tenant, model, tier, aged, overtakes, lines)

    def _leave_granted(self, tenant: _Tenant, held: Held) -> None:
        """As `_leave`, for one whose group goes with it."""
        self._held.pop(held.uid, None)
        unit = self._units.pop(held.uid, None)
        if unit is not None:
            unit.waits = False
        tenant.waiting -= 1
        if held.group:
            members = self._groups.get((held.tenant, held.group), {})
            members.pop(held.uid, None)
            if not members:
                self._groups.pop((held.tenant, held.group), None)

    def _said(self, grants: list[_Grant], now: int) -> Iterator[Decision]:
        """The grants as lines, then who gets what is left over after everybody's turn as further candidates."""
        for grant in grants:
            tenant, unit, rules = grant.tenant, grant.unit, grant.tenant.rules
            assert rules is not None  # noqa: S101 - it was granted
            free = self._slots_in(self._masks.get((unit.shape.policy, grant.model), 0), 1)
            for held, before, after, start, finish, taken in grant.lines:
                yield Granted(
                    at=now,
                    uid=held.uid,
                    tenant=tenant.name,
                    model=grant.model,
                    candidates=tenant.open[held.uid].candidates,
                    devices=_devices(held),
                    queued=held.queued,
                    tier=grant.tier,
                    aged=grant.aged,
                    start=start,
                    finish=finish,
                    before=before,
                    after=after,
                    free=free,
                    open=taken,
                    lease=rules.lease if grant.tier else 0,
                    group=held.group,
                    overtakes=grant.overtakes,
                )
        for grant in grants:
            for held in grant.unit.members:
                won = grant.tenant.open[held.uid].candidates
                if won and not held.group:
                    candidates = self._widened(grant.tenant, held.uid, now)
                    if candidates != won:
                        yield Revised(at=now, uid=held.uid, candidates=candidates, reason="leftover")

    def _widened(self, tenant: _Tenant, uid: str, now: int, *, stuck: bool = False) -> tuple[str, ...]:
        """Adds to an open grant what is left over, and gives its candidates.

        Several claims of one Pod stay at one model: each would take its own of the candidates.
        """
        grant = tenant.open[uid]
        held = grant.request
        several = len(held.claims) > 1
        if several and not stuck:
            return grant.candidates
        unit = _Unit((held,), (0, held.queued, uid), self._shape((held,)))
        for model in self._allowed(unit, now):
            grant = tenant.open[uid]
            rules = tenant.rules
            if model in grant.candidates or model in self._reserved or rules is None:
                continue
            cap = rules.models.get(model, NO_LIMIT)
            mine = unit.shape.late if model in grant.left else 0
            if cap != NO_LIMIT and (
                (tenant.waiting and not stuck) or tenant.models[model] - mine + unit.shape.late > cap
            ):
                continue  # those who wait would find the cap used up by what may never be taken
            if self._fits(tenant, unit.shape, model, 1):
                self._close(tenant, uid)
                candidates = self._in_order(held, {*grant.candidates, model})
                left = left_of(grant.candidates, grant.left, candidates)
                self._open(tenant, grant._replace(candidates=candidates, left=left))
                if several:
                    break
        return tenant.open[uid].candidates

    def _in_order(self, held: Held, models: set[str]) -> tuple[str, ...]:
        policy = self._policies.get(held.policy)
        return tuple(one.model for one in (policy.candidates if policy is not None else ()) if one.model in models)

    def _revise(self, now: int) -> Iterator[Revised]:
        """Open grants whose claims are to have other candidates."""
        short = self._short()
        for tenant in sorted(self._tenants.values(), key=lambda one: one.name):
            newest = sorted(tenant.open.values(), key=lambda one: (-one.at, one.request.uid))
            for grant in newest:
                uid, held = grant.request.uid, grant.request
                if not grant.candidates or held.group:
                    continue
                stuck = all(model in short for model in grant.candidates) and not self._could_take(grant)
                if not stuck and now - grant.at < WIDEN_AFTER:
                    self._later(now, grant.at + WIDEN_AFTER)
                    continue
                before = grant.candidates
                candidates = self._widened(tenant, uid, now, stuck=stuck)
                if candidates == before:
                    continue
                if stuck:
                    candidates = tuple(model for model in candidates if model not in before)
                    self._close(tenant, uid)
                    left = left_of(before, grant.left, candidates)
                    self._open(tenant, grant._replace(candidates=candidates, left=left))
                    short = self._short()
                yield Revised(at=now, uid=uid, candidates=candidates, reason="impossible" if stuck else "fallback")

    def _short(self) -> frozenset[str]:
        """Models of which open grants may take more than is free."""
        return frozenset(
            model
            for model, masks in self._taken.items()
            for mask in masks
            # No kind suits any more (mask 0) where the last device of the model is no longer healthy.
            if masks[mask] and (not mask or self._slots_in(mask, 1) < self._spoken_for(model, mask, 1)[0])
        )

    def _could_take(self, grant: _Open) -> bool:
        """One of its candidates would do if it were asked for now, after everybody else who is open."""
        self._count(grant, -1)
        try:
            return any(
                self._room(self._masks.get((grant.request.policy, model), 0), model, grant.size, grant.size, 1, 0)
                for model in grant.candidates
            )
        finally:
            self._count(grant, 1)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def account(self, tenant: str) -> Account:
        """What the tenant holds, open grants included."""
        found = self._tenants.get(tenant)
        return Account(0) if found is None else found.account

    def tags(self, tenant: str) -> Mapping[str, tuple[int, int]]:
        """Where it stands in each model's queue: start tag of its last grant, finish tag."""
        found = self._tenants.get(tenant)
        return {} if found is None else dict(sorted(found.tags.items()))

    def share(self, tenant: str, model: str) -> int:
        """Devices of the model that are the tenant's share now."""
        found = self._tenants.get(tenant)
        return 0 if found is None else self._share(found, model)

    def open_grants(self, tenant: str) -> tuple[Opened, ...]:
        """The tenant's open grants, oldest first."""
        found = self._tenants.get(tenant)
        grants = sorted(found.open.values(), key=lambda one: (one.at, one.request.uid)) if found is not None else []
        return tuple(_opened(grant) for grant in grants)

    @property
    def config(self) -> Config | None:
        """The rules, as they were last told."""
        return self._config

    @property
    def capacity(self) -> Capacity | None:
        """What there is, as it was last told."""
        return self._capacity

    def tenants(self) -> tuple[str, ...]:
        """Those that have rules, hold something or wait, by name."""
        return tuple(sorted(self._tenants))

    def requests(self) -> dict[str, list[tuple[Held, ...]]]:
        """What waits, by tenant in its own order: each a Pod, or the Pods of a group that are there by now."""
        ordered: dict[str, list[tuple[tuple[int, int, str], tuple[Held, ...]]]] = {}
        for name, tenant in self._tenants.items():
            waiting = [
                (unit.order, unit.members) for queue in tenant.queues.values() for *_, unit in queue if unit.waits
            ]
            if waiting:
                ordered[name] = waiting
        for (name, _), group in self._groups.items():
            if not any(uid in self._units for uid in group):
                members = tuple(sorted(group.values(), key=lambda held: (held.queued, held.uid)))
                order = (-max(held.priority for held in members), members[0].queued, members[0].uid)
                ordered.setdefault(name, []).append((order, members))
        return {name: [members for _, members in sorted(found)] for name, found in sorted(ordered.items())}

    def candidates(self, uid: str, now: int) -> tuple[str, ...]:
        """The candidates that count by now for a Pod that waits, in its policy's order; none while its group is not
        all there."""
        unit = self._units.get(uid)
        return () if unit is None else self._allowed(unit, now)

    def sought(self, uid: str, now: int) -> str:
        """In which model's queue a Pod that waits stands: of the candidates that count by now the first that its caps
        allow and that it could have if all were free; else the first that they could ever allow. Empty where there is
        none, or no queue."""
        unit = self._units.get(uid)
        tenant = self._tenant(unit.members[0].tenant) if unit is not None else None
        if unit is None or tenant is None or tenant.rules is None or not tenant.rules.weight:
            return ""
        limits = tenant.rules.models
        possible = [
            model
            for model in self._allowed(unit, now)
            if self._could_fit(unit.shape, model)
            and all(count <= limits.get(one, count) for one, count in unit.shape.worst(model).items())
            and (tenant.rules.devices == NO_LIMIT or unit.shape.total <= tenant.rules.devices)
        ]
        return next((one for one in possible if self._within_caps(tenant, unit, one)), next(iter(possible), ""))

    def state(self) -> State:
        """All that it knows."""
        tenants = [tenant for _, tenant in sorted(self._tenants.items())]
        return State(
            config=self._config,
            capacity=self._capacity,
            waiting=tuple(held for _, held in sorted(self._held.items())),
            open=tuple(grant for tenant in tenants for grant in self.open_grants(tenant.name)),
            used=tuple(tenant.used for tenant in tenants if tenant.used is not None),
            tags=tuple(Tags(tenant=one.name, tags=dict(sorted(one.tags.items()))) for one in tenants if one.tags),
        )

    def why(self, uid: str, now: int) -> Why | None:
        """Why the Pod waits, as of the last pass; None for one that does not wait."""
        held = self._held.get(uid)
        if held is None:
            return None
        tenant = self._tenant(held.tenant)
        if tenant.rules is None or (held.claims and self._policies.get(held.policy) is None):
            what = f"policy {held.policy}" if tenant.rules is not None else f"tenant {held.tenant}"
            return Why("Unsatisfiable", f"{what} is not in the policy sets that count")
        unit = self._units.get(uid)
        if unit is None:
            members = self._groups.get((held.tenant, held.group), {})
            there, policies = len(members), sorted({one.policy for one in members.values()})
            if there >= held.members and len(policies) > 1:
                text = f"Pods of group {held.group} are of policies {', '.join(policies)}; create them again under one"
                return Why("GroupIncomplete", text)
            return Why(
                "GroupIncomplete", f"{there} of {held.members} Pods of group {held.group} wait; they go together"
            )
        if len(tenant.open) >= MOST_OPEN:
            return Why("LedgerFull", f"{len(tenant.open)} grants of tenant {tenant.name} have no devices yet")
        return self._why_plain(tenant, unit) if not tenant.rules.weight else self._why_fair(tenant, unit, now)

    def _why_plain(self, tenant: _Tenant, unit: _Unit) -> Why:
        assert tenant.rules is not None  # noqa: S101 - why asked
        limit = tenant.rules.devices
        if NO_LIMIT != limit < unit.shape.total:
            return Why("Unsatisfiable", f"it asks for {unit.shape.total} devices and its tenant may hold {limit}")
        if tenant.saves is not None and tenant.saves is not unit and not self._within_caps(tenant, unit, ""):
            return Why("Reserved", "room under the quota is kept for an older request of the tenant")
        if not self._within_caps(tenant, unit, ""):
            return Why("Quota", f"it asks for {unit.shape.total} devices; {tenant.devices} of {limit} are held")
        return Why("Queued", "its turn comes next")

    def _why_fair(self, tenant: _Tenant, unit: _Unit, now: int) -> Why:
        assert tenant.rules is not None  # noqa: S101 - why asked
        said: dict[Reason, list[str]] = {}
        allowed = self._allowed(unit, now)
        for model in allowed:
            reason, told = self._against(tenant, unit, model)
            said.setdefault(reason, []).append(told)
        policy = self._policies.get(unit.shape.policy)
        later = (
            [] if unit.shape.only else [one for one in self._orders.get(unit.shape.policy, ()) if one not in allowed]
        )
        # The nearest to a grant is what it waits for; what can't ever be is told only where all is so.
        for reason in _NEAREST:
            if reason in said:
                texts = [told for one in said.values() for told in one]
                if later and policy is not None and policy.fallback != NEVER:
                    seconds = policy.fallback // 1000
                    after = f"{seconds} s" if seconds % 60 else f"{seconds // 60} min"
                    texts.append(f"{', '.join(later)} after {after} of waiting")
                return Why(reason, "; ".join(texts))
        what = f"no candidate {unit.shape.only}, which its group has" if unit.shape.only else "no candidates"
        return Why("Unsatisfiable", f"policy {unit.shape.policy} has {what}")

    def _against(self, tenant: _Tenant, unit: _Unit, model: str) -> tuple[Reason, str]:
        rules = tenant.rules
        assert rules is not None  # noqa: S101 - why asked
        worst = unit.shape.worst(model)
        for name, limit, asked, held in (
            ("devices", rules.devices, unit.shape.total, tenant.devices),
            *((one, rules.models.get(one, NO_LIMIT), count, tenant.models[one]) for one, count in worst.items()),
        ):
            if limit != NO_LIMIT and asked > limit:
                return "Unsatisfiable", f"{model}: it asks for {asked}, and the quota is {limit} {name}"
            if limit != NO_LIMIT and held + asked > limit:
                return "Quota", f"{model}: it asks for {asked}, {held} {name} are held and the quota is {limit}"
        if not self._within_caps(tenant, unit, model):
            return "Reserved", f"{model}: room under the quota is kept for an older request of the tenant"
        if not self._could_fit(unit.shape, model):
            most = f"{len(unit.members)} times {unit.shape.size}" if len(unit.members) > 1 else str(unit.shape.size)
            return "Unsatisfiable", f"{model}: no node has {most} healthy that the policy allows"
        tier = self._tier(tenant, unit.shape, model)
        kept = self._reserved.get(model)
        if kept is not None and kept[1] is not unit and tier >= kept[0]:
            return "Reserved", f"{model}: kept for a request that has waited for longer"
        if not self._fits(tenant, unit.shape, model, tier):
            mask = self._masks.get((unit.shape.policy, model), 0)
            free, taken = self._slots_in(mask, 1), self._spoken_for(model, mask, 1)[0]
            if tier and self._fits(tenant, unit.shape, model, 0):
                return "Share", f"{model}: {free} free, kept for tenants that are below their share"
            return "NoDevices", f"{model}: it asks for {unit.shape.total}, {free} are free and {taken} of them granted"
        return "Queued", f"{model}: its turn comes next"


class _Grant(NamedTuple):
    unit: _Unit
    tenant: _Tenant
    model: str
    tier: int
    aged: bool
    overtakes: int
    lines: list[tuple[Held, Account, Account, int, int, int]]


def _devices(held: Held) -> int:
    return sum(held.claims) + held.fixed


def _opened(grant: _Open) -> Opened:
    return Opened(
        request=grant.request,
        model=grant.model,
        candidates=grant.candidates,
        borrowed=grant.borrowed,
        at=grant.at,
        left=grant.left,
    )
