"""What breaks around the gate: the API server and etcd away and back, a replica killed, and nothing to mend by hand."""

from __future__ import annotations

import json
import os
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import urllib3

from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import API_SERVER, ETCD, ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from e2e import scene

pytestmark = pytest.mark.controlplane
NAMESPACE = "e2e-outage"
AWAY_SECONDS = 12


def ask(gate: Gate, replica: str, pod: dict[str, Any]) -> dict[str, Any]:
    """The answer of one replica to a CREATE, asked as the API server asks."""
    context = ssl.create_default_context(cafile=str(gate.ca_file))
    request = {
        "uid": "x",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "userInfo": {"username": "ada"},
        "object": pod,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    with urllib3.PoolManager(ssl_context=context, retries=False, timeout=5) as http:
        answer = http.request("POST", f"{gate.replica_url(replica)}/mutate", json=review)
    assert answer.status == 200, answer.data
    response: dict[str, Any] = json.loads(answer.data)["response"]
    return response


def workers(gate: Gate, plane: ControlPlane) -> dict[str, int]:
    """Process ids of the serving processes, by replica."""
    found = {}
    for replica in gate.replicas:
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                master = (Path("/proc") / str(parent) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue
            listen = gate.replica_url(replica).removeprefix("https://")
            if f"--listen {listen}" in command and f"--listen {listen}" in master and command == master:
                found[replica] = int(folder.name)
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_api_server_away(
    gate: Gate, control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, clean: Callable[[str], str]
) -> None:
    install_fleet("demo")
    clean(NAMESPACE)
    pids = workers(gate, control_plane)
    assert set(pids) == set(gate.replicas)
    control_plane.stop(API_SERVER)
    try:
        time.sleep(1)
        before = {replica: cpu_seconds(pid) for replica, pid in pids.items()}
        time.sleep(AWAY_SECONDS)
        for replica, pid in pids.items():
            spent = cpu_seconds(pid) - before[replica]
            assert spent < 0.1 * AWAY_SECONDS, f"{replica} spun: {spent:.2f} s of CPU in {AWAY_SECONDS} s"
            assert ask(gate, replica, scene.pod("p"))["patchType"] == "JSONPatch", "verdicts go on from the caches"
    finally:
        control_plane.start(API_SERVER)
    wait_for(lambda: created(api, "after"), 30, "a Pod to be created again")
    assert scene.given(api, scene.bound(api, NAMESPACE, "after", 60))[0].alternative == "gpu/h100"


def created(api: Api, name: str) -> bool:
    try:
        api.create(scene.pod(name), NAMESPACE)
    except ApiError as problem:
        if "denied the request" in problem.message:
            raise
        return problem.reason == "AlreadyExists"  # by an attempt whose answer was lost
    return True


def test_etcd_restarted(
    gate: Gate, control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, clean: Callable[[str], str]
) -> None:
    install_fleet("demo")
    clean(NAMESPACE)
    control_plane.restart(ETCD)
    wait_for(lambda: created(api, "after-etcd"), 60, "a Pod to be created again")
    stored = scene.bound(api, NAMESPACE, "after-etcd", 60)
    assert stored["metadata"]["annotations"]["dra-gate.io/tenant"] == "ordered"


def test_a_replica_killed_as_by_the_kernel_for_memory(
    gate: Gate, control_plane: ControlPlane, api: Api, clean: Callable[[str], str]
) -> None:
    """The other replica goes on; the killed one is back by itself, and never answers before its caches are filled."""
    clean(NAMESPACE)
    victim = gate.replicas[0]
    before = workers(gate, control_plane)[victim]
    os.kill(before, signal.SIGKILL)
    refused = []
    for number in range(40):
        try:
            api.create(scene.pod(f"k{number}"), NAMESPACE, dry_run=True)
        except ApiError as problem:
            refused.append(problem)
        time.sleep(0.05)
    # A call that was under way fails: validate's is refused by the API server, mutate's lets the Pod pass to a validate
    # that says so. Nothing is stored raw.
    told = ("failed calling webhook", "mutating webhook, which makes claims of such requests, was not reached")
    assert all(any(text in problem.message for text in told) for problem in refused), refused
    assert len(refused) < 10, "the other replica goes on"
    wait_for(lambda: workers(gate, control_plane).get(victim, before) != before, 15, "the master to start a new worker")
    gate.forwarder.wait_ready(len(gate.replicas), 20)
    assert ask(gate, victim, scene.pod("p"))["patchType"] == "JSONPatch"
