"""A device falls ill after it was allocated: what befalls its Pod, on the real control plane, by policy."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.api import Api, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.fleet import Fleet, taint_rule
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_running
from controlplane.processes import free_port
from e2e import scene

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]
POLICIES = Path(__file__).parent / "health_policies"
ROLE = Path(__file__).parents[2] / "deploy" / "components" / "recreate" / "rbac.yaml"
PORT = 0  # of the controller's metrics


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    """One that may evict."""
    global PORT
    PORT = free_port()  # not earlier: what all tests before this one start would take it
    control_plane.api().apply_yaml(ROLE.read_text())
    flags = ("--recreate", "--metrics-listen", f"127.0.0.1:{PORT}")
    with Gate(control_plane, POLICIES, controller_flags=flags) as installed:
        yield installed


def replica_set(name: str, replicas: int = 1, gpus: int = 1) -> Object:
    labels = {"app": name}
    template = scene.pod(name, scene.container(gpus=gpus))
    template["spec"].pop("restartPolicy")
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


def pods_of(api: Api, namespace: str, name: str) -> list[Object]:
    return api.list("pods", namespace, labels=f"app={name}")


def bound_pod_of(api: Api, namespace: str, name: str, but: str = "") -> Object:
    """The one Pod of a ReplicaSet that is bound, other than the one with UID `but`."""

    def look() -> Object | None:
        found = [p for p in pods_of(api, namespace, name) if "nodeName" in p["spec"] and p["metadata"]["uid"] != but]
        return found[0] if found else None

    return wait_for(look, 60, f"a bound Pod of {namespace}/{name}")


def told(api: Api, namespace: str, uid: str = "") -> list[Object]:
    """The Events about unhealthy devices, of one Pod where a UID is given."""
    events = api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events").body["items"]
    return [e for e in events if e["reason"] == "UnhealthyDevice" and uid in ("", e["regarding"]["uid"])]


def counted(name: str) -> dict[tuple[str, ...], float]:
    """The samples of one of the controller's metrics by their labels, in the order of their names."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
        page = answer.read().decode()
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


def test_recreate_alert_and_keep(gate: Gate, api: Api, install_fleet: InstallFleet, clean: Clean) -> None:
    install_fleet(
        Fleet.of(
            "health", {"nodes": [{"name": "hopper", "devices": {"h100": 8}}, {"name": "n2", "devices": {"a100": 8}}]}
        )
    )
    again, keep, alert = clean("e2e-recreate"), clean("e2e-keep"), clean("e2e-alert")
    for namespace in (again, keep, alert):
        api.create(replica_set("work"), namespace)
    api.create(replica_set("started"), again)
    api.create(scene.pod("alone"), again)
    before = {namespace: bound_pod_of(api, namespace, "work") for namespace in (again, keep, alert)}
    started = bound_pod_of(api, again, "started")
    alone = scene.bound(api, again, "alone")
    mark_running(api, again, started["metadata"]["name"])
    assert {pod["spec"]["nodeName"] for pod in (*before.values(), started, alone)} == {"hopper"}

    taint_rule(api, "broken", "gpu.nvidia.com/xid", value="79", pool="hopper")
    after = bound_pod_of(api, again, "work", but=before[again]["metadata"]["uid"])
    assert after["spec"]["nodeName"] == "n2"
    assert [given.alternative for given in scene.given(api, after)] == ["gpu/a100"]
    # No kubelet lets the old one go: it stands there, marked so that a Job may leave it out of its count.
    old = api.get("pods", before[again]["metadata"]["name"], again)
    assert "deletionTimestamp" in old["metadata"]
    reasons = {c["type"]: c.get("reason") for c in old["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "EvictionByEvictionAPI"
    delete_now(api, again, old["metadata"]["name"])

    def everything_told() -> bool:
        return len(told(api, again)) == 3 and len(told(api, alert)) == 1

    wait_for(everything_told, 20, "the Events")
    for pod, says in (
        (old, "its controller makes another"),
        (started, "The Pod has started and is left to its controller."),
        (alone, "has no controller that would make another"),
        (before[alert], "its policy says to leave it"),
    ):
        (event,) = told(api, pod["metadata"]["namespace"], pod["metadata"]["uid"])
        assert says in event["note"]
        assert "taint gpu.nvidia.com/xid=79:NoSchedule" in event["note"]
        assert event["regarding"]["name"] == pod["metadata"]["name"]
    done = {
        ("alert", "alerted", "alert"): 1,
        ("alert", "running", "recreate"): 1,
        ("alert", "uncontrolled", "recreate"): 1,
        ("recreate", "recreated", "recreate"): 1,
    }
    # Counted when the answer to an Event's write has come: somebody else may see the Event before that.
    wait_for(lambda: counted("dra_gate_health_actions_total") == done, 10, "each to be counted once")
    concerned = {
        ("taint", "no", "alert"): 1,
        ("taint", "no", "keep"): 1,
        ("taint", "no", "recreate"): 1,
        ("taint", "yes", "recreate"): 1,
    }
    wait_for(lambda: counted("dra_gate_pods_on_unhealthy_devices") == concerned, 10, "those who are concerned")

    # Another leader does not tell all of it again, and leaves alone what was left alone.
    gate.stop_controller(kill=True)
    gate.start_controller()
    wait_for(lambda: _answers() and len(counted("dra_gate_health_actions_total")) == 3, 60, "the new leader to judge")
    time.sleep(3)
    for namespace, pod in before.items():
        names = [p["metadata"]["uid"] for p in pods_of(api, namespace, "work")]
        assert names == [(after if namespace == again else pod)["metadata"]["uid"]]
    assert api.get("pods", "alone", again)["metadata"]["uid"] == alone["metadata"]["uid"]
    assert (len(told(api, again)), len(told(api, alert)), told(api, keep)) == (3, 1, [])

    # Well again: nobody is concerned.
    api.delete("devicetaintrules", "broken")
    wait_for(lambda: not counted("dra_gate_pods_on_unhealthy_devices"), 10, "everybody to be well")


def _answers() -> bool:
    try:
        counted("")
    except OSError:
        return False
    return True
