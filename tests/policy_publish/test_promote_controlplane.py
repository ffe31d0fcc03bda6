"""A policy version as a canary on a real control plane: two side by side, then one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.api import Api, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from dra_gate.policy.load import load
from e2e import scene
from policy_publish.sets import CATALOGUE

pytestmark = pytest.mark.controlplane
USUAL, CANARY = "promote-usual", "promote-canary"
TENANT = f"""\
# Who tries what.
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {{name: maple}}
spec:
  namespaces: [{USUAL}, {CANARY}]
  policy: train@7 # since spring
  canary: {{policy: train@8, namespaces: [{CANARY}]}}
"""


def policy(version: int, *candidates: str) -> str:
    return f"""\
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {{name: train, version: {version}}}
spec: {{serves: [nvidia.com/gpu], candidates: [{", ".join(candidates)}]}}
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """train@8 turns the order of train@7 round: whom it gives the other model is seen at once."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "catalog.yaml").write_text(CATALOGUE)
    (folder / "train.yaml").write_text(f"{policy(7, 'h100', 'a100')}---\n{policy(8, 'a100', 'h100')}")
    (folder / "tenants.yaml").write_text(TENANT)
    return folder


@pytest.fixture
def running(control_plane: ControlPlane, api: Api, policies: Path, install_fleet: InstallFleet) -> Iterator[Gate]:
    install_fleet("four-and-four")
    for name in (USUAL, CANARY):
        scene.namespace(api, name)
    with Gate(control_plane, policies, replicas=2, published=True) as installed:
        yield installed
        scene.clear(api, USUAL, CANARY)
    for name in (USUAL, CANARY):
        api.delete("namespaces", name)
    api.delete_all("gates")
    api.delete_all("configmaps", "dra-gate", labels="dra-gate.io/policy-set=true")


def canaries(running: Gate) -> list[Object]:
    said = running.command("canary", "status", "-o", "json", "--kubeconfig", running.plane.kubeconfig_for())
    found: list[Object] = json.loads(said)["policyCanaries"]
    return found


def version(pod: Object) -> str:
    stamp = pod["metadata"]["annotations"]
    return f"{stamp['dra-gate.io/policy']}@{stamp['dra-gate.io/policy-version']}"


def got(api: Api, namespace: str, name: str) -> tuple[str, str]:
    """The version on the Pod's stamp and the alternative that it got, once it is on a node."""
    pod = scene.bound(api, namespace, name)
    (one,) = scene.given(api, pod)
    return version(pod), one.alternative.rpartition("/")[2]


def test_two_versions_side_by_side_then_one(running: Gate, policies: Path, api: Api) -> None:
    api.create(scene.pod("before"), USUAL)
    api.create(scene.pod("before"), CANARY)
    late = api.create(scene.pod("late", schedulingGates=[{"name": "example.com/later"}]), USUAL)
    assert version(late) == "train@7"
    assert got(api, USUAL, "before") == ("train@7", "h100")
    assert got(api, CANARY, "before") == ("train@8", "a100")
    (shown,) = canaries(running)
    assert (shown["namespaces"], shown["pods"]) == ([CANARY], {"train@8": 1, "train@7": 2})

    old, earlier = load(policies), (policies / "tenants.yaml").read_text()
    running.command("policy", "promote", "maple", "--policies", policies)
    assert (policies / "tenants.yaml").read_text() == earlier.replace(
        f"train@7 # since spring\n  canary: {{policy: train@8, namespaces: [{CANARY}]}}",
        "train@8 # since spring\n  keepVersions: [7]",
    )
    assert version(api.create(scene.pod("try"), USUAL, dry_run=True)) == "train@7"  # promoted is not published
    assert f"instead of {old.digest[:12]}" in running.policy("publish", policies, "--activate", "--wait")
    wait_for(
        lambda: {version(api.create(scene.pod("try"), USUAL, dry_run=True)) for _ in range(8)} == {"train@8"},
        10,
        "the replicas to follow",
    )
    for namespace in (USUAL, CANARY):
        api.create(scene.pod("after"), namespace)
        assert got(api, namespace, "after") == ("train@8", "a100")

    # What was stamped with the old version goes on: it may be changed, gets its claim, and its template may be named.
    api.patch("pods", "before", {"metadata": {"labels": {"team": "a"}}}, USUAL)
    api.patch("pods", "late", {"spec": {"schedulingGates": []}}, USUAL)
    assert got(api, USUAL, "late") == ("train@7", "h100")
    named = scene.pod("named", {**scene.container(gpus=0), "resources": {"claims": [{"name": "gpus"}]}})
    template = late["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    named["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
    api.create(named, USUAL)
    assert got(api, USUAL, "named") == ("train@7", "h100")
    assert canaries(running) == []
