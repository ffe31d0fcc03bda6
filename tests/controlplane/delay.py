"""A TCP proxy that lets every answer wait, and breaks connections when told: the world as a process sees it whose
watches are late, or end."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from controlplane.processes import free_port


class Delay:
    """Carries connections to a loopback port; what comes back is `seconds` old. A context manager; `port` is its own.

    What goes out is not held back, and order is kept, so TLS and HTTP pass as they are.
    """

    def __init__(self, target: int, seconds: float) -> None:
        self.port = free_port()
        self._target = target
        self._seconds = seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delay", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Delay:
        self._thread.start()
        served = asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._server = asyncio.run_coroutine_threadsafe(served, self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Breaks every connection that is open; new ones are carried as before."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    async def _shut(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(_pump(reader, there[1]), self._late(there[0], writer))
            finally:
                there[1].close()
        except (ConnectionError, asyncio.CancelledError):
            pass  # one end went, or the test is over
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _late(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Reading and writing are two tasks: what arrives while something waits must not wait twice."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            while data := await source.read(65536):
                queue.put_nowait((self._loop.time() + self._seconds, data))
            queue.put_nowait((0.0, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                due, data = await queue.get()
                if not data:
                    break
                await asyncio.sleep(due - self._loop.time())
                target.write(data)
                await target.drain()
        finally:
            reading.cancel()
            target.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()
