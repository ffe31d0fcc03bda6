"""What there is of each model and what of it can be had, kept up to date one object at a time.

Everything that costs something happens when an object changes: selectors are evaluated once for what a device
publishes, and devices that answer alike are counted together. To ask reads a few hundred sums, whatever the size of the
fleet.

A device counts once for each pool that publishes it: by its slice's node where it has one, else for the whole cluster.
What shared counters leave of a partitioned device is not known here; the allocator knows.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple

import msgspec

from dra_gate.cel import BudgetExceeded, CelError, Device, EvaluationError, Program, compile, device_of  # noqa: A004
from dra_gate.kube.node import node_problem
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.taint import BLOCKING, tolerated
from dra_gate.policy.compile import model_selector, words
from dra_gate.policy.model import Model, PolicyRef, PolicySet

Key = tuple[str, str]  # namespace (empty for cluster-scoped objects) and name
PoolId = tuple[str, str]  # driver, pool
DeviceId = tuple[str, str, str]  # driver, pool, device

UNPUBLISHED = "not published"  # of a device that a claim holds and no newest generation has
INCOMPLETE, EXTRA, INVALID, OBSOLETE = "pool incomplete", "pool with extra slices", "pool invalid", "pool replaced"
LOST, NOT_READY, CORDONED = "node lost", "node not ready", "node cordoned"
TAINTED = "taint "  # followed by key=value:effect


@dataclass(frozen=True, slots=True)
class Unusable:
    """Devices that are not healthy for one reason; for a taint `seconds` since the oldest was added, where it says."""

    devices: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    """One model: devices published, of them healthy, of them free; in allocations, by tenant ("" is none of ours); and
    those that are not healthy, each counted under the first reason found.
    """

    published: int = 0
    healthy: int = 0
    free: int = 0
    charged: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, Unusable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CandidateCounts:
    """A policy's candidate, in devices of its model.

    `matching` meet the policy's constraints; of these, `usable` are healthy, `free` are healthy and in no allocation,
    `own` are in an allocation of the tenant that asks. `places` are the nodes where as many as asked for are free (one
    more for devices that hang on no single node). `turned_away` counts the others by the first policy word that fails,
    `unusable` the matching ones that are not healthy by reason.
    """

    model: str
    published: int = 0
    healthy: int = 0
    matching: int = 0
    usable: int = 0
    free: int = 0
    own: int = 0
    places: int = 0
    turned_away: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, int] = field(default_factory=dict)


class _Taint(NamedTuple):
    key: str
    value: str
    effect: str
    since: str

    @property
    def reason(self) -> str:
        return f"{TAINTED}{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


class _Traits(NamedTuple):
    """What the selectors say of a device: its model, which of the model's expressions hold (bits), whether one of them
    could not be evaluated."""

    model: str
    holds: int
    faulty: bool


_NO_MODEL = _Traits("", 0, False)


class _Published(NamedTuple):
    name: str
    node: str  # where it can be used; empty: on no single node
    taints: tuple[_Taint, ...]
    digest: bytes  # of what selectors see


class _Slice(NamedTuple):
    pool: PoolId
    home: str  # its node; empty where it belongs to no single one
    generation: int
    wanted: int  # slices that the pool says it has
    devices: tuple[_Published, ...]
    counters: Mapping[str, frozenset[str]]  # shared counter sets and their counters
    consumed: frozenset[tuple[str, str]]  # counter set and counter that its devices consume
    repeated: bool  # a counter set stands twice in it
    packed: bytes


class _View(NamedTuple):
    """A pool as one home sees it: the generation that counts, and why its devices can't be used ("" if they can)."""

    generation: int
    problem: str


class _Row(NamedTuple):
    """Under what one published device is counted."""

    traits: _Traits
    problem: str
    since: str  # of the taint that is the problem
    tenants: tuple[str, ...]  # of the claims that hold it
    home: str


class KindCounts(NamedTuple):
    """Devices of one model that meet the same expressions (`holds`, bits as `Capacity.needs` gives them).

    `healthy` of them are there; `free` says how many homes have how many free ones, `whole` how many have how many
    healthy ones. A home is a node; all devices that hang on no single one share another.
    """

    model: str
    holds: int
    healthy: int
    free: Mapping[int, int]  # devices on a home -> homes
    whole: Mapping[int, int]


class _Homes:
    """Devices by home, and how many homes have how many."""

    def __init__(self) -> None:
        self.devices: Counter[str] = Counter()
        self.sizes: Counter[int] = Counter()

    def add(self, home: str, change: int) -> None:
        before = self.devices[home]
        if before:
            _subtract(self.sizes, before)
        if before + change:
            self.devices[home] = before + change
            self.sizes[before + change] += 1
        else:
            del self.devices[home]


class _Candidate(NamedTuple):
    """A policy's candidate as bits of its model's expressions."""

    model: str
    needs: int
    tests: tuple[tuple[str, int], ...]  # policy word, bit


Place = tuple[str, int]  # slice, position in it


class Capacity:
    """The view. Every `set_` takes the object's key and its raw JSON; nothing is read of it that is not listed below.

    Slices: spec. Nodes: `spec.unschedulable` and the Ready condition. Classes: `spec.selectors`. Taint rules: spec.
    Claims: `status.allocation.devices.results`. One thread at a time.
    """

    def __init__(self) -> None:
        self.changes: Counter[tuple[str, str]] = Counter()  # model and healthy or unhealthy -> turns of devices so far
        self._set: PolicySet | None = None
        self._models: tuple[Model, ...] = ()
        self._orders: dict[PolicyRef, tuple[_Candidate, ...]] = {}
        self._bits: dict[str, list[Program | None]] = {}  # by model: what its devices are asked
        self._of_model: dict[str, Program | None] = {}
        self._classes: dict[str, tuple[Program | None, ...]] = {}
        self._traits: dict[tuple[str, bytes], _Traits] = {}  # by driver and digest, for what is published now
        self._uses: Counter[tuple[str, bytes]] = Counter()
        self._slices: dict[str, _Slice] = {}
        self._pools: dict[PoolId, dict[str, None]] = {}  # -> slices
        self._named: dict[str, dict[PoolId, None]] = {}  # pools of that name, of whatever driver
        self._views: dict[PoolId, dict[str, _View]] = {}  # -> by home
        self._nodes: dict[str, str] = {}  # -> why it takes no Pods
        self._on_node: dict[str, dict[Place, None]] = {}
        self._places: dict[DeviceId, dict[Place, None]] = {}
        self._rules: dict[str, tuple[tuple[str | None, str | None, str | None], _Taint]] = {}
        self._taints: dict[tuple[str | None, str | None, str | None], dict[str, _Taint]] = {}
        self._claims: dict[Key, tuple[DeviceId, ...]] = {}
        self._holders: dict[DeviceId, dict[Key, None]] = {}
        self._doubled: set[DeviceId] = set()
        self._rows: dict[Place, _Row] = {}
        self._sums: Counter[tuple[_Traits, str, str, tuple[str, ...]]] = Counter()
        self._free: dict[tuple[str, int], _Homes] = {}  # by model and bits
        self._whole: dict[tuple[str, int], _Homes] = {}  # the healthy ones, free or not
        self._published: dict[str, _Homes] = {}  # by model, healthy or not
        self._held_back: frozenset[DeviceId] = frozenset()

    # -- what changes -------------------------------------------------------------------------------------------------

    def use(self, sets: Sequence[PolicySet]) -> None:
        """Count by the first of `sets`, the active one; know the policies of all. Costs as much as starting anew."""
        self._set = sets[0]
        self._models = tuple(sets[0].models.values())
        expressions: dict[str, dict[str, int]] = {model.name: {} for model in self._models}
        self._orders = {}
        for policy_set in reversed(sets):
            for ref, policy in policy_set.policies.items():
                order = []
                for name in policy.candidates:
                    tests = []
                    known = expressions.setdefault(name, {})
                    for word, expression in words(policy_set.models[name], policy.constraints)[1:]:
                        tests.append((word, 1 << known.setdefault(expression, len(known))))
                    order.append(_Candidate(name, sum({bit for _, bit in tests}), tuple(tests)))
                self._orders[ref] = tuple(order)
        self._bits = {name: [_program(text) for text in known] for name, known in expressions.items()}
        self._of_model = {model.name: _program(model_selector(model)) for model in self._models}
        self._judge_all()

    def set_class(self, key: Key, obj: Object) -> None:
        """A DeviceClass was made or changed."""
        found = tuple(
            _program(text(at(mapping(one), "cel", "expression"))) for one in sequence(at(obj, "spec", "selectors"))
        )
        before = self._classes.get(key[1])
        self._classes[key[1]] = found
        if before is None or _expressions(before) != _expressions(found):
            self._class_changed(key[1])

    def drop_class(self, key: Key) -> None:
        """A DeviceClass is gone."""
        if self._classes.pop(key[1], None) is not None:
            self._class_changed(key[1])

    def set_slice(self, key: Key, obj: Object) -> None:
        """A ResourceSlice was made or changed."""
        spec = mapping(obj.get("spec"))
        raw = [mapping(one) for one in sequence(spec.get("devices"))]
        new = _slice(spec, raw)
        before = self._slices.get(key[1])
        if before == new:
            return
        uses = [(new.pool[0], device.digest) for device in new.devices]
        for use, one in zip(uses, raw, strict=True):
            if use not in self._traits:
                self._traits[use] = self._judged(use[0], one)
        self._uses.update(uses)
        if before is not None and _same_frame(before, new):
            self._slices[key[1]] = new
            self._unuse(before)
            for index, pair in enumerate(zip(before.devices, new.devices, strict=True)):
                if pair[0] != pair[1]:
                    self._count((key[1], index))
            return
        if before is not None:
            self._forget(key[1])
        self._slices[key[1]] = new
        self._pools.setdefault(new.pool, {})[key[1]] = None
        self._named.setdefault(new.pool[1], {})[new.pool] = None
        for index, device in enumerate(new.devices):
            place = key[1], index
            self._places.setdefault((*new.pool, device.name), {})[place] = None
            if device.node:
                self._on_node.setdefault(device.node, {})[place] = None
        for pool in {new.pool, new.pool if before is None else before.pool}:
            self._pool_changed(pool)

    def drop_slice(self, key: Key) -> None:
        """A ResourceSlice is gone."""
        if key[1] in self._slices:
            pool = self._slices[key[1]].pool
            self._forget(key[1])
            self._pool_changed(pool)

    def set_node(self, key: Key, obj: Object) -> None:
        """A Node was made or changed."""
        found = node_problem(obj)
        problem = f"node {found}" if found else ""
        if self._nodes.get(key[1]) != problem:
            self._nodes[key[1]] = problem
            self._node_changed(key[1])

    def drop_node(self, key: Key) -> None:
        """A Node is gone."""
        if self._nodes.pop(key[1], None) is not None:
            self._node_changed(key[1])

    def set_taint_rule(self, key: Key, obj: Object) -> None:
        """A DeviceTaintRule was made or changed."""
        selector = at(obj, "spec", "deviceSelector")
        if not isinstance(selector, dict):
            self.drop_taint_rule(key)  # no selector selects nothing, an empty one everything
            return
        driver, pool, device = (text(selector.get(word)) or None for word in ("driver", "pool", "device"))
        rule = (driver, pool, device), _taint(mapping(at(obj, "spec", "taint")))
        before = self._rules.get(key[1])
        if before != rule:
            # Off and on again before anything is counted: no device turns healthy in between.
            self._unrule(key[1])
            self._rules[key[1]] = rule
            self._taints.setdefault(rule[0], {})[key[1]] = rule[1]
            for changed in {rule[0], rule[0] if before is None else before[0]}:
                self._rule_changed(changed)

    def drop_taint_rule(self, key: Key) -> None:
        """A DeviceTaintRule is gone."""
        before = self._rules.get(key[1])
        if before is not None:
            self._unrule(key[1])
            self._rule_changed(before[0])

    def set_claim(self, key: Key, obj: Object) -> None:
        """A ResourceClaim was made or changed."""
        self._hold(key, held_devices(obj))

    def drop_claim(self, key: Key) -> None:
        """A ResourceClaim is gone."""
        self._hold(key, ())

    def hold_back(self, devices: Iterable[DeviceId]) -> None:
        """These devices, and no others, are not free although nobody may hold them: their Pods were deleted by force.

        Until a claim says otherwise they count as in an allocation of nobody's.
        """
        before, self._held_back = self._held_back, frozenset(devices)
        for device in before ^ self._held_back:
            for place in self._places.get(device, ()):
                self._count(place)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def by_model(self, now: float) -> Mapping[str, ModelCapacity]:
        """Every model of the active set, in its order; `now` in seconds since 1970."""
        sums: dict[str, Counter[str]] = {model.name: Counter() for model in self._models}
        charged: dict[str, Counter[str]] = {name: Counter() for name in sums}
        unusable: dict[str, Counter[str]] = {name: Counter() for name in sums}
        oldest: dict[tuple[str, str], float] = {}
        for (traits, problem, since, tenants), count in self._sums.items():
            model = traits.model
            if model not in sums:
                continue
            sums[model]["published"] += count
            for tenant in tenants:
                charged[model][tenant] += count
            if problem:
                unusable[model][problem] += count
                age = _age(since, now)
                if age is not None:
                    oldest[model, problem] = max(age, oldest.get((model, problem), 0.0))
            else:
                sums[model]["healthy"] += count
                sums[model]["free"] += 0 if tenants else count
        return {
            name: ModelCapacity(
                **found,
                charged=dict(sorted(charged[name].items())),
                unusable={
                    reason: Unusable(count, oldest.get((name, reason)))
                    for reason, count in sorted(unusable[name].items())
                },
            )
            for name, found in sums.items()
        }

    def candidates(self, policy: PolicyRef, tenant: str, count: int) -> tuple[CandidateCounts, ...]:
        """The candidates of a policy in its order, for a tenant that asks for `count` devices; none if not known."""
        return tuple(self._candidate(candidate, tenant, count) for candidate in self._orders.get(policy, ()))

    def nodes_with(self, policy: PolicyRef, model: str, count: int) -> list[str]:
        """The nodes where `count` devices of a policy's candidate are free, by name; "" stands for no single node."""
        candidate = next((one for one in self._orders.get(policy, ()) if one.model == model), None)
        return [] if candidate is None else sorted(self._roomy(candidate, count))

    def kinds(self) -> tuple[KindCounts, ...]:
        """The healthy devices of the active set's models, in its order. Costs as much as there are kinds."""
        order = {model.name: index for index, model in enumerate(self._models)}
        found = sorted((order[model], holds, model) for model, holds in self._whole if model in order)
        return tuple(
            KindCounts(
                model,
                holds,
                sum(devices * homes for devices, homes in self._whole[model, holds].sizes.items()),
                dict(sorted(self._free[model, holds].sizes.items())) if (model, holds) in self._free else {},
                dict(sorted(self._whole[model, holds].sizes.items())),
            )
            for _, holds, model in found
        )

    def largest(self) -> dict[str, int]:
        """The most devices of each model that are published on one home, healthy or not, free or not."""
        return {
            model.name: max(self._published[model.name].sizes, default=0) if model.name in self._published else 0
            for model in self._models
        }

    def needs(self, policy: PolicyRef) -> tuple[tuple[str, int], ...]:
        """A policy's candidates in its order, each with the bits that a device of it has to hold; none if not known."""
        return tuple((candidate.model, candidate.needs) for candidate in self._orders.get(policy, ()))

    def published(self) -> Iterator[tuple[str, Sequence[Object]]]:
        """Driver and devices of slices, but those of which all devices are like others before."""
        seen = set[tuple[str, bytes]]()
        for one in self._slices.values():
            kinds = {(one.pool[0], device.digest) for device in one.devices}
            if not kinds <= seen:
                seen |= kinds
                yield one.pool[0], _unpacked(one.packed)

    def model_of(self, device: DeviceId) -> str:
        """The model of a published device; empty where it has none or is not published."""
        rows = (self._rows.get(place) for place in self._places.get(device, ()))
        return next((row.traits.model for row in rows if row is not None), "")

    def problem_of(self, device: DeviceId, tolerations: Collection[object] = ()) -> str:
        """Why a device is not healthy for a claim with these tolerations; empty where it is."""
        place = next((place for place in self._places.get(device, ()) if place in self._rows), None)
        if place is None:
            return UNPUBLISHED
        return self._problem(place, tolerations)[0] if tolerations else self._rows[place].problem

    def node_ready(self, node: str) -> bool:
        """Whether the node is there and ready, cordoned or not."""
        return self._nodes.get(node, LOST) in ("", CORDONED)

    def doubled(self) -> Mapping[DeviceId, tuple[Key, ...]]:
        """Devices in more than one claim, and the claims; by device."""
        return {device: tuple(sorted(self._holders[device])) for device in sorted(self._doubled)}

    def doubled_in(self, claim: Key) -> list[DeviceId]:
        """The devices of a claim that are in another one, too."""
        return sorted(self._doubled.intersection(self._claims.get(claim, ())))

    def holders(self, device: DeviceId) -> tuple[Key, ...]:
        """The claims that a device is in."""
        return tuple(self._holders.get(device, ()))

    def not_evaluated(self) -> int:
        """How many published devices could not be asked one of the policies' expressions."""
        return sum(count for (traits, *_), count in self._sums.items() if traits.faulty)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _candidate(self, candidate: _Candidate, tenant: str, count: int) -> CandidateCounts:
        total: Counter[str] = Counter()
        turned_away: Counter[str] = Counter()
        unusable: Counter[str] = Counter()
        for (traits, problem, _, tenants), devices in self._sums.items():
            if traits.model != candidate.model:
                continue
            total["published"] += devices
            total["healthy"] += 0 if problem else devices
            if traits.holds & candidate.needs != candidate.needs:
                turned_away[next(word for word, bit in candidate.tests if not traits.holds & bit)] += devices
                continue
            total["matching"] += devices
            total["own"] += devices if tenant in tenants else 0
            if problem:
                unusable[problem] += devices
            else:
                total["usable"] += devices
                total["free"] += 0 if tenants else devices
        places = len(self._roomy(candidate, count))
        return CandidateCounts(
            candidate.model,
            places=places,
            turned_away=dict(sorted(turned_away.items())),
            unusable=dict(sorted(unusable.items())),
            **total,
        )

    def _roomy(self, candidate: _Candidate, count: int) -> list[str]:
        free: Counter[str] = Counter()
        for (model, holds), homes in self._free.items():
            if model == candidate.model and holds & candidate.needs == candidate.needs:
                free.update(homes.devices)
        return [home for home, devices in free.items() if devices >= count]

    def _class_changed(self, name: str) -> None:
        if any(model.device_class == name for model in self._models):
            self._judge_all()

    def _judge_all(self) -> None:
        """Selectors have changed: ask every device anew."""
        self._traits = {}
        for name, one in self._slices.items():
            for index, (device, raw) in enumerate(zip(one.devices, _unpacked(one.packed), strict=True)):
                use = one.pool[0], device.digest
                if use not in self._traits:
                    self._traits[use] = self._judged(one.pool[0], raw)
                self._count((name, index))

    def _judged(self, driver: str, raw: Object) -> _Traits:
        try:
            device = device_of(driver, raw)
        except ValueError:
            return _Traits("", 0, True)
        faulty = False
        for model in self._models:
            selectors = self._classes.get(model.device_class)
            if selectors is None or model.driver != driver:
                continue
            answers = [_holds(one, device) for one in (*selectors, self._of_model[model.name])]
            faulty = faulty or None in answers
            if all(answers):
                asked = [_holds(program, device) for program in self._bits[model.name]]
                holds = sum(1 << index for index, answer in enumerate(asked) if answer)
                return _Traits(model.name, holds, None in asked)
        return _Traits("", 0, True) if faulty else _NO_MODEL

    def _unuse(self, one: _Slice) -> None:
        for device in one.devices:
            use = one.pool[0], device.digest
            self._uses[use] -= 1
            if not self._uses[use]:
                del self._uses[use], self._traits[use]

    def _forget(self, name: str) -> None:
        one = self._slices.pop(name)
        self._unuse(one)
        del self._pools[one.pool][name]
        for index, device in enumerate(one.devices):
            place = name, index
            self._put(place, None)
            _discard(self._places, (*one.pool, device.name), place)
            _discard(self._on_node, device.node, place)

    def _pool_changed(self, pool: PoolId) -> None:
        slices = [self._slices[name] for name in self._pools.get(pool, ())]
        if not slices:
            self._pools.pop(pool, None)
            self._views.pop(pool, None)
            _discard(self._named, pool[1], pool)
            return
        before = self._views.get(pool, {})
        self._views[pool] = views = _views(slices)
        for name in self._pools[pool]:
            one = self._slices[name]
            if before.get(one.home) != views[one.home] or (name, 0) not in self._rows:
                for index in range(len(one.devices)):
                    self._count((name, index))

    def _node_changed(self, node: str) -> None:
        for place in self._on_node.get(node, ()):
            self._count(place)

    def _unrule(self, name: str) -> None:
        rule = self._rules.pop(name, None)
        if rule is not None:
            _discard(self._taints, rule[0], name)

    def _rule_changed(self, selector: tuple[str | None, str | None, str | None]) -> None:
        driver, pool, device = selector
        pools = list(self._pools if pool is None else self._named.get(pool, ()))
        for one in pools:
            for name in self._pools[one] if driver in (None, one[0]) else ():
                for index, published in enumerate(self._slices[name].devices):
                    if device in (None, published.name):
                        self._count((name, index))

    def _hold(self, key: Key, devices: tuple[DeviceId, ...]) -> None:
        before = self._claims.get(key, ())
        if before == devices:
            return
        if devices:
            self._claims[key] = devices
        else:
            del self._claims[key]
        for device in before:
            _discard(self._holders, device, key)
        for device in devices:
            self._holders.setdefault(device, {})[key] = None
        for device in {*before, *devices}:
            (self._doubled.add if len(self._holders.get(device, ())) > 1 else self._doubled.discard)(device)
            for place in self._places.get(device, ()):
                self._count(place)

    def _count(self, place: Place) -> None:
        """Count the device at `place` under what it is now."""
        one = self._slices[place[0]]
        view = self._views[one.pool][one.home]
        if one.generation != view.generation:
            self._put(place, None)
            return
        device = one.devices[place[1]]
        problem, since = self._problem(place)
        holders = self._holders.get((*one.pool, device.name))
        tenants: tuple[str, ...] = ()
        if holders:
            owners = self._set.tenant_by_namespace if self._set is not None else {}
            tenants = tuple(sorted({owners.get(namespace, "") for namespace, _ in holders}))
        elif (*one.pool, device.name) in self._held_back:
            tenants = ("",)
        self._put(place, _Row(self._traits[one.pool[0], device.digest], problem, since, tenants, device.node))

    def _problem(self, place: Place, tolerations: Collection[object] = ()) -> tuple[str, str]:
        """Why the device at `place` is not healthy for who has these tolerations, and since when where that is said."""
        one = self._slices[place[0]]
        device = one.devices[place[1]]
        problem = self._views[one.pool][one.home].problem or self._problem_at(device.node)
        if problem:
            return problem, ""
        for taint in self._taints_on(one.pool, device):
            if taint.effect in BLOCKING and not tolerated(taint._asdict(), tolerations):
                return taint.reason, taint.since
        return "", ""

    def _problem_at(self, node: str) -> str:
        return self._nodes.get(node, LOST) if node else ""

    def _taints_on(self, pool: PoolId, device: _Published) -> Iterator[_Taint]:
        yield from device.taints
        if self._taints:
            for driver in (None, pool[0]):
                for name in (None, pool[1]):
                    for which in (None, device.name):
                        rules = self._taints.get((driver, name, which))
                        if rules:
                            yield from (rules[rule] for rule in sorted(rules))

    def _put(self, place: Place, row: _Row | None) -> None:
        before = self._rows.get(place)
        if before == row:
            return
        if before is not None:
            del self._rows[place]
            _subtract(self._sums, before[:4])
            self._add(before, -1)
        if row is not None:
            self._rows[place] = row
            self._sums[row[:4]] += 1
            self._add(row, 1)
            if before is not None and row.traits.model and bool(before.problem) != bool(row.problem):
                self.changes[row.traits.model, "unhealthy" if row.problem else "healthy"] += 1

    def _add(self, row: _Row, change: int) -> None:
        model, holds, _ = row.traits
        if not model:
            return
        _add(self._published, model, row.home, change)
        if not row.problem:
            _add(self._whole, (model, holds), row.home, change)
            if not row.tenants:
                _add(self._free, (model, holds), row.home, change)


def held_devices(claim: Object) -> tuple[DeviceId, ...]:
    """The devices that a claim holds for itself alone: not for admin access, and no share of one."""
    results = sequence(at(claim, "status", "allocation", "devices", "results"))
    return tuple(
        (intern(text(result.get("driver"))), intern(text(result.get("pool"))), intern(text(result.get("device"))))
        for result in map(mapping, results)
        if result.get("adminAccess") is not True and not result.get("shareID")
    )


def _views(slices: Sequence[_Slice]) -> dict[str, _View]:
    """A pool's slices as each home sees them: its own and those of no home (GatherPools in the allocator).

    A pool may have as many homes as there are nodes: of the whole pool nothing is looked at once for each.
    """
    found = {}
    newest = max(one.generation for one in slices)
    by_home: dict[str, list[_Slice]] = {}
    for one in slices:
        by_home.setdefault(one.home, []).append(one)
    everywhere = [one for one in slices if one.generation == newest]
    whole = {one.wanted for one in everywhere} == {len(everywhere)}
    lacking = EXTRA if max(one.wanted for one in everywhere) < len(everywhere) else INCOMPLETE
    counters = whole and _wrong_counters(everywhere)
    for home, there in by_home.items():
        own = [*there, *by_home.get("", ())] if home else there
        generation = max(one.generation for one in own)
        own = [one for one in own if one.generation == generation]
        if {one.wanted for one in own} == {len(own)}:
            problem = INVALID if _repeats(own) or _wrong_counters(own) else ""
        elif newest > generation:
            problem = OBSOLETE
        elif not whole:
            problem = lacking
        else:
            problem = INVALID if _repeats(own) or counters else ""
        found[home] = _View(generation, problem)
    return found


def _repeats(own: Sequence[_Slice]) -> bool:
    """A device stands in it twice."""
    names = [device.name for one in own for device in one.devices]
    return len(set(names)) < len(names)


def _wrong_counters(everywhere: Sequence[_Slice]) -> bool:
    """A counter set stands twice in these slices, or one that a device consumes does not."""
    sets = [name for one in everywhere for name in one.counters]
    counters = {(name, counter) for one in everywhere for name, there in one.counters.items() for counter in there}
    consumed = frozenset().union(*(one.consumed for one in everywhere))
    twice = len(set(sets)) < len(sets) or any(one.repeated for one in everywhere)
    return twice or not consumed <= counters


def _same_frame(one: _Slice, other: _Slice) -> bool:
    """Only what its devices publish differs: every other slice of the pool stands as it stood."""
    return one._replace(devices=(), packed=b"") == other._replace(devices=(), packed=b"") and [
        (device.name, device.node) for device in one.devices
    ] == [(device.name, device.node) for device in other.devices]


def _slice(spec: Object, devices: Sequence[Object]) -> _Slice:
    pool = mapping(spec.get("pool"))
    home = intern(text(spec.get("nodeName")))
    shared = [mapping(one) for one in sequence(spec.get("sharedCounters"))]
    consumed = (mapping(one) for device in devices for one in sequence(device.get("consumesCounters")))
    published = (
        _Published(
            intern(text(device.get("name"))),
            home or intern(text(device.get("nodeName"))),
            tuple(_taint(mapping(taint)) for taint in sequence(device.get("taints"))),
            _digest(device),
        )
        for device in devices
    )
    return _Slice(
        (intern(text(spec.get("driver"))), intern(text(pool.get("name")))),
        home,
        _whole(pool.get("generation")),
        _whole(pool.get("resourceSliceCount")),
        tuple(published),
        {text(one.get("name")): frozenset(mapping(one.get("counters"))) for one in shared},
        frozenset((text(one.get("counterSet")), name) for one in consumed for name in mapping(one.get("counters"))),
        len({text(one.get("name")) for one in shared}) < len(shared),
        zlib.compress(msgspec.json.encode([_seen(device) for device in devices]), 1),
    )


def _seen(device: Object) -> Object:
    """What selectors see of a device."""
    return {word: device[word] for word in ("attributes", "capacity", "allowMultipleAllocations") if word in device}


def _digest(device: Object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(_seen(device)), digest_size=12).digest()


def _unpacked(packed: bytes) -> Sequence[Object]:
    return [mapping(one) for one in msgspec.json.decode(zlib.decompress(packed))]


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _taint(raw: Object) -> _Taint:
    return _Taint(*(intern(text(raw.get(word))) for word in ("key", "value", "effect", "timeAdded")))


def _age(since: str, now: float) -> float | None:
    try:
        return max(0.0, now - dt.datetime.fromisoformat(since).timestamp())
    except ValueError:
        return None


def _program(expression: str) -> Program | None:
    try:
        return compile(expression)
    except CelError:
        return None


def _expressions(programs: Iterable[Program | None]) -> list[str | None]:
    # What can't be compiled is never the same: it is judged again.
    return [program.expression if program is not None else None for program in programs]


def _holds(program: Program | None, device: Device) -> bool | None:
    """None: it can't be evaluated, which the scheduler takes as an error and not as a device that doesn't match."""
    if program is None:
        return None
    try:
        return program.evaluate(device)
    except (EvaluationError, BudgetExceeded):
        return None


def _discard(index: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    values = index.get(key)
    if values is not None:
        values.pop(value, None)
        if not values:
            del index[key]


def _add(index: dict, key: object, home: str, change: int) -> None:  # type: ignore[type-arg]
    homes = index.setdefault(key, _Homes())
    homes.add(home, change)
    if not homes.devices:
        del index[key]


def _subtract(counter: Counter, key: object) -> None:  # type: ignore[type-arg]
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
