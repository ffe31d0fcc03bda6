"""A client that creates objects through the API server: prepared bytes, kept-alive TLS connections, one thread.

Each connection asks again as soon as it is answered, in the order in which answers come, so that none of them waits
for another in the client.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from bench.load import Result
from controlplane.control_plane import ControlPlane, User

# Metadata of every write, as clusters commonly keep it: the kit's own policy writes whole bodies, at everybody's cost.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
}
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHUNK = 65536


def bench_plane(folder: Path, users: Sequence[User] = ()) -> ControlPlane:
    """A control plane whose audit log costs what it commonly does; `folder` gets the audit policy."""
    audit = folder / "audit.yaml"
    audit.write_text(yaml.safe_dump(_AUDIT))
    return ControlPlane(users=users, api_server_flags=[f"--audit-policy-file={audit}"])


class Creator:
    """Sends as `user`. Requests are made once with `request` and may be sent any number of times."""

    def __init__(self, plane: ControlPlane, user: User) -> None:
        parts = urlsplit(plane.url)
        self._address = (str(parts.hostname), int(parts.port or 443))
        self._context = ssl.create_default_context(cafile=str(plane.ca_file))
        self._token = yaml.safe_load(Path(plane.kubeconfig_for(user)).read_text())["users"][0]["user"]["token"]

    def request(self, path: str, obj: dict[str, Any], *, patch: bool = False) -> bytes:
        """A create of `obj` in the collection at `path`, or a merge patch of what is there; bytes for the wire."""
        body = json.dumps(obj, separators=(",", ":")).encode()
        method, kind = ("PATCH", "application/merge-patch+json") if patch else ("POST", "application/json")
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address[0]}\r\nUser-Agent: bench\r\n"
            f"Accept: application/json\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        )
        return head.encode() + b"\r\n" + body

    def send(self, requests: Iterator[bytes], in_flight: int, seconds: float = float("inf")) -> Result:
        """Sends from `requests` until they or the seconds are over, and waits for every answer.

        Answers other than 200 and 201 count as errors; the first one is printed.
        """
        result = Result()
        with selectors.DefaultSelector() as selector:
            everyone = [_Connection(self._address, self._context) for _ in range(in_flight)]
            for one in everyone:
                selector.register(one.stream, selectors.EVENT_READ, one)
            cpu = time.process_time()
            start = now = time.perf_counter()
            for one in everyone:
                result.due += one.ask(next(requests, None), now)
            while len(result.latencies) < result.due:
                for key, _ in selector.select(60.0):
                    one = key.data
                    status = one.answered()
                    if status:
                        now = time.perf_counter()
                        result.latencies.append(now - one.began)
                        if status not in (200, 201):
                            if not result.errors:
                                print(f"refused: {one.text()}")
                            result.errors += 1
                        if now - start < seconds:
                            result.due += one.ask(next(requests, None), now)
            result.seconds = now - start
            result.generator_cpu = time.process_time() - cpu
            for one in everyone:
                one.stream.close()
        return result


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

    def ask(self, request: bytes | None, began: float) -> bool:
        """Whether there was something to ask."""
        if request is None:
            return False
        self.began = began
        self._received = b""
        self._left = request
        self._push()
        return True

    def text(self) -> str:
        return self._received.partition(b"\r\n\r\n")[2].decode(errors="replace")[:1000]

    def answered(self) -> int:
        """The status of the answer once it is complete, else 0. Call when there is something to read."""
        self._push()
        while True:
            try:
                part = self.stream.recv(_CHUNK)
            except ssl.SSLWantReadError:
                return 0
            if not part:
                raise ConnectionError("the API server closed a connection")
            self._received += part
            head = self._received.find(b"\r\n\r\n")
            if head < 0:
                continue
            length = _LENGTH.search(self._received, 0, head)
            if length is not None:
                complete = len(self._received) >= head + 4 + int(length[1])
            else:  # chunked; JSON has no line end of its own in front of a last chunk
                complete = self._received.endswith(b"\r\n0\r\n\r\n")
            if complete:
                return int(self._received[9:12])

    def _push(self) -> None:
        while self._left:
            try:
                self._left = self._left[self.stream.send(self._left) :]
            except ssl.SSLWantWriteError:
                time.sleep(0)  # a request fits the socket's buffer: this is rare
            except ssl.SSLWantReadError:
                return
