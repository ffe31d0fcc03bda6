"""`dra-gate canary` on the real API server: labels, the guard, and what the gate makes of new Pods."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api, wait_for
from controlplane.control_plane import TENANT, ControlPlane
from controlplane.gate import Gate
from deploy.test_guards import BINDING, ROLE
from dra_gate.admission.guards import GUARDS
from e2e import scene
from e2e.conftest import POLICIES

pytestmark = pytest.mark.controlplane
FIRST, SECOND = "e2e-wave-one", "e2e-wave-two"
LANE, MOVED = "dra-gate.io/lane", "dra-gate.io/canary"


@pytest.fixture
def guarded(gate: Gate, api: Api) -> Iterator[Gate]:
    """The guards hold, TENANT may do nearly everything by RBAC, and two of a tenant's namespaces are not gated."""
    bare = {"metadata": {"labels": {LANE: None}, "annotations": {MOVED: None}}}
    for name in (FIRST, SECOND):
        # With a label of its applier's: the API server tracks no writer of an object that nobody owns a field of.
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"made-by": "e2e"}}})
        api.patch("namespaces", name, bare)
    for obj in (ROLE, BINDING):
        api.apply(obj)
    api.apply_yaml(gate.command("guards"))
    yield gate
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        for guard in GUARDS:
            api.delete(kind, f"zz-dra-gate-{guard.id}", missing_ok=True)
    api.delete("clusterrolebindings", BINDING["metadata"]["name"])
    api.delete("clusterroles", ROLE["metadata"]["name"])
    api.delete("configmaps", "dra-gate-canary", "dra-gate", missing_ok=True)
    for name in (FIRST, SECOND):
        api.patch("namespaces", name, bare)


def run(kubeconfig: Path, *words: str, code: int = 0, policies: bool = True) -> str:
    where = ["--kubeconfig", str(kubeconfig), *(["--policies", str(POLICIES)] if policies else [])]
    done = subprocess.run(
        [sys.executable, "-m", "dra_gate", "canary", *words, *where], check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def gets_a_claim(api: Api, namespace: str) -> bool:
    """A new Pod that asks for a device gets a claim in its place."""
    made = api.create(scene.pod("probe"), namespace, dry_run=True)
    return bool(made["spec"].get("resourceClaims"))


def test_over_and_back(guarded: Gate, control_plane: ControlPlane, api: Api) -> None:
    admin, other = control_plane.kubeconfig_for(), control_plane.kubeconfig_for(TENANT)
    enroll = ("enroll", FIRST, "--why", "a try")

    def guard_says() -> bool:
        where = ["--kubeconfig", str(other), "--policies", str(POLICIES)]
        words = [sys.executable, "-m", "dra_gate", "canary", *enroll, "--dry-run", *where]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        print(done.returncode, done.stdout, done.stderr)
        return done.returncode == 2 and "only guardians change this (POLICY_LABEL)" in done.stderr

    wait_for(guard_says, 30, "the guards to be in force", every=1)
    assert "0 namespaces moved" in run(other, *enroll, code=2)
    assert LANE not in api.get("namespaces", FIRST)["metadata"].get("labels", {})
    assert not gets_a_claim(api, FIRST)

    step = ("step", "--wave", FIRST, "--wave", f"{FIRST},{SECOND}", "--why", "first")
    assert f"would move {FIRST}" in run(admin, *step, "--dry-run")
    assert not gets_a_claim(api, FIRST)
    run(admin, *step)
    wait_for(lambda: gets_a_claim(api, FIRST), 10, "the replicas to know the label")
    stored = api.get("namespaces", FIRST)["metadata"]
    record = json.loads(stored["annotations"][MOVED])
    assert (stored["labels"][LANE], record["by"], record["why"]) == ("dra", "admin", "first")
    events = [one for one in api.list("events", FIRST) if one["reason"] == "LaneEnrolled"]
    assert [one["message"] for one in events] == ["lane dra, before not gated; by admin: first"]

    api.patch("namespaces", SECOND, {"metadata": {"labels": {LANE: "dra"}}})  # as GitOps does
    rows: dict[str, dict[str, Any]] = {
        row["namespace"]: row for row in json.loads(run(admin, "status", "-o", "json"))["namespaces"]
    }
    assert (rows[FIRST]["wave"], rows[FIRST]["by"], rows[FIRST]["note"]) == (1, "admin", "")
    assert (rows[SECOND]["wave"], rows[SECOND]["note"]) == (2, "labelled by somebody else")
    assert rows[SECOND]["since"] is not None

    said = run(admin, "rollback", "--why", "a hard stop", code=1, policies=False)
    assert f"moved {FIRST}: dra → device-plugin" in said
    assert f"left alone {SECOND}: somebody else labelled it" in said
    wait_for(lambda: not gets_a_claim(api, FIRST), 10, "the replicas to know the label")
    assert gets_a_claim(api, SECOND)
    assert "the plan is paused, by admin" in run(admin, "step", "--why", "on", code=1)
    run(admin, "pause", "--off", policies=False)
    assert "it was rolled back by admin" in run(admin, "step", "--why", "on", code=1)
    assert "--force" in run(admin, *enroll, code=1)
    run(admin, *enroll, "--force")
    wait_for(lambda: gets_a_claim(api, FIRST), 10, "the replicas to know the label")
