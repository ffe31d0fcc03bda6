"""The invariants that hold for every mutation (README of the cases), checked on the object before and after."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch

from cases import harness
from dra_gate.kube.quantity import Quantity

GATED = "nvidia.com/gpu"
DOMAIN = "dra-gate.io/"
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def all_containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"].get("containers", [])]


def applied(before: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """Invariant 8: the patch applies with a strict RFC 6902 library."""
    result: dict[str, Any] = jsonpatch.JsonPatch(operations).apply(copy.deepcopy(before))
    return result


def check(before: dict[str, Any], after: dict[str, Any], *, only_annotations: bool = False) -> None:
    _no_raw_request_left(after)
    _claims_well_formed(before, after)
    _nothing_else_changed(before, after, only_annotations=only_annotations)


def _no_raw_request_left(after: dict[str, Any]) -> None:
    for container in all_containers(after):
        for kind in ("limits", "requests"):
            for name, value in (container.get("resources", {}).get(kind) or {}).items():
                if name == GATED or name.startswith("deviceclass.resource.kubernetes.io/gpu.nvidia.com"):
                    assert Quantity.parse(value).whole() == 0, f"{container['name']} still asks for {name}"


def _claims_well_formed(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = before["spec"].get("resourceClaims", []), after["spec"].get("resourceClaims", [])
    assert new[: len(old)] == old, "existing claim entries stay, in place and in order"
    names = [entry["name"] for entry in new]
    assert len(set(names)) == len(names)
    for was, now in zip(all_containers(before), all_containers(after), strict=True):
        old_refs, new_refs = was.get("resources", {}).get("claims", []), now.get("resources", {}).get("claims", [])
        assert new_refs[: len(old_refs)] == old_refs
        pairs = [(ref["name"], ref.get("request")) for ref in new_refs]
        assert len(set(pairs)) == len(pairs)
        for name in {name for name, _ in pairs}:
            requests = [request for other, request in pairs if other == name]
            assert len(requests) == 1 or None not in requests, "a claim is listed twice"
        assert all(ref["name"] in names for ref in new_refs)


def _nothing_else_changed(before: dict[str, Any], after: dict[str, Any], *, only_annotations: bool) -> None:
    """Invariant 7: take away what the gate may add, and the objects are equal."""
    was, now = copy.deepcopy(before), copy.deepcopy(after)
    for pod in (was, now):
        annotations = pod["metadata"].get("annotations") or {}
        for key in [key for key in annotations if key.startswith(DOMAIN)]:
            assert isinstance(annotations[key], str)
            del annotations[key]
        # Absent, null and empty are one: the gate makes the parent where it is missing.
        if not annotations:
            pod["metadata"].pop("annotations", None)
    _strip_gate(was["spec"], now["spec"])
    if not only_annotations:
        _strip_additions(was, now)
    assert now == was


def _strip_additions(was: dict[str, Any], now: dict[str, Any]) -> None:
    spec, old = now["spec"], was["spec"]
    _keep_first(spec, "resourceClaims", len(old.get("resourceClaims", [])), "resourceClaims" in old)
    _keep_first(spec, "tolerations", len(old.get("tolerations", [])), "tolerations" in old)
    for container, previous in zip(all_containers(now), all_containers(was), strict=True):
        resources, earlier = container.get("resources", {}), previous.get("resources", {})
        _keep_first(resources, "claims", len(earlier.get("claims", [])), "claims" in earlier)
        for kind in ("limits", "requests"):
            for source in (resources.get(kind) or {}, earlier.get(kind) or {}):
                for name in [name for name in source if name.startswith(("nvidia.com/", "deviceclass."))]:
                    del source[name]
        if not resources and "resources" not in previous:
            container.pop("resources", None)
        _strip_void(container, previous)
    _strip_affinity(spec, old)
    selector = spec.get("nodeSelector", {})
    for label in [label for label in selector if label not in old.get("nodeSelector", {})]:
        del selector[label]
    if not selector and "nodeSelector" not in old:
        spec.pop("nodeSelector", None)


def _strip_gate(old: dict[str, Any], spec: dict[str, Any]) -> None:
    """The gate's scheduling gate is a mark of its own, like its annotations."""
    key, count = "schedulingGates", len(old.get("schedulingGates") or [])
    added = (spec.get(key) or [])[count:]
    if added:
        assert added == [{"name": f"{DOMAIN}grant"}]
        assert added[0] not in (old.get(key) or [])
        spec[key] = spec[key][:count]
        _as_it_was(spec, {key: old[key]} if key in old else {}, key, empty=[])


def _strip_void(container: dict[str, Any], previous: dict[str, Any]) -> None:
    """`NVIDIA_VISIBLE_DEVICES=void` may go on, last, where the container did not name the variable."""
    env, earlier = container.get("env"), previous.get("env")
    if env == earlier:
        return
    assert env == [*(earlier or []), VOID]
    assert VOID["name"] not in [item.get("name") for item in earlier or [] if isinstance(item, dict)]
    container["env"] = earlier
    if "env" not in previous:
        del container["env"]


def _strip_affinity(spec: dict[str, Any], old: dict[str, Any]) -> None:
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = spec.get("affinity")
    if not affinity:
        return
    earlier = old.get("affinity") or {}
    node, earlier_node = affinity.get("nodeAffinity"), earlier.get("nodeAffinity") or {}
    if node:
        _keep_first(node, key, len(earlier_node.get(key, [])), key in earlier_node)
    _as_it_was(affinity, earlier, "nodeAffinity")
    _as_it_was(spec, old, "affinity")


def _as_it_was(holder: dict[str, Any], earlier: dict[str, Any], key: str, empty: Any = None) -> None:
    """A parent that the gate made, now empty again, was absent or null before."""
    if holder.get(key) == (empty if empty is not None else {}) and not earlier.get(key):
        if key in earlier:
            holder[key] = earlier[key]
        else:
            del holder[key]


def _keep_first(holder: dict[str, Any], key: str, count: int, existed: bool) -> None:
    if key in holder:
        holder[key] = holder[key][:count]
        if not existed:
            del holder[key]


def entries_seen(pod: dict[str, Any]) -> dict[str, dict[str, int]]:
    """By container: the claim entries of the tenant's templates that it sees, and the devices of each."""
    counts = {}
    for entry in pod["spec"].get("resourceClaims", []):
        template = harness.index().by_name(harness.TENANT, entry.get("resourceClaimTemplateName", ""))
        if template is not None:
            counts[entry["name"]] = template.count
    return {
        container["name"]: {
            ref["name"]: counts[ref["name"]]
            for ref in container.get("resources", {}).get("claims", [])
            if ref["name"] in counts
        }
        for container in all_containers(pod)
    }
