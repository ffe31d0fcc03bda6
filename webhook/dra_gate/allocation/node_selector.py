"""Whether a node is one that a NodeSelector of a ResourceSlice means (component-helpers' nodeaffinity)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dra_gate.allocation.problems import CannotEvaluate
from dra_gate.kube.raw import Object, at, mapping, sequence, text

_INT64 = range(-(2**63), 2**63)
_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)


def node_matches(node: Object, name: str, everywhere: bool, selector: object) -> bool:
    """Whether what names these places is reached from `node`; what names none is not.

    Raises CannotEvaluate for a selector that the API server would not have let through.
    """
    if name:
        return text(at(node, "metadata", "name")) == name
    return everywhere or (isinstance(selector, dict) and selects(selector, node))


def selects(selector: Object, node: Object) -> bool:
    """Whether one term holds; an empty one holds for no node. Raises CannotEvaluate as `node_matches` does."""
    labels = mapping(at(node, "metadata", "labels"))
    names = {"metadata.name": text(at(node, "metadata", "name"))}
    # Every term is read, also after one that holds: one that is no good makes the whole selector an error.
    held = [
        _hold(sequence(at(term, "matchExpressions")), labels) & _hold(sequence(at(term, "matchFields")), names)
        for term in sequence(selector.get("nodeSelectorTerms"))
        if at(term, "matchExpressions") or at(term, "matchFields")
    ]
    return any(held)


def _hold(requirements: Sequence[Any], values: Mapping[str, Any]) -> bool:
    held = [_holds(mapping(requirement), values) for requirement in requirements]
    return all(held)


def _holds(requirement: Object, values: Mapping[str, Any]) -> bool:
    key, listed = text(requirement.get("key")), sequence(requirement.get("values"))
    value = values.get(key)
    match requirement.get("operator"):
        case "In":
            return value is not None and value in listed
        case "NotIn":
            return value is None or value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            bound, number = _number(listed[0] if len(listed) == 1 else None), _number(value)
            if bound is None:
                raise CannotEvaluate(f"node selector: {operator} of {key} takes one whole number")
            return number is not None and (number > bound if operator == "Gt" else number < bound)
        case operator:
            raise CannotEvaluate(f"node selector: operator {operator} is not known")


def _number(value: object) -> int | None:
    """What Go's ParseInt makes of a label's value."""
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        return None
    number = int(value)
    return number if number in _INT64 else None
