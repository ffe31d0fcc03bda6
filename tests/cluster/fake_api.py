"""A small API server for failure tests: list, watch, get, create, replace, delete over HTTP, and faults on order.

It keeps what the reflector and the lease lean on: one growing resourceVersion, a watch log that can be compacted,
optimistic concurrency, preconditions. Faults are what real servers do when they are ill.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, dict[str, Any], dict[str, str]]


def status(code: int, reason: str, message: str = "fault") -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


def everywhere(path: str) -> str:
    """The path of the same collection over all namespaces."""
    return re.sub(r"/namespaces/[^/]+(?=/)", "", path)


@dataclass
class Request:
    method: str
    path: str
    params: dict[str, str]
    at: float
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def is_watch(self) -> bool:
        return self.params.get("watch") == "true"


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merged(new.get(key), value)
    return new


def _by_type(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A strategic merge patch of conditions as a merge patch: the list holds one of each type."""
    there = {one["type"]: one for one in old.get("status", {}).get("conditions", [])}
    there |= {one["type"]: one for one in patch.get("status", {}).get("conditions", [])}
    return {**patch, "status": {**patch.get("status", {}), "conditions": list(there.values())}}


class FakeApi:
    """`fault`, when set, sees each request first: it may return an answer, raise ConnectionAbortedError, or block."""

    def __init__(self, port: int = 0) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.compacted = 0  # versions below this are answered 410
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.watchers: list[tuple[str, queue.Queue[dict[str, Any] | None]]] = []
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Answer | None] | None = None
        self.close_watches = False  # answer 200 and end the stream at once
        self.lock = threading.RLock()
        self._connections: set[Any] = set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake._connections.add(self.connection)

            def finish(self) -> None:
                fake._connections.discard(self.connection)
                super().finish()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                pass

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                params = {k: v[0] for k, v in parse_qs(parts.query).items()}
                request = Request(self.command, parts.path, params, time.monotonic(), dict(self.headers))
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                fake.requests.append(request)
                try:
                    if fake.fault is not None:
                        answer = fake.fault(request)
                        if answer is not None:
                            self._answer(*answer)
                            return
                    if request.is_watch:
                        self._watch(request)
                    else:
                        self._answer(*fake.handle(request, body))
                except ConnectionError:
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815 - the base class's names

            def _answer(self, code: int, body: dict[str, Any], headers: dict[str, str]) -> None:
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)

            def _watch(self, request: Request) -> None:
                mine: queue.Queue[dict[str, Any] | None] = queue.Queue()
                since = int(request.params["resourceVersion"])
                with fake.lock:
                    if since < fake.compacted:
                        self._answer(410, status(410, "Expired", f"too old resource version: {since}"), {})
                        return
                    for version, path, kind, obj in fake.log:
                        if version > since and request.path in (path, everywhere(path)):
                            mine.put({"type": kind, "object": obj})
                    fake.watchers.append((request.path, mine))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                ends = time.monotonic() + float(request.params.get("timeoutSeconds", "300"))
                while not fake.close_watches and time.monotonic() < ends:
                    try:
                        event = mine.get(timeout=0.05)
                    except queue.Empty:
                        continue
                    if event is None:
                        break
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.write(b"0\r\n\r\n")

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def handle(self, request: Request, body: Any) -> Answer:
        with self.lock:
            path = request.path
            if request.method == "GET" and path in self.objects:
                return 200, self.objects[path], {}
            if request.method == "GET" and path.rsplit("/", 1)[1].endswith("s"):
                return self._list(request)
            if request.method == "POST":
                if "name" not in body["metadata"]:
                    body["metadata"]["name"] = f"{body['metadata']['generateName']}{self.version}"
                key = f"{path}/{body['metadata']['name']}"
                if key in self.objects:
                    return 409, status(409, "AlreadyExists"), {}
                return 201, self.put(path, body), {}
            if request.method == "PATCH" and path.removesuffix("/status") in self.objects:
                path = path.removesuffix("/status")
                if request.headers.get("Content-Type") == "application/strategic-merge-patch+json":
                    body = _by_type(self.objects[path], body)
                return self._patch(path, body)
            if path not in self.objects:
                return 404, status(404, "NotFound", f"{path} not found"), {}
            collection = path.rsplit("/", 1)[0]
            have = self.objects[path]["metadata"]
            if request.method == "PUT":
                if body["metadata"].get("resourceVersion") not in (None, have["resourceVersion"]):
                    return 409, status(409, "Conflict"), {}
                return 200, self.put(collection, body), {}
            if request.method == "DELETE":
                wanted = (body or {}).get("preconditions", {})
                if any(have[key] != value for key, value in wanted.items()):
                    return 409, status(409, "Conflict", "Precondition failed"), {}
                return 200, self.remove(path), {}
            return 405, status(405, "MethodNotAllowed"), {}

    def _patch(self, path: str, patch: dict[str, Any]) -> Answer:
        """JSON merge patch (RFC 7386), with the version as precondition where it is given."""
        old = self.objects[path]
        if patch.get("metadata", {}).get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            return 409, status(409, "Conflict"), {}
        new = _merged(old, patch)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return 200, self.put(path.rsplit("/", 1)[0], new), {}

    def _list(self, request: Request) -> Answer:
        items = [
            obj
            for path, obj in sorted(self.objects.items())
            if request.path in (path.rsplit("/", 1)[0], everywhere(path).rsplit("/", 1)[0])
        ]
        start = int(request.params.get("continue", "0"))
        limit = int(request.params.get("limit", "0")) or len(items) or 1
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        return (
            200,
            {"kind": "ThingList", "apiVersion": "v1", "metadata": metadata, "items": items[start : start + limit]},
            {},
        )

    def _emit(self, collection: str, kind: str, obj: dict[str, Any]) -> None:
        self.log.append((self.version, collection, kind, obj))
        for path, mine in self.watchers:
            if path in (collection, everywhere(collection)):
                mine.put({"type": kind, "object": obj})

    def put(self, collection: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.version += 1
            path = f"{collection}/{body['metadata']['name']}"
            old = self.objects.get(path)
            uid = old["metadata"]["uid"] if old else f"uid-{self.version}"
            obj = {**body, "metadata": {**body["metadata"], "uid": uid, "resourceVersion": str(self.version)}}
            self.objects[path] = obj
            self._emit(collection, "MODIFIED" if old else "ADDED", obj)
            return obj

    def remove(self, path: str) -> dict[str, Any]:
        with self.lock:
            self.version += 1
            obj = self.objects.pop(path)
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
            self._emit(path.rsplit("/", 1)[0], "DELETED", obj)
            return obj

    def send(self, event: dict[str, Any] | None) -> None:
        """Put an event (or the end of the stream) into every open watch, past the log."""
        with self.lock:
            for _, mine in self.watchers:
                mine.put(event)

    def compact(self) -> None:
        with self.lock:
            self.compacted = self.version + 1
            self.log.clear()

    def break_connections(self) -> None:
        """Reset every open connection, as a killed server would."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(2)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.break_connections()
        self.close_watches = True  # or their threads would look for events for minutes, in everybody's process time
