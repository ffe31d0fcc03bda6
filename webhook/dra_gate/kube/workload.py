"""The Pods that workload objects will make: their Pod template, as the controller would send it."""

from __future__ import annotations

from typing import Any

from dra_gate.kube.raw import Object, at, mapping, text

# Kind -> where its Pod template stands.
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


def pod_of(workload: Object) -> dict[str, Any] | None:
    """A Pod like those that `workload` makes, nameless as at admission; None for a kind that makes none."""
    path = _TEMPLATES.get(text(workload.get("kind")))
    if path is None:
        return None
    template = mapping(at(workload, *path))
    metadata = mapping(template.get("metadata"))
    name = text(at(workload, "metadata", "name")) or text(at(workload, "metadata", "generateName")).rstrip("-")
    pod_metadata: dict[str, Any] = {"generateName": f"{name}-"}
    pod_metadata |= {key: metadata[key] for key in ("labels", "annotations", "finalizers") if key in metadata}
    namespace = text(at(workload, "metadata", "namespace"))
    if namespace:
        pod_metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": template.get("spec")}
