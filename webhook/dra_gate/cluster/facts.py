"""The facts that decisions read, assembled from objects as they arrive: from reflectors, or from files.

Everything that costs something happens here, when an object changes: judging classes and foreign templates, adding up
charges. A decision only looks things up. One lock orders the writers; it is never held across I/O, and readers take
none.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL, ClaimFacts, Facts
from dra_gate.admission.reach import Reach
from dra_gate.admission.rules.quota import charge_of
from dra_gate.admission.sets import PolicySets
from dra_gate.cluster import shapes
from dra_gate.cluster.device_nodes import DeviceNodes
from dra_gate.fairness.charge import NOTHING, Charge, Given, claim_charge, given_charge, given_devices
from dra_gate.fairness.holding import POD_CLAIM_ANNOTATION, PodHolding, held, pod_holding
from dra_gate.kube.claim import UnknownAllocationMode
from dra_gate.kube.pod import IMPLICIT_PREFIX, claim_entries, containers, extended_resource_names, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import TemplateIndex, templates_of
from dra_gate.policy.model import PolicySet

Key = tuple[str, str]  # namespace (empty for cluster-scoped objects) and name

_JUDGEMENTS = 10_000  # distinct specs remembered
_SWITCH = ""  # stands among namespaces for the Gate's lane switch
EARLIER_SECONDS = 5.0  # for so long what labels or the switch said before still counts: replicas differ by less

DRA = "/apis/resource.k8s.io/v1/"
# List and watch paths by kind, in the order in which they are best read: classes before what names them.
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "DeviceClass": DRA + "deviceclasses",
    "ResourceSlice": DRA + "resourceslices",
    "ResourceClaimTemplate": DRA + "resourceclaimtemplates",
    "ResourceClaim": DRA + "resourceclaims",
    "Pod": "/api/v1/pods",
}
TAINT_RULES = DRA + "devicetaintrules"  # not everywhere: in v1 since 1.37


class KindSink:
    """The reflector's end of one kind. Knows which keys it has given on, so that a new list drops the rest."""

    def __init__(
        self,
        upsert: Callable[[Key, Object], None],
        delete: Callable[[Key], None],
        lock: threading.Lock,
        shape: type | None = None,
    ) -> None:
        self.shape = shape
        self._upsert = upsert
        self._delete = delete
        self._lock = lock
        self._keys: set[Key] = set()

    def replace(self, objects: Iterable[Object]) -> None:
        """The whole truth at one moment, which may come in slowly: the lock is held for one object at a time."""
        seen = set()
        for obj in objects:
            self.upsert(obj)
            seen.add(_key(obj))
        with self._lock:
            for key in self._keys - seen:
                self._delete(key)
            self._keys = seen

    def upsert(self, obj: Object) -> None:
        """One object was made or changed."""
        with self._lock:
            key = _key(obj)
            self._keys.add(key)
            self._upsert(key, obj)

    def delete(self, obj: Object) -> None:
        """One object is gone."""
        with self._lock:
            key = _key(obj)
            self._keys.discard(key)
            self._delete(key)


class World:
    """The cluster as decisions see it, under the policy sets that count. `writers` are the gate's own accounts.

    Objects may arrive before any set does: they are kept in a form that every set can be judged from. `clock` gives
    seconds that never go back; it only says how long ago labels changed. `now` gives seconds since 1970: on which day
    exceptions end.
    """

    def __init__(
        self,
        policy_set: PolicySet | None = None,
        *,
        writers: Iterable[str] = GATE_WRITERS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._writers = frozenset(writers)
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._indexes: dict[str, TemplateIndex] = {}
        self._sets: PolicySets | None = None
        self._reach = Reach(())
        self._extended_names: dict[str, str] = {}  # class -> its extendedResourceName
        self._class_specs: dict[str, Object] = {}
        self._slices: dict[str, bytes] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._previous_labels: dict[str, Mapping[str, str] | None] = {}
        self._changed: deque[tuple[float, str]] = deque()  # when the lane or mode of which namespace changed
        self._templates: dict[Key, ClaimFacts] = {}
        self._claims: dict[Key, ClaimFacts] = {}
        self._holdings = _Holdings(self._charge_of_template, self._charge_of_given)
        self._raw_pods: dict[Key, Object] = {}  # Pods that ask for extended resources, of which some may give devices
        self._judgements: dict[bytes, ClaimFacts] = {}  # by digest of the spec: thousands of claims share few specs
        self._charges: dict[str, Charge] = {}  # worst case by compiled template
        self._given_charges: dict[Given, Charge] = {}  # one of each, for thousands of claims
        self._fixed_used: dict[str, Charge] = {}
        self._device_nodes = DeviceNodes(self._is_device)
        self._runtime_handlers: dict[str, str] = {}
        self._sinks = {
            kind: KindSink(upsert, delete, self._lock, shape)
            for kind, upsert, delete, shape in (
                ("Namespace", self._set_namespace, self._drop_namespace, shapes.Namespace),
                ("Node", self._set_node, self._drop_node, shapes.Node),
                ("RuntimeClass", self._set_runtime, self._drop_runtime, shapes.RuntimeClass),
                ("DeviceClass", self._set_class, self._drop_class, shapes.Spec),
                ("ResourceSlice", self._set_slice, self._drop_slice, shapes.Spec),
                ("ResourceClaimTemplate", self._set_template, self._drop_template, shapes.Spec),
                ("ResourceClaim", self._set_claim, self._drop_claim, shapes.ResourceClaim),
                ("Pod", self._set_pod, self._drop_pod, shapes.Pod),
            )
        }
        self._facts: Facts | None = None
        if policy_set is not None:
            self.use(PolicySets(policy_set))

    @property
    def ready(self) -> bool:
        """A policy set is in use: before that there are no facts to decide by."""
        return self._facts is not None

    def use(self, sets: PolicySets) -> None:
        """Decide by `sets` from now on. What they compile to is made before anybody waits for it."""
        indexes = {s.digest: self._indexes.get(s.digest) or templates_of(s) for s in sets.all}
        with self._lock:
            before = self._sets
            self._indexes, self._sets = indexes, sets
            if before is not None and before.lane_override != sets.lane_override:
                self._changed.append((self._clock(), _SWITCH))
            if before is not None and [s.digest for s in before.all] == [s.digest for s in sets.all]:
                self._assemble()  # only the generation or the switch moved
                return
            models = [model for policy_set in sets.all for model in policy_set.models.values()]
            self._device_nodes.use(models)
            if not self._reach.same_as(models):
                self._reach = Reach(models)
                for name, spec in self._class_specs.items():
                    self._reach.set_class(name, spec)
                for packed in self._slices.values():
                    self._reach.judge_slice(_unpacked(packed))
            self._charges, self._given_charges = {}, {}
            self._judge_again()

    def facts(self) -> Facts:
        """The facts of this moment: its mappings go on changing as objects arrive. Only after a set is in use."""
        if self._changed and self._changed[0][0] + EARLIER_SECONDS < self._clock():
            self._forget_earlier()
        assert self._facts is not None  # noqa: S101 - readiness waits for it
        if self._facts.day != self._day():
            with self._lock:
                self._assemble()
        return self._facts

    def sinks(self) -> dict[str, KindSink]:
        """Where reflectors put objects, by the path that they list and watch."""
        return {PATHS[kind]: sink for kind, sink in self._sinks.items()}

    def apply(self, obj: Object) -> bool:
        """Take in one object from a file. False: its kind tells the gate nothing."""
        sink = self._sinks.get(text(obj.get("kind")))
        if sink is None:
            return False
        sink.upsert(obj)
        return True

    def set_used(self, tenant: str, charge: Charge) -> None:
        """What `tenant` holds already, said by the caller; it wins over what the objects say."""
        with self._lock:
            self._fixed_used[tenant] = charge
            self._assemble()

    # Each method below runs with the lock held.

    def _assemble(self) -> None:
        sets = self._sets
        if sets is None:
            return
        resources: dict[str, str] = {}
        for name in self._reach.gated:
            resources[IMPLICIT_PREFIX + name] = name
            if self._extended_names.get(name):
                resources[self._extended_names[name]] = name
        for policy_set in sets.all:
            for policy in policy_set.policies.values():
                for name in policy.serves:
                    resources.setdefault(name, policy_set.models[policy.candidates[0]].device_class)
        lane_is_new = any(name == _SWITCH for _, name in self._changed)
        self._facts = Facts(
            policy_set=sets.active,
            index=self._indexes[sets.active.digest],
            accepted={s.digest: (s, self._indexes[s.digest]) for s in sets.accepted},
            gate_generation=sets.generation,
            lane_override=sets.lane_override,
            lane_previous=sets.lane_previous if lane_is_new else sets.lane_override,
            previous_labels=self._previous_labels,
            writers=self._writers,
            namespaces=self._namespaces,
            device_resources=resources,
            known_classes=frozenset(self._reach.classes),
            templates=self._templates,
            claims=self._claims,
            reached_by=self._reach.of_new_spec,
            used={**self._holdings.used, **self._fixed_used} if self._fixed_used else self._holdings.used,
            nodes=self._device_nodes.nodes,
            day=self._day(),
            runtime_handlers=self._runtime_handlers,
        )

    def _day(self) -> int:
        return int(self._now() // 86_400)

    def _is_device(self, resource: str) -> bool:
        return self._facts is not None and resource in self._facts.device_resources

    def _forget_earlier(self) -> None:
        with self._lock:
            limit = self._clock() - EARLIER_SECONDS
            while self._changed and self._changed[0][0] < limit:
                _, name = self._changed.popleft()
                if not any(name == other for _, other in self._changed):
                    self._previous_labels.pop(name, None)
            self._assemble()

    def _set_namespace(self, key: Key, obj: Object) -> None:
        labels = mapping(at(obj, "metadata", "labels"))
        kept = {label: text(labels[label]) for label in (LANE_LABEL, MODE_LABEL) if label in labels}
        before = self._namespaces.get(key[1])
        self._namespaces[key[1]] = kept
        if before is not None and before != kept:
            self._previous_labels[key[1]] = before if LANE_LABEL in before else None
            self._changed.append((self._clock(), key[1]))

    def _drop_namespace(self, key: Key) -> None:
        self._namespaces.pop(key[1], None)

    def _set_node(self, key: Key, obj: Object) -> None:
        self._device_nodes.set_node(key[1], obj)

    def _drop_node(self, key: Key) -> None:
        self._device_nodes.drop_node(key[1])

    def _set_runtime(self, key: Key, obj: Object) -> None:
        self._runtime_handlers[key[1]] = text(obj.get("handler"))

    def _drop_runtime(self, key: Key) -> None:
        self._runtime_handlers.pop(key[1], None)

    def _set_class(self, key: Key, obj: Object) -> None:
        spec = mapping(obj.get("spec"))
        self._class_specs[key[1]] = spec
        self._extended_names[key[1]] = text(spec.get("extendedResourceName"))
        if self._reach.set_class(key[1], spec):
            for packed in self._slices.values():
                self._reach.judge_slice(_unpacked(packed))
        self._judge_again()

    def _drop_class(self, key: Key) -> None:
        self._class_specs.pop(key[1], None)
        self._extended_names.pop(key[1], None)
        self._reach.drop_class(key[1])
        self._judge_again()

    def _set_slice(self, key: Key, obj: Object) -> None:
        spec = mapping(obj.get("spec"))
        kept = {"driver": spec.get("driver"), "devices": spec.get("devices")}
        self._device_nodes.set_slice(key[1], spec)
        self._slices[key[1]] = _packed(kept)
        if self._reach.judge_slice(kept):
            self._judge_again()

    def _drop_slice(self, key: Key) -> None:
        self._slices.pop(key[1], None)
        self._device_nodes.drop_slice(key[1])

    def _judge_again(self) -> None:
        """What can be reached has changed. Classes come and go rarely: all that hangs on them is done anew."""
        self._judgements = {}
        for store, path in ((self._templates, ("spec",)), (self._claims, ())):
            for key, facts in list(store.items()):
                store[key] = self._judged(facts.spec, path)
        self._assemble()
        self._device_nodes.judge_again()
        for key, pod in self._raw_pods.items():
            self._hold(key, pod)
        self._holdings.recharge_pods(self._tenant)
        for key in self._claims:
            self._holdings.recharge_claim(key, self._tenant(key[0]), self._claims[key])

    def _judged(self, spec: Object, path: tuple[str, ...]) -> ClaimFacts:
        digest = hashlib.blake2b(msgspec.json.encode([path, spec], order="sorted"), digest_size=20).digest()
        found = self._judgements.get(digest)
        if found is None:
            if len(self._judgements) >= _JUDGEMENTS:
                self._judgements.clear()
            found = self._judgements[digest] = ClaimFacts(spec, self._reach.of_spec(mapping(at(spec, *path))))
        return found

    def _set_template(self, key: Key, obj: Object) -> None:
        self._templates[key] = self._judged(mapping(obj.get("spec")), ("spec",))
        self._holdings.changed(key)

    def _drop_template(self, key: Key) -> None:
        self._templates.pop(key, None)
        self._holdings.changed(key)

    def _set_claim(self, key: Key, obj: Object) -> None:
        owner = next(
            (mapping(o) for o in sequence(at(obj, "metadata", "ownerReferences")) if mapping(o).get("kind") == "Pod"),
            None,
        )
        spec = mapping(obj.get("spec"))
        found = self._claims[key] = self._judged(spec, ())
        self._holdings.set_claim(key, obj, owner, self._tenant(key[0]), found)

    def _drop_claim(self, key: Key) -> None:
        self._claims.pop(key, None)
        self._holdings.drop_claim(key)

    def _set_pod(self, key: Key, obj: Object) -> None:
        if is_finished(obj) or not (claim_entries(obj) or _asks_for_extended_resources(obj)):
            self._drop_pod(key)
            return
        if _asks_for_extended_resources(obj):
            obj = self._raw_pods[key] = _project_pod(obj)
        else:
            self._raw_pods.pop(key, None)
        self._hold(key, obj)

    def _hold(self, key: Key, pod: Object) -> None:
        self._holdings.set_pod(key, pod_holding(pod, self._is_device), self._tenant(key[0]))

    def _drop_pod(self, key: Key) -> None:
        self._raw_pods.pop(key, None)
        self._holdings.drop_pod(key)

    def _tenant(self, namespace: str) -> str | None:
        return None if self._sets is None else self._sets.active.tenant_by_namespace.get(namespace)

    def _charge_of_template(self, namespace: str, name: str) -> Charge:
        """The worst case of a claim from the named template; nothing for one that gives no gated device."""
        if name in self._charges:
            return self._charges[name]
        for index in self._indexes.values():
            compiled = index.named(name)
            if compiled is not None:
                return self._charges.setdefault(name, charge_of((compiled,)))
        found = self._templates.get((namespace, name))
        if found is None or not found.reached:
            return NOTHING
        return _worst_case(mapping(found.spec.get("spec")))

    def _charge_of_given(self, given: Given) -> Charge:
        found = self._given_charges.get(given)
        if found is None:
            found = self._given_charges[given] = given_charge(given, self._reach.drivers)
        return found


class _Holdings:
    """Charges by tenant, kept up to date one Pod and one claim at a time."""

    def __init__(
        self, charge_of_template: Callable[[str, str], Charge], charge_of_given: Callable[[Given], Charge]
    ) -> None:
        self.used: dict[str, Charge] = {}
        self._charge_of_template = charge_of_template
        self._charge_of_given = charge_of_given
        self._pods: dict[Key, PodHolding] = {}
        self._pod_by_uid: dict[str, Key] = {}
        self._namers: dict[Key, set[Key]] = {}  # template -> Pods that name it
        # (Pod UID, claim entry) -> its claims, and what each was given (None: nothing yet). People may write an owner
        # and an entry on a claim of their own: the dearest claim counts.
        self._entries: dict[tuple[str, str], dict[Key, Given | None]] = {}
        self._claim_entry: dict[Key, tuple[str, str]] = {}  # generated claims -> (Pod UID, claim entry)
        self._truths: dict[Given, Given] = {}  # one of each, for thousands of claims
        self._own_claims: dict[Key, Given | None] = {}  # claims of nobody's own -> what they were given
        self._charged: dict[tuple[str, Key], tuple[str, Charge]] = {}  # ("pod" or "claim", key) -> tenant, charge

    def set_pod(self, key: Key, holding: PodHolding, tenant: str | None) -> None:
        if self._pods.get(key) != holding:
            self._forget_pod(key)
            self._pods[key] = holding
            self._pod_by_uid[holding.uid] = key
            for _, template in holding.templates:
                self._namers.setdefault((key[0], template), set()).add(key)
        self._charge(("pod", key), tenant, self._of_pod(holding))

    def drop_pod(self, key: Key) -> None:
        self._forget_pod(key)
        self._charge(("pod", key), None, NOTHING)

    def recharge_pods(self, tenant_of: Callable[[str], str | None]) -> None:
        """Owners of namespaces, or what templates weigh, may have changed."""
        for key, holding in self._pods.items():
            self._charge(("pod", key), tenant_of(key[0]), self._of_pod(holding))

    def _forget_pod(self, key: Key) -> None:
        holding = self._pods.pop(key, None)
        if holding is None:
            return
        if self._pod_by_uid.get(holding.uid) == key:
            del self._pod_by_uid[holding.uid]
        for _, template in holding.templates:
            namers = self._namers.get((key[0], template), set())
            namers.discard(key)
            if not namers:
                self._namers.pop((key[0], template), None)

    def set_claim(self, key: Key, claim: Object, owner: Object | None, tenant: str | None, found: ClaimFacts) -> None:
        """`owner` is the Pod that the claim was made for, if any: then it counts with the Pod, however it is named."""
        truth = given_devices(claim)
        if truth is not None:
            truth = self._truths.setdefault(truth, truth)
        entry = None
        if owner is not None:
            entry = (text(owner.get("uid")), text(at(claim, "metadata", "annotations", POD_CLAIM_ANNOTATION)))
        self._replace_entry(key, entry, truth)
        if entry is None:
            self._own_claims[key] = truth
        else:
            self._own_claims.pop(key, None)
        self.recharge_claim(key, tenant, found)

    def drop_claim(self, key: Key) -> None:
        self._replace_entry(key, None, None)
        self._own_claims.pop(key, None)
        self._charge(("claim", key), None, NOTHING)

    def recharge_claim(self, key: Key, tenant: str | None, found: ClaimFacts) -> None:
        """A claim of nobody's own is charged by itself, however many Pods name it, if it can give a gated device."""
        if key not in self._own_claims or not found.reached:
            self._charge(("claim", key), None, NOTHING)
            return
        truth = self._own_claims[key]
        charge = _worst_case(found.spec) if truth is None else self._charge_of_given(truth)
        self._charge(("claim", key), tenant, charge)

    def _replace_entry(self, key: Key, entry: tuple[str, str] | None, truth: Given | None) -> None:
        before = self._claim_entry.pop(key, None)
        if before is not None:
            self._entries[before].pop(key)
            if not self._entries[before]:
                del self._entries[before]
        if entry is not None:
            self._claim_entry[key] = entry
            self._entries.setdefault(entry, {})[key] = truth
        for uid in {changed[0] for changed in (before, entry) if changed is not None}:
            self._recharge(self._pod_by_uid.get(uid))

    def changed(self, template: Key) -> None:
        """A template changed: Pods that name it may weigh differently."""
        for key in self._namers.get(template, ()):
            self._recharge(key)

    def _of_pod(self, holding: PodHolding) -> Charge:
        def charge_of(entry: str, template: str) -> Charge:
            given = self._entries.get((holding.uid, entry))
            if given is None or None in given.values():
                return self._charge_of_template(holding.namespace, template)
            truths = (self._charge_of_given(truth) for truth in given.values() if truth is not None)
            return max(truths, key=lambda charge: charge.devices)

        return held(holding, charge_of)

    def _recharge(self, key: Key | None) -> None:
        before = self._charged.get(("pod", key)) if key is not None else None
        if key is not None and before is not None:
            self._charge(("pod", key), before[0], self._of_pod(self._pods[key]))

    def _charge(self, holder: tuple[str, Key], tenant: str | None, charge: Charge) -> None:
        before = self._charged.get(holder)
        if before == (None if tenant is None else (tenant, charge)):
            return  # most events of a Pod change nothing of this
        if before is not None:
            del self._charged[holder]
            used = self.used[before[0]]
            models = Counter(used.models)
            models.subtract(before[1].models)
            self.used[before[0]] = Charge(used.devices - before[1].devices, +models)
        if tenant is not None:
            self._charged[holder] = (tenant, charge)
            self.used[tenant] = self.used.get(tenant, NOTHING) + charge


def _worst_case(spec: Object) -> Charge:
    try:
        return claim_charge(spec)
    except UnknownAllocationMode:
        return NOTHING  # validate refuses such a claim; one that is there already is the scheduler's to refuse


def _packed(value: object) -> bytes:
    """Small: slices are kept only to be judged again when a class is new."""
    return zlib.compress(msgspec.json.encode(value), 1)


def _unpacked(packed: bytes) -> Object:
    return mapping(msgspec.json.decode(zlib.decompress(packed)))


def _asks_for_extended_resources(pod: Object) -> bool:
    return any(True for container in containers(pod) for _ in extended_resource_names(container))


def _project_pod(pod: Object) -> Object:
    """What charges are made of: names, claim entries and resources. No environment, no secrets, no volumes."""
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    kept: dict[str, Any] = {"resourceClaims": spec.get("resourceClaims")}
    for kind in ("initContainers", "containers"):
        kept[kind] = [
            {"resources": mapping(raw).get("resources"), "restartPolicy": mapping(raw).get("restartPolicy")}
            for raw in sequence(spec.get(kind))
        ]
    return {"metadata": {key: metadata.get(key) for key in ("name", "namespace", "uid")}, "spec": kept}


def _key(obj: Object) -> Key:
    return sys.intern(text(at(obj, "metadata", "namespace"))), text(at(obj, "metadata", "name"))
