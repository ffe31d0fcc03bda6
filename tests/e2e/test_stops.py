"""Hard stops on the real API server: what the controller does by itself, once, and what it leaves alone.

Failures of Pods are constructed: there is no kubelet.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import mark_running
from deploy.kubectl import DEPLOY
from dra_gate.admission.configurations import CONTROLLER
from e2e import scene
from e2e.test_counters import drop, leader, status

pytestmark = pytest.mark.controlplane
FIRST, SECOND, THIRD, THEIRS = "e2e-stop-a", "e2e-stop-b", "e2e-stop-c", "e2e-stop-git"
SPACES = (FIRST, SECOND, THIRD, THEIRS)
MANY = tuple(f"e2e-stop-many-{number:03}" for number in range(100))
LANE, MOVED = "dra-gate.io/lane", "dra-gate.io/canary"
#: The controller may look when three of the four have failed: three are enough for a stop.
STOPPED = re.compile(r"\b[34] of [45] Pods failed")
TENANT = f"""\
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {{name: stopped}}
spec: {{namespaces: [{", ".join(SPACES)}], policy: ordered@1}}
---
"""
FLEET = {"nodes": [{"name": "stop-h", "devices": {"h100": 16}}]}


class Site:
    """The gate with two controllers, the right to roll back, and four of a tenant's namespaces that are not gated."""

    def __init__(self, gate: Gate, api: Api, kubeconfig: Path) -> None:
        self.gate, self.api, self.kubeconfig = gate, api, kubeconfig

    def run(self, *words: str, code: int = 0) -> str:
        where = ["--kubeconfig", str(self.kubeconfig)]
        if words[0] in ("step", "status"):
            where += ["--policies", str(self.gate.policies)]
        words = (sys.executable, "-m", "dra_gate", "canary", *words, *where)
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def lane(self, name: str) -> str:
        return str(self.api.get("namespaces", name)["metadata"]["labels"].get(LANE, ""))

    def record(self, name: str) -> Any:
        return json.loads(self.api.get("namespaces", name)["metadata"]["annotations"][MOVED])

    def plan(self) -> Any:
        return json.loads(self.api.get("configmaps", "dra-gate-canary", "dra-gate")["data"]["plan.json"])

    def told(self, namespace: str, reason: str) -> list[str]:
        return [one["message"] for one in self.api.list("events", namespace) if one["reason"] == reason]

    def fail(self, *names: str) -> None:
        """So many Pods of the first namespace get a device, and end before they ever ran."""
        time.sleep(1.1)  # times of Pods are whole seconds: those of the second in which it was switched on don't count
        for name in names:
            self.api.create(scene.pod(name), FIRST)
        for name in names:
            scene.bound(self.api, FIRST, name)
            status(self.api, FIRST, name, phase="Failed", reason="Evicted")


@pytest.fixture
def site(control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, tmp_path: Path) -> Iterator[Site]:
    policies = tmp_path / "policies"
    policies.mkdir()
    for file in (Path(__file__).parent / "policies").glob("*.yaml"):
        (policies / file.name).write_text(TENANT + file.read_text())
    install_fleet(Fleet.of("stop", FLEET))
    for name in SPACES:
        scene.namespace(api, name, {"made-by": "e2e"})
    clean(api)
    rights = (DEPLOY / "components" / "canary-rollback" / "rbac.yaml").read_text()
    with Gate(control_plane, policies, controllers=2) as gate:
        api.apply_yaml(rights)
        yield Site(gate, api, control_plane.kubeconfig_for())
        scene.clear(api, *SPACES)
    clean(api)
    for kind in ("clusterrolebindings", "clusterroles"):
        api.delete(kind, "dra-gate-canary-rollback", missing_ok=True)


def clean(api: Api) -> None:
    drop(api)
    api.delete("configmaps", "dra-gate-canary", "dra-gate", missing_ok=True)
    api.delete("leases", "dra-gate-controller", "dra-gate", missing_ok=True)
    for name in SPACES:
        api.patch("namespaces", name, {"metadata": {"labels": {LANE: None}, "annotations": {MOVED: None}}})


def test_failures_roll_back_once_and_who_goes_forward_again_is_left_alone(site: Site, api: Api) -> None:
    leader(api)
    site.run("step", "--wave", f"{FIRST},{SECOND},{THIRD}", "--why", "first wave")
    api.patch("namespaces", THEIRS, {"metadata": {"labels": {LANE: "dra"}}})  # as GitOps does
    said = site.run("on-stop", "rollback", "--failures", "5")
    assert "pauses the plan and rolls back" in said
    assert "may not patch namespaces" not in said
    wait_for(lambda: api.list("configmaps", "dra-gate", labels="dra-gate.io/cohorts=true"), 60, "the first counts")
    time.sleep(1.1)
    api.create(scene.pod("runs"), FIRST)
    scene.bound(api, FIRST, "runs")
    mark_running(api, FIRST, "runs")
    before = api.get("pods", "runs", FIRST)

    site.fail("f1", "f2", "f3", "f4")
    failed = time.monotonic()
    wait_for(lambda: all(site.lane(name) == "device-plugin" for name in (FIRST, SECOND, THIRD)), 60, "the way back")
    took = time.monotonic() - failed
    assert took < 60, took  # a look every five seconds; 2.9 s on an idle machine
    assert site.lane(THEIRS) == "dra"
    record = site.record(SECOND)
    assert (record["from"], record["to"], record["by"]) == ("dra", "device-plugin", CONTROLLER)
    assert STOPPED.search(record["why"]), record["why"]
    for name in (FIRST, SECOND, THIRD):
        wait_for(lambda name=name: site.told(name, "LaneRolledBack"), 30, f"the Event in {name}", every=0.2)
    (event,) = wait_for(lambda: site.told("dra-gate", "HardStop"), 30, "the Event about the plan", every=0.2)
    assert STOPPED.search(event), event
    assert "paused the plan" in event
    wait_for(lambda: site.plan()["stopped"]["done"], 60, "the plan to say that it is done")
    assert site.plan()["paused"]["by"] == CONTROLLER
    assert api.get("pods", "runs", FIRST)["metadata"]["uid"] == before["metadata"]["uid"]
    probe = scene.pod("probe")
    wait_for(lambda: not api.create(probe, FIRST, dry_run=True)["spec"].get("resourceClaims"), 10, "the old lane")
    assert "the plan is paused" in site.run("step", "--why", "on", code=1)
    status = site.run("status")
    assert "moved back all that commands moved" in status
    assert "failures above 5 %, the controller pauses the plan and rolls back" in status

    # Forward again: what had failed before does not stop it again, what fails from now on does.
    site.run("pause", "--off")
    site.run("step", "--again", "--force", "--why", "the driver is mended")
    assert site.lane(FIRST) == "dra"
    time.sleep(15)  # three looks
    assert [site.lane(name) for name in SPACES] == ["dra"] * 4
    assert "stopped" not in site.plan()
    wait_for(lambda: api.create(probe, FIRST, dry_run=True)["spec"].get("resourceClaims"), 30, "the lane")
    site.fail("g1", "g2", "g3", "g4")
    wait_for(lambda: site.lane(FIRST) == "device-plugin", 60, "the second stop")
    # Of those alone: with the five from before it could not be all that were tried.
    assert re.search(r"\b([34]) of \1 Pods failed", site.record(FIRST)["why"]), site.record(FIRST)["why"]


def test_pause_alone_moves_nobody(site: Site, api: Api) -> None:
    leader(api)
    site.run("step", "--wave", f"{FIRST},{SECOND}", "--why", "first wave")
    site.run("on-stop", "pause")
    wait_for(lambda: api.list("configmaps", "dra-gate", labels="dra-gate.io/cohorts=true"), 60, "the first counts")
    site.fail("f1", "f2", "f3")
    wait_for(lambda: site.plan()["paused"], 60, "the pause")
    time.sleep(6)
    assert [site.lane(name) for name in (FIRST, SECOND)] == ["dra", "dra"]
    assert site.plan()["stopped"]["act"] == "pause"


def test_who_leads_next_finishes(site: Site, api: Api) -> None:
    first = leader(api)
    moved = json.dumps({"from": "", "to": "dra", "at": "2026-01-01T00:00:00Z", "by": "ada", "why": "x"})
    try:
        for name in MANY:
            scene.namespace(api, name)
            api.patch("namespaces", name, {"metadata": {"annotations": {MOVED: moved}}})
        site.run("step", "--wave", FIRST, "--why", "first wave")
        site.run("on-stop", "rollback")
        wait_for(lambda: api.list("configmaps", "dra-gate", labels="dra-gate.io/cohorts=true"), 60, "the first counts")
        site.fail("f1", "f2", "f3")

        def left() -> int:
            """Of these: namespaces that other tests left stay where they are."""
            there = api.list("namespaces", labels=f"{LANE}=dra")
            return sum(one["metadata"]["name"] in MANY for one in there)

        wait_for(lambda: left() < len(MANY), 60, "the way back to begin", every=0.02)
        site.gate.stop_controller(first, kill=True)
        there = left()
        assert there > 10, "it was not killed half-way"
        assert site.plan()["stopped"]["done"] is None
        leader(api, first)
        wait_for(lambda: not any(site.lane(name) == "dra" for name in (FIRST, *MANY)), 90, "the rest")
        wait_for(lambda: site.plan()["stopped"]["done"], 60, "the plan to say that it is done")
        for name in MANY:
            assert site.record(name)["to"] == "device-plugin"
    finally:
        for name in MANY:
            api.delete("namespaces", name, missing_ok=True)
