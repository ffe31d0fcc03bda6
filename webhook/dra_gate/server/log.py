"""JSON log lines on stderr: a formatter for `logging`, and a writer for decision lines that never blocks admission."""

from __future__ import annotations

import collections
import json
import logging
import os
import time
from typing import Any

from dra_gate.server.background import Background

_ATOMIC = 4096  # a write of at most PIPE_BUF bytes to a pipe is not torn by another writer (pipe(7))


def timestamp(seconds: float) -> str:
    """`seconds` since the epoch as RFC 3339 in UTC, to the millisecond."""
    whole = int(seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((seconds - whole) * 1000):03d}Z"


class JsonFormatter(logging.Formatter):
    """One JSON object a record: `time`, `level`, `logger`, `msg`, and `error` with the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def logging_config() -> dict[str, Any]:
    """A `logging.config.dictConfig` that sends everything, gunicorn's lines too, through `JsonFormatter` to stderr."""
    to_stderr = {"level": "INFO", "handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "root": {"level": "INFO", "handlers": ["stderr"]},
        "loggers": {"gunicorn.error": to_stderr},
    }


class LineWriter:
    """Writes lines to a file descriptor from a thread of its own.

    `write` only appends to a list: a reader of our stderr that stops reading can't hold up a verdict. At most
    `capacity` lines wait; what comes after is dropped and counted in `dropped`.
    """

    def __init__(self, descriptor: int = 2, capacity: int = 10_000) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._capacity = capacity
        self._lines: collections.deque[bytes] = collections.deque()
        self._background = Background("decision-log", self._lines, self._flush, gather=0.05)

    def start(self) -> None:
        """Begin to write, in the process that serves."""
        self._background.start()

    def write(self, line: bytes) -> None:
        """Queue one line; it must end with a newline."""
        if len(self._lines) >= self._capacity:
            self.dropped += 1
            return
        self._lines.append(line)
        self._background.wake()

    def close(self, timeout: float = 2.0) -> None:
        """Write what waits, for at most `timeout` seconds, and stop."""
        self._background.close(timeout)

    def _flush(self) -> None:
        batch = b""
        while self._lines:
            line = self._lines.popleft()
            if batch and len(batch) + len(line) > _ATOMIC:
                self._put(batch)
                batch = b""
            batch += line
        if batch:
            self._put(batch)

    def _put(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # nobody reads any more: verdicts go on without a log
            self.dropped += data.count(b"\n")
