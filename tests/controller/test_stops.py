"""The controller and hard stops, on a fake API server that makes trouble."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.admission.configurations import CONTROLLER
from dra_gate.cluster.client import Client
from dra_gate.cluster.lanes import PLAN_PATH
from dra_gate.cluster.policy_map import MAPS_PATH
from dra_gate.controller import stops as module
from dra_gate.controller.stops import HANDFUL, StopController
from dra_gate.migration.compare import Stop
from dra_gate.migration.waves import Act, Move, OnStop, Paused, Plan, read_plan

LANE, MOVED = "dra-gate.io/lane", "dra-gate.io/canary"
FAILURES = Stop("Failures", "9 of 30 Pods failed: above 5 % for certain")
NAMES = tuple(f"maple-{number:02}" for number in range(50))


class World:
    """50 namespaces that a command moved to lane dra, and one that somebody labelled."""

    def __init__(self, fake: FakeApi, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake, self.now, self.leads = fake, 1_800_000_000, True
        self.stops: tuple[Stop, ...] | None = ()
        self.asked: list[tuple[float, int]] = []
        self.client = Client.connect(str(config))
        self.controller = self.another()
        monkeypatch.setattr(module, "_now", lambda: self.now)
        for name in NAMES:
            self.namespace(name, "dra", Move("", "dra", 1_700_000_000, "ada", "x"))
        self.namespace("theirs", "dra")

    def another(self) -> StopController:
        """One that knows nothing: as after a restart."""

        def counted(failures: float, since: int) -> tuple[Stop, ...] | None:
            self.asked.append((failures, since))
            return self.stops

        return StopController(self.client, counted, leading=lambda: self.leads)

    def namespace(self, name: str, lane: str, move: Move | None = None) -> None:
        annotations = {} if move is None else {MOVED: move.dumps()}
        metadata = {"name": name, "labels": {LANE: lane}, "annotations": annotations}
        self.fake.put("/api/v1/namespaces", {"metadata": metadata})

    def write(self, plan: Plan) -> None:
        data = {"plan.json": plan.dumps()}
        self.fake.put(MAPS_PATH, {"metadata": {"name": "dra-gate-canary", "namespace": "dra-gate"}, "data": data})

    def plan(self) -> Plan:
        return read_plan(self.fake.objects[PLAN_PATH]["data"]["plan.json"])

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.controller._look_at = 0
            self.controller.turn()

    def in_dra(self) -> int:
        return sum(
            obj["metadata"]["labels"][LANE] == "dra"
            for path, obj in self.fake.objects.items()
            if path.startswith("/api/v1/namespaces/maple-") and path.count("/") == 4
        )

    def events(self, namespace: str = "dra-gate") -> list[Any]:
        return [obj for path, obj in self.fake.objects.items() if f"/namespaces/{namespace}/events/" in path]

    def metric(self, name: str) -> dict[str, float]:
        (family,) = [one for one in self.controller.collect() if one.name == name]
        return {"".join(sample.labels.values()): sample.value for sample in family.samples}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    fake = FakeApi()
    yield World(fake, kubeconfig(tmp_path / "config", fake.url), monkeypatch)
    fake.stop()


def on_stop(does: Act, **more: Any) -> Plan:
    return Plan("s", on_stop=OnStop(does, 0.1, 1_790_000_000), **more)


def only(what: Callable[[Request], bool], answer: Answer) -> Callable[[Request], Answer | None]:
    return lambda request: answer if what(request) else None


def test_without_a_plan_it_is_told(world: World) -> None:
    world.turn()
    assert (world.asked, world.events(), world.metric("dra_gate_canary_stops")) == ([(0.05, 0)], [], {})
    world.stops = (FAILURES,)
    world.turn(3)
    (event,) = world.events()
    assert (event["reason"], event["type"], event["regarding"]["name"]) == ("HardStop", "Warning", "dra-gate-canary")
    assert "9 of 30 Pods failed" in event["note"]
    assert PLAN_PATH not in world.fake.objects
    assert world.metric("dra_gate_canary_stops") == {"Failures": 1}
    assert world.in_dra() == 50


def test_the_plan_says_what_counts(world: World) -> None:
    world.write(on_stop("pause"))
    world.turn()
    assert world.asked == [(0.1, 1_790_000_000)]
    assert world.plan().paused is None


def test_a_leader_that_cannot_count_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that another version wrote can't be read, and are not written over: nobody would see a hard stop."""
    world.write(on_stop("rollback"))
    world.stops = None
    world.turn(3)
    assert (world.events(), world.controller.failures) == ([], 0), "it has just begun"
    monkeypatch.setattr(module, "BLIND_SECONDS", 0.0)
    world.leads = False
    world.turn(3)
    assert world.controller.failures == 0, "another replica counts"
    world.leads = True
    world.turn(3)
    (event,) = world.events()
    assert (event["reason"], world.controller.failures) == ("HardStopsUnseen", 3)
    world.stops = ()
    world.turn(3)
    assert world.controller.failures == 3


def test_pause(world: World) -> None:
    world.write(on_stop("pause"))
    world.stops = (FAILURES,)
    world.turn(3)
    paused = world.plan().paused
    assert paused is not None
    assert (paused.by, paused.why) == (CONTROLLER, f"hard stop: Failures: {FAILURES.text}")
    assert (world.in_dra(), len(world.events())) == (50, 1)
    assert world.metric("dra_gate_canary_stopped") == {"pause": 1}
    assert list(world.controller.shown()) == [f"the controller paused the plan: {paused.why}"]


def test_rollback_goes_by_handfuls_and_is_recorded(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops = (FAILURES,)
    left = []
    for _ in range(4):
        world.turn()
        left.append((world.in_dra(), world.metric("dra_gate_canary_rollback_left")[""]))
    assert left == [(50 - HANDFUL, 50 - HANDFUL), (50 - 2 * HANDFUL,) * 2, (0, 0), (0, 0)]
    assert world.fake.objects["/api/v1/namespaces/theirs"]["metadata"]["labels"][LANE] == "dra"
    moved = json.loads(world.fake.objects["/api/v1/namespaces/maple-07"]["metadata"]["annotations"][MOVED])
    assert (moved["from"], moved["to"], moved["by"]) == ("dra", "device-plugin", CONTROLLER)
    assert FAILURES.text in moved["why"]
    (event,) = world.events("maple-07")
    assert event["reason"] == "LaneRolledBack"
    stopped = world.plan().stopped
    assert stopped is not None
    assert stopped.done == 0, "a step may be under way"
    world.now += 10
    world.turn()
    assert world.plan().stopped == replace(stopped, done=world.now)
    assert world.metric("dra_gate_canary_rolled_back")[""] == 50

    # Somebody enrolls one by hand: it is theirs.
    world.namespace("maple-07", "dra")
    world.turn(3)
    assert world.in_dra() == 1
    (event,) = world.events()
    assert "moving back" in event["note"]


def test_who_takes_over_goes_on(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops = (FAILURES,)
    world.turn()
    world.controller = world.another()
    world.stops = None  # it has not read the counts yet
    world.turn(3)
    assert world.in_dra() == 0


def test_who_ends_the_pause_ends_the_way_back(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops = (FAILURES,)
    world.turn()
    there = world.in_dra()
    world.write(world.plan().resumed(world.now))
    world.stops = ()  # of Pods created since
    world.turn(3)
    assert (world.in_dra(), world.plan().stopped) == (there, None)
    assert world.asked[-1] == (0.1, world.now)
    world.stops = (FAILURES,)
    world.now += 60
    world.turn()
    assert world.plan().stopped is not None, "what fails from then on stops it again"


def test_a_pause_of_somebody_stays_theirs(world: World) -> None:
    hers = Paused("ada", 1_790_000_000, "lunch")
    world.write(on_stop("rollback", paused=hers))
    assert world.in_dra() == 50
    world.stops = (FAILURES,)
    world.turn(4)
    assert (world.in_dra(), world.plan().paused) == (0, hers)


def test_what_is_refused_holds_up_no_other_and_is_told_once(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops = (FAILURES,)
    stubborn = {f"/api/v1/namespaces/{name}" for name in NAMES[: HANDFUL + 5]}
    refused = status(403, "Forbidden", "may not patch namespaces"), {}
    world.fake.fault = only(lambda one: one.method == "PATCH" and one.path in stubborn, (403, *refused))
    world.turn(6)
    assert world.in_dra() == len(stubborn)
    assert [one["reason"] for one in world.events()] == ["HardStop", "RollbackRefused"]
    assert "may not patch namespaces" in world.events()[1]["note"]
    assert world.metric("dra_gate_canary_stop_failures")[""] == len(stubborn)
    world.now += 100
    world.turn()
    assert world.plan().stopped is not None
    assert not world.plan().stopped.done  # type: ignore[union-attr]
    world.fake.fault = None
    world.controller._refused.clear()  # half a minute later
    world.turn(3)
    assert world.in_dra() == 0
    assert world.plan().stopped.done  # type: ignore[union-attr]


def test_one_that_changed_meanwhile_is_looked_at_again(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops = (FAILURES,)
    late = [1]

    def conflict(request: Request) -> Answer | None:
        if request.method == "PATCH" and request.path.endswith("/maple-00") and late:
            late.clear()
            return 409, status(409, "Conflict"), {}
        return None

    world.fake.fault = conflict
    world.turn(5)
    assert world.in_dra() == 0


def test_a_plan_that_changed_meanwhile_is_decided_anew(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops = (FAILURES,)

    def faster(request: Request) -> None:
        if request.method == "PUT" and request.path == PLAN_PATH:
            world.fake.fault = None
            world.write(on_stop("alert"))

    world.fake.fault = faster
    world.turn(3)
    assert (world.in_dra(), world.plan().paused) == (50, None)


def test_a_plan_that_cannot_be_read_moves_nobody(world: World) -> None:
    world.fake.put(MAPS_PATH, {"metadata": {"name": "dra-gate-canary"}, "data": {"plan.json": "{"}})
    world.stops = (FAILURES,)
    world.turn(2)
    assert (world.in_dra(), world.metric("dra_gate_canary_stop_failures")[""]) == (50, 2)
    assert world.controller.problems() == ["thread stops has ended"]  # it was never started


def test_who_does_not_lead_does_nothing(world: World) -> None:
    world.write(on_stop("rollback"))
    world.stops, world.leads = (FAILURES,), False
    world.turn(2)
    assert (world.in_dra(), world.asked, world.metric("dra_gate_canary_stops")) == (50, [], {})

    def lost(request: Request) -> None:
        if request.method == "PATCH":
            world.leads = False

    world.leads, world.fake.fault = True, lost
    world.turn(3)
    assert world.in_dra() == 49
