"""The table against what was recorded of real and constructed failures (`evidence.py`): no control plane needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocation.failures import test_constructed, test_provoked
from allocation.failures.evidence import RECORDED
from dra_gate.allocation.failures import CLASSES, ROWS, Facts, classify
from dra_gate.allocation.failures.reference import page

TESTS = [
    (module.HOW, test)
    for module in (test_provoked, test_constructed)
    for name, test in vars(module).items()
    if name.startswith("test_")
]
FILES = sorted(RECORDED.glob("*.json"))


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
    assert failure.backoff is CLASSES[failure.klass]


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
