"""A small plain HTTP port for people and probes: `/metrics`, `/healthz` and pages. Nothing on it changes anything."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TEXT = "text/plain; charset=utf-8"
# Nothing but our own style sheet is loaded, nothing may frame or be sent by a page.
HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip

_log = logging.getLogger(__name__)
Page = Callable[[], tuple[str, bytes]]  # content type and body


class StatusServer:
    """Serves `metrics()`, `problems()` (empty: 200, else 503 with one a line) and `pages` by path on `host`:`port` from
    daemon threads.

    Raises OSError where the port is taken. `port` 0 takes a free one; `port` says which.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], bytes],
        problems: Callable[[], list[str]],
        pages: Mapping[str, Page],
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a client to say what it wants
            server_version = "dra-gate"
            sys_version = ""

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics())
                elif path == "/healthz":
                    wrong = problems()
                    self._answer(503 if wrong else 200, _TEXT, ("\n".join(wrong) or "ok").encode() + b"\n")
                elif path in pages:
                    self._page(pages[path])
                else:
                    self._answer(404, _TEXT, b"not found\n")

            def _page(self, page: Page) -> None:
                try:
                    content_type, body = page()
                except Exception:  # noqa: BLE001 - whoever looks is told; what it was is for the log
                    _log.exception("page")
                    self._answer(500, _TEXT, b"the controller's log says more\n")
                    return
                self._answer(200, content_type, body)

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                for name, value in HEADERS:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """A probe every few seconds is no news."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="status", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
