"""A thread that looks at the cluster in rounds: for controllers that ask now and then, and watch nothing."""

from __future__ import annotations

import threading
from abc import abstractmethod

from prometheus_client.registry import Collector

from dra_gate.controller import threads


class Rounds(Collector):
    """Calls `turn` every `interval` seconds, and at once when woken. `turn` must not raise: the thread would end."""

    def __init__(self, name: str, interval: float) -> None:
        self._interval = interval
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def turn(self) -> None:
        """One round."""

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def wake(self) -> None:
        """Look now: we have begun to lead."""
        self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End the loop; waits at most `timeout` seconds for a request under way."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return threads.ended([self._thread], [])

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turn()
            self._wake.wait(self._interval)
            self._wake.clear()
