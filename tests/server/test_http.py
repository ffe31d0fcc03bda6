"""The real server process: gunicorn's master and worker, TLS, sockets that behave badly, signals, new certificates."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from cluster.conftest import kubeconfig
from cluster.fake_api import FakeApi
from dra_gate.cluster.facts import LEDGERS, PATHS
from server.process import (
    CLUSTER,
    HOST,
    Served,
    ask,
    free_port,
    issue,
    lay_out,
    read_answer,
    review,
    serve_command,
    served,
    wait_ready,
)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for the tests that leave it as it was."""
    with served(tmp_path_factory.mktemp("gate")) as one:
        yield one


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A server for one test that stops or changes it."""
    with served(tmp_path) as one:
        yield one


def shown_serial(one: Served) -> int:
    """The serial number of the certificate that a new, verifying client is shown."""
    with one.raw() as stream:
        shown = stream.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def issued_serial(one: Served) -> int:
    return x509.load_pem_x509_certificate((one.certs / "tls.crt").read_bytes()).serial_number


def test_both_routes_answer_with_a_verdict(gate: Served) -> None:
    status, body = gate.call("POST", "/mutate?timeout=2s", review("u-7"))
    answer = json.loads(body)
    assert status == 200
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == "u-7"
    assert answer["response"]["allowed"] is True
    assert answer["response"]["patchType"] == "JSONPatch"
    assert "/spec/resourceClaims" in {
        step["path"] for step in json.loads(base64.b64decode(answer["response"]["patch"]))
    }

    status, body = gate.call("POST", "/validate?timeout=3s", review("u-8"))
    response = json.loads(body)["response"]
    assert status == 200
    assert (response["uid"], response["allowed"]) == ("u-8", False)
    assert response["status"]["code"] == 403
    assert "patch" not in response

    deadline = time.monotonic() + 10
    while not (lines := [line for line in gate.lines() if line.get("uid") == "u-8"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (lines[0]["verdict"], lines[0]["timeoutSeconds"], lines[0]["tenant"]) == ("deny", 3.0, "lilac")
    assert lines[0]["reasons"]


def test_probes_and_metrics(gate: Served) -> None:
    assert gate.call("GET", "/healthz") == (200, b"ok\n")
    assert gate.call("GET", "/readyz") == (200, b"ok\n")
    assert gate.page("/healthz") == (200, "ok\n")
    assert gate.page("/readyz") == (200, "ok\n")
    values = gate.metrics()
    not_after = x509.load_pem_x509_certificate((gate.certs / "tls.crt").read_bytes()).not_valid_after_utc.timestamp()
    assert values["dra_gate_certificate_not_after_timestamp_seconds"] == not_after
    assert values["process_resident_memory_bytes"] > 1e6
    assert gate.call("GET", "/metrics")[0] == 404, "a page that costs milliseconds is not for the port of verdicts"
    assert gate.call("GET", "/mutate")[0] == 405
    assert gate.call("POST", "/readyz", b"x")[0] == 405


def test_one_connection_serves_many_requests_also_after_refusals(gate: Served) -> None:
    with contextlib.closing(gate.connection()) as connection:
        connection.connect()
        stream = connection.sock
        for number in range(20):
            status, body, headers = ask(connection, "POST", "/mutate", review(f"u-{number}"))
            assert (status, json.loads(body)["response"]["uid"]) == (200, f"u-{number}")
            assert headers.get("Connection", "keep-alive").lower() != "close"
            assert ask(connection, "POST", "/mutate", b"{}" * number)[0] == 400
            assert ask(connection, "POST", "/mutate", b"x" * 100_000, "text/plain")[0] == 415
            assert ask(connection, "POST", "/nope", b"x" * 100_000)[0] == 404
            assert connection.sock is stream, "the connection was closed in between"


GARBAGE = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"7",
    "half": review()[:-20],
    "twice": review() + review(),
    "binary": bytes(range(256)),
    "utf-16": review().decode().encode("utf-16"),
    "nested": b"[" * 200_000,
    "nested object": b'{"a":' * 200_000,
    "NaN": b'{"request":NaN}',
    "v1beta1": review().replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"),
    "no request": b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
    "answer": b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"x","allowed":true}}',
    "no uid": review().replace(b'"uid": "u-1"', b'"uid": ""'),
    "uid a number": review().replace(b'"uid": "u-1"', b'"uid": 1'),
    "a Pod": b'{"apiVersion":"v1","kind":"Pod"}',
    "hostile kind": b'{"apiVersion":"admission.k8s.io/v1","kind":"<b>hostile</b>\\u001b[2J"}',
    "hostile version": review().replace(b"admission.k8s.io/v1", b"<b>hostile</b>"),
    "hostile text": b'{"kind": <b>hostile</b>',
}


@pytest.mark.parametrize("route", ["mutate", "validate"])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_400_in_words(gate: Served, route: str, name: str) -> None:
    status, body = gate.call("POST", f"/{route}", GARBAGE[name])
    assert status == 400
    assert 0 < len(body) < 500
    assert b"hostile" not in body, "what came is not quoted: callers write our words into their logs"


@pytest.mark.parametrize("kind", ["text/plain", "application/yaml", "application/jsonp", ""])
def test_other_content_types_are_415(gate: Served, kind: str) -> None:
    assert gate.call("POST", "/mutate", review(), kind)[0] == 415


def test_a_body_over_the_limit_is_413_and_the_client_can_read_it(gate: Served) -> None:
    size = 7 * 1024 * 1024
    padded = review() + b" " * (size - len(review()))
    assert gate.call("POST", "/mutate", padded)[0] == 200
    assert gate.call("POST", "/mutate", padded + b" ")[0] == 413
    with contextlib.closing(gate.connection()) as connection:
        pieces = (b" " * 65536 for _ in range(size // 65536 + 8))
        connection.request("POST", "/mutate", pieces, {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
)
def test_broken_http_is_refused_and_the_connection_closed(gate: Served, raw: bytes) -> None:
    with gate.raw() as stream:
        stream.sendall(raw)
        status, _, _ = read_answer(stream)
        assert 400 <= status < 600
        assert status != 500
        with contextlib.suppress(ssl.SSLEOFError):  # closed without a TLS farewell
            assert stream.recv(1) == b""
    assert gate.call("GET", "/healthz")[0] == 200


def test_nothing_is_served_in_the_clear(gate: Served) -> None:
    with contextlib.closing(http.client.HTTPConnection(HOST, gate.port, timeout=5)) as connection:
        connection.request("GET", "/healthz")
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()


def test_http_1_1_is_what_is_spoken(gate: Served) -> None:
    context = gate.tls()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(socket.create_connection((HOST, gate.port), 5), server_hostname=HOST) as stream:
        assert stream.selected_alpn_protocol() == "http/1.1"
        assert stream.version() == "TLSv1.3"


SILENT = ["tcp", "half hello", "tls", "half header", "half body", "slow answer"]


@pytest.mark.parametrize("kind", SILENT)
def test_connections_that_hang_do_not_hold_up_others(gate: Served, kind: str) -> None:
    """kube-apiserver itself keeps up to 25 idle spares: Go dials one too many and pools it unused."""
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            if kind in ("tcp", "half hello"):
                plain = stack.enter_context(socket.create_connection((HOST, gate.port), 5))
                if kind == "half hello":
                    plain.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 20)
                continue
            stream = stack.enter_context(gate.raw())
            head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            if kind == "half header":
                stream.sendall(head)
            elif kind == "half body":
                stream.sendall(head + b"Content-Length: 1000\r\n\r\n{")
            elif kind == "slow answer":  # asks and never reads
                with contextlib.suppress(OSError):  # it is cut off after the first answer
                    stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: gate.call("POST", "/mutate", review())[0], range(40)))
        assert answers == [200] * 40
        assert time.monotonic() - began < 5


def test_memory_does_not_follow_the_connections_that_came_and_went(gate: Served) -> None:
    for _ in range(20):
        assert gate.call("POST", "/mutate", review())[0] == 200
    before = gate.memory()
    for _ in range(300):
        assert gate.call("POST", "/mutate", review())[0] == 200
    assert gate.memory() - before < 25, "with asyncio's own buffers it is some 80"


def test_sigterm_answers_what_is_open_says_close_and_ends(own: Served) -> None:
    body = review()
    with contextlib.closing(own.connection()) as idle, own.raw() as half, own.raw() as spare:
        assert ask(idle, "GET", "/readyz")[0] == 200
        half.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        half.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body[:50])
        time.sleep(0.2)
        began = time.monotonic()
        own.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # from here on open connections have three seconds
            while time.monotonic() - began < 5:
                socket.create_connection((HOST, own.port), 1).close()
                time.sleep(0.05)
        half.sendall(body[50:])
        status, text, headers = read_answer(half)
        assert (status, json.loads(text)["response"]["allowed"]) == (200, True)
        assert headers["Connection"] == "close"
        status, text, headers = ask(idle, "GET", "/readyz")
        assert (status, text, headers["Connection"]) == (503, b"stopping\n", "close")
        with pytest.raises(OSError, match=r".*"):
            socket.create_connection((HOST, own.port), 1).close()
        assert own.process.poll() is None, "refused before the end"
        assert own.process.wait(10) == 0
        assert time.monotonic() - began < 7, "an idle connection must not hold the end up until the master kills"
        spare.close()
    texts = [line.get("msg", "") for line in own.lines()]
    assert any("decision" in text for text in texts), "decision lines are written before the end"


def test_sigterm_with_nothing_open_ends_at_once(own: Served) -> None:
    began = time.monotonic()
    assert own.terminate() == 0
    assert time.monotonic() - began < 3


def test_while_draining_everything_is_answered_but_not_ready_and_with_close(tmp_path: Path) -> None:
    with served(tmp_path, "--drain-seconds", "5") as one, contextlib.closing(one.connection()) as kept:
        status, _, headers = ask(kept, "POST", "/mutate", review())
        assert (status, headers.get("Connection")) == (200, None)
        one.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while one.page("/readyz") != (503, "stopping\n"):
            assert time.monotonic() - began < 3
            time.sleep(0.02)
        status, _, headers = ask(kept, "POST", "/mutate", review())
        assert (status, headers["Connection"]) == (200, "close")
        for _ in range(10):
            with contextlib.closing(one.connection()) as fresh:
                status, _, headers = ask(fresh, "POST", "/validate", review())
                assert (status, headers["Connection"]) == (200, "close")
        assert one.call("GET", "/readyz") == (503, b"stopping\n")
        assert time.monotonic() - began < 5, "a slow machine: the drain was over before it was looked at"
        assert one.process.wait(15) == 0
        assert 4.9 < time.monotonic() - began < 12, "no later than the master would kill"


def test_what_waited_while_the_process_stood_still_is_not_judged_for_nobody(own: Served) -> None:
    worker = own.worker()
    with own.raw() as gone, own.raw() as waiting:
        body = review()
        os.kill(worker, signal.SIGSTOP)
        try:
            for stream, timeout in ((gone, b"1s"), (waiting, b"30s")):
                head = (
                    b"POST /mutate?timeout=" + timeout + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                )
                stream.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(1.2)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert read_answer(gone)[0] == 503
        assert read_answer(waiting)[0] == 200
    deadline = time.monotonic() + 10  # it is counted after it was answered
    while own.metrics()['dra_gate_admission_deadline_misses_total{judged="false",route="mutate"}'] != 1:
        assert time.monotonic() < deadline


def test_a_new_certificate_serves_within_a_second_and_open_connections_live_on(own: Served) -> None:
    with contextlib.closing(own.connection()) as old:
        assert ask(old, "POST", "/mutate", review())[0] == 200
        stream = old.sock
        assert stream is not None
        shown = stream.getpeercert(binary_form=True)
        assert shown_serial(own) == issued_serial(own)
        took = []
        for _ in range(3):  # the best of them counts: a machine may pause for a second
            issue(own.certs)
            changed = time.monotonic()
            while shown_serial(own) != issued_serial(own):
                assert ask(old, "POST", "/mutate", review())[0] == 200
                assert time.monotonic() - changed < 5
                time.sleep(0.02)
            took.append(time.monotonic() - changed)
        assert min(took) < 1
        for _ in range(5):
            assert ask(old, "POST", "/mutate", review())[0] == 200
        assert old.sock is stream
        assert stream.getpeercert(binary_form=True) == shown


def test_a_broken_pair_never_serves(own: Served) -> None:
    good = issued_serial(own)
    key = (own.certs / "tls.key").read_bytes()
    (own.certs / "half.key").write_bytes(key[:100])
    (own.certs / "half.key").replace(own.certs / "tls.key")  # at once: an empty file would be counted, too
    deadline = time.monotonic() + 10
    while own.metrics()["dra_gate_certificate_reload_failures_total"] != 1:
        assert shown_serial(own) == good
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert shown_serial(own) == good
    assert "PRIVATE" not in own.log.read_text()
    assert key.splitlines()[1].decode() not in own.log.read_text()


def test_a_worker_that_dies_is_replaced(own: Served) -> None:
    before = own.worker()
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError, AssertionError):
            if own.worker() != before:
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    wait_ready(own)
    assert own.call("POST", "/mutate", review())[0] == 200


def test_the_worker_ends_when_its_master_is_killed(own: Served) -> None:
    worker = own.worker()
    own.process.kill()
    own.process.wait(5)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_log_that_nobody_reads_does_not_stop_verdicts(tmp_path: Path) -> None:
    with served(tmp_path, read_log=False) as one, contextlib.closing(one.connection()) as connection:
        for number in range(1000):  # some 300 bytes a line; a pipe takes 64 KiB
            assert ask(connection, "POST", "/mutate", review(f"u-{number}"))[0] == 200


def test_without_its_cluster_it_lives_is_not_ready_and_judges_nothing(tmp_path: Path) -> None:
    lay_out(tmp_path)
    user = {"name": "u", "user": {"token": "t"}}
    cluster = {"name": "c", "cluster": {"server": f"https://{HOST}:{free_port()}", "insecure-skip-tls-verify": True}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    parts = {"apiVersion": "v1", "kind": "Config", "users": [user], "clusters": [cluster], "contexts": [context]}
    (tmp_path / "kubeconfig").write_text(json.dumps({**parts, "current-context": "x"}))
    port = free_port()
    status_port = free_port()
    flags = ("--status-listen", f"{HOST}:{status_port}", "--stale-seconds", "1")
    command = serve_command(tmp_path, f"{HOST}:{port}", *flags, cluster=("--kubeconfig", str(tmp_path / "kubeconfig")))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
    one = Served(process, port, status_port, tmp_path / "certs", tmp_path / "log")
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                if one.call("GET", "/healthz")[0] == 200:
                    break
            assert time.monotonic() < deadline, one.log.read_text()
            time.sleep(0.05)
        status, body = one.call("GET", "/readyz")
        assert status == 503
        assert b"resourceclaims not listed yet\n" in body
        assert b"pods" not in body, "what tenants hold is in their ledgers"
        assert b"tenantledgers" not in body, "their CRD may come later"
        assert one.call("POST", "/mutate", review())[0] == 503
        assert one.page("/readyz") == (503, body.decode())
        assert one.metrics()['dra_gate_cache_age_seconds{cache="nodes"}'] > 0
        assert "not ready" in one.page("/")[1]
        began = time.monotonic()
        assert one.terminate() == 0
        assert time.monotonic() - began < 5
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def test_with_the_api_server_away_verdicts_go_on_and_carry_a_warning(tmp_path: Path) -> None:
    api = FakeApi()
    try:
        for document in yaml.safe_load_all(CLUSTER):
            api.put(f"/{PATHS[document['kind']].strip('/')}", document)
        config = kubeconfig(tmp_path / "kubeconfig", api.url)
        with served(tmp_path, "--stale-seconds", "5", cluster=("--kubeconfig", str(config))) as one:
            answer = json.loads(one.call("POST", "/mutate", review())[1])["response"]
            assert answer["patchType"] == "JSONPatch"
            assert "warnings" not in answer
            api.stop()
            deadline = time.monotonic() + 30
            while "warnings" not in answer:
                assert time.monotonic() < deadline
                time.sleep(0.2)
                status, body = one.call("POST", "/mutate", review())
                assert status == 200
                answer = json.loads(body)["response"]
            (warning,) = answer["warnings"]
            assert re.fullmatch(r"dra-gate: judged by what was known \d+ min ago \(\w+\)", warning)
            assert answer["patchType"] == "JSONPatch"
            assert one.page("/readyz") == (200, "ok\n"), "refusing every Pod would be worse"
            assert one.metrics()['dra_gate_admission_stale_verdicts_total{route="mutate"}'] >= 1
            assert "stale" in one.page("/")[1]
    finally:
        api.stop()


def test_ledgers_count_as_soon_as_their_kind_is_there(tmp_path: Path) -> None:
    api, ledgers = FakeApi(), LEDGERS.strip("/")
    api.fault = lambda asked: (404, {"kind": "Status", "code": 404}, {}) if ledgers in asked.path else None
    try:
        for document in yaml.safe_load_all(CLUSTER):
            api.put(f"/{PATHS[document['kind']].strip('/')}", document)
        config = kubeconfig(tmp_path / "kubeconfig", api.url)
        with served(tmp_path, cluster=("--kubeconfig", str(config))) as one:
            assert one.page("/readyz") == (200, "ok\n")
            answer = json.loads(one.call("POST", "/mutate", review(devices="2"))[1])["response"]
            assert answer["allowed"]
            age = 'dra_gate_cache_age_seconds{cache="tenantledgers"}'
            assert age not in one.metrics(), "what is not there is not stale"
            api.put(LEDGERS, {"metadata": {"name": "lilac"}, "spec": {"generation": 1}, "status": {"devices": 15}})
            api.fault = None
            deadline = time.monotonic() + 30
            while answer["allowed"]:
                assert time.monotonic() < deadline, one.log.read_text()
                time.sleep(0.2)
                answer = json.loads(one.call("POST", "/mutate", review(devices="2"))[1])["response"]
            assert "1 left (15 of 16 held)" in answer["status"]["message"]
            assert age in one.metrics()
            assert not [asked for asked in api.requests if asked.path == PATHS["Pod"]], "Pods are none of its business"
    finally:
        api.stop()


@pytest.mark.parametrize("port", ["first", "second"])
def test_an_address_in_use_ends_with_2(tmp_path: Path, port: str) -> None:
    lay_out(tmp_path)
    with socket.create_server((HOST, 0)) as taken:
        listen, status = f"{HOST}:{taken.getsockname()[1]}", f"{HOST}:{free_port()}"
        if port == "second":
            listen, status = status, listen
        command = serve_command(tmp_path, listen, "--status-listen", status)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("key", "tls.key"),
        ("policies", "policies.yaml:1"),
        ("cluster", "cluster.yaml"),
        ("listen", "8443"),
        ("status", "--status-listen"),
        ("client CA", "no usable CA certificates"),
        ("client name", "--client-ca"),
    ],
)
def test_a_start_that_cannot_work_ends_with_2_and_says_why(tmp_path: Path, fault: str, word: str) -> None:
    lay_out(tmp_path)
    listen = f"{HOST}:{free_port()}"
    flags: tuple[str, ...] = ("--status-listen", "off")
    if fault == "key":
        (tmp_path / "certs" / "tls.key").unlink()
    elif fault == "policies":
        (tmp_path / "policies" / "policies.yaml").write_text("kind: Nonsense\n")
    elif fault == "cluster":
        (tmp_path / "cluster.yaml").write_text("{")
    elif fault == "listen":
        listen = "8443"
    elif fault == "status":
        flags = ("--status-listen", "8080")
    elif fault == "client CA":
        flags = ("--status-listen", "off", "--client-ca", str(tmp_path / "cluster.yaml"))
    else:
        flags = ("--client-name", "apiserver")
    command = serve_command(tmp_path, listen, *flags)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_the_master_loads_nothing_that_decides() -> None:
    """It would be held twice."""
    code = (
        "import sys, dra_gate.cli.main, dra_gate.cli.serve, dra_gate.server.run\n"
        "print(*(name for name in sys.modules if name.startswith('dra_gate.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {name.split(".")[1] for name in loaded} == {"cli", "server"}
    assert "dra_gate.server.app" not in loaded
