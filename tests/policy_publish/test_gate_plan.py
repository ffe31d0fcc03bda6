"""What the controller writes to the Gate: tables over the pure plan."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from dra_gate.cluster.gate import Accepted, Activation, Gate
from dra_gate.controller.gate_plan import HISTORY, Known, activator, plan_gate

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
NOW = dt.datetime(2026, 5, 4, 12, 0, 0, tzinfo=dt.UTC)
STAMP = "2026-05-04T12:00:00Z"
EARLIER = "2026-05-04T11:00:00Z"


def gate(active: str, *accepted: Accepted, history: str = "", **rest: Any) -> Gate:
    past = tuple(Activation(letter * 64, EARLIER, "ada") for letter in history)
    return Gate("u", "9", 5, active, tuple(accepted), history=past, **rest)


def known(in_use: str, **rest: Any) -> Known:
    return replace(Known(in_use, {}, {in_use: 0}), **rest)


PINNED, FRESH, STAMPED = Accepted(A, pinned=True), Accepted(A), Accepted(A, since=EARLIER)
NOTED, OTHER = Accepted(A, since=STAMP), Accepted(C, since=EARLIER)


@pytest.mark.parametrize(
    ("gate", "held", "accepted"),
    [
        pytest.param(gate(B, history="b"), {}, (), id="nothing accepted"),
        pytest.param(gate(B, FRESH, history="b"), {}, (NOTED,), id="moved there: the time is written down"),
        pytest.param(gate(B, STAMPED, history="b"), {A: 59.9}, (STAMPED,), id="not yet"),
        pytest.param(gate(B, STAMPED, history="b"), {A: 60.0}, (), id="time is up"),
        pytest.param(gate(B, STAMPED, history="b"), {}, (STAMPED,), id="what another clock wrote counts for nothing"),
        pytest.param(gate(B, PINNED, history="b"), {A: 1e6}, (PINNED,), id="pinned stays"),
        pytest.param(gate(A, STAMPED, history="a"), {A: 0.0}, (), id="the active one is not its own predecessor"),
        pytest.param(gate(A, PINNED, history="a"), {}, (PINNED,), id="unless pinned there"),
        pytest.param(gate(A), {}, (), id="first activation replaces nothing"),
        pytest.param(gate(B, history="a"), {}, (NOTED,), id="activated by manifest: the old one is put there"),
        pytest.param(gate(B, FRESH, history="a"), {}, (NOTED,), id="activated by command: it is there"),
        pytest.param(gate(B, PINNED, history="a"), {}, (PINNED,), id="activated by command, and pinned"),
        pytest.param(gate(B, history="ba"), {}, (), id="withdrawn after the activation was noted"),
        pytest.param(gate(B, history="a", claimed=Activation(B, "")), {}, (), id="activated by command and withdrawn"),
        pytest.param(
            gate(B, STAMPED, OTHER, history="b"), {A: 70.0, C: 20.0}, (OTHER,), id="two, each with its own time"
        ),
    ],
)
def test_accepted(gate: Gate, held: dict[str, float], accepted: tuple[Accepted, ...]) -> None:
    plan = plan_gate(gate, known(gate.active, held=held), NOW)
    assert (gate.accepted if plan.accepted is None else plan.accepted) == accepted
    assert (plan.accepted is None) == (accepted == gate.accepted)


def test_a_set_that_does_not_take_effect_replaces_nothing() -> None:
    plan = plan_gate(gate(B, history="a"), known(A, refused={B: "broken"}), NOW)
    assert plan.accepted is None
    assert plan.status is not None
    assert [entry["digest"] for entry in plan.status["history"]] == [A]
    assert plan.status["sets"] == [
        {"digest": A, "state": "Active", "templatesMissing": 0},
        {"digest": B, "state": "Unusable", "message": "broken"},
    ]
    ready = plan.status["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "SetUnusable")
    assert "broken" in ready["message"]
    assert f"{A} stays in use" in ready["message"]


@pytest.mark.parametrize("in_use", [A, B])
def test_a_refusal_of_any_length_can_be_written_down(in_use: str) -> None:
    """It may quote a file. The schema of the Gate takes so much, and else refuses the whole status."""
    plan = plan_gate(gate(B, history="a"), known(in_use, refused={B: "x" * 100_000}), NOW)
    assert plan.status is not None
    assert len(plan.status["conditions"][0]["message"]) <= 32768
    assert max(len(entry.get("message", "")) for entry in plan.status["sets"]) <= 1024


@pytest.mark.parametrize(
    ("claimed", "manager", "entry"),
    [
        (Activation(B, "", "ada", "h200 arrived"), "kubectl", {"by": "ada", "note": "h200 arrived"}),
        (None, "argocd", {"by": "argocd"}),
        (None, "", {}),
    ],
)
def test_history_says_who(claimed: Activation | None, manager: str, entry: dict[str, str]) -> None:
    plan = plan_gate(gate(B, history="a", claimed=claimed), known(B, activator=manager), NOW)
    assert plan.status is not None
    assert plan.status["history"][0] == {"digest": B, "at": STAMP} | entry
    assert plan.status["history"][1] == {"digest": A, "at": EARLIER, "by": "ada"}


def test_history_is_bounded_and_a_rollback_is_an_activation() -> None:
    plan = plan_gate(gate(A, history="ba" * 25), known(A), NOW)
    assert plan.status is not None
    assert len(plan.status["history"]) == HISTORY
    assert [entry["digest"] for entry in plan.status["history"][:3]] == [A, B, A]


@pytest.mark.parametrize(
    ("missing", "status", "reason"),
    [({A: 0}, "True", "InUse"), ({A: 3}, "False", "TemplatesMissing"), (None, "Unknown", "TemplatesUnknown")],
)
def test_ready(missing: dict[str, int] | None, status: str, reason: str) -> None:
    plan = plan_gate(gate(A, history="a"), known(A, missing=missing), NOW)
    assert plan.status is not None
    condition = plan.status["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", status, reason)
    assert condition["observedGeneration"] == 5
    assert condition["lastTransitionTime"] == STAMP


def test_in_use_but_lost() -> None:
    plan = plan_gate(gate(A, history="a"), known(A, refused={A: "it is not published"}), NOW)
    assert plan.status is not None
    assert plan.status["sets"][0]["state"] == "Active"
    condition = plan.status["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "SetLost")
    assert "it is not published" in condition["message"]


def test_what_is_written_needs_no_second_write() -> None:
    first = plan_gate(gate(B, Accepted(A), history="a"), known(B, missing={B: 0, C: 4}), NOW)
    assert first.status is not None
    assert first.accepted is not None
    stored = gate(B, *first.accepted, status=first.status, observed=5)
    history = tuple(
        Activation(e["digest"], e["at"], e.get("by", ""), e.get("note", "")) for e in first.status["history"]
    )
    again = plan_gate(replace(stored, history=history), known(B, missing={B: 0, C: 4}), NOW + dt.timedelta(seconds=9))
    assert (again.accepted, again.status) == (None, None)
    states = {entry["digest"]: (entry["state"], entry.get("templatesMissing")) for entry in first.status["sets"]}
    assert states == {B: ("Active", 0), A: ("Accepted", None), C: ("Published", 4)}


def test_transition_time_moves_with_the_status_only() -> None:
    first = plan_gate(gate(A, history="a"), known(A), NOW).status
    assert first is not None
    later = NOW + dt.timedelta(minutes=5)
    same = plan_gate(replace(gate(A, history="a"), status=first, generation=6), known(A), later).status
    assert same is not None
    assert same["conditions"][0]["lastTransitionTime"] == STAMP
    worse = plan_gate(replace(gate(A, history="a"), status=first), known(A, missing={A: 1}), later).status
    assert worse is not None
    assert worse["conditions"][0]["lastTransitionTime"] == "2026-05-04T12:05:00Z"


def test_other_peoples_conditions_stay() -> None:
    other = {"type": "Synced", "status": "True"}
    plan = plan_gate(gate(A, history="a", status={"conditions": [other]}), known(A), NOW)
    assert plan.status is not None
    assert [c["type"] for c in plan.status["conditions"]] == ["Synced", "Ready"]


def test_long_accepted_lists_fit_the_schema() -> None:
    many = [Accepted(digit * 64, pinned=True) for digit in "01234567"]
    plan = plan_gate(gate(B, *many, history="a"), known(B), NOW)
    assert plan.accepted is None  # no room: A is bridged by the replicas alone
    plan = plan_gate(gate(B, *many, history="b"), known(B, missing={f"{n:064x}": 1 for n in range(40)}), NOW)
    assert plan.status is not None
    assert len(plan.status["sets"]) == 16


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ([], ""),
        ([("kubectl", "2026-01-01T00:00:00Z", "f:active")], "kubectl"),
        ([("kubectl", "2026-01-01T00:00:00Z", "f:active"), ("c", "2026-02-01T00:00:00Z", "f:accepted")], "kubectl"),
        ([("flux", "2026-03-01T00:00:00Z", "f:active"), ("kubectl", "2026-01-01T00:00:00Z", "f:active")], "flux"),
    ],
)
def test_activator(entries: list[tuple[str, str, str]], name: str) -> None:
    managed = [{"manager": m, "time": t, "fieldsV1": {"f:spec": {f: {}}}} for m, t, f in entries]
    assert activator({"metadata": {"managedFields": managed}}) == name
