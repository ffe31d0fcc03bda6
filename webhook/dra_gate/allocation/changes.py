"""A state that is a little different: other policies, one more node, a device healthy again, something gone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dra_gate.allocation.against import unallocated
from dra_gate.allocation.explain import Explainer
from dra_gate.allocation.podclaims import POD_CLAIM, PodClaim, name_of
from dra_gate.allocation.snapshot import Snapshot, with_objects
from dra_gate.allocation.state import State
from dra_gate.allocation.wanted import policy_of
from dra_gate.kube.pod import claim_entries
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN, compile_template
from dra_gate.policy.model import DevicePolicy, PolicySet


class ChangeError(ValueError):
    """A change is about something that the state does not have; the message names it."""


def with_policies(state: State, policies: Mapping[str, Mapping[str, str]], active: str) -> State:
    """The state with other policies, and its Pods that wait as if they were created under them: with the claims of
    their tenant's policy, for as many devices as before, and that policy's nodes. Raises SnapshotError, ChangeError.
    """
    before, after = Explainer(state), replace(state, policies=policies, active=active)
    policy_set = after.policy_sets()[active]
    claims, pods = list[Object](), list[Object]()
    for pod in before.waiting():
        tenant = policy_set.tenant_of(name_of(pod)[0])
        if tenant is None:
            continue
        new = policy_set.policies[tenant.policy_for(name_of(pod)[0])]
        old: DevicePolicy | None = None
        for claim in before.claims(pod):
            was, _ = policy_of(claim.obj, pod, before.sets, state.active)
            count = text(at(claim.obj, "metadata", "annotations", f"{DOMAIN}/devices"))
            if was is None or not count.isdecimal():
                continue
            if int(count) > new.max_devices:
                raise ChangeError(
                    f"Pod {'/'.join(name_of(pod))} asks for {count} devices, {new.ref} gives {new.max_devices}"
                )
            old = was
            template = compile_template(tenant, new, policy_set.models, int(count))
            claims.append(_renewed(pod, claim, template.spec))
        pods.append(_moved(pod, old, new, policy_set))
    changed = with_objects(state.snapshot, [{**one, "kind": "ResourceClaim"} for one in claims])
    return replace(after, snapshot=with_objects(changed, [{**one, "kind": "Pod"} for one in pods]))


def _renewed(pod: Object, claim: PodClaim, spec: Mapping[str, Any]) -> Object:
    """The claim of the same entry, made from another template."""
    metadata = mapping(at(claim.obj, "metadata")) if claim.made else {}
    uid, name = text(at(pod, "metadata", "uid")), f"{name_of(pod)[1]}-{claim.entry}"
    kept = {"namespace": name_of(pod)[0], "name": name, "uid": f"{uid}-{claim.entry}", **metadata}
    annotations = {**mapping(at(spec, "metadata", "annotations")), POD_CLAIM: claim.entry}
    owners = [{"kind": "Pod", "name": name_of(pod)[1], "uid": uid}]
    labels = mapping(at(spec, "metadata", "labels"))
    return {
        "metadata": {**kept, "labels": labels, "annotations": annotations, "ownerReferences": owners},
        "spec": spec["spec"],
    }


def _moved(pod: Object, old: DevicePolicy | None, new: DevicePolicy, policy_set: PolicySet) -> Object:
    """The Pod with the new policy's nodes in place of the old one's, and its stamp."""
    spec = mapping(pod.get("spec"))
    gone = old.constraints.nodes if old is not None else {}
    selector = {key: value for key, value in mapping(spec.get("nodeSelector")).items() if gone.get(key) != value}
    annotations = {**mapping(at(pod, "metadata", "annotations")), f"{DOMAIN}/policy-set": policy_set.digest}
    return {
        **pod,
        "metadata": {**mapping(pod.get("metadata")), "annotations": annotations},
        "spec": {**spec, "nodeSelector": {**selector, **new.constraints.nodes}},
    }


def with_node_like(state: State, name: str) -> State:
    """The state with one more node: `name` with nothing on it, and devices of its own. Raises ChangeError."""
    snapshot = state.snapshot
    node = next((one for one in snapshot.nodes if name_of(one)[1] == name), None)
    if node is None:
        raise ChangeError(f"there is no node {name}")
    taken = {name_of(one)[1] for one in snapshot.nodes}
    new = next(found for number in range(2, len(taken) + 3) if (found := f"{name}-{number}") not in taken)
    labels = {**mapping(at(node, "metadata", "labels"))}
    if "kubernetes.io/hostname" in labels:
        labels["kubernetes.io/hostname"] = new
    spec = {key: value for key, value in mapping(node.get("spec")).items() if key != "unschedulable"}
    added: list[Object] = [
        {**node, "kind": "Node", "metadata": {"name": new, "uid": new, "labels": labels}, "spec": spec}
    ]
    for one in snapshot.slices:
        if at(one, "spec", "nodeName") == name:
            named = text(at(one, "spec", "pool", "name"))
            pool = {**mapping(at(one, "spec", "pool")), "name": new if named == name else f"{named}-{new}"}
            metadata = {"name": f"{name_of(one)[1]}-{new}", "uid": f"{name_of(one)[1]}-{new}"}
            body = {**mapping(one.get("spec")), "nodeName": new, "pool": pool}
            added.append({"kind": "ResourceSlice", "metadata": metadata, "spec": body})
    return replace(state, snapshot=with_objects(snapshot, added))


def with_healthy(state: State, device: str) -> State:
    """The state without any taint on `pool/device`, from its slice or from rules. Raises ChangeError."""
    pool, _, name = device.partition("/")
    snapshot, found = state.snapshot, False
    rules = [one for one in snapshot.taint_rules if isinstance(at(one, "spec", "deviceSelector"), dict)]
    slices = []
    for one in snapshot.slices:
        spec = mapping(one.get("spec"))
        if text(at(spec, "pool", "name")) != pool:
            slices.append(one)
            continue
        devices = []
        for raw in map(mapping, sequence(spec.get("devices"))):
            mine = raw.get("name") == name
            found |= mine
            # What rules say of the pool's other devices is written on them, since the rules go.
            said = [mapping(at(rule, "spec", "taint")) for rule in rules if _meant(rule, spec, raw)]
            taints = [] if mine else [*sequence(raw.get("taints")), *said]
            devices.append({**raw, "taints": taints})
        slices.append({**one, "spec": {**spec, "devices": devices}})
    if not found:
        raise ChangeError(f"no device {device} is published: write POOL/DEVICE")
    kept = []
    for rule in snapshot.taint_rules:
        selector = at(rule, "spec", "deviceSelector")
        if not isinstance(selector, dict) or selector.get("pool") not in (None, pool):
            kept.append(rule)
        elif selector.get("pool") is None:
            kept += _elsewhere(rule, snapshot, pool)
    return replace(state, snapshot=replace(snapshot, slices=tuple(slices), taint_rules=tuple(kept)))


def _meant(rule: Object, spec: Object, raw: Object) -> bool:
    place = {"driver": spec.get("driver"), "pool": at(spec, "pool", "name"), "device": raw.get("name")}
    selector = mapping(at(rule, "spec", "deviceSelector"))
    return all(selector.get(key) in (None, value) for key, value in place.items())


def _elsewhere(rule: Object, snapshot: Snapshot, pool: str) -> Iterator[Object]:
    """A rule about every pool, as rules about each pool but one."""
    pools = dict.fromkeys(text(at(one, "spec", "pool", "name")) for one in snapshot.slices)
    for name in pools:
        if name != pool:
            selector = {**mapping(at(rule, "spec", "deviceSelector")), "pool": name}
            metadata = {**mapping(rule.get("metadata")), "name": f"{name_of(rule)[1]}-{name}"}
            yield {**rule, "metadata": metadata, "spec": {**mapping(rule.get("spec")), "deviceSelector": selector}}


def without(state: State, what: str) -> State:
    """The state without `node/NAME`, `pod/NAMESPACE/NAME` or `device/POOL/NAME`. Raises ChangeError.

    With a node go its slices and Pods, with a Pod the claims that are its own.
    """
    kind, _, name = what.partition("/")
    snapshot = state.snapshot
    match kind:
        case "node" if any(name_of(one)[1] == name for one in snapshot.nodes):
            gone = {name_of(pod) for pod in snapshot.pods if at(pod, "spec", "nodeName") == name}
            left = _without_pods(snapshot, gone)
            nodes = tuple(one for one in left.nodes if name_of(one)[1] != name)
            slices = tuple(one for one in left.slices if at(one, "spec", "nodeName") != name)
            return replace(state, snapshot=replace(left, nodes=nodes, slices=slices))
        case "pod" if tuple(name.split("/")) in {name_of(pod) for pod in snapshot.pods}:
            namespace, _, pod_name = name.partition("/")
            return replace(state, snapshot=_without_pods(snapshot, {(namespace, pod_name)}))
        case "device":
            pool, _, device = name.partition("/")
            slices = tuple(_without_device(one, pool, device) for one in snapshot.slices)
            if slices != snapshot.slices:
                return replace(state, snapshot=replace(snapshot, slices=slices))
    raise ChangeError(f"there is no {what}: write node/NAME, pod/NAMESPACE/NAME or device/POOL/NAME")


def _without_device(one: Object, pool: str, device: str) -> Object:
    spec = mapping(one.get("spec"))
    if text(at(spec, "pool", "name")) != pool:
        return one
    left = [raw for raw in sequence(spec.get("devices")) if at(raw, "name") != device]
    return {**one, "spec": {**spec, "devices": left}} if len(left) < len(sequence(spec.get("devices"))) else one


def _without_pods(snapshot: Snapshot, gone: set[tuple[str, str]]) -> Snapshot:
    uids = {text(at(pod, "metadata", "uid")) for pod in snapshot.pods if name_of(pod) in gone}
    pods = tuple(pod for pod in snapshot.pods if name_of(pod) not in gone)
    return replace(snapshot, pods=pods, claims=tuple(claim for claim in snapshot.claims if not uids & _owners(claim)))


def _owners(claim: Object) -> set[str]:
    """UIDs of the Pods that it was made for, or else of the one that alone it is reserved for."""
    owners = {
        text(at(one, "uid")) for one in sequence(at(claim, "metadata", "ownerReferences")) if at(one, "kind") == "Pod"
    }
    reserved = [text(at(one, "uid")) for one in sequence(at(claim, "status", "reservedFor"))]
    return owners or (set(reserved) if len(reserved) == 1 else set())


def unplaced(state: State, names: set[tuple[str, str]]) -> State:
    """The state in which these Pods are on no node and their own claims hold nothing."""
    snapshot = state.snapshot
    uids = {text(at(pod, "metadata", "uid")) for pod in snapshot.pods if name_of(pod) in names and claim_entries(pod)}
    pods = tuple(_off_node(pod) if text(at(pod, "metadata", "uid")) in uids else pod for pod in snapshot.pods)
    claims = tuple(unallocated(claim) if uids & _owners(claim) else claim for claim in snapshot.claims)
    return replace(state, snapshot=replace(snapshot, pods=pods, claims=claims))


def _off_node(pod: Object) -> Object:
    return {**pod, "spec": {key: value for key, value in mapping(pod.get("spec")).items() if key != "nodeName"}}
