"""The HTTP face of the gate: one plain ASGI callable, five routes, no framework and no I/O but the socket.

    POST /mutate, /validate   AdmissionReview v1 in, AdmissionReview v1 out
    GET  /healthz             200 while the process runs
    GET  /readyz              200, or 503 with one reason a line
    GET  /metrics             Prometheus text

Every verdict is HTTP 200: kube-apiserver takes any other status for a failed call and lets failurePolicy decide
(apiserver/pkg/admission/plugin/webhook). 4xx is for what is not an AdmissionReview, 5xx only for our own fault.
"""

from __future__ import annotations

import gc
import re
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

import msgspec

from dra_gate.admission.facts import Facts
from dra_gate.admission.review import Answer, BadRequest, Route, answer
from dra_gate.server import metrics as metrics_module
from dra_gate.server.log import timestamp
from dra_gate.server.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_LIMIT = 7 * 1024 * 1024  # an object has up to 3 MiB, a review holds two (controller-runtime takes as much)
_DISCARD_LIMIT = 64 * 1024 * 1024

_ADMISSION: dict[str, Route] = {"/mutate": "mutate", "/validate": "validate"}
_PAGES = frozenset({"/healthz", "/readyz", "/metrics"})
_JSON = b"application/json"
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


class _NotReadyError(Exception):
    """There are reasons why we can't judge; the message joins them."""


class App:
    """The ASGI application.

    `facts` gives what is known of the cluster now, `ready` the reasons why we can't judge (none: ready), `write` takes
    decision lines. `start` runs when the server starts, `stop` when it ends; an exception of `start` ends the server.
    Until `ready` has been empty once, admission requests get 503: a verdict from half-filled caches would be wrong.
    From then on stale caches go on answering, since refusing every Pod is worse than judging by what was true a
    moment ago.
    """

    def __init__(
        self,
        *,
        facts: Callable[[], Facts],
        ready: Callable[[], list[str]],
        metrics: Metrics,
        write: Callable[[bytes], None],
        decide: Callable[[Route, bytes, Facts], Answer] = answer,
        start: Callable[[], None] = lambda: None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._facts = facts
        self._ready = ready
        self._metrics = metrics
        self._write = write
        self._decide = decide
        self._start = start
        self._stop = stop
        self._was_ready = False
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One ASGI 3 connection scope."""
        if scope["type"] == "http":
            route = _ADMISSION.get(scope["path"])
            if route is not None:
                await self._admission(route, scope, receive, send)
            else:
                await self._page(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close"})  # before it was accepted: the server answers 403

    async def _admission(self, route: Route, scope: Message, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        body_read = False
        reasons: tuple[str, ...] = ()
        line: dict[str, Any] = {"route": route, "timeoutSeconds": timeout_of(scope["query_string"])}
        try:
            body = await _read(scope, receive)
            body_read = True
            if not self._was_ready and (missing := self._reasons_against()):
                raise _NotReadyError("; ".join(missing))
            result = self._decide(route, body, self._facts())
            record = result.record
            status, kind, text, verdict, reasons = 200, _JSON, result.body, record.verdict, record.reasons
            line |= {
                "msg": "decision",
                "verdict": verdict,
                "uid": record.uid,
                "operation": record.operation,
                "namespace": record.namespace,
                "name": record.name,
                "tenant": record.tenant,
                "policy": record.policy,
                "mode": result.verdict.mode,
                "reasons": reasons,
            }
        except BadRequest as error:
            status, kind, text, verdict = error.status, _TEXT, f"{error}\n".encode(), "bad-request"
            line |= {"msg": "refused", "verdict": verdict, "status": status, "error": str(error)}
        except _NotReadyError as error:
            status, kind, text, verdict = 503, _TEXT, f"not ready: {error}\n".encode(), "unready"
            line |= {"msg": "refused", "verdict": verdict, "status": status, "error": str(error)}
        except Exception:  # noqa: BLE001 - whatever it is, it is ours; the API server needs an answer, the log the traceback
            status, kind, text, verdict = 500, _TEXT, b"internal error; the gate's log says more\n", "error"
            line |= {"msg": "fault", "level": "error", "verdict": verdict, "error": traceback.format_exc()}
        await _respond(send, status, kind, text, *(_ALLOW_POST if status == 405 else ()))
        seconds = time.perf_counter() - began
        self._metrics.answered(route, verdict, reasons, seconds)
        line["milliseconds"] = round(seconds * 1000, 3)
        self._write(self._encode({"time": timestamp(time.time()), "level": "info"} | line) + b"\n")
        if not body_read:
            await _discard(receive)

    def _reasons_against(self) -> list[str]:
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

    async def _page(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in _PAGES:
            await _respond(send, 404, _TEXT, b"not found\n")
        elif scope["method"] != "GET":
            await _respond(send, 405, _TEXT, b"method not allowed\n", (b"allow", b"GET"))
        elif path == "/metrics":
            await _respond(send, 200, metrics_module.CONTENT_TYPE.encode(), self._metrics.page())
        elif path == "/healthz" or not (reasons := self._reasons_against()):
            await _respond(send, 200, _TEXT, b"ok\n")
        else:
            await _respond(send, 503, _TEXT, "".join(f"{reason}\n" for reason in reasons).encode())
        await _discard(receive)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self._start()
                except Exception as error:  # noqa: BLE001 - told to the server, which ends
                    await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _read(scope: Message, receive: Receive) -> bytes:
    """The whole body. Raises BadRequest for another method, type or size than an AdmissionReview comes with."""
    if scope["method"] != "POST":
        raise BadRequest(405, "method not allowed")
    kind = length = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
    if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
        raise BadRequest(415, "content-type must be application/json")
    too_large = f"the body is larger than {BODY_LIMIT} bytes"
    if length.isdigit() and int(length) > BODY_LIMIT:
        raise BadRequest(413, too_large)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        parts = [body]
        size = len(body)
        while message.get("more_body"):
            message = await receive()
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > BODY_LIMIT:  # chunked: no length was announced
                raise BadRequest(413, too_large)
        body = b"".join(parts)
    if message["type"] == "http.disconnect":
        raise BadRequest(408, "the body did not arrive")
    return body


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
    while size <= _DISCARD_LIMIT:
        message = await receive()
        size += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return
