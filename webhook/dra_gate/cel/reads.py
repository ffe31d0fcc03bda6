"""Which attributes and capacities of a device an expression depends on: devices equal in these are asked once."""

from __future__ import annotations

from typing import Final

from dra_gate.cel.tree import Call, Literal, Name, Node, Select, children

Read = tuple[str, str, str]  # "attributes" or "capacity", domain, id

_ROOTS: Final = {"device.attributes": "attributes", "device.capacity": "capacity"}
_INDEXING: Final = ("_[_]", "_[?_]", "_?._")


class _Whole(Exception):
    """A whole map is used, or a key that is computed."""


def reads(tree: Node) -> frozenset[Read] | None:
    """All that a result can depend on beside `driver` and `allowMultipleAllocations`; None if that may be anything."""
    found: set[Read] = set()
    try:
        _collect(tree, found)
    except _Whole:
        return None
    return frozenset(found)


def _collect(node: Node, found: set[Read]) -> None:
    outer = _key(node)
    inner = _key(outer[0]) if outer else None
    if outer and inner and isinstance(inner[0], Name) and inner[0].name in _ROOTS:
        found.add((_ROOTS[inner[0].name], inner[1], outer[1]))
        return
    if isinstance(node, Name) and node.name in _ROOTS:
        raise _Whole
    for child in children(node):
        _collect(child, found)


def _key(node: Node) -> tuple[Node, str] | None:
    """The map and the constant key of a read, a presence test or an `in`."""
    match node:
        case Select(operand=operand, field=field):
            return operand, field
        case Call(function=function, args=(operand, Literal(value=str(key)))) if function in _INDEXING:
            return operand, key
        case Call(function="@in", args=(Literal(value=str(key)), operand)):
            return operand, key
    return None
