"""Taints and tolerations, of nodes and of devices alike (core v1 Toleration, resource.k8s.io/v1 DeviceToleration)."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import Object, mapping, text

BLOCKING = ("NoSchedule", "NoExecute")  # effects that keep away who does not tolerate them


def tolerated(taint: Object, tolerations: Iterable[object]) -> bool:
    """Whether one of `tolerations` is for `taint`."""
    return any(_tolerates(mapping(toleration), taint) for toleration in tolerations)


def _tolerates(toleration: Object, taint: Object) -> bool:
    for name in ("effect", "key"):
        wanted = text(toleration.get(name))
        if wanted and wanted != taint.get(name):
            return False
    operator = text(toleration.get("operator")) or "Equal"
    return operator == "Exists" or (operator == "Equal" and text(toleration.get("value")) == text(taint.get("value")))
