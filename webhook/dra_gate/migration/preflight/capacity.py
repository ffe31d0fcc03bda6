"""Devices left on both sides: to go to, and to go back to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dra_gate.kube.node import node_problem
from dra_gate.kube.raw import at, sequence
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.lint import offered
from dra_gate.policy.published import published_devices
from dra_gate.policy.words import many


def _check(cluster: Cluster) -> Iterable[Finding]:
    snapshot = cluster.state.snapshot
    devices, _ = published_devices(snapshot.slices, cluster.nodes, snapshot.taint_rules)
    own = [one for one in devices if one.driver in cluster.drivers]
    if all(one.unhealthy for one in own):
        text = f"none of {many(len(own), 'published device')} is healthy" if own else "no slice publishes any"
        yield Finding("block", f"DRA pool: {text}, so there is nothing to go to")
    else:
        yield from _for_policies(cluster)
    there, left = _by_plugin(cluster)
    if not there:
        yield Finding("warn", "device-plugin pool: no node that takes Pods has any, so there is nothing to go back to")
    elif not left:
        yield Finding("warn", f"device-plugin pool: all of {many(there, 'device')} are in use, so a way back waits")


def _for_policies(cluster: Cluster) -> Iterable[Finding]:
    """What the policies of the tenants that are there can be given of the DRA pool."""
    if cluster.policy_set is None:
        return
    for ref in dict.fromkeys(tenant.policy_for(namespace) for namespace, tenant in cluster.tenants()):
        policy = cluster.policy_set.policies[ref]
        if {cluster.policy_set.models[name].device_class for name in policy.candidates} - cluster.classes.keys():
            continue  # said by the check of classes
        fitting = offered(cluster.policy_set, policy, cluster.published)
        healthy = [device for _, device, word in fitting if not word and not device.unhealthy]
        if not healthy:
            yield Finding("block", f"DRA pool: no healthy device meets policy {ref}, so there is nothing to go to")
        elif all((one.driver, one.pool, one.name) in cluster.fleet.holders for one in healthy):
            count = many(len(healthy), "healthy device")
            yield Finding("warn", f"DRA pool: all of {count} that meet policy {ref} are given, so new Pods wait")


def _by_plugin(cluster: Cluster) -> tuple[int, int]:
    """Devices on nodes with a device plugin that take Pods, in all and free."""
    there, held = 0, 0
    for name in cluster.plugin_nodes:
        node = cluster.nodes[name]
        if not sequence(at(node, "status", "conditions")):  # one that somebody wrote for a test is taken as ready
            node = {**node, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        if not node_problem(node):
            there += sum(cluster.by_plugin[name].values())
            held += sum(sum(Counter(pod).values()) for pod in cluster.plugin_pods.get(name, {}).values())
    return there, max(0, there - held)


CHECK = Check(
    id="capacity",
    title="both pools have devices left",
    severity="block",
    remedy="move a node that is idle to the pool that lacks devices, by the runbook for nodes (docs/migration.md), "
    "before more namespaces follow",
    reads=("Node", "ResourceSlice", "ResourceClaim", "Pod"),
    check=_check,
)
