"""The checker on the leader's tail: tells a wrong line, leaves out what it can't keep up with, and begins again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from controlplane.api import wait_for
from dra_gate.controller import arbiter_tail
from dra_gate.controller.arbiter_metrics import ArbiterMetrics, Standing
from dra_gate.controller.arbiter_tail import Tail
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.checker import RULES
from dra_gate.fairness.events import Candidate, Capacity, Config, Granted, Held, Kind, PolicyRules, TenantRules
from dra_gate.fairness.log import Recorder, dumps, loads


class Scene:
    """An arbiter whose lines go to a checker, as the loop does it."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.metrics = ArbiterMetrics(Standing)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)
        self.tail = Tail(self.metrics, most_bytes)
        self.spoil = False  # say of the next grants that they are in the other tier
        self.pods = 0
        self.recorder = Recorder(Arbiter(), self.write)

    def write(self, line: bytes) -> None:
        value = loads(line)
        if self.spoil and isinstance(value, Granted):
            line = dumps(replace(value, tier=1 - value.tier))
        self.tail.write(line)

    def begin(self) -> None:
        self.tail.begin(dumps(replace(self.recorder.arbiter.state(), sequence=self.recorder.sequence)))

    def rules(self) -> None:
        policies = {"p@1": PolicyRules((Candidate("h100", 0),))}
        tenants = {name: TenantRules(wants=("h100",)) for name in ("lilac", "moss")}
        self.recorder.take(Config(digest="d", models=("h100",), policies=policies, tenants=tenants))
        self.recorder.take(Capacity(kinds=(Kind("h100", 0, 400, ((8, 50),), ((8, 50),)),)))

    def grant(self, count: int = 1) -> None:
        for _ in range(count):
            self.pods += 1
            self.recorder.take(Held(uid=f"u{self.pods}", tenant="lilac", policy="p@1", claims=(1,), queued=self.pods))
        assert len(self.recorder.decide(1_000 + self.pods)) == count

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"dra_gate_arbiter_{name}_total", labels)
        assert found is not None
        return found

    def violations(self) -> float:
        return sum(self.value("violations", rule=rule) for rule in RULES)

    def read(self) -> bool:
        return not self.tail._lines  # there is nothing else to wait for


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.tail.stop()


def caught_up(scene: Scene) -> None:
    """All that was written has been read: a line that breaks a rule, written last, has been told."""
    before = scene.value("violations", rule="conservation")
    scene.tail.write(dumps(replace(loads(b'{"kind":"settled","uid":"nobody"}'), sequence=scene.recorder.sequence + 1)))
    scene.recorder.sequence += 1
    wait_for(lambda: scene.value("violations", rule="conservation") > before, 10, "the checker to catch up", every=0.01)


def test_a_wrong_line_is_told_and_a_true_one_is_not(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    scene.tail.start()
    scene.begin()
    scene.rules()
    scene.grant(20)
    caught_up(scene)
    assert scene.violations() == 1  # the one by which it is known that it has caught up
    scene.spoil = True
    scene.grant(15)
    caught_up(scene)
    assert scene.value("violations", rule="tier") == 15
    assert scene.value("unchecked_lines") == 0
    told = [one.getMessage() for one in caplog.records if "breaks tier" in one.getMessage()]
    assert len(told) == arbiter_tail.TOLD  # the others are counted only
    assert "u21" in told[0]


def test_what_it_cannot_keep_up_with_is_left_out_and_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(most_bytes=60_000)
    scene.begin()
    scene.rules()
    scene.grant(10)
    assert not scene.tail.wants_state(0)  # it reads
    scene.grant(150)
    left_out = scene.value("unchecked_lines")
    assert 0 < left_out < scene.recorder.sequence
    assert not scene.tail.wants_state(0)  # it has lines to read
    scene.tail.start()
    wait_for(scene.read, 10, "what was there to be read", every=0.01)
    assert not scene.tail.wants_state(0)  # it has begun a moment ago
    monkeypatch.setattr(scene.tail, "_begin_at", 0.0)
    assert not scene.tail.wants_state(arbiter_tail.MOST_PODS + 1)
    assert scene.tail.wants_state(160)
    scene.spoil = True
    scene.grant()  # nobody looks
    scene.spoil = False
    scene.begin()
    scene.grant(3)
    caught_up(scene)
    assert scene.violations() == 1  # nothing seems to be missing
    scene.spoil = True
    scene.grant()
    caught_up(scene)
    assert scene.value("violations", rule="tier") == 1
    assert scene.value("unchecked_lines") == left_out + 3  # held, pass, granted
    scene.tail.stop()


@pytest.mark.parametrize("limit", ["MOST_PODS", "SLOW_LINE"])
def test_too_many_pods_or_too_dear_a_line_ends_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    scene.tail.start()
    scene.begin()
    scene.rules()
    scene.grant(10)
    caught_up(scene)
    monkeypatch.setattr(arbiter_tail, limit, 5 if limit == "MOST_PODS" else 0.0)
    scene.grant(10)
    wait_for(lambda: "leaves lines out" in caplog.text, 10, "it to give up", every=0.01)
    wait_for(scene.read, 10, "nothing to be left", every=0.01)
    before = scene.value("unchecked_lines")
    scene.spoil = True
    scene.grant()
    assert scene.value("unchecked_lines") == before + 3
    assert scene.value("violations", rule="tier") == 0


def test_a_checker_that_fails_begins_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.tail.start()
    scene.begin()
    scene.rules()
    with monkeypatch.context() as broken:
        broken.setattr(arbiter_tail.Checker, "feed", lambda *_: 1 / 0)
        scene.grant()
        wait_for(lambda: scene.value("unchecked_lines") >= 1, 10, "it to fail", every=0.01)
        wait_for(scene.read, 10, "nothing to be left", every=0.01)
    scene.begin()
    scene.grant()
    caught_up(scene)
    assert scene.violations() == 1


def test_the_next_term_begins_with_nothing_known(scene: Scene) -> None:
    scene.tail.start()
    scene.begin()
    scene.rules()
    scene.grant(5)
    scene.tail.end()
    scene.recorder = Recorder(Arbiter(), scene.write, scene.recorder.sequence + 100)
    scene.begin()
    scene.recorder.state()
    scene.rules()
    scene.grant(5)
    caught_up(scene)
    assert scene.violations() == 1
    assert scene.value("unchecked_lines") == 0
