"""Evaluation: each node of the checked tree becomes one Python closure over a frame (see `closures`)."""

from __future__ import annotations

import operator
from typing import Any, Final

from dra_gate.cel.closures import (
    BUDGET,
    FIELDS,
    LAZY,
    Closure,
    Frame,
    Lazy,
    applied,
    as_optional,
    constant,
    equal_to_text,
    equality,
    field_of,
    folded,
    forced,
    has,
    indexed,
    matching,
    membership,
    not_known,
    optionally_indexed,
    ordering,
    priced,
)
from dra_gate.cel.constants import constant_of
from dra_gate.cel.library import PLAIN, PRICED, function_of
from dra_gate.cel.loops import collected, exactly_one, iteration, mapped, quantifier, weight
from dra_gate.cel.tree import Call, Comprehension, ListLiteral, Literal, MapLiteral, Name, Node, Select
from dra_gate.cel.values import KINDS, LISTS, NoSuchKey, TypeName, key_of

_TYPES: Final = {name: TypeName(name) for name in (*KINDS.values(), "optional_type")}
_ORDERINGS: Final = {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}
_PURE: Final = ("quantity", "semver", "isQuantity", "isSemver", "-_")  # of constants alone: computed once


class UnsupportedError(Exception):
    """The checker knows something in the tree that the evaluator does not. `node` is where."""

    def __init__(self, message: str, node: Node) -> None:
        super().__init__(message)
        self.node = node


def closure_of(tree: Node, unknown: frozenset[str] = frozenset()) -> tuple[Closure, int]:
    """The closure of a tree and the number of slots that its frame needs; raises UnsupportedError.

    Reading a field of `device` that is in `unknown` is an error when evaluated, `has()` of something in it too: what is
    true or false all the same does not depend on it.
    """
    builder = _Builder(unknown)
    closure = builder.build(tree, {name: slot for slot, name in enumerate(FIELDS)})
    return closure, builder.slots


class _Builder:
    """Builds closures and hands out slots; a slot is never reused, so nested scopes cannot meet."""

    def __init__(self, unknown: frozenset[str]) -> None:
        self.slots = BUDGET + 1
        self._unknown = unknown

    def build(self, node: Node, scope: dict[str, int]) -> Closure:
        """The closure of one node; `scope` maps the names it may use to slots."""
        folded = constant_of(node)
        if folded is not None:
            return constant(folded.value)
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
        if node.name in self._unknown:
            return not_known(node.name)
        slot = scope.get(node.name)
        if slot is not None:
            if slot < 0:
                return forced(~slot)
            return operator.itemgetter(slot)
        if node.name in _TYPES:
            return constant(_TYPES[node.name])
        raise UnsupportedError(f"{node.name} cannot be used as a value here: name the field, as in device.driver", node)

    def _select(self, node: Select, scope: dict[str, int]) -> Closure:
        operand, field = self.build(node.operand, scope), node.field
        if node.test:
            return has(operand, field)
        return self._attribute(node.operand, field) or field_of(operand, field)

    def _attribute(self, operand: Node, field: str) -> Closure | None:
        """`device.attributes['domain'].field`, which nearly every selector reads, in one step."""
        match operand:
            case Call(function="_[_]", args=(Name(name=name), Literal(value=str(domain)))):
                pass
            case Select(operand=Name(name=name), field=domain, test=False):
                pass
            case _:
                return None
        if name not in FIELDS[:2] or name in self._unknown:
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
        special = LAZY.get(node.function)
        if special is not None:
            return special(*(self.build(arg, scope) for arg in node.args))
        if node.function in ("_[_]", "_[?_]", "_?._"):
            return self._index(node, scope)
        if node.function in ("_==_", "_!=_"):
            return self._equality(node, scope)
        if node.function in _ORDERINGS:
            return ordering(_ORDERINGS[node.function], *(self.build(arg, scope) for arg in node.args))
        function = function_of(node.function)
        if function is None:
            raise UnsupportedError(f"{node.function}() is not understood here", node)
        args = [self.build(arg, scope) for arg in node.args]
        if node.function == "@in" and "in_list" in node.overloads:
            members = constant_of(node.args[1])
            if members is not None and type(members.value) in LISTS:
                return membership(args[0], members.value)
        if node.function in _PURE and all(constant_of(arg) is not None for arg in node.args):
            return folded(function, args)
        if node.function == "matches" and isinstance(node.args[1], Literal):
            return matching(args[0], str(node.args[1].value))
        if node.function in PLAIN:
            return applied(PLAIN[node.function], args)
        return priced(PRICED[node.function], args)

    def _index(self, node: Call, scope: dict[str, int]) -> Closure:
        operand, key = node.args
        if node.function == "_[_]" and isinstance(key, Literal) and isinstance(key.value, str):
            return self._attribute(operand, key.value) or field_of(self.build(operand, scope), key.value)
        look = indexed if node.function == "_[_]" else optionally_indexed
        return look(self.build(operand, scope), self.build(key, scope))

    def _equality(self, node: Call, scope: dict[str, int]) -> Closure:
        left, right = node.args
        wanted = node.function == "_==_"
        if isinstance(right, Literal) and type(right.value) is str:
            return equal_to_text(self.build(left, scope), right.value, wanted)
        return equality(self.build(left, scope), self.build(right, scope), wanted)

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
                elif as_optional(value).present:
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
                    if not as_optional(value).present:
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
            frame[slot] = Lazy(value)
            return body(frame)

        return bind

    def _comprehension(self, node: Comprehension, scope: dict[str, int]) -> Closure:
        self._refuse_device(node)
        slots = [self._slot() for _ in range(1 if node.variable2 is None else 2)]
        inner = {**scope, node.variable: slots[0]}
        if node.variable2 is not None:
            inner[node.variable2] = slots[1]
        items = iteration(self.build(node.range, scope), two=node.variable2 is not None, steps=2 + weight(node.step))
        accumulator = node.accumulator
        match node.step:
            case Call(function="_||_" | "_&&_" as join, args=(Name(name=name), predicate)) if name == accumulator:
                return quantifier(items, slots, self.build(predicate, inner), stop=join == "_||_")
            case Call(function="_?_:_", args=(condition, then, Name(name=name))) if name == accumulator:
                test: Closure | None = self.build(condition, inner)
            case then:
                test = None
        match then:
            case Call(function="_+_", args=(Name(name=name), Literal(value=1))) if (
                name == accumulator and test is not None
            ):
                return exactly_one(items, slots, test)
            case Call(function="_+_", args=(Name(name=name), ListLiteral(elements=(element,)))) if name == accumulator:
                return collected(items, slots, test, self.build(element, inner))
            case Call(function="cel.@mapInsert", args=(Name(name=name), *rest)) if name == accumulator:
                return mapped(items, slots, test, [self.build(part, inner) for part in rest])
        raise UnsupportedError("this kind of loop is not understood here", node)
