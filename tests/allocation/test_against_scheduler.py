"""The restated allocator beside kube-scheduler's own; `make prove-allocator` does the same at length."""

from __future__ import annotations

import secrets

import pytest
import yaml

from allocation import worlds
from allocation.compare import compare, constructs, shrink
from allocation.generate import question
from allocation.oracle import FIELDS, Oracle, Question, Verdict
from allocation.test_cases import FOLDER
from proofs.allocator import judge

pytestmark = pytest.mark.controlplane


@pytest.fixture
def oracle() -> Oracle:
    with Oracle() as running:
        yield running


def test_the_same_answers_for_five_hundred_questions() -> None:
    tally = judge(range(500))
    assert tally.disagreeing == []
    assert sum(tally.unanswered.values()) <= 0.005 * tally.nodes
    assert all(why.startswith("the search takes more than") for why in tally.unanswered)
    # and they are questions: many can be met, every kind of answer comes up, choices are taken back
    assert 0.35 < tally.allocatable / tally.questions < 0.6
    assert set(tally.kinds) == {"allocated", "impossible", "failed", "invalid-pools"}
    assert tally.went_back > 20
    assert len(tally.of) > 35


def test_the_same_answers_for_questions_that_nobody_asked_before() -> None:
    seeds = [secrets.randbits(40) for _ in range(30)]
    assert judge(seeds).disagreeing == []


def test_the_tables_say_what_the_scheduler_says(oracle: Oracle) -> None:
    judged = 0
    for table in sorted(FOLDER.glob("*.yaml")):
        for case in yaml.safe_load(table.read_text("utf-8")):
            unasked = "version" in case or "ignore" in case or "DRAExtendedResource" in case.get("gates", {})
            if case["expect"].get("kind") == "cannot-evaluate" or unasked:  # the last is locked: no such scheduler
                continue
            snapshot, claims = worlds.snapshot(case), worlds.claims(case)
            fields = FIELDS | {"DeviceTaintRule": "taint_rules"}
            listed = {kind: getattr(snapshot, name) for kind, name in fields.items()}
            objects = [one | {"kind": kind} for kind, found in listed.items() for one in found]
            asked = tuple(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in claims)
            question = Question((*objects, *claims), asked, case.get("gates", {}))
            compared, _ = compare(question, oracle.ask(question))
            assert [one.difference for one in compared] == [""] * len(snapshot.nodes), case["name"]
            assert all(one.evaluated for one in compared)
            judged += 1
    assert judged > 40


def test_a_question_is_the_same_for_the_same_seed() -> None:
    assert question(7).line() == question(7).line() != question(8).line()


def test_a_wrong_answer_is_told(oracle: Oracle) -> None:
    """Against verdicts of another question, so that neither side has to be broken."""
    for seed in range(50):
        asked = question(seed)
        verdicts = oracle.ask(asked)
        allocated = next((one for one in verdicts if one.results), None)
        if allocated is None:
            continue
        results = allocated.results
        assert results is not None
        results[0]["devices"]["results"][0]["device"] = "another"
        (compared, *_), _ = compare(asked, [allocated])
        assert "another" in compared.difference
        impossible = Verdict(allocated.node, None, "", on_node=False, steps=1, microseconds=1)
        (compared, *_), _ = compare(asked, [impossible])
        assert compared.difference == "allocated for impossible"
        return
    pytest.fail("no question was allocated")


def test_shrinking_leaves_what_matters() -> None:
    def still(asked: Question) -> bool:
        return bool(asked.claims) and "device taint, NoExecute" in constructs(asked)

    large = next(asked for asked in map(question, range(100)) if still(asked))
    small = shrink(large, still)
    assert [one["kind"] for one in small.objects] == ["ResourceSlice", "ResourceClaim"]
    (device,) = small.objects[0]["spec"]["devices"]
    assert list(device) == ["name", "taints"]


@pytest.mark.parametrize("mode", ["one after the other", "again"])
def test_the_oracle_keeps_nothing_between_questions(oracle: Oracle, mode: str) -> None:
    first = [oracle.ask(question(seed)) for seed in range(20)]
    order = range(20) if mode == "again" else reversed(range(20))
    for seed in order:
        again = oracle.ask(question(seed))
        assert [(v.kind, v.error, v.steps) for v in again] == [(v.kind, v.error, v.steps) for v in first[seed]]
