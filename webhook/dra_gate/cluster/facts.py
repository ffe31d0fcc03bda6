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
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL, ClaimFacts, Facts, LedgerView
from dra_gate.admission.reach import Reach
from dra_gate.admission.rules.quota import charge_of
from dra_gate.admission.sets import PolicySets
from dra_gate.admission.stamp import CANDIDATES, CLAIMS, POLICY, TENANT
from dra_gate.cluster import shapes
from dra_gate.cluster.device_nodes import DeviceNodes
from dra_gate.fairness.charge import NOTHING, Charge, Given, claim_charge, given_charge
from dra_gate.fairness.holdings import Holdings, Scales
from dra_gate.fairness.rules import payer_of
from dra_gate.kube.claim import UnknownAllocationMode
from dra_gate.kube.pod import IMPLICIT_PREFIX, claim_entries, containers, extended_resource_names, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import TemplateIndex, templates_of
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import NO_SWITCH

Key = tuple[str, str]  # namespace (empty for cluster-scoped objects) and name

_STAMP = (POLICY, TENANT, CANDIDATES, CLAIMS)  # as far as charges need it
_SWITCH = ""  # stands among namespaces for the Gate's switch between lanes
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
LEDGERS = "/apis/dra-gate.io/v1alpha1/tenantledgers"  # not before its CRD is installed


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

    Objects may arrive before any set does: they are kept in a form that every set can be judged from. `counting`: what
    tenants without a ledger hold is counted from Pods and claims; a replica goes by ledgers alone. `clock` gives
    seconds that never go back; it only says how long ago labels changed. `now` gives seconds since 1970: on which day
    exceptions end.
    """

    def __init__(
        self,
        policy_set: PolicySet | None = None,
        *,
        writers: Iterable[str] = GATE_WRITERS,
        counting: bool = True,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._writers = frozenset(writers)
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._indexes: dict[str, TemplateIndex] = {}
        self._sets: PolicySets | None = None
        self._switch_before = NO_SWITCH
        self._payer: Callable[[str, str], str | None] = lambda _namespace, _stamped: None
        self._reach = Reach(())
        self._extended_names: dict[str, str] = {}  # class -> its extendedResourceName
        self._class_specs: dict[str, Object] = {}
        self._slices: dict[str, bytes] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._previous_labels: dict[str, Mapping[str, str] | None] = {}
        self._changed: deque[tuple[float, str]] = deque()  # when the lane or mode of which namespace changed
        self._templates: dict[Key, ClaimFacts] = {}
        self._claims: dict[Key, ClaimFacts] = {}
        self._ledgers: dict[str, LedgerView] = {}
        self._counting = counting
        scales = Scales(
            self._tenant, self._charge_of_template, self._charge_of_claim, self._charge_of_given, self._is_device
        )
        self._holdings = Holdings(scales, grace=0)
        self._raw_pods: dict[Key, Object] = {}  # Pods that ask for extended resources, of which some may give devices
        # By digest of the spec: thousands of claims share few specs. No longer than one of them is there: who makes
        # large claims and deletes them would fill our memory.
        self._judgements = WeakValueDictionary[bytes, ClaimFacts]()
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
                ("TenantLedger", self._set_ledger, self._drop_ledger, shapes.TenantLedger),
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
            self._indexes, self._sets, self._payer = indexes, sets, payer_of(sets.all)
            if before is not None and not before.switch.same_lanes(sets.switch):
                self._changed.append((self._clock(), _SWITCH))
                self._switch_before = before.switch
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
        assert self._facts is not None  # noqa: S101 - readiness waits for it
        forgets = self._oldest() + EARLIER_SECONDS < self._clock()
        # Whoever writes may hold the lock for seconds, while classes are judged again: then the next one does it.
        if (forgets or self._facts.day != self._day()) and self._lock.acquire(blocking=False):
            try:
                if forgets:
                    self._forget_earlier()
                self._assemble()
            finally:
                self._lock.release()
        return self._facts

    def _oldest(self) -> float:
        try:
            return self._changed[0][0]
        except IndexError:  # none, or another thread has just taken it out
            return inf

    def sinks(self) -> dict[str, KindSink]:
        """Where reflectors put objects, by the path that they list and watch."""
        paths = {**PATHS, "TenantLedger": LEDGERS}
        return {paths[kind]: sink for kind, sink in self._sinks.items() if self._counting or kind != "Pod"}

    def apply(self, obj: Object) -> bool:
        """Take in one object from a file. False: its kind tells the gate nothing."""
        sink = self._sinks.get(text(obj.get("kind")))
        if sink is None:
            return False
        sink.upsert(obj)
        return True

    def set_used(self, tenant: str, charge: Charge) -> None:
        """What `tenant` holds already, said by the caller; it wins over what the objects say, its ledger included."""
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
        previous = sets.switch
        if any(name == _SWITCH for _, name in self._changed):
            # Who edits the Gate by hand may leave what it says of before as it was.
            previous = self._switch_before if sets.switch_previous.same_lanes(sets.switch) else sets.switch_previous
        self._facts = Facts(
            policy_set=sets.active,
            index=self._indexes[sets.active.digest],
            accepted={s.digest: (s, self._indexes[s.digest]) for s in sets.accepted},
            gate_generation=sets.generation,
            switch=sets.switch,
            switch_previous=previous,
            previous_labels=self._previous_labels,
            writers=self._writers,
            namespaces=self._namespaces,
            device_resources=resources,
            known_classes=frozenset(self._reach.classes),
            templates=self._templates,
            claims=self._claims,
            reached_by=self._reach.frozen().of_new_spec,
            ledgers={name: view for name, view in self._ledgers.items() if name not in self._fixed_used}
            if self._fixed_used
            else self._ledgers,
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
        limit = self._clock() - EARLIER_SECONDS
        while self._oldest() < limit:
            _, name = self._changed.popleft()
            if not any(name == other for _, other in self._changed):
                self._previous_labels.pop(name, None)

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
        if self._class_specs.get(key[1]) == spec:
            return  # a new list has all of them again, and each costs a look at every slice, template and claim
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
        self._judgements.clear()
        for store, path in ((self._templates, ("spec",)), (self._claims, ())):
            for key, facts in list(store.items()):
                store[key] = self._judged(facts.spec, path)
        self._assemble()
        self._device_nodes.judge_again()
        for key, pod in self._raw_pods.items():
            self._holdings.set_pod(key, pod)
        self._holdings.recharge()

    def _judged(self, spec: Object, path: tuple[str, ...]) -> ClaimFacts:
        digest = hashlib.blake2b(msgspec.json.encode([path, spec], order="sorted"), digest_size=20).digest()
        found = self._judgements.get(digest)
        if found is None:
            found = self._judgements[digest] = ClaimFacts(spec, self._reach.of_spec(mapping(at(spec, *path))))
        return found

    def _set_template(self, key: Key, obj: Object) -> None:
        self._templates[key] = self._judged(mapping(obj.get("spec")), ("spec",))
        self._holdings.template_changed(key)

    def _drop_template(self, key: Key) -> None:
        self._templates.pop(key, None)
        self._holdings.template_changed(key)

    def _set_claim(self, key: Key, obj: Object) -> None:
        self._claims[key] = self._judged(mapping(obj.get("spec")), ())
        if self._counting:
            self._holdings.set_claim(key, obj)

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
        self._holdings.set_pod(key, obj)

    def _drop_pod(self, key: Key) -> None:
        self._raw_pods.pop(key, None)
        self._holdings.drop_pod(key)

    def _set_ledger(self, key: Key, obj: Object) -> None:
        status = mapping(obj.get("status"))
        used = Charge(_count(status.get("devices")), _counts(status.get("models")))
        self._ledgers[key[1]] = LedgerView(used, _count(status.get("waiting")), _counts(status.get("largest")))
        if self._fixed_used:
            self._assemble()

    def _drop_ledger(self, key: Key) -> None:
        self._ledgers.pop(key[1], None)
        if self._fixed_used:
            self._assemble()

    def _tenant(self, namespace: str, stamped: str) -> str | None:
        return self._payer(namespace, stamped)

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

    def _charge_of_claim(self, namespace: str, name: str) -> Charge:
        found = self._claims.get((namespace, name))
        return NOTHING if found is None or not found.reached else _worst_case(found.spec)

    def _charge_of_given(self, given: Given) -> Charge:
        found = self._given_charges.get(given)
        if found is None:
            found = self._given_charges[given] = given_charge(given, self._reach.drivers)
        return found


def _worst_case(spec: Object) -> Charge:
    try:
        return claim_charge(spec)
    except UnknownAllocationMode:
        return NOTHING  # validate refuses such a claim; one that is there already is the scheduler's to refuse


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _counts(value: object) -> dict[str, int]:
    return {sys.intern(name): count for name, count in mapping(value).items() if isinstance(count, int)}


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
    kept |= {key: spec.get(key) for key in ("nodeName", "schedulingGates")}
    told = {key: metadata.get(key) for key in ("name", "namespace", "uid", "deletionTimestamp")}
    stamp = {key: value for key, value in mapping(metadata.get("annotations")).items() if key in _STAMP}
    return {"metadata": {**told, "annotations": stamp}, "spec": kept}


def _key(obj: Object) -> Key:
    return sys.intern(text(at(obj, "metadata", "namespace"))), text(at(obj, "metadata", "name"))
