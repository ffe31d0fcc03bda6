"""The closures of comprehensions: quantifiers, map, filter and their two-variable forms. Every round pays its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dra_gate.cel.closures import BUDGET, Closure, Frame, truth
from dra_gate.cel.constants import constant_of
from dra_gate.cel.library import DYNAMIC_PATTERN, WEIGHTS
from dra_gate.cel.tree import Call, Comprehension, ListLiteral, Literal, MapLiteral, Node, children
from dra_gate.cel.values import KINDS, LISTS, MAPS, EvaluationError, key_of, keys_of, no_such_overload, text_of

Items = Callable[[Frame], Iterable[Any]]


def weight(node: Node) -> int:
    """Steps of evaluating `node` once; loops inside it pay for their own rounds."""
    match node:
        case Comprehension(is_bind=True):
            return 4 + weight(node.init) + weight(node.result)
        case Comprehension():
            return 6 + weight(node.range)
        case Call(function=function):
            own = WEIGHTS.get(function, 2)
            if function in ("matches", "find", "findAll") and not isinstance(node.args[1], Literal):
                own += DYNAMIC_PATTERN
            return own + sum(map(weight, node.args))
        case ListLiteral() | MapLiteral() if constant_of(node) is not None:
            return 1
    return 1 + sum(map(weight, children(node)))


def iteration(closure: Closure, *, two: bool, steps: int) -> Items:
    """What a loop runs over: elements or keys, or with two variables (index, element) or (key, value).

    Each round pays `steps`.
    """

    def paid(frame: Frame, values: Iterable[Any]) -> Iterable[Any]:
        spend = frame[BUDGET].spend
        for value in values:
            spend(steps)
            yield value

    def items(frame: Frame) -> Iterable[Any]:
        value = closure(frame)
        kind = type(value)
        if kind in LISTS:
            return paid(frame, enumerate(value) if two else value)
        if kind in MAPS:
            return paid(frame, zip(keys_of(value), value.values(), strict=True) if two else keys_of(value))
        raise EvaluationError(f"got '{KINDS.get(kind, 'unknown')}', expected iterable type")

    return items


def _store(slots: list[int]) -> Callable[[Frame, Any], None]:
    if len(slots) == 1:
        (slot,) = slots
        return lambda frame, item: frame.__setitem__(slot, item)
    one, two = slots

    def store(frame: Frame, item: Any) -> None:
        frame[one], frame[two] = item

    return store


def quantifier(items: Items, slots: list[int], predicate: Closure, *, stop: bool) -> Closure:
    """`all` (stops at false) and `exists` (stops at true): that answer wins over errors of other elements."""
    store = _store(slots)

    def quantify(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        for item in items(frame):
            store(frame, item)
            try:
                answer = predicate(frame)
                if answer is stop:
                    return bool(stop)
                if answer is not (not stop):
                    raise no_such_overload()
            except EvaluationError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not stop

    return quantify


def exactly_one(items: Items, slots: list[int], test: Closure) -> Closure:
    """`exists_one`."""
    store = _store(slots)

    def exists_one(frame: Frame) -> bool:
        count = 0
        for item in items(frame):
            store(frame, item)
            count += truth(test(frame))
        return count == 1

    return exists_one


def collected(items: Items, slots: list[int], test: Closure | None, element: Closure) -> Closure:
    """`map`, `filter` and transformList."""
    store = _store(slots)

    def collect(frame: Frame) -> list[Any]:
        made: list[Any] = []
        for item in items(frame):
            store(frame, item)
            if test is None or truth(test(frame)):
                made.append(element(frame))
        return made

    return collect


def mapped(items: Items, slots: list[int], test: Closure | None, parts: list[Closure]) -> Closure:
    """transformMap (key, value) and transformMapEntry (one map of entries)."""
    store = _store(slots)

    def insert(frame: Frame) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for item in items(frame):
            store(frame, item)
            if test is not None and not truth(test(frame)):
                continue
            values = [part(frame) for part in parts]
            entries = [(key_of(values[0]), values[1])] if len(values) == 2 else list(values[0].items())
            for key, value in entries:
                if key in made:
                    raise EvaluationError(f"insert failed: key {text_of(key)} already exists")
                made[key] = value
        return made

    return insert
