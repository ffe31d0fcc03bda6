"""The facts that decisions read, assembled from objects as they arrive: from reflectors, or from files.

Everything that costs something happens here, when an object changes: judging classes and foreign templates, adding up
charges. A decision only looks things up. One lock orders the writers; it is never held across I/O, and readers take
none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.admission.facts import ClaimFacts, Facts
from dra_gate.admission.reach import Reach
from dra_gate.fairness.charge import NOTHING, Charge, allocated_charge, claim_charge
from dra_gate.fairness.holding import POD_CLAIM_ANNOTATION, PodHolding, held, pod_holding
from dra_gate.kube.claim import UnknownAllocationMode
from dra_gate.kube.pod import IMPLICIT_PREFIX
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import TemplateIndex, templates_of
from dra_gate.policy.model import PolicySet

Key = tuple[str, str]  # namespace (empty for cluster-scoped objects) and name

DRA = "/apis/resource.k8s.io/v1/"
# List and watch paths by kind, in the order in which they are best read: classes before what names them.
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "DeviceClass": DRA + "deviceclasses",
    "ResourceSlice": DRA + "resourceslices",
    "ResourceClaimTemplate": DRA + "resourceclaimtemplates",
    "ResourceClaim": DRA + "resourceclaims",
    "Pod": "/api/v1/pods",
}


class KindSink:
    """The reflector's end of one kind. Knows which keys it has given on, so that a new list drops the rest."""

    def __init__(
        self, upsert: Callable[[Key, Object], None], delete: Callable[[Key], None], lock: threading.Lock
    ) -> None:
        self._upsert = upsert
        self._delete = delete
        self._lock = lock
        self._keys: set[Key] = set()

    def replace(self, objects: Iterable[Object]) -> None:
        """The whole truth at one moment."""
        with self._lock:
            seen = set()
            for obj in objects:
                key = _key(obj)
                seen.add(key)
                self._upsert(key, obj)
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
    """The cluster under one policy set. `writers` are the user names of the gate's own accounts."""

    def __init__(
        self, policy_set: PolicySet, *, gate_generation: int = 0, writers: Iterable[str] = GATE_WRITERS
    ) -> None:
        self._policy_set = policy_set
        self._index: TemplateIndex = templates_of(policy_set)
        self._generation = gate_generation
        self._writers = frozenset(writers)
        self._lock = threading.Lock()
        self._reach = Reach(policy_set.models.values())
        self._extended_names: dict[str, str] = {}  # class -> its extendedResourceName
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._templates: dict[Key, ClaimFacts] = {}
        self._claims: dict[Key, ClaimFacts] = {}
        self._holdings = _Holdings(self._charge_of_template)
        self._pods: dict[Key, Object] = {}
        self._fixed_used: dict[str, Charge] = {}
        self._sinks = {
            "Namespace": self._sink(self._set_namespace, lambda key: self._namespaces.pop(key[1], None)),
            "DeviceClass": self._sink(self._set_class, self._drop_class),
            "ResourceSlice": self._sink(self._set_slice, lambda key: self._reach.drop_slice(key[1])),
            "ResourceClaimTemplate": self._sink(self._set_template, self._drop_template),
            "ResourceClaim": self._sink(self._set_claim, self._drop_claim),
            "Pod": self._sink(self._set_pod, self._drop_pod),
        }
        self._facts = self._assemble()

    def facts(self) -> Facts:
        """The facts of this moment: its mappings go on changing as objects arrive."""
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
            self._facts = self._assemble()

    # Each method below runs with the lock held.

    def _sink(self, upsert: Callable[[Key, Object], None], delete: Callable[[Key], object]) -> KindSink:
        return KindSink(upsert, lambda key: (delete(key), None)[1], self._lock)

    def _assemble(self) -> Facts:
        resources: dict[str, str] = {}
        for name in self._reach.gated:
            resources[IMPLICIT_PREFIX + name] = name
            if self._extended_names.get(name):
                resources[self._extended_names[name]] = name
        for policy in self._policy_set.policies.values():
            for name in policy.serves:
                resources.setdefault(name, self._policy_set.models[policy.candidates[0]].device_class)
        return Facts(
            policy_set=self._policy_set,
            index=self._index,
            gate_generation=self._generation,
            writers=self._writers,
            namespaces=self._namespaces,
            device_resources=resources,
            known_classes=frozenset(self._reach.classes),
            templates=self._templates,
            claims=self._claims,
            used={**self._holdings.used, **self._fixed_used} if self._fixed_used else self._holdings.used,
        )

    def _is_device(self, resource: str) -> bool:
        return resource in self._facts.device_resources

    def _set_namespace(self, key: Key, obj: Object) -> None:
        self._namespaces[key[1]] = mapping(at(obj, "metadata", "labels"))

    def _set_class(self, key: Key, obj: Object) -> None:
        spec = mapping(obj.get("spec"))
        self._extended_names[key[1]] = text(spec.get("extendedResourceName"))
        self._reach.set_class(key[1], spec)
        self._judge_again()

    def _drop_class(self, key: Key) -> None:
        self._extended_names.pop(key[1], None)
        self._reach.drop_class(key[1])
        self._judge_again()

    def _set_slice(self, key: Key, obj: Object) -> None:
        if self._reach.set_slice(key[1], mapping(obj.get("spec"))):
            self._judge_again()

    def _judge_again(self) -> None:
        """What can be reached has changed. Classes come and go rarely: all that hangs on them is done anew."""
        for store, path in ((self._templates, ("spec",)), (self._claims, ())):
            for key, facts in list(store.items()):
                store[key] = ClaimFacts(facts.spec, self._reach.of_spec(mapping(at(facts.spec, *path))))
        self._facts = self._assemble()
        for key, pod in self._pods.items():
            self._hold(key, pod)

    def _set_template(self, key: Key, obj: Object) -> None:
        spec = mapping(obj.get("spec"))
        self._templates[key] = ClaimFacts(spec, self._reach.of_spec(mapping(spec.get("spec"))))
        self._holdings.changed(key[0])

    def _drop_template(self, key: Key) -> None:
        self._templates.pop(key, None)

    def _set_claim(self, key: Key, obj: Object) -> None:
        spec = mapping(obj.get("spec"))
        found = self._claims[key] = ClaimFacts(spec, self._reach.of_spec(spec))
        self._holdings.set_claim(key, obj, self._tenant(key[0]), gated=bool(found.reached))

    def _drop_claim(self, key: Key) -> None:
        self._claims.pop(key, None)
        self._holdings.drop_claim(key)

    def _set_pod(self, key: Key, obj: Object) -> None:
        if self._tenant(key[0]) is None:
            return
        projected = _project_pod(obj)
        self._pods[key] = projected
        self._hold(key, projected)

    def _hold(self, key: Key, pod: Object) -> None:
        self._holdings.set_pod(key, pod_holding(pod, self._is_device), self._tenant(key[0]))

    def _drop_pod(self, key: Key) -> None:
        if self._pods.pop(key, None) is not None:
            self._holdings.drop_pod(key)

    def _tenant(self, namespace: str) -> str | None:
        return self._policy_set.tenant_by_namespace.get(namespace)

    def _charge_of_template(self, namespace: str, name: str) -> Charge:
        """The worst case of a claim from the named template; nothing for one that gives no gated device."""
        tenant = self._tenant(namespace)
        compiled = self._index.by_name(tenant, name) if tenant is not None else None
        if compiled is not None:
            return claim_charge(mapping(compiled.spec.get("spec")))
        found = self._templates.get((namespace, name))
        if found is None or not found.reached:
            return NOTHING
        return _worst_case(mapping(found.spec.get("spec")))


class _Holdings:
    """Charges by tenant, kept up to date one Pod and one claim at a time."""

    def __init__(self, charge_of_template: Callable[[str, str], Charge]) -> None:
        self.used: dict[str, Charge] = {}
        self._charge_of_template = charge_of_template
        self._pods: dict[Key, PodHolding] = {}
        self._pod_by_uid: dict[str, Key] = {}
        self._entries: dict[tuple[str, str], Charge] = {}  # (Pod UID, claim entry) -> what its claim was given
        self._claim_entry: dict[Key, tuple[str, str]] = {}  # generated claims -> (Pod UID, claim entry)
        self._charged: dict[tuple[str, Key], tuple[str, Charge]] = {}  # ("pod" or "claim", key) -> tenant, charge

    def set_pod(self, key: Key, holding: PodHolding, tenant: str | None) -> None:
        self._pods[key] = holding
        self._pod_by_uid[holding.uid] = key
        if tenant is not None:
            self._charge(("pod", key), tenant, self._of_pod(holding))

    def drop_pod(self, key: Key) -> None:
        holding = self._pods.pop(key, None)
        if holding is not None:
            self._pod_by_uid.pop(holding.uid, None)
        self._release(("pod", key))

    def set_claim(self, key: Key, claim: Object, tenant: str | None, *, gated: bool) -> None:
        owner = next(
            (
                mapping(ref)
                for ref in sequence(at(claim, "metadata", "ownerReferences"))
                if mapping(ref).get("kind") == "Pod"
            ),
            None,
        )
        truth = allocated_charge(claim)
        if owner is None:
            # Nobody's own: a claim that people made, charged by itself however many Pods name it.
            if tenant is not None and gated:
                self._charge(("claim", key), tenant, truth or _worst_case(mapping(claim.get("spec"))))
            return
        entry = (text(owner.get("uid")), text(at(claim, "metadata", "annotations", POD_CLAIM_ANNOTATION)))
        self._claim_entry[key] = entry
        if truth is None:
            self._entries.pop(entry, None)
        else:
            self._entries[entry] = truth
        self._recharge(entry[0])

    def drop_claim(self, key: Key) -> None:
        entry = self._claim_entry.pop(key, None)
        if entry is not None and self._entries.pop(entry, None) is not None:
            self._recharge(entry[0])
        self._release(("claim", key))

    def changed(self, namespace: str) -> None:
        """A template of `namespace` changed: Pods that name it may weigh differently."""
        for key, holding in self._pods.items():
            if key[0] == namespace and holding.templates:
                self._recharge(holding.uid)

    def _of_pod(self, holding: PodHolding) -> Charge:
        def charge_of(entry: str, template: str) -> Charge:
            truth = self._entries.get((holding.uid, entry))
            return self._charge_of_template(holding.namespace, template) if truth is None else truth

        return held(holding, charge_of)

    def _recharge(self, uid: str) -> None:
        key = self._pod_by_uid.get(uid)
        before = self._charged.get(("pod", key)) if key is not None else None
        if key is not None and before is not None:
            self._charge(("pod", key), before[0], self._of_pod(self._pods[key]))

    def _charge(self, holder: tuple[str, Key], tenant: str, charge: Charge) -> None:
        self._release(holder)
        self._charged[holder] = (tenant, charge)
        self.used[tenant] = self.used.get(tenant, NOTHING) + charge

    def _release(self, holder: tuple[str, Key]) -> None:
        before = self._charged.pop(holder, None)
        if before is not None:
            tenant, charge = before
            models = Counter(self.used[tenant].models)
            models.subtract(charge.models)
            self.used[tenant] = Charge(self.used[tenant].devices - charge.devices, +models)


def _worst_case(spec: Object) -> Charge:
    try:
        return claim_charge(spec)
    except UnknownAllocationMode:
        return NOTHING  # validate refuses such a claim; one that is there already is the scheduler's to refuse


def _project_pod(pod: Object) -> Object:
    """What charges are made of: names, phase, claim entries and resources. No environment, no secrets, no volumes."""
    metadata = mapping(pod.get("metadata"))
    spec = mapping(pod.get("spec"))
    kept: dict[str, Any] = {"resourceClaims": spec.get("resourceClaims")}
    for kind in ("initContainers", "containers"):
        kept[kind] = [
            {"resources": mapping(raw).get("resources"), "restartPolicy": mapping(raw).get("restartPolicy")}
            for raw in sequence(spec.get(kind))
        ]
    return {
        "metadata": {key: metadata.get(key) for key in ("name", "namespace", "uid")},
        "spec": kept,
        "status": {"phase": at(pod, "status", "phase")},
    }


def _key(obj: Object) -> Key:
    return text(at(obj, "metadata", "namespace")), text(at(obj, "metadata", "name"))
