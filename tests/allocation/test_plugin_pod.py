"""`dra-gate explain` of a Pod that asks a device plugin: it has no claim to tell of, and is told of all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dra_gate.allocation.state import dumps
from dra_gate.cli.explain import command
from migration.clean import fault

FULL = "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) didn't match Pod's node affinity/selector."
STAMP = {
    "policy": "training",
    "policy-version": "7",
    "lane": "device-plugin",
    "candidates": "h100,a100",
    "devices": "2",
}


def explained(tmp_path: Path, **spec: Any) -> str:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "w",
            "namespace": "vision-train",
            "uid": "u1",
            "annotations": {f"dra-gate.io/{key}": value for key, value in STAMP.items()},
        },
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}], **spec},
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": FULL},
            ],
        },
    }
    (tmp_path / "state.json").write_bytes(dumps(fault(change=[pod])))
    done = CliRunner().invoke(command, ["pod", "vision-train/w", "--snapshot", str(tmp_path / "state.json")])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("spec", "state", "known"),
    [({}, "waits", "no node is chosen yet"), ({"nodeName": "plugin-0"}, "is on plugin-0", "only its node knows")],
)
def test_what_it_asks_for_and_where(tmp_path: Path, spec: dict[str, Any], state: str, known: str) -> None:
    told = explained(tmp_path, **spec)
    assert f"Pod vision-train/w {state}: in lane device-plugin it asks for 2 devices on nodes of h100 or a100" in told
    assert known in told
    assert "policy training@7" in told
    assert ("Insufficient nvidia.com/gpu" in told) is (not spec)
