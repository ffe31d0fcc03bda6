"""Grants on the real control plane: a quota by model, a fallback that waits, a device that falls ill in between."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.api import Api, Object, wait_for
from controlplane.control_plane import SCHEDULER, ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet, taint_device
from controlplane.gate import Gate
from e2e import scene
from e2e.granted import alternatives, condition, late_name, ledger, let_go, waits

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]
POLICIES = Path(__file__).parent / "fair_policies"
FALLBACK = 5.0  # seconds; policy `patient`


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    with Gate(control_plane, POLICIES) as installed:
        yield installed


def fleet(h100: int, a100: int, nodes: int = 1) -> Fleet:
    groups = [
        {"name": "hopper", "devices": {"h100": h100}},
        {"name": "ampere", "count": nodes, "devices": {"a100": a100}},
    ]
    return Fleet.of("fair", {"nodes": groups})


@pytest.mark.usefixtures("gate")
def test_a_job_of_twenty_takes_its_quota_of_h100_and_the_rest_elsewhere_at_once(
    api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    install_fleet(fleet(8, 8, nodes=3))
    namespace = clean("fair-capped")
    template = {"spec": scene.pod("x")["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "twenty"},
        "spec": {"parallelism": 20, "completions": 20, "template": template},
    }
    api.create(job, namespace)

    def bound() -> list[Object]:
        found = [pod for pod in api.list("pods", namespace) if "nodeName" in pod["spec"]]
        return found if len(found) == 20 else []

    pods = wait_for(bound, 60, "twenty Pods to be bound", every=0.3)
    got = [given for pod in pods for given in scene.given(api, pod)]
    assert Counter(given.alternative for given in got) == {"gpu/h100": 4, "gpu/a100": 16}
    assert Counter(given.pool.partition("-")[0] for given in got) == {"hopper": 4, "ampere": 16}
    # At once: nobody waited for an H100 to come free, for none did.
    wait_for(lambda: ledger(api, "capped").get("models") == {"h100": 4, "a100": 16}, 10, "the ledger to say so")
    assert ledger(api, "capped")["devices"] == 20


@pytest.mark.usefixtures("gate")
def test_after_its_fallback_a_waiting_pod_gets_the_next_model_and_is_not_made_again(
    api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    install_fleet(fleet(1, 1))
    free, patient = clean("fair-free"), clean("fair-patient")
    api.create(scene.pod("first"), free)
    assert scene.bound(api, free, "first")["spec"]["nodeName"] == "hopper"
    began = time.monotonic()
    made = api.create(scene.pod("waits"), patient)
    told = waits(api, patient, "waits")
    assert "h100" in condition(told)["message"]
    assert condition(told)["reason"] == "NoDevices"
    pod = scene.bound(api, patient, "waits")
    passed = time.monotonic() - began
    assert pod["metadata"]["uid"] == made["metadata"]["uid"]
    assert [given.alternative for given in scene.given(api, pod)] == ["gpu/a100"]
    assert FALLBACK - 1 <= passed < FALLBACK + 10  # its age counts from creationTimestamp, in whole seconds


@pytest.mark.usefixtures("gate")
def test_a_device_that_falls_ill_after_the_grant_is_replaced_in_the_claim(
    control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    install_fleet(fleet(1, 1))
    patient = clean("fair-patient")
    control_plane.stop(SCHEDULER)
    try:
        made = api.create(scene.pod("unlucky"), patient)
        name = late_name(let_go(api, patient, "unlucky"))
        before = api.get("resourceclaims", name, patient)
        assert alternatives(before) == ["h100"]
        taint_device(api, "hopper", "gpu-0", "gpu.nvidia.com/xid", "79")

        def other(claim: Object) -> bool:
            return "deletionTimestamp" not in claim["metadata"] and "a100" in alternatives(claim)

        after = api.wait("resourceclaims", name, patient, other, 30, "a claim with another candidate")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert [one["uid"] for one in after["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    finally:
        control_plane.start(SCHEDULER)
    pod = scene.bound(api, patient, "unlucky")
    assert pod["metadata"]["uid"] == made["metadata"]["uid"]
    assert pod["spec"]["nodeName"] == "ampere"
    assert [given.alternative for given in scene.given(api, pod)] == ["gpu/a100"]
