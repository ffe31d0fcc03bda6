"""The label by which lane device-plugin keeps its Pods on nodes with a device plugin."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import at, mapping
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.migration.preflight.pool_labels import separating
from dra_gate.policy.words import some


def _check(cluster: Cluster) -> Iterable[Finding]:
    assert cluster.policy_set is not None  # noqa: S101 - it is read
    wanted = cluster.policy_set.settings.device_plugin_nodes
    if not wanted:
        if cluster.plugin_nodes:
            labels = some([label for label in separating(cluster) if _tells_plugin(label, cluster)])
            yield Finding(
                "warn",
                "ClusterSettings has no devicePluginNodes, so that Pods of lane device-plugin may land on nodes with "
                "slices" + (f"; all nodes with a device plugin have {labels}" if labels else ""),
            )
        return
    meant = {
        name
        for name, node in cluster.nodes.items()
        if wanted.items() <= mapping(at(node, "metadata", "labels")).items()
    }
    if missed := [name for name in cluster.plugin_nodes if name not in meant]:
        yield Finding("warn", "nodes with a device plugin that devicePluginNodes does not mean", tuple(missed))
    if wrong := sorted(meant & cluster.by_slices.keys()):
        yield Finding("warn", "nodes with slices that devicePluginNodes means, too", tuple(wrong))


def _tells_plugin(label: str, cluster: Cluster) -> bool:
    key, _, value = label.partition("=")
    return all(at(cluster.nodes[name], "metadata", "labels", key) == value for name in cluster.plugin_nodes)


CHECK = Check(
    id="plugin-nodes",
    title="lane device-plugin knows its nodes",
    severity="warn",
    remedy="set devicePluginNodes in ClusterSettings to labels that all nodes with a device plugin have and no others",
    reads=("Node", "ResourceSlice", "PolicySet"),
    check=_check,
)
