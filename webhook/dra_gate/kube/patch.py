"""Building RFC 6902 patches by hand: the operations we mean, and no others.

Diffing two copies of a Pod costs a thousand times more and yields index paths and moves; here every parent is created
at most once, every key is escaped (RFC 6901: `~` to `~0`, then `/` to `~1`), and nothing else is touched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

Operation = dict[str, Any]


class PatchError(ValueError):
    """The document has something else where the patch needs an object or an array."""


@lru_cache(maxsize=4096)  # a few hundred paths stand in nearly all patches
def pointer(*parts: str | int) -> str:
    """The RFC 6901 pointer of `parts`; integers are array positions."""
    text = ""
    for part in parts:
        if isinstance(part, str) and ("/" in part or "~" in part):
            part = part.replace("~", "~0").replace("/", "~1")  # noqa: PLW2901
        text += f"/{part}"
    return text


class Patch:
    """Collects operations against one document, keeping track of the parents that it has itself created.

    The document is never changed. Operations apply in order with any strict RFC 6902 library.
    """

    def __init__(self, document: object) -> None:
        self._document = document
        self._created: dict[tuple[str | int, ...], type] = {}
        self.operations: list[Operation] = []

    def _found(self, path: tuple[str | int, ...]) -> Any:
        value: Any = self._document
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _ensure(self, path: tuple[str | int, ...], kind: type) -> None:
        """Make `path` an object or array (`kind`), creating it and its parents where they are absent or null."""
        if path in self._created:
            return
        value = self._found(path)
        if value is None:
            if path:
                self._ensure(path[:-1], dict)
            self.operations.append({"op": "add", "path": pointer(*path), "value": kind()})
            self._created[path] = kind
        elif not isinstance(value, kind):
            found = type(value).__name__
            message = f"{pointer(*path) or '/'} is a {found}, not the {kind.__name__} that Kubernetes has there"
            raise PatchError(message)

    def set(self, path: tuple[str | int, ...], value: object) -> None:
        """Give the member at `path` the value, creating absent parents; nothing happens when it has it already."""
        if path[:-1] not in self._created and self._found(path) == value:
            return
        self._ensure(path[:-1], dict)
        self.operations.append({"op": "add", "path": pointer(*path), "value": value})

    def append(self, path: tuple[str | int, ...], value: object) -> None:
        """Put the value behind the last item of the array at `path`, creating it and absent parents."""
        self._ensure(path, list)
        self.operations.append({"op": "add", "path": pointer(*path) + "/-", "value": value})

    def remove(self, path: tuple[str | int, ...]) -> None:
        """Take the existing member at `path` away."""
        self.operations.append({"op": "remove", "path": pointer(*path)})


def apply(document: Any, operations: list[Operation]) -> Any:
    """`document` after operations as `Patch` makes them (add and remove); the document itself is left as it was.

    Only what `Patch` emits is understood: this is how offline review and replay see the object that the API server
    would see. Tests hold it against a strict RFC 6902 library.
    """
    result = document
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        result = _applied(result, parts, operation)
    return result


def _applied(node: Any, parts: list[str], operation: Operation) -> Any:
    key, rest = parts[0], parts[1:]
    if isinstance(node, list):
        copy = list(node)
        if rest:
            copy[int(key)] = _applied(node[int(key)], rest, operation)
        elif operation["op"] == "remove":
            del copy[int(key)]
        else:
            copy.insert(len(copy) if key == "-" else int(key), operation["value"])
        return copy
    changed = dict(node)
    if rest:
        changed[key] = _applied(node[key], rest, operation)
    elif operation["op"] == "remove":
        del changed[key]
    else:
        changed[key] = operation["value"]
    return changed
