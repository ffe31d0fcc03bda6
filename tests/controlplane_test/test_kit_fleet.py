"""Fleets, what may befall them, and the played kubelet, against the real scheduler."""

from __future__ import annotations

import pytest

from controlplane import fleet as fleets
from controlplane import kubelet
from controlplane.api import Api, wait_for
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet, FleetError, fleet_names
from controlplane.rate import plain_template, template_pod

live = pytest.mark.controlplane
# For what several controllers do one after the other: a claim whose template was not known yet is tried again after 5
# and then after 10 s, and the garbage collector halts while it looks for new kinds.
SECONDS = 60


def bind(api: Api, namespace: str, name: str) -> tuple[str, str, str]:
    """Creates a Pod from the plain template and returns request, pool and device of what it got."""
    if api.find("resourceclaimtemplates", "plain", namespace) is None:
        api.create(plain_template("plain"), namespace)
    api.create(template_pod(name, "plain"), namespace)
    pod = api.wait("pods", name, namespace, lambda found: "nodeName" in found["spec"], SECONDS)
    claim = api.get("resourceclaims", pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"], namespace)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    return result["request"], result["pool"], result["device"]


def unschedulable(api: Api, namespace: str, name: str) -> str:
    """Creates a Pod from the plain template and returns what the scheduler says against it."""
    api.create(template_pod(name, "plain"), namespace)

    def condition(pod: dict[str, object]) -> bool:
        conditions = pod["status"].get("conditions", [])  # type: ignore[attr-defined]
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    pod = api.wait("pods", name, namespace, condition, SECONDS)
    return str(pod["status"]["conditions"][0]["message"])


# -- the data files ---------------------------------------------------------------------------------------------------


def test_the_fleets_are_what_their_names_say() -> None:
    assert {"four-and-four", "nine-nodes", "big", "demo", "drivers"} <= set(fleet_names())
    four = Fleet.load("four-and-four")
    assert [(s["spec"]["nodeName"], len(s["spec"]["devices"])) for s in four.slices] == [("hopper", 4), ("ampere", 4)]
    nine = Fleet.load("nine-nodes")
    assert len(nine.nodes) == 9
    assert {len(s["spec"]["devices"]) for s in nine.slices} == {8}
    assert len(Fleet.load("big").nodes) == 160


def test_devices_are_published_as_drivers_do() -> None:
    devices = {s["spec"]["driver"]: s["spec"]["devices"][1] for s in Fleet.load("drivers").slices}
    nvidia = devices["gpu.nvidia.com"]
    assert nvidia["name"] == "gpu-1"
    assert nvidia["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
    assert nvidia["attributes"]["cudaComputeCapability"] == {"version": "9.0.0"}
    assert nvidia["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:10"}
    assert nvidia["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 0}
    assert nvidia["capacity"] == {"memory": {"value": "81559Mi"}}
    assert devices["gpu.amd.com"]["name"] == "gpu-1-129"
    assert devices["gpu.intel.com"]["name"] == "0000-10-01-0-0x0bd5"
    assert devices["gpu.example.com"]["attributes"]["index"] == {"int": 1}
    uuids = [d["attributes"]["uuid"]["string"] for s in Fleet.load("big").slices for d in s["spec"]["devices"]]
    assert len(set(uuids)) == 1280


def test_a_group_changes_what_its_devices_publish() -> None:
    old = {"count": 3, "attributes": {"driverVersion": {"version": "535.1.2"}, "architecture": None}}
    made = Fleet.of("x", {"nodes": [{"name": "n", "devices": {"h100": old, "l40s": 2}, "slices": 3, "perRoot": 1}]})
    assert [s["metadata"]["name"] for s in made.slices] == [f"0000{i}-gpu.nvidia.com-n" for i in range(3)]
    assert {s["spec"]["pool"]["resourceSliceCount"] for s in made.slices} == {3}
    devices = [d for s in made.slices for d in s["spec"]["devices"]]
    assert [d["name"] for d in devices] == [f"gpu-{i}" for i in range(5)]
    assert devices[0]["attributes"]["driverVersion"] == {"version": "535.1.2"}
    assert "architecture" not in devices[0]["attributes"]
    assert devices[4]["attributes"]["architecture"] == {"string": "Ada Lovelace"}
    assert len({d["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] for d in devices}) == 5


def test_a_fleet_changes_its_classes() -> None:
    nodes = [{"name": "n", "devices": {"h100": 1}}]
    (stock,) = Fleet.of("x", {"nodes": nodes}).classes
    (other,) = Fleet.of("x", {"nodes": nodes, "classes": {"gpu.nvidia.com": {"extendedResourceName": None}}}).classes
    assert stock["spec"] == other["spec"] | {"extendedResourceName": "nvidia.com/gpu"}
    assert "extendedResourceName" not in other["spec"]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"name": "n", "gpus": 4}, "unknown gpus in node group n"),
        ({"name": "n", "devices": {"h1000": 4}}, "no kind h1000"),
        ({"name": "n", "devices": {"h100": {"count": 1, "memory": "1Gi"}}}, "unknown memory in the devices of n"),
    ],
)
def test_mistakes_in_a_fleet_are_told(group: dict[str, object], message: str) -> None:
    with pytest.raises(FleetError, match=message):
        Fleet.of("x", {"nodes": [group]})
    with pytest.raises(FleetError, match=r"fleet x: no class gpu\.example in classes.yaml"):
        Fleet.of("x", {"nodes": [], "classes": {"gpu.example": {}}})
    with pytest.raises(FleetError, match="no fleet nowhere: there are big, demo"):
        Fleet.load("nowhere")


# -- on the real thing ------------------------------------------------------------------------------------------------


@live
def test_the_server_stores_exactly_what_the_files_say(api: Api, install_fleet: InstallFleet) -> None:
    made = install_fleet("drivers")
    stored = {s["metadata"]["name"]: s["spec"] for s in api.list("resourceslices")}
    assert stored == {s["metadata"]["name"]: s["spec"] for s in made.slices}
    mig = Fleet.of("mig", {"nodes": [{"name": "m", "devices": {"mig-1g.10gb": 2}, "taints": [
        {"key": "k", "value": "v", "effect": "NoSchedule"}], "allocatable": {"nvidia.com/gpu": 8}}]})  # fmt: skip
    install_fleet(mig)
    assert [s["metadata"]["name"] for s in api.list("resourceslices")] == ["00000-gpu.nvidia.com-m"]
    (node,) = api.list("nodes")
    assert node["spec"]["taints"] == [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert api.get("deviceclasses", "mig.nvidia.com")


@live
def test_plain_pods_get_the_devices_in_order(api: Api, install_fleet: InstallFleet, namespace: str) -> None:
    install_fleet("four-and-four")
    got = [bind(api, namespace, f"p-{number}") for number in range(8)]
    assert got == [(f"gpu/{model}", node, f"gpu-{number}") for model, node in (("h100", "hopper"), ("a100", "ampere"))
                   for number in range(4)]  # fmt: skip
    assert "2 cannot allocate all claims" in unschedulable(api, namespace, "ninth")
    kubelet.mark_succeeded(api, namespace, "p-2")
    api.wait("pods", "ninth", namespace, lambda pod: pod["spec"].get("nodeName") == "hopper", SECONDS)


@live
def test_a_device_taken_away_is_not_given_again(api: Api, install_fleet: InstallFleet, namespace: str) -> None:
    install_fleet("four-and-four")
    device = fleets.take_away(api, "hopper", "gpu-0")
    assert device["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
    (published,) = fleets.slices_of(api, "hopper")
    assert published["spec"]["pool"]["generation"] == 2
    assert bind(api, namespace, "a") == ("gpu/h100", "hopper", "gpu-1")
    fleets.republish(api, "hopper", lambda devices: [device, *devices])
    assert bind(api, namespace, "b") == ("gpu/h100", "hopper", "gpu-0")
    with pytest.raises(LookupError, match="no device gpu-9"):
        fleets.take_away(api, "hopper", "gpu-9")


@live
def test_only_the_newest_generation_counts(api: Api, install_fleet: InstallFleet, namespace: str) -> None:
    install_fleet(Fleet.of("two", {"nodes": [{"name": "n", "devices": {"h100": 4}, "slices": 2}]}))
    assert fleets.republish(api, "n") == 2
    assert [s["spec"]["pool"]["generation"] for s in fleets.slices_of(api, "n")] == [2, 2]
    assert bind(api, namespace, "a") == ("gpu/h100", "n", "gpu-0")
    first, _ = fleets.slices_of(api, "n")
    first["spec"]["pool"] |= {"generation": 3, "resourceSliceCount": 1}
    first["spec"]["devices"] = first["spec"]["devices"][1:]
    api.replace(first)  # as when a driver shrank its pool and the old slice isn't deleted yet
    assert bind(api, namespace, "b") == ("gpu/h100", "n", "gpu-1")
    assert "cannot allocate all claims" in unschedulable(api, namespace, "c")


@live
def test_tainted_devices_are_passed_over(api: Api, install_fleet: InstallFleet, namespace: str) -> None:
    install_fleet("four-and-four")
    fleets.taint_device(api, "hopper", "gpu-0", "gpu.nvidia.com/xid", "79")
    assert bind(api, namespace, "a") == ("gpu/h100", "hopper", "gpu-1")
    fleets.untaint_device(api, "hopper", "gpu-0", "gpu.nvidia.com/xid")
    assert bind(api, namespace, "b") == ("gpu/h100", "hopper", "gpu-0")
    if not api.serves("devicetaintrules"):  # before 1.37
        return
    fleets.taint_rule(api, "drain-hopper", "kit/drain", driver="gpu.nvidia.com", pool="hopper")
    assert bind(api, namespace, "c") == ("gpu/a100", "ampere", "gpu-0")


@live
def test_nodes_can_be_lost(api: Api, install_fleet: InstallFleet, namespace: str) -> None:
    install_fleet("four-and-four")
    fleets.set_ready(api, "hopper", ready=False)
    assert bind(api, namespace, "a") == ("gpu/a100", "ampere", "gpu-0")
    fleets.set_ready(api, "hopper", ready=True)
    fleets.cordon(api, "ampere")
    assert bind(api, namespace, "b") == ("gpu/h100", "hopper", "gpu-0")
    fleets.cordon(api, "ampere", on=False)
    fleets.cordon(api, "hopper")
    assert bind(api, namespace, "c") == ("gpu/a100", "ampere", "gpu-1")
    fleets.delete_node(api, "hopper")
    wait_for(lambda: not fleets.slices_of(api, "hopper"), SECONDS, "the garbage collector to take the node's slices")


@live
def test_the_kubelet_s_part_is_written_and_labelled(api: Api, install_fleet: InstallFleet, namespace: str) -> None:
    install_fleet("demo")
    bind(api, namespace, "a")
    status = kubelet.mark_running(api, namespace, "a")["status"]
    assert (status["phase"], status["message"]) == ("Running", kubelet.MESSAGE)
    assert {"Ready": "True", "ContainersReady": "True"}.items() <= {
        c["type"]: c["status"] for c in status["conditions"]
    }.items()
    assert (
        kubelet.mark_failed(api, namespace, "a", 137)["status"]["containerStatuses"][0]["state"]["terminated"][
            "exitCode"
        ]
        == 137
    )
    wait_for(lambda: not api.list("resourceclaims", namespace), SECONDS, "the failed Pod's claim to go")
    bind(api, namespace, "b")
    kubelet.delete_now(api, namespace, "b")
    assert api.find("pods", "b", namespace) is None


@live
def test_a_played_kubelet_makes_a_cluster_that_people_can_use(
    api: Api, install_fleet: InstallFleet, namespace: str
) -> None:
    install_fleet("demo")
    labels = {"app": "web"}
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [container]}}},
    }  # fmt: skip
    with kubelet.PlayedKubelet(api):
        api.create(deployment, namespace)
        api.wait("deployments", "web", namespace, lambda found: found["status"].get("availableReplicas") == 2, SECONDS)
        api.delete("deployments", "web", namespace)
        wait_for(lambda: not api.list("pods", namespace), SECONDS, "the Pods to end gracefully")
