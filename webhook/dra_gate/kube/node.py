"""Whether a Node takes Pods."""

from __future__ import annotations

from dra_gate.kube.raw import Object, at, mapping, sequence


def node_problem(node: Object) -> str:
    """Why it takes no new Pods: `not ready`, so also one that does not say, or `cordoned`; empty where it does."""
    conditions = (mapping(one) for one in sequence(at(node, "status", "conditions")))
    if not any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions):
        return "not ready"
    return "cordoned" if at(node, "spec", "unschedulable") is True else ""
