"""A cluster kept in files: ordinary manifests, read once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import yaml

_LINES = ".jsonl"  # recorded reviews: a JSON value a line
_SUFFIXES = (".yaml", ".yml", ".json", _LINES)
_MAX_DEPTH = 200  # of nested lists and mappings
_FREE_VALUES = 10_000  # beyond these a file that makes more values than it has characters lives off its aliases


class InputError(Exception):
    """A file cannot be read or is not YAML or JSON. The message names the file, and the line where there is one."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: where it came from (`source`, `index` from 0) and what it says."""

    source: str
    index: int
    value: Any


def read_documents(path: str) -> list[Document]:
    """The documents of one file, empty ones left out; `-` is standard input. Raises InputError.

    Values are plain JSON, as kubectl would send them.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        loaded = _load_lines(content) if path.endswith(_LINES) else _load(content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML or JSON: {error}") from None
    return [Document(path, index, value) for index, value in enumerate(loaded) if value is not None]


def read_manifests(paths: Iterable[str]) -> Iterator[Document]:
    """The documents of files and folders (all YAML, JSON and JSON Lines files below, by name), `List`s taken apart.

    Raises InputError.
    """
    for path in paths:
        for file in _files(path):
            for document in read_documents(file):
                for value in _items(document.value):
                    yield Document(document.source, document.index, value)


def load_manifests(paths: Iterable[str]) -> list[dict[str, Any]]:
    """The objects of `read_manifests`: those documents that are JSON objects with a kind. Raises InputError."""
    return [
        document.value
        for document in read_manifests(paths)
        if isinstance(document.value, dict) and "kind" in document.value
    ]


def _load(content: bytes) -> list[Any]:
    if content.lstrip()[:1] in (b"{", b"["):
        try:
            return [_Plain(len(content)).value(msgspec.json.decode(content))]
        except msgspec.DecodeError:
            pass  # YAML's braces, or several documents
    plain = _Plain(len(content))
    return [plain.value(document) for document in yaml.load_all(content, Loader=_Loader)]


def _load_lines(content: bytes) -> list[Any]:
    whole, _, torn = content.rpartition(b"\n")
    values = msgspec.json.Decoder().decode_lines(whole)
    # Its writer was stopped in the middle of the last line, or nothing stands after the last line break.
    with contextlib.suppress(msgspec.DecodeError):
        values.append(msgspec.json.decode(torn))
    plain = _Plain(len(content))
    return [plain.value(value) for value in values]


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 as kubectl reads it: keys become text, and there are no dates, no numbers of base 60 and no `=`."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own shape
        first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":value"))]
        for first, forms in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def number(self, node: yaml.ScalarNode) -> Any:
        """A number, or the text of one of base 60."""
        if ":" in node.value:
            return node.value
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping with keys as text."""
        self.flatten_mapping(node)
        return {
            _key(self.construct_object(key, deep=True)): self.construct_object(value, deep=deep)
            for key, value in node.value
        }


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _Loader.number)


class _Plain:
    """Sees to it that values are plain JSON, nothing in them shared.

    Raises ValueError for what JSON has no word for, for too much nesting, and when aliases make a small file big.
    """

    def __init__(self, size: int) -> None:
        self._left = size + _FREE_VALUES

    def value(self, value: Any, depth: int = 0) -> Any:
        """`value` as plain JSON."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("its aliases make it many times bigger than it is")
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} deep")
        if isinstance(value, dict):
            return {key: self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value]
        return _scalar(value)


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, str | int | float):
        return str(key)
    raise ValueError(f"a key of kind {type(key).__name__} is not JSON")


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if not isinstance(value, int | float):
        raise ValueError(f"a value of kind {type(value).__name__} is not JSON")
    if isinstance(value, float) or value.bit_length() > 64:
        try:
            value = float(value)
        except OverflowError:
            raise ValueError("a number is too big") from None
        if not isfinite(value):
            raise ValueError(f"{value} is no number in JSON")
    return value


def _items(value: Any) -> list[Any]:
    """The objects of a `List`. Those of a typed one (`PodList`) are of its kind where they do not say so themselves."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(value.get("items"), list):
        return [value]
    told = {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    return [told | item if isinstance(item, dict) else item for item in value["items"]]


def _files(path: str) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    return sorted(str(file) for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
