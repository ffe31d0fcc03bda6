"""The honest caller: like kube-apiserver, a few kept connections, calls at a steady pace, and a clock."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import threading
import time
from dataclasses import dataclass

from server.process import Served, ask, review

CALLERS = 4


@dataclass(frozen=True)
class Calls:
    """Latencies in milliseconds, sorted, and what went wrong."""

    milliseconds: list[float]
    wrong: list[str]

    @property
    def median(self) -> float:
        """Half were faster."""
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        """99 in 100 were faster."""
        return self.milliseconds[int(len(self.milliseconds) * 0.99)]


def call(one: Served, seconds: float, per_second: float = 100) -> Calls:
    """Call both routes for `seconds`; latency counts from when a call was due, so that a stall is not left out.

    A kept connection that the server ends between two calls is opened again, as Go's client does.
    """
    milliseconds: list[float] = []
    wrong: list[str] = []
    body = review()
    began = time.monotonic()

    def caller(number: int) -> None:
        with contextlib.closing(one.connection()) as connection:
            for turn in range(int(seconds * per_second / CALLERS)):
                due = began + (turn * CALLERS + number) / per_second
                time.sleep(max(0.0, due - time.monotonic()))
                route = "/mutate?timeout=10s" if turn % 2 else "/validate?timeout=10s"
                try:
                    try:
                        status, answer, _ = ask(connection, "POST", route, body)
                    except (http.client.RemoteDisconnected, BrokenPipeError):
                        connection.close()
                        status, answer, _ = ask(connection, "POST", route, body)
                    if status != 200 or json.loads(answer)["response"]["uid"] != "u-1":
                        wrong.append(f"{status} {answer[:100]!r}")
                except (OSError, http.client.HTTPException) as error:
                    wrong.append(repr(error))
                    connection.close()
                milliseconds.append((time.monotonic() - due) * 1000)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Calls(sorted(milliseconds), wrong)
