"""Stands where a Service stands: one stable loopback port in front of replicas on ports of their own.

New connections go to the ready replicas in turn; which are ready is asked of each one's `/readyz` over HTTPS twice a
second, as a kubelet's probe and the EndpointSlice would have it. Like kubelet's, the probe checks no certificate: that
is kube-apiserver's part. Open connections are never touched by a change of readiness. With no replica ready nothing
listens, so a caller sees "connection refused", as with a Service without endpoints. There is no kube-proxy in the kit,
and EndpointSlices refuse loopback addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from controlplane.api import wait_for
from controlplane.processes import free_port

_CHUNK = 1 << 16


class Forwarder:
    """A context manager; `port` and `url` stay the same for its life. Methods may be called from any thread."""

    def __init__(self, replicas: Iterable[int] = (), *, every: float = 0.5) -> None:
        self.port = free_port()
        self._replicas = list(replicas)
        self._ready: tuple[int, ...] = ()
        self._turn = 0
        self._every = every
        self._unchecked = ssl.create_default_context()
        self._unchecked.check_hostname = False
        self._unchecked.verify_mode = ssl.CERT_NONE
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True),
            threading.Thread(target=self._follow, name="forwarder-readiness", daemon=True),
        ]

    def __enter__(self) -> Forwarder:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._threads[1].join()
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    @property
    def url(self) -> str:
        """What the API server is told to call."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ready(self) -> tuple[int, ...]:
        """Ports of the replicas that get new connections."""
        return self._ready

    @property
    def open_connections(self) -> int:
        """Connections that are being carried now."""
        return len(self._connections)

    def add(self, replica: int) -> None:
        """Puts a replica's port behind the forwarder; it counts once it is ready."""
        self._replicas = [*self._replicas, replica]

    def remove(self, replica: int) -> None:
        """Takes a replica out. Its open connections stay."""
        self._replicas = [port for port in self._replicas if port != replica]

    def cut(self) -> None:
        """Breaks every connection that is being carried; new ones are as before."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._connections])

    def wait_ready(self, count: int, timeout: float = 15.0) -> None:
        """Waits until exactly `count` replicas are ready. Raises TimeoutError."""
        wait_for(lambda: len(self._ready) == count, timeout, f"{count} of the replicas {self._replicas} to be ready")

    # -- readiness, in a thread of its own ----------------------------------------------------------------------------

    def _follow(self) -> None:
        with ThreadPoolExecutor(8) as pool:  # a replica that hangs must not hold up the others
            while not self._closing.wait(self._every if self._ready else min(self._every, 0.1)):
                replicas = list(self._replicas)
                answers = list(pool.map(self._is_ready, replicas))
                now = tuple(port for port, ready in zip(replicas, answers, strict=True) if ready)
                if now != self._ready:
                    asyncio.run_coroutine_threadsafe(self._switch(now), self._loop).result(10)

    def _is_ready(self, port: int) -> bool:
        probe = http.client.HTTPSConnection("127.0.0.1", port, timeout=2.0, context=self._unchecked)
        headers = {"Connection": "close"}  # a probe doesn't keep a connection that a draining replica waits for
        try:
            probe.request("GET", "/readyz", headers=headers)
            return probe.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            probe.close()

    # -- connections, in the event loop -------------------------------------------------------------------------------

    async def _switch(self, ready: tuple[int, ...]) -> None:
        if ready and self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=256)
        elif not ready and self._server is not None:
            self._server.close()  # the listening socket only
            self._server = None
        self._ready = ready

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # the forwarder closes; asyncio would print a traceback for each connection
        finally:
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = self._ready
        if not ready:
            writer.transport.abort()
            return
        self._turn += 1
        try:
            there = await asyncio.open_connection("127.0.0.1", ready[self._turn % len(ready)])
        except OSError:  # it went between the last probe and now
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
        except OSError:  # one side broke off: so do we with the other
            writer.transport.abort()
            there[1].transport.abort()
        finally:
            for end in (writer, there[1]):
                end.close()

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._connections, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copies until the source ends, then hands the end on and leaves the other direction open."""
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
