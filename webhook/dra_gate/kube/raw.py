"""Reading untrusted JSON: a wrong type reads as absent, so that no reader has to ask twice.

The API server only ever sends well-typed objects; recorded files and hostile clients may send anything. What matters
for a verdict is checked by the rules on the values that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]

_NOTHING: Object = {}


def mapping(value: object) -> Object:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else _NOTHING


def sequence(value: object) -> Sequence[Any]:
    """`value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else ()


def text(value: object) -> str:
    """`value` if it is a JSON string, else the empty one."""
    return value if isinstance(value, str) else ""


def at(value: object, *keys: str) -> Any:
    """What stands at the path `keys` below `value`, or None where the path ends early."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
