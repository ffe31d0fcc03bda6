"""Keeps judged reviews in files, redacted, for `dra-gate review` and `dra-gate policy diff --reviews`."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from dra_gate.admission.review import Route
from dra_gate.cluster.line_log import LineLog
from dra_gate.server.background import Background

REVIEW_LIMIT = 256 * 1024  # bytes of one redacted review
WAITING_LIMIT = 8 * 1024 * 1024  # bytes of bodies that wait to be written

_log = logging.getLogger(__name__)


class Recorder:
    """Writes reviews as JSON Lines into `folder`, in a thread of its own, at most `limit` bytes in all.

    `take` only appends to a list: a full disk never holds up a verdict. What is too large, comes too fast or can't be
    written is dropped and counted. `redacted` makes the line of a review, None for one that is not kept.
    """

    def __init__(self, folder: Path, limit: int, redacted: Callable[[Route, bytes], bytes | None]) -> None:
        """Raises OSError when the folder can't be made or written to."""
        self._lines = LineLog(folder, limit, "reviews", longest=REVIEW_LIMIT)
        self._refused = 0
        self._redacted = redacted
        self._lock = threading.Lock()
        self._bodies: collections.deque[tuple[Route, bytes]] = collections.deque()
        self._bytes = 0
        self._background = Background("recorder", self._bodies, self._flush, gather=0.2)  # verdicts first

    @property
    def dropped(self) -> int:
        """How many reviews were not kept."""
        return self._refused + self._lines.dropped

    def start(self) -> None:
        """Begin to write; in the process that serves."""
        self._background.start()

    def take(self, route: Route, body: bytes) -> None:
        """Keep the review in `body`, if there is room for it."""
        with self._lock:
            if self._bytes + len(body) > WAITING_LIMIT:
                self._refused += 1
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
            except Exception as error:  # noqa: BLE001 - a dead thread would record nothing any more
                self._refused += 1
                _log.warning("a review was not recorded: %s", type(error).__name__)  # its text may quote the review
            else:
                if line is not None:
                    self._lines.write(line)
