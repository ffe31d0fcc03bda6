"""The tests marked `cluster` run on any cluster with the gate; here the kit stands for one. And `make kind`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cluster import VARIABLE
from controlplane.control_plane import ControlPlane
from controlplane.gate import Gate
from deploy.kubectl import DEPLOY

ROOT = DEPLOY.parent
POLICIES = ROOT / "tests" / "controlplane_test" / "policies"


@pytest.mark.controlplane
def test_the_cluster_tests_on_a_cluster_named_by_its_kubeconfig(plane: ControlPlane) -> None:
    with Gate(plane, POLICIES, published=True):
        before = plane.api().get("gates", "default")["spec"]["active"]
        tests = [sys.executable, "-m", "pytest", "-q", "-k", "Job or A01", "tests/e2e"]
        environment = os.environ | {VARIABLE: str(plane.kubeconfig_for()), "PYTHONPATH": "tests"}
        done = subprocess.run(tests, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "5 passed" in done.stdout, done.stdout
        assert plane.api().get("gates", "default")["spec"]["active"] == before, "what was active is active again"


def test_without_an_engine_make_kind_says_what_is_missing_and_does_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "docker"  # as where the client is installed and no daemon runs
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "kind_cluster"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Docker or Podman" in done.stderr
    assert "kind and kubectl" in done.stderr
    assert "nothing was done" in done.stderr
