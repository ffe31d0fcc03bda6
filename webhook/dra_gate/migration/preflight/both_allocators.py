"""A device plugin and a DRA driver that give the same devices."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.words import many, some


def _check(cluster: Cluster) -> Iterable[Finding]:
    """Neither sees what the other has given: NVIDIA/aicr#332, ai-dynamo/dynamo#13536, seen on Kubernetes 1.37.2."""
    for node, by_driver in sorted(cluster.by_slices.items()):
        for driver, count in sorted(by_driver.items()):
            allocatable = {
                resource: number
                for resource, number in cluster.by_plugin.get(node, {}).items()
                if cluster.is_device(resource, driver)
            }
            held = [
                pod
                for pod, resources in cluster.plugin_pods.get(node, {}).items()
                if any(cluster.is_device(resource, driver) for resource in resources)
            ]
            published = f"{many(count, 'device')} of {driver} in slices"
            if allocatable:
                both = ", ".join(f"{number} allocatable {resource}" for resource, number in sorted(allocatable.items()))
                yield Finding("block", f"{both} and {published}: devices are given twice", (node,))
            elif held:
                text = f"{published}, while Pods hold devices of its device plugin: {some(held)}"
                yield Finding("block", text, (node,))


CHECK = Check(
    id="both-allocators",
    title="no node gives its devices by device plugin and by DRA",
    severity="block",
    remedy="take one of the two off the node: cordon it, wait until nothing uses its devices, switch off the device "
    "plugin or the driver's kubelet plugin there (`dra-gate preflight --node NODE --to dra` says when), uncordon it",
    reads=("Node", "ResourceSlice", "Pod"),
    check=_check,
)
