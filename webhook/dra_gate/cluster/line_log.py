"""Keeps lines in files: JSON Lines, bounded, the oldest file goes first."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path

FILES = 4  # the limit in bytes is shared by so many files
LINE_LIMIT = 64 * 1024  # bytes of one line, where the files turn by themselves
_BLOCK = 64 * 1024  # bytes

_log = logging.getLogger(__name__)


class LineLog:
    """Writes lines into files `<name>-<number>.jsonl` of `folder`, at most `limit` bytes in all. Safe for several
    threads.

    A line that is too long (`longest` bytes and more) or can't be written is dropped and counted in `dropped`; half of
    one, left by a crash or a full disk, is taken off before the next. `by_hand`: a new file is begun by `turn` alone,
    for who begins each with a line of its own, and a line may be of any length.
    """

    def __init__(
        self, folder: Path, limit: int, name: str = "decisions", *, longest: int = LINE_LIMIT, by_hand: bool = False
    ) -> None:
        """Raises OSError when the folder can't be made or written to."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(folder))
        self.dropped = 0
        self._folder = folder
        self._name = name
        self._by_hand = by_hand
        self._longest = longest
        self._share = max(limit // FILES, longest)
        self._lock = threading.Lock()
        self._failing = False
        self._number = max(self._numbers(), default=1)
        self._size = _cut(self._file())

    def full(self) -> bool:
        """Whether the next line belongs into a new file."""
        return self._size >= self._share

    def turn(self) -> None:
        """Begin a new file, if there is anything in this one, and remove the oldest."""
        with self._lock:
            self._turn()

    def last(self) -> bytes:
        """The last whole line that is kept, for a crash may have left half of one; empty if there is none."""
        with self._lock:
            for number in sorted(self._numbers(), reverse=True):
                try:
                    whole = (self._folder / f"{self._name}-{number}.jsonl").read_bytes().rpartition(b"\n")[0]
                except OSError:
                    continue
                if whole:
                    return whole.rpartition(b"\n")[2]
        return b""

    def write(self, line: bytes) -> None:
        """Append one line, given without its end."""
        with self._lock:
            if not self._by_hand and len(line) >= self._longest:
                self.dropped += 1
                return
            try:
                if not self._by_hand and self._size + len(line) >= self._share:
                    self._turn()
                with self._file().open("ab") as file:
                    file.write(line + b"\n")
            except OSError as error:
                self.dropped += 1
                with contextlib.suppress(OSError):
                    os.truncate(self._file(), self._size)
                if not self._failing:
                    _log.warning("%s: a line is not kept: %s", self._file(), error)
                self._failing = True
            else:
                self._size += len(line) + 1
                self._failing = False

    def _turn(self) -> None:
        if self._size:
            self._number += 1
            self._size = 0
            for number in self._numbers():
                if number <= self._number - FILES:
                    (self._folder / f"{self._name}-{number}.jsonl").unlink(missing_ok=True)

    def _file(self) -> Path:
        return self._folder / f"{self._name}-{self._number}.jsonl"

    def _numbers(self) -> list[int]:
        numbers = (file.stem.rpartition("-")[2] for file in self._folder.glob(f"{self._name}-*.jsonl"))
        return [int(number) for number in numbers if number.isdecimal()]


def _cut(file: Path) -> int:
    """Takes half a line off the file's end; the size of what is left, 0 where there is no file."""
    if not file.is_file():
        return 0
    with file.open("r+b") as opened:
        end = size = opened.seek(0, os.SEEK_END)
        while end:
            begin = opened.seek(max(0, end - _BLOCK))
            found = opened.read(end - begin).rfind(b"\n")
            end = begin if found < 0 else begin + found + 1
            if found >= 0:
                break
        if end < size:
            opened.truncate(end)
    return end
