"""Finds reads that fail when a device lacks a key.

The scheduler evaluates selectors on every device that may serve, and one `no such key` ends the scheduling attempt for
all nodes. So each read must be guarded: `has(x) && … x …`, `'id' in domain && …`, `.?x`, `[?'x']`.

The analysis asks, for each node: which reads may fail in a state where these keys are known to be there? `&&` and `||`
absorb errors in both directions, so what their other operands establish counts, on whichever side it stands. It is
sound for missing keys: an expression without findings never fails for one, provided that the values that are there have
the types that it uses. It may report a read that is safe, where the guard takes a form that it does not follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dra_gate.cel.problems import Problem
from dra_gate.cel.tree import Call, Comprehension, ListLiteral, Literal, MapLiteral, Name, Node, Select, children

_ROOTS: Final = frozenset(("device.attributes", "device.capacity"))
_EFFORT: Final = 100_000  # nodes visited before the analysis gives up; honest expressions take some hundred

# Where a value lives: a root or an anonymous expression, then keys, all as text that is equal for equal places.
Place = tuple[str, ...]
Facts = frozenset[Place]
_NOTHING: Final[Facts] = frozenset()


@dataclass(frozen=True)
class _Loop:
    """A loop variable; `over` is the place of the map whose keys it runs through, if it has one."""

    label: str
    over: Place | None
    holds_key: bool


class _TooInvolved(Exception):
    pass


def unguarded(tree: Node) -> list[Problem]:
    """One problem for each read that may fail for a missing key, in source order."""
    analysis = _Analysis()
    try:
        analysis.resolve(tree, {})
        found = analysis.risks(tree, _NOTHING)
    except _TooInvolved:
        message = "too involved to show that every read is guarded: split it, or bind fewer names"
        return [Problem("unguarded", message, tree.line, tree.column)]
    problems = {Problem("unguarded", _message(node), node.line, node.column) for node in found}
    return sorted(problems, key=lambda problem: (problem.line, problem.column, problem.message))


class _Analysis:
    def __init__(self) -> None:
        self.bound: dict[int, Node | _Loop] = {}  # id of a Name -> what it stands for
        self.known_risks: dict[tuple[int, Facts], tuple[Node, ...]] = {}
        self.known_facts: dict[tuple[int, bool | None], Facts] = {}
        self.places: dict[int, Place | None] = {}
        self.loops = 0
        self.effort = 0

    # --- names --------------------------------------------------------------------------------------------------------

    def resolve(self, node: Node, scope: dict[str, Node | _Loop]) -> None:
        """Notes what each name stands for: cel.bind is lazy, so a bound name is its value wherever it is read."""
        if isinstance(node, Name):
            if node.name in scope:
                self.bound[id(node)] = scope[node.name]
        elif isinstance(node, Comprehension):
            self.resolve(node.range, scope)
            self.resolve(node.init, scope)
            if node.is_bind:
                self.resolve(node.result, {**scope, node.accumulator: node.init})
                return
            self.loops += 1
            over = self.place(node.range) if node.range.type.name == "map" else None
            inner = {**scope, node.accumulator: _Loop(f"#{self.loops}", None, holds_key=False)}
            inner[node.variable] = _Loop(f"#{self.loops}k", over, holds_key=over is not None)
            if node.variable2 is not None:
                inner[node.variable2] = _Loop(f"#{self.loops}v", over, holds_key=False)
            for part in (node.condition, node.step, node.result):
                self.resolve(part, inner)
        else:
            for child in children(node):
                self.resolve(child, scope)

    # --- places -------------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> Place | None:
        """Where the value of `node` lives, if it is a root of device or something below a place."""
        if id(node) not in self.places:
            self.places[id(node)] = self._place(node)
        return self.places[id(node)]

    def _place(self, node: Node) -> Place | None:
        self._step()
        match node:
            case Name(name=name):
                bound = self.bound.get(id(node))
                if bound is None:
                    return (name,) if name in _ROOTS else None
                if isinstance(bound, _Loop):
                    return ("loop", bound.label)
                return self.place(bound)
            case Select(operand=operand, field=field, test=False):
                return self._below(operand, repr(field))
            case Call(function="_[_]" | "_[?_]" | "_?._", args=(operand, key)):
                return self._below(operand, self.text(key))
            case Call(function="dyn", args=(operand,)):
                return self.place(operand)
            case Call(function="orValue", args=(operand, _)):
                inner = self.place(operand)
                # A domain is always there, if only as an empty map, so the other value is never taken.
                return inner if inner is not None and inner[0] in _ROOTS and len(inner) == 2 else None
        return None

    def _below(self, operand: Node, key: str) -> Place:
        place = self.place(operand)
        return (*place, key) if place is not None else ("other", self.text(operand), key)

    def text(self, node: Node) -> str:
        """Text that is the same for expressions that have the same value in the same state."""
        self._step()
        match node:
            case Literal(value=value):
                return f"{type(value).__name__}:{value!r}" if not isinstance(value, str) else repr(value)
            case Name(name=name):
                bound = self.bound.get(id(node))
                if bound is None:
                    return name
                return bound.label if isinstance(bound, _Loop) else self.text(bound)
            case Select(operand=operand, field=field, test=test):
                return f"{'has ' if test else ''}{self.text(operand)}.{field!r}"
            case Call(function=function, args=args):
                return f"{function}({','.join(map(self.text, args))})"
            case ListLiteral(elements=elements, optional=optional):
                return f"[{','.join(map(self.text, elements))}]{sorted(optional)}"
        return f"<{id(node)}>"  # a loop or a map: equal to itself only

    # --- facts --------------------------------------------------------------------------------------------------------

    def facts(self, node: Node, outcome: bool | None) -> Facts:
        """The keys that are there if `node` gives `outcome`; None stands for any value, as long as it is no error."""
        key = (id(node), outcome)
        if key not in self.known_facts:
            self.known_facts[key] = frozenset(self._facts(node, outcome))
        return self.known_facts[key]

    def _facts(self, node: Node, outcome: bool | None) -> Facts:
        self._step()
        match node:
            case Name():
                bound = self.bound.get(id(node))
                return self.facts(bound, outcome) if isinstance(bound, Node) else _NOTHING
            case Select(operand=operand, field=field, test=True):
                present = {self._below(operand, repr(field))} if outcome is True else _NOTHING
                return self.facts(operand, None) | present
            case Select() | Call(function="_[_]"):
                return self._all(children(node)) | self._read(node)
            case Call(function="@in", args=(key, container)) if container.type.name == "map" and outcome is True:
                return self._all(node.args) | {self._below(container, self.text(key))}
            case Call(function="hasValue", args=(operand,)) if outcome is True:
                return self.facts(operand, None) | {self._present(operand)}
            case Call(function="value", args=(operand,)):
                return self.facts(operand, None) | {self._present(operand)}
            case Call(function="!_", args=(operand,)):
                return self.facts(operand, None if outcome is None else not outcome)
            case Call(function="_==_" | "_!=_" as operator, args=(operand, Literal(value=bool() as value))):
                if outcome is None:
                    return self.facts(operand, None)
                if (operator == "_==_") is outcome:
                    return self.facts(operand, value)
                return self.facts(operand, not value if operand.type.name == "bool" else None)
            case Call(function="_&&_" | "_||_" as operator, args=(left, right)):
                # The outcome that both sides have to share; the other one, either side may bring about alone.
                shared = operator == "_&&_"
                if outcome is shared:
                    return self.facts(left, shared) | self.facts(right, shared)
                alone = self.facts(left, not shared) & self.facts(right, not shared)
                return alone if outcome is not None else alone & (self.facts(left, shared) | self.facts(right, shared))
            case Call(function="_?_:_", args=(condition, then, otherwise)):
                return (self.facts(condition, True) | self.facts(then, outcome)) & (
                    self.facts(condition, False) | self.facts(otherwise, outcome)
                )
            case Call(function="orValue" | "or", args=(first, _)):
                return self.facts(first, None)
            case Comprehension(is_bind=True):
                return self.facts(node.result, outcome)
            case Comprehension():
                return self.facts(node.range, None)
        return self._all(children(node))

    def _all(self, nodes: Iterator[Node] | tuple[Node, ...]) -> Facts:
        return _NOTHING.union(*(self.facts(node, None) for node in nodes))

    def _read(self, node: Node) -> Facts:
        place = self.place(node)
        return frozenset((place,)) if place is not None and _can_fail(node) else _NOTHING

    def _present(self, optional: Node) -> Place:
        """The fact that an optional has a value: for `x.?y` the same as that the key is there."""
        place = self.place(optional)
        return place if place is not None else ("optional", self.text(optional))

    # --- risks --------------------------------------------------------------------------------------------------------

    def risks(self, node: Node, facts: Facts) -> tuple[Node, ...]:
        """The reads that may make `node` fail in a state where the keys of `facts` are there."""
        key = (id(node), facts)
        if key not in self.known_risks:
            self.known_risks[key] = tuple(dict.fromkeys(self._risks(node, facts)))
        return self.known_risks[key]

    def _risks(self, node: Node, facts: Facts) -> Iterator[Node]:
        self._step()
        match node:
            case Name():
                bound = self.bound.get(id(node))
                if isinstance(bound, Node):
                    yield from self.risks(bound, facts)
            case Call(function="_&&_" | "_||_" as operator):
                yield from self._joined(_operands(node, operator), facts, outcome=operator == "_&&_")
            case Call(function="_?_:_", args=(condition, then, otherwise)):
                yield from self.risks(condition, facts)
                yield from self.risks(then, facts | self.facts(condition, True))
                yield from self.risks(otherwise, facts | self.facts(condition, False))
            case Call(function="value", args=(operand,)):
                yield from self.risks(operand, facts)
                if not self._certain(operand, facts):
                    yield node
            case Comprehension(is_bind=True):
                yield from self.risks(node.result, facts)
            case Comprehension():
                yield from self.risks(node.range, facts)
                yield from self.risks(node.step, facts)
            case _:
                for child in children(node):
                    yield from self.risks(child, facts)
                if _can_fail(node) and not self._there(node, facts):
                    yield node

    def _joined(self, operands: list[Node], facts: Facts, *, outcome: bool) -> Iterator[Node]:
        """The risks of a chain of `&&` (outcome True) or `||` (False).

        The chain fails only in a state where every operand either fails or gives `outcome`. An operand without risks
        gives `outcome` then, so its facts hold for the others; that may clear more operands, until nothing changes.
        """
        open_operands = operands
        while True:
            cleared = [operand for operand in open_operands if not self.risks(operand, facts)]
            for operand in cleared:
                facts |= self.facts(operand, outcome)
            if not cleared:
                break
            open_operands = [operand for operand in open_operands if not any(operand is other for other in cleared)]
        for operand in open_operands:
            yield from self.risks(operand, facts)

    def _there(self, node: Node, facts: Facts) -> bool:
        place = self.place(node)
        if place is None:
            return False
        if place in facts:
            return True
        if len(place) == 2 and place[0] in _ROOTS:
            return True  # an unknown domain reads as an empty map
        match node:
            case Call(function="_[_]", args=(operand, Name() as key)):
                bound = self.bound.get(id(key))
                return isinstance(bound, _Loop) and bound.holds_key and bound.over == self.place(operand)
            case Select(operand=MapLiteral(entries=entries), field=field):
                return any(isinstance(key, Literal) and key.value == field and not opt for key, _, opt in entries)
            case Call(function="_[_]", args=(MapLiteral(entries=entries), Literal(value=value))):
                return any(isinstance(key, Literal) and key.value == value and not opt for key, _, opt in entries)
        return False

    def _certain(self, optional: Node, facts: Facts) -> bool:
        match optional:
            case Call(function="optional.of"):
                return True
            case Name():
                bound = self.bound.get(id(optional))
                if isinstance(bound, Node):
                    return self._certain(bound, facts)
        place = self._present(optional)
        return place in facts or (len(place) == 2 and place[0] in _ROOTS)

    def _step(self) -> None:
        self.effort += 1
        if self.effort > _EFFORT:
            raise _TooInvolved


def _operands(node: Node, operator: str) -> list[Node]:
    """The operands of a chain of one operator, however it is nested."""
    if isinstance(node, Call) and node.function == operator:
        return [operand for arg in node.args for operand in _operands(arg, operator)]
    return [node]


def _can_fail(node: Node) -> bool:
    """Whether `node` reads a key that may be missing. A selection on an optional gives none instead of failing."""
    match node:
        case Select(operand=operand, test=False):
            return operand.type.name != "optional_type"
        case Call(function="_[_]", args=(operand, _)):
            return operand.type.name not in ("optional_type", "list")
    return False


def _message(node: Node) -> str:
    if isinstance(node, Call) and node.function == "value":
        return (
            "value() fails when the optional is empty, and then the scheduler gives up on every node: "
            "use orValue(…), or ask hasValue() && first"
        )
    operand, key = _parts(node)
    base = _source(operand)
    read = f"{base}.{key}" if key.isidentifier() else f"{base}[{key}]"
    guard = f"has({read})" if key.isidentifier() else f"{key} in {base}"
    optional = f"{base}.?{key}" if key.isidentifier() else f"{base}[?{key}]"
    return (
        f"a device may lack {read}, and then the scheduler gives up on every node: "
        f"write {guard} && … before it, or {optional}.orValue(…) == …"
    )


def _parts(node: Node) -> tuple[Node, str]:
    match node:
        case Select(operand=operand, field=field):
            return operand, field
        case Call(args=(operand, Literal(value=str() as key))):
            return operand, key if key.isidentifier() else repr(key)
        case Call(args=(operand, key_node)):
            return operand, _source(key_node)
    return node, "…"


def _source(node: Node) -> str:
    """The text of a read, near enough to what was written."""
    match node:
        case Name(name=name):
            return name
        case Literal(value=str() as value):
            return repr(value)
        case Select(operand=operand, field=field):
            return f"{_source(operand)}.{field}"
        case Call(function="_[_]", args=(operand, key)):
            return f"{_source(operand)}[{_source(key)}]"
        case Call(function="_[?_]", args=(operand, key)):
            return f"{_source(operand)}[?{_source(key)}]"
        case Call(function="_?._", args=(operand, Literal(value=key))):
            return f"{_source(operand)}.?{key}"
    return "(…)"
