"""A cluster kept in files: ordinary manifests, read once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SUFFIXES = (".yaml", ".yml", ".json")


class InputError(Exception):
    """A file cannot be read or is not YAML or JSON. The message names the file, and the line where there is one."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: where it came from (`source`, `index` from 0) and what it says."""

    source: str
    index: int
    value: Any


def read_documents(path: str) -> list[Document]:
    """The documents of one file, empty ones left out; `-` is standard input. Raises InputError."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        # libyaml resolves plain scalars as YAML 1.1 does; so does kubectl.
        loaded = list(yaml.load_all(content, Loader=yaml.CSafeLoader))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML or JSON: {error}") from None
    return [Document(path, index, value) for index, value in enumerate(loaded) if value is not None]


def read_manifests(paths: Iterable[str]) -> Iterator[Document]:
    """The documents of files and folders (every YAML and JSON file below, by name), `List` objects taken apart.

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


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict) and str(value.get("kind", "")).endswith("List") and isinstance(value.get("items"), list):
        return list(value["items"])
    return [value]


def _files(path: str) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    return sorted(str(file) for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
