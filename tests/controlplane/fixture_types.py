"""Types of the factory fixtures in `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from controlplane.fleet import Fleet

InstallFleet = Callable[[str | Fleet], Fleet]


class MakeNamespace(Protocol):
    """Makes a namespace for the rest of the test and returns its name."""

    def __call__(self, *, name: str | None = None, labels: Mapping[str, str] | None = None) -> str: ...
