"""The functions of Kubernetes' CEL that devices have a use for, on the values of `values`.

Sources: cel-go's standard library, ext/strings (version 2), ext/sets, and the lists, regex, quantity and semver
libraries in k8s.io/apiserver/pkg/cel/library. Functions whose work grows with their arguments take the budget first and
spend before they work. Wrong types raise `no such overload`, as in the scheduler.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import re2

from dra_gate.cel.tree import Uint
from dra_gate.cel.values import (
    KINDS,
    LISTS,
    MAPS,
    NONE,
    NUMBERS,
    BudgetExceeded,
    EvaluationError,
    Optional,
    SumQuantity,
    TypeName,
    equal,
    key_of,
    no_such_overload,
    ordered,
)
from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.semver import Semver, SemverError

Function = Callable[..., Any]

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
# White space in Unicode, as Go's strings.TrimSpace has it; Python's own strip() takes four control characters more.
_GO_SPACE = (
    " \t\n\v\f\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)|nan", re.ASCII | re.IGNORECASE
)
_TRUE, _FALSE = {"1", "t", "T", "TRUE", "true", "True"}, {"0", "f", "F", "FALSE", "false", "False"}


class Budget:
    """Steps that one evaluation may still take. A step stands for a fraction of a microsecond of work."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Takes `steps` off; raises BudgetExceeded when none are left."""
        self.left -= steps
        if self.left < 0:
            raise BudgetExceeded("the expression takes more steps than its budget")

    def spend_text(self, length: int) -> None:
        """Takes off what looking at `length` characters costs (cel-go's StringTraversalCostFactor is a tenth)."""
        self.spend(length // 10)


def pay(budget: Budget, value: Any) -> None:
    """Spends what looking at all of `value` takes; stops in the middle of a value that is too large."""
    budget.spend(3)
    if type(value) in LISTS:
        for item in value:
            pay(budget, item)
    elif type(value) in MAPS:
        for item in value.values():
            pay(budget, item)
    elif type(value) in (str, bytes):
        budget.spend_text(len(value))


def _string(value: Any) -> str:
    if type(value) is not str:
        raise no_such_overload()
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise no_such_overload()
    return value


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if type(value) not in LISTS:
        raise no_such_overload()
    return value  # type: ignore[no-any-return]


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _fit(value: int, kind: type) -> Any:
    if kind is Uint:
        if 0 <= value <= UINT_MAX:
            return Uint(value)
        raise EvaluationError("unsigned integer overflow")
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow")


def add(budget: Budget, left: Any, right: Any) -> Any:
    """`left + right` on numbers of one type, strings, bytes and lists."""
    kind = type(left)
    if kind in LISTS and type(right) in LISTS:
        budget.spend(len(left) + len(right))
        return [*left, *right]
    if kind is not type(right):
        raise no_such_overload()
    if kind is int or kind is Uint:
        return _fit(int(left) + int(right), kind)
    if kind is float:
        return left + right
    if kind is str or kind is bytes:
        budget.spend_text(len(left) + len(right))
        return left + right
    raise no_such_overload()


def subtract(left: Any, right: Any) -> Any:
    """`left - right` on numbers of one type."""
    kind = _one_number_type(left, right)
    return left - right if kind is float else _fit(int(left) - int(right), kind)


def multiply(left: Any, right: Any) -> Any:
    """`left * right` on numbers of one type."""
    kind = _one_number_type(left, right)
    return left * right if kind is float else _fit(int(left) * int(right), kind)


def divide(left: Any, right: Any) -> Any:
    """`left / right`: integers towards zero, doubles as IEEE 754 has it."""
    kind = _one_number_type(left, right)
    if kind is float:
        if right == 0.0:
            sign = math.copysign(1.0, left) * math.copysign(1.0, right)
            return math.nan if left == 0.0 or math.isnan(left) else sign * math.inf
        return left / right
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(int(left)) // abs(int(right))
    return _fit(quotient if (left < 0) == (right < 0) else -quotient, kind)


def modulo(left: Any, right: Any) -> Any:
    """`left % right` on integers, with the sign of `left`."""
    kind = _one_number_type(left, right)
    if kind is float:
        raise no_such_overload()
    if right == 0:
        raise EvaluationError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise EvaluationError("integer overflow")
    rest = abs(int(left)) % abs(int(right))
    return _fit(rest if left >= 0 else -rest, kind)


def negate(value: Any) -> Any:
    """`-value` on int and double."""
    if type(value) is float:
        return -value
    return _fit(-_int(value), int)


def _one_number_type(left: Any, right: Any) -> type:
    kind = type(left)
    if kind not in NUMBERS or kind is not type(right):
        raise no_such_overload()
    return kind


# --- conversions ------------------------------------------------------------------------------------------------------


def _no_conversion(value: Any, target: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{KINDS.get(type(value), 'unknown')}' to '{target}'")


def to_int(value: Any) -> int:
    """`int(value)` of numbers (doubles are cut) and decimal text."""
    return int(_to_integer(value, int))


def to_uint(value: Any) -> Uint:
    """`uint(value)` of numbers and decimal text."""
    return Uint(_to_integer(value, Uint))


def _to_integer(value: Any, target: type) -> int:
    kind = type(value)
    if kind is int or kind is Uint:
        return int(_fit(int(value), target))
    if kind is float:
        if not math.isfinite(value) or abs(value) >= (2.0**63 if target is int else 2.0**64):
            _fit(2**70, target)  # raises the overflow of the target
        return int(_fit(math.trunc(value), target))
    if kind is str:
        signed = target is int
        if _INTEGER.fullmatch(value) and (signed or value[0] not in "+-"):
            number = int(value)
            if (INT_MIN if signed else 0) <= number <= (INT_MAX if signed else UINT_MAX):
                return number
    raise _no_conversion(value, KINDS[target])


def to_double(value: Any) -> float:
    """`double(value)` of numbers and text."""
    kind = type(value)
    if kind in NUMBERS:
        return float(value)
    if kind is str and _FLOAT.fullmatch(value):
        number = float(value)
        if math.isfinite(number) or value.strip("+-")[0] in "iInN":
            return number
    raise _no_conversion(value, "double")


def to_string(budget: Budget, value: Any) -> str:
    """`string(value)` of numbers, bools, text and bytes that are UTF-8."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is Uint:
        return str(int(value))
    if kind is float:
        return _shortest(value)
    if kind is bytes:
        budget.spend_text(len(value))
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
    raise _no_conversion(value, "string")


def _shortest(value: float) -> str:
    """A double as Go's %g prints it: the shortest digits, with an exponent below 1e-4 and from 1e6 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    mantissa, _, exponent_text = f"{value:.17e}".partition("e")
    for precision in range(17):
        candidate = f"{value:.{precision}e}"
        if float(candidate) == value:
            mantissa, _, exponent_text = candidate.partition("e")
            break
    exponent = int(exponent_text)
    digits = mantissa.replace(".", "").lstrip("-").rstrip("0") or "0"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if exponent < -4 or exponent >= 6:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    rest = digits[exponent + 1 :]
    return f"{sign}{whole}.{rest}" if rest else sign + whole


def to_bool(value: Any) -> bool:
    """`bool(value)` of a bool and the words that Go's ParseBool takes."""
    if type(value) is bool:
        return value
    if type(value) is str and value in _TRUE | _FALSE:
        return value in _TRUE
    raise _no_conversion(value, "bool")


def to_bytes(budget: Budget, value: Any) -> bytes:
    """`bytes(value)`: UTF-8 of text."""
    if type(value) is bytes:
        return value
    if type(value) is str:
        budget.spend_text(len(value))
        return value.encode()
    raise _no_conversion(value, "bytes")


def type_of(value: Any) -> TypeName:
    """`type(value)`."""
    return TypeName(KINDS[type(value)])


# --- strings ----------------------------------------------------------------------------------------------------------


def size(value: Any) -> int:
    """`size(value)`: code points, bytes, elements or keys."""
    if type(value) in (str, bytes) or type(value) in LISTS or type(value) in MAPS:
        return len(value)
    raise no_such_overload()


def contains(budget: Budget, text: Any, part: Any) -> bool:
    """`text.contains(part)`."""
    budget.spend_text(len(_string(text)))
    return _string(part) in text


def starts_with(text: Any, part: Any) -> bool:
    """`text.startsWith(part)`."""
    return _string(text).startswith(_string(part))


def ends_with(text: Any, part: Any) -> bool:
    """`text.endsWith(part)`."""
    return _string(text).endswith(_string(part))


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # RE2 would print every bad pattern to standard error
    return options


@lru_cache(maxsize=256)
def pattern(text: str) -> Any:
    """A compiled RE2 pattern; raises EvaluationError for one that RE2 refuses."""
    try:
        return re2.compile(text, _options())
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise EvaluationError(f"error parsing regexp: {_decoded(reason)}: `{text}`") from None


def _decoded(reason: object) -> str:
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def matches(budget: Budget, text: Any, regex: Any) -> bool:
    """`text.matches(regex)`: RE2, anywhere in the text."""
    budget.spend_text(len(_string(text)) * (1 + len(_string(regex)) // 4))
    return pattern(regex).search(text) is not None


def find(budget: Budget, text: Any, regex: Any) -> str:
    """`text.find(regex)`: the first match, or the empty string."""
    budget.spend_text(len(_string(text)) * (1 + len(_string(regex)) // 4))
    match = pattern(regex).search(text)
    return "" if match is None else str(match[0])


def find_all(budget: Budget, text: Any, regex: Any, limit: Any = -1) -> list[str]:
    """`text.findAll(regex[, limit])`: all matches; an empty one next to another match does not count, as in Go."""
    budget.spend(len(_string(text)) * (1 + len(_string(regex)) // 4))
    found: list[str] = []
    end = -1
    if _int(limit) == 0:
        return found
    for match in pattern(regex).finditer(text):
        if match.end() == match.start() == end:
            continue
        end = match.end()
        found.append(str(match[0]))
        if len(found) == limit:
            break
    return found


def char_at(text: Any, index: Any) -> str:
    """`text.charAt(index)`: one code point; the empty string just behind the end."""
    if not 0 <= _int(index) <= len(_string(text)):
        raise EvaluationError(f"index out of range: {index}")
    return str(text[index : index + 1])


def substring(budget: Budget, text: Any, start: Any, end: Any = None) -> str:
    """`text.substring(start[, end])`."""
    if end is not None and _int(start) > _int(end):
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    end = len(_string(text)) if end is None else end
    for index in (_int(start), end):
        if not 0 <= index <= len(text):
            raise EvaluationError(f"index out of range: {index}")
    budget.spend_text(end - start)
    return str(text[start:end])


def index_of(budget: Budget, value: Any, part: Any, offset: Any = 0) -> int:
    """`value.indexOf(part[, offset])` of text, `value.indexOf(element)` of a list; -1 if absent."""
    if type(value) in LISTS:
        budget.spend(len(value))
        return _first(index for index, item in enumerate(value) if _is_equal(item, part))
    budget.spend_text(len(_string(value)))
    if _int(offset) < 0:
        raise EvaluationError(f"index out of range: {offset}")
    if _string(part) == "":
        return min(int(offset), len(value))
    return int(value.find(part, offset))


def last_index_of(budget: Budget, value: Any, part: Any, offset: Any = None) -> int:
    """`value.lastIndexOf(part[, offset])` of text, `value.lastIndexOf(element)` of a list; -1 if absent."""
    if type(value) in LISTS:
        budget.spend(len(value))
        return _first(index for index in range(len(value) - 1, -1, -1) if _is_equal(value[index], part))
    budget.spend_text(len(_string(value)))
    if offset is None:
        return int(value.rfind(_string(part)))
    if _int(offset) < 0:
        raise EvaluationError(f"index out of range: {offset}")
    if _string(part) == "":
        return min(int(offset), len(value))
    return -1 if offset >= len(value) else int(value.rfind(part, 0, offset + len(part)))


def _first(found: Iterator[int]) -> int:
    return next(found, -1)


def _is_equal(left: Any, right: Any) -> bool:
    try:
        return equal(left, right)
    except EvaluationError:
        return False


def lower_ascii(budget: Budget, text: Any) -> str:
    """`text.lowerAscii()`."""
    budget.spend_text(len(_string(text)))
    return text.translate(_LOWER)  # type: ignore[no-any-return]


def upper_ascii(budget: Budget, text: Any) -> str:
    """`text.upperAscii()`."""
    budget.spend_text(len(_string(text)))
    return text.translate(_UPPER)  # type: ignore[no-any-return]


def trim(text: Any) -> str:
    """`text.trim()`: white space as Unicode has it."""
    return _string(text).strip(_GO_SPACE)


def replace(budget: Budget, text: Any, old: Any, new: Any, limit: Any = -1) -> str:
    """`text.replace(old, new[, limit])`."""
    count = _string(text).count(_string(old))
    if _int(limit) >= 0:
        count = min(count, limit)
    budget.spend_text(len(text) + count * len(_string(new)))
    return text.replace(old, new, limit)  # type: ignore[no-any-return]


def split(budget: Budget, text: Any, separator: Any, limit: Any = -1) -> list[str]:
    """`text.split(separator[, limit])`; an empty separator splits into code points."""
    budget.spend(len(_string(text)) // 10 + (text.count(_string(separator)) + 1))
    if _int(limit) == 0:
        return []
    if separator == "":
        return list(text) if limit < 0 or limit >= len(text) else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, -1 if limit < 0 else limit - 1)  # type: ignore[no-any-return]


def join(budget: Budget, words: Any, separator: Any = "") -> str:
    """`words.join([separator])` of a list of text."""
    items = _list(words)
    budget.spend(len(items))
    budget.spend_text(sum(len(_string(word)) for word in items) + len(items) * len(_string(separator)))
    return separator.join(items)  # type: ignore[no-any-return]


# --- lists and sets ---------------------------------------------------------------------------------------------------


def is_in(budget: Budget, value: Any, container: Any) -> bool:
    """`value in container`: an element of a list or a key of a map."""
    if type(container) in MAPS:
        try:
            return key_of(value) in container
        except EvaluationError:
            return False
    items = _list(container)
    budget.spend(len(items))
    if type(value) in LISTS or type(value) in MAPS:
        for _ in items:
            pay(budget, value)
    return any(_is_equal(value, item) for item in items)


def total(budget: Budget, items: Any) -> Any:
    """`items.sum()` of numbers of one type."""
    budget.spend(len(_list(items)))
    if not items:
        return 0
    result = items[0]
    _one_number_type(result, result)
    for item in items[1:]:
        result = add(budget, result, item)
    return result


def smallest(budget: Budget, items: Any) -> Any:
    """`items.min()`; raises EvaluationError for an empty list."""
    return _extreme(budget, items, "min")


def largest(budget: Budget, items: Any) -> Any:
    """`items.max()`; raises EvaluationError for an empty list."""
    return _extreme(budget, items, "max")


def _extreme(budget: Budget, items: Any, name: str) -> Any:
    budget.spend(len(_list(items)))
    if not items:
        raise EvaluationError(f"{name} called on empty list")
    best = items[0]
    for item in items[1:]:
        if _comes(item, best, operator.lt if name == "min" else operator.gt):
            best = item
    return best


def is_sorted(budget: Budget, items: Any) -> bool:
    """`items.isSorted()`."""
    budget.spend(len(_list(items)))
    return not any(_comes(later, earlier, operator.lt) for earlier, later in pairwise(items))


def _comes(one: Any, other: Any, test: Callable[[Any, Any], bool]) -> bool:
    # Kubernetes' list library takes values that cannot be compared for ones that are in order.
    try:
        return ordered(one, other, test)
    except EvaluationError:
        return False


def sets_contains(budget: Budget, items: Any, wanted: Any) -> bool:
    """`sets.contains(items, wanted)`: every element of `wanted` is in `items`."""
    return all(is_in(budget, item, _list(items)) for item in _list(wanted))


def sets_intersects(budget: Budget, left: Any, right: Any) -> bool:
    """`sets.intersects(left, right)`: some element is in both."""
    return any(is_in(budget, item, _list(right)) for item in _list(left))


def sets_equivalent(budget: Budget, left: Any, right: Any) -> bool:
    """`sets.equivalent(left, right)`: the same elements, repeats aside."""
    return sets_contains(budget, left, right) and sets_contains(budget, right, left)


# --- quantities and versions ------------------------------------------------------------------------------------------


def quantity(text: Any) -> Quantity:
    """`quantity(text)`."""
    try:
        return Quantity.parse(_string(text))
    except QuantityError as error:
        raise EvaluationError(str(error)) from None


def is_quantity(text: Any) -> bool:
    """`isQuantity(text)`."""
    try:
        Quantity.parse(_string(text))
    except QuantityError:
        return False
    return True


def _quantity(value: Any) -> Quantity:
    if not isinstance(value, Quantity):
        raise no_such_overload()
    return value


def sign(value: Any) -> int:
    """`sign(quantity)`: -1, 0 or 1."""
    number = _quantity(value).value
    return (number > 0) - (number < 0)


def is_integer(value: Any) -> bool:
    """`quantity.isInteger()`: whether `asInteger` works, see `Quantity.as_int64`."""
    return _quantity(value).as_int64() is not None


def as_integer(value: Any) -> int:
    """`quantity.asInteger()`."""
    number = _quantity(value).as_int64()
    if number is None:
        raise EvaluationError("cannot convert value to integer")
    return number


def as_approximate_float(value: Any) -> float:
    """`quantity.asApproximateFloat()`; infinite beyond a double's range."""
    number = _quantity(value).value
    try:
        return number.numerator / number.denominator
    except OverflowError:
        return math.copysign(math.inf, number.numerator)


def plus(left: Any, right: Any) -> Quantity:
    """`quantity.add(quantity or int)`."""
    return _sum(_quantity(left) + _operand(right))


def minus(left: Any, right: Any) -> Quantity:
    """`quantity.sub(quantity or int)`."""
    return _sum(_quantity(left) - _operand(right))


def _operand(value: Any) -> Quantity:
    return Quantity.of(value) if type(value) is int else _quantity(value)


def _sum(value: Quantity) -> SumQuantity:
    return SumQuantity(value.value, value.text, value.scale)


def semver(text: Any, normalise: Any = False) -> Semver:
    """`semver(text[, normalise])`."""
    if type(normalise) is not bool:
        raise no_such_overload()
    try:
        return Semver.normalise(_string(text)) if normalise else Semver.parse(_string(text))
    except SemverError as error:
        raise EvaluationError(str(error)) from None


def is_semver(text: Any, normalise: Any = False) -> bool:
    """`isSemver(text[, normalise])`."""
    if type(text) is not str or type(normalise) is not bool:
        raise no_such_overload()
    try:
        semver(text, normalise)
    except EvaluationError:
        return False
    return True


def _part(name: str) -> Function:
    def part(version: Any) -> int:
        if type(version) is not Semver:
            raise no_such_overload()
        number: int = getattr(version, name)
        return number if number <= INT_MAX else number - 2**64  # Go converts the uint64 to an int64

    return part


def compare_to(left: Any, right: Any) -> int:
    """`left.compareTo(right)` of two quantities or two versions: -1, 0 or 1."""
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        one, two = left.value, right.value
        here, there = one.numerator * two.denominator, two.numerator * one.denominator
        return (here > there) - (here < there)
    if type(left) is Semver and type(right) is Semver:
        core, other = (left.major, left.minor, left.patch), (right.major, right.minor, right.patch)
        if core != other or not (left.pre or right.pre):
            return (core > other) - (core < other)
        return (left > right) - (left < right)
    raise no_such_overload()


def is_greater_than(left: Any, right: Any) -> bool:
    """`left.isGreaterThan(right)`."""
    return compare_to(left, right) > 0


def is_less_than(left: Any, right: Any) -> bool:
    """`left.isLessThan(right)`."""
    return compare_to(left, right) < 0


# --- optionals --------------------------------------------------------------------------------------------------------


def optional_of(value: Any) -> Optional:
    """`optional.of(value)`."""
    return Optional(True, value)


def optional_of_non_zero(value: Any) -> Optional:
    """`optional.ofNonZeroValue(value)`: none for null, false, 0 and what is empty."""
    empty = type(value) in (bool, str, bytes, type(None)) or type(value) in NUMBERS | LISTS | MAPS
    return NONE if empty and not value else Optional(True, value)


def optional_none() -> Optional:
    """`optional.none()`."""
    return NONE


def optional_value(value: Any) -> Any:
    """`optional.value()`; raises EvaluationError if there is none."""
    if type(value) is not Optional:
        raise no_such_overload()
    if not value.present:
        raise EvaluationError("optional.none() dereference")
    return value.value


def optional_has_value(value: Any) -> bool:
    """`optional.hasValue()`."""
    if type(value) is not Optional:
        raise no_such_overload()
    return value.present


def same(value: Any) -> Any:
    """`dyn(value)`: the value; only the checker cares."""
    return value


# Steps that a call takes in a loop where it is more than two, measured: a million steps last well under a second.
WEIGHTS: Final[dict[str, int]] = {
    "quantity": 25,
    "isQuantity": 25,
    "semver": 25,
    "isSemver": 25,
    "add": 60,
    "sub": 60,
    "asApproximateFloat": 4,
    "compareTo": 6,
    "isGreaterThan": 6,
    "isLessThan": 6,
    "matches": 40,
    "find": 40,
    "findAll": 60,
    "string": 40,
    "double": 5,
    "int": 5,
    "uint": 5,
    "sets.contains": 10,
    "sets.intersects": 10,
    "sets.equivalent": 20,
}
DYNAMIC_PATTERN: Final = 400  # steps of compiling a pattern that is no constant

PLAIN: Final[dict[str, Function]] = {
    "_-_": subtract,
    "_*_": multiply,
    "_/_": divide,
    "_%_": modulo,
    "-_": negate,
    "dyn": same,
    "type": type_of,
    "int": to_int,
    "uint": to_uint,
    "double": to_double,
    "bool": to_bool,
    "size": size,
    "startsWith": starts_with,
    "endsWith": ends_with,
    "charAt": char_at,
    "trim": trim,
    "quantity": quantity,
    "isQuantity": is_quantity,
    "sign": sign,
    "isInteger": is_integer,
    "asInteger": as_integer,
    "asApproximateFloat": as_approximate_float,
    "add": plus,
    "sub": minus,
    "semver": semver,
    "isSemver": is_semver,
    "major": _part("major"),
    "minor": _part("minor"),
    "patch": _part("patch"),
    "compareTo": compare_to,
    "isGreaterThan": is_greater_than,
    "isLessThan": is_less_than,
    "optional.of": optional_of,
    "optional.ofNonZeroValue": optional_of_non_zero,
    "optional.none": optional_none,
    "value": optional_value,
    "hasValue": optional_has_value,
}
# These take the budget before their arguments.
PRICED: Final[dict[str, Function]] = {
    "_+_": add,
    "@in": is_in,
    "string": to_string,
    "bytes": to_bytes,
    "contains": contains,
    "matches": matches,
    "find": find,
    "findAll": find_all,
    "substring": substring,
    "indexOf": index_of,
    "lastIndexOf": last_index_of,
    "lowerAscii": lower_ascii,
    "upperAscii": upper_ascii,
    "replace": replace,
    "split": split,
    "join": join,
    "sum": total,
    "min": smallest,
    "max": largest,
    "isSorted": is_sorted,
    "sets.contains": sets_contains,
    "sets.intersects": sets_intersects,
    "sets.equivalent": sets_equivalent,
}


def function_of(name: str) -> Function | None:
    """The function of that name as one that takes the budget first; None for one that is not here."""
    plain = PLAIN.get(name)
    return PRICED.get(name) if plain is None else lambda _, *args: plain(*args)
