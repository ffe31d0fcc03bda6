"""Constant folding, as far as cel-go's OptOptimize goes: it decides what is refused when an expression is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dra_gate.cel.library import Budget, function_of
from dra_gate.cel.tree import Call, ListLiteral, Literal, MapLiteral, Node
from dra_gate.cel.values import key_of

CONVERSIONS: Final = frozenset(("int", "uint", "double", "bool", "string", "bytes", "dyn"))
_STEPS: Final = 100_000  # what the constants of one expression of 10 KiB can never need


@dataclass(frozen=True, slots=True)
class Constant:
    """The value of a constant expression."""

    value: Any


def constant_of(node: Node) -> Constant | None:
    """The value of a literal, of a list or map of constants, or of a converted constant; None for everything else.

    Raises EvaluationError if a conversion fails: the API server refuses such an expression.
    """
    match node:
        case Literal(value=value):
            return Constant(value)
        case Call(function=function, args=(arg,)) if function in CONVERSIONS:
            inner, convert = constant_of(arg), function_of(function)
            if inner is not None and convert is not None:
                return Constant(convert(Budget(_STEPS), inner.value))
        case ListLiteral(elements=elements, optional=optional) if not optional:
            items = [constant_of(element) for element in elements]
            if None not in items:
                return Constant([item.value for item in items if item is not None])
        case MapLiteral(entries=entries) if not any(optional for _, _, optional in entries):
            pairs = [(constant_of(key), constant_of(value)) for key, value, _ in entries]
            if not any(key is None or value is None for key, value in pairs):
                return Constant({key_of(key.value): value.value for key, value in pairs if key and value})
    return None
