"""What a hard stop does to the plan: once, and never again for what somebody has seen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.migration.compare import Stop
from dra_gate.migration.stopping import SETTLED, act, finished, is_under_way, rest, stopped_text
from dra_gate.migration.waves import (
    ACTS,
    Act,
    Move,
    Moves,
    OnStop,
    Paused,
    Plan,
    PlanError,
    Space,
    Stopped,
    read_plan,
    read_wave,
)

NOW = 1_800_000_000
FAILURES = Stop("Failures", "9 of 30 Pods failed: above 5 % for certain")
CAP = Stop("CapBreach", "a tenant was above its cap, once")
HERS = Paused("ada", NOW - 100, "lunch")


def plan(does: Act = "rollback", **more: object) -> Plan:
    return Plan("seed", (read_wave("10%"),), 1, on_stop=OnStop(does, since=NOW - 1000), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "stops", "pauses", "does", "done"),
    [
        (plan("alert"), (FAILURES,), "", None, False),
        (plan("pause"), (), "", None, False),
        (plan("pause"), (FAILURES,), "gate", "pause", True),
        (plan("rollback"), (FAILURES, CAP), "gate", "rollback", False),
        (plan("rollback", paused=HERS), (CAP,), "ada", "rollback", False),
        (plan("pause", paused=HERS), (CAP,), "ada", "pause", True),
        (plan("rollback", paused=HERS), (), "ada", None, False),
    ],
)
def test_what_a_stop_does(before: Plan, stops: tuple[Stop, ...], pauses: str, does: str | None, done: bool) -> None:
    after = act(before, stops, "gate", NOW)
    assert (after.paused.by if after.paused else "") == pauses
    assert (after.stopped.act if after.stopped else None) == does
    if after.stopped is not None:
        assert all(one.text in after.stopped.why for one in stops)
        assert (after.stopped.done > 0) is done
        assert act(after, (*stops, CAP), "gate", NOW + 60) == after, "it acts once"
    assert is_under_way(after) is (does == "rollback")


@pytest.mark.parametrize("does", ["pause", "rollback"])
def test_who_ends_the_pause_ends_the_stop(does: Act) -> None:
    stopped = act(plan(does), (FAILURES,), "gate", NOW)
    resumed = stopped.resumed(NOW + 500)
    assert (resumed.paused, resumed.stopped, resumed.on_stop.since) == (None, None, NOW + 500)
    assert not is_under_way(resumed)
    assert act(resumed, (), "gate", NOW + 501) == resumed
    assert act(resumed, (FAILURES,), "gate", NOW + 900).stopped is not None, "what fails from then on stops it again"


def test_a_pause_that_was_taken_out_by_hand_is_ended_as_well() -> None:
    stopped = replace(act(plan(), (FAILURES,), "gate", NOW), paused=None)
    assert not is_under_way(stopped)
    assert act(stopped, (FAILURES,), "gate", NOW + 5) == stopped.resumed(NOW + 5)


def test_it_is_done_when_nobody_is_left_and_no_step_can_be_under_way() -> None:
    stopped = act(plan(), (FAILURES,), "gate", NOW)
    nobody, somebody = Moves((), ()), Moves((Space("a", "", "dra"),), ())
    assert finished(stopped, somebody, NOW + 100) == stopped
    assert finished(stopped, nobody, NOW + SETTLED - 1) == stopped
    done = finished(stopped, nobody, NOW + SETTLED)
    assert not is_under_way(done)
    assert finished(done, nobody, NOW + 999) == done
    assert finished(plan(), nobody, NOW) == plan()
    assert "is moving back" in stopped_text("rollback", done=False)
    assert "moved back all" in stopped_text("rollback", done=True)


def test_only_what_commands_moved_goes_back() -> None:
    ours = Space("ours", "lilac", "dra", Move("", "dra", NOW, "ada", "x"))
    spaces = [
        ours,
        Space("git", "lilac", "dra", labelled_by="argo"),
        Space("again", "lilac", "dra", Move("dra", "device-plugin", NOW, "gate", "x"), labelled_by="argo"),
        Space("old", "lilac", "device-plugin"),
        replace(ours, name="going", leaving=True),
    ]
    assert rest(spaces).moves == (ours,)


@given(
    st.sampled_from(ACTS),
    st.integers(1, 99),
    st.integers(0, NOW),
    st.none() | st.builds(Stopped, st.sampled_from(ACTS), st.integers(1, NOW), st.text(), st.integers(0, NOW)),
)
def test_a_plan_reads_back_as_it_was_written(does: Act, percent: int, since: int, stopped: Stopped | None) -> None:
    written = Plan("s", (read_wave("50%"),), 1, HERS, OnStop(does, percent / 100, since), stopped)
    assert read_plan(written.dumps()) == written


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("onStop", "rollback", "onStop.failures"),
        ("onStop", {"act": "rollback", "failures": 5, "since": "1970-01-01T00:00:00Z"}, "onStop.failures"),
        ("onStop", {"act": "delete", "failures": 0.1, "since": "1970-01-01T00:00:00Z"}, "onStop.act"),
        ("onStop", {"act": "pause", "failures": 0.1, "since": "today"}, "onStop.since"),
        ("stopped", {"act": "rollback", "why": "x"}, "stopped.at"),
        ("stopped", True, "stopped.act"),
    ],
)
def test_a_plan_that_is_not_understood_is_none(field: str, value: object, says: str) -> None:
    said = json.loads(plan().dumps()) | {field: value}
    with pytest.raises(PlanError, match=says):
        read_plan(json.dumps(said))
