"""gunicorn's ASGI worker with what it lacks: limits on silence and on the number of connections, and a drain.

A connection that says nothing is ended, but later than kube-apiserver ends its own idle ones: Go dials a connection too
many and keeps it unused (net/http Transport), and a request must never meet a connection that we have just closed.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import sys
import time
from asyncio import sslproto
from asyncio.trsock import TransportSocket
from typing import Any, ClassVar

from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers import gasgi

KEEP_ALIVE = 120.0  # seconds; kube-apiserver ends idle connections after 90 (net/http DefaultTransport)
HEAD_SECONDS = 10.0  # from the first byte of a request to the end of its headers
BODY_SECONDS = 10.0  # from there to the end of its body
ANSWER_SECONDS = 10.0  # for the client to take an answer that the socket has no room for
FAREWELL_SECONDS = 5  # for the client to confirm the end of a connection
HANDSHAKES = 200  # under way at once
HANDSHAKE_SECONDS = 10  # kube-apiserver gives a handshake as long (net/http DefaultTransport)
ACCEPTS = 8  # new connections in one turn of the loop: their handshakes take a millisecond each from all others
QUEUE = 1024  # connections that wait in the kernel meanwhile
CONNECTIONS = 500  # open at once; each costs some 60 KiB, and an API server calls with at most a few dozen
TLS_BUFFER = 32 * 1024  # bytes a connection; a TLS record has at most 16 KiB, a usual review 10
BODY_BUFFER = 64 * 1024  # bytes of a body that wait for the application before reading pauses
_FILES = 65_536
_LAST_DATA_RECEIVED = slice(52, 56)  # tcpi_last_data_recv of struct tcp_info, milliseconds: linux/tcp.h


def milliseconds_in_kernel(connection: TransportSocket) -> int:
    """How long the newest bytes of the connection have been here, read by us or not; 0 where nobody can tell."""
    try:
        info: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED.stop)
    except (OSError, AttributeError):  # another kernel, or a connection that is gone
        return 0
    return int.from_bytes(info[_LAST_DATA_RECEIVED], sys.byteorder)


class Handshake(sslproto.SSLProtocol):
    """asyncio's TLS, with a limit on handshakes under way, on patience with clients that don't read, and on buffers."""

    # asyncio gives each connection 256 KiB: kube-apiserver keeps 25 connections, every probe makes one.
    max_size = TLS_BUFFER
    under_way: ClassVar[dict[Handshake, asyncio.Transport]] = {}  # oldest first
    failed = 0
    turned_away = 0  # handshakes that were one too many, clients that did not read
    succeeded = False
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """TCP is there. Over the limit the oldest handshake goes: an honest one takes milliseconds."""
        super().connection_made(transport)
        self.under_way[self] = transport
        if len(self.under_way) > HANDSHAKES:
            self._turn_away(self.under_way.pop(next(iter(self.under_way))))

    def connection_lost(self, error: BaseException | None) -> None:
        """TCP is gone."""
        self.under_way.pop(self, None)
        self._read()
        if not self.succeeded:
            Handshake.failed += 1
            if Handshake.failed % HANDSHAKES == 0:
                # Before Python 3.12.8 each failed handshake leaves 40 KiB in a circle (gh-109534).
                self._loop.call_soon(gc.collect)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        """The client doesn't read what it asked for: the system has no room left, and we keep the rest."""
        super().pause_writing()
        if self.unread is None:
            self.unread = self._loop.call_later(ANSWER_SECONDS, self._turn_away, self._transport)

    def resume_writing(self) -> None:
        """It does."""
        self._read()
        super().resume_writing()

    def _read(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    @staticmethod
    def _turn_away(transport: Any) -> None:
        Handshake.turned_away += 1
        transport.abort()

    def _on_handshake_complete(self, error: BaseException | None) -> None:
        if error is None:
            self.under_way.pop(self, None)
            self.succeeded = True
        super()._on_handshake_complete(error)


class Connection(ASGIProtocol):  # type: ignore[misc]  # gunicorn is untyped
    """One client. Puts `arrived` into the state of each request: when it reached this machine, in loop time."""

    # gunicorn's own, of which some are let go at the end
    transport: Any
    writer: Any
    _task: Any
    _callback_parser: Any
    _body_receiver: Any
    _current_request: Any
    _flow_control: Any

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._patience: asyncio.TimerHandle | None = None
        self._serving: Any = None
        self._answered: object = None
        self._closes = False
        self._awaited = ""  # what the timer is for: head, body, or nothing yet
        self._socket: Any = None
        self._arrived = 0.0
        self._max_buffer_size = BODY_BUFFER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done. Over the limit one goes: who never asked anything, else who asked longest ago."""
        super().connection_made(transport)
        self._wait(KEEP_ALIVE)
        worker = self.worker
        if len(worker.unasked) + len(worker.asked) >= CONNECTIONS:
            next(iter(worker.unasked or worker.asked)).turn_away()
        worker.unasked[self] = None
        self._socket = transport.get_extra_info("socket")
        self._serving = self._task
        self._serving.add_done_callback(self._let_go)

    def connection_lost(self, error: Exception | None) -> None:
        """Gone, by whomever."""
        self._calm()
        self._forget()
        if self._awaiting_request:
            self._task = None  # gunicorn would cancel it in 3 seconds, and keep everything until then
            self._request_ready.set()
        super().connection_lost(error)
        self._let_go()

    def turn_away(self) -> None:
        """End it now: who says nothing would not take part in an orderly end either."""
        self._forget()
        self.worker.turned_away += 1
        self.transport.abort()

    def _feed_callback_parser(self, data: bytes) -> bool:
        going: bool = super()._feed_callback_parser(data)
        if self._current_request is None:
            if going and self._awaited != "head":
                self._wait(HEAD_SECONDS, "head")
        elif self._body_receiver._complete:
            if self._patience is not None:
                self._calm()
        elif self._awaited != "body":
            self._wait(BODY_SECONDS, "body")
        return going

    def _on_headers_complete(self) -> bool:
        self._arrived = time.monotonic() - milliseconds_in_kernel(self._socket) / 1000
        self._forget()
        self.worker.asked[self] = None
        skip: bool = super()._on_headers_complete()
        return skip

    def _build_http_scope(self, request: object, sockname: object, peername: object) -> dict[str, Any]:
        scope: dict[str, Any] = super()._build_http_scope(request, sockname, peername)
        scope["state"]["arrived"] = self._arrived
        return scope

    def _will_close(self, request: object, required: bool) -> bool:
        # Asked when the answer begins and again when it has ended: what was announced holds.
        if request is not self._answered:
            self._answered = request
            # What came behind the request before it was answered: kube-apiserver never does that, and gunicorn would
            # copy all of it once for each request in it.
            pipelined = self._callback_parser.remaining()
            self._closes = bool(self.worker.draining or pipelined or super()._will_close(request, required))
        return self._closes

    def _let_go(self, _: object = None) -> None:
        """Break the circles of a connection that is over: until the garbage collector came, 60 KiB each would stay."""
        if self._conn_lost_handled and self._serving.done():
            self._callback_parser = self._body_receiver = self._flow_control = None
            self._current_request = self._answered = None
            self.transport = self.writer = self._task = self._socket = None

    def _forget(self) -> None:
        self.worker.unasked.pop(self, None)
        self.worker.asked.pop(self, None)

    def _wait(self, seconds: float, what: str = "") -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._awaited = what
        self._patience = self.worker.loop.call_later(seconds, self._lose_patience)

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._awaited = ""

    def _lose_patience(self) -> None:
        self._patience = None
        if self._awaited == "head":
            self._send_error_response(408, "the headers did not arrive")
            self._keepalive_timeout()
        elif self._awaited == "body":
            self._body_receiver._body_wait_expired = True  # the application hears that there is none, and answers
            self._body_receiver._wake_waiter()
        else:
            self.turn_away()


class Worker(gasgi.ASGIWorker):  # type: ignore[misc]  # gunicorn is untyped
    """`draining` from SIGTERM on: answers say `Connection: close`, and the ports stay open for `drain` seconds.

    Endpoints, and the load balancers that follow them, take a moment to stop sending new connections here.
    """

    drain = 0.0

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)
        self.draining = False
        self.turned_away = 0  # connections ended because they were silent for too long or one too many
        # Every open connection: those without a request so far, oldest first; the others by their last one.
        self.unasked: dict[Connection, None] = {}
        self.asked: dict[Connection, None] = {}

    def init_process(self) -> None:
        """Runs after the fork; returns when the worker ends."""
        gasgi.ASGIProtocol = Connection  # the worker names its protocol nowhere else
        sslproto.SSLProtocol = Handshake  # type: ignore[misc]  # nor does asyncio anywhere else
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        super().init_process()

    def _setup_event_loop(self) -> None:
        super()._setup_event_loop()
        create_server = self.loop.create_server

        async def patient(*arguments: Any, sock: socket.socket, **settings: Any) -> asyncio.Server:
            """asyncio takes as many connections at once as may wait in the kernel; let many wait and take a few."""
            server: asyncio.Server = await create_server(
                *arguments,
                sock=sock,
                backlog=ACCEPTS,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=FAREWELL_SECONDS,
                **settings,
            )
            sock.listen(QUEUE)
            return server

        self.loop.create_server = patient

    def handle_exit_signal(self) -> None:
        """SIGTERM."""
        if not self.draining:
            self.draining = True
            self.log.info("draining for %g seconds", self.drain)
            self.loop.call_later(self.drain, super().handle_exit_signal)
