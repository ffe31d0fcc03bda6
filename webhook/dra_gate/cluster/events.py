"""The Events that the gate writes, events.k8s.io/v1."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from dra_gate.allocation.record import NOTE_BYTES, clipped
from dra_gate.cluster.client import Client
from dra_gate.kube.raw import Object

_INSTANCE_LENGTH = 128


def event(
    regarding: Mapping[str, str],
    reason: str,
    action: str,
    note: str,
    *,
    kind: str = "Warning",
    name: str = "",
    part: str = "controller",
    identity: str = "dra-gate",
) -> dict[str, Any]:
    """An Event about an object, in its namespace. With a `name` it can be written once; else the server makes one up.

    `kind` is Warning or Normal; `part` of the gate and `identity` of the process tell it.
    """
    named = {"name": name} if name else {"generateName": "dra-gate-"}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # Those about an object that is in no namespace go to `default`.
        "metadata": {**named, "namespace": regarding.get("namespace", "default")},
        "eventTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": kind,
        "reason": reason,
        "action": action,
        "reportingController": f"dra-gate.io/{part}",
        "reportingInstance": identity[:_INSTANCE_LENGTH],
        "regarding": regarding,
        "note": clipped(note, NOTE_BYTES),
    }


def write_event(client: Client, made: Object, timeout: float | None = None) -> None:
    """Write one. Raises ClusterError, of which Conflict says that there is one of its name."""
    path = f"/apis/events.k8s.io/v1/namespaces/{made['metadata']['namespace']}/events"
    client.create(path, made, timeout=timeout)
