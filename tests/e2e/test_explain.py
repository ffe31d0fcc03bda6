"""`dra-gate explain` and `dra-gate snapshot` on a live cluster: what the scheduler does not say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from e2e import scene
from e2e.conftest import POLICIES

pytestmark = pytest.mark.controlplane


def run(control_plane: ControlPlane, *arguments: str, live: bool = True) -> str:
    command = [sys.executable, "-m", "dra_gate", *arguments]
    command += ["--kubeconfig", str(control_plane.kubeconfig_for()), "--policies", str(POLICIES)] if live else []
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_fallback_a_waiting_pod_and_the_same_from_a_snapshot(
    gate: Gate,
    control_plane: ControlPlane,
    api: Api,
    install_fleet: InstallFleet,
    clean: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """One node has four H100, another four A100; the tenant takes H100, then A100, then anything."""
    install_fleet("four-and-four")
    namespace = clean("e2e-ordered")
    secret = scene.container(gpus=4, env=[{"name": "TOKEN", "value": "s3cr3t"}], args=["--password=hunter2"])
    api.create(scene.pod("first", secret), namespace)
    scene.bound(api, namespace, "first")
    api.create(scene.pod("second", scene.container(gpus=4)), namespace)
    scene.bound(api, namespace, "second")
    api.create(scene.pod("third", scene.container(gpus=1)), namespace)
    scene.is_waiting(api, namespace, "third")

    def explained(name: str, *more: str, live: bool = True) -> dict[str, Any]:
        said = run(control_plane, "explain", "pod", f"{namespace}/{name}", "-o", "json", *more, live=live)
        found: dict[str, Any] = json.loads(said)
        return found

    second = explained("second")
    (request,) = second["claims"][0]["requests"]
    assert (second["state"], request["rank"], second["policy"]) == ("bound", 2, "ordered@1")
    h100 = request["candidates"][0]
    assert [(r["code"], r["devices"], r["holders"]) for r in h100["reasons"]] == [
        ("in-use", 4, [[f"{namespace}/first", 4]])
    ]
    third = explained("third")
    assert (third["state"], third["causes"]) == ("waiting", [])
    assert [
        (one["model"], one["published"], one["free"], [reason["code"] for reason in one["reasons"]])
        for one in third["claims"][0]["requests"][0]["candidates"]
    ] == [("h100", 4, 0, ["in-use"]), ("a100", 4, 0, ["in-use"]), ("l40s", 0, 0, ["none-published"])]

    file = tmp_path / "state.json"
    run(control_plane, "snapshot", "-o", str(file))
    kept = file.read_text()
    assert "s3cr3t" not in kept
    assert "hunter2" not in kept
    assert explained("third", "--snapshot", str(file), live=False) == third
    assert explained("second", "--snapshot", str(file), live=False) == second
