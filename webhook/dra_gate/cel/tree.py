"""The checked expression as a tree of small values, read from the checker's protobuf (cel.expr.CheckedExpr).

Macros arrive expanded: `all`, `exists`, `map`, `filter` and `cel.bind` are `Comprehension`, `has(x.y)` is a `Select`
with `test` set. `device.driver` and the other fields of `device` arrive as one `Name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Field numbers are those of cel/expr/checked.proto and cel/expr/syntax.proto in github.com/google/cel-spec.
_SCHEMA: dict[str, list[tuple[str, int, str]]] = {
    "Any": [("value", 2, "bytes")],
    "Checked": [
        ("references", 2, "*ReferenceEntry"),
        ("types", 3, "*TypeEntry"),
        ("expr", 4, "Expr"),
        ("source", 5, "Source"),
    ],
    "ReferenceEntry": [("key", 1, "int64"), ("value", 2, "Reference")],
    "Reference": [("name", 1, "string"), ("overloads", 3, "*string")],
    "TypeEntry": [("key", 1, "int64"), ("value", 2, "Type")],
    "Empty": [],
    "Type": [
        ("dyn", 1, "|Empty"),
        ("null", 2, "|int32"),
        ("primitive", 3, "|int32"),
        ("wrapper", 4, "|int32"),
        ("well_known", 5, "|int32"),
        ("list", 6, "|ListType"),
        ("map", 7, "|MapType"),
        ("function", 8, "|Empty"),
        ("message", 9, "|string"),
        ("param", 10, "|string"),
        ("type", 11, "|Type"),
        ("error", 12, "|Empty"),
        ("opaque", 14, "|OpaqueType"),
    ],
    "ListType": [("element", 1, "Type")],
    "MapType": [("key", 1, "Type"), ("value", 2, "Type")],
    "OpaqueType": [("name", 1, "string"), ("params", 2, "*Type")],
    "Source": [("line_offsets", 3, "*int32"), ("positions", 4, "*PositionEntry")],
    "PositionEntry": [("key", 1, "int64"), ("value", 2, "int32")],
    "Expr": [
        ("id", 2, "int64"),
        ("const", 3, "|Constant"),
        ("ident", 4, "|Ident"),
        ("select", 5, "|Select"),
        ("call", 6, "|Call"),
        ("list", 7, "|List"),
        ("struct", 8, "|Struct"),
        ("comprehension", 9, "|Comprehension"),
    ],
    "Constant": [
        ("null", 1, "|int32"),
        ("bool", 2, "|bool"),
        ("int", 3, "|int64"),
        ("uint", 4, "|uint64"),
        ("double", 5, "|double"),
        ("string", 6, "|string"),
        ("bytes", 7, "|bytes"),
    ],
    "Ident": [("name", 1, "string")],
    "Select": [("operand", 1, "Expr"), ("field", 2, "string"), ("test", 3, "bool")],
    "Call": [("target", 1, "Expr"), ("function", 2, "string"), ("args", 3, "*Expr")],
    "List": [("elements", 1, "*Expr"), ("optional", 2, "*int32")],
    "Struct": [("name", 1, "string"), ("entries", 2, "*Entry")],
    "Entry": [("field", 2, "string"), ("key", 3, "Expr"), ("value", 4, "Expr"), ("optional", 5, "bool")],
    "Comprehension": [
        ("variable", 1, "string"),
        ("range", 2, "Expr"),
        ("accumulator", 3, "string"),
        ("init", 4, "Expr"),
        ("condition", 5, "Expr"),
        ("step", 6, "Expr"),
        ("result", 7, "Expr"),
        ("variable2", 8, "string"),
    ],
}
_PRIMITIVES = ("", "bool", "int", "uint", "double", "string", "bytes")
_WELL_KNOWN = ("", "any", "timestamp", "duration")


@dataclass(frozen=True, slots=True)
class Type:
    """A static type: `name` in CEL's words (int, list, map, optional_type, kubernetes.Quantity …), and parameters."""

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return self.name + (f"({', '.join(map(str, self.params))})" if self.params else "")


DYN = Type("dyn")


@dataclass(frozen=True, slots=True)
class Node:
    """What every node has: the checker's number, the static type, the place in the source (both count from 1)."""

    id: int
    type: Type
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant: None, bool, int, `Uint`, float, str or bytes as the evaluator holds them."""

    value: object


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A variable: a field of `device`, or one that a comprehension brings in."""

    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    """`operand.field`, or `has(operand.field)` if `test`."""

    operand: Node
    field: str
    test: bool


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function or operator. `args` starts with the receiver if `member`; `overloads` are the checker's candidates."""

    function: str
    member: bool
    args: tuple[Node, ...]
    overloads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListLiteral(Node):
    """`[a, ?b]`: `optional` holds the indices written with `?`."""

    elements: tuple[Node, ...]
    optional: frozenset[int]


@dataclass(frozen=True, slots=True)
class MapLiteral(Node):
    """`{k: v, ?k2: v2}` as (key, value, optional)."""

    entries: tuple[tuple[Node, Node, bool], ...]


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """A loop over `range`. `variable2` is None except in two-variable macros; cel.bind loops over nothing."""

    variable: str
    variable2: str | None
    range: Node
    accumulator: str
    init: Node
    condition: Node
    step: Node
    result: Node

    @property
    def is_bind(self) -> bool:
        """True for what `cel.bind(name, value, body)` expands to: accumulator, init and result are the three."""
        return (
            isinstance(self.range, ListLiteral)
            and not self.range.elements
            and isinstance(self.condition, Literal)
            and self.condition.value is False
        )


class Uint(int):
    """A CEL uint: a different type than int, though equal numbers are equal."""

    __slots__ = ()


class UnreadableTreeError(ValueError):
    """The checker produced a node that this module does not know."""


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below, in source order."""
    match node:
        case Select():
            yield node.operand
        case Call():
            yield from node.args
        case ListLiteral():
            yield from node.elements
        case MapLiteral():
            for key, value, _ in node.entries:
                yield key
                yield value
        case Comprehension():
            yield from (node.range, node.init, node.condition, node.step, node.result)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def read(serialized: bytes) -> Node:
    """The tree of `Expression.serialize()`: google.protobuf.Any that holds a cel.expr.CheckedExpr.

    Raises UnreadableTreeError for timestamp and duration constants and message literals, which devices have no use for.
    """
    checked = _MESSAGES["Checked"].FromString(_MESSAGES["Any"].FromString(serialized).value)
    return _Reader(
        {entry.key: tuple(entry.value.overloads) for entry in checked.references},
        {entry.key: _type(entry.value) for entry in checked.types},
        {entry.key: entry.value for entry in checked.source.positions},
        tuple(checked.source.line_offsets),
    ).node(checked.expr)


@dataclass(frozen=True, slots=True)
class _Reader:
    overloads: Mapping[int, tuple[str, ...]]
    types: Mapping[int, Type]
    positions: Mapping[int, int]
    line_offsets: tuple[int, ...] = field(default=())

    def node(self, expr: Any) -> Node:
        """One node and all below it."""
        head = (expr.id, self.types.get(expr.id, DYN), *self.place(self.positions.get(expr.id, 0)))
        match expr.WhichOneof("kind"):
            case "const":
                kind = expr.const.WhichOneof("kind")
                value: Any = None if kind == "null" else getattr(expr.const, kind or "null")
                return Literal(*head, Uint(value) if kind == "uint" else value)
            case "ident":
                return Name(*head, expr.ident.name)
            case "select":
                return Select(*head, self.node(expr.select.operand), expr.select.field, expr.select.test)
            case "call":
                member = expr.call.HasField("target")
                args = ([expr.call.target] if member else []) + list(expr.call.args)
                overloads = self.overloads.get(expr.id, ())
                return Call(*head, expr.call.function, member, tuple(map(self.node, args)), overloads)
            case "list":
                return ListLiteral(*head, tuple(map(self.node, expr.list.elements)), frozenset(expr.list.optional))
            case "struct" if not expr.struct.name:
                entries = ((self.node(e.key), self.node(e.value), e.optional) for e in expr.struct.entries)
                return MapLiteral(*head, tuple(entries))
            case "comprehension":
                loop = expr.comprehension
                parts = map(self.node, (loop.init, loop.condition, loop.step, loop.result))
                first = (loop.variable, loop.variable2 or None, self.node(loop.range), loop.accumulator)
                return Comprehension(*head, *first, *parts)
        raise UnreadableTreeError(f"a node of kind {expr.WhichOneof('kind')} cannot be read")

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset in code points; both count from 1."""
        line, start = 1, 0
        for number, end in enumerate(self.line_offsets, 2):
            if offset < end:
                break
            line, start = number, end
        return line, offset - start + 1


def _type(message: Any) -> Type:
    kind = message.WhichOneof("kind")
    match kind:
        case "primitive":
            return Type(_PRIMITIVES[message.primitive])
        case "wrapper":
            return Type("wrapper", (Type(_PRIMITIVES[message.wrapper]),))
        case "well_known":
            return Type(_WELL_KNOWN[message.well_known])
        case "list":
            return Type("list", (_type(message.list.element),))
        case "map":
            return Type("map", (_type(message.map.key), _type(message.map.value)))
        case "message":
            return Type(message.message)
        case "opaque":
            return Type(message.opaque.name, tuple(map(_type, message.opaque.params)))
        case None | "dyn" | "param":
            return DYN
    return Type(str(kind))


def _messages() -> dict[str, Any]:
    """Message classes for `_SCHEMA`: `*` marks a repeated field, `|` a member of the message's oneof."""
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "int32": kinds.TYPE_INT32,
        "int64": kinds.TYPE_INT64,
        "uint64": kinds.TYPE_UINT64,
        "double": kinds.TYPE_DOUBLE,
        "bool": kinds.TYPE_BOOL,
        "string": kinds.TYPE_STRING,
        "bytes": kinds.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(name="dra_gate/checked.proto", package="dra_gate.cel", syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        if any(kind[0] == "|" for _, _, kind in fields):
            message.oneof_decl.add(name="kind")
        for field_name, number, kind in fields:
            bare = kind.lstrip("*|")
            label = kinds.LABEL_REPEATED if kind[0] == "*" else kinds.LABEL_OPTIONAL
            entry = message.field.add(name=field_name, number=number, label=label)
            if bare in scalars:
                entry.type = scalars[bare]
            else:
                entry.type, entry.type_name = kinds.TYPE_MESSAGE, f".dra_gate.cel.{bare}"
            if kind[0] == "|":
                entry.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dra_gate.cel.{name}")) for name in _SCHEMA
    }


_MESSAGES = _messages()
