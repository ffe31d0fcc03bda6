"""What World keeps, for how long, and what its readers wait for."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections import deque
from typing import Any

import pytest

from admission import setting
from dra_gate.admission.reach import Reach
from dra_gate.cluster.facts import EARLIER_SECONDS, PATHS, World
from dra_gate.cluster.files import load_manifests

CLASSES = [obj for obj in load_manifests([str(setting.WORLD / "cluster.yaml")]) if obj["kind"] == "DeviceClass"]


def namespace(lane: str) -> dict[str, Any]:
    return {"kind": "Namespace", "metadata": {"name": "fern-dev", "labels": {"dra-gate.io/lane": lane}}}


def test_a_claim_that_is_gone_leaves_nothing_behind() -> None:
    """Whoever makes large claims and deletes them again all day must not fill the memory of every replica."""
    sink = setting.world().sinks()[PATHS["ResourceClaim"]]
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(100):
            config = [{"opaque": {"driver": "d", "parameters": {"text": f"{number} " + "x" * 10_000}}}] * 3
            claim = {"metadata": {"name": f"c{number}", "namespace": "n"}, "spec": {"devices": {"config": config}}}
            sink.upsert(claim)
            sink.delete(claim)
            del claim, config
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_claims_of_one_spec_share_it() -> None:
    world = setting.world()
    sink = world.sinks()[PATHS["ResourceClaim"]]
    for name in ("a", "b"):
        requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
        sink.upsert({"metadata": {"name": name, "namespace": "n"}, "spec": {"devices": {"requests": requests}}})
    assert world.facts().claims["n", "a"] is world.facts().claims["n", "b"]


def test_a_class_that_is_told_of_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new list of classes must not look at every slice, template and claim once for each of them, nor take a class
    for harmless until it has."""
    world = setting.world()
    sink = world.sinks()[PATHS["DeviceClass"]]
    sink.replace(CLASSES)
    judged: list[str] = []
    honest = Reach.set_class

    def set_class(reach: Reach, name: str, spec: dict[str, Any]) -> bool:
        judged.append(name)
        return honest(reach, name, spec)

    monkeypatch.setattr(Reach, "set_class", set_class)
    sink.replace(CLASSES)
    assert judged == []
    name = CLASSES[0]["metadata"]["name"]
    sink.upsert({**CLASSES[0], "spec": {"selectors": [{"cel": {"expression": "false"}}]}})
    assert judged == [name]
    sink.delete(CLASSES[0])
    sink.upsert(CLASSES[0])
    assert judged == [name, name]


class Emptied(deque[Any]):
    """Another thread takes out the last one between two looks."""

    def __bool__(self) -> bool:
        found = len(self) > 0
        self.clear()
        return found


def test_two_threads_forget_what_labels_said_before() -> None:
    """The second port asks for the facts from threads of its own."""
    world = setting.world()
    world.apply(namespace("dra"))
    world.apply(namespace("device-plugin"))
    world._changed = Emptied(world._changed)
    assert world.facts().namespaces["fern-dev"] == {"dra-gate.io/lane": "device-plugin"}


def test_a_verdict_waits_for_nobody_who_writes() -> None:
    """Judging 5,000 slices again takes seconds, and the server's loop has all verdicts behind it."""
    now, today = [0.0], [0.0]
    world = World(setting.policy_set(), clock=lambda: now[0], now=lambda: today[0])
    for lane in ("dra", "device-plugin"):
        world.apply(namespace(lane))
    assert "fern-dev" in world.facts().previous_labels
    now[0] += EARLIER_SECONDS + 1
    today[0] += 86_400
    answered = threading.Event()
    with world._lock:
        threading.Thread(target=lambda: (world.facts(), answered.set()), daemon=True).start()
        assert answered.wait(5)
    assert "fern-dev" not in world.facts().previous_labels
    assert world.facts().day == 1
