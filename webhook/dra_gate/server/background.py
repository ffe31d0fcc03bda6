"""A thread that does later what verdicts must not wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sized


class Background:
    """Calls `flush`, which empties `waiting`, from a thread of its own, `gather` seconds after something came.

    Whoever puts something there says so by `wake`, which costs next to nothing.
    """

    def __init__(self, name: str, waiting: Sized, flush: Callable[[], None], *, gather: float) -> None:
        self._waiting = waiting
        self._flush = flush
        self._gather = gather
        self._awake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Call it in the process that serves: threads don't survive a fork."""
        self._thread.start()

    def wake(self) -> None:
        """Something waits."""
        if not self._awake.is_set():
            self._awake.set()

    def close(self, timeout: float) -> None:
        """Flush what waits, for at most `timeout` seconds, and stop."""
        self._closed = True
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._awake.wait()
            if not self._closed:
                time.sleep(self._gather)  # waking for each would make this thread fight for the interpreter lock
            self._awake.clear()
            self._flush()
            if self._closed and not self._waiting:
                return
