"""Whose turn it is to be evicted, on a cluster that refuses some: no API server, and a clock that is told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dra_gate.cluster.client import ApiError, NotFound
from dra_gate.controller import returning as module
from dra_gate.controller.returning import AGAIN_SECONDS, ASK_SECONDS, ReturnController
from dra_gate.migration.returning import Fate, PodState, fate

RATE = 1
NOW = 1_800_000_000


class Cluster:
    """Pods under DRA whose lane went back; stands in for client, view and clock. `spare` gives what keeps one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.pods: dict[str, dict[str, Any]] = {}
        self.evicted: list[str] = []
        self.told: list[str] = []
        self.spared: dict[str, str] = {}
        self.drains: int | None = 1
        self.view = SimpleNamespace(lanes=self)
        self.lock, self.term = threading.Lock(), SimpleNamespace(refused={})
        self.skew = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: NOW + self.skew, time_ns=lambda: 10**18)
        monkeypatch.setattr(module, "time", clock)
        self.controller = ReturnController(
            self,
            self,
            recreate=True,
            rate=RATE,
            identity="t",
            leading=lambda: True,  # type: ignore[arg-type]
        )

    def pod(self, name: str, *, runs: bool = True, owner: str = "ReplicaSet") -> None:
        stamp = {f"dra-gate.io/{key}": value for key, value in (("tenant", "t"), ("policy", "p"), ("lane", "dra"))}
        owners = [{"kind": owner, "name": f"of-{name}", "uid": f"uid-of-{name}", "controller": True}]
        self.pods[name] = {
            "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": stamp, "ownerReferences": owners},
            "spec": {"nodeName": "n"} if runs else {},
        }

    # -- as the view of lanes --

    def changed(self) -> None: ...
    def evict_nobody(self, _why: str) -> None: ...
    def leave(self, _uid: str, *, leaving: bool) -> None: ...
    def marked(self) -> list[Any]:
        return []

    def spare(self, uid: str, why: str) -> None:
        self.spared[uid] = why

    def drain_by(self, _namespace: str) -> int | None:
        return self.drains

    def on_rollback(self, _pod: object) -> str:
        return "recreate"

    def fate(self, pod: Any, now: int = NOW) -> Fate:
        found = self.pods[pod.name]
        owner = found["metadata"]["ownerReferences"][0]
        maker, phase = f"{owner['kind']}/{owner['name']}", "bound" if found["spec"] else "waiting"
        harm = self.spared.get(pod.name, "")
        state = PodState(pod.name, "ns", pod.name, "t", "p@", "dra", phase, maker, harm=harm)  # type: ignore[arg-type]
        return fate(state, "recreate", self.drains, now)

    def gone_back(self, now: int) -> list[tuple[Any, Fate]]:
        seen = [SimpleNamespace(uid=n, namespace="ns", name=n, key=("ns", n), draining="") for n in self.pods]
        return [(one, self.fate(one, now)) for one in seen]

    # -- as the client --

    def ahead(self) -> float:
        return self.skew

    def get(self, path: str, timeout: float) -> dict[str, Any]:
        assert timeout
        name = path.rpartition("/")[2]
        if "/jobs/" in path:
            return {"metadata": {"uid": f"uid-{name}"}, "spec": {"backoffLimit": 0}}
        if name not in self.pods:
            raise NotFound(404, "NotFound", "gone")
        return self.pods[name]

    def create(self, path: str, obj: dict[str, Any], **_: Any) -> dict[str, Any]:
        if path.endswith("/eviction"):
            name = obj["metadata"]["name"]
            if name.startswith("kept"):
                raise ApiError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's budget.")
            self.evicted.append(name)
            del self.pods[name]
        elif obj["kind"] == "Event":
            self.told.append(obj["note"])
        return {"status": {"allowed": True}}

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            self.controller.turn()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_budget_that_allows_nothing_keeps_nobody_elses_pods(cluster: Cluster) -> None:
    """Its Pods are more than can be asked about in the time after which they are asked about again."""
    blocked = int(RATE * AGAIN_SECONDS * 2)
    for number in range(blocked):
        cluster.pod(f"kept-{number}")
    for number in range(20):
        cluster.pod(f"other-{number}")
    cluster.run(module.SETTLE_SECONDS + (blocked + 20) / RATE + 5)
    assert len(cluster.evicted) == 20
    assert cluster.controller._broken == 0


def test_pods_that_are_spared_keep_nobody_else(cluster: Cluster) -> None:
    """A Pod of a Job that would fail is asked about again each minute: of many that is all that would be done."""
    cluster.drains = None
    spared = int(RATE * ASK_SECONDS * 2)
    for number in range(spared):
        cluster.pod(f"job-{number}", runs=False, owner="Job")
    cluster.run(module.SETTLE_SECONDS + spared / RATE + 5)
    assert (len(cluster.spared), cluster.evicted) == (spared, [])
    for number in range(20):
        cluster.pod(f"other-{number}", runs=False)
    cluster.run(module.SETTLE_SECONDS + 20 / RATE + 5)
    assert len(cluster.evicted) == 20


def test_a_busy_api_server_is_no_drain(cluster: Cluster) -> None:
    cluster.drains = None
    cluster.pod("kept", runs=False)
    cluster.run(module.SETTLE_SECONDS + 3)
    assert any("it is to be recreated, but it can't be evicted yet" in note for note in cluster.told)


def test_a_clock_that_is_ahead_drains_nobody_early(cluster: Cluster) -> None:
    cluster.drains, cluster.skew = NOW + 3600, 7200.0
    cluster.pod("runs")
    cluster.run(module.SETTLE_SECONDS + 5)
    assert cluster.evicted == []
    cluster.drains = NOW - 1
    cluster.skew = -7200.0  # nor does one that is behind keep anybody
    cluster.run(module.SETTLE_SECONDS + 5)
    assert cluster.evicted == ["runs"]
