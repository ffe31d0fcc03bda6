"""The table against what was recorded of real and constructed failures (`evidence.py`): no control plane needed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from allocation.failures import test_constructed, test_provoked
from allocation.failures.evidence import RECORDED
from dra_gate.allocation.failures import CLASSES, ROWS, Facts, classify, evidence
from dra_gate.allocation.failures.reference import page

TESTS = [
    (module.HOW, test)
    for module in (test_provoked, test_constructed)
    for name, test in vars(module).items()
    if name.startswith("test_")
]
FILES = sorted(RECORDED.glob("*.json"))
BY_ID = {row.id: row for row in ROWS}


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    facts = content["facts"] | {"taints": frozenset(content["facts"].get("taints", ()))}
    return content | {"facts": Facts(**facts)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_recorded_is_classified_the_same(path: Path) -> None:
    seen = read(path)
    failure = classify(seen["pod"], seen["claims"], seen["events"], seen["version"], seen["facts"])
    assert failure is not None
    assert (failure.row, failure.klass, failure.action) == (seen["row"], seen["class"], seen["action"])
    assert failure.text == seen["text"]
    if seen["pod"]:
        assert (
            classify(evidence(seen["pod"]), seen["claims"], seen["events"], seen["version"], seen["facts"]) == failure
        )
    assert failure.backoff is CLASSES[failure.klass]


def of(seen: dict[str, Any], pod: dict[str, Any] | None = None, version: str = "", **facts: Any) -> str | None:
    """The row for what was recorded, with something changed."""
    known = dataclasses.replace(seen["facts"], **facts)
    failure = classify(pod or seen["pod"], seen["claims"], seen["events"], version or seen["version"], known)
    return failure.row if failure else None


def said(pod: dict[str, Any], reason: str, message: str) -> dict[str, Any]:
    """The Pod with another text of the scheduler's on it."""
    conditions = [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]
    return pod | {"status": pod["status"] | {"conditions": conditions}}


SPOKEN = [
    path
    for path in FILES
    if any(
        when.stages == ("scheduling",) and when.condition and when.condition.message for when in BY_ID[path.stem].when
    )
]


@pytest.mark.parametrize("path", SPOKEN, ids=lambda path: path.stem)
def test_reason_and_text_of_the_scheduler_both_count(path: Path) -> None:
    seen = read(path)
    (reason,) = {c["reason"] for c in seen["pod"]["status"]["conditions"] if c["type"] == "PodScheduled"}
    assert of(seen, said(seen["pod"], reason, "the flux capacitor is cold")) == "scheduling-failed"
    other = "SchedulerError" if reason == "Unschedulable" else "Unschedulable"
    assert of(seen, said(seen["pod"], other, seen["text"])) != path.stem


@pytest.mark.parametrize("path", [p for p in FILES if read(p)["facts"] != Facts()], ids=lambda path: path.stem)
def test_every_fact_counts(path: Path) -> None:
    seen = read(path)
    for field in dataclasses.fields(Facts):
        if getattr(seen["facts"], field.name) != field.default and field.name in asked(path.stem):
            assert of(seen, **{field.name: field.default}) != path.stem, field.name


def asked(row: str) -> set[str]:
    """The facts that the row asks for."""
    clauses = BY_ID[row].when
    others = {"seconds": any(w.after for w in clauses), "taints": any(w.taint for w in clauses)}
    return {name for when in clauses for name in when.facts} | {name for name, wanted in others.items() if wanted}


@pytest.mark.parametrize("path", [p for p in FILES if all(w.since for w in BY_ID[p.stem].when)], ids=lambda p: p.stem)
def test_what_an_old_version_does_not_say_is_not_heard_there(path: Path) -> None:
    assert of(read(path), version="v1.34.2") != path.stem


STAGES: dict[str, dict[str, dict[str, Any]]] = {
    "held": {"spec": {"schedulingGates": [{"name": "g"}]}},
    "claimless": {"spec": {"schedulingGates": None}},
    "bound": {"metadata": {"deletionTimestamp": None}, "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}},
    "running": {"metadata": {"deletionTimestamp": None}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}},
    "ended": {"metadata": {"deletionTimestamp": None}, "status": {"phase": "Failed"}},
    "leaving": {"metadata": {"deletionTimestamp": "2026-11-30T12:00:00Z"}},
}


@pytest.mark.parametrize("path", [p for p in FILES if read(p)["pod"]], ids=lambda path: path.stem)
def test_a_row_holds_in_each_of_its_stages(path: Path) -> None:
    seen = read(path)
    for stage in BY_ID[path.stem].when[0].stages:
        change = STAGES.get(stage, {})
        pod = {part: seen["pod"][part] | change.get(part, {}) for part in ("metadata", "spec", "status")}
        assert of(seen, pod) == path.stem, stage


def test_every_row_has_one_test_and_one_record() -> None:
    named = [row for _, test in TESTS for row in test.rows]
    assert sorted(named) == sorted(row.id for row in ROWS)
    assert {path.stem for path in FILES} == set(named)
    how = {row: how for how, test in TESTS for row in test.rows}
    assert {path.stem: json.loads(path.read_text())["how"] for path in FILES} == how


def test_a_row_says_that_it_was_seen_only_if_it_was() -> None:
    provoked = {row for how, test in TESTS for row in test.rows if how == "provoked"}
    assert {row.id for row in ROWS if "seen on 1.37.2" in row.source} <= provoked


def test_every_signal_of_the_first_list_has_a_row() -> None:
    assert {row.signal for row in ROWS} == set(range(25))  # 0: found later


def test_the_reference_page_is_up_to_date() -> None:
    committed = (Path(__file__).parents[3] / "docs" / "reference" / "failures.md").read_text()
    assert committed == page(), "run: python -m dra_gate.allocation.failures.reference > docs/reference/failures.md"
