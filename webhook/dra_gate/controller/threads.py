"""The end of the threads of a loop, wanted or not: its own and those of its reflectors."""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Thread

from dra_gate.cluster.reflector import Reflector


def join(threads: Iterable[Thread], reflectors: Iterable[Reflector], timeout: float) -> None:
    """Ends the reflectors and waits for the threads, which were told to end: for about `timeout` seconds in all."""
    ends = time.monotonic() + timeout
    for reflector in reflectors:
        reflector.stop(max(0.0, min(1.0, ends - time.monotonic())))
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, ends - time.monotonic()))


def ended(threads: Iterable[Thread], reflectors: Iterable[Reflector]) -> list[str]:
    """Which of them have ended, for `problems` of a loop that was started and not stopped."""
    dead = [thread.name for thread in threads if not thread.is_alive()]
    dead += [f"reflector {reflector.name}" for reflector in reflectors if not reflector.alive()]
    return [f"thread {name} has ended" for name in dead]
