"""The ASGI application by itself: routes, limits, statuses, log lines, metrics. No server, no socket."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from bench import big
from dra_gate.admission.facts import BehindError, Facts
from dra_gate.admission.review import Answer, BadRequest, Record, Route
from dra_gate.admission.verdict import Verdict
from dra_gate.server.app import ANSWER_LIMIT, BODY_LIMIT, RECENT, App, timeout_of
from dra_gate.server.metrics import Metrics

JSON = [(b"content-type", b"application/json")]


class Harness:
    """An App with everything around it in reach. `decide` may be replaced before a call."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.collecting: list[bool] = []
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
        self.meanwhile: Callable[[], object] = lambda: None  # happens while it decides
        self.name = "pod"
        self.answer = b'{"answer":1}'
        self.error: Exception | None = None

    def ready(self) -> list[str]:
        self.asked_ready += 1
        return self.reasons

    def decide(self, route: Route, body: bytes, facts: Facts, **_: object) -> Answer:
        self.bodies.append(body)
        self.collecting.append(gc.isenabled())
        self.meanwhile()
        if self.error is not None:
            raise self.error
        record = Record(route, "u-1", "CREATE", "ns", self.name, self.verdict, self.codes, "training@7", "lilac")
        return Answer(self.answer, record, Verdict(allowed=True, ignored=self.ignored, mode=self.mode))

    def call(
        self,
        method: str,
        path: str,
        parts: Iterable[bytes] = (b"",),
        headers: list[tuple[bytes, bytes]] = JSON,
        *,
        gone: bool = False,
        query: bytes = b"",
        waited: float | None = None,
        pause: float = 0.0,
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """One request whose body comes in `parts`; with `gone` the client leaves before the last one ends.

        It reached the machine `waited` seconds ago; `pause` seconds pass before each part.
        """
        pieces = list(parts)
        messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        if gone:
            messages.append({"type": "http.disconnect"})
        else:
            messages[-1]["more_body"] = False
        sent: list[dict[str, Any]] = []
        self.unread = iter(messages)

        async def receive() -> Any:
            if pause:
                await asyncio.sleep(pause)
            return next(self.unread, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": headers,
        }
        if waited is not None:
            scope["state"] = {"arrived": time.monotonic() - waited}
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
    assert harness.lines[0]["error"] == "the body is not an AdmissionReview"


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


def test_a_request_whose_caller_has_gone_is_not_judged(harness: Harness) -> None:
    status, _, body = harness.call("POST", "/mutate", query=b"timeout=2s", waited=2.0)
    assert (status, body) == (503, b"the caller's timeout has passed\n")
    assert harness.bodies == []
    assert harness.lines[0]["verdict"] == "late"
    assert harness.lines[0]["milliseconds"] >= 2000
    misses = "dra_gate_admission_deadline_misses_total"
    assert harness.counted(misses, route="mutate", judged="false") == 1
    assert harness.counted("dra_gate_admission_requests_total", route="mutate", verdict="late", mode="none") == 1
    assert harness.call("POST", "/mutate", query=b"timeout=20s", waited=15.0)[0] == 200
    assert harness.call("POST", "/mutate", waited=100.0)[0] == 200, "who names no timeout waits"
    assert harness.counted(misses, route="mutate", judged="true") == 0


def test_a_verdict_that_took_too_long_is_counted(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]  # a clock of its own: the request must not be late before it is decided on
    monkeypatch.setattr("dra_gate.server.app.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    harness.meanwhile = lambda: now.append(now.pop() + 0.2)
    assert harness.call("POST", "/validate", query=b"timeout=100ms")[0] == 200
    assert harness.counted("dra_gate_admission_deadline_misses_total", route="validate", judged="true") == 1


def test_a_body_that_comes_too_late_for_its_caller_is_503(harness: Harness) -> None:
    began = time.monotonic()
    assert harness.call("POST", "/mutate", [b"{", b"}"] * 250, query=b"timeout=200ms", pause=0.02)[0] == 503
    assert harness.lines[0]["verdict"] == "late"
    assert time.monotonic() - began < 5, "it is not read to its end, which comes after 10 s"
    assert harness.bodies == []


def test_bodies_that_arrive_together_are_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_gate.server.app.BODIES_LIMIT", 1000)
    assert harness.call("POST", "/mutate", [b"x" * 500, b"y" * 600])[0] == 503
    assert harness.lines[0]["verdict"] == "busy"
    assert harness.call("POST", "/mutate", [b"x" * 500, b"y" * 400])[0] == 200, "what was held is given back"


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"deflate, gzip", b"nonsense"])
def test_compressed_bodies_are_415(harness: Harness, encoding: bytes) -> None:
    assert harness.call("POST", "/mutate", headers=[*JSON, (b"content-encoding", encoding)])[0] == 415
    assert harness.call("POST", "/mutate", headers=[*JSON, (b"content-encoding", b"Identity")])[0] == 200
    assert len(harness.bodies) == 1


def test_an_answer_that_would_be_very_large_is_413(harness: Harness) -> None:
    harness.answer = b"x" * (ANSWER_LIMIT + 1)
    assert harness.call("POST", "/mutate")[0] == 413
    harness.answer = b"x" * ANSWER_LIMIT
    assert harness.call("POST", "/mutate")[0] == 200


@pytest.mark.parametrize("item", [b"{},", b"[],", b"0,"])
def test_a_body_of_very_many_values_is_413(harness: Harness, item: bytes) -> None:
    assert harness.call("POST", "/mutate", [b"[" + item * 2_000_000 + b"0]"])[0] == 413
    assert harness.bodies == []
    assert harness.call("POST", "/mutate", [b"[" + item * 100_000 + b"0]"])[0] == 200


def _served(app: App, *, until: float, requests: list[dict[str, Any]]) -> list[Any]:
    """The answers to requests that are sent `until` seconds after the server has started."""
    answers: list[Any] = []

    async def run() -> None:
        lifespan: asyncio.Queue[Any] = asyncio.Queue()
        await lifespan.put({"type": "lifespan.startup"})

        async def ignore(_: Any) -> None: ...

        task = asyncio.create_task(app({"type": "lifespan"}, lifespan.get, ignore))
        await asyncio.sleep(until)
        for scope in requests:

            async def receive() -> Any:
                return {"type": "http.request", "body": b"{}", "more_body": False}

            async def send(message: Any) -> None:
                answers.append(message)

            await app({"type": "http", "method": "POST", "query_string": b"", "headers": JSON, **scope}, receive, send)
        await lifespan.put({"type": "lifespan.shutdown"})
        await task

    asyncio.run(run())
    return [json.loads(message["body"]) for message in answers if "body" in message]


def test_verdicts_from_stale_caches_carry_one_warning(harness: Harness) -> None:
    def decide(route: Route, body: bytes, facts: Facts) -> Answer:
        found = harness.decide(route, body, facts)
        return Answer(b'{"response":{"uid":"u","warnings":["first"]}}', found.record, found.verdict)

    app = App(
        facts=lambda: None,  # type: ignore[arg-type, return-value]
        ready=list,
        metrics=harness.metrics,
        write=lambda _: None,
        decide=decide,
        stale=lambda: "judged by what was known 7 min ago",
    )
    began = time.monotonic()
    (answer,) = _served(app, until=0.05, requests=[{"path": "/validate"}])
    assert answer == {"response": {"uid": "u", "warnings": ["first", "judged by what was known 7 min ago"]}}
    assert harness.counted("dra_gate_admission_stale_verdicts_total", route="validate") == 1
    assert app.turned >= began
    harness.ignored = True
    (answer,) = _served(app, until=0.05, requests=[{"path": "/validate"}])
    assert answer["response"]["warnings"] == ["first"], "what is none of our business is not warned about"


@pytest.mark.parametrize("known_then", [True, False])
def test_a_stamp_that_names_something_unknown_makes_us_look_once(
    harness: Harness, known_then: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_gate.server.app.REFRESH_SECONDS", 0.5)
    asked: list[bool] = []
    looked: list[bool] = []  # whether we went on before the look had ended
    decided = threading.Event()

    def decide(route: Route, body: bytes, facts: Facts, *, may_look_again: bool = False) -> Answer:
        asked.append(may_look_again)
        if may_look_again:
            raise BehindError("0" * 64, 7)
        decided.set()
        return harness.decide(route, body, facts)

    def refresh() -> bool:
        looked.append(not known_then and decided.wait(10))  # longer than we are ready to wait
        return known_then

    app = App(
        facts=lambda: None,  # type: ignore[arg-type, return-value]
        ready=list,
        metrics=harness.metrics,
        write=lambda _: None,
        decide=decide,
        refresh=refresh,
    )
    answers = _served(app, until=0, requests=[{"path": "/validate", "query_string": b"timeout=10s"}])
    assert answers == [{"answer": 1}]
    assert asked == [True, False]
    assert looked == [not known_then]


def test_a_live_look_that_fails_costs_no_verdict(harness: Harness) -> None:
    def decide(route: str, body: bytes, facts: Any, *, may_look_again: bool = False) -> Any:
        if may_look_again:
            raise BehindError("d", 2)
        return harness.decide(route, body, facts)

    def refresh() -> bool:
        raise RuntimeError("what the Gate now names can't be put to use")

    app = App(
        facts=lambda: None,  # type: ignore[arg-type, return-value]
        ready=list,
        metrics=harness.metrics,
        write=lambda _: None,
        decide=decide,
        refresh=refresh,
    )
    assert _served(app, until=0, requests=[{"path": "/validate", "query_string": b"timeout=10s"}]) == [{"answer": 1}]


def test_recent_verdicts_are_few_and_small(harness: Harness) -> None:
    harness.name = "n" * 1_000_000
    for _ in range(RECENT + 10):
        harness.call("POST", "/mutate")
    assert len(harness.app.recent) == RECENT
    kept = harness.app.recent[-1]
    assert (len(kept.record.name), kept.record.namespace, kept.mode) == (253, "ns", "enforce")
    assert len(json.dumps(harness.lines[-1])) < 1000
    harness.verdict = "ignore"
    harness.app.recent.clear()
    harness.call("POST", "/mutate")
    assert not harness.app.recent


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


def test_a_pod_that_etcd_can_store_has_not_too_many_parts(harness: Harness) -> None:
    body = big.review(big.PODS["50,000 variables, with managedFields"]())
    assert harness.call("POST", "/validate", [body])[0] == 200


def test_cycles_are_not_looked_for_while_a_large_body_is_judged(harness: Harness) -> None:
    """The collector would walk what is read again and again, and find nothing."""
    for body in (b"{}", b" " * 100_000):
        harness.call("POST", "/validate", [body])
    assert harness.collecting == [True, False]
    harness.error = ValueError()
    assert harness.call("POST", "/validate", [b" " * 100_000])[0] == 500
    assert gc.isenabled()
