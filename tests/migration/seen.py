"""Pods and claims as a controller sees them, constructed, for counting."""

from __future__ import annotations

from typing import Any

from dra_gate.kube.times import rfc3339
from migration.simulated import START

UID = "11111111-2222-3333-4444-555555555555"


def at(seconds: float) -> str:
    """A time so long after START, as Kubernetes writes it."""
    return rfc3339(START + int(1000 * seconds), whole=True)


def pod(
    *,
    uid: str = UID,
    lane: str = "dra",
    created: float = 0,
    bound: float | None = None,
    version: int = 1,
    devices: int = 2,
    namespace: str = "lilac",
    metadata: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A Pod; with lane "dra" or "device-plugin" stamped so, with "" it only asks for devices."""
    annotations = {
        "dra-gate.io/lane": lane,
        "dra-gate.io/tenant": "lilac",
        "dra-gate.io/devices": str(devices),
        "dra-gate.io/candidates": "h100,a100",
        "dra-gate.io/policy": "train",
        "dra-gate.io/policy-version": "1",
    }
    container: dict[str, Any] = {"name": "c", "resources": {}}
    if lane != "dra":
        container["resources"] = {"limits": {"nvidia.com/gpu": str(devices), "cpu": "1"}}
    conditions = status.pop("conditions", [])
    if bound is not None:
        conditions = [*conditions, {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(bound)}]
    return {
        "metadata": {
            "name": "p",
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": at(created),
            "annotations": annotations if lane else {},
            **(metadata or {}),
        },
        "spec": {"containers": [container], **({"nodeName": "n1"} if bound is not None else {})},
        "status": {"phase": "Pending", "conditions": conditions, **status},
    }


def running(since: float, **more: Any) -> list[dict[str, Any]]:
    """Container statuses of a Pod whose container runs since then."""
    return [{"name": "c", "restartCount": 0, "state": {"running": {"startedAt": at(since)}}, **more}]


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    """Of one that doesn't."""
    return [{"name": "c", "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]


def ended(since: float, until: float, code: int = 0) -> dict[str, Any]:
    """A container's state after it ended."""
    reason = "Error" if code else "Completed"
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": at(since), "finishedAt": at(until)}}


def claim(model: str, *, uid: str = UID, version: int = 1, name: str = "claim", **more: Any) -> dict[str, Any]:
    """A claim of a policy that the Pod has reserved; an empty model: of the only alternative."""
    request = f"gpu/{model}" if model else "gpu"
    result = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "request": request}
    return {
        "metadata": {
            "name": name,
            "uid": f"{name}-{uid}",
            "resourceVersion": str(version),
            "labels": {"dra-gate.io/policy": "train"},
            **more,
        },
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"uid": uid}]},
    }
