"""Bad clients. Each attack runs until it is cancelled, at a pace of its own, and counts what it did.

Run in a process of its own (`run`), so that what the attacker computes does not slow the honest caller it is measured
beside.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import multiprocessing
import os
import random
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from server.process import HOST, review

HEAD = b"POST /validate?timeout=3s HTTP/1.1\r\nHost: x\r\n"
JSON = b"Content-Type: application/json\r\n"
LARGE = 8 * 1024 * 1024
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attacker:
    """What attacks share: the port they go for and how often they did what they do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.done: Counter[str] = Counter()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    async def plain(self) -> Streams:
        return await asyncio.open_connection(HOST, self.port)

    async def tls(self) -> Streams:
        return await asyncio.open_connection(HOST, self.port, ssl=self._context)

    async def crowd(self, size: int, one: Callable[[], Awaitable[None]]) -> None:
        """`size` clients at once; one that is thrown out comes back a second later."""

        async def stubborn(number: int) -> None:
            await asyncio.sleep(number * 0.005)
            while True:
                with contextlib.suppress(OSError, EOFError):
                    await one()
                self.done["thrown out"] += 1
                await asyncio.sleep(1)

        await asyncio.gather(*(stubborn(number) for number in range(size)))

    async def paced(self, per_second: float, one: Callable[[], Awaitable[None]]) -> None:
        """`one` so often, each without waiting for the one before; at most 200 under way."""
        under_way: set[asyncio.Task[None]] = set()

        async def single() -> None:
            with contextlib.suppress(OSError, EOFError):
                await asyncio.wait_for(one(), 20)
                self.done["done"] += 1

        began = time.monotonic()
        sent = 0
        while True:
            while sent < (time.monotonic() - began) * per_second and len(under_way) < 200:
                task = asyncio.create_task(single())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                sent += 1
            await asyncio.sleep(0.01)

    async def ask(self, raw: bytes, *, answers: int = 1) -> None:
        """Send `raw` on a new TLS connection and read what comes back."""
        reader, writer = await self.tls()
        try:
            writer.write(raw)
            await writer.drain()
            for _ in range(answers):
                status = int((await reader.readline()).split()[1])
                self.done[f"HTTP {status}"] += 1
                length = 0
                while (line := await reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                await reader.readexactly(length)
        finally:
            writer.close()


def _request(body: bytes, kind: bytes = JSON) -> bytes:
    return HEAD + kind + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def silent_tcp(a: Attacker) -> None:
    """300 TCP connections that never say hello"""
    await a.crowd(300, lambda: _hold(a.plain(), b""))


async def half_hello(a: Attacker) -> None:
    """300 connections with half a TLS hello"""
    await a.crowd(300, lambda: _hold(a.plain(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 20))


async def idle_tls(a: Attacker) -> None:
    """75 idle TLS connections, the spares of three API servers"""
    await a.crowd(75, lambda: _hold(a.tls(), b""))


async def too_many_tls(a: Attacker) -> None:
    """700 idle TLS connections, more than are kept"""
    await a.crowd(700, lambda: _hold(a.tls(), b""))


async def slow_headers(a: Attacker) -> None:
    """200 clients that send headers a byte at a time"""
    await a.crowd(200, lambda: _drip(a.tls(), HEAD + JSON + b"X: " + b"y" * 4000))


async def slow_bodies(a: Attacker) -> None:
    """200 clients that send a body a byte at a time"""
    await a.crowd(200, lambda: _drip(a.tls(), b"{" + b" " * 4000, HEAD + JSON + b"Content-Length: 5000\r\n\r\n"))


async def slow_readers(a: Attacker) -> None:
    """100 clients that ask 2,000 times at once and never read"""
    await a.crowd(100, lambda: _hold(a.tls(), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2000, wait=30))


async def large_bodies(a: Attacker) -> None:
    """bodies of 8 MiB, 2/s"""
    raw = _request(b" " * LARGE)
    await a.paced(2, lambda: a.ask(raw))


async def large_chunked_bodies(a: Attacker) -> None:
    """bodies of 8 MiB whose size is not announced, 2/s"""
    raw = HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % LARGE + b" " * LARGE + b"\r\n0\r\n\r\n"
    await a.paced(2, lambda: a.ask(raw))


async def dense_bodies(a: Attacker) -> None:
    """7 MiB of {},{},…, 2/s"""
    raw = _request(b"[" + b"{}," * 2_400_000 + b"{}]")
    await a.paced(2, lambda: a.ask(raw))


async def gzip_bodies(a: Attacker) -> None:
    """compressed bodies, 50/s"""
    raw = _request(gzip.compress(review()), JSON + b"Content-Encoding: gzip\r\n")
    await a.paced(50, lambda: a.ask(raw))


async def wrong_type(a: Attacker) -> None:
    """bodies of another content type, 50/s"""
    raw = _request(review(), b"Content-Type: application/yaml\r\n")
    await a.paced(50, lambda: a.ask(raw))


async def deep_nesting(a: Attacker) -> None:
    """bodies nested 1,500 and 100,000 deep, 20/s"""
    deep = review().replace(b'"image"', b'"x": %s, "image"' % (b"[" * 1500 + b"]" * 1500))
    deeper = _request(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    await a.paced(20, lambda: a.ask(random.choice((_request(deep), deeper))))


async def pipelining(a: Attacker) -> None:
    """200 requests in one write, 20/s"""
    raw = b"".join(_request(review(f"u-{number}")) for number in range(200))
    await a.paced(20, lambda: a.ask(raw))


async def garbage(a: Attacker) -> None:
    """random bytes, half of them inside TLS, 50/s"""

    async def one() -> None:
        reader, writer = await random.choice((a.plain, a.tls))()
        writer.write(random.randbytes(random.randrange(1, 5000)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 1)
        writer.close()

    await a.paced(50, one)


async def reconnects(a: Attacker) -> None:
    """a new TLS connection for each call, 100/s"""
    raw = _request(review())
    await a.paced(100, lambda: a.ask(raw))


async def vanishing(a: Attacker) -> None:
    """clients that are gone before the answer, 50/s"""

    async def one() -> None:
        _, writer = await a.tls()
        writer.write(_request(review()))
        await writer.drain()
        writer.transport.abort()

    await a.paced(50, one)


Attack = Callable[[Attacker], Awaitable[None]]
ATTACKS: tuple[Attack, ...] = (
    silent_tcp,
    half_hello,
    idle_tls,
    too_many_tls,
    slow_headers,
    slow_bodies,
    slow_readers,
    large_bodies,
    large_chunked_bodies,
    dense_bodies,
    gzip_bodies,
    wrong_type,
    deep_nesting,
    pipelining,
    garbage,
    reconnects,
    vanishing,
)


async def _hold(opening: Awaitable[Streams], first: bytes, *, wait: float | None = None) -> None:
    """Say `first`, then nothing until thrown out, without reading for `wait` seconds."""
    reader, writer = await opening
    writer.write(first)
    try:
        if wait is not None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(wait)
            return
        while await reader.read(65536):
            pass
    finally:
        writer.transport.abort()


async def _drip(opening: Awaitable[Streams], slowly: bytes, first: bytes = b"") -> None:
    reader, writer = await opening
    end = asyncio.create_task(reader.read())
    try:
        writer.write(first)
        for position in range(len(slowly)):
            writer.write(slowly[position : position + 1])
            await asyncio.wait((end,), timeout=0.5)
            if end.done():
                return
    finally:
        end.cancel()
        writer.transport.abort()


def _main(names: list[str], port: int, talk: Connection) -> None:
    os.nice(15)  # the honest caller goes first

    async def attack() -> None:
        attacker = Attacker(port)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # connections that break are what this is about
        known: dict[str, Any] = {one.__name__: one for one in ATTACKS}
        tasks = [asyncio.create_task(known[name](attacker)) for name in names]
        await loop.run_in_executor(None, talk.recv)
        faults = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        talk.send((dict(attacker.done), [repr(fault) for fault in faults]))

    asyncio.run(attack())


@contextlib.contextmanager
def attacking(names: list[str], port: int) -> Iterator[Counter[str]]:
    """The named attacks go on in another process while the block runs; the counts are there after it."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_main, args=(names, port, there), daemon=True)
    process.start()
    done: Counter[str] = Counter()
    try:
        yield done
        here.send("stop")
        assert here.poll(30), "the attacker hangs"
        counts, faults = here.recv()
        assert not faults, faults
        done.update(counts)
    finally:
        process.kill()
        process.join()
