"""A static upper estimate of what an expression costs the API server, which refuses more than `MAX_COST`.

The rules are those of cel-go's checker/cost.go and of k8s.io/apiserver/pkg/cel/library/cost.go, with the sizes that
k8s.io/dynamic-resource-allocation/cel declares for devices (Kubernetes 1.37). The estimate equals the API server's own
on every recorded expression (tests/cel/selectors.yaml); still, only the server's answer is binding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dra_gate.cel.tree import Call, Comprehension, ListLiteral, Literal, MapLiteral, Name, Node, Select, Type

MAX_COST: Final = 1_000_000  # resource.k8s.io/v1 CELSelectorExpressionMaxCost
UNLIMITED: Final = 2**64 - 1
_STRING, _REGEX = 0.1, 0.25  # StringTraversalCostFactor, RegexStringLengthCostFactor
_LIST, _MAP = 10, 30  # ListCreateBaseCost, MapCreateBaseCost
_SCALARS = frozenset(("bool", "int", "uint", "double", "timestamp", "duration"))
_ACCUMULATORS = frozenset(("__result__", "@result"))


@dataclass(frozen=True, slots=True)
class Range:
    """A number between `low` and `high`, for sizes and costs alike; all arithmetic stops at 2**64-1."""

    low: int
    high: int

    def __add__(self, other: Range) -> Range:
        return Range(min(self.low + other.low, UNLIMITED), min(self.high + other.high, UNLIMITED))

    def __mul__(self, other: Range) -> Range:
        return Range(min(self.low * other.low, UNLIMITED), min(self.high * other.high, UNLIMITED))

    def by(self, factor: float) -> Range:
        """Both ends times `factor`, rounded up."""
        return Range(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: Range) -> Range:
        """The least range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


def _scaled(value: int, factor: float) -> int:
    return min(math.ceil(float(value) * factor), UNLIMITED)


def _fixed(value: int) -> Range:
    return Range(value, value)


_UNKNOWN, _ZERO, _ONE = Range(0, UNLIMITED), _fixed(0), _fixed(1)
_NOTHING = Range(UNLIMITED, 0)  # the start of a union

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Sizes of a container's keys (or indices) and values."""

    kind: str
    key: Range
    value: Range


@dataclass(frozen=True, slots=True)
class _Variable:
    path: Path
    size: Range | None
    entries: _Entries | None


@dataclass(frozen=True, slots=True)
class _Argument:
    """What the rules for calls know of an argument."""

    node: Node | None
    type: Type
    path: Path
    size: Range | None


@dataclass(frozen=True, slots=True)
class _CallCost:
    cost: Range
    size: Range | None = None


def max_cost(tree: Node) -> int:
    """The most that evaluating `tree` on any device may cost, in the units of `MAX_COST`."""
    return _Estimator().cost(tree).high


def _declared_size(path: Path) -> Range | None:
    """The sizeEstimator of k8s.io/dynamic-resource-allocation/cel: bounds on what the API lets devices hold."""
    if not path or path[0] != "device":
        return None
    match path[1:]:
        case ("driver",):
            return Range(0, 63)
        case ("allowMultipleAllocations",):
            return Range(0, 1)
        case ("attributes" | "capacity",) | ("attributes" | "capacity", "@values" | "@items"):
            return Range(0, 32)
        case ("attributes" | "capacity", "@keys"):
            return Range(0, 63)
        case ("attributes" | "capacity", "@values" | "@items", "@keys"):
            return Range(0, 32)
        case ("attributes", "@values" | "@items", _):
            return Range(0, 64)
        case ("capacity", "@values" | "@items", "@values" | "@items"):
            return Range(0, 0)
    return None


class _Estimator:
    """The `coster` of cel-go: sizes and paths are noted by node while costs are added up."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.sizes: dict[int, Range] = {}
        self.entries: dict[int, _Entries] = {}
        self.variables: dict[str, list[_Variable]] = {}

    def cost(self, node: Node) -> Range:
        """What evaluating `node` costs, at least and at most."""
        match node:
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case Comprehension() if node.is_bind and node.accumulator not in _ACCUMULATORS:
                return self._bind(node)
            case Comprehension():
                return self._comprehension(node)
        return _ZERO

    def _name(self, node: Name) -> Range:
        variable = self._variable(node.name)
        if variable is not None:
            self.paths[id(node)] = variable.path
            return _ONE
        self.paths[id(node)] = tuple(node.name.split("."))
        return _fixed(len(self.paths[id(node)]))  # device.driver is a name and a selection

    def _select(self, node: Select) -> Range:
        total = self.cost(node.operand)
        if node.test:
            return total  # PresenceTestHasCost(false)
        self.paths[id(node)] = (*self._path(node.operand), node.field)
        return total + _ONE if node.operand.type.name == "map" else total

    def _list(self, node: ListLiteral) -> Range:
        total, size = _fixed(_LIST), _NOTHING if node.elements else _ZERO
        for element in node.elements:
            total += self.cost(element)
            size = size.union(self._size_or_unknown(element))
        self.entries[id(node)] = _Entries("list", _ONE, size)
        return total

    def _map(self, node: MapLiteral) -> Range:
        total = _fixed(_MAP)
        keys = values = _NOTHING if node.entries else _ZERO
        for key, value, _ in node.entries:
            total += self.cost(key) + self.cost(value)
            keys = keys.union(self._size_or_unknown(key))
            values = values.union(self._size_or_unknown(value))
        self.entries[id(node)] = _Entries("map", keys, values)
        return total

    # --- loops --------------------------------------------------------------------------------------------------------

    def _bind(self, node: Comprehension) -> Range:
        total = self.cost(node.range) + self.cost(node.init)
        self._push(node.accumulator, self._local(node.init))
        total += self.cost(node.result)
        self._pop(node.accumulator)
        self._note(node, self._size(node.result), self._entry(node.result))
        return total

    def _comprehension(self, node: Comprehension) -> Range:
        total = self.cost(node.range) + self.cost(node.init)
        self._push(node.accumulator, self._local(node.init))
        entry = self._entry(node.range)
        kind = entry.kind if entry else node.range.type.name
        path = self._path(node.range)
        key, value = (entry.key, entry.value) if entry else (None, None)
        of_keys = _Variable((*path, "@indices" if kind == "list" else "@keys"), key, None)
        of_values = _Variable((*path, "@items" if kind == "list" else "@values"), value, None)
        if node.variable2 is not None:
            self._push(node.variable, of_keys)
            self._push(node.variable2, of_values)
        else:
            self._push(node.variable, of_values if kind == "list" else of_keys)
        loop = self.cost(node.condition) + self.cost(node.step)
        self._pop(node.variable)
        if node.variable2 is not None:
            self._pop(node.variable2)
        total += self.cost(node.result)
        self._pop(node.accumulator)
        count = self._size_or_unknown(node.range)
        total += count * loop
        if isinstance(node.init, Literal):
            self._note(node, self._size(node.init), None)
        elif isinstance(node.init, ListLiteral | MapLiteral):
            self._note(node, count, self._entry(node.step))
        return total

    def _local(self, node: Node) -> _Variable:
        return _Variable(self._path(node), self._size(node), self._entry(node))

    def _push(self, name: str, variable: _Variable) -> None:
        self.variables.setdefault(name, []).append(variable)

    def _pop(self, name: str) -> None:
        self.variables[name].pop()

    def _variable(self, name: str) -> _Variable | None:
        stack = self.variables.get(name)
        return stack[-1] if stack else None

    # --- sizes --------------------------------------------------------------------------------------------------------

    def _path(self, node: Node) -> Path:
        if isinstance(node, Name):
            variable = self._variable(node.name)
            if variable is not None:
                return variable.path
        return self.paths.get(id(node), ())

    def _note(self, node: Node, size: Range | None, entry: _Entries | None) -> None:
        if size is not None:
            self.sizes[id(node)] = size
        if entry is not None:
            self.entries[id(node)] = entry

    def _size(self, node: Node) -> Range | None:
        if id(node) in self.sizes:
            return self.sizes[id(node)]
        match node:
            case Literal(value=str() | bytes() as value):
                return _fixed(len(value))
            case Literal():
                return _ONE
            case ListLiteral():
                return _fixed(len(node.elements))
            case MapLiteral():
                return _fixed(len(node.entries))
        declared = _declared_size(self._path(node))
        if declared is not None:
            self.sizes[id(node)] = declared
            return declared
        if _is_scalar(node.type):
            return _ONE
        variable = self._variable(node.name) if isinstance(node, Name) else None
        return variable.size if variable else None

    def _size_or_unknown(self, node: Node) -> Range:
        return self._size(node) or _UNKNOWN

    def _entry(self, node: Node) -> _Entries | None:
        if id(node) in self.entries:
            return self.entries[id(node)]
        variable = self._variable(node.name) if isinstance(node, Name) else None
        return variable.entries if variable else None

    # --- calls --------------------------------------------------------------------------------------------------------

    def _argument(self, node: Node) -> _Argument:
        path = self._path(node)
        return _Argument(node, node.type, () if path and path[0] in _ACCUMULATORS else path, self._size(node))

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            total = _ONE + self.cost(node.args[0])
            self._note(node, self._size(node.args[0]), self._entry(node.args[0]))
            return total
        target, plain = (node.args[0], node.args[1:]) if node.member else (None, node.args)
        costs = [self.cost(arg) for arg in plain]
        args = [self._argument(arg) for arg in plain]
        if not node.overloads:
            return _ZERO
        total = self.cost(target) if target is not None else _ZERO
        receiver = self._argument(target) if target is not None else None
        worst, size = _NOTHING, None
        for overload in node.overloads:
            found = self._overload(node, overload, receiver, args, costs)
            worst = worst.union(found.cost)
            if found.size is not None:
                size = found.size if size is None else size.union(found.size)
            if overload in ("index_list", "index_map"):
                entry = self._entry(plain[0])
                size = entry.value if entry else None
                step = "@items" if overload == "index_list" else "@values"
                self.paths[id(node)] = (*self._path(plain[0]), step)
            if size is None:
                size = self._size(node)
        self._note(node, size, None)
        return total + worst

    def _overload(
        self, node: Call, overload: str, target: _Argument | None, args: list[_Argument], costs: list[Range]
    ) -> _CallCost:
        total = _ZERO
        for cost in costs:
            total += cost
        found = _kubernetes(node.function, target, args)
        if found is not None:
            return _CallCost(found.cost + total, found.size)
        if overload in ("logical_or", "logical_and"):
            return _CallCost(Range(costs[0].low, (costs[0] + costs[1]).high))
        if overload == "conditional":
            one, two = self._entry(node.args[1]), self._entry(node.args[2])
            self._note(node, None, _either(one, two))
            size = _sized(args[1]).union(_sized(args[2]))
            return _CallCost(costs[0] + costs[1].union(costs[2]), size)
        if overload in ("add_string", "add_bytes", "add_list"):
            self._note(node, None, _either(self._entry(node.args[0]), self._entry(node.args[1])))
        found = _standard(overload, target, args)
        return _CallCost(found.cost + total, found.size)


def _either(one: _Entries | None, two: _Entries | None) -> _Entries | None:
    if one is None or two is None:
        return None
    return _Entries(one.kind, one.key.union(two.key), one.value.union(two.value))


def _is_scalar(kind: Type) -> bool:
    if kind.name == "optional_type" and kind.params:
        return _is_scalar(kind.params[0])
    return kind.name in _SCALARS


def _sized(argument: _Argument) -> Range:
    """A size as cel-go's own rules know it."""
    return argument.size or _UNKNOWN


def _standard(overload: str, target: _Argument | None, args: list[_Argument]) -> _CallCost:
    """functionCost of cel-go for the standard functions, the cost of arguments left out."""
    match overload, target, args:
        case ("string_to_bytes", _, [value]):
            size = _sized(value)
            return _CallCost(size.by(_STRING), Range(size.low, min(size.high * 4, UNLIMITED)))
        case ("bytes_to_string", _, [value]):
            size = _sized(value)
            return _CallCost(size.by(_STRING), Range(size.low // 4, size.high))
        case ("starts_with_string" | "ends_with_string", _, [part]):
            return _CallCost(_sized(part).by(_STRING))
        case ("in_list", _, [_, container]):
            return _CallCost(_sized(container).by(1))
        case ("matches_string", _Argument() as text, [regex]) | ("matches", None, [text, regex]):
            return _CallCost((_sized(text) + _ONE).by(_STRING) * _sized(regex).by(_REGEX))
        case ("contains_string", _Argument() as text, [part]):
            return _CallCost(_sized(text).by(_STRING) * _sized(part).by(_STRING))
        case ("add_string" | "add_bytes", _, [left, right]):
            size = _sized(left) + _sized(right)
            return _CallCost(size.by(_STRING), size)
        case ("add_list", _, [left, right]):
            return _CallCost(_ONE, _sized(left) + _sized(right))
        case ("list_sets_contains_list" | "list_sets_intersects_list", _, [left, right]):
            return _CallCost((_bounded(left) * _bounded(right)).by(1) + _ONE)
        case ("list_sets_equivalent_list", _, [left, right]):
            return _CallCost((_bounded(left) * _bounded(right)).by(2) + _ONE)
    if overload in _COMPARED and len(args) == 2:
        smallest = min(_sized(args[0]).high, _sized(args[1]).high)
        return _CallCost(Range(1 if smallest else 0, smallest).by(_STRING))
    return _CallCost(_ONE)


_COMPARED = frozenset(
    (
        *(
            f"{word}_{kind}"
            for word in ("less", "less_equals", "greater", "greater_equals")
            for kind in ("string", "bytes")
        ),
        "equals",
        "not_equals",
    )
)


def _bounded(argument: _Argument) -> Range:
    """A size as Kubernetes' rules know it: also from what devices may hold."""
    return argument.size or _declared_size(argument.path) or _UNKNOWN


def _kubernetes(function: str, target: _Argument | None, args: list[_Argument]) -> _CallCost | None:
    """EstimateCallCost of k8s.io/apiserver/pkg/cel/library, the cost of arguments left out."""
    match function, target, args:
        case ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes", _Argument(), _):
            return _CallCost(_search(function, target))
        case ("lowerAscii" | "upperAscii" | "substring" | "trim", _Argument(), _):
            return _CallCost(_bounded(target).by(_STRING), _bounded(target))
        case ("replace", _Argument(), [old, new, *_]):
            return _replaced(_bounded(target), _bounded(old), _bounded(new))
        case ("split", _Argument(), _):
            most = _bounded(target).high
            if len(args) > 1 and isinstance(args[1].node, Literal) and type(args[1].node.value) is int:
                most = args[1].node.value % 2**64
            return _CallCost(_bounded(target).by(2 * _STRING), Range(0, most))
        case ("join", _Argument(), _):
            return _joined(target, args)
        case ("find" | "findAll", _Argument(), [regex, *_]):
            size = _bounded(target)
            return _CallCost((size + _ONE).by(_STRING) * _bounded(regex).by(_REGEX), Range(0, size.high))
        case ("quantity" | "isQuantity" | "semver" | "isSemver", _, [text, *_]):
            return _CallCost(_bounded(text).by(_STRING))
        case (
            "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch",
            _,
            _,
        ):
            return _CallCost(_ONE)
        case ("_==_", None, [left, right]) if left.type == right.type and left.type.name.startswith("kubernetes."):
            return _CallCost(_ONE)
    return None


def _search(function: str, target: _Argument) -> Range:
    if target.type.params:
        each = _ONE
        element = _element(target)
        if element.type.name in ("string", "bytes"):
            each += _bounded(element).by(_STRING)
        return _bounded(target) * each
    if function == "includes":
        return _bounded(target) * _ONE
    return _bounded(target).by(_STRING)


def _element(container: _Argument) -> _Argument:
    path = (*container.path, "@items") if container.path else ()
    return _Argument(None, container.type.params[0], path, None)


def _replaced(text: Range, old: Range, new: Range) -> _CallCost:
    if old.low == 0:
        most, kept_most = min(text.high + 1, UNLIMITED), text.high
    elif new.high <= old.low:
        most, kept_most = 0, text.high
    else:
        most, kept_most = min(math.ceil(text.high / old.low), UNLIMITED), 0
    if old.high == 0:
        least, kept_least = min(text.low + 1, UNLIMITED), text.low
    elif old.high <= new.low:
        least, kept_least = 0, text.low
    else:
        least, kept_least = math.ceil(text.low / old.high), 0
    size = Range(least, most) * new + Range(kept_least, kept_most)
    return _CallCost(text.by(2 * _STRING), size)


def _joined(target: _Argument, args: list[_Argument]) -> _CallCost:
    count, size = _bounded(target), _ZERO
    if target.type.params:
        size = count * _bounded(_element(target))
    if args:
        size += _bounded(args[0]) * Range(max(count.low - 1, 0), max(count.high - 1, 0))
    return _CallCost(size.by(_STRING), size)
