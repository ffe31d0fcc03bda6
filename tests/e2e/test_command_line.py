"""The command line against a live cluster, and as a kubectl plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.gate import Gate
from e2e import scene
from e2e.conftest import POLICIES
from e2e.granted import ledger

pytestmark = pytest.mark.controlplane
BIN = Path(sys.executable).parent


def test_kubectl_finds_the_plugin_and_review_reads_the_live_cluster(
    gate: Gate, control_plane: ControlPlane, api: Api, clean: Callable[[str], str], tmp_path: Path
) -> None:
    namespace = clean("e2e-floored")
    api.create(scene.pod("holder", scene.container(gpus=4)), namespace)
    pods = [scene.pod("fits", scene.container(gpus=2)), scene.pod("too-many", scene.container(gpus=3))]
    for pod in pods:
        pod["metadata"]["namespace"] = namespace
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(pods))

    def verdicts() -> list[str]:
        command = [control_plane.kubectl, "dra-gate", "review", "--policies", POLICIES, "-o", "json", file]
        command += ["--kubeconfig", control_plane.kubeconfig_for()]
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
        assert done.returncode in (0, 1), done.stderr
        return [entry["verdict"] for entry in json.loads(done.stdout)]

    # Made once the template is there, by a controller that tries again at ever longer intervals.
    wait_for(lambda: api.list("resourceclaims", namespace), 60, "the holder's claim")
    wait_for(lambda: ledger(api, "floored").get("devices") == 4, 30, "the ledger, which review goes by, to count it")
    assert verdicts() == ["mutate", "deny"]


def test_help_is_quick_and_every_verb_has_examples() -> None:
    program = [str(BIN / "dra-gate")]
    for verb in (
        "serve",
        "controller",
        "webhooks",
        "certs",
        "review",
        "explain",
        "what-if",
        "queue",
        "snapshot",
        "replay",
        "demo",
    ):
        done = subprocess.run([*program, verb, "--help"], capture_output=True, text=True, check=True)
        assert "Examples:" in done.stdout
    environment = {**os.environ, "_DRA_GATE_COMPLETE": "bash_source"}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=True)
    assert "complete" in done.stdout
