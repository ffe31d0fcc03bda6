"""Has the checker read the arbiter's lines as they are written, in a thread of its own that nobody waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque

from dra_gate.controller.arbiter_metrics import ArbiterMetrics
from dra_gate.fairness.checker import Checker

MOST_BYTES = 16 << 20  # lines that wait to be read
MOST_PODS = 20_000  # that wait or are granted: what the checker keeps, about 1 kB each
SLOW_LINE = 0.25  # seconds of work on one line: more different requests wait than can be compared
REST = 9.0  # times as long as it has worked: threads share one interpreter, and the loop's work goes first
WORK = 0.002  # seconds, then it rests
BEGIN_SECONDS = 60.0  # between two beginnings in the middle
TOLD = 10  # violations of a rule that are logged after a beginning; all are counted

_log = logging.getLogger(__name__)


class Tail:
    """Counts what the lines violate. The loop calls `begin` and `write`, neither of which waits.

    What can't be read in time, or would take too much memory, is not read: it is counted as unchecked, and nothing is
    read until the next `begin`.
    """

    def __init__(self, metrics: ArbiterMetrics, most_bytes: int = MOST_BYTES) -> None:
        self._metrics = metrics
        self._most_bytes = most_bytes
        self._changed = threading.Condition()  # over all below
        self._lines: deque[bytes | None] = deque()  # None: another line begins, of a checker that knows nothing
        self._bytes = 0
        self._reads = False
        self._begin_at = 0.0  # time.monotonic(): not before this
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="arbiter-checker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, whatever is left to read."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def wants_state(self, pods: int) -> bool:
        """Whether nothing is read, and could be again from a State line with so many Pods that wait or are granted."""
        return not self._reads and not self._lines and pods <= MOST_PODS and time.monotonic() >= self._begin_at

    def begin(self, state: bytes) -> None:
        """Read from here on: `state` says all that is known by now."""
        with self._changed:
            self._begin_at = time.monotonic() + BEGIN_SECONDS
            self._reads = True
            self._lines.append(None)
        self.write(state)

    def end(self) -> None:
        """No line follows; what was written is still read."""
        with self._changed:
            if self._reads:
                self._lines.append(None)
                self._changed.notify()
            self._reads = False

    def write(self, line: bytes) -> None:
        """A line was written."""
        with self._changed:
            if self._reads and self._bytes + len(line) <= self._most_bytes:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify()
                return
            if self._reads:
                _log.warning("arbiter: the checker is behind by %d bytes and leaves lines out", self._bytes)
            self._reads = False
        self._metrics.unchecked(1)

    def _run(self) -> None:
        checker, told, worked = Checker(), Counter[str](), 0.0
        while True:
            with self._changed:
                while not self._lines and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                line = self._lines.popleft()
                self._bytes -= len(line or b"")
            if line is None:
                checker, told = Checker(), Counter()
                continue
            began = time.thread_time()
            try:
                for found in checker.feed(line):
                    self._metrics.violated(found.rule)
                    told[found.rule] += 1
                    if told[found.rule] <= TOLD:
                        _log.error("arbiter: line %d breaks %s: %s", found.sequence, found.rule, found.text)
                trouble = f"{checker.pods} Pods are more than it keeps" if checker.pods > MOST_PODS else ""
            except Exception:  # noqa: BLE001 - a dead thread would tell nothing and look content
                _log.exception("arbiter: the checker failed")
                self._metrics.unchecked(1)
                trouble = "it failed"
            took = time.thread_time() - began
            if took > SLOW_LINE:
                trouble = trouble or f"one line took {took:.2f} s"
            if trouble:
                checker = Checker()
                self._give_up(trouble)
            worked += took
            if worked > WORK:
                time.sleep(worked * REST)
                worked = 0.0

    def _give_up(self, why: str) -> None:
        """Leave out what is there up to the next beginning, or to come."""
        left = 0
        with self._changed:
            while self._lines and self._lines[0] is not None:
                self._bytes -= len(self._lines.popleft() or b"")
                left += 1
            if not self._lines:
                self._reads = False
        self._metrics.unchecked(left)
        _log.warning("arbiter: the checker leaves lines out: %s", why)
