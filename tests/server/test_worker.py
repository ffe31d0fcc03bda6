"""Connections by themselves: an asyncio server of them in this process, with limits small enough to be reached."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
import sys
import time
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

from dra_gate.server import worker
from dra_gate.server.tls import ServingCertificate
from dra_gate.server.worker import Connection, Handshake
from server.process import HOST, issue

ASK = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    issue(folder)
    return folder


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ours = sslproto.SSLProtocol

    def make(
        loop: Any, protocol: Any, context: Any, waiter: Any, server_side: bool = False, *rest: Any, **more: Any
    ) -> Any:
        """The clients of these tests live in the same process and count nowhere."""
        return (Handshake if server_side else ours)(loop, protocol, context, waiter, server_side, *rest, **more)

    monkeypatch.setattr(sslproto, "SSLProtocol", make)
    for name, value in {
        "KEEP_ALIVE": 1.5,
        "HEAD_SECONDS": 0.5,
        "BODY_SECONDS": 0.5,
        "CONNECTIONS": 4,
        "HANDSHAKES": 3,
    }.items():
        monkeypatch.setattr(worker, name, value)
    yield
    Handshake.under_way.clear()


class Server:
    """What a gunicorn worker would be to its connections, and a client."""

    def __init__(self, certs: Path) -> None:
        self.worker = SimpleNamespace(
            cfg=Config(),
            log=logging.getLogger("worker"),
            loop=asyncio.get_running_loop(),
            nr_conns=0,
            nr=0,
            alive=True,
            max_requests=sys.maxsize,
            state={},
            asgi=self.answer,
            draining=False,
            turned_away=0,
            unasked={},
            asked={},
        )
        self.worker.cfg.set("keepalive", 120)
        self.worker.cfg.set("http_parser", "python")
        self.worker.log.access_log_enabled = False
        self.scopes: list[Any] = []
        self.messages: list[Any] = []
        self.certificate = ServingCertificate(certs)
        self.port = 0
        self._clients: list[asyncio.StreamWriter] = []
        self._trusting = ssl.create_default_context(cafile=str(certs / "ca.crt"))

    async def answer(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        self.scopes.append(scope)
        self.messages.append(await receive())
        body = b"ok" if scope["path"] == "/mutate" else b"x" * 40_000_000
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def open(self, **tls: Any) -> Streams:
        streams = await asyncio.open_connection(HOST, self.port, **tls)
        self._clients.append(streams[1])  # a writer that is forgotten closes its connection
        return streams

    async def tls(self) -> Streams:
        return await self.open(ssl=self._trusting)

    async def asked(self) -> Streams:
        """A connection that has been served once."""
        reader, writer = await self.tls()
        writer.write(ASK)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        return reader, writer


@contextlib.asynccontextmanager
async def serving(certs: Path) -> AsyncIterator[Server]:
    one = Server(certs)
    listening = await asyncio.get_running_loop().create_server(
        lambda: Connection(one.worker),  # type: ignore[arg-type]
        HOST,
        ssl=one.certificate.context,
    )
    one.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield one


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still comes before the server ends the connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return await asyncio.wait_for(reader.read(), 10)
    return b""


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_a_silent_connection_and_one_that_stops_in_the_headers_are_ended(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            silent, _ = await one.tls()
            half, writer = await one.tls()
            writer.write(b"POST /mutate HTTP/1.1\r\nHost:")
            again, second = await one.asked()
            second.write(b"POST ")
            for reader in (half, again):
                assert b" 408 " in await ended(reader)
            assert await ended(silent) == b""
            assert one.worker.turned_away == 1
            assert len(one.scopes) == 1

    run(test)


def test_a_body_that_does_not_come_is_told_to_the_application_and_ends_the_connection(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            reader, writer = await one.tls()
            writer.write(ASK[:-2])
            assert (await ended(reader)).endswith(b"ok")
            assert one.messages == [{"type": "http.disconnect"}]

    run(test)


def test_a_client_that_does_not_read_its_answer_is_cut_off(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.3)

    async def test() -> None:
        async with serving(certs) as one:
            reader, writer = await one.tls()
            turned_away = Handshake.turned_away
            writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            deadline = time.monotonic() + 15
            while one.worker.nr_conns != 0 or not one.scopes:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert Handshake.turned_away == turned_away + 1
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await ended(reader)) < 40_000_000

    run(test)


def test_a_byte_now_and_then_does_not_buy_time(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            reader, writer = await one.tls()
            began = one.worker.loop.time()
            end = asyncio.create_task(ended(reader))
            for _ in range(100):
                writer.write(b"\r\n" if _ == 0 else b"P")
                await asyncio.wait((end,), timeout=0.05)
                if end.done():
                    break
            assert b" 408 " in end.result() or end.result() == b""
            assert one.worker.loop.time() - began < 4, "all of it takes 5 s"

    run(test)


def test_over_the_limit_who_never_asked_goes_first_then_who_asked_longest_ago(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            oldest, _ = await one.asked()
            unused, _ = await one.tls()
            kept = [await one.asked() for _ in range(2)]
            kept.append(await one.asked())
            assert await ended(unused) == b""
            assert not oldest.at_eof()
            another, _ = await one.asked()
            assert await ended(oldest) == b""
            for reader, writer in kept:
                writer.write(ASK)
                assert await reader.readuntil(b"ok")
            assert not another.at_eof()
            assert one.worker.turned_away == 2
            assert len(one.worker.asked) == 4

    run(test)


def test_of_many_handshakes_the_oldest_go(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            waiting = [(await one.open())[0] for _ in range(6)]
            for reader in waiting[:3]:
                assert await ended(reader) == b""
            assert len(Handshake.under_way) == 3
            await one.asked()
            assert len(Handshake.under_way) <= 3

    run(test)


def test_pipelining_is_not_spoken_and_the_close_is_announced(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            reader, writer = await one.tls()
            writer.write(ASK * 50)
            answer = await ended(reader)
            assert answer.count(b"HTTP/1.1 200") == 1
            assert b"Connection: close" in answer
            assert len(one.scopes) == 1

    run(test)


def test_while_draining_answers_announce_the_close(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            reader, writer = await one.asked()
            one.worker.draining = True
            writer.write(ASK)
            assert b"Connection: close" in await ended(reader)

    run(test)


def test_a_request_says_when_it_reached_the_machine(certs: Path) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            reader, writer = await one.asked()
            before = one.worker.loop.time()
            writer.write(ASK)
            await asyncio.sleep(0)
            time.sleep(0.3)  # the loop stands still; the bytes are in the kernel
            await reader.readuntil(b"ok")
            arrived = one.scopes[-1]["state"]["arrived"]
            assert before - 0.05 < arrived < before + 0.2

    run(test)


def _left() -> list[str]:
    return [type(found).__name__ for found in gc.get_objects() if isinstance(found, Connection | Handshake)]


@pytest.mark.parametrize("ask", [True, False])
def test_nothing_is_left_of_a_closed_connection_for_the_garbage_collector(certs: Path, ask: bool) -> None:
    async def test() -> None:
        async with serving(certs) as one:
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    _, writer = await (one.asked() if ask else one.tls())
                    writer.transport.abort()
                    await asyncio.sleep(0.05)
                deadline = time.monotonic() + 5
                while (left := _left()) or one.worker.nr_conns:  # the last one may not have heard yet
                    assert time.monotonic() < deadline, left
                    await asyncio.sleep(0.05)
            finally:
                gc.enable()

    run(test)
