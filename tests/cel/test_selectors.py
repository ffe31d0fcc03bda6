"""Selectors against what Kubernetes made of the same ones (selectors.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_gate.cel import CelError, Device, EvaluationError, check, compile, device_of  # noqa: A004
from dra_gate.cel.check import parse
from dra_gate.cel.cost import MAX_COST, max_cost
from dra_gate.cel.environment import NEW

RECORDED = yaml.load((Path(__file__).parent / "selectors.yaml").read_text("utf-8"), yaml.CSafeLoader)
DEVICES = [device_of("d", raw) for raw in RECORDED["devices"]]

# Good CEL in Kubernetes that this package says it does not understand: it must say so, and of nothing else.
UNSUPPORTED = {
    "has(device.attributes)": "a field of device is no expression to the checker",
    "cel.bind(d, device, d.driver == 'd')": "device is no value to the checker",
    "cel.bind(device, 1, device == 1)": "the checker does not see that the name is taken",
    "duration('1s') == duration('1s')": "no durations",
    "timestamp('2020-01-01T00:00:00Z').getFullYear() == 2020": "no times",
    "[1, 2].includes(1)": "only in stored expressions, and only with an alpha feature",
}
# Errors whose words are ours and say more. `no such overload` names types in Kubernetes now and then.
REWORDED = (
    "No Major.Minor.Patch",
    "quantities must match",
    "error parsing regexp",
    "no such overload",
    "CEL result of type",
)


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{number}: {case['expression'][:70]}")
        for number, case in enumerate(RECORDED["selectors"])
    ]


def hard(expression: str) -> set[str]:
    """The kinds of problems for which the API server refuses a new expression, as far as compiling goes."""
    return {problem.kind for problem in check(expression)} & {"length", "syntax", "type", "unsupported"}


@pytest.mark.parametrize("case", cases())
def test_new(case: dict[str, Any]) -> None:
    expression, expected = case["expression"], case["new"]
    if expected == "refused":
        assert hard(expression)
    elif expression in UNSUPPORTED:
        assert hard(expression) == {"unsupported"}
    else:
        assert not hard(expression)
        tree, _ = parse(expression, NEW)
        assert tree is not None
        assert max_cost(tree) == expected
        assert ("cost" in {problem.kind for problem in check(expression)}) == (expected > MAX_COST)


@pytest.mark.parametrize("case", cases())
def test_stored(case: dict[str, Any]) -> None:
    expression, expected = case["expression"], case["stored"]
    if expected == "refused" or expression in UNSUPPORTED:
        with pytest.raises(CelError) as caught:
            compile(expression)
        kinds = {problem.kind for problem in caught.value.problems}
        assert kinds == {"unsupported"} if expected != "refused" else "cost" not in kinds
        return
    program = compile(expression)
    for device, outcome in zip(DEVICES, expected, strict=True):
        if isinstance(outcome, bool):
            assert program.evaluate(device) is outcome
            continue
        with pytest.raises(EvaluationError) as error:
            program.evaluate(device)
        if not outcome.startswith(REWORDED):
            assert str(error.value) == outcome


def test_a_program_keeps_nothing_between_devices() -> None:
    program = compile("device.attributes['d'].exists(k, v, cel.bind(w, k + '!', w == 'i!'))")
    answers = [program.evaluate(device) for device in DEVICES]
    assert answers == [True, True, False]
    assert [program.evaluate(device) for device in reversed(DEVICES)] == answers[::-1]


def test_result_that_is_no_bool() -> None:
    program = compile("device.attributes['d'].x")
    with pytest.raises(EvaluationError, match="CEL result of type string could not be converted to bool"):
        program.evaluate(DEVICES[0])


def test_list_attributes() -> None:
    device = Device("d", {"d": {"tags": ("a", "b"), "sizes": (1, 2)}})
    assert compile("device.attributes['d'].tags.exists(t, t == 'b')").evaluate(device)
    assert compile("'a' in device.attributes['d'].tags && device.attributes['d'].sizes.sum() == 3").evaluate(device)
