"""Evaluation: each node of the checked tree becomes one Python closure over a frame.

A frame is a list: the device's four fields, the budget, then one slot for each variable. Closures return a value of
`values` or raise EvaluationError; BudgetExceeded passes through everything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from dra_gate.cel.constants import constant_of
from dra_gate.cel.device import DomainMap
from dra_gate.cel.library import (
    DYNAMIC_PATTERN,
    PLAIN,
    PRICED,
    WEIGHTS,
    Budget,
    function_of,
    is_in,
    matches,
    pattern,
    pay,
)
from dra_gate.cel.tree import (
    Call,
    Comprehension,
    ListLiteral,
    Literal,
    MapLiteral,
    Name,
    Node,
    Select,
    Uint,
    children,
)
from dra_gate.cel.values import (
    KINDS,
    LISTS,
    MAPS,
    NONE,
    EvaluationError,
    NoSuchKey,
    Optional,
    TypeName,
    equal,
    key_of,
    keys_of,
    no_such_overload,
    ordered,
    text_of,
)
from dra_gate.kube.semver import Semver

Frame = list[Any]
Closure = Callable[[Frame], Any]

FIELDS: Final = ("device.attributes", "device.capacity", "device.driver", "device.allowMultipleAllocations")
BUDGET: Final = len(FIELDS)  # the budget's slot
_TYPES: Final = {name: TypeName(name) for name in (*KINDS.values(), "optional_type")}
_ORDERINGS: Final = {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}
_PLAIN: Final = re.compile(r"(?P<start>\^?)(?P<word>[A-Za-z0-9 _,:/-]+)(?P<end>\$?)", re.ASCII)
_HASHED: Final = frozenset((str, int, Uint, float, bool, type(None)))  # what cel-go puts into a set
_PURE: Final = ("quantity", "semver", "isQuantity", "isSemver", "-_")  # of constants alone: computed once


class UnsupportedError(Exception):
    """The checker knows something in the tree that the evaluator does not. `node` is where."""

    def __init__(self, message: str, node: Node) -> None:
        super().__init__(message)
        self.node = node


def closure_of(tree: Node) -> tuple[Closure, int]:
    """The closure of a tree and the number of slots that its frame needs; raises UnsupportedError."""
    builder = _Builder()
    closure = builder.build(tree, {name: slot for slot, name in enumerate(FIELDS)})
    return closure, builder.slots


class _Builder:
    """Builds closures and hands out slots; a slot is never reused, so nested scopes cannot meet."""

    def __init__(self) -> None:
        self.slots = BUDGET + 1

    def build(self, node: Node, scope: dict[str, int]) -> Closure:
        constant = constant_of(node)
        if constant is not None:
            return _constant(constant.value)
        match node:
            case Name():
                return self._name(node, scope)
            case Select():
                return self._select(node, scope)
            case Call():
                return self._call(node, scope)
            case ListLiteral():
                return self._list(node, scope)
            case MapLiteral():
                return self._map(node, scope)
            case Comprehension() if node.is_bind:
                return self._bind(node, scope)
            case Comprehension():
                return self._comprehension(node, scope)
        raise UnsupportedError(f"{type(node).__name__} is not understood here", node)

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    # --- names and fields ---------------------------------------------------------------------------------------------

    def _name(self, node: Name, scope: dict[str, int]) -> Closure:
        slot = scope.get(node.name)
        if slot is not None:
            if slot < 0:
                return _forced(~slot)
            return operator.itemgetter(slot)
        if node.name in _TYPES:
            return _constant(_TYPES[node.name])
        raise UnsupportedError(f"{node.name} cannot be used as a value here: name the field, as in device.driver", node)

    def _select(self, node: Select, scope: dict[str, int]) -> Closure:
        operand, field = self.build(node.operand, scope), node.field
        if node.test:
            return _has(operand, field)
        return self._attribute(node.operand, field) or _field(operand, field)

    def _attribute(self, operand: Node, field: str) -> Closure | None:
        """`device.attributes['domain'].field`, which nearly every selector reads, in one step."""
        match operand:
            case Call(function="_[_]", args=(Name(name=name), Literal(value=str(domain)))) if name in FIELDS[:2]:
                pass
            case Select(operand=Name(name=name), field=domain, test=False) if name in FIELDS[:2]:
                pass
            case _:
                return None
        slot = FIELDS.index(name)

        def attribute(frame: Frame) -> Any:
            try:
                return frame[slot][domain][field]
            except KeyError:
                raise NoSuchKey(field) from None

        return attribute

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: Call, scope: dict[str, int]) -> Closure:
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(*(self.build(arg, scope) for arg in node.args))
        if node.function in ("_[_]", "_[?_]", "_?._"):
            return self._index(node, scope)
        if node.function in ("_==_", "_!=_"):
            return self._equality(node, scope)
        if node.function in _ORDERINGS:
            return _ordering(_ORDERINGS[node.function], *(self.build(arg, scope) for arg in node.args))
        function = function_of(node.function)
        if function is None:
            raise UnsupportedError(f"{node.function}() is not understood here", node)
        args = [self.build(arg, scope) for arg in node.args]
        if node.function == "@in" and "in_list" in node.overloads:
            members = constant_of(node.args[1])
            if members is not None and type(members.value) in LISTS:
                return _membership(args[0], members.value)
        if node.function in _PURE and all(constant_of(arg) is not None for arg in node.args):
            return _folded(function, args)
        if node.function == "matches" and isinstance(node.args[1], Literal):
            return _matches(args[0], str(node.args[1].value))
        if node.function in PLAIN:
            return _applied(PLAIN[node.function], args)
        return _priced(PRICED[node.function], args)

    def _index(self, node: Call, scope: dict[str, int]) -> Closure:
        operand, key = node.args
        if node.function == "_[_]" and isinstance(key, Literal) and isinstance(key.value, str):
            return self._attribute(operand, key.value) or _field(self.build(operand, scope), key.value)
        look = _index if node.function == "_[_]" else _optional_index
        return look(self.build(operand, scope), self.build(key, scope))

    def _equality(self, node: Call, scope: dict[str, int]) -> Closure:
        left, right = node.args
        wanted = node.function == "_==_"
        if isinstance(right, Literal) and type(right.value) is str:
            return _equal_to_text(self.build(left, scope), right.value, wanted)
        return _equality(self.build(left, scope), self.build(right, scope), wanted)

    # --- literals -----------------------------------------------------------------------------------------------------

    def _list(self, node: ListLiteral, scope: dict[str, int]) -> Closure:
        parts = [(self.build(element, scope), index in node.optional) for index, element in enumerate(node.elements)]

        def make(frame: Frame) -> list[Any]:
            frame[BUDGET].spend(len(parts))
            made = []
            for part, optional in parts:
                value = part(frame)
                if not optional:
                    made.append(value)
                elif _optional(value).present:
                    made.append(value.value)
            return made

        return make

    def _map(self, node: MapLiteral, scope: dict[str, int]) -> Closure:
        parts = [(self.build(key, scope), self.build(value, scope), optional) for key, value, optional in node.entries]

        def make(frame: Frame) -> dict[Any, Any]:
            frame[BUDGET].spend(len(parts))
            made: dict[Any, Any] = {}
            for key_part, part, optional in parts:
                key, value = key_of(key_part(frame)), part(frame)
                if optional:
                    if not _optional(value).present:
                        continue
                    value = value.value
                made[key] = value
            return made

        return make

    # --- comprehensions -----------------------------------------------------------------------------------------------

    def _refuse_device(self, node: Comprehension) -> None:
        # The checker reads device.driver as one global name, whatever a loop or cel.bind calls `device`.
        if "device" in (node.variable, node.variable2, node.accumulator):
            raise UnsupportedError("device cannot be the name of another variable", node)

    def _bind(self, node: Comprehension, scope: dict[str, int]) -> Closure:
        """cel.bind: the value is computed when it is first asked for, as in cel-go; an error is raised at each use."""
        self._refuse_device(node)
        slot = self._slot()
        value = self.build(node.init, scope)
        # A negative slot marks a variable that has to be forced.
        body = self.build(node.result, {**scope, node.accumulator: ~slot})

        def bind(frame: Frame) -> Any:
            frame[slot] = _Lazy(value)
            return body(frame)

        return bind

    def _comprehension(self, node: Comprehension, scope: dict[str, int]) -> Closure:
        self._refuse_device(node)
        slots = [self._slot() for _ in range(1 if node.variable2 is None else 2)]
        inner = {**scope, node.variable: slots[0]}
        if node.variable2 is not None:
            inner[node.variable2] = slots[1]
        items = _iteration(self.build(node.range, scope), two=node.variable2 is not None, steps=2 + _weight(node.step))
        accumulator = node.accumulator
        match node.step:
            case Call(function="_||_" | "_&&_" as join, args=(Name(name=name), predicate)) if name == accumulator:
                return _quantifier(items, slots, self.build(predicate, inner), stop=join == "_||_")
            case Call(function="_?_:_", args=(condition, then, Name(name=name))) if name == accumulator:
                test: Closure | None = self.build(condition, inner)
            case then:
                test = None
        match then:
            case Call(function="_+_", args=(Name(name=name), Literal(value=1))) if (
                name == accumulator and test is not None
            ):
                return _exactly_one(items, slots, test)
            case Call(function="_+_", args=(Name(name=name), ListLiteral(elements=(element,)))) if name == accumulator:
                return _collected(items, slots, test, self.build(element, inner))
            case Call(function="cel.@mapInsert", args=(Name(name=name), *rest)) if name == accumulator:
                return _mapped(items, slots, test, [self.build(part, inner) for part in rest])
        raise UnsupportedError("this kind of loop is not understood here", node)


def _constant(value: Any) -> Closure:
    return lambda _: value


class _Lazy:
    """The value of a cel.bind: `get` computes it once; an error comes back at every call."""

    __slots__ = ("closure", "error", "value")

    def __init__(self, closure: Closure) -> None:
        self.closure: Closure | None = closure
        self.error: EvaluationError | None = None
        self.value: Any = None

    def get(self, frame: Frame) -> Any:
        if self.closure is not None:
            try:
                self.value = self.closure(frame)
            except EvaluationError as error:
                self.error = error
            self.closure = None
        if self.error is not None:
            raise self.error.with_traceback(None)  # or the traceback would grow with every use
        return self.value


def _forced(slot: int) -> Closure:
    return lambda frame: frame[slot].get(frame)


def _optional(value: Any) -> Optional:
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


def _has(operand: Closure, field: str) -> Closure:
    def has(frame: Frame) -> bool:
        value = operand(frame)
        if type(value) is Optional:
            return value.present and _has_key(value.value, field)
        return _has_key(value, field)

    return has


def _field(operand: Closure, field: str) -> Closure:
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


def _index(operand: Closure, key: Closure) -> Closure:
    def index(frame: Frame) -> Any:
        value = operand(frame)
        return _maybe(value, key(frame)) if type(value) is Optional else _get(value, key(frame))

    return index


def _optional_index(operand: Closure, key: Closure) -> Closure:
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
            return _truth(right(frame))
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
            return _truth(right(frame))
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


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise no_such_overload()


def _not(operand: Closure) -> Closure:
    return lambda frame: not _truth(operand(frame))


def _conditional(condition: Closure, then: Closure, otherwise: Closure) -> Closure:
    return lambda frame: then(frame) if _truth(condition(frame)) else otherwise(frame)


def _or_value(operand: Closure, default: Closure) -> Closure:
    def or_value(frame: Frame) -> Any:
        value = _optional(operand(frame))
        return value.value if value.present else default(frame)

    return or_value


def _or_optional(operand: Closure, other: Closure) -> Closure:
    def or_optional(frame: Frame) -> Optional:
        value = _optional(operand(frame))
        return value if value.present else _optional(other(frame))

    return or_optional


_SPECIAL: Final[dict[str, Callable[..., Closure]]] = {
    "_&&_": _and,
    "_||_": _or,
    "!_": _not,
    "_?_:_": _conditional,
    "orValue": _or_value,
    "or": _or_optional,
}


def _equal_to_text(operand: Closure, text: str, wanted: bool) -> Closure:
    if wanted:

        def is_text(frame: Frame) -> bool:
            value = operand(frame)
            return bool(value == text) if type(value) is str else equal(value, text)

        return is_text
    return _equality(operand, _constant(text), wanted)


def _equality(left: Closure, right: Closure, wanted: bool) -> Closure:
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


def _ordering(test: Callable[[Any, Any], bool], left: Closure, right: Closure) -> Closure:
    def compare(frame: Frame) -> bool:
        first, second = left(frame), right(frame)
        if type(first) is int and type(second) is int:
            return test(first, second)
        return ordered(first, second, test)

    return compare


def _applied(function: Callable[..., Any], args: list[Closure]) -> Closure:
    if len(args) == 1:
        (only,) = args
        return lambda frame: function(only(frame))
    if len(args) == 2:
        first, second = args
        return lambda frame: function(first(frame), second(frame))
    return lambda frame: function(*(arg(frame) for arg in args))


def _priced(function: Callable[..., Any], args: list[Closure]) -> Closure:
    if len(args) == 2:
        first, second = args
        return lambda frame: function(frame[BUDGET], first(frame), second(frame))
    return lambda frame: function(frame[BUDGET], *(arg(frame) for arg in args))


def _folded(function: Callable[..., Any], args: list[Closure]) -> Closure:
    """A pure function of constants: computed now; if that fails, the error comes at each evaluation."""
    frame: Frame = []
    try:
        return _constant(function(Budget(1_000_000), *(arg(frame) for arg in args)))
    except EvaluationError:
        return _priced(function, args)


def _membership(operand: Closure, members: list[Any]) -> Closure:
    """`in` a constant list, for which cel-go has a set: nothing is in an empty one, and some values have no hash."""
    if not members:
        return _constant(False)
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


def _matches(operand: Closure, regex: str) -> Closure:
    """`matches` with a constant pattern, compiled once; one without special characters needs no RE2."""
    plain = _PLAIN.fullmatch(regex)
    if plain is not None:
        return _matches_plain(operand, plain["word"], at_start=bool(plain["start"]), at_end=bool(plain["end"]))
    weight = 1 + len(regex) // 4
    try:
        search = pattern(regex).search
    except EvaluationError:
        return _priced(matches, [operand, _constant(regex)])

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


# --- loops ------------------------------------------------------------------------------------------------------------


Items = Callable[[Frame], Iterable[Any]]


def _weight(node: Node) -> int:
    """Steps of evaluating `node` once; loops inside it pay for their own rounds."""
    match node:
        case Comprehension(is_bind=True):
            return 4 + _weight(node.init) + _weight(node.result)
        case Comprehension():
            return 6 + _weight(node.range)
        case Call(function=function):
            own = WEIGHTS.get(function, 2)
            if function in ("matches", "find", "findAll") and not isinstance(node.args[1], Literal):
                own += DYNAMIC_PATTERN
            return own + sum(map(_weight, node.args))
        case ListLiteral() | MapLiteral() if constant_of(node) is not None:
            return 1
    return 1 + sum(map(_weight, children(node)))


def _iteration(closure: Closure, *, two: bool, steps: int) -> Items:
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


def _quantifier(items: Items, slots: list[int], predicate: Closure, *, stop: bool) -> Closure:
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


def _exactly_one(items: Items, slots: list[int], test: Closure) -> Closure:
    store = _store(slots)

    def exists_one(frame: Frame) -> bool:
        count = 0
        for item in items(frame):
            store(frame, item)
            count += _truth(test(frame))
        return count == 1

    return exists_one


def _collected(items: Items, slots: list[int], test: Closure | None, element: Closure) -> Closure:
    """`map`, `filter` and transformList."""
    store = _store(slots)

    def collect(frame: Frame) -> list[Any]:
        made: list[Any] = []
        for item in items(frame):
            store(frame, item)
            if test is None or _truth(test(frame)):
                made.append(element(frame))
        return made

    return collect


def _mapped(items: Items, slots: list[int], test: Closure | None, parts: list[Closure]) -> Closure:
    """transformMap (key, value) and transformMapEntry (one map of entries)."""
    store = _store(slots)

    def insert(frame: Frame) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for item in items(frame):
            store(frame, item)
            if test is not None and not _truth(test(frame)):
                continue
            values = [part(frame) for part in parts]
            entries = [(key_of(values[0]), values[1])] if len(values) == 2 else list(values[0].items())
            for key, value in entries:
                if key in made:
                    raise EvaluationError(f"insert failed: key {text_of(key)} already exists")
                made[key] = value
        return made

    return insert
