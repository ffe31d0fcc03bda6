"""How a Pod is evicted, and told of: for the loops that do either."""

from __future__ import annotations

from typing import Any

from dra_gate.cluster.client import Client
from dra_gate.cluster.events import event
from dra_gate.cluster.facts import Key


def evict(client: Client, pod: Key, uid: str, version: str) -> None:
    """Evict exactly the Pod that was looked at, as it was.

    Raises Conflict or NotFound for one that has changed or is gone, ApiError with status 429 where a
    PodDisruptionBudget does not allow it now, and what else `Client.create` raises.
    """
    namespace, name = pod
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid, "resourceVersion": version}},
    }
    client.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)


def pod_event(
    pod: Key, uid: str, *, name: str, kind: str, reason: str, action: str, note: str, identity: str
) -> dict[str, Any]:
    """An Event about the Pod, called `name`, of `kind` Normal or Warning; `identity` tells it."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod[0], "name": pod[1], "uid": uid}
    return event(about, reason, action, note, kind=kind, name=name, identity=identity)
