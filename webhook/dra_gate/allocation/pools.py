"""The pools that a node reaches: which slices count, which pools are used, and in which order.

The order is a contract from Kubernetes 1.36 on: pools by driver and name, those with binding conditions last; slices by
name; devices as listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dra_gate import cel
from dra_gate.allocation.amounts import nano, quantity_of
from dra_gate.allocation.consumption import Capacity, capacities_of
from dra_gate.allocation.node_selector import node_matches
from dra_gate.allocation.outcome import PoolKind
from dra_gate.allocation.problems import CannotEvaluate
from dra_gate.kube.raw import Object, at, mapping, sequence, text

PoolId = tuple[str, str]  # driver, pool
DeviceId = tuple[str, str, str]  # driver, pool, device


class Device:
    """One device of a slice; what few requests ask about is read when it is asked for."""

    __slots__ = ("_capacity", "_whole", "as_cel", "consumes", "id", "multiple", "raw", "slice", "taints")

    def __init__(self, origin: Slice, raw: Object, taints: tuple[Object, ...]) -> None:
        self.raw = raw
        self.slice = origin
        self.id: DeviceId = (origin.driver, origin.pool, text(raw.get("name")))
        self.multiple = raw.get("allowMultipleAllocations") is True
        self.taints = tuple(t for t in (*sequence(raw.get("taints")), *taints) if at(t, "effect") in _BLOCKING)
        self.consumes = tuple(_consumption(mapping(one)) for one in sequence(raw.get("consumesCounters")))
        self.as_cel: cel.Device | None = None  # see Verdicts
        self._capacity: Mapping[str, Capacity] | None = None
        self._whole: bool | None = None

    @property
    def name(self) -> str:
        """Its name within the pool."""
        return self.id[2]

    def capacity(self, fractional: bool) -> Mapping[str, Capacity]:
        """What it publishes to be consumed; see `capacities_of`."""
        if self._capacity is None:
            self._capacity = capacities_of(self.raw, fractional)
        return self._capacity

    @property
    def is_whole(self) -> bool:
        """Whether it is given whole to whoever asks for no capacity: then there is nothing to reckon."""
        if self._whole is None:
            entries = mapping(self.raw.get("capacity")).values()
            plain = all(at(entry, "requestPolicy") is None and str(at(entry, "value"))[:1] != "-" for entry in entries)
            self._whole = plain and not self.multiple
        return self._whole

    def attribute(self, name: str) -> Object | None:
        """The value of an attribute by its full name; the driver's own may be published without domain."""
        attributes = mapping(self.raw.get("attributes"))
        found = attributes.get(name)
        if found is None:
            domain, _, identifier = name.partition("/")
            found = attributes.get(identifier) if domain == self.id[0] else None
        return found if isinstance(found, dict) else None


_BLOCKING = ("NoSchedule", "NoExecute")  # other effects, None among them, are ignored


def _consumption(entry: Object) -> tuple[str, Mapping[str, int]]:
    counters = mapping(entry.get("counters"))
    amounts = {name: nano(quantity_of(at(value, "value"), f"counter {name}")) for name, value in counters.items()}
    return text(entry.get("counterSet")), amounts


@dataclass(eq=False)
class Slice:
    """A ResourceSlice; its devices are read when a node reaches them."""

    name: str
    driver: str
    pool: str
    generation: int
    count: int
    spec: Object
    rules: tuple[Object, ...] = ()  # specs of the taint rules that may concern it

    @classmethod
    def of(cls, raw: Object, rules: Iterable[Object]) -> Slice:
        """Reads one object of the API; `rules` are the specs of all DeviceTaintRules that have a selector."""
        spec = mapping(raw.get("spec"))
        driver, pool = text(spec.get("driver")), mapping(spec.get("pool"))
        name = text(pool.get("name"))
        matching = tuple(
            rule
            for rule in rules
            if at(rule, "deviceSelector", "driver") in (None, driver)
            and at(rule, "deviceSelector", "pool") in (None, name)
        )
        generation, count = _integer(pool.get("generation")), _integer(pool.get("resourceSliceCount"))
        return cls(text(at(raw, "metadata", "name")), driver, name, generation, count, spec, matching)

    @property
    def pool_id(self) -> PoolId:
        """Driver and pool."""
        return self.driver, self.pool

    @property
    def node_name(self) -> str:
        """The one node that it is for, "" if there is none."""
        return text(self.spec.get("nodeName"))

    @property
    def per_device(self) -> bool:
        """Whether its devices say themselves for which nodes they are."""
        return self.spec.get("perDeviceNodeSelection") is True

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Its devices as listed, with the taints of rules behind their own."""
        return tuple(
            Device(self, raw, tuple(mapping(rule.get("taint")) for rule in self.rules if _concerns(rule, raw)))
            for raw in map(mapping, sequence(self.spec.get("devices")))
        )

    @cached_property
    def has_counters(self) -> bool:
        """Whether it publishes counter sets, and so no devices that count."""
        return bool(self.spec.get("sharedCounters"))

    @cached_property
    def grouped(self) -> bool:
        """Whether a device names compatibility groups (alpha in 1.37): the scheduler passes over the whole slice."""
        return any(
            at(use, "compatibilityGroups")
            for device in sequence(self.spec.get("devices"))
            for use in sequence(at(device, "consumesCounters"))
        )

    @cached_property
    def binds(self) -> bool:
        """Whether a device has binding conditions."""
        return any(at(device, "bindingConditions") for device in sequence(self.spec.get("devices")))

    def reached_from(self, node: Object) -> bool | None:
        """Whether a node gets at it; None if it says nothing about nodes that is known here."""
        everywhere, selector = self.spec.get("allNodes") is True, self.spec.get("nodeSelector")
        if self.node_name or everywhere or selector is not None:
            return node_matches(node, self.node_name, everywhere, selector)
        if self.per_device:
            return any(device_reached(device, node) for device in self.devices)
        return None


def device_reached(device: Device, node: Object) -> bool:
    """Whether a device of a slice with perDeviceNodeSelection is for that node."""
    raw = device.raw
    return node_matches(node, text(raw.get("nodeName")), raw.get("allNodes") is True, raw.get("nodeSelector"))


def _concerns(rule: Object, device: Object) -> bool:
    return at(rule, "deviceSelector", "device") in (None, device.get("name"))


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


@dataclass(slots=True)
class Pool:
    """A pool as one node sees it. `slices` are those with devices that the node reaches, `others` the rest of them."""

    id: PoolId
    generation: int
    state: PoolKind
    reason: str = ""
    slices: tuple[Slice, ...] = ()
    others: tuple[Slice, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # what its counter sets hold

    @property
    def name(self) -> str:
        """`driver/pool`, as the scheduler prints it."""
        return "/".join(self.id)


@dataclass(frozen=True, slots=True)
class View:
    """What one node has: its pools in the scheduler's order, and the devices of those that are used."""

    node: Object
    pools: tuple[Pool, ...]
    devices: tuple[tuple[Device, Pool], ...]

    @classmethod
    def of(cls, node: Object, pools: Sequence[Pool]) -> View:
        """The view of a node with these pools."""
        used = [pool for pool in pools if pool.state == "used"]
        devices = tuple((device, pool) for pool in used for found in pool.slices for device in found.devices)
        return cls(node, tuple(pools), devices)


class Slices:
    """All slices of a snapshot, found by node and by pool."""

    def __init__(self, slices: Iterable[Object], rules: Iterable[Object]) -> None:
        chosen = [spec for rule in rules if isinstance(at(spec := mapping(rule.get("spec")), "deviceSelector"), dict)]
        self._of_node: dict[str, list[Slice]] = {}
        self._shared: list[Slice] = []
        self._of_pool: dict[PoolId, list[Slice]] = {}
        self.has_counters = False  # whether any slice publishes counter sets
        for raw in slices:
            found = Slice.of(raw, chosen)
            (self._of_node.setdefault(found.node_name, []) if found.node_name else self._shared).append(found)
            self._of_pool.setdefault(found.pool_id, []).append(found)
            self.has_counters = self.has_counters or found.has_counters

    def pools(self, node: Object) -> tuple[list[Pool], list[Pool]]:
        """The pools that the scheduler looks at for a node, in its order, and those that it passes over without a word.

        Raises CannotEvaluate where the scheduler's answer hangs on the order in which it meets the slices.
        """
        reached: dict[PoolId, list[Slice]] = {}
        passed: dict[PoolId, Pool] = {}
        for found in (*self._of_node.get(text(at(node, "metadata", "name")), ()), *self._shared):
            relevant = not found.grouped and found.reached_from(node)
            if relevant:
                reached.setdefault(found.pool_id, []).append(found)
            elif found.pool_id not in passed:
                passed[found.pool_id] = Pool(found.pool_id, found.generation, "elsewhere", _why_not(found, relevant))
        seen: list[Pool] = []
        hidden = [pool for key, pool in passed.items() if key not in reached]
        for key, slices in reached.items():
            pool = self._pool(key, slices)
            (hidden if pool.state == "old" else seen).append(pool)
            older = sorted(found.name for found in slices if found.generation < pool.generation)
            if older:
                reason = f"generation {pool.generation} has replaced slice {', '.join(older)}"
                hidden.append(Pool(key, min(found.generation for found in slices), "old", reason))
        seen.sort(key=lambda pool: (any(found.binds for found in pool.slices), pool.id))
        return seen, sorted(hidden, key=lambda pool: pool.id)

    def _pool(self, key: PoolId, reached: list[Slice]) -> Pool:
        generation = max(found.generation for found in reached)
        current = [found for found in reached if found.generation == generation]
        everywhere = self._of_pool[key]
        counts = {found.count for found in current}
        if any(len(current) == count for count in counts):
            if len(counts) > 1:
                raise CannotEvaluate(_disagreement(key, counts))
            return _built(key, generation, current, current)
        newest = max(found.generation for found in everywhere)
        if newest > generation:
            return Pool(key, generation, "old", f"generation {newest} is there, for other nodes")
        published = [found for found in everywhere if found.generation == generation and not found.grouped]
        if any(len(published) == count for count in counts):
            if len(counts) > 1:
                raise CannotEvaluate(_disagreement(key, counts))
            return _built(key, generation, current, published)
        wanted = " or ".join(map(str, sorted(counts)))
        return Pool(key, generation, "incomplete", f"{len(published)} slices where its generation has {wanted}")


def _disagreement(key: PoolId, counts: Iterable[int]) -> str:
    listed = " and ".join(map(str, sorted(counts)))
    return f"slices of pool {'/'.join(key)} say {listed} slices: the scheduler goes by whichever it meets first"


def _why_not(found: Slice, relevant: bool | None) -> str:
    if found.grouped:
        return f"slice {found.name} has compatibility groups, which the scheduler passes over"
    if relevant is None:
        return f"slice {found.name} names no nodes in a way that is known here"
    return f"slice {found.name} is for other nodes"


def _built(key: PoolId, generation: int, reached: Sequence[Slice], published: Sequence[Slice]) -> Pool:
    """A complete pool, or why it is invalid."""
    ours = sorted((found for found in reached if not found.has_counters), key=lambda found: found.name)
    names = {found.name for found in reached}
    others = tuple(found for found in published if found.name not in names and not found.has_counters)
    sources = sorted((found for found in published if found.has_counters), key=lambda found: found.name)
    counters: dict[str, Mapping[str, int]] = {}
    reason = _twice(device.name for found in ours for device in found.devices)
    if reason:
        reason = f"duplicate device name {reason}"
    for entry in (mapping(one) for found in sources for one in sequence(found.spec.get("sharedCounters"))):
        name, amounts = text(entry.get("name")), mapping(entry.get("counters"))
        if name in counters:
            reason = reason or f"duplicate counter set name {name}"
        counters[name] = {
            counter: nano(quantity_of(at(value, "value"), f"counter {counter}")) for counter, value in amounts.items()
        }
    reason = reason or _unknown_counter(counters, (*ours, *others))
    if reason:
        return Pool(key, generation, "invalid", reason)
    return Pool(key, generation, "used", "", tuple(ours), others, counters)


def _twice(names: Iterable[str]) -> str:
    seen = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _unknown_counter(counters: Mapping[str, Mapping[str, int]], slices: Iterable[Slice]) -> str:
    for found in slices:
        for device in found.devices:
            for name, amounts in device.consumes:
                if name not in counters:
                    return f"counter set {name} not found"
                for counter in amounts:
                    if counter not in counters[name]:
                        return f"counter {counter} not found in counter set {name}"
    return ""
