"""For how long labels and the lane switch have said what they say.

A webhook forgives for `EARLIER_SECONDS` what was right before a change, counted from when it saw it. What must not
refuse more than it does has to wait for longer than that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dra_gate.cluster.facts import EARLIER_SECONDS

SETTLE_SECONDS = 2 * EARLIER_SECONDS  # theirs, and as much again for a replica or an API server that hears late


@dataclass(frozen=True, slots=True)
class Held:
    """What something says, for how many seconds it has been seen to, and whether it was seen to say something else."""

    said: str
    seconds: float
    changed: bool

    def settled(self, *, told: bool) -> bool:
        """Nobody goes by what it said before. `told`: it was settled, as this, before this process first saw it."""
        return self.seconds >= SETTLE_SECONDS or (told and not self.changed)


class Settling:
    """Remembers by key what was said and since when. Safe for use by several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[str, float, bool]] = {}

    def note(self, key: str, said: str) -> None:
        """`key` says this now."""
        with self._lock:
            before = self._said.get(key)
            if before is None or before[0] != said:
                self._said[key] = (said, self._clock(), before is not None)

    def forget(self, key: str) -> None:
        """`key` is no more."""
        with self._lock:
            self._said.pop(key, None)

    def held(self) -> dict[str, Held]:
        """What each key says."""
        now = self._clock()
        with self._lock:
            return {key: Held(said, now - since, changed) for key, (said, since, changed) in self._said.items()}
