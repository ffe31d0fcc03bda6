"""The decision writer on a small API server that can be made ill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from allocation import fleet
from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from controller.test_decision_plan import BOUND, claim, pod, said
from dra_gate.allocation.record import loads
from dra_gate.cluster.client import Client
from dra_gate.cluster.line_log import LineLog
from dra_gate.controller import decisions
from dra_gate.controller.decision_metrics import DecisionMetrics, Standing
from dra_gate.controller.decision_plan import CONDITION
from dra_gate.controller.decisions import DecisionController
from policy_publish.test_source import eventually

DRA = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/m1/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/m1/events"
WAITS = ("False", "Unschedulable", "0/1 nodes are available: 1 cannot allocate all claims.")
Fault = Callable[[Request], Answer | None]


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    """A node with an H100, and a claim and Pod that wait."""
    api = FakeApi()
    api.fault = version
    api.put("/api/v1/namespaces", {"metadata": {"name": "m1", "labels": {"dra-gate.io/lane": "dra"}}})
    api.put("/api/v1/nodes", {"metadata": {"name": "n1"}, **fleet.node()})
    api.put(f"{DRA}/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, **fleet.gpu_class()})
    api.put(
        f"{DRA}/resourceslices", {"metadata": {"name": "s"}, **fleet.slice_of("n1", [fleet.device("gpu-0", "h100")])}
    )
    api.put(f"{DRA}/namespaces/m1/resourceclaims", namespaced(claim()))
    api.put(PODS, pod(WAITS))
    yield api
    api.stop()


def version(request: Request) -> Answer | None:
    return (200, {"gitVersion": "v1.37.2"}, {}) if request.path == "/version" else None


def failing(times: float, code: int) -> Fault:
    """Writes are answered by `code` for so many seconds, from the first one on."""
    until: list[float] = []

    def fault(request: Request) -> Answer | None:
        if request.method != "GET":
            until.append(time.monotonic() + times)
            if time.monotonic() < until[0]:
                return code, status(code, "Fault"), {}
        return version(request)

    return fault


def namespaced(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "namespace": "m1"}}


@contextmanager
def controlling(
    fake: FakeApi, tmp_path: Path, *, lead: bool = True, log: LineLog | None = None
) -> Iterator[DecisionController]:
    client = Client.connect(str(kubeconfig(tmp_path / f"config-{time.monotonic_ns()}", fake.url)))
    controller = DecisionController(client, identity="t", leading=lambda: lead, log=log)
    controller.use([fleet.policy_set()])
    controller.start()
    controller.activate()
    try:
        yield controller
        assert controller.problems() == []
    finally:
        controller.stop()
        client.close()
    assert controller.problems() != []


def conditions(fake: FakeApi) -> list[dict[str, Any]]:
    found = fake.objects[f"{PODS}/p"]["status"]["conditions"]
    return [one for one in found if one["type"] == CONDITION]


def writes(fake: FakeApi) -> list[Request]:
    return [request for request in fake.requests if request.method != "GET"]


def events(fake: FakeApi) -> list[dict[str, Any]]:
    return [obj for path, obj in fake.objects.items() if path.startswith(EVENTS)]


@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_ill_server_is_not_stormed_and_all_is_said_once_when_it_is_well(
    fake: FakeApi, tmp_path: Path, code: int
) -> None:
    fake.fault = failing(4.0, code)
    log = LineLog(tmp_path / "records", 1 << 20)
    with controlling(fake, tmp_path, log=log):
        eventually(lambda: bool(writes(fake)))
        assert loads(log.last()).pod == "p", "recorded before it is told"
        eventually(lambda: bool(conditions(fake)), 20)
        time.sleep(1.0)
    (file,) = (tmp_path / "records").iterdir()
    assert len(file.read_bytes().splitlines()) == 1
    assert len(events(fake)) == 1
    tries = [request for request in writes(fake) if request.path == EVENTS]
    assert 2 <= len(tries) <= 8
    assert min(later.at - earlier.at for earlier, later in pairwise(tries)) >= 0.25


def test_an_event_that_is_there_already_is_said(fake: FakeApi, tmp_path: Path) -> None:
    """The one before us wrote the Event and died before the condition."""
    with controlling(fake, tmp_path):
        eventually(lambda: bool(conditions(fake)), 20)
    (first,) = events(fake)
    fake.put(PODS, pod(WAITS))  # without the condition
    with controlling(fake, tmp_path):
        eventually(lambda: bool(conditions(fake)), 20)
    assert [one["metadata"]["name"] for one in events(fake)] == [first["metadata"]["name"]]
    assert first["note"].startswith("Asked for 1 device under train@1.")
    assert conditions(fake)[0]["message"].endswith("[decision 1]")


def test_what_stands_on_the_pod_is_not_said_again(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path):
        eventually(lambda: bool(conditions(fake)), 20)
    before = len(writes(fake))
    with controlling(fake, tmp_path):
        time.sleep(2.0)
    assert len(writes(fake)) == before


def test_an_api_server_that_was_upgraded_is_asked_for_its_version_again(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "REFRESH_SECONDS", 0.0)
    with controlling(fake, tmp_path) as controller:
        eventually(lambda: bool(conditions(fake)), 20)
        fake.fault = lambda r: (200, {"gitVersion": "v1.38.0"}, {}) if r.path == "/version" else None
        fake.put(f"{DRA}/namespaces/m1/resourceclaims", namespaced(claim("gpu/h100")))
        eventually(lambda: controller._version == "v1.38.0", 20)


def test_who_does_not_lead_writes_nothing(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path, lead=False):
        time.sleep(2.0)
    assert writes(fake) == []


def test_a_namespace_that_is_not_gated_is_left_alone(fake: FakeApi, tmp_path: Path) -> None:
    fake.put("/api/v1/namespaces", {"metadata": {"name": "m1"}})
    with controlling(fake, tmp_path):
        time.sleep(1.5)
        assert writes(fake) == []
        fake.put("/api/v1/namespaces", {"metadata": {"name": "m1", "labels": {"dra-gate.io/lane": "dra"}}})
        eventually(lambda: bool(conditions(fake)), 20)


def test_allocated_it_is_said_with_model_and_number_two(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path):
        eventually(lambda: bool(conditions(fake)), 20)
        given = namespaced(claim("gpu/h100"))
        # As the scheduler does it: with who it is for, and before the Pod's condition says anything else.
        given["status"]["reservedFor"] = [{"uid": fake.objects[f"{PODS}/p"]["metadata"]["uid"]}]
        fake.put(f"{DRA}/namespaces/m1/resourceclaims", given)
        eventually(lambda: "dra-gate.io/model" in fake.objects[f"{PODS}/p"]["metadata"]["annotations"], 20)
    (told,) = conditions(fake)
    assert (told["status"], told["reason"]) == ("True", "FirstChoice")
    assert told["message"] == "h100, rank 1 of 2 of train@1: n1/gpu-0 [decision 2]"
    assert fake.objects[f"{PODS}/p"]["metadata"]["annotations"]["dra-gate.io/model"] == "h100"
    assert len(events(fake)) == 2


def test_another_pod_of_the_same_name_is_not_written_on(fake: FakeApi, tmp_path: Path) -> None:
    """The server says so by a conflict over the UID: nothing more is tried until the caches tell."""

    def fault(request: Request) -> Answer | None:
        if request.method == "PATCH":
            return 409, status(409, "Conflict"), {}
        return version(request)

    fake.fault = fault
    with controlling(fake, tmp_path):
        eventually(lambda: any(request.method == "PATCH" for request in writes(fake)), 20)
        time.sleep(2.0)
        assert len([request for request in writes(fake) if request.method == "PATCH"]) == 1


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[DecisionController]:
    """It has no threads: a test tells it what happens."""
    client = Client.connect(str(kubeconfig(tmp_path / "config", "http://127.0.0.1:9")))
    yield DecisionController(client, identity="t", leading=lambda: True)
    client.close()


def test_of_nodes_that_are_gone_nothing_is_kept(idle: DecisionController) -> None:
    for number in range(3):
        found = {"spec": {"nodeName": f"n{number}", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}}
        idle._take_room(("m1", "p"), found)
    assert list(idle._taken_on) == ["n2"]
    idle._take_room(("m1", "p"), {})
    assert idle._taken_on == {}


def test_of_namespaces_that_are_gone_nothing_is_kept(idle: DecisionController) -> None:
    """Whoever tests in a cluster makes a namespace for each run."""
    for number in range(3):
        key = f"run-{number}", "p"
        idle._set_claim(key, claim())
        idle._set_pod(key, pod(WAITS))
        idle._drop_pod(key)
        idle._drop_claim(key)
        idle._drop_claim(key)
    assert (idle._claims, idle._pods, idle._namers) == ({}, {}, {})


def test_of_amounts_that_no_pod_asks_for_any_more_nothing_is_kept(idle: DecisionController) -> None:
    """A vertical autoscaler writes numbers that no other Pod has."""
    for number in range(5000):
        asked = {"cpu": f"{number + 1}m"}
        key = "m1", f"p{number % 10}"
        idle._take_room(key, {"spec": {"nodeName": "n1", "containers": [{"resources": {"requests": asked}}]}})
    assert len(idle._amounts) < 2500
    asked = {"cpu": "5000m"}
    idle._take_room(("m1", "other"), {"spec": {"nodeName": "n1", "containers": [{"resources": {"requests": asked}}]}})
    assert idle._taken["m1", "other"][1] is idle._taken["m1", "p9"][1]


def test_claims_that_come_before_those_they_replace_have_gone_cost_little(idle: DecisionController) -> None:
    """So it is in a list after a long outage: all that is new comes first, then all that is gone goes."""

    def given(number: int) -> dict[str, Any]:
        made = claim()
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": f"n{number}", "device": "gpu-0"}]
        return {**made, "status": {"allocation": {"devices": {"results": results}}}}

    for number in range(2000):
        idle._set_claim(("m1", f"old-{number}"), given(number))
    began = time.process_time()
    for number in range(2000):
        idle._set_claim(("m1", f"new-{number}"), given(number))
    assert len(idle._capacity.doubled()) == 2000
    for number in range(2000):
        idle._drop_claim(("m1", f"old-{number}"))
    assert time.process_time() - began < 1.5
    assert idle._capacity.doubled() == {}


def test_nobody_waits_in_a_namespace_that_is_gated_no_more(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path) as controller:
        eventually(lambda: bool(conditions(fake)), 20)
        assert controller._standing().waiting
        fake.put("/api/v1/namespaces", {"metadata": {"name": "m1", "labels": {}}})
        eventually(lambda: not controller._standing().waiting)


def test_a_clock_that_is_behind_makes_no_negative_waits() -> None:
    """A sum that falls looks to Prometheus as if the process had started anew."""
    metrics = DecisionMetrics(Standing)
    metrics.decided(said(pod(BOUND), claim("gpu/h100")), -60.0)
    (waits,) = metrics._wait.collect()
    assert {one.name: one.value for one in waits.samples}["dra_gate_allocation_wait_seconds_sum"] == 0.0
