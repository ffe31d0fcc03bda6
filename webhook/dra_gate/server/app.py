"""The HTTPS face of the gate: one plain ASGI callable, four routes, no framework and no I/O but the socket.

    POST /mutate, /validate   AdmissionReview v1 in, AdmissionReview v1 out
    GET  /healthz             200 while the process runs
    GET  /readyz              200, or 503 with one reason a line

Every verdict is HTTP 200: kube-apiserver takes any other status for a failed call and lets failurePolicy decide
(apiserver/pkg/admission/plugin/webhook). 4xx is for what is not an AdmissionReview, 5xx for our own fault and for
answers that nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import logging
import math
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from dra_gate.admission.facts import BehindError, Facts
from dra_gate.admission.review import Answer, BadRequest, Record, Route, answer
from dra_gate.server.log import timestamp
from dra_gate.server.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_LIMIT = 7 * 1024 * 1024  # an object has up to 3 MiB, a review holds two (controller-runtime takes as much)
DISCARD_SECONDS = 10.0  # for the client to send what nobody reads
BODIES_LIMIT = 32 * 1024 * 1024  # of all bodies that are still arriving: connections must not add up to our memory
# In one body: 7 MiB of `{},{},…` would become 170 MB and hold everybody up for a second. Most of what a review of that
# size may have are managedFields (`"f:name":{}`), one in a dozen bytes, which are not read.
COLLECTIONS_LIMIT = 700_000
VALUES_LIMIT = 1_000_000
REFRESH_SECONDS = 1.5  # for one live look at the cluster
ANSWER_LIMIT = 256 * 1024  # bytes; an answer that its client does not read waits here. 100 findings are 60 KiB
MARGIN = 0.05  # seconds before the caller's own end that an answer needs to arrive in time
RECENT = 200  # verdicts that are kept for people to look at
_DENSE = 64 * 1024  # bytes; a smaller body can't hold enough to be counted
_DISCARD_LIMIT = 64 * 1024 * 1024
_SHOWN = 253  # characters of a name (RFC 1123 subdomain) that logs and pages show, whoever made it up

_log = logging.getLogger(__name__)
_ADMISSION: dict[str, Route] = {"/mutate": "mutate", "/validate": "validate"}
_PROBES = frozenset({"/healthz", "/readyz"})
_JSON = b"application/json"
_NO_BODY = "the body did not arrive"
_LATE = "the caller's timeout has passed"
_TOO_LARGE = f"the body is larger than {BODY_LIMIT} bytes"
_TEXT = b"text/plain; charset=utf-8"
_ALLOW_POST = ((b"allow", b"POST"),)
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@lru_cache(maxsize=64)
def timeout_of(query: bytes) -> float | None:
    """The seconds in `timeout=` of a query string, written as a Go duration (`2s`, `1m30s`); None if absent or not one.

    kube-apiserver adds it to every call: the time after which it stops waiting for us.
    """
    for part in query.split(b"&"):
        if part.startswith(b"timeout="):
            text = part[8:].decode("latin-1")
            parts = _DURATION.findall(text)
            if parts and "".join(number + unit for number, unit in parts) == text:
                return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return None


class Decision(NamedTuple):
    """One verdict, for people to look at. `time` is seconds since the epoch; nothing of the object but its name."""

    time: float
    record: Record
    mode: str
    milliseconds: float


class _UnavailableError(Exception):
    """We can't judge this now: HTTP 503, and failurePolicy decides. `verdict` names it in log and metrics."""

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles.

    What is read of a large body is hundreds of thousands of objects. The collector would walk them again and again as
    they become more, and finds nothing: none is part of a cycle, and all go when the verdict is there.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class App:
    """The ASGI application.

    `facts` gives what is known of the cluster now, `ready` the reasons why we can't judge (none: ready), `write` takes
    decision lines. `stale`, asked once a second, gives a warning that verdicts carry (empty: none). `refresh` asks the
    API server once for a Pod whose stamp names something unknown here; it may block for a second. `start` runs when the
    server starts, `stop` when it ends; an exception of `start` ends the server.

    Until `ready` has been empty once, admission requests get 503: a verdict from half-filled caches would be wrong.
    From then on stale caches go on answering, since refusing every Pod is worse than judging by what was true a
    moment ago.

    A request says in `timeout=` how long its caller waits. What is still here when that has passed gets 503 at once:
    kube-apiserver has let failurePolicy decide, and judging for nobody would only make the next ones late, too.

    `recent` holds the last verdicts, the newest at the end; `turned` says when the server's loop last turned, in
    seconds of time.monotonic().
    """

    def __init__(
        self,
        *,
        facts: Callable[[], Facts],
        ready: Callable[[], list[str]],
        metrics: Metrics,
        write: Callable[[bytes], None],
        decide: Callable[..., Answer] = answer,
        refresh: Callable[[], object] | None = None,
        stale: Callable[[], str] = str,
        record: Callable[[Route, bytes], None] | None = None,
        start: Callable[[], None] = lambda: None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.turned = time.monotonic()
        self.recent: collections.deque[Decision] = collections.deque(maxlen=RECENT)
        self._facts = facts
        self._ready = ready
        self._metrics = metrics
        self._write = write
        self._decide = decide
        self._refresh = refresh
        self._stale = stale
        self._record = record
        self._warning = ""
        self._start = start
        self._stop = stop
        self._was_ready = False
        self._arriving = 0  # bytes of bodies
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One ASGI 3 connection scope."""
        if scope["type"] == "http":
            route = _ADMISSION.get(scope["path"])
            if route is not None:
                await self._admission(route, scope, receive, send)
            else:
                await self._probe(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close"})  # before it was accepted: the server answers 403

    def reasons_against(self) -> list[str]:
        """Why we are not ready; empty when we are."""
        reasons = self._ready()
        if not reasons and not self._was_ready:
            self._was_ready = True
            # The caches are full now, and most of what they hold stays: a full collection would walk all of it each
            # time (40 ms for 170,000 objects), so it is left out of collections from here on. The second collection
            # tells the collector how little is left: it runs a full one when a quarter as much has been added.
            gc.collect()
            gc.freeze()
            gc.collect()
        return reasons

    async def _admission(self, route: Route, scope: Message, receive: Receive, send: Send) -> None:
        arrived: float = scope.get("state", {}).get("arrived") or time.monotonic()
        timeout = timeout_of(scope["query_string"])
        deadline = math.inf if timeout is None else arrived + timeout - MARGIN
        body_read = False
        reasons: tuple[str, ...] = ()
        mode = ""
        decision: Record | None = None
        line: dict[str, Any] = {"route": route, "timeoutSeconds": timeout}
        try:
            body = await self._read(scope, receive, deadline)
            body_read = True
            result = await self._judge(route, body, deadline)
            decision, mode = _shown(result.record), result.verdict.mode
            status, kind, text, verdict, reasons = 200, _JSON, result.body, decision.verdict, decision.reasons
            line |= {
                "msg": "decision",
                "verdict": verdict,
                "uid": decision.uid,
                "operation": decision.operation,
                "namespace": decision.namespace,
                "name": decision.name,
                "tenant": decision.tenant,
                "policy": decision.policy,
                "mode": mode,
                "reasons": reasons,
            }
        except BadRequest as error:
            status, kind, text, verdict = error.status, _TEXT, f"{str(error)[:_SHOWN]}\n".encode(), "bad-request"
            line |= {"msg": "refused", "verdict": verdict, "status": status, "error": str(error)[:_SHOWN]}
        except _UnavailableError as error:
            status, kind, text, verdict = 503, _TEXT, f"{error}\n".encode(), error.verdict
            line |= {"msg": "refused", "verdict": verdict, "status": status, "error": str(error)}
        except Exception:  # noqa: BLE001 - whatever it is, it is ours; the API server needs an answer, the log the traceback
            status, kind, text, verdict = 500, _TEXT, b"internal error; the gate's log says more\n", "error"
            line |= {"msg": "fault", "level": "error", "verdict": verdict, "error": _fault()}
        await _respond(send, status, kind, text, *(_ALLOW_POST if status == 405 else ()))
        seconds = time.monotonic() - arrived
        milliseconds = round(seconds * 1000, 3)
        self._metrics.answered(route, verdict, mode, reasons, seconds)
        if decision is not None and decision.exceptions:
            self._metrics.excepted(decision.exceptions)
        if verdict == "late" or arrived + seconds > deadline:
            self._metrics.missed(route, judged=verdict != "late")
        now = time.time()
        if decision is not None and verdict != "ignore":
            self.recent.append(Decision(now, decision, mode, milliseconds))
        self._write(
            self._encode({"time": timestamp(now), "level": "info"} | line | {"milliseconds": milliseconds}) + b"\n"
        )
        if not body_read and status not in (408, 503):  # then the body isn't waited for: the connection ends
            await _discard(receive)

    async def _judge(self, route: Route, body: bytes, deadline: float) -> Answer:
        if not self._was_ready and (missing := self.reasons_against()):
            raise _UnavailableError("unready", f"not ready: {'; '.join(missing)}")
        if time.monotonic() > deadline:
            raise _UnavailableError("late", _LATE)
        if len(body) > _DENSE and (
            body.count(b"{") + body.count(b"[") > COLLECTIONS_LIMIT or body.count(b",") > VALUES_LIMIT
        ):
            raise BadRequest(413, "the body holds more values than an object of the API server can")
        result = await self._decided(route, body, deadline)
        if self._record is not None and not result.verdict.ignored:
            self._record(route, body)
        if len(result.body) > ANSWER_LIMIT:
            raise BadRequest(413, f"the answer would be larger than {ANSWER_LIMIT} bytes")
        if self._warning and not result.verdict.ignored:
            self._metrics.judged_stale(route)
            return _with_warning(result, self._warning)
        return result

    async def _decided(self, route: Route, body: bytes, deadline: float) -> Answer:
        if self._refresh is None:
            return self._decided_now(route, body)
        try:
            return self._decided_now(route, body, may_look_again=True)
        except BehindError:
            left = min(deadline - time.monotonic(), REFRESH_SECONDS)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, self._refresh), left)
            except TimeoutError:
                pass
            except Exception:  # noqa: BLE001 - what is known here decides as it would had nobody answered
                _log.warning("live look at the cluster: %s", _fault())
        return self._decided_now(route, body)

    def _decided_now(self, route: Route, body: bytes, **options: bool) -> Answer:
        with uncollected() if len(body) > _DENSE else contextlib.nullcontext():
            return self._decide(route, body, self._facts(), **options)

    async def _read(self, scope: Message, receive: Receive, deadline: float) -> bytes:
        """The whole body.

        Raises BadRequest for another method, type, encoding, size or pace than an AdmissionReview comes with.
        """
        if scope["method"] != "POST":
            raise BadRequest(405, "method not allowed")
        _check_headers(scope["headers"])
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            return await self._gather(body, receive, deadline)
        if message["type"] == "http.disconnect":
            raise BadRequest(408, _NO_BODY)
        return body

    async def _gather(self, first: bytes, receive: Receive, deadline: float) -> bytes:
        """A body that comes in parts. The connection sees to it that it comes at all (worker.BODY_SECONDS)."""
        parts = [first]
        size = held = len(first)
        self._arriving += held
        try:
            async with asyncio.timeout_at(deadline if deadline < math.inf else None):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise BadRequest(408, _NO_BODY)
                    more = message.get("more_body", False)
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    if size > BODY_LIMIT:  # chunked: no length was announced
                        raise BadRequest(413, _TOO_LARGE)
                    self._arriving += len(part)
                    held = size
                    if self._arriving > BODIES_LIMIT:
                        raise _UnavailableError("busy", "too many large bodies are arriving at once")
        except TimeoutError:
            raise _UnavailableError("late", _LATE) from None
        finally:
            self._arriving -= held
        return b"".join(parts)

    async def _probe(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in _PROBES:
            await _respond(send, 404, _TEXT, b"not found\n")
        elif scope["method"] != "GET":
            await _respond(send, 405, _TEXT, b"method not allowed\n", (b"allow", b"GET"))
        elif path == "/healthz" or not (reasons := self.reasons_against()):
            await _respond(send, 200, _TEXT, b"ok\n")
        else:
            await _respond(send, 503, _TEXT, "".join(f"{reason}\n" for reason in reasons).encode())
        await _discard(receive)

    async def _turn(self) -> None:
        while True:
            self.turned = time.monotonic()
            self._warning = self._stale()
            await asyncio.sleep(1)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        turning: asyncio.Task[None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self._start()
                except Exception as error:  # noqa: BLE001 - told to the server, which ends
                    await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
                    return
                turning = asyncio.create_task(self._turn())
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if turning is not None:
                    turning.cancel()
                self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    kind = length = encoding = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
        elif name == b"content-encoding":
            encoding = value
    if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
        raise BadRequest(415, "content-type must be application/json")
    if encoding and encoding.strip().lower() != b"identity":  # kube-apiserver compresses nothing that it sends
        raise BadRequest(415, "the body must not be compressed")
    if length.isdigit() and int(length) > BODY_LIMIT:
        raise BadRequest(413, _TOO_LARGE)


def _shown(record: Record) -> Record:
    """The record with names of a bounded length: logs and pages keep them, and anybody can make one up."""
    if max(len(record.uid), len(record.operation), len(record.namespace), len(record.name)) <= _SHOWN:
        return record
    return replace(
        record,
        uid=record.uid[:_SHOWN],
        operation=record.operation[:_SHOWN],
        namespace=record.namespace[:_SHOWN],
        name=record.name[:_SHOWN],
    )


def _with_warning(result: Answer, warning: str) -> Answer:
    review = msgspec.json.decode(result.body)
    review["response"].setdefault("warnings", []).append(warning)
    return replace(result, body=msgspec.json.encode(review))


def _fault() -> str:
    """Where the exception that is being handled comes from, and its type. Its own words may quote the object."""
    kind, _, trace = sys.exc_info()
    return "".join(traceback.format_tb(trace)) + (kind.__name__ if kind else "")


async def _respond(send: Send, status: int, kind: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = str(len(body)).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), (b"content-length", length), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def _discard(receive: Receive) -> None:
    """Take what is left of a body after an early answer: closing with bytes unread would reset the connection."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size <= _DISCARD_LIMIT:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
