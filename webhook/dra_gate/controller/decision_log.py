"""Keeps decision records in files: JSON Lines, bounded, the oldest file goes first."""

from __future__ import annotations

import os
import threading
from pathlib import Path

FILES = 4  # the limit in bytes is shared by so many files
LINE_LIMIT = 64 * 1024  # bytes of one record
_NAME = "decisions-%d.jsonl"


class DecisionLog:
    """Writes lines into `folder`, at most `limit` bytes in all. Safe for several threads.

    A line that is too long or can't be written is dropped and counted in `dropped`.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """Raises OSError when the folder can't be made or written to."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(folder))
        self.dropped = 0
        self._folder = folder
        self._share = max(limit // FILES, LINE_LIMIT)
        self._lock = threading.Lock()
        numbers = (file.stem.rpartition("-")[2] for file in folder.glob("decisions-*.jsonl"))
        self._number = max((int(number) for number in numbers if number.isdecimal()), default=1)
        newest = folder / (_NAME % self._number)
        self._size = newest.stat().st_size if newest.exists() else 0

    def write(self, line: bytes) -> None:
        """Append one line, given without its end."""
        with self._lock:
            try:
                if len(line) >= LINE_LIMIT:
                    self.dropped += 1
                    return
                if self._size and self._size + len(line) >= self._share:
                    self._number += 1
                    self._size = 0
                    for old in self._folder.glob("decisions-*.jsonl"):
                        number = old.stem.rpartition("-")[2]
                        if number.isdecimal() and int(number) <= self._number - FILES:
                            old.unlink(missing_ok=True)
                with (self._folder / (_NAME % self._number)).open("ab") as file:
                    file.write(line + b"\n")
                self._size += len(line) + 1
            except OSError:
                self.dropped += 1
