"""The tables under cases/: what the allocator gives, and which check turns each device away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from allocation import worlds
from dra_gate.allocation import Allocator, Examination, Outcome

FOLDER = Path(__file__).parent / "cases"


def cases() -> list[Any]:
    """Every case of every table; its name says what it shows."""
    return [
        pytest.param(case, id=f"{table.stem}: {case['name']}")
        for table in sorted(FOLDER.glob("*.yaml"))
        for case in yaml.safe_load(table.read_text("utf-8"))
    ]


def given(outcome: Outcome) -> list[list[str]]:
    """The results in a word each: `request=driver/pool/device`."""
    return [
        [
            f"{one.request}={one.driver}/{one.pool}/{one.device}"
            + (" admin" if one.admin_access else "")
            + "".join(f" {name}:{amount}" for name, amount in sorted(one.consumed_capacity.items()))
            for one in claim.results
        ]
        for claim in outcome.claims
    ]


def checks(examination: Examination) -> dict[str, dict[str, str]]:
    """The first failing check of each device, by `request/alternative`; `in-use by` names the holders."""
    return {
        f"{one.request}/{one.alternative}".rstrip("/"): {
            device.device: " ".join(filter(None, [device.check, device.detail, *device.claims])) or "fits"
            for device in one.devices
        }
        for one in examination.requests
    }


def test_one_allocator_answers_different_questions() -> None:
    case = {"slices": [{"node": "n1", "devices": ["g0 h100", "g1 a100"]}]}
    allocator = Allocator(worlds.snapshot(case))
    wanted = {model: worlds.claims({"requests": [{"name": "r", "model": model}]}) for model in ("h100", "a100", "b200")}
    for _ in range(2):
        found = {model: given(allocator.allocate("n1", asked)) for model, asked in wanted.items()}
        assert found == {"h100": [["r=d/n1/g0"]], "a100": [["r=d/n1/g1"]], "b200": []}


def test_many_claims() -> None:
    """As deep as the search may go, and one claim more."""
    case = {"slices": [{"name": f"s{n}", "node": "n1", "pool": f"p{n:02}", "devices": ["g0", "g1"]} for n in range(32)]}
    allocator = Allocator(worlds.snapshot(case))
    claims = worlds.claims({"claims": [{"name": f"c{n}", "requests": [{"name": "r"}]} for n in range(65)]})
    assert len(allocator.allocate("n1", claims[:64]).claims) == 64
    outcome = allocator.allocate("n1", claims)
    assert (outcome.kind, outcome.message) == ("cannot-evaluate", "more than 128 claims and requests")


@pytest.mark.parametrize("count", [{}, {"count": 0}])
def test_no_count_is_one(count: dict[str, int]) -> None:
    """As the API server stores it; files may leave it out."""
    claim = worlds.claims({"requests": [{"name": "r"}]})[0]
    del claim["spec"]["devices"]["requests"][0]["exactly"]["count"]
    claim["spec"]["devices"]["requests"][0]["exactly"] |= count
    outcome = Allocator(worlds.snapshot({"slices": [{"node": "n1", "devices": ["g0", "g1"]}]})).allocate("n1", [claim])
    assert given(outcome) == [["r=d/n1/g0"]]


def test_a_search_that_takes_too_long_is_not_guessed() -> None:
    case: dict[str, Any] = {
        "slices": [{"node": "n1", "devices": [{"name": f"g{n}", "root": str(n)} for n in range(30)]}],
        "requests": [{"name": "r", "count": 15}],
        "constraints": [{"distinctAttribute": "d/root"}, {"matchAttribute": "d/root"}],
    }
    assert Allocator(worlds.snapshot(case)).allocate("n1", worlds.claims(case)).kind == "impossible"
    unending = case | {
        "constraints": [],
        "requests": [{"name": "r", "count": 15}, {"name": "none", "select": ["false"]}],
    }
    outcome = Allocator(worlds.snapshot(unending)).allocate("n1", worlds.claims(unending))
    assert (outcome.kind, outcome.message) == ("cannot-evaluate", "the search takes more than 200,000 steps")


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any]) -> None:
    allocator = Allocator(worlds.snapshot(case), ignore=case.get("ignore", ()))
    asked, expected = worlds.claims(case), case["expect"]
    for node in expected.get("nodes", ["n1"]):
        examination = allocator.examine(node, asked)
        outcome = examination.outcome
        assert outcome == allocator.allocate(node, asked)
        if "gives" in expected:
            assert (outcome.kind, outcome.message, given(outcome)) == ("allocated", "", expected["gives"])
        else:
            assert (outcome.kind, outcome.message) == (expected["kind"], expected.get("message", ""))
        if "score" in expected:
            assert outcome.score == expected["score"]
        if "selectors" in expected:
            assert [claim.node_selector for claim in outcome.claims] == expected["selectors"]
        found = checks(examination)
        assert {name: found[name] for name in expected.get("checks", {})} == expected.get("checks", {})
        if "pools" in expected:
            states = [f"{one.driver}/{one.pool} {one.state} {one.reason}".strip() for one in examination.pools]
            assert states == expected["pools"]
        assert list(examination.backtracked) == expected.get("backtracked", [])
