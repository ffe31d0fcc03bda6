"""Random selectors against other evaluators of CEL, for the part of the language that those know."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import celpy
import pytest
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
from generate import Generator
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gate.cel import CelError, Device, EvaluationError, compile  # noqa: A004

T = cel.Type
ATTRIBUTES = {"d": {"x": "a", "b": True, "i": 5, "s": "NVIDIA H100 80GB"}, "zz": {}}
DEVICE = Device("d", ATTRIBUTES)
CPP = cel.NewEnv(
    variables={
        "device.driver": T.STRING,
        "device.attributes": T.Map(T.STRING, T.Map(T.STRING, T.DYN)),
        "device.allowMultipleAllocations": T.BOOL,
    },
    extensions=[ext_strings.ExtStrings(), ext_optional.ExtOptional(), ext_bindings.ExtBindings()],
)
PYTHON = celpy.Environment()
MISSES = [
    re.compile(entry["pattern"])
    for entry in yaml.safe_load((Path(__file__).parent / "cel_python_misses.yaml").read_text("utf-8"))
]
ERROR = "error"
randoms = st.randoms(use_true_random=False)


def ours(expression: str) -> bool | str | None:
    """Our result, ERROR, or None where Kubernetes refuses to compile what other evaluators take."""
    try:
        program = compile(expression)
    except CelError as error:
        refused = {problem.kind for problem in error.problems}
    else:
        try:
            return program.evaluate(DEVICE)
        except EvaluationError as error:
            return None if "NaN" in str(error) else ERROR  # cel-cpp calls NaN neither smaller nor larger
    # Literals of mixed types and constants that do not convert are refused in Kubernetes only.
    assert refused == {"type"}, expression
    return None


def cpp(expression: str) -> bool | str:
    value = CPP.compile(expression).eval(
        data={"device.driver": "d", "device.attributes": ATTRIBUTES, "device.allowMultipleAllocations": False}
    )
    return ERROR if value.type() == T.ERROR else value.value()


def python(expression: str) -> bool | str:
    try:
        return bool(PYTHON.program(PYTHON.compile(expression)).evaluate({}))
    except (celpy.CELEvalError, ValueError, TypeError):
        return ERROR


@settings(max_examples=600, deadline=None)
@given(randoms, st.integers(1, 4))
def test_as_cel_cpp(rng: Random, depth: int) -> None:
    expression = Generator(rng, kubernetes=False, depth=depth).selector()
    result = ours(expression)
    if result is not None and "in []" not in expression:  # cel-go computes nothing for `x in []`
        assert result == cpp(expression), expression


@settings(max_examples=300, deadline=None)
@given(randoms, st.integers(1, 3))
def test_as_cel_python(rng: Random, depth: int) -> None:
    expression = Generator(rng, kubernetes=False, attributes=False, depth=depth).selector()
    if any(miss.search(expression) for miss in MISSES):
        return
    result = ours(expression)
    if result is not None and "in []" not in expression:
        assert result == python(expression), expression


@pytest.mark.parametrize("expression", ["('a' + 'b').contains('a')", "string(true) == 'true'", "cel.bind(x, true, x)"])
def test_the_misses_of_cel_python_are_still_there(expression: str) -> None:
    """When this fails, cel-python has learnt something and cel_python_misses.yaml can shrink."""
    assert ours(expression) is True
    try:
        result = python(expression)
    except celpy.CELParseError:
        result = ERROR
    assert result is not True


def test_the_generator_mostly_compiles() -> None:
    rng = Random(3)
    results = [ours(Generator(rng, kubernetes=False, depth=3).selector()) for _ in range(200)]
    assert results.count(True) > 20
    assert results.count(False) > 20
    assert results.count(ERROR) > 20
    assert results.count(None) < 30
