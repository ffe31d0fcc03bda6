"""A container gets its accelerator and the NIC beside it, or it waits: on the real scheduler, from an ordinary Pod."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.fleet import LABEL, Fleet, republish
from controlplane.gate import Gate
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import load
from e2e import scene

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]
DRIVER = "nic.example"
ROOT = "resource.kubernetes.io/pcieRoot"
FIRST, SECOND = "pci0000:10", "pci0000:20"  # of gpu-0 and gpu-1 of a node


def nic(name: str, root: str, bandwidth: str) -> Object:
    return {"name": name, "attributes": {ROOT: {"string": root}}, "capacity": {"bandwidth": {"value": bandwidth}}}


def fleet(**nics: list[Object]) -> Fleet:
    """Nodes of two H100, each on a root of its own, with the given NICs by node."""
    made = Fleet.of("paired", {"nodes": [{"name": node, "devices": {"h100": 2}, "perRoot": 1} for node in nics]})
    nic_class: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER, "labels": {LABEL: "paired"}},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
    }
    slices: tuple[Object, ...] = tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-nics", "labels": {LABEL: "paired"}},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": f"{node}-nics", "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
        for node, devices in nics.items()
    )
    return replace(made, classes=(*made.classes, nic_class), slices=(*made.slices, *slices))


def pair(api: Api, pod: Object) -> tuple[str, str, str, str]:
    """What each request of the Pod's one claim was given: alternative, node and GPU, companion's request, its NIC."""
    gpu, beside = sorted(scene.given(api, pod), key=lambda given: given.alternative)
    assert beside.pool == f"{gpu.pool}-nics"
    return gpu.alternative, f"{gpu.pool}/{gpu.device}", beside.alternative, beside.device


def refusal(api: Api, pod: Object, namespace: str) -> str:
    """Why the Pod would be refused; empty if it would not. The ledger's word is a moment old."""
    try:
        api.create(pod, namespace, dry_run=True)
    except ApiError as problem:
        return str(problem)
    return ""


def test_an_aligned_pair_another_aligned_pair_or_none(
    gate: Gate, api: Api, install_fleet: Callable[[Fleet], Fleet], clean: Clean
) -> None:
    """Two pairs there are: on node a the NIC of the first root is too slow, on node b it is missing."""
    install_fleet(fleet(a=[nic("slow", FIRST, "50G"), nic("fast", SECOND, "200G")], b=[nic("fast", SECOND, "100G")]))
    namespace = clean("e2e-paired")
    got = []
    for number in range(2):
        api.create(scene.pod(f"p{number}"), namespace)
        got.append(pair(api, scene.bound(api, namespace, f"p{number}")))
    assert sorted(got) == [("gpu/h100", "a/gpu-1", "nic", "fast"), ("gpu/h100", "b/gpu-1", "nic", "fast")]

    # NICs count against no quota: of three devices two are held, and two H100 are free, but no NIC fits beside them.
    api.create(scene.pod("p2"), namespace)
    scene.is_waiting(api, namespace, "p2")

    def faster(devices: list[Object]) -> list[Object]:
        return [device | {"capacity": {"bandwidth": {"value": "100G"}}} for device in devices]

    assert "nodeName" not in api.get("pods", "p2", namespace)["spec"]
    republish(api, "a", faster, DRIVER)
    assert pair(api, scene.bound(api, namespace, "p2")) == ("gpu/h100", "a/gpu-0", "nic", "slow")

    refused = wait_for(lambda: refusal(api, scene.pod("p3"), namespace), 10, "p3 to be refused")
    assert "it asks for 1 device and the tenant has 0 left" in refused


def test_two_accelerators_and_their_nic_share_a_root(
    gate: Gate, api: Api, install_fleet: Callable[[Fleet], Fleet], clean: Clean
) -> None:
    """The GPUs of a node are on two roots: a NIC is beside one of them only, and a container for both waits."""
    install_fleet(fleet(a=[nic("one", FIRST, "100G"), nic("two", SECOND, "100G")]))
    namespace = clean("e2e-paired")
    both = scene.pod("both", scene.container(gpus=2))
    wait_for(lambda: not refusal(api, both, namespace), 10, "the ledger to have heard that others' Pods are gone")
    api.create(both, namespace)
    scene.is_waiting(api, namespace, "both")
    api.delete("pods", "both", namespace, grace=0)
    wanted = scene.pod("each", scene.container("x"), scene.container("y"))
    wait_for(lambda: not refusal(api, wanted, namespace), 10, "the ledger to have heard that the first one is gone")
    api.create(wanted, namespace)
    found = scene.given(api, scene.bound(api, namespace, "each"))
    beside: dict[str, Any] = {"gpu-0": "one", "gpu-1": "two"}
    assert [given.alternative for given in found] == ["gpu/h100", "nic"] * 2
    for gpu, companion in zip(found[::2], found[1::2], strict=True):
        assert beside.pop(gpu.device) == companion.device
    assert not beside


def test_what_is_stored_is_what_was_compiled(gate: Gate, api: Api, clean: Clean) -> None:
    """So that validate takes the stored template for the tenant's own."""
    namespace = clean("e2e-paired")
    policies = load(Path(__file__).parent / "policies")
    tenant = policies.tenants["paired"]
    for template in list(templates_of(policies).of("paired", tenant.policy))[:2]:
        found = api.wait("resourceclaimtemplates", template.name, namespace, bool, 30, "the template to be made")
        assert found["spec"] == template.spec
    api.create(scene.pod("p", scene.container(gpus=1)), namespace)
    (entry,) = api.get("pods", "p", namespace)["spec"]["resourceClaims"]
    assert entry["resourceClaimTemplateName"].startswith("dra-gate-paired-v1-x1-")
