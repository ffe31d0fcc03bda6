"""The Pods that workload objects will make: their Pod templates, as a controller would send them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_gate.kube.raw import Object, at, mapping, text

Path = tuple[str, ...]  # fields; `*` stands for every item of a list or every value of a mapping
_TEMPLATE: Path = ("spec", "template")


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A built-in kind that makes Pods: `owner` is the kind that its Pods name as theirs, `controller` sends them."""

    group: str
    resource: str
    kind: str
    owner: str
    controller: str
    template: Path = _TEMPLATE


BUILT_IN = (
    WorkloadKind("apps", "deployments", "Deployment", "ReplicaSet", "replicaset-controller"),
    WorkloadKind("apps", "replicasets", "ReplicaSet", "ReplicaSet", "replicaset-controller"),
    WorkloadKind("apps", "statefulsets", "StatefulSet", "StatefulSet", "statefulset-controller"),
    WorkloadKind("apps", "daemonsets", "DaemonSet", "DaemonSet", "daemon-set-controller"),
    WorkloadKind("batch", "jobs", "Job", "Job", "job-controller"),
    WorkloadKind("batch", "cronjobs", "CronJob", "Job", "job-controller", ("spec", "jobTemplate", *_TEMPLATE)),
    WorkloadKind(
        "", "replicationcontrollers", "ReplicationController", "ReplicationController", "replication-controller"
    ),
)
_BY_KIND = {kind.kind: kind for kind in BUILT_IN}
CONTROLLER_PREFIX, CONTROLLER_SUFFIX = "system:serviceaccount:kube-system:", "-controller"
CONTROLLER_MANAGER = "system:kube-controller-manager"  # where controllers have no accounts of their own


def senders(owner: str) -> tuple[str, ...]:
    """Who sends the Pods that name a built-in `owner` (a kind) as their controller; none for all other kinds."""
    account = next((CONTROLLER_PREFIX + kind.controller for kind in BUILT_IN if kind.owner == owner), None)
    return () if account is None else (account, CONTROLLER_MANAGER)


def owner_of_pods(kind: str) -> str | None:
    """The kind that the Pods of a built-in workload name as theirs: ReplicaSet for Deployment; None for other kinds."""
    return _BY_KIND[kind].owner if kind in _BY_KIND else None


def pod_of(workload: Object) -> dict[str, Any] | None:
    """A Pod like those that `workload` makes, nameless as at admission; None for a kind that makes none."""
    kind = _BY_KIND.get(text(workload.get("kind")))
    return None if kind is None else pod_from(workload, mapping(at(workload, *kind.template)))


def pod_from(workload: Object, template: Object) -> dict[str, Any]:
    """The Pod that a controller makes of one of the workload's Pod templates."""
    metadata = mapping(template.get("metadata"))
    name = text(at(workload, "metadata", "name")) or text(at(workload, "metadata", "generateName")).rstrip("-")
    pod_metadata: dict[str, Any] = {"generateName": f"{name}-"}
    pod_metadata |= {key: metadata[key] for key in ("labels", "annotations", "finalizers") if key in metadata}
    namespace = text(at(workload, "metadata", "namespace"))
    if namespace:
        pod_metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": template.get("spec")}


def templates(workload: object, path: Path, where: str = "") -> Iterator[tuple[str, Object]]:
    """The Pod templates at `path`, each with its own path, such as `spec.workerGroupSpecs[0].template`."""
    if not path:
        if isinstance(workload, dict):
            yield where, workload
        return
    first, rest = path[0], path[1:]
    dot = "." if where else ""
    if first != "*":
        yield from templates(at(workload, first), rest, f"{where}{dot}{first}")
    elif isinstance(workload, list):
        for index, item in enumerate(workload):
            yield from templates(item, rest, f"{where}[{index}]")
    else:
        for key, value in mapping(workload).items():
            yield from templates(value, rest, f"{where}{dot}{key}")
