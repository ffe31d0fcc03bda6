"""`dra-gate preflight` on a live cluster with two pools, and the same from a snapshot of it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet, cordon
from controlplane.gate import Gate
from e2e import scene
from e2e.conftest import POLICIES

pytestmark = pytest.mark.controlplane
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
POOLS = {
    "nodes": [
        {"name": "dra", "devices": {"h100": 2}, "labels": {"pool": "dra"}},
        {"name": "both", "devices": {"h100": 2}, "allocatable": {"nvidia.com/gpu": 2}, "labels": {"pool": "dra"}},
        {"name": "plugin", "allocatable": {"nvidia.com/gpu": 8}, "labels": PRODUCT | {"pool": "plugin"}},
    ]
}


def run(*arguments: str, code: int) -> str:
    done = subprocess.run([sys.executable, "-m", "dra_gate", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def documents() -> Iterator[Any]:
    """The catalogue, policies and tenants of these tests."""
    for file in sorted(POLICIES.glob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text()):
            if one["kind"] in ("DeviceCatalog", "DevicePolicy", "Tenant"):
                yield one


def test_both_pools(
    gate: Gate,
    control_plane: ControlPlane,
    api: Api,
    install_fleet: InstallFleet,
    clean: Callable[[str], str],
    tmp_path: Path,
) -> None:
    fleet = Fleet.of("pools", POOLS)
    nic = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "nic.example", "labels": fleet.classes[0]["metadata"]["labels"]},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic.example'"}}]},
    }
    install_fleet(dataclasses.replace(fleet, classes=(*fleet.classes, nic)))
    namespace = clean("e2e-ordered")
    policies = tmp_path / "policies"
    policies.mkdir()
    mine = [one for one in documents() if one["kind"] != "Tenant" or namespace in one["spec"]["namespaces"]]
    (policies / "all.yaml").write_text(yaml.safe_dump_all(mine))  # other tests leave their tenants' namespaces behind
    live = ("--kubeconfig", str(control_plane.kubeconfig_for()), "--policies", str(policies))

    def checked(*where: str) -> dict[str, Any]:
        body = json.loads(run("preflight", *where, "-o", "json", code=1))
        return {one["id"]: one for one in body["checks"]}

    def has_templates() -> bool:
        """In each namespace of the tenant: a gate of other policies may have taken those of other tests away."""
        there = [one["metadata"]["name"] for one in api.list("namespaces", labels="dra-gate.io/lane=dra")]
        named = [name for one in mine if one["kind"] == "Tenant" for name in one["spec"]["namespaces"]]
        return all(len(api.list("resourceclaimtemplates", name)) >= 8 for name in named if name in there)

    wait_for(has_templates, 30, f"the templates of {namespace} and its tenant's others")
    found = checked(*live)
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "block"} == {"both-allocators", "slips-through"}
    assert found["both-allocators"]["findings"][0]["subjects"] == ["both"]
    assert found["slips-through"]["findings"][0]["subjects"] == ["dra"]  # the kit's class has the name
    assert verdicts["default-runtime"] == "unknown"
    assert verdicts["rights"] in ("ok", "warn")  # the kit installs no right to evict; other tests may have
    read = ("webhooks", "versions", "templates", "capacity", "pool-labels", "classes", "quotas", "kueue")
    assert [name for name in read if verdicts[name] != "ok"] == []

    file = str(tmp_path / "state.json")
    run("snapshot", *live, "-o", file, code=0)
    assert checked("--snapshot", file) == found
    assert b"DRAPrioritizedList" in Path(file).read_bytes()  # told by /metrics

    api.create(scene.pod("first", scene.container(gpus=1)), namespace)
    scene.bound(api, namespace, "first")
    on = api.get("pods", "first", namespace)["spec"]["nodeName"]
    cordon(api, on)
    step = ("preflight", *live, "--node", on, "--to", "device-plugin")
    assert "a claim is reserved for Pod first" in run(*step, code=1)
    cordon(api, on, on=False)
