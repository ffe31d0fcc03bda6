"""What is said about wrong selectors: kind, place and remedy, all problems at once."""

from __future__ import annotations

import pytest

from dra_gate.cel import CelError, check, compile  # noqa: A004
from dra_gate.cel.check import MAX_LENGTH

MEMORY = "has(device.capacity['gpu.nvidia.com'].memory) && device.capacity['gpu.nvidia.com'].memory"

WRONG = [
    ("device.driver ==", "syntax", 1, 17, "mismatched input"),
    ("device.driver == 'a", "syntax", 1, 18, "token recognition"),
    ("device.driver = 'a'", "syntax", 1, 15, "== compares"),
    ("true and false", "syntax", 1, 6, "CEL writes &&"),
    ("cel.bind(device, 1, device == 1)", "unsupported", 1, 9, "name of another variable"),
    ("device.model == 'a'", "type", 1, 7, "device.attributes"),
    ("true &&\n  foo == 1", "type", 2, 3, "'foo' is unknown: the only variable is device"),
    ("device.driver == 1", "type", 1, 15, "types that go together"),
    ("device.driver", "type", 1, 7, "must give bool"),
    ("size(device.driver)", "type", 1, 5, "gives int"),
    (f"{MEMORY} >= 40", "type", 1, 91, "compareTo(quantity('40Gi'))"),
    ("semver('1.0.0') > semver('0.1.0')", "type", 1, 17, "compareTo(semver("),
    ("[1, 'a'].size() == 2", "type", 1, 5, "mixes int and string"),
    ("{'a': 1, 'b': 'c'}.size() == 2", "type", 1, 15, "mixes int and string"),
    ("device.driver.matches('(')", "type", 1, 22, "error parsing regexp"),
    ("int('x') == 1", "type", 1, 4, "type conversion error from 'string' to 'int'"),
    ("int(string(bool('maybe'))) == 1", "type", 1, 16, "type conversion error from 'string' to 'bool'"),
    ("device.attributes['d'].all(k, device.attributes['d'].x.all(y, true))", "type", 1, 53, "holds one value"),
    ("timestamp('2020-01-01T00:00:00Z') > timestamp('2019-01-01T00:00:00Z')", "unsupported", 1, 10, "timestamp"),
    ("'a'.format([]) == 'a'", "unsupported", 1, 11, "format"),
    ("[3, 1].sort() == [1, 3]", "unsupported", 1, 12, "sort"),
    ("ip('10.0.0.1').family() == 4", "unsupported", 1, 3, "ip"),
    ("has(device.attributes) && true", "unsupported", 1, 24, "always true"),
    ("cel.bind(d, device, true)", "unsupported", 1, 13, "name the field"),
    ("(" * 60 + "true" + ")" * 60, "unsupported", 1, 1, "nested too deeply"),
    ("device.attributes['d'].x == 'a'", "unguarded", 1, 23, "has(device.attributes['d'].x) &&"),
    ("device.attributes['d'].?x.orValue('').contains('a')", "cost", 1, 47, "has(x) && x.contains"),
]


@pytest.mark.parametrize(("expression", "kind", "line", "column", "words"), WRONG)
def test_one_problem(expression: str, kind: str, line: int, column: int, words: str) -> None:
    problems = [problem for problem in check(expression) if problem.kind == kind]
    assert problems
    assert (problems[0].line, problems[0].column) == (line, column), problems
    assert words in problems[0].message


def test_all_problems_at_once() -> None:
    problems = check("device.model == 'a' &&\n  foo > 1 &&\n  device.driver == 1")
    assert [(problem.kind, problem.line) for problem in problems] == [("type", 1), ("type", 2), ("type", 3)]


def test_soft_problems_come_together_and_in_order() -> None:
    problems = check("device.attributes['d'].x == 'a' && device.attributes['d'].?y.orValue('').contains('b')")
    assert [problem.kind for problem in problems] == ["unguarded", "cost"]


def test_label() -> None:
    assert check("foo == 1", label="model h100")[0].message.startswith("model h100: ")


def test_half_a_character() -> None:
    assert [problem.kind for problem in check("device.driver == '\ud800'")] == ["syntax"]


def test_length_counts_bytes() -> None:
    room = MAX_LENGTH - len("device.driver != ''")
    assert check(f"device.driver != '{'a' * room}'") == []
    for text in ("a" * (room + 1), "é" * (room // 2 + 1)):
        problems = check(f"device.driver != '{text}'")
        assert [problem.kind for problem in problems] == ["length"]
        with pytest.raises(CelError):
            compile(f"device.driver != '{text}'")


def test_compile_takes_what_is_only_unwise() -> None:
    for expression in ("device.attributes['d'].x == 'a'", "device.attributes['d'].?x.orValue('').contains('a')"):
        assert check(expression)
        compile(expression)


def test_good_selectors_have_no_problems() -> None:
    domain = "device.attributes['gpu.nvidia.com']"
    for expression in (
        "device.driver == 'gpu.nvidia.com'",
        f"has({domain}.productName) && {domain}.productName.startsWith('NVIDIA H100')",
        f"has({domain}.driverVersion) && {domain}.driverVersion.compareTo(semver('550.54.15')) >= 0",
        f"{MEMORY}.compareTo(quantity('40Gi')) >= 0",
        f"{domain}.?architecture.orValue('') in ['Hopper', 'Ampere']",
        f"cel.bind(d, {domain}, has(d.productName) && (d.productName.contains('H100') || d.productName == 'x'))",
    ):
        assert check(expression) == []
