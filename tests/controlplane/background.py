"""Something that is done again and again beside what a test or a proof does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from controlplane.api import ApiError


class Background:
    """Calls `step` every so many seconds in a thread while the block is open.

    What the API server refuses, or isn't there to answer, is tried again with the next step. Anything else ends the
    thread, is told at once, and is raised where the block ends, unless an exception ends that.
    """

    def __init__(self, step: Callable[[], object], every: float) -> None:
        self._step, self._every = step, every
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every):
                with contextlib.suppress(ApiError):
                    self._step()
        except BaseException as problem:
            self._failure = problem
            raise
