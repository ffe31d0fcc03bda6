"""Labels by which nodes of a model are told: lane device-plugin places by them, order across nodes needs them."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import at, mapping
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.lint import lint


def _check(cluster: Cluster) -> Iterable[Finding]:
    assert cluster.policy_set is not None  # noqa: S101 - it is read
    for found in lint(cluster.policy_set, cluster.published):
        if found.code in ("NO_NODE_LABELS", "NODE_LABELS"):
            yield Finding("warn", found.message)
    models = [model.node_labels for model in cluster.policy_set.models.values() if model.node_labels]
    untold = []
    for node in cluster.plugin_nodes:
        labels = mapping(at(cluster.nodes[node], "metadata", "labels"))
        if not any(all(labels.get(key) in values for key, values in model.items()) for model in models):
            untold.append(node)
    if untold:
        yield Finding("warn", "nodes with a device plugin and the nodeLabels of no model", tuple(untold))


CHECK = Check(
    id="node-labels",
    title="nodes carry the labels of their models",
    severity="warn",
    remedy="have GPU Feature Discovery (or your node groups) label the nodes, and give each model of the catalogue the "
    "nodeLabels that they have: lane device-plugin knows models by nothing else",
    reads=("Node", "ResourceSlice", "PolicySet"),
    check=_check,
)
