"""Pods created at a steady rate through the API server, each looked at: was it stored, and with the right stamp?"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from controlplane.api import Api, ApiError, Object
from e2e import scene

_WORKERS = 24


@dataclass
class Outcome:
    """What became of the creates. Latencies in seconds."""

    created: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ordered = sorted(self.latencies) or [0.0]
        p50, p99 = ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000
        return (
            f"{self.created} creates, {len(self.failed)} failed, {len(self.wrong)} without the right stamp; "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )


class Load:
    """Creates one-device Pods in `namespace`, `rate` a second, for as long as the context is open.

    `right` says what is wrong with a stored Pod's annotations (empty: nothing). A Pod is deleted once it was looked at.
    """

    def __init__(self, api: Api, namespace: str, rate: float, right: Callable[[Object], str]) -> None:
        self.outcome = Outcome()
        self._api = api
        self._namespace = namespace
        self._rate = rate
        self._right = right
        self._numbers = itertools.count()
        self._due: queue.Queue[float | None] = queue.Queue()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_WORKERS)]
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Load:
        for thread in (*self._threads, self._clock):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._clock.join()
        for _ in self._threads:
            self._due.put(None)
        for thread in self._threads:
            thread.join()

    def _tick(self) -> None:
        """An open loop: what is late does not hold back what is due."""
        began = time.monotonic()
        for number in itertools.count():
            due = began + number / self._rate
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self._due.put(due)

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            name = f"load-{next(self._numbers)}"
            try:
                stored = self._api.create(scene.pod(name), self._namespace)
            except ApiError as problem:
                with self._lock:
                    self.outcome.created += 1
                    self.outcome.failed.append(f"{time.strftime('%H:%M:%S')} {problem}")
                continue
            seconds = time.monotonic() - due
            wrong = self._look(stored)
            self._api.delete("pods", name, self._namespace, grace=0, missing_ok=True)
            with self._lock:
                self.outcome.created += 1
                self.outcome.latencies.append(seconds)
                if wrong:
                    self.outcome.wrong.append(f"{name}: {wrong}")

    def _look(self, stored: Object) -> str:
        if "nvidia.com/gpu" in json.dumps([c["resources"] for c in stored["spec"]["containers"]]):
            return "a raw request was stored"
        return self._right(stored["metadata"].get("annotations", {}))
