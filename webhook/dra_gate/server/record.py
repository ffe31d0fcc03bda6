"""Keeps judged reviews in files, redacted, for `dra-gate review` and `dra-gate policy diff --reviews`."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from dra_gate.admission.review import Route
from dra_gate.server.background import Background

REVIEW_LIMIT = 256 * 1024  # bytes of one redacted review
WAITING_LIMIT = 8 * 1024 * 1024  # bytes of bodies that wait to be written
FILES = 4  # the limit in bytes is shared by so many files, of which the oldest goes first
_NAME = "reviews-%d.jsonl"

_log = logging.getLogger(__name__)


class Recorder:
    """Writes reviews as JSON Lines into `folder`, in a thread of its own, at most `limit` bytes in all.

    `take` only appends to a list: a full disk never holds up a verdict. What is too large, comes too fast or can't be
    written is dropped and counted in `dropped`. `redacted` makes the line of a review,
    None for one that is not kept.
    """

    def __init__(self, folder: Path, limit: int, redacted: Callable[[Route, bytes], bytes | None]) -> None:
        """Raises OSError when the folder can't be made or written to."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(folder))
        self.dropped = 0
        self._folder = folder
        self._share = max(limit // FILES, REVIEW_LIMIT)
        self._redacted = redacted
        self._number = _newest(folder)
        self._size = _mended(folder / (_NAME % self._number))
        self._lock = threading.Lock()
        self._bodies: collections.deque[tuple[Route, bytes]] = collections.deque()
        self._bytes = 0
        self._background = Background("recorder", self._bodies, self._flush, gather=0.2)  # verdicts first

    def start(self) -> None:
        """Begin to write; in the process that serves."""
        self._background.start()

    def take(self, route: Route, body: bytes) -> None:
        """Keep the review in `body`, if there is room for it."""
        with self._lock:
            if self._bytes + len(body) > WAITING_LIMIT:
                self.dropped += 1
                return
            self._bytes += len(body)
            self._bodies.append((route, body))
        self._background.wake()

    def close(self, timeout: float = 2.0) -> None:
        """Write what waits, for at most `timeout` seconds, and stop."""
        self._background.close(timeout)

    def _flush(self) -> None:
        while self._bodies:
            with self._lock:
                route, body = self._bodies.popleft()
                self._bytes -= len(body)
            try:
                line = self._redacted(route, body)
                if line is not None and len(line) <= REVIEW_LIMIT:
                    self._write(line + b"\n")
                elif line is not None:
                    self.dropped += 1
            except Exception as error:  # noqa: BLE001 - a dead thread would record nothing any more
                self.dropped += 1
                what = error if isinstance(error, OSError) else type(error).__name__  # the others may quote the review
                _log.warning("a review was not recorded: %s", what)

    def _write(self, line: bytes) -> None:
        if self._size and self._size + len(line) > self._share:
            self._number += 1
            self._size = 0
            (self._folder / (_NAME % (self._number - FILES))).unlink(missing_ok=True)
        file = self._folder / (_NAME % self._number)
        try:
            with file.open("ab") as opened:
                opened.write(line)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(file, self._size)  # the next line must not stand behind half of this one
            raise
        self._size += len(line)


def _mended(file: Path) -> int:
    """Takes off what a crash has left of a line, which would spoil the next one; the size of the file, 0 for none."""
    if not file.is_file():
        return 0
    with file.open("r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        start = opened.seek(max(0, size - REVIEW_LIMIT - 1))
        whole = start + opened.read().rfind(b"\n") + 1
        if whole < size:
            opened.truncate(whole)
    return whole


def _newest(folder: Path) -> int:
    """The number of the newest file, 1 where there is none."""
    numbers = (file.stem.rpartition("-")[2] for file in folder.glob("reviews-*.jsonl"))
    return max((int(number) for number in numbers if number.isdecimal()), default=1)
