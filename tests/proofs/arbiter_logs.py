"""The logs that controllers of the kit's gates wrote, read by the checker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_gate.fairness.checker import Violation, check


def lines_of(folder: Path) -> Iterator[bytes]:
    """The lines of one controller's files, oldest first. What a kill left half written is left out."""
    for path in sorted(folder.glob("*.jsonl"), key=lambda one: int(one.stem.rpartition("-")[2])):
        yield from (line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))


def violations(folder: Path) -> list[Violation]:
    """What the checker finds in the logs below `folder`, one folder a controller."""
    return [found for one in sorted(folder.iterdir()) for found in check(lines_of(one))]
