"""Lane device-plugin on two pools: node affinity keeps the policy, and Pods off the nodes where DRA gives devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.cluster import install
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet
from e2e import scene

pytestmark = pytest.mark.controlplane
PRODUCT = "nvidia.com/gpu.product"
PLUGIN, OTHER = "e2e-plugin-lane", "e2e-dra-lane"


def plugin_node(name: str, count: int, product: str) -> Object:
    return {"name": name, "allocatable": {"nvidia.com/gpu": count}, "labels": {PRODUCT: product, "pool": "plugin"}}


POOLS = {
    "nodes": [
        plugin_node("plugin-hopper", 1, "NVIDIA-H100-80GB-HBM3"),
        plugin_node("plugin-ampere", 2, "NVIDIA-A100-SXM4-80GB"),
        plugin_node("plugin-ada", 4, "NVIDIA-L40S"),
        {"name": "dra-ampere", "devices": {"a100": 4}, "labels": {"pool": "dra"}},
    ]
}


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[object]:
    with install(control_plane, Path(__file__).parent / "plugin_policies") as installed:
        yield installed


def refused(api: Api, pod: Object) -> str:
    try:
        api.create(pod, PLUGIN, dry_run=True)
    except ApiError as error:
        return str(error)
    return ""


def two_lanes(api: Api) -> None:
    """The tenant's two namespaces, once the replicas know the label of the one: unknown, it would count as dra."""
    scene.namespace(api, PLUGIN, {"dra-gate.io/lane": "device-plugin"})
    scene.namespace(api, OTHER)

    def is_known() -> bool:
        made = api.create(scene.pod("probe"), PLUGIN, dry_run=True)
        return "claims" not in made["spec"]["containers"][0]["resources"]

    wait_for(is_known, 10, "the replicas to know the label")


def node_of(api: Api, name: str) -> str:
    found: str = scene.bound(api, PLUGIN, name)["spec"]["nodeName"]
    return found


def test_the_policy_holds_by_node_affinity_and_no_pod_slips_onto_the_other_pool(
    gate: object, api: Api, install_fleet: InstallFleet
) -> None:
    install_fleet(Fleet.of("lanes", POOLS))
    names = [one["spec"].get("extendedResourceName") for one in api.list("deviceclasses")]
    assert "nvidia.com/gpu" in names, "so that a Pod could get devices of the other pool past its claim"
    two_lanes(api)
    for number, node in enumerate(("plugin-ampere", "plugin-ampere", "plugin-hopper")):
        stored = api.create(scene.pod(f"p{number}"), PLUGIN)
        assert stored["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert "schedulingGates" not in stored["spec"]
        tolerated = [one["key"] for one in stored["spec"]["tolerations"]]
        assert tolerated.count("nvidia.com/gpu") == 1, "the API server's own"
        assert stored["metadata"]["annotations"]["dra-gate.io/lane"] == "device-plugin"
        assert node_of(api, f"p{number}") == node, "in the order of preference"
    api.create(scene.pod("p3"), PLUGIN)
    scene.is_waiting(api, PLUGIN, "p3")

    api.create(scene.pod("beside"), OTHER)
    beside = scene.bound(api, OTHER, "beside")
    assert beside["spec"]["nodeName"] == "dra-ampere"
    assert [one.alternative for one in scene.given(api, beside)] == ["gpu/a100"]
    time.sleep(3)
    assert "nodeName" not in api.get("pods", "p3", PLUGIN)["spec"], (
        "however long an L40S below the floor is free, and an A100 where DRA gives them"
    )
    assert api.list("resourceclaims", PLUGIN) == []
    api.delete("pods", "p2", PLUGIN, grace=0)
    assert node_of(api, "p3") == "plugin-hopper"
    scene.clear(api, PLUGIN, OTHER)


def test_what_is_refused_there(gate: object, api: Api, install_fleet: InstallFleet) -> None:
    install_fleet(Fleet.of("lanes", POOLS))
    two_lanes(api)
    templates = [
        one["metadata"]["name"]
        for one in wait_for(lambda: api.list("resourceclaimtemplates", OTHER), 30, "the tenant's templates")
    ]
    claim = scene.pod("c", resourceClaims=[{"name": "g", "resourceClaimTemplateName": templates[0]}])
    assert "FOREIGN_CLAIM" in refused(api, claim)
    limits = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}
    implicit = scene.pod("i", {"name": "main", "image": "registry.example/none:1", "resources": {"limits": limits}})
    assert "UNSUPPORTED_RESOURCE" in refused(api, implicit)
    assert "NODE_POOL" in refused(api, scene.pod("d", nodeSelector={"pool": "dra"}))
    assert "NODE_PINNING" in refused(api, scene.pod("l", nodeSelector={PRODUCT: "NVIDIA-L40S"}))

    # Over quota nothing waits, though the tenant says wait: nothing here could hold it.
    api.create(scene.pod("most", scene.container(gpus=2), scene.container("other", gpus=2)), PLUGIN)

    def is_charged() -> bool:
        # By both figures: the Pods of the test before were four devices, too, and may still be counted.
        status = (api.find("tenantledgers", "sorrel") or {}).get("status", {})
        worst = {"a100": 4, "h100": 4}  # it is not bound
        return (status.get("devices"), status.get("models")) == (4, worst)

    wait_for(is_charged, 30, "the ledger to count it, at the worst case")
    more = scene.pod("more", scene.container(gpus=2))
    wait_for(lambda: "QUOTA" in refused(api, more), 10, "the replica to know the ledger")

    # As a patch: a whole Pod that was read before conflicts with the conditions which others write on it.
    with pytest.raises(ApiError, match="FORGED_ANNOTATION"):
        api.patch("pods", "most", {"metadata": {"annotations": {"dra-gate.io/policy": None}}}, PLUGIN)
    scene.clear(api, PLUGIN, OTHER)
