"""A decision made again from its record and a saved state: the same, or exactly what differs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from allocation.parts import state
from allocation.test_state import world
from dra_gate.allocation.changes import without
from dra_gate.allocation.explain import Explainer
from dra_gate.allocation.podclaims import name_of
from dra_gate.allocation.record import DecisionRecord, dumps
from dra_gate.allocation.state import State, digest_of, loads
from dra_gate.cli.main import root
from dra_gate.controller.replay import decided_again, differences

FILE = Path(__file__).parent / "states" / "research.json"
AT = 1796032860.0  # a minute after the Pods were placed


@pytest.fixture(scope="module")
def saved() -> State:
    return loads(FILE.read_bytes())


def record(of: State, pod: str, sequence: int = 1) -> DecisionRecord:
    """What the controller would record about the Pod."""
    asked = DecisionRecord("research", pod, f"pod-research-{pod}", 0, "waiting", "", "", "", "", (), at=AT)
    decision = decided_again(asked, of)
    assert decision is not None
    return replace(decision.record, sequence=sequence, snapshot=digest_of(of))


def test_the_same_state_gives_the_same_decision(saved: State) -> None:
    made = record(saved, "fell-back")
    assert (made.outcome, made.model, made.rank) == ("allocated", "a100", 2)
    # An H100 is free, on a node with too little CPU for the Pod.
    assert ([one.code for one in made.passed], made.inversion) == (["inverted"], "resources")
    assert differences(made, saved, digest_of(saved)) == []
    waits = record(saved, "waits")
    assert (waits.outcome, waits.rank) == ("waiting", 0)
    assert differences(waits, saved, digest_of(saved)) == []


def test_what_differs_is_named_by_its_field(saved: State) -> None:
    made = record(saved, "fell-back")
    later = without(saved, "pod/lilac/train")
    found = {one.field: (one.recorded, one.again) for one in differences(made, later, digest_of(later))}
    assert found.pop("snapshot")[0] == digest_of(saved)
    assert found["candidates[0].free"] == (1, 3)
    assert found["inversion"] == ("resources", "score")
    assert not [field for field in found if not field.startswith(("candidates[0]", "passed[0]", "inversion"))]
    gone = without(saved, "pod/research/fell-back")
    assert [one.field for one in differences(replace(made, snapshot=None), gone, "")] == ["outcome"]


def test_the_command(saved: State, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    made = [record(saved, "waits"), record(saved, "fell-back", 2)]
    log.write_bytes(b"\n".join(map(dumps, made)) + b"\n")
    done = CliRunner().invoke(root, ["replay", str(log), "--snapshot", str(FILE)])
    assert done.exit_code == 0, done.output
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "Pod research/waits, decision 1",
        "Pod research/fell-back, decision 2",
    ]
    log.write_bytes(dumps(replace(made[1], rank=1)))
    done = CliRunner().invoke(root, ["replay", str(log), "--snapshot", str(FILE), "-o", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["differences"] == [{"field": "rank", "recorded": 1, "again": 2}]
    done = CliRunner().invoke(root, ["replay", str(log), "--snapshot", str(FILE), "--pod", "research/nobody"])
    assert done.exit_code == 2
    log.write_text("{}")
    done = CliRunner().invoke(root, ["replay", str(log), "--snapshot", str(FILE)])
    assert done.exit_code == 2
    assert "decisions.jsonl:1: not a DecisionRecord" in done.stderr


def test_every_process_says_the_same(saved: State, tmp_path: Path) -> None:
    """Whatever order its sets have."""
    log = tmp_path / "decisions.jsonl"
    log.write_bytes(dumps(replace(record(saved, "fell-back"), rank=3)))
    said = set()
    for seed in ("0", "1", "2"):
        for verb in (
            ["replay", str(log)],
            ["explain", "pod", "research/waits", "--devices"],
            ["what-if", "--all-waiting"],
        ):
            command = [sys.executable, "-m", "dra_gate", *verb, "--snapshot", str(FILE), "-o", "json"]
            done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONHASHSEED": seed})
            assert done.returncode in (0, 1), done.stderr
            said.add((verb[0], done.stdout))
    assert len(said) == 3


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_records_and_explanations_count_the_same(rng: random.Random) -> None:
    """Two ways to count, by events and by looking at all, written apart."""
    found = state(world(rng))
    explainer = Explainer(found)
    for pod in explainer.waiting():
        asked = DecisionRecord(*name_of(pod), pod["metadata"]["uid"], 0, "waiting", "", "", "", "", (), at=AT)
        decision = decided_again(asked, found)
        explanation = explainer.of(pod)
        if decision is None or not decision.record.candidates or explanation.causes:
            continue
        (request,) = explanation.claims[0].requests
        counted = [(one.model, one.published, one.matching, one.free) for one in decision.record.candidates]
        assert [(one.model, one.published, one.matching, one.free) for one in request.candidates] == counted
