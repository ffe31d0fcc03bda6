"""Client, reflector and lease against the real API server, over TLS."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time

import pytest

from cluster.test_lease import FAST, Candidate
from cluster.test_reflector import Store, eventually
from controlplane.api import Api
from controlplane.control_plane import API_SERVER, ControlPlane
from dra_gate.cluster.client import ApiError, Client, Conflict, NotFound
from dra_gate.cluster.reflector import Reflector

pytestmark = pytest.mark.controlplane


@pytest.fixture
def live(control_plane: ControlPlane) -> Client:
    return Client.connect(str(control_plane.kubeconfig_for()))


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_requests(live: Client, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    made = live.create(maps, config_map("a", x="1"))
    with pytest.raises(Conflict) as exists:
        live.create(maps, config_map("a"))
    assert exists.value.reason == "AlreadyExists"
    assert live.patch(f"{maps}/a", {"data": {"y": "2"}})["data"] == {"x": "1", "y": "2"}
    assert live.patch(f"{maps}/a", [{"op": "remove", "path": "/data/x"}], "application/json-patch+json")["data"] == {
        "y": "2"
    }
    with pytest.raises(Conflict):
        live.replace(f"{maps}/a", made)
    with pytest.raises(Conflict):
        live.delete(f"{maps}/a", uid="00000000-0000-0000-0000-000000000000")
    live.delete(f"{maps}/a", uid=made["metadata"]["uid"])
    with pytest.raises(NotFound):
        live.get(f"{maps}/a")
    with pytest.raises(ApiError, match="Invalid value") as invalid:
        live.create(maps, config_map("Not A Name"))
    assert (invalid.value.status, invalid.value.reason) == (422, "Invalid")


def test_a_claim_whose_parameters_are_nested_without_end_hides_no_other(live: Client, api: Api, namespace: str) -> None:
    """The API server takes them: they are the driver's business."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    config = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"a": "DEEP"}}}
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "deep"},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    }
    body = json.dumps(claim).replace('"DEEP"', "[" * 4500 + "]" * 4500).encode()
    store = Store()
    reflector = Reflector(live, path, store, "claims").start()
    try:
        assert reflector.synced.wait(10)
        with contextlib.suppress(RecursionError):  # the kit's own client can't read the answer
            api.request("POST", path, body)
        api.create({**claim, "metadata": {"name": "next"}, "spec": {"devices": {"requests": [request]}}}, namespace)
        eventually(lambda: set(store.objects) == {"deep", "next"})
        assert (reflector.failures, reflector.sink_failures) == (0, 0)
    finally:
        reflector.stop()
    listed = {item["metadata"]["name"]: item["spec"]["devices"] for item in live.list(path)}
    assert listed["deep"]["requests"] == listed["next"]["requests"]
    live.delete(f"{path}/deep")


def test_list_in_pages(live: Client, api: Api, namespace: str) -> None:
    api.create_many([config_map(f"m{i:03}") for i in range(30)], namespace)
    listing = live.list(f"/api/v1/namespaces/{namespace}/configmaps", limit=12)
    items = list(listing)
    names = [item["metadata"]["name"] for item in items]
    assert len(set(names)) == len(names) >= 30
    assert {(item["apiVersion"], item["kind"]) for item in items} == {("v1", "ConfigMap")}
    assert not any("managedFields" in item["metadata"] for item in items)
    assert int(listing.resource_version) > 0


def test_watch_closes_at_once_over_tls(live: Client) -> None:
    version = live.get("/api/v1/namespaces", {"limit": 1})["metadata"]["resourceVersion"]
    watch = live.watch("/api/v1/namespaces", {"resourceVersion": version})
    reader = threading.Thread(target=lambda: list(watch))
    reader.start()
    time.sleep(0.3)
    began = time.monotonic()
    watch.close()
    reader.join(10)
    assert not reader.is_alive()
    assert time.monotonic() - began < 5, "not when the watch ends or has been quiet for long"


def test_reflector_sees_a_frozen_server_and_goes_on_after_it(
    live: Client, api: Api, namespace: str, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_gate.cluster.client.QUIET_SECONDS", 2.0)
    monkeypatch.setattr("dra_gate.cluster.client.CONNECT_SECONDS", 1.0)
    store = Store()
    reflector = Reflector(live, f"/api/v1/namespaces/{namespace}/configmaps", store, "maps").start()
    try:
        assert reflector.synced.wait(10)
        control_plane.processes.signal(API_SERVER, signal.SIGSTOP)
        try:
            failures = reflector.failures
            eventually(lambda: reflector.failures > failures, 6)
            assert reflector.age() > 1.0
        finally:
            control_plane.processes.signal(API_SERVER, signal.SIGCONT)
        api.create(config_map("after"), namespace)
        eventually(lambda: "after" in store.objects, 10)
        assert reflector.lists == 1
    finally:
        began = time.monotonic()
        reflector.stop()
        assert not reflector.alive()
        assert time.monotonic() - began < 1.5


def test_lease_is_lost_in_time_when_the_server_freezes(live: Client, control_plane: ControlPlane, api: Api) -> None:
    if api.find("namespaces", "dra-gate") is None:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-gate"}})
    one, two = Candidate(live, "one"), Candidate(live, "two")
    try:
        one.lease.start()
        eventually(one.lease.held, 30)  # another test's controller may have been killed with it
        two.lease.start()
        time.sleep(1.5 * FAST.duration)
        assert two.words == []
        control_plane.processes.signal(API_SERVER, signal.SIGSTOP)
        try:
            assert eventually(lambda: "stopped" in one.words) < FAST.duration, "before anybody may take it"
            assert not one.lease.held()
        finally:
            control_plane.processes.signal(API_SERVER, signal.SIGCONT)
        eventually(lambda: one.lease.held() or two.lease.held(), 20)
        leader, other = (one, two) if one.lease.held() else (two, one)
        leader.lease.stop()
        eventually(other.lease.held, 5)
        spec = api.get("leases", "controller", "dra-gate")["spec"]
        assert spec["holderIdentity"] == other.lease.identity
        assert spec["leaseTransitions"] >= 1
    finally:
        one.lease.stop()
        two.lease.stop()
