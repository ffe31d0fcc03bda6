"""Pods of namespaces that are not gated, on nodes of the DRA pool."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import Object, at, mapping, sequence
from dra_gate.kube.taint import BLOCKING
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster


def _check(cluster: Cluster) -> Iterable[Finding]:
    """KEP-5004. A taint with the resource's own name keeps nobody off: ExtendedResourceToleration tolerates it."""
    if not cluster.names_count:
        return
    for resource, classes in sorted(cluster.names.items()):
        if not cluster.is_device(resource):
            continue
        reached = tuple(
            node
            for node in cluster.dra_nodes
            if any(cluster.is_device(resource, driver) for driver in cluster.by_slices[node])
            and not _fenced(cluster.nodes[node], resource)
        )
        if reached:
            yield Finding(
                "block" if cluster.plugin_nodes else "warn",
                f"class {classes[0]} has extendedResourceName {resource}: Pods of namespaces that are not gated ask "
                "for it and get devices here by a claim that kube-scheduler makes, past every policy",
                reached,
            )


def _fenced(node: Object, resource: str) -> bool:
    taints = map(mapping, sequence(at(node, "spec", "taints")))
    return any(taint.get("effect") in BLOCKING and taint.get("key") != resource for taint in taints)


CHECK = Check(
    id="slips-through",
    title="Pods that are not gated get no devices of the DRA pool",
    severity="block",
    remedy="take extendedResourceName off the class, or have the other namespaces' Pods require nodes with a device "
    "plugin; once every node is DRA, gate the namespaces that are left",
    reads=("Node", "ResourceSlice", "DeviceClass"),
    check=_check,
)
