"""The arbiter's log as files: what of them can be read, in stretches that can be replayed, and what is to be said."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dra_gate.cli.failure import Failure
from dra_gate.fairness.events import AnyLine, State
from dra_gate.fairness.log import loads


@dataclass(slots=True)
class Stretch:
    """Lines without a gap, a State line first. `notes` are what was met before it and is no fault, `faults` what is."""

    lines: list[bytes] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # file:line of each
    first: int = 0  # sequence
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Sequence of the last line."""
        return self.first + len(self.lines) - 1

    def place(self, sequence: int) -> str:
        """Where the line of that sequence stands."""
        return self.places[sequence - self.first]


def is_arbiter_log(content: bytes) -> bool:
    """Told by its first lines, of which some may be damaged: each of the arbiter's log says its kind."""
    for line in content.split(b"\n", 10)[:10]:
        with contextlib.suppress(msgspec.MsgspecError):
            loads(line)
            return True
    return False


def contents(path: str) -> list[tuple[str, bytes]]:
    """Name and content of a file, of standard input (-), or of the files *.jsonl of a folder, the oldest first.

    Ends the command with exit code 2 where there is nothing to read.
    """
    try:
        if path == "-":
            return [("-", sys.stdin.buffer.read())]
        folder = Path(path)
        files = sorted(folder.glob("*.jsonl"), key=_number) if folder.is_dir() else [folder]
        if not files:
            raise Failure(f"{path}: no file *.jsonl in it")
        return [(str(file), file.read_bytes()) for file in files]
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from None


def _number(file: Path) -> tuple[str, int]:
    found = re.fullmatch(r"(.*?)(\d+)", file.stem)
    return (file.stem, 0) if found is None else (found[1], int(found[2]))


def stretches(files: Iterable[tuple[str, bytes]]) -> list[Stretch]:
    """What can be replayed, in order. A stretch begins with each term of leadership, and behind a fault at the next
    State line. The last may have no lines, and only something to say.
    """
    found = [Stretch()]
    for name, content in files:
        *whole, rest = content.split(b"\n")
        for number, raw in enumerate(whole, 1):
            place = f"{name}:{number}"
            try:
                line = loads(raw)
            except msgspec.MsgspecError as error:
                _new(found).faults.append(f"{place}: no line of an arbiter's log: {error}")
                continue
            before = found[-1]
            if _begins(line) and before.lines:
                _new(found).notes.append(f"{place}: a controller begins to lead")
            elif before.lines and line.sequence != before.last + 1:
                gap = f"line {line.sequence} follows line {before.last}: {_missing(line, before.last)}"
                _new(found).faults.append(f"{place}: {gap}")
            current = found[-1]
            if not current.lines and not isinstance(line, State):
                if not current.faults:
                    current.faults.append(f"{place}: it does not begin with a state line")
                continue  # nobody knows what was known there
            if not current.lines:
                current.first = line.sequence
            current.lines.append(raw)
            current.places.append(place)
        if rest:
            _new(found).notes.append(f"{name}:{len(whole) + 1}: half a line: the controller was stopped as it wrote it")
    return found


def _new(found: list[Stretch]) -> Stretch:
    if found[-1].lines:
        found.append(Stretch())
    return found[-1]


def _missing(line: AnyLine, last: int) -> str:
    count = line.sequence - last - 1
    return f"{count} lines are missing" if count > 0 else "lines are doubled or out of order"


def _begins(line: AnyLine) -> bool:
    """A State line of an arbiter that knows nothing yet."""
    return isinstance(line, State) and line.config is None and not (line.waiting or line.open or line.used or line.tags)
