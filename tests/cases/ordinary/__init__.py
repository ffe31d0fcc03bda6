"""Ordinary Pods: what clusters run that has nothing to do with devices, as the API server would send it to a webhook.

Archetypes and their variations are data beside this file; a Pod is made of each pair, always the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
Object = dict[str, Any]

_CONTROLLERS = {
    "ReplicaSet": "replicaset-controller",
    "StatefulSet": "statefulset-controller",
    "DaemonSet": "daemon-set-controller",
    "Job": "job-controller",
}
_NOT_READY = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
    for key in ("not-ready", "unreachable")
]
# As the ServiceAccount admission plugin adds it, unless the Pod says no.
_TOKEN: Object = {
    "name": "kube-api-access-x7k2p",
    "projected": {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ],
    },
}
_TOKEN_MOUNT = {"name": _TOKEN["name"], "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}


@dataclass(frozen=True, slots=True)
class Ordinary:
    """One Pod: who sends it, and by which signs the API server would ask the gate about it all the same."""

    archetype: str
    variation: str
    user: str
    asks: tuple[str, ...]
    pod: Object


def corpus() -> Iterator[Ordinary]:
    """Every archetype in each of its variations."""
    variations: dict[str, Object] = yaml.safe_load((HERE / "variations.yaml").read_text())
    for one in yaml.safe_load((HERE / "archetypes.yaml").read_text()):
        for variation in one["variations"]:
            pod = _pod(one["name"], one["kind"], one["spec"], variations[variation])
            controller = _CONTROLLERS.get(one["kind"])
            user = f"system:serviceaccount:kube-system:{controller}" if controller else "ada@fern.example"
            yield Ordinary(one["name"], variation, user, tuple(one.get("asks", ())), pod)


def _pod(name: str, kind: str, spec: Object, variation: Object) -> Object:
    metadata: Object = {"generateName": f"{name}-", "labels": {"app": name, "pod-template-hash": "6c5b4d7f9"}}
    if kind in _CONTROLLERS:
        owner = {"apiVersion": "batch/v1" if kind == "Job" else "apps/v1", "kind": kind, "name": name, "uid": "u-1"}
        metadata["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    if kind == "StatefulSet":
        metadata = {"name": f"{name}-0", **{key: value for key, value in metadata.items() if key != "generateName"}}
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(spec)}
    for part in ("metadata", "spec"):
        pod[part] = _merged(pod[part], variation.get(part, {}))
    if kind == "DaemonSet":
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]}
        required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        pod["spec"] = _merged(pod["spec"], {"affinity": required})
    pod["spec"] = {"serviceAccountName": "default"} | _merged(pod["spec"], {"tolerations": _NOT_READY, "volumes": []})
    token = pod["spec"].get("automountServiceAccountToken", True)
    each = _merged(variation.get("each", {}), {"volumeMounts": [_TOKEN_MOUNT]} if token else {})
    if token:
        pod["spec"]["volumes"].append(copy.deepcopy(_TOKEN))
    for field in ("initContainers", "containers"):
        if field in pod["spec"]:
            pod["spec"][field] = [_merged(container, each) for container in pod["spec"][field]]
    return pod


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: _merged(one[key], value) if key in one else value for key, value in other.items()}}
    return [*one, *other] if isinstance(one, list) and isinstance(other, list) else copy.deepcopy(other)
