"""What the controller counts of Pods in both lanes, against what was done to them; a leader is killed in the middle.

What a kubelet would write is constructed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import STRATEGIC, Api, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_running, mark_succeeded
from dra_gate.migration.cohort import Cohorts
from e2e import scene

pytestmark = pytest.mark.controlplane
DRA, OLD = "e2e-count-dra", "e2e-count-old"
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
LABEL = "nvidia.com/gpu.product"
TENANT = f"""\
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {{name: counted}}
spec: {{namespaces: [{DRA}, {OLD}], policy: ordered@1}}
---
"""
FLEET = {
    "nodes": [
        {"name": "count-h", "devices": {"h100": 4}, "labels": {"pool": "dra", LABEL: H100}},
        {"name": "count-a", "devices": {"a100": 4}, "labels": {"pool": "dra", LABEL: A100}},
        {"name": "count-ph", "allocatable": {"nvidia.com/gpu": 4}, "labels": {"pool": "plugin", LABEL: H100}},
        {"name": "count-pa", "allocatable": {"nvidia.com/gpu": 4}, "labels": {"pool": "plugin", LABEL: A100}},
    ]
}


@pytest.fixture
def site(control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, tmp_path: Path) -> Iterator[Gate]:
    """The gate with two controllers; a gated namespace and one that is not, of one tenant."""
    policies = tmp_path / "policies"
    policies.mkdir()
    given = Path(__file__).parent / "policies"
    for file in given.glob("*.yaml"):
        (policies / file.name).write_text(TENANT + file.read_text())
    install_fleet(Fleet.of("count", FLEET))
    scene.namespace(api, DRA)
    scene.namespace(api, OLD, {"made-by": "e2e"})
    drop(api)
    api.delete("leases", "dra-gate-controller", "dra-gate", missing_ok=True)
    with Gate(control_plane, policies, controllers=2) as gate:
        yield gate
        scene.clear(api, DRA, OLD)
    drop(api)


def drop(api: Api) -> None:
    api.delete_all("configmaps", "dra-gate", labels="dra-gate.io/cohorts=true")


def leader(api: Api, but: str = "") -> str:
    """Who leads, once it isn't that one."""

    def holds() -> str | None:
        lease = api.find("leases", "dra-gate-controller", "dra-gate")
        holder = str((lease or {}).get("spec", {}).get("holderIdentity") or "")
        return holder if holder and holder != but else None

    return wait_for(holds, 60, "a leader", every=0.2)


def run(api: Api, namespace: str, name: str, product: str = "", **containers: Any) -> Object:
    """Create the Pod; it, once it is bound."""
    pool = "dra" if namespace == DRA else "plugin"
    selector = {"pool": pool, **({LABEL: product} if product else {})}
    api.create(scene.pod(name, nodeSelector=selector), namespace)
    return scene.bound(api, namespace, name)


def status(api: Api, namespace: str, name: str, **written: Any) -> None:
    api.patch("pods", name, {"status": written}, namespace, subresource="status", content_type=STRATEGIC)


def restart(api: Api, namespace: str, name: str) -> None:
    """Its container ended a moment after it began, and runs again."""
    found = api.get("pods", name, namespace)["status"]["containerStatuses"][0]
    since = found["state"]["running"]["startedAt"]
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": since, "finishedAt": since}}
    status(api, namespace, name, containerStatuses=[{**found, "restartCount": 1, "lastState": ended}])


def event(api: Api, pod: Object, reason: str, message: str) -> None:
    metadata = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", **{key: metadata[key] for key in ("namespace", "name", "uid")}}
    body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{metadata['name']}.{reason.lower()}"},
            "involvedObject": about, "reason": reason, "message": message, "type": "Warning",
            "firstTimestamp": metadata["creationTimestamp"], "lastTimestamp": metadata["creationTimestamp"],
            "count": 1, "source": {"component": "kubelet"}}  # fmt: skip
    api.create(body, metadata["namespace"])


def counts(kubeconfig: Path) -> Cohorts | None:
    """What the command line reads from the cluster."""
    words = [sys.executable, "-m", "dra_gate", "canary", "report", "-o", "cohorts", "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(words, check=False, capture_output=True)
    return Cohorts.loads(done.stdout) if done.returncode == 0 else None


def summed(cohorts: Cohorts | None) -> dict[str, dict[str, int]]:
    """By lane, over all hours; of one cohort each."""
    found: dict[str, Counter[str]] = {}
    for cells in cohorts.hours.values() if cohorts is not None else ():
        for key, cell in cells.items():
            assert (key.tenant, key.size, key.first) == ("counted", 1, "h100")
            assert key.policy == ("ordered@1" if key.lane == "dra" else "")
            into = found.setdefault(key.lane, Counter())
            for name in cell.__struct_fields__:
                if name not in ("waits", "held"):
                    into[name] += getattr(cell, name)
            into["bound"] += cell.bound
            into["held"] |= cell.held > 0  # of Pods of two hours, maybe
    return {lane: dict(+counter) for lane, counter in found.items()}


def test_the_counts_are_exact_though_the_leader_is_killed(site: Gate, control_plane: ControlPlane, api: Api) -> None:
    first = leader(api)
    kubeconfig = control_plane.kubeconfig_for()
    wait_for(lambda: api.list("configmaps", "dra-gate", labels="dra-gate.io/cohorts=true"), 60, "the first write")

    dra = [run(api, DRA, f"d{number}") for number in range(6)]  # four H100, then two A100
    old = [run(api, OLD, f"o{number}", H100 if number < 2 else A100) for number in range(4)]
    mark_running(api, DRA, "d0")
    mark_running(api, DRA, "d1")
    restart(api, DRA, "d1")
    event(api, dra[2], "FailedPrepareDynamicResources", "NodePrepareResources failed for ResourceClaim x")
    mark_running(api, DRA, "d2")
    status(api, DRA, "d3", phase="Failed", reason="Evicted")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    status(api, DRA, "d4", containerStatuses=[{"name": "main", "image": "x", "imageID": "", "ready": False,
           "restartCount": 0, "state": waiting}])  # fmt: skip
    for name in ("o0", "o1", "o2"):
        mark_running(api, OLD, name)
    status(api, OLD, "o3", phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed")
    container = scene.container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": template}
    api.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "refused"}, "spec": spec}, DRA)
    wait_for(
        lambda: any(one["reason"] == "FailedCreate" for one in api.list("events", DRA)), 30, "the refusal of its Pod"
    )
    # Its controller tries on, and a refusal counts once an hour: a test across a full hour would see two.
    api.patch("replicasets", "refused", {"spec": {"replicas": 0}}, DRA)
    # These come to their end unwritten: who leads next has seen them.
    mark_succeeded(api, DRA, "d5")
    mark_succeeded(api, OLD, "o0")
    for namespace, name in ((DRA, "d5"), (OLD, "o0")):
        delete_now(api, namespace, name)
    site.stop_controller(first, kill=True)

    wanted = {
        "dra": {"submitted": 6, "denied": 1, "first": 4, "started": 4, "failed": 1, "prepare_failed": 1,
                "restarted": 1, "bound": 6, "held": 1},
        "device-plugin": {"submitted": 4, "first": 2, "started": 3, "failed": 1, "prepare_failed": 1, "bound": 4,
                          "held": 1},
    }  # fmt: skip
    second = leader(api, first)
    wait_until(kubeconfig, wanted)
    assert dra[0]["spec"]["nodeName"] == "count-h"
    assert old[3]["spec"]["nodeName"] == "count-pa"

    # In order: what was not written is when it stops.
    site.start_controller(first)
    run(api, DRA, "d6")
    mark_running(api, DRA, "d6")
    api.patch("namespaces", OLD, {"metadata": {"labels": {"dra-gate.io/lane": "device-plugin"}}})
    wait_for(lambda: annotated(api, "d6"), 20, "the controller to have seen it")
    site.stop_controller(second)
    leader(api, second)
    wanted["dra"] |= {"submitted": 7, "first": 5, "started": 5, "bound": 7}
    wait_until(kubeconfig, wanted)

    def marks() -> list[str]:
        """Of our namespace; other tests' may be going meanwhile."""
        return [one.text for one in (counts(kubeconfig) or Cohorts()).marks if OLD in one.text]

    # Seen up to six seconds after a leader has begun and written, and written with the next write, half a minute later.
    assert wait_for(marks, 90, "the mark", every=2) == [f"1 namespace to lane device-plugin: {OLD}"]
    told = subprocess.run(
        [sys.executable, "-m", "dra_gate", "canary", "report", "-o", "json", "--kubeconfig", str(kubeconfig)],
        check=False, capture_output=True,
    )  # fmt: skip
    assert json.loads(told.stdout)["whole"]["pods"] == {"dra": 7, "device-plugin": 4}


def annotated(api: Api, name: str) -> bool:
    return "dra-gate.io/model" in api.get("pods", name, DRA)["metadata"]["annotations"]


def wait_until(kubeconfig: Path, wanted: dict[str, dict[str, int]]) -> None:
    found: dict[str, dict[str, int]] = {}

    def equal() -> bool:
        found.clear()
        found.update(summed(counts(kubeconfig)))
        return found == wanted

    try:
        wait_for(equal, 70, "the counts", every=1)
    except Exception:
        assert found == wanted
        raise
