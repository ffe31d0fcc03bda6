"""A label that tells nodes with a device plugin from nodes with slices."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import at, mapping
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.words import some

# What is different on any two nodes, or goes by hardware or place, tells the pools apart by chance.
_BY_CHANCE = ("kubernetes.io/hostname", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone")


def separating(cluster: Cluster) -> list[str]:
    """The labels, as `key=value`, that all nodes of one pool have and none of the other; device plugins' first."""
    models = cluster.policy_set.models.values() if cluster.policy_set is not None else ()
    passed = {*_BY_CHANCE, *(label for model in models for label in model.node_labels)}
    pools = [
        [
            {
                f"{key}={value}"
                for key, value in mapping(at(cluster.nodes[name], "metadata", "labels")).items()
                if key not in passed
            }
            for name in names
        ]
        for names in (cluster.plugin_nodes, cluster.dra_nodes)
    ]
    found: list[str] = []
    for own, others in (pools, pools[::-1]) if all(pools) else ():
        found += sorted(set.intersection(*own).difference(*others))
    return found


def _check(cluster: Cluster) -> Iterable[Finding]:
    plugin, dra = cluster.plugin_nodes, cluster.dra_nodes
    if plugin and dra and not separating(cluster):
        yield Finding(
            "block",
            f"no label stands on all nodes with a device plugin ({some(plugin)}) and on none with slices "
            f"({some(dra)}), or the other way round",
        )


CHECK = Check(
    id="pool-labels",
    title="a node label separates the device-plugin pool from the DRA pool",
    severity="block",
    remedy="label the nodes of each pool, in the node group so that new nodes have it too, and have device plugin and "
    "driver select by it",
    reads=("Node", "ResourceSlice"),
    check=_check,
)
