"""The closures of names, fields, operators and calls, and the frame that they run over.

A frame is a list: the device's four fields, the budget, then one slot for each variable. Closures return a value of
`values` or raise EvaluationError; BudgetExceeded passes through everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from dra_gate.cel.device import DomainMap
from dra_gate.cel.library import Budget, is_in, matches, pattern, pay
from dra_gate.cel.tree import Uint
from dra_gate.cel.values import (
    KINDS,
    LISTS,
    MAPS,
    NONE,
    EvaluationError,
    NoSuchKey,
    Optional,
    equal,
    key_of,
    no_such_overload,
    ordered,
)
from dra_gate.kube.semver import Semver

Frame = list[Any]
Closure = Callable[[Frame], Any]

FIELDS: Final = ("device.attributes", "device.capacity", "device.driver", "device.allowMultipleAllocations")
BUDGET: Final = len(FIELDS)  # the budget's slot
_PLAIN: Final = re.compile(r"(?P<start>\^?)(?P<word>[A-Za-z0-9 _,:/-]+)(?P<end>\$?)", re.ASCII)
_HASHED: Final = frozenset((str, int, Uint, float, bool, type(None)))  # what cel-go puts into a set


def constant(value: Any) -> Closure:
    """Always `value`."""
    return lambda _: value


class Lazy:
    """The value of a cel.bind: `get` computes it once; an error comes back at every call."""

    __slots__ = ("closure", "error", "value")

    def __init__(self, closure: Closure) -> None:
        self.closure: Closure | None = closure
        self.error: EvaluationError | None = None
        self.value: Any = None

    def get(self, frame: Frame) -> Any:
        """The value, or its EvaluationError."""
        if self.closure is not None:
            try:
                self.value = self.closure(frame)
            except EvaluationError as error:
                self.error = error
            self.closure = None
        if self.error is not None:
            raise self.error.with_traceback(None)  # or the traceback would grow with every use
        return self.value


def forced(slot: int) -> Closure:
    """The value of a cel.bind in that slot, computed at its first use."""
    return lambda frame: frame[slot].get(frame)


def not_known(name: str) -> Closure:
    """A field of the device that nothing is known of: what hangs on it is an error, which `&&` and `||` absorb."""

    def fail(frame: Frame) -> Any:  # noqa: ARG001 - what is not known is in no frame
        raise EvaluationError(f"{name} is not known")

    return fail


def as_optional(value: Any) -> Optional:
    """`value` itself if it is an optional; raises `no such overload` if not."""
    if type(value) is not Optional:
        raise no_such_overload()
    return value


def _has_key(value: Any, key: Any) -> bool:
    """cel-go's presence test: unknown domains of a device are there (and empty), scalars have no fields."""
    kind = type(value)
    if kind in MAPS:
        return kind is DomainMap or key_of(key) in value
    if kind in LISTS:
        return type(key) is int and 0 <= key < len(value)
    return False


def _get(value: Any, key: Any) -> Any:
    kind = type(value)
    if kind in MAPS:
        try:
            return value[key_of(key)]
        except KeyError:
            raise NoSuchKey(key) from None
    if kind in LISTS:
        position = int(key) if type(key) is float and key.is_integer() else key
        if isinstance(position, bool) or not isinstance(position, int):
            raise EvaluationError(f"unsupported index type '{KINDS.get(type(key), 'unknown')}' in list")
        if not 0 <= position < len(value):
            raise EvaluationError(f"index out of bounds: {position}")
        return value[position]
    raise NoSuchKey(key)


def _maybe(value: Any, key: Any) -> Optional:
    """`value.?key`; also what a plain selection on an optional does."""
    if type(value) is Optional:
        if not value.present:
            return value
        value = value.value
    return Optional(True, _get(value, key)) if _has_key(value, key) else NONE


def has(operand: Closure, field: str) -> Closure:
    """`has(operand.field)`."""

    def present(frame: Frame) -> bool:
        value = operand(frame)
        if type(value) is Optional:
            return value.present and _has_key(value.value, field)
        return _has_key(value, field)

    return present


def field_of(operand: Closure, field: str) -> Closure:
    """`operand.field`; on an optional it gives an optional."""

    def select(frame: Frame) -> Any:
        value = operand(frame)
        kind = type(value)
        if kind is dict or kind is DomainMap:
            try:
                return value[field]
            except KeyError:
                raise NoSuchKey(field) from None
        return _maybe(value, field) if kind is Optional else _get(value, field)

    return select


def indexed(operand: Closure, key: Closure) -> Closure:
    """`operand[key]`; on an optional it gives an optional."""

    def index(frame: Frame) -> Any:
        value = operand(frame)
        return _maybe(value, key(frame)) if type(value) is Optional else _get(value, key(frame))

    return index


def optionally_indexed(operand: Closure, key: Closure) -> Closure:
    """`operand[?key]` and `operand.?key`."""
    return lambda frame: _maybe(operand(frame), key(frame))


def _and(left: Closure, right: Closure) -> Closure:
    """`&&`: false wins over an error on either side."""

    def both(frame: Frame) -> bool:
        try:
            first = left(frame)
        except EvaluationError as error:
            first = error
        if first is False:
            return False
        if first is True:
            return truth(right(frame))
        return _absorbing(frame, first, right, winner=False)

    return both


def _or(left: Closure, right: Closure) -> Closure:
    """`||`: true wins over an error on either side."""

    def either(frame: Frame) -> bool:
        try:
            first = left(frame)
        except EvaluationError as error:
            first = error
        if first is True:
            return True
        if first is False:
            return truth(right(frame))
        return _absorbing(frame, first, right, winner=True)

    return either


def _absorbing(frame: Frame, first: Any, right: Closure, *, winner: bool) -> bool:
    """The right side after a left side that is an error or no bool."""
    try:
        if right(frame) is winner:
            return bool(winner)
    except EvaluationError:
        pass
    raise first if isinstance(first, EvaluationError) else no_such_overload()


def truth(value: Any) -> bool:
    """`value` itself if it is a bool; raises `no such overload` if not."""
    if value is True or value is False:
        return bool(value)
    raise no_such_overload()


def _not(operand: Closure) -> Closure:
    """`!operand`."""
    return lambda frame: not truth(operand(frame))


def _conditional(condition: Closure, then: Closure, otherwise: Closure) -> Closure:
    """`condition ? then : otherwise`; only one of the two is evaluated."""
    return lambda frame: then(frame) if truth(condition(frame)) else otherwise(frame)


def _or_value(operand: Closure, default: Closure) -> Closure:
    """`operand.orValue(default)`; the default is evaluated only if it is needed."""

    def or_value(frame: Frame) -> Any:
        value = as_optional(operand(frame))
        return value.value if value.present else default(frame)

    return or_value


def _or_optional(operand: Closure, other: Closure) -> Closure:
    """`operand.or(other)`; the other is evaluated only if it is needed."""

    def or_optional(frame: Frame) -> Optional:
        value = as_optional(operand(frame))
        return value if value.present else as_optional(other(frame))

    return or_optional


LAZY: Final[dict[str, Callable[..., Closure]]] = {
    "_&&_": _and,
    "_||_": _or,
    "!_": _not,
    "_?_:_": _conditional,
    "orValue": _or_value,
    "or": _or_optional,
}


def equal_to_text(operand: Closure, text: str, wanted: bool) -> Closure:
    """`operand == text` or, if not `wanted`, `operand != text`."""
    if wanted:

        def is_text(frame: Frame) -> bool:
            value = operand(frame)
            return bool(value == text) if type(value) is str else equal(value, text)

        return is_text
    return equality(operand, constant(text), wanted)


def equality(left: Closure, right: Closure, wanted: bool) -> Closure:
    """`left == right` or, if not `wanted`, `left != right`."""
    if wanted:
        return lambda frame: equal(_sized(frame, left(frame)), right(frame))

    def differ(frame: Frame) -> bool:
        first, second = _sized(frame, left(frame)), right(frame)
        try:
            return not equal(first, second)
        except EvaluationError:
            return True  # cel-go's != is "not known to be equal"

    return differ


def _sized(frame: Frame, value: Any) -> Any:
    """Pays for comparing something long."""
    if type(value) in LISTS or type(value) in MAPS:
        pay(frame[BUDGET], value)
    elif type(value) is str or type(value) is bytes:
        frame[BUDGET].spend_text(len(value))
    return value


def ordering(test: Callable[[Any, Any], bool], left: Closure, right: Closure) -> Closure:
    """`left < right` and its like, by `test`."""

    def compare(frame: Frame) -> bool:
        first, second = left(frame), right(frame)
        if type(first) is int and type(second) is int:
            return test(first, second)
        return ordered(first, second, test)

    return compare


def applied(function: Callable[..., Any], args: list[Closure]) -> Closure:
    """A call of a function that takes no budget."""
    if len(args) == 1:
        (only,) = args
        return lambda frame: function(only(frame))
    if len(args) == 2:
        first, second = args
        return lambda frame: function(first(frame), second(frame))
    return lambda frame: function(*(arg(frame) for arg in args))


def priced(function: Callable[..., Any], args: list[Closure]) -> Closure:
    """A call of a function that takes the budget first."""
    if len(args) == 2:
        first, second = args
        return lambda frame: function(frame[BUDGET], first(frame), second(frame))
    return lambda frame: function(frame[BUDGET], *(arg(frame) for arg in args))


def folded(function: Callable[..., Any], args: list[Closure]) -> Closure:
    """A pure function of constants: computed now; if that fails, the error comes at each evaluation."""
    frame: Frame = []
    try:
        return constant(function(Budget(1_000_000), *(arg(frame) for arg in args)))
    except EvaluationError:
        return priced(function, args)


def membership(operand: Closure, members: list[Any]) -> Closure:
    """`in` a constant list, for which cel-go has a set: nothing is in an empty one, and some values have no hash."""
    if not members:
        return constant(False)
    if not all(type(member) in _HASHED for member in members):
        return lambda frame: is_in(frame[BUDGET], operand(frame), members)
    texts = frozenset(member for member in members if type(member) is str)

    def member(frame: Frame) -> bool:
        value = operand(frame)
        if type(value) is str:
            return value in texts
        if type(value) is Semver or type(value) is bytes:
            name = "cel.Semver" if type(value) is Semver else "types.Bytes"
            raise EvaluationError(f"internal error: runtime error: hash of unhashable type {name}")
        return is_in(frame[BUDGET], value, members)

    return member


def matching(operand: Closure, regex: str) -> Closure:
    """`matches` with a constant pattern, compiled once; one without special characters needs no RE2."""
    plain = _PLAIN.fullmatch(regex)
    if plain is not None:
        return _matches_plain(operand, plain["word"], at_start=bool(plain["start"]), at_end=bool(plain["end"]))
    weight = 1 + len(regex) // 4
    try:
        search = pattern(regex).search
    except EvaluationError:
        return priced(matches, [operand, constant(regex)])

    def match(frame: Frame) -> bool:
        text = operand(frame)
        if type(text) is not str:
            raise no_such_overload()
        frame[BUDGET].spend_text(len(text) * weight)
        return search(text) is not None

    return match


def _matches_plain(operand: Closure, word: str, *, at_start: bool, at_end: bool) -> Closure:
    def match(frame: Frame) -> bool:
        text = operand(frame)
        if type(text) is not str:
            raise no_such_overload()
        if at_start:
            return bool(text == word) if at_end else text.startswith(word)
        if at_end:
            return text.endswith(word)
        frame[BUDGET].spend_text(len(text))
        return word in text

    return match
