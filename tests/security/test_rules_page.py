"""The pages on security name only tests that exist, and have what their first lines promise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security" / "admission-rules.md").read_text()
THREATS = (ROOT / "docs" / "security" / "threat-model.md").read_text()
TEST = re.compile(r"`(tests/\S+\.py)::(\w+)`")
_ROW = re.compile(r"^\*\*(\d+)\. (.*?)(?=^\*\*\d+\. |^## |\Z)", re.MULTILINE | re.DOTALL)
ROWS = {int(number): text for number, text in _ROW.findall(PAGE)}
UNTESTABLE = [6, 17]  # threats that nothing answers


@cache
def found_in(file: str) -> frozenset[str]:
    """The test functions at the top of a file, as pytest would find them; empty if there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text()).body
    functions = (node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def listed(word: str) -> list[int]:
    found = re.search(rf"{word}: ([\d, ]+)\.", PAGE)
    assert found is not None
    return [int(number) for number in found[1].split(",")]


def test_there_are_49_rows_and_the_summary_is_of_them() -> None:
    assert [int(number) for number, _ in _ROW.findall(PAGE)] == list(range(1, 50))
    assert listed("Partly") == [number for number, text in ROWS.items() if "**Partly.**" in text]


@pytest.mark.parametrize("page", [PAGE, THREATS], ids=["rules", "threats"])
def test_every_test_that_is_named_exists(page: str) -> None:
    named = TEST.findall(page)
    assert len(named) == page.count("::"), "a name that is written in another way is not checked"
    assert [f"{file}::{name}" for file, name in named if name not in found_in(file)] == []


def test_every_row_names_a_test() -> None:
    assert [number for number, text in ROWS.items() if not TEST.search(text)] == []


def test_every_threat_has_an_answer_what_stays_open_and_a_test() -> None:
    theirs, ours = THREATS.split("\n## Ours on top\n")
    assert [int(number) for number, _ in _ROW.findall(theirs)] == list(range(1, 19)), "as SIG Security numbers them"
    rows = _ROW.findall(THREATS)
    assert [int(number) for number, _ in rows] == list(range(1, 19 + len(_ROW.findall(ours))))
    for number, text in rows:
        assert text.count("*Answer.*") == text.count("*Open.*") == 1, number
        assert text.index("*Answer.*") < text.index("*Open.*"), number
    assert [int(number) for number, text in rows if not TEST.search(text)] == UNTESTABLE
