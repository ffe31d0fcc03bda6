"""The lane goes back under Pods in every phase, with the whole gate on the real control plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.api import Api, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import mark_running
from dra_gate.admission.stamp import MODEL
from e2e import scene
from e2e.test_health import ROLE, bound_pod_of, pods_of, replica_set

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]
POLICIES = Path(__file__).parent / "returning_policies"
SPACES = ("back-held", "back-free", "back-kept")
NOWHERE = {"example.com/nowhere": "yes"}


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    """One that may evict, and follows the cluster's Gate."""
    api = control_plane.api()
    api.apply_yaml(ROLE.read_text())
    with Gate(control_plane, POLICIES, published=True, controller_flags=("--recreate",)) as installed:
        switch(api, "")
        yield installed
        switch(api, "")


def switch(api: Api, lane: str) -> None:
    api.patch("gates", "default", {"spec": {"lane": {"override": lane}}})


def identity(found: Object) -> tuple[str, str]:
    return found["metadata"]["uid"], found["metadata"]["resourceVersion"]


def annotations(found: Object) -> Object:
    return found["metadata"].get("annotations") or {}


def uids(api: Api, namespace: str, name: str) -> set[str]:
    """Of the Pods of a ReplicaSet that are not going."""
    found = pods_of(api, namespace, name)
    return {one["metadata"]["uid"] for one in found if "deletionTimestamp" not in one["metadata"]}


def under_dra(api: Api, namespace: str, name: str) -> bool:
    found = [one for one in pods_of(api, namespace, name) if "deletionTimestamp" not in one["metadata"]]
    assert all(bool(one["spec"].get("resourceClaims")) != _raw(one) for one in found)
    return any(one["spec"].get("resourceClaims") for one in found)


def _raw(found: Object) -> bool:
    return "nvidia.com/gpu" in found["spec"]["containers"][0]["resources"].get("limits", {})


def why(found: Object) -> tuple[str, str]:
    conditions = {one["type"]: one for one in found["status"].get("conditions", [])}
    one = conditions.get("dra-gate.io/Granted", {})
    return one.get("reason", ""), one.get("message", "")


def test_who_waits_is_made_again_and_who_has_devices_is_left(
    gate: Gate, api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    """While no controller runs, to begin with; and again with another leader, who finds nothing to do."""
    nodes = [{"name": "hopper", "devices": {"h100": 8}}, {"name": "ampere", "devices": {"a100": 8}}]
    install_fleet(Fleet.of("returning", {"nodes": nodes}))
    for space in SPACES:
        clean(space)
        api.create(replica_set("runs"), space)
        waits = replica_set("waits", replicas=2)
        waits["spec"]["template"]["spec"]["nodeSelector"] = NOWHERE
        api.create(waits, space)
    api.create(scene.pod("alone", nodeSelector=NOWHERE), "back-free")
    for space in SPACES:
        mark_running(api, space, bound_pod_of(api, space, "runs")["metadata"]["name"])
        wait_for(lambda space=space: len(api.list("resourceclaims", space)) >= 3, 30, f"the claims of {space}")
    for space in SPACES:  # the last that is written on a Pod which has devices
        wait_for(
            lambda space=space: MODEL in annotations(bound_pod_of(api, space, "runs")), 30, f"the model in {space}"
        )
    time.sleep(3)  # and what is written of those that wait
    running = {space: identity(bound_pod_of(api, space, "runs")) for space in SPACES}
    waiting = {space: uids(api, space, "waits") for space in SPACES}
    alone = api.get("pods", "alone", "back-free")["metadata"]["uid"]
    given = {identity(one) for one in api.list("resourceclaims") if one.get("status", {}).get("allocation")}
    assert len(given) == 3

    gate.stop_controller(kill=True)
    switch(api, "device-plugin")
    time.sleep(3)
    assert {space: uids(api, space, "waits") for space in SPACES} == waiting, "nothing becomes of them yet"
    gate.start_controller()
    for space in ("back-held", "back-free"):
        wait_for(lambda space=space: not under_dra(api, space, "waits"), 60, f"the Pods of {space} to be made again")
        wait_for(lambda space=space: len(uids(api, space, "waits")) == 2, 30, f"both of {space}")
    wait_for(lambda: len(api.list("resourceclaims", "back-kept")) == 1, 30, "the grants of those kept to be taken back")
    again = {space: uids(api, space, "waits") for space in SPACES}
    assert again["back-kept"] == waiting["back-kept"]
    wait_for(
        lambda: {why(one)[0] for one in pods_of(api, "back-kept", "waits")} == {"LaneWentBack"}, 20, "them to say so"
    )
    assert all("onRollback: keep" in why(one)[1] for one in pods_of(api, "back-kept", "waits"))
    assert api.get("pods", "alone", "back-free")["metadata"]["uid"] == alone
    told = api.request("GET", "/apis/events.k8s.io/v1/namespaces/back-free/events").body["items"]
    (event,) = [one for one in told if one["reason"] == "LaneWentBack" and one["regarding"]["name"] == "alone"]
    assert "no controller would make it again" in event["note"]

    gate.stop_controller(kill=True)
    gate.start_controller()
    time.sleep(25)  # a killed leader keeps its Lease for up to 20 s
    assert {space: uids(api, space, "waits") for space in SPACES} == again
    assert {space: identity(bound_pod_of(api, space, "runs")) for space in SPACES} == running
    assert given <= {identity(one) for one in api.list("resourceclaims")}

    switch(api, "")
    wait_for(lambda: len(api.list("resourceclaims", "back-kept")) == 3, 30, "those kept to be granted again")
    wait_for(lambda: {why(one)[0] for one in pods_of(api, "back-kept", "waits")} == {"Granted"}, 20, "them to say so")
    assert {space: uids(api, space, "waits") for space in SPACES} == again
    assert not under_dra(api, "back-held", "waits"), "what is under device plugins stays there"
    assert {space: identity(bound_pod_of(api, space, "runs")) for space in SPACES} == running
