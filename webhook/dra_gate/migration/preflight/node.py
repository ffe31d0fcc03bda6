"""Whether a node can go from one way of giving its devices to the other now: the checker of the runbook for nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.migration.preflight.both_allocators import CHECK as BOTH
from dra_gate.migration.preflight.check import Finding, Result
from dra_gate.migration.preflight.cluster import Cluster, full_name
from dra_gate.policy.switch import DRA, PLUGIN, Lane
from dra_gate.policy.words import some

_OF = {PLUGIN: "the device plugin", DRA: "the DRA driver's kubelet plugin"}


class NoSuchNodeError(LookupError):
    """There is no such node."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The steps, and what to do next."""

    results: tuple[Result, ...]
    next: str


def node_report(cluster: Cluster, node: str, to: Lane) -> NodeReport:
    """How far the node is on its way. Raises NoSuchNodeError."""
    if node not in cluster.nodes:
        raise NoSuchNodeError(f"there is no node {node}")
    cordoned = at(cluster.nodes[node], "spec", "unschedulable") is True
    plugin, slices = node in cluster.by_plugin, node in cluster.by_slices
    old, new = (slices, plugin) if to == PLUGIN else (plugin, slices)
    users = list(_claims(cluster, node) if to == PLUGIN else _pods(cluster, node))
    both = [finding for finding in BOTH.check(cluster) if finding.subjects == (node,)] if plugin and slices else []
    done = new and not old and not users
    results = (
        _result(
            "node-cordoned",
            "the node takes no new Pods",
            []
            if cordoned or done
            else [Finding("block", "it is not cordoned, so new Pods may come at any time", (node,))],
            f"kubectl cordon {node}",
        ),
        _result(
            "node-unused",
            "no Pod uses its devices",
            users,
            "drain these Pods (kubectl drain respects PodDisruptionBudgets), those of DaemonSets too, or wait until "
            "they end. Do not switch anything off before: a Pod whose driver is gone stays Terminating",
        ),
        _result("node-one-way", "its devices are given one way", both, BOTH.remedy),
    )
    was = _OF[DRA if to == PLUGIN else PLUGIN]
    if not cordoned and not done:
        step = f"kubectl cordon {node}"
    elif any(one.verdict == "block" for one in users):
        step = "wait, or drain"
    elif old:
        step = f"switch {was} off on {node}, and see that {_gone(to)}"
    elif label := _label(cluster, node, to):
        step = label
    elif not new:
        step = f"switch {_OF[to]} on at {node}, and see that {_come(to)}"
    else:
        step = f"kubectl uncordon {node}" if cordoned else "nothing: it is done"
    return NodeReport(results, step)


def _label(cluster: Cluster, node: str, to: Lane) -> str:
    """What to change of the labels by which lane device-plugin finds its nodes; nothing where they are right."""
    wanted = cluster.policy_set.settings.device_plugin_nodes if cluster.policy_set is not None else {}
    labels = mapping(at(cluster.nodes[node], "metadata", "labels"))
    meant = bool(wanted) and wanted.items() <= labels.items()
    told = " ".join(f"{key}={value}" for key, value in sorted(wanted.items()))
    if to == DRA:
        return f"take {told} (devicePluginNodes) off {node}, and give it the label of the DRA pool" if meant else ""
    return f"kubectl label node {node} {told} --overwrite" if wanted and not meant else ""


def _gone(to: Lane) -> str:
    return "its slices go" if to == PLUGIN else "its allocatable devices go to 0"


def _come(to: Lane) -> str:
    return "its allocatable devices come" if to == PLUGIN else "its slices come"


def _result(step: str, title: str, findings: Iterable[Finding], remedy: str) -> Result:
    found = tuple(findings)
    blocked = any(one.verdict == "block" for one in found)
    return Result(step, title, "block" if blocked else "warn" if found else "ok", True, found, remedy)


def _claims(cluster: Cluster, node: str) -> Iterable[Finding]:
    """Claims with accelerators of the node. Its slices may be gone already: then the Pods tell."""
    here = {device.id for device in cluster.fleet.devices if node in device.nodes}
    bound = {
        (text(at(pod, "metadata", "namespace")), text(at(pod, "metadata", "name")))
        for pod in cluster.state.snapshot.pods
        if at(pod, "spec", "nodeName") == node
    }
    for claim in cluster.state.snapshot.claims:
        given = [mapping(one) for one in sequence(at(claim, "status", "allocation", "devices", "results"))]
        given = [one for one in given if text(one.get("driver")) in cluster.drivers]
        namespace = text(at(claim, "metadata", "namespace"))
        users = [text(one.get("name")) for one in map(mapping, sequence(at(claim, "status", "reservedFor")))]
        if not given or not (any(_id(one) in here for one in given) or any((namespace, one) in bound for one in users)):
            continue
        if users:
            yield Finding("block", f"a claim is reserved for Pod {some(users)}", (full_name(claim),))
        else:
            told = "a claim has devices of the node and no Pod uses it: its next Pod could run nowhere else"
            yield Finding("warn", told, (full_name(claim),))


def _id(result: Object) -> tuple[str, str, str]:
    return text(result.get("driver")), text(result.get("pool")), text(result.get("device"))


def _pods(cluster: Cluster, node: str) -> Iterable[Finding]:
    for pod, resources in sorted(cluster.plugin_pods.get(node, {}).items()):
        held = ", ".join(f"{count} {resource}" for resource, count in sorted(resources.items()))
        yield Finding("block", f"a Pod holds {held}", (pod,))
