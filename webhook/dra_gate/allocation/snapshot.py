"""What an allocation depends on, as one value: the objects that kube-scheduler's allocator reads, and what judges them.

Only fields that matter for a choice, or for saying why, are kept: no environment, images, commands or opaque
configuration, and of annotations only those of devices and groups. The same objects give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from dra_gate.allocation.fit import VOLUMES
from dra_gate.kube.group import GROUPS
from dra_gate.kube.raw import Object, at, mapping, sequence, text

API_VERSION: Final = "snapshot.dra-gate.io/v1alpha1"
_DOMAINS: Final = ("dra-gate.io/", "resource.kubernetes.io/", *GROUPS)  # whose annotations are kept


class SnapshotError(ValueError):
    """The bytes are no snapshot that this version reads."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the scheduler's allocator reads: raw JSON, projected to the fields that matter.

    `version` is that of Kubernetes ("v1.37.2"), `gates` the feature gates that differ from that version's defaults.
    Objects of a kind are in the order of namespace and name.
    """

    version: str
    gates: Mapping[str, bool] = field(default_factory=dict)
    nodes: tuple[Object, ...] = ()
    slices: tuple[Object, ...] = ()
    classes: tuple[Object, ...] = ()
    taint_rules: tuple[Object, ...] = ()
    claims: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()


def snapshot_of(objects: Iterable[Object], *, version: str, gates: Mapping[str, bool] | None = None) -> Snapshot:
    """The snapshot of `objects`, told apart by `kind`; other kinds are passed over.

    `version` may be what `/version` calls gitVersion. Parts of the objects are shared, not copied.
    """
    kinds: dict[str, list[Object]] = {name: [] for name, _ in _KINDS.values()}
    for item in objects:
        name, projection = _KINDS.get(text(item.get("kind")), ("", None))
        if projection is not None:
            kinds[name].append(projection(item))
    found = {name: tuple(sorted(listed, key=_place)) for name, listed in kinds.items()}
    return Snapshot(version, dict(gates or {}), **found)


def with_objects(snapshot: Snapshot, objects: Iterable[Object]) -> Snapshot:
    """`snapshot` with `objects` in it, each in place of the one of its kind, namespace and name if there is one."""
    added = snapshot_of(objects, version=snapshot.version)
    changed: dict[str, Any] = {}
    for name, _ in _KINDS.values():
        merged = {_place(item): item for item in (*getattr(snapshot, name), *getattr(added, name))}
        changed[name] = tuple(merged[place] for place in sorted(merged))
    return replace(snapshot, **changed)


def dumps(snapshot: Snapshot) -> bytes:
    """The one canonical JSON of a snapshot: keys sorted, no space."""
    body = {"apiVersion": API_VERSION, "version": snapshot.version, "gates": snapshot.gates}
    body |= {name: getattr(snapshot, name) for name, _ in _KINDS.values()}
    return msgspec.json.encode(body, order="sorted")


def loads(data: bytes) -> Snapshot:
    """What `dumps` wrote. Raises SnapshotError for anything else, and for another version of the format."""
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise SnapshotError(f"no JSON: {error}") from error
    if at(body, "apiVersion") != API_VERSION:
        raise SnapshotError(f"apiVersion is {at(body, 'apiVersion')!r}, this version reads {API_VERSION}")
    gates = {name: value for name, value in mapping(body.get("gates")).items() if isinstance(value, bool)}
    kinds = {name: tuple(map(mapping, sequence(body.get(name)))) for name, _ in _KINDS.values()}
    return Snapshot(text(body.get("version")), gates, **kinds)


def _place(item: Object) -> tuple[str, str]:
    return text(at(item, "metadata", "namespace")), text(at(item, "metadata", "name"))


def _only(source: object, *names: str) -> dict[str, Any]:
    """The fields of those names that are there."""
    found = mapping(source)
    return {name: found[name] for name in names if found.get(name) is not None}


def _metadata(item: Object, *more: str) -> dict[str, Any]:
    return _only(item.get("metadata"), "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", *more)


def _annotated(item: Object) -> dict[str, Any]:
    """Metadata of a Pod or a claim: whose it is, and what devices have to do with it."""
    metadata = _metadata(item, "generation", "labels", "ownerReferences")
    annotations = mapping(at(item, "metadata", "annotations"))
    kept = {name: value for name, value in annotations.items() if name.startswith(_DOMAINS)}
    return metadata | ({"annotations": kept} if kept else {})


def _node(item: Object) -> Object:
    status = item.get("status")
    ready = [
        _only(condition, "type", "status", "reason", "lastTransitionTime")
        for condition in sequence(at(status, "conditions"))
        if at(condition, "type") == "Ready"
    ]
    return {
        "metadata": _metadata(item, "labels"),
        "spec": _only(item.get("spec"), "unschedulable", "taints"),
        "status": _only(status, "allocatable") | ({"conditions": ready} if ready else {}),
    }


def _slice(item: Object) -> Object:
    return {"metadata": _metadata(item, "generation"), "spec": mapping(item.get("spec"))}


def _class(item: Object) -> Object:
    return {"metadata": _metadata(item), "spec": _only(item.get("spec"), "selectors", "extendedResourceName")}


def _rule(item: Object) -> Object:
    return {"metadata": _metadata(item), "spec": mapping(item.get("spec"))}


def _claim(item: Object) -> Object:
    allocation = at(item, "status", "allocation")
    status = _only(item.get("status"), "reservedFor")
    if isinstance(allocation, dict):
        results = _only(allocation.get("devices"), "results")
        status["allocation"] = _only(allocation, "nodeSelector", "allocationTimestamp") | {"devices": results}
    devices = _only(at(item, "spec", "devices"), "requests", "constraints")
    return {"metadata": _annotated(item), "spec": {"devices": devices}, "status": status}


def _container(item: object) -> Object:
    ports = [_only(port, "hostPort", "protocol") for port in sequence(at(item, "ports")) if at(port, "hostPort")]
    return _only(item, "name", "resources", "restartPolicy") | ({"ports": ports} if ports else {})


def _pod(item: Object) -> Object:
    spec = _only(
        item.get("spec"),
        *("nodeName", "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName"),
        *("schedulingGates", "resourceClaims", "overhead", "priority", "priorityClassName", "resources"),
    )
    for name in ("containers", "initContainers"):
        listed = sequence(at(item, "spec", name))
        if listed:
            spec[name] = [_container(container) for container in listed]
    # That there are volumes which bind a Pod to nodes, and of what kind; not which.
    kinds = [kind for volume in sequence(at(item, "spec", "volumes")) for kind in VOLUMES if kind in mapping(volume)]
    if kinds:
        spec["volumes"] = [{kind: {}} for kind in kinds]
    status = _only(
        item.get("status"),
        *("phase", "reason", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus", "nominatedNodeName"),
    )
    return {"metadata": _annotated(item), "spec": spec, "status": status}


_Projection = Callable[[Object], Object]
_KINDS: Final[dict[str, tuple[str, _Projection]]] = {
    "Node": ("nodes", _node),
    "ResourceSlice": ("slices", _slice),
    "DeviceClass": ("classes", _class),
    "DeviceTaintRule": ("taint_rules", _rule),
    "ResourceClaim": ("claims", _claim),
    "Pod": ("pods", _pod),
}
