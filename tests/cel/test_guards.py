"""Unguarded reads: a table of forms, and the property that no guarded expression fails for a missing key."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pytest
import yaml
from generate import KEYS, guarded_or_not
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gate.cel import Device, EvaluationError, Problem, check, compile  # noqa: A004
from dra_gate.cel.check import parse
from dra_gate.cel.environment import STORED
from dra_gate.cel.guards import unguarded

TABLE = yaml.safe_load((Path(__file__).parent / "guards.yaml").read_text("utf-8"))

# Every subset of the keys, each held with a value that the expressions ask for and with one that they do not.
DEVICES = [
    Device("d", {"d": {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}})
    for values in product(("v", "w", None), repeat=len(KEYS))
]


def found(expression: str) -> list[Problem]:
    tree, problems = parse(expression, STORED)
    assert tree is not None, problems
    return unguarded(tree)


@pytest.mark.parametrize("expression", TABLE["guarded"])
def test_guarded(expression: str) -> None:
    assert found(expression) == []


@pytest.mark.parametrize(("expression", "columns"), TABLE["unguarded"].items())
def test_unguarded(expression: str, columns: list[int]) -> None:
    assert [problem.column for problem in found(expression)] == columns
    assert "unguarded" in {problem.kind for problem in check(expression)}


@settings(max_examples=250, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_a_guarded_expression_never_fails(rng: Random, depth: int) -> None:
    expression = guarded_or_not(rng, depth)
    if found(expression):
        return
    program = compile(expression)
    for device in DEVICES:
        try:
            program.evaluate(device)
        except EvaluationError as error:
            pytest.fail(f"{expression} on {device.attributes}: {error}")


def test_the_generator_makes_both_kinds() -> None:
    rng = Random(1)
    flagged = sum(bool(found(guarded_or_not(rng, 3))) for _ in range(200))
    assert 40 < flagged < 160


def test_an_unguarded_read_does_fail() -> None:
    program = compile("device.attributes['d'].k == 'v'")
    with pytest.raises(EvaluationError, match="no such key: k"):
        program.evaluate(DEVICES[-1])


def test_involved_expressions_are_refused_rather_than_analysed_for_ever() -> None:
    body = "b9"
    for level in reversed(range(10)):
        inner = f"b{level - 1}" if level else "device.attributes['d'].x == 'a'"
        guards = " || ".join(f"(has(device.attributes['d'].k{level}{i}) && {inner})" for i in range(4))
        body = f"cel.bind(b{level}, {guards}, {body})"
    assert [problem.kind for problem in found(body)] == ["unguarded"]
