"""`dra-gate preflight`: what it prints, its exit codes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dra_gate.allocation.state import dumps
from dra_gate.cli import state
from dra_gate.cli.main import root
from dra_gate.cluster.client import api_error
from dra_gate.migration.waves import OnStop, Plan
from migration.clean import fault


def run(folder: Path, *arguments: str, **faults: Any) -> Result:
    file = folder / "state.json"
    file.write_bytes(dumps(fault(**faults)))
    return CliRunner().invoke(root, ["preflight", "--snapshot", str(file), *arguments])


def test_ready(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    head, well = done.stdout.splitlines()
    assert head == "READY: 18 well"
    assert well.startswith("well: both-allocators, pool-labels, ")


def test_blocked_in_text_and_json(tmp_path: Path) -> None:
    gone = {"without": ["DeviceClass/gpu.nvidia.com", "Pod/gpu-operator/toolkit-a", "Node/plugin-0", "Node/plugin-1"]}
    done = run(tmp_path, **gone)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "BLOCKED: 1 check in the way, 1 warning, 1 that cannot be seen from here and 15 well"
    assert lines[1].startswith("block  classes: gpu.nvidia.com: there is no such DeviceClass")
    assert lines[2].startswith("       → install the driver's DeviceClasses")
    assert [line[:24] for line in lines if line[0] != " "][2:4] == [
        "warn   capacity: device-",
        "?      default-runtime: ",
    ]
    done = run(tmp_path, "-o", "json", **gone)
    body = json.loads(done.stdout)
    assert (done.exit_code, body["kind"], body["verdict"]) == (1, "Preflight", "blocked")
    (classes,) = [one for one in body["checks"] if one["id"] == "classes"]
    assert (classes["verdict"], classes["findings"][0]["subjects"]) == ("block", ["gpu.nvidia.com"])
    assert len(body["checks"]) == 18
    assert yaml.safe_load(run(tmp_path, "-o", "yaml", **gone).stdout) == body


def test_cannot_tell(tmp_path: Path) -> None:
    done = run(tmp_path, unread=["Role"])
    assert done.exit_code == 2
    assert done.stdout.startswith(
        "CANNOT TELL: 1 that cannot be seen from here and 17 well\n?      rights: Roles could"
    )


def test_less_grave_findings_of_a_check_say_so(tmp_path: Path) -> None:
    done = run(tmp_path, version="v1.34.2", unread=["FeatureGate"])
    _, first, second, *_ = done.stdout.splitlines()
    assert first.startswith("warn   versions: Kubernetes v1.34.2 promises no order")
    assert second.startswith("       (?) feature gates: GET /metrics")


def test_what_may_not_be_read_is_left_out() -> None:
    class Asked:
        def list(self, path: str) -> list[Any]:
            if "rbac" in path:
                raise api_error(403, {"reason": "Forbidden"})
            return []

        def get(self, path: str) -> Any:
            assert path.endswith("/dra-gate-canary")
            return {"metadata": {"name": "dra-gate-canary"}, "data": {"plan.json": plan}}

        def read(self, path: str) -> bytes:
            assert path == "/metrics"
            return (
                b"# TYPE kubernetes_feature_enabled gauge\n"
                b'kubernetes_feature_enabled{name="DRAPrioritizedList",stage=""} 1\n'
                b'kubernetes_feature_enabled{name="DRADeviceTaints",stage="BETA"} 0\n'
                b'kubernetes_feature_enabled{name="Other",stage="BETA"} 1\n'
            )

    plan = Plan("s", on_stop=OnStop("rollback")).dumps()
    found = state._around(Asked())  # type: ignore[arg-type]
    assert [one["onStop"] for one in found["CanaryPlan"]] == ["rollback"]
    plan = "{"
    assert state._around(Asked())["CanaryPlan"] == []  # type: ignore[arg-type]
    assert not [kind for kind in found if "Role" in kind]
    assert {one["metadata"]["name"]: one["enabled"] for one in found["FeatureGate"]} == {
        "DRAPrioritizedList": True,
        "DRADeviceTaints": False,
    }
    assert found["RuntimeClass"] == []


def test_a_node(tmp_path: Path) -> None:
    done = run(tmp_path, "--node", "dra-0", "--to", "device-plugin")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "next: kubectl cordon dra-0"
    body = json.loads(run(tmp_path, "--node", "dra-0", "--to", "device-plugin", "-o", "json").stdout)
    assert body["next"] == "kubectl cordon dra-0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--node", "dra-0"), "give both"),
        (("--to", "dra"), "give both"),
        (("--node", "gpu-9", "--to", "dra"), "there is no node gpu-9"),
        (("--policies", "."), "goes with a live cluster"),
        (("--kubeconfig", "x"), "give one of the two"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(tmp_path, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
