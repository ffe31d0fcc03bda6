"""Parsing and type-checking: text in, checked tree or problems out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dra_gate.cel.constants import CONVERSIONS, constant_of
from dra_gate.cel.environment import UNSUPPORTED, environment
from dra_gate.cel.library import pattern
from dra_gate.cel.problems import Problem
from dra_gate.cel.tree import Call, ListLiteral, Literal, MapLiteral, Node, Type, UnreadableTreeError, read, walk
from dra_gate.cel.values import EvaluationError

MAX_LENGTH: Final = 10 * 1024  # bytes: resource.k8s.io/v1 CELSelectorExpressionMaxLength
_ALWAYS: Final = "has() of a field of device is always true: leave it out"
_TOO_DEEP: Final = "nested too deeply to be checked here (32 levels): split it, or use &&, || or a list"
DEVICE_FIELDS: Final = ("driver", "attributes", "capacity", "allowMultipleAllocations")

_REPORT = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_LOOKS = re.compile(r"has\(\s*device\.(driver|attributes|capacity|allowMultipleAllocations)\s*\)")


def parse(expression: str, attributes: str) -> tuple[Node | None, list[Problem]]:
    """The checked tree of an expression, or why there is none.

    `attributes` is `environment.NEW` or `environment.STORED`. A tree may come with problems: what the checker lets pass
    and the API server does not.
    """
    try:
        length = len(expression.encode())
    except UnicodeEncodeError:
        return None, [Problem("syntax", "the expression holds half a character (a lone surrogate): remove it", 1, 1)]
    if length > MAX_LENGTH:
        message = f"the expression is {length} bytes long, and Kubernetes takes {MAX_LENGTH}: shorten it"
        return None, [Problem("length", message, 1, 1)]
    try:
        checked = environment(attributes).compile(expression)
        tree = read(checked.serialize())
    except UnreadableTreeError as error:
        return None, [Problem("unsupported", f"{error}: write it without", 1, 1)]
    except RuntimeError as error:  # all that cel-expr-python raises
        return None, sorted(_reported(str(error), expression), key=_place)
    found = [*_result(tree, attributes, expression), *_literals(tree), *_constants(tree)]
    return tree, sorted(found, key=_place)


def _place(problem: Problem) -> tuple[int, int]:
    return problem.line, problem.column


def _reported(report: str, expression: str) -> Iterator[Problem]:
    """The problems in a report of the checker: `ERROR: <input>:line:column: text`, then two lines of drawing each."""
    seen = False
    for line, column, text in _REPORT.findall(report):
        seen = True
        yield _explained(text.strip(), int(line), int(column), expression)
    if not seen:
        text = report.removesuffix(" [INVALID_ARGUMENT]").strip()
        yield Problem("unsupported", _TOO_DEEP, 1, 1) if "recursion" in text else Problem("syntax", text, 1, 1)


def _explained(text: str, line: int, column: int, expression: str) -> Problem:
    text = text.removesuffix(" [INVALID_ARGUMENT]")
    if text.startswith("Syntax error"):
        return Problem("syntax", text + _hint(text), line, column)
    if "recursion" in text:
        return Problem("unsupported", _TOO_DEEP, line, column)
    undeclared = _UNDECLARED.search(text)
    if undeclared:
        name = undeclared[1]
        if name.rpartition(".")[2] in UNSUPPORTED or name.partition(".")[0] in UNSUPPORTED:
            return Problem("unsupported", f"{name} is not understood here: say it without", line, column)
        return Problem("type", f"{name!r} is unknown: {_known(name)}", line, column)
    if "'kubernetes.DRADevice'" in text:
        if "select" in text:
            fields = ", ".join(f"device.{field}" for field in DEVICE_FIELDS)
            return Problem("type", f"device has no such field: use {fields}", line, column)
        return Problem("unsupported", "device cannot be passed on: name its fields", line, column)
    if _LOOKS.search(expression) and "overload" in text:
        return Problem("unsupported", _ALWAYS, line, column)
    return Problem("type", _suggested(text), line, column)


def _hint(text: str) -> str:
    """What to write instead of habits from other languages."""
    if "at: '=" in text:
        return ": == compares"
    if any(f"input '{word}'" in text for word in ("and", "or", "not")):
        return ": CEL writes &&, || and !"
    return ""


def _known(name: str) -> str:
    if name.startswith("device"):
        return "device has " + ", ".join(DEVICE_FIELDS)
    return "the only variable is device, text needs quotes, and functions are those of Kubernetes' CEL"


def _suggested(text: str) -> str:
    """The checker's words, with the remedy for the mistakes that people make with devices."""
    if "kubernetes.Quantity" in text:
        return f"{text}: compare quantities by x.compareTo(quantity('40Gi')) >= 0 or x.isGreaterThan(quantity('40Gi'))"
    if "kubernetes.Semver" in text:
        return f"{text}: compare versions by x.compareTo(semver('1.2.3')) >= 0 or x.isGreaterThan(semver('1.2.3'))"
    if "type 'any'" in text and "comprehension" in text:
        return f"{text}: an attribute holds one value, compare it directly"
    return f"{text}: both sides must have types that go together; dyn(x) leaves the check to run time"


def _result(tree: Node, attributes: str, expression: str) -> Iterator[Problem]:
    if _LOOKS.fullmatch(expression.strip()):
        yield Problem("unsupported", _ALWAYS, tree.line, tree.column)
    elif tree.type != Type("bool") and tree.type != Type(attributes):
        message = f"the expression gives {tree.type}, and a selector must give bool: compare the value with something"
        yield Problem("type", message, tree.line, tree.column)


def _literals(tree: Node) -> Iterator[Problem]:
    """HomogeneousAggregateLiterals: elements of a list, keys and values of a map have one type."""
    for node in walk(tree):
        groups: tuple[list[Node], ...] = ()
        if isinstance(node, ListLiteral):
            groups = ([element for index, element in enumerate(node.elements) if index not in node.optional],)
        elif isinstance(node, MapLiteral):
            groups = (
                [key for key, _, _ in node.entries],
                [value for _, value, optional in node.entries if not optional],
            )
        for group in groups:
            for other in group[1:]:
                if not _goes_with(group[0].type, other.type):
                    message = (
                        f"one list or map mixes {group[0].type} and {other.type}: use one type, or dyn() around each"
                    )
                    yield Problem("type", message, other.line, other.column)


def _goes_with(one: Type, two: Type) -> bool:
    if one.name == two.name and len(one.params) == len(two.params):
        return all(
            a.name == "dyn" or b.name == "dyn" or _goes_with(a, b) for a, b in zip(one.params, two.params, strict=True)
        )
    return False


def _constants(tree: Node) -> Iterator[Problem]:
    """What the API server computes when it compiles: constant patterns and conversions of constants."""
    for node in walk(tree):
        if not isinstance(node, Call):
            continue
        try:
            if node.function in ("matches", "find", "findAll") and isinstance(node.args[1], Literal):
                pattern(str(node.args[1].value))
            elif node.function in CONVERSIONS and _converts(node.args[0]):
                constant_of(node)
        except EvaluationError as error:
            yield Problem("type", f"{error}: write a constant that {node.function}() takes", node.line, node.column)


def _converts(node: Node) -> bool:
    """False if folding `node` fails: that is reported where it happens, not again further up."""
    try:
        constant_of(node)
    except EvaluationError:
        return False
    return True
