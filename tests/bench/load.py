"""The load generator: prepared bytes over kept-alive TLS connections, one thread, no HTTP library in the way.

Closed loop: each of c connections asks again as soon as it is answered. Open loop: requests are due at fixed times,
whatever the server does, and a latency counts from the time at which the request was due, so that a server that falls
behind can't hide it.
"""

from __future__ import annotations

import re
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

from bench.workload import Question

CONNECTIONS = 25  # kube-apiserver keeps at most so many idle ones to a webhook (client-go transport cache)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHUNK = 65536


@dataclass(slots=True)
class Result:
    """Latencies in seconds, in order of completion; `seconds` is how long it took, `errors` answers other than 200."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    due: int = 0  # requests that should have been made
    generator_cpu: float = 0.0  # seconds of CPU that the generator itself used

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """The latency, in milliseconds, that `share` of the answers stayed at or below."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else float("nan")


def prepare(questions: list[Question], host: str) -> list[bytes]:
    """The requests as kube-apiserver writes them."""
    return [
        (
            f"POST /{question.route}?timeout=2s HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kube-apiserver-admission\r\n"
            f"Content-Length: {len(question.body)}\r\nAccept: application/json, */*\r\n"
            "Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
        ).encode()
        + question.body
        for question in questions
    ]


class _Connection:
    """One TLS connection with at most one request under way."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        plain = socket.create_connection(address, 10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = context.wrap_socket(plain, server_hostname=address[0])
        self.stream.setblocking(False)
        self.began = 0.0
        self._left = b""
        self._received = b""

    def fileno(self) -> int:
        return self.stream.fileno()

    def ask(self, request: bytes, began: float) -> None:
        self.began = began
        self._received = b""
        self._left = request
        self._push()

    def _push(self) -> None:
        while self._left:
            try:
                self._left = self._left[self.stream.send(self._left) :]
            except ssl.SSLWantWriteError:
                time.sleep(0)  # a request fits the socket's buffer: this is rare
            except ssl.SSLWantReadError:
                return

    def answered(self) -> int:
        """The status of the answer once it is complete, else 0. Call when there is something to read."""
        self._push()
        while True:
            try:
                part = self.stream.recv(_CHUNK)
            except ssl.SSLWantReadError:
                return 0
            if not part:
                raise ConnectionError("the server closed a connection")
            self._received += part
            head = self._received.find(b"\r\n\r\n")
            if head < 0:
                continue
            length = _LENGTH.search(self._received, 0, head)
            if length is None:
                raise ConnectionError("an answer without Content-Length")
            if len(self._received) >= head + 4 + int(length[1]):
                return int(self._received[9:12])


def closed_loop(
    address: tuple[str, int], context: ssl.SSLContext, requests: list[bytes], connections: int, seconds: float
) -> Result:
    """`connections` that each ask one request after the other for `seconds`."""
    stream = cycle(requests)
    result = Result()
    with selectors.DefaultSelector() as selector:
        everyone = [_Connection(address, context) for _ in range(connections)]
        for connection in everyone:
            selector.register(connection.stream, selectors.EVENT_READ, connection)
        cpu = time.process_time()
        start = now = time.perf_counter()
        for connection in everyone:
            connection.ask(next(stream), time.perf_counter())
        while now - start < seconds:
            for key, _ in selector.select(1.0):
                connection = key.data
                status = connection.answered()
                if status:
                    now = time.perf_counter()
                    result.latencies.append(now - connection.began)
                    result.errors += status != 200
                    connection.ask(next(stream), now)
            now = time.perf_counter()
        result.seconds = now - start
        result.generator_cpu = time.process_time() - cpu
        result.due = len(result.latencies)
        for connection in everyone:
            connection.stream.close()
    return result


def open_loop(
    address: tuple[str, int], context: ssl.SSLContext, requests: list[bytes], rate: float, seconds: float
) -> Result:
    """`rate` requests a second for `seconds`, then up to two seconds for what is still open."""
    stream = cycle(requests)
    result = Result()
    with selectors.SelectSelector() as selector:  # epoll rounds time-outs up to a millisecond
        idle: list[_Connection] = []
        for _ in range(CONNECTIONS):
            connection = _Connection(address, context)
            selector.register(connection.stream, selectors.EVENT_READ, connection)
            idle.append(connection)
        waiting: deque[float] = deque()
        cpu = time.process_time()
        start = time.perf_counter()
        times = _times(start, rate, seconds)
        due = next(times, None)
        while True:
            now = time.perf_counter()
            while due is not None and now >= due:
                waiting.append(due)
                result.due += 1
                due = next(times, None)
            while waiting and idle:
                idle.pop().ask(next(stream), waiting.popleft())
            if due is None and (len(idle) == CONNECTIONS or now > start + seconds + 2):
                break
            pause = 0.1 if due is None else max(0.0, due - time.perf_counter())
            for key, _ in selector.select(pause):
                connection = key.data
                status = connection.answered()
                if status:
                    result.latencies.append(time.perf_counter() - connection.began)
                    result.errors += status != 200
                    idle.append(connection)
        result.seconds = time.perf_counter() - start
        result.generator_cpu = time.process_time() - cpu
        for key in list(selector.get_map().values()):
            key.data.stream.close()
    return result


def _times(start: float, rate: float, seconds: float) -> Iterator[float]:
    for number in range(int(rate * seconds)):
        yield start + number / rate
