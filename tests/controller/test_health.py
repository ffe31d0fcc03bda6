"""The loop that looks after Pods on unhealthy devices: its pace, and what it does when the API server says no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from allocation import fleet
from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.allocation.health import BUDGET, REFILL_SECONDS, SETTLE_SECONDS
from dra_gate.cluster.client import Client
from dra_gate.controller import health
from dra_gate.controller.health import STALE_SECONDS, TOLD, WRITES, HealthController
from dra_gate.policy.model import PolicySet

NODE = ("", "n1")
TAINT = {"key": "xid", "value": "79", "effect": "NoSchedule"}


def policy_set(word: str = "recreate") -> PolicySet:
    return fleet.policy_set(
        {
            **fleet.API,
            "kind": "DevicePolicy",
            "metadata": {"name": "ours", "version": 1},
            "spec": {"serves": ["nvidia.com/gpu"], "candidates": ["h100"], "onUnhealthy": word},
        }
    )


class Loop:
    """The loop's rounds by hand, on a clock that only moves when told, over a cluster that is told to it."""

    def __init__(self, api: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        self.now = 1000.0
        self.sets: list[PolicySet] | None = [policy_set()]
        self.enforcing = {"m1"}
        monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.controller = HealthController(
            client, lambda: self.sets, lambda: self.enforcing, recreate=True, identity="t", leading=lambda: True
        )
        self.controller._complete = True
        for one in self.controller.reflectors:
            one.synced.set()
            one._version = "1"
        self.controller._capacity.set_node(NODE, fleet.node())
        self.taint()

    def taint(self, *taints: dict[str, str]) -> None:
        devices = [fleet.device(f"gpu-{number}", "h100", taints=list(taints)) for number in range(40)]
        self.controller._capacity.set_slice(("", "s"), fleet.slice_of("n1", devices))

    def pods(self, count: int, start: int = 0, owner: str = "rs", version: str = "") -> None:
        for number in range(start, start + count):
            claim = fleet.claim(("n1", f"gpu-{number % 40}"))
            claim["metadata"] = {"labels": {"dra-gate.io/policy": "ours", "dra-gate.io/policy-version": "1"}}
            self.controller._set_claim(("m1", f"c{number}"), claim)
            owners = [{"kind": "ReplicaSet", "uid": owner, "controller": True}] if owner else []
            pod = {
                "metadata": {"uid": f"u{number}", "resourceVersion": version or str(number), "ownerReferences": owners},
                "spec": {"nodeName": "n1", "resourceClaims": [{"name": "gpu", "resourceClaimName": f"c{number}"}]},
                "status": {"phase": "Pending"},
            }
            self.controller._set_pod(("m1", f"p{number}"), pod)

    def look(self, later: float = 0.0) -> float:
        self.now += later
        for name in {pod["metadata"]["name"] for pod in self.evicted()}:
            self.controller._drop_pod(("m1", name))
        return self.controller.look()

    def evicted(self) -> list[dict[str, Any]]:
        return [obj for path, obj in self.api.objects.items() if "/eviction/" in path]

    def events(self) -> list[str]:
        return [obj["note"] for path, obj in self.api.objects.items() if "/events/" in path]

    def samples(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(self.controller)
        lines = generate_latest(registry).decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    api = FakeApi()
    client = Client.connect(str(kubeconfig(tmp_path / "config", api.url)))
    yield Loop(api, client, monkeypatch)
    client.close()
    api.stop()


def test_nothing_is_written_for_healthy_pods_nor_for_a_moment(loop: Loop) -> None:
    loop.pods(8)
    loop.look()
    loop.taint(TAINT)
    assert loop.look(1) == pytest.approx(SETTLE_SECONDS)
    loop.taint()
    loop.look(SETTLE_SECONDS - 0.1)
    loop.taint(TAINT)
    loop.look(1)
    assert loop.look(SETTLE_SECONDS - 1) == pytest.approx(1)
    assert loop.api.requests == []
    assert loop.samples()['dra_gate_pods_on_unhealthy_devices{reason="taint",running="no",tenant="maple"}'] == 8


def test_while_slices_are_listed_anew_nothing_is_judged(loop: Loop) -> None:
    """A driver that came back has made another slice: both are there until the list has come to its end."""
    loop.pods(1)
    (slices,) = (one for one in loop.controller.reflectors if one.name == "health-ResourceSlice")
    slices._version = None
    devices = [fleet.device(f"gpu-{number}", "h100") for number in range(40)]
    loop.controller._capacity.set_slice(("", "s2"), fleet.slice_of("n1", devices))
    loop.look()
    loop.look(SETTLE_SECONDS + 1)
    assert (loop.evicted(), loop.events()) == ([], [])
    loop.controller._capacity.drop_slice(("", "s"))
    slices._version = "2"
    loop.look(1.0)
    loop.look(SETTLE_SECONDS + 1)
    assert (loop.evicted(), loop.events()) == ([], [])
    loop.controller._capacity.drop_slice(("", "s2"))
    loop.look(1.0)
    loop.look(SETTLE_SECONDS + 1)
    assert len(loop.evicted()) == 1


def test_the_eviction_names_the_pod_that_was_looked_at(loop: Loop) -> None:
    loop.pods(1)
    loop.taint(TAINT)
    loop.look()
    loop.look(SETTLE_SECONDS)
    (eviction,) = loop.evicted()
    assert eviction["deleteOptions"] == {"preconditions": {"uid": "u0", "resourceVersion": "0"}}
    (note,) = loop.events()
    assert note.startswith("A device it was given is not healthy: gpu.nvidia.com/n1/gpu-0: taint xid=79:NoSchedule. ")


def test_a_rack_makes_a_queue_and_no_storm(loop: Loop) -> None:
    """Forty Pods at once: a few writes in each look, one eviction at first, then as the budget fills, and everybody is
    told of once."""
    loop.pods(40)
    loop.taint(TAINT)
    loop.look()
    loop.now += SETTLE_SECONDS
    most = 0
    for _ in range(600):
        before = len(loop.api.requests)
        loop.look(1)
        most = max(most, len(loop.api.requests) - before)
    assert most <= WRITES + 1  # an eviction brings its Event with it
    elapsed = 600 + SETTLE_SECONDS
    assert 1 + elapsed / REFILL_SECONDS - 2 <= len(loop.evicted()) <= 1 + elapsed / REFILL_SECONDS
    assert len(loop.events()) == len({*loop.events()}) == 39 + len(loop.evicted())
    counts = loop.samples()
    assert counts['dra_gate_health_actions_total{action="alert",reason="budget",tenant="maple"}'] == 39
    assert counts['dra_gate_recreation_budget{tenant="maple"}'] < 1


def test_a_quiet_hour_fills_the_budget(loop: Loop) -> None:
    loop.pods(1, owner="")
    loop.taint(TAINT)
    loop.look()
    loop.pods(20, start=1)
    loop.look(3600)
    for _ in range(20):
        loop.look(SETTLE_SECONDS / 10)
    for _ in range(10):
        loop.look()
    assert len(loop.evicted()) == BUDGET


def test_replacements_that_meet_the_same_fate_are_left_after_three(loop: Loop) -> None:
    loop.taint(TAINT)
    for number in range(6):
        loop.pods(1, start=number)
        for _ in range(100):
            loop.look(1)
    assert len(loop.evicted()) == 3
    assert sum("3 Pods before it met the same fate" in note for note in loop.events()) == 3


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        ((409, status(409, "Conflict"), {}), 0.0),
        ((404, status(404, "NotFound"), {}), 0.0),
        ((403, status(403, "Forbidden"), {}), 60.0),
        ((500, status(500, "InternalError"), {}), 60.0),
    ],
)
def test_a_refused_eviction_costs_nothing_and_is_not_hurried(loop: Loop, answer: Answer, again: float) -> None:
    loop.pods(1)
    loop.taint(TAINT)
    loop.look()
    loop.api.fault = lambda request: answer if request.path.endswith("/eviction") else None
    for _ in range(60):
        loop.look(1)
    asked = len(loop.api.requests)
    assert (loop.evicted(), loop.events()) == ([], [])
    assert 4 <= asked <= 7 if again else asked == 1
    assert (loop.samples()["dra_gate_health_failures_total"] > 0) == bool(again)
    loop.api.fault = None
    if not again:
        loop.pods(1, version="later")
    loop.look(again)
    assert len(loop.evicted()) == 1


def test_an_answer_that_is_lost_may_have_been_a_yes(loop: Loop) -> None:
    def lost(request: Request) -> Answer | None:
        raise ConnectionAbortedError

    loop.pods(2)
    loop.taint(TAINT)
    loop.look()
    loop.api.fault = lost
    loop.look(SETTLE_SECONDS)
    loop.api.fault = None
    loop.look(2)
    assert loop.evicted() == [], "the budget of the beginning is spent"
    loop.look(REFILL_SECONDS)
    assert len(loop.evicted()) == 1


@pytest.mark.parametrize("why", ["namespace", "switch", "policy", "owner", "sets", "stale"])
def test_nothing_is_evicted_where_it_must_not_be(loop: Loop, why: str) -> None:
    loop.pods(1, owner="" if why == "owner" else "rs")
    loop.taint(TAINT)
    if why == "namespace":
        loop.enforcing = set()
    if why == "switch":
        loop.controller._recreate = False
    if why in ("policy", "sets"):
        loop.sets = [policy_set("alert")] if why == "policy" else None
    if why == "stale":
        loop.controller.reflectors[0]._born -= STALE_SECONDS + 1
    for _ in range(5):
        loop.look(SETTLE_SECONDS)
    assert loop.evicted() == []
    assert len(loop.events()) == (0 if why in ("sets", "stale") else 1)
    said = Counter(note.partition(". ")[2] for note in loop.events())
    assert all({"namespace": "does not enforce", "switch": "components/recreate"}.get(why, "") in note for note in said)


def test_an_event_that_is_there_was_told_by_who_led_before(loop: Loop) -> None:
    loop.sets = [policy_set("alert")]
    loop.pods(1)
    loop.taint(TAINT)
    loop.look()
    loop.look(SETTLE_SECONDS)
    assert len(loop.events()) == 1
    loop.controller._retire()
    loop.look()
    loop.look(SETTLE_SECONDS)
    asked = len(loop.api.requests)
    assert (asked, len(loop.events())) == (2, 1)
    for _ in range(5):
        loop.look(SETTLE_SECONDS)
    assert len(loop.api.requests) == asked


def test_what_is_wrong_now_is_told_and_what_comes_and_goes_not_for_ever(loop: Loop) -> None:
    loop.sets = [policy_set("alert")]
    loop.pods(1)
    loop.taint(TAINT)
    loop.look()
    loop.look(SETTLE_SECONDS)
    for number in range(40):
        loop.taint({**TAINT, "value": str(number % 20)})
        loop.look(1)
    assert sum("xid=1:NoSchedule" in note for note in loop.events()) == 1
    assert len(loop.events()) == len(loop.api.requests) == TOLD


@pytest.mark.parametrize("owner", ["rs", ""])
@pytest.mark.parametrize("code", [403, 500])
def test_what_one_pod_is_refused_keeps_no_other_waiting(loop: Loop, owner: str, code: int) -> None:
    """Its namespace is being deleted, or has no room for Events, or somebody's webhook fails: that may last."""

    def refuse(request: Request) -> Answer | None:
        # The first Pod's eviction, or each Event in its namespace; the others are in another.
        wrong = "/pods/p0/eviction" in request.path or "/namespaces/m1/events" in request.path
        return (code, status(code, "Forbidden"), {}) if wrong and request.method == "POST" else None

    loop.pods(1, owner=owner)
    loop.pods(3, start=1, owner="other" if owner else "")
    for number in range(1, 4):
        pods, claims = loop.controller._pods, loop.controller._claims
        pods["m2", f"p{number}"] = pods.pop(("m1", f"p{number}"))
        claims["m2", f"c{number}"] = claims.pop(("m1", f"c{number}"))
    loop.enforcing = {"m1", "m2"}
    loop.api.fault = refuse
    loop.taint(TAINT)
    loop.look()
    loop.now += SETTLE_SECONDS
    for _ in range(120):
        loop.look(1)
    told = [path for path in loop.api.objects if "/namespaces/m2/events/" in path]
    assert len(told) >= 3
    assert bool([path for path in loop.api.objects if "/namespaces/m2/pods" in path]) == bool(owner)
