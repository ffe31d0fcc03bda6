"""What CEL values are in Python, and when two of them are equal or in order.

string str, int int, uint Uint, double float, bool bool, bytes bytes, null None, list list or tuple, map dict; Quantity,
Semver, Optional and TypeName stand for themselves. Equality and order are cel-go's, as the scheduler evaluates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dra_gate.cel.device import DomainMap
from dra_gate.cel.tree import Uint
from dra_gate.kube.quantity import Quantity
from dra_gate.kube.semver import Semver


class EvaluationError(Exception):
    """A CEL run-time error, worded as the scheduler words it. `&&`, `||` and the quantifiers may absorb it."""


class BudgetExceeded(Exception):
    """The expression did more work than its budget allows; its result is unknown."""


class NoSuchKey(EvaluationError):
    """A map has no such key: what a missing attribute or capacity becomes."""

    def __init__(self, key: object) -> None:
        super().__init__(f"no such key: {text_of(key)}")


def no_such_overload() -> EvaluationError:
    """The error for values that an operator or function does not take."""
    return EvaluationError("no such overload")


@dataclass(frozen=True, slots=True)
class Optional:
    """optional_type: `present` tells whether there is a `value`."""

    present: bool
    value: Any = None


NONE: Final = Optional(False)


@dataclass(frozen=True, slots=True)
class TypeName:
    """What `type(x)` gives."""

    name: str


@dataclass(frozen=True, slots=True)
class BoolKey:
    """A bool as a key of a map, which Python would mix up with 0 and 1."""

    value: bool


class SumQuantity(Quantity):
    """A quantity that `add` or `sub` made. cel-go finds it unequal to any other on its right: see `equal`."""

    __slots__ = ()


KINDS: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    tuple: "list",
    dict: "map",
    DomainMap: "map",
    Quantity: "kubernetes.Quantity",
    SumQuantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    Optional: "optional_type",
    TypeName: "type",
}
NUMBERS: Final = frozenset((int, Uint, float))
LISTS: Final = frozenset((list, tuple))
MAPS: Final = frozenset((dict, DomainMap))
_ORDERED: Final = frozenset((str, bytes, bool))


def key_of(value: Any) -> Any:
    """The Python key under which a map holds the CEL key `value`; raises NoSuchKey for values that are never keys."""
    kind = type(value)
    if kind is bool:
        return BoolKey(value)
    if kind is str or kind in NUMBERS:
        return value
    raise NoSuchKey(value)


def keys_of(value: dict[Any, Any]) -> Iterator[Any]:
    """The CEL keys of a map, in the order in which they were put in (cel-go's order is random)."""
    return (key.value if type(key) is BoolKey else key for key in value)


def equal(left: Any, right: Any) -> bool:
    """cel-go's `==`: numbers by value across types, other types never equal each other.

    A Semver or Quantity on the left of something else is an error, not false: that is cel-go's behaviour too.
    """
    kind, other = type(left), type(right)
    if kind is other and kind in (str, int, bool, bytes, Uint):
        return bool(left == right)
    if left is None or right is None:
        return left is right
    if kind in NUMBERS:
        return other in NUMBERS and bool(left == right)
    if kind in (Quantity, SumQuantity):
        if other is not Quantity:
            raise no_such_overload()
        return bool(left == right)
    if kind is Semver:
        if other is not Semver:
            raise no_such_overload()
        return bool(left == right)
    if kind in LISTS:
        return other in LISTS and len(left) == len(right) and all(map(_not_unequal, left, right))
    if kind in MAPS:
        if other not in MAPS or len(left) != len(right):
            return False
        return all(key in right and _not_unequal(value, right[key]) for key, value in left.items())
    if kind is Optional:
        if other is not Optional or not (left.present and right.present):
            return other is Optional and left.present == right.present
        return equal(left.value, right.value)
    return kind is other and bool(left == right)


def _not_unequal(left: Any, right: Any) -> bool:
    # Inside lists and maps cel-go takes an error of an element's comparison for "not unequal".
    try:
        return equal(left, right)
    except EvaluationError:
        return True


def ordered(left: Any, right: Any, test: Callable[[Any, Any], bool]) -> bool:
    """`test` (one of operator.lt, le, gt, ge) on two values that CEL can order; raises EvaluationError for others."""
    kind, other = type(left), type(right)
    if kind in NUMBERS and other in NUMBERS:
        if (kind is float and math.isnan(left)) or (other is float and math.isnan(right)):
            raise EvaluationError("NaN values cannot be ordered")
        return test(left, right)
    if kind is other and kind in _ORDERED:
        return test(left, right)
    raise no_such_overload()


def text_of(value: object) -> str:
    """A value as error messages show it."""
    match value:
        case bool():
            return "true" if value else "false"
        case BoolKey():
            return text_of(value.value)
        case float() if value.is_integer() and abs(value) < 1e6:
            return str(int(value))
    return str(value)
