"""The forwarder sends new connections to ready replicas only and leaves open ones alone."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane.api import wait_for
from controlplane.authority import Authority
from controlplane.forwarder import Forwarder


class Replica:
    """An HTTPS server that says its name, and on /readyz whether it is ready."""

    def __init__(self, authority: Authority, name: str) -> None:
        self.ready = True
        self.name = name
        replica = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                ok = self.path != "/readyz" or replica.ready
                body = replica.name.encode()
                self.send_response(200 if ok else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue(name))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def replicas(authority: Authority) -> Iterator[list[Replica]]:
    pair = [Replica(authority, "one"), Replica(authority, "two")]
    yield pair
    for replica in pair:
        replica.close()


@pytest.fixture
def forwarder(replicas: list[Replica]) -> Iterator[Forwarder]:
    with Forwarder([replica.port for replica in replicas], every=0.1) as running:
        running.wait_ready(2)
        yield running


def connect(forwarder: Forwarder, authority: Authority) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    return http.client.HTTPSConnection("127.0.0.1", forwarder.port, context=context, timeout=5)


def ask(connection: http.client.HTTPSConnection) -> str:
    connection.request("GET", "/")
    return connection.getresponse().read().decode()


def ask_anew(forwarder: Forwarder, authority: Authority) -> str:
    connection = connect(forwarder, authority)
    try:
        return ask(connection)
    finally:
        connection.close()


def test_new_connections_take_turns(forwarder: Forwarder, authority: Authority) -> None:
    names = [ask_anew(forwarder, authority) for _ in range(10)]
    assert names.count("one") == names.count("two") == 5


def test_readiness_is_followed_and_open_connections_stay(
    forwarder: Forwarder, authority: Authority, replicas: list[Replica]
) -> None:
    pair = [connect(forwarder, authority) for _ in range(2)]
    there = {ask(connection): connection for connection in pair}
    assert set(there) == {"one", "two"}
    replicas[0].ready = False
    forwarder.wait_ready(1)
    assert {ask_anew(forwarder, authority) for _ in range(6)} == {"two"}
    assert [ask(there["one"]) for _ in range(3)] == ["one"] * 3  # the one that was open before
    replicas[0].ready = True
    forwarder.wait_ready(2)
    assert {ask_anew(forwarder, authority) for _ in range(6)} == {"one", "two"}
    for connection in pair:
        connection.close()
    wait_for(lambda: forwarder.open_connections == 0, 5, "closed connections to be let go")


def test_without_a_ready_replica_connections_are_refused(
    forwarder: Forwarder, authority: Authority, replicas: list[Replica]
) -> None:
    kept = connect(forwarder, authority)
    name = ask(kept)
    for replica in replicas:
        replica.ready = False
    forwarder.wait_ready(0)
    with pytest.raises(ConnectionRefusedError):
        ask_anew(forwarder, authority)
    assert ask(kept) == name
    replicas[1].ready = True
    forwarder.wait_ready(1)
    assert ask_anew(forwarder, authority) == "two"  # on the same port
    kept.close()


def test_a_replica_that_went_is_noticed(forwarder: Forwarder, authority: Authority, replicas: list[Replica]) -> None:
    replicas.pop(0).close()
    forwarder.wait_ready(1)
    assert ask_anew(forwarder, authority) == "two"
    forwarder.remove(replicas[0].port)
    forwarder.wait_ready(0)
    forwarder.add(replicas[0].port)
    forwarder.wait_ready(1)


def test_large_answers_and_slow_readers(forwarder: Forwarder, authority: Authority, replicas: list[Replica]) -> None:
    replicas[0].name = replicas[1].name = "x" * 5_000_000
    assert len(ask_anew(forwarder, authority)) == 5_000_000
