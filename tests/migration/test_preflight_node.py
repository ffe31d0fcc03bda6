"""A node on its way from one side to the other, step by step as the runbook goes."""

from __future__ import annotations

from typing import Any

import pytest

from dra_gate.migration.preflight import Cluster, verdict_of
from dra_gate.migration.preflight.node import NodeReport, NoSuchNodeError, node_report
from dra_gate.policy.switch import Lane
from migration.clean import fault

Object = dict[str, Any]
CLAIM, POD, SLICE = (
    "ResourceClaim/research-train/train-0-gate-0-x7",
    "Pod/research-train/train-0",
    "ResourceSlice/dra-0-gpu",
)


def node(name: str, *, cordoned: bool = False, devices: int = 0, pool: str = "") -> Object:
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"pool": pool} if pool else {}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"allocatable": {"nvidia.com/gpu": str(devices)}},
    }


def report(name: str, to: Lane, *change: Object, without: tuple[str, ...] = ()) -> NodeReport:
    return node_report(Cluster(fault(change=list(change), without=list(without))), name, to)


def said(one: NodeReport) -> tuple[dict[str, str], str, str]:
    return {result.id: result.verdict for result in one.results if result.findings}, verdict_of(one.results), one.next


@pytest.mark.parametrize(
    ("change", "without", "bad", "verdict", "next_step"),
    [
        ([], (), {"node-cordoned": "block", "node-unused": "block"}, "blocked", "kubectl cordon dra-0"),
        ([node("dra-0", cordoned=True)], (), {"node-unused": "block"}, "blocked", "wait, or drain"),
        # Its slices went too early: the Pod says that the claim is still in use.
        ([node("dra-0", cordoned=True)], (SLICE,), {"node-unused": "block"}, "blocked", "wait, or drain"),
        (
            [node("dra-0", cordoned=True)],
            (CLAIM, POD),
            {},
            "ready",
            "switch the DRA driver's kubelet plugin off on dra-0, and see that its slices go",
        ),
        (
            [node("dra-0", cordoned=True, pool="dra")],
            (CLAIM, POD, SLICE),
            {},
            "ready",
            "kubectl label node dra-0 pool=plugin --overwrite",
        ),
        (
            [node("dra-0", cordoned=True, pool="plugin")],
            (CLAIM, POD, SLICE),
            {},
            "ready",
            "switch the device plugin on at dra-0, and see that its allocatable devices come",
        ),
        (
            [node("dra-0", cordoned=True, devices=2)],
            (CLAIM, POD),
            {"node-one-way": "block"},
            "blocked",
            "switch the DRA driver's kubelet plugin off on dra-0, and see that its slices go",
        ),
        (
            [node("dra-0", cordoned=True, devices=2, pool="plugin")],
            (CLAIM, POD, SLICE),
            {},
            "ready",
            "kubectl uncordon dra-0",
        ),
        ([node("dra-0", devices=2, pool="plugin")], (CLAIM, POD, SLICE), {}, "ready", "nothing: it is done"),
        (
            [node("dra-0", devices=2)],
            (CLAIM, POD, SLICE),
            {},
            "ready",
            "kubectl label node dra-0 pool=plugin --overwrite",
        ),
    ],
)
def test_to_the_device_plugin(
    change: list[Object], without: tuple[str, ...], bad: dict[str, str], verdict: str, next_step: str
) -> None:
    assert said(report("dra-0", "device-plugin", *change, without=without)) == (bad, verdict, next_step)


def test_who_uses_it_is_named() -> None:
    (_, users, _) = report("dra-0", "device-plugin").results
    assert [str(one) for one in users.findings] == [
        "research-train/train-0-gate-0-x7: a claim is reserved for Pod train-0"
    ]
    (_, users, _) = report("plugin-0", "dra").results
    assert [str(one) for one in users.findings] == ["vision-train/old-0: a Pod holds 2 nvidia.com/gpu"]


def test_claims_on_other_nodes_are_no_matter() -> None:
    assert said(report("dra-1", "device-plugin", node("dra-1", cordoned=True)))[0] == {}


def test_a_claim_that_nobody_uses_is_told_and_holds_nothing_up() -> None:
    left = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "left", "namespace": "research-train", "uid": "c-9"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "dra-1", "device": "gpu-0"}]}}
        },
    }
    found = report("dra-1", "device-plugin", node("dra-1", cordoned=True), left)
    assert said(found)[:2] == ({"node-unused": "warn"}, "ready")


def test_a_claim_of_a_monitor_holds_it_up_too() -> None:
    """It is given for administration, and its Pod needs the driver to end."""
    result = {"driver": "gpu.nvidia.com", "pool": "dra-1", "device": "gpu-0", "adminAccess": True}
    monitor = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "monitor", "namespace": "gpu-operator", "uid": "c-9"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "m", "uid": "p-9"}],
        },
    }
    found = report("dra-1", "device-plugin", node("dra-1", cordoned=True), monitor)
    assert said(found)[:2] == ({"node-unused": "block"}, "blocked")


@pytest.mark.parametrize(
    ("change", "without", "bad", "next_step"),
    [
        ([], (), {"node-cordoned": "block", "node-unused": "block"}, "kubectl cordon plugin-0"),
        ([node("plugin-0", cordoned=True, devices=8)], (), {"node-unused": "block"}, "wait, or drain"),
        (
            [node("plugin-0", cordoned=True, devices=8)],
            ("Pod/vision-train/old-0",),
            {},
            "switch the device plugin off on plugin-0, and see that its allocatable devices go to 0",
        ),
        (
            [node("plugin-0", cordoned=True)],
            ("Pod/vision-train/old-0",),
            {},
            "switch the DRA driver's kubelet plugin on at plugin-0, and see that its slices come",
        ),
        (
            [node("plugin-0", cordoned=True, pool="plugin")],
            ("Pod/vision-train/old-0",),
            {},
            "take pool=plugin (devicePluginNodes) off plugin-0, and give it the label of the DRA pool",
        ),
    ],
)
def test_to_dra(change: list[Object], without: tuple[str, ...], bad: dict[str, str], next_step: str) -> None:
    found, _, step = said(report("plugin-0", "dra", *change, without=without))
    assert (found, step) == (bad, next_step)


def test_no_such_node() -> None:
    with pytest.raises(NoSuchNodeError, match="there is no node gpu-9"):
        report("gpu-9", "dra")
