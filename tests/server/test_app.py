"""The ASGI application by itself: routes, limits, statuses, log lines, metrics. No server, no socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from dra_gate.admission.facts import Facts
from dra_gate.admission.review import Answer, BadRequest, Record, Route
from dra_gate.admission.verdict import Verdict
from dra_gate.server.app import BODY_LIMIT, App, timeout_of
from dra_gate.server.metrics import Metrics

JSON = [(b"content-type", b"application/json")]


class Harness:
    """An App with everything around it in reach. `decide` may be replaced before a call."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.reasons: list[str] = []
        self.asked_ready = 0
        self.metrics = Metrics(sets=lambda: {"digest": "active"})
        self.app = App(
            facts=lambda: None,  # type: ignore[arg-type, return-value]
            ready=self.ready,
            metrics=self.metrics,
            write=lambda line: self.lines.append(json.loads(line)),
            decide=self.decide,
        )
        self.verdict, self.mode = "admit", "enforce"
        self.codes: tuple[str, ...] = ()
        self.ignored = False
        self.error: Exception | None = None

    def ready(self) -> list[str]:
        self.asked_ready += 1
        return self.reasons

    def decide(self, route: Route, body: bytes, facts: Facts) -> Answer:
        self.bodies.append(body)
        if self.error is not None:
            raise self.error
        record = Record(route, "u-1", "CREATE", "ns", "pod", self.verdict, self.codes, "training@7", "lilac")
        return Answer(b'{"answer":1}', record, Verdict(allowed=True, ignored=self.ignored, mode=self.mode))

    def call(
        self,
        method: str,
        path: str,
        parts: Iterable[bytes] = (b"",),
        headers: list[tuple[bytes, bytes]] = JSON,
        *,
        gone: bool = False,
        query: bytes = b"",
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """One request whose body comes in `parts`; with `gone` the client leaves before the last one ends."""
        pieces = list(parts)
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        if gone:
            messages.append({"type": "http.disconnect"})
        else:
            messages[-1]["more_body"] = False
        sent: list[dict[str, Any]] = []
        self.unread = iter(messages)

        async def receive() -> Any:
            return next(self.unread, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
        asyncio.run(self.app(scope, receive, send))
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        answer_headers = dict(sent[0]["headers"])
        assert int(answer_headers[b"content-length"]) == len(sent[1]["body"])
        return sent[0]["status"], answer_headers, sent[1]["body"]

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_a_verdict_is_200_with_the_answer_and_one_log_line(harness: Harness, path: str) -> None:
    harness.verdict, harness.codes = "deny", ("QUOTA", "HOST_DEVICE")
    status, headers, body = harness.call("POST", path, [b"ab", b"", b"cd"], query=b"timeout=2s")
    assert (status, headers[b"content-type"], body) == (200, b"application/json", b'{"answer":1}')
    assert harness.bodies == [b"abcd"]
    (line,) = harness.lines
    assert line.pop("milliseconds") >= 0
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "msg": "decision",
        "route": path[1:],
        "timeoutSeconds": 2.0,
        "verdict": "deny",
        "uid": "u-1",
        "operation": "CREATE",
        "namespace": "ns",
        "name": "pod",
        "tenant": "lilac",
        "policy": "training@7",
        "mode": "enforce",
        "reasons": ["QUOTA", "HOST_DEVICE"],
    }
    assert harness.counted("dra_gate_admission_requests_total", route=path[1:], verdict="deny", mode="enforce") == 1
    assert harness.counted("dra_gate_admission_findings_total", code="QUOTA", mode="enforce") == 1
    assert harness.counted("dra_gate_admission_duration_seconds_count", route=path[1:]) == 1


def test_reasons_of_a_shadowed_refusal_are_told_apart(harness: Harness) -> None:
    harness.verdict, harness.codes, harness.mode = "shadow", ("QUOTA",), "shadow"
    harness.call("POST", "/validate")
    assert harness.counted("dra_gate_admission_findings_total", code="QUOTA", mode="enforce") is None
    assert harness.counted("dra_gate_admission_findings_total", code="QUOTA", mode="shadow") == 1
    labels = {"route": "validate", "verdict": "shadow", "mode": "shadow"}
    assert harness.counted("dra_gate_admission_requests_total", **labels) == 1


@pytest.mark.parametrize(
    "kind", [b"application/json", b"application/json; charset=utf-8", b"Application/JSON ;charset=utf-8"]
)
def test_json_content_types_are_taken(harness: Harness, kind: bytes) -> None:
    assert harness.call("POST", "/mutate", headers=[(b"content-type", kind)])[0] == 200


@pytest.mark.parametrize("headers", [[], [(b"content-type", b"text/json")], [(b"content-type", b"application/jsonx")]])
def test_other_content_types_are_415(harness: Harness, headers: list[tuple[bytes, bytes]]) -> None:
    assert harness.call("POST", "/mutate", headers=headers)[0] == 415
    assert harness.bodies == []
    assert harness.counted("dra_gate_admission_requests_total", route="mutate", verdict="bad-request", mode="none") == 1


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_413(harness: Harness) -> None:
    half = b"x" * (BODY_LIMIT // 2)
    assert harness.call("POST", "/mutate", [half, half])[0] == 200
    assert harness.call("POST", "/mutate", [half, half, b"x", b"y"])[0] == 413
    assert next(harness.unread, None) is None, "the rest of the body must be taken off the connection"
    assert len(harness.bodies) == 1


def test_an_announced_length_over_the_limit_is_refused_unread_but_taken_off(harness: Harness) -> None:
    length = (b"content-length", str(BODY_LIMIT + 1).encode())
    assert harness.call("POST", "/mutate", [b"x", b"y"], headers=[*JSON, length])[0] == 413
    assert next(harness.unread, None) is None


def test_the_discarding_of_a_body_ends(harness: Harness) -> None:
    endless = (b"x" * (1 << 20) for _ in range(200))
    harness.call("POST", "/nope", endless)
    assert next(harness.unread, None) is not None


def test_a_client_that_leaves_in_the_middle_is_408(harness: Harness) -> None:
    assert harness.call("POST", "/mutate", [b"half"], gone=True)[0] == 408
    assert harness.bodies == []


def test_bad_requests_keep_their_status_and_text(harness: Harness) -> None:
    harness.error = BadRequest(400, "the body is not an AdmissionReview")
    status, headers, body = harness.call("POST", "/validate", [b"secret"])
    assert (status, headers[b"content-type"][:10], body) == (
        400,
        b"text/plain",
        b"the body is not an AdmissionReview\n",
    )
    assert harness.lines[0]["error"] == "not an AdmissionReview v1", "what is wrong with a body may quote it"


def test_our_own_fault_is_500_with_the_traceback_in_the_log_and_the_body_nowhere(harness: Harness) -> None:
    harness.error = ZeroDivisionError("division by a secret")
    status, _, body = harness.call("POST", "/validate", [b"secret"])
    assert status == 500
    assert b"division" not in body
    (line,) = harness.lines
    assert line["level"] == "error"
    assert "in decide" in line["error"]
    assert line["error"].endswith("ZeroDivisionError")
    assert "secret" not in json.dumps(line)
    assert harness.counted("dra_gate_admission_requests_total", route="validate", verdict="error", mode="none") == 1


def test_nothing_is_judged_before_the_caches_were_full_once_and_everything_after(harness: Harness) -> None:
    harness.reasons = ["pods not listed yet"]
    status, _, body = harness.call("POST", "/mutate")
    assert (status, body) == (503, b"not ready: pods not listed yet\n")
    assert harness.bodies == []
    assert harness.lines[0]["verdict"] == "unready"
    assert harness.call("GET", "/readyz")[0] == 503
    harness.reasons = []
    assert harness.call("POST", "/mutate")[0] == 200
    asked = harness.asked_ready
    harness.reasons = ["stopping"]
    assert harness.call("POST", "/mutate")[0] == 200
    assert harness.asked_ready == asked, "readiness costs something: it is asked for until it was true once"


def test_a_probe_that_was_ready_counts(harness: Harness) -> None:
    assert harness.call("GET", "/readyz")[0] == 200
    harness.reasons = ["stopping"]
    assert harness.call("POST", "/mutate")[0] == 200


def test_readyz_lists_every_reason(harness: Harness) -> None:
    harness.reasons = ["a", "b"]
    assert harness.call("GET", "/readyz")[::2] == (503, b"a\nb\n")
    assert harness.call("GET", "/healthz")[::2] == (200, b"ok\n")
    harness.reasons = []
    assert harness.call("GET", "/readyz")[::2] == (200, b"ok\n")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/mutate", 405, b"POST"),
        ("PUT", "/validate", 405, b"POST"),
        ("POST", "/healthz", 405, b"GET"),
        ("DELETE", "/readyz", 405, b"GET"),
        ("GET", "/metrics", 404, None),
        ("GET", "/", 404, None),
        ("POST", "/mutate/", 404, None),
        ("POST", "/MUTATE", 404, None),
    ],
)
def test_other_methods_and_paths(harness: Harness, method: str, path: str, status: int, allow: bytes | None) -> None:
    got, headers, _ = harness.call(method, path)
    assert (got, headers.get(b"allow")) == (status, allow)


def test_websockets_are_turned_away(harness: Harness) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(harness.app({"type": "websocket", "path": "/mutate"}, receive, send))
    assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize("fails", [False, True])
def test_lifespan_starts_and_stops_what_it_was_given(fails: bool) -> None:
    calls: list[str] = []

    def start() -> None:
        calls.append("start")
        if fails:
            raise OSError("no cluster")

    app = App(
        facts=lambda: None,  # type: ignore[arg-type, return-value]
        ready=list,
        metrics=Metrics(),
        write=lambda _: None,
        start=start,
        stop=lambda: calls.append("stop"),
    )
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "lifespan"}, receive, send))
    if fails:
        assert sent == [{"type": "lifespan.startup.failed", "message": "OSError: no cluster"}]
        assert calls == ["start"]
    else:
        assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert calls == ["start", "stop"]


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        (b"timeout=2s", 2.0),
        (b"timeout=10s&x=y", 10.0),
        (b"x=y&timeout=500ms", 0.5),
        (b"timeout=1m30s", 90.0),
        (b"timeout=1.5s", 1.5),
        (b"timeout=2s0", None),
        (b"timeout=-2s", None),
        (b"timeout=two", None),
        (b"timeout=", None),
        (b"", None),
    ],
)
def test_timeout_is_a_go_duration(query: bytes, seconds: float | None) -> None:
    assert timeout_of(query) == seconds
