"""The second port, plain HTTP: probes, metrics, and pages for people. Nothing on it changes anything.

Who reaches it reads names of tenants, namespaces and Pods, but nothing of what is in a Pod. It stands on threads of its
own, so that a probe is answered while the worker's loop judges, and says when that loop no longer turns.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_gate import __version__
from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL, Facts
from dra_gate.policy.model import PolicyRef, Tenant
from dra_gate.server.app import Decision
from dra_gate.server.log import timestamp
from dra_gate.server.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

STALLED_SECONDS = 10.0  # without a turn of the worker's loop: no longer healthy
IDLE_SECONDS = 10  # a client that has not asked for anything complete in this time is cut off
CONNECTIONS = 200
_ROOT = Path(__file__).parent / "pages"
_TEXT = "text/plain; charset=utf-8"
# Nothing but our own style sheet is loaded, nothing may frame or be sent by a page.
HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """What there is to see; each callable is asked when somebody looks.

    `facts` is None until there are policies, `reasons` says why we are not ready, `turned` when the worker's loop last
    turned (time.monotonic), `ages` seconds since each cache last heard from the API server, `not_after` when the
    serving certificate ends (seconds since the epoch), `refused` why published policy sets can't be used, by name.
    """

    facts: Callable[[], Facts | None]
    reasons: Callable[[], list[str]]
    metrics: Callable[[], bytes]
    recent: Callable[[], Sequence[Decision]]
    turned: Callable[[], float]
    stale_seconds: float
    ages: Callable[[], Mapping[str, float]] = dict
    not_after: Callable[[], float | None] = lambda: None
    refused: Callable[[], Mapping[str, str]] = dict


class Console:
    """The WSGI application of the second port."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._pages: WSGIApplication | None = None
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One request. GET only."""
        if environ["REQUEST_METHOD"] != "GET":
            return _plain(start_response, "405 Method Not Allowed", b"method not allowed\n", ("Allow", "GET"))
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return _plain(start_response, "200 OK", self._view.metrics(), kind=CONTENT_TYPE)
        if path in ("/healthz", "/readyz"):
            reasons = self._stalled() + (self._view.reasons() if path == "/readyz" else [])
            text = "".join(f"{reason}\n" for reason in reasons) or "ok\n"
            return _plain(start_response, "503 Service Unavailable" if reasons else "200 OK", text.encode())
        return self._people()(environ, start_response)

    def _stalled(self) -> list[str]:
        silent = time.monotonic() - self._view.turned()
        return [f"the server's loop has not turned for {silent:.0f} s"] if silent > STALLED_SECONDS else []

    def _people(self) -> WSGIApplication:
        with self._lock:
            if self._pages is None:
                self._pages = _pages(self._view)
            return self._pages


def listen(address: str, port: int) -> socket.socket:
    """A listening socket for `serve_console`, to be made before the fork. Raises OSError where it can't be had."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=128)


def serve_console(console: Console, listening: socket.socket) -> None:
    """Serve in daemon threads from now on."""
    from waitress import create_server  # noqa: PLC0415
    from waitress.channel import HTTPChannel  # noqa: PLC0415

    class Channel(HTTPChannel):  # type: ignore[misc]  # waitress is untyped
        last_activity: float

        def handle_read(self) -> None:
            before: float = self.last_activity
            super().handle_read()
            if not self.requests:  # half a request is no activity: a client may send a byte now and then for ever
                self.last_activity = before

    # Nothing is spilled to files: the root file system may be read-only.
    server = create_server(
        console,
        sockets=[listening],
        threads=2,
        channel_timeout=IDLE_SECONDS,
        cleanup_interval=2,
        connection_limit=CONNECTIONS,
        asyncore_use_poll=True,  # select() takes no file descriptor above 1023
        max_request_header_size=8192,
        max_request_body_size=4096,
        outbuf_overflow=64 * 1024 * 1024,
        ident=None,
    )
    server.channel_class = Channel
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it would tell of every probe that had to wait
    threading.Thread(target=server.run, name="console", daemon=True).start()


def _plain(
    start_response: StartResponse, status: str, body: bytes, *headers: tuple[str, str], kind: str = _TEXT
) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS, *headers])
    return [body]


def _pages(view: View) -> WSGIApplication:
    """The pages, made when the first one is asked for: Flask costs 20 MB that a replica without visitors saves."""
    from flask import Flask, Response, abort, render_template  # noqa: PLC0415

    app = Flask("dra_gate", static_folder=None, template_folder=str(_ROOT))
    app.jinja_env.filters.update(ago=_ago, when=lambda seconds: timestamp(seconds).replace("T", " ")[:19])
    app.jinja_env.globals["version"] = __version__
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    style = (_ROOT / "style.css").read_text()

    def known() -> Facts:
        facts = view.facts()
        if facts is None:
            abort(503, "There is no policy set yet.")
        return facts

    def overview() -> str:
        now = time.time()
        not_after = view.not_after()
        return render_template(
            "overview.html",
            reasons=view.reasons(),
            sets=_sets(view.facts()),
            facts=view.facts(),
            refused=view.refused(),
            ages=view.ages(),
            stale=view.stale_seconds,
            not_after=not_after,
            left=None if not_after is None else not_after - now,
        )

    def tenants() -> str:
        facts = known()
        return render_template(
            "tenants.html", tenants=[_tenant(tenant, facts) for tenant in facts.policy_set.tenants.values()]
        )

    def tenant(name: str) -> str:
        facts = known()
        found = facts.policy_set.tenants.get(name)
        if found is None:
            abort(404, "There is no such tenant in the active policy set.")
        return render_template("tenant.html", **_tenant(found, facts), templates=_templates(found, facts))

    def policies() -> str:
        facts = known()
        return render_template("policies.html", policy_set=facts.policy_set)

    def verdicts() -> str:
        return render_template("verdicts.html", recent=list(reversed(list(view.recent()))), now=time.time())

    def stylesheet() -> Response:
        return Response(style, mimetype="text/css")

    def finish(response: Response) -> Response:
        response.headers.extend(HEADERS)
        return response

    def failed(error: Exception) -> tuple[str, int]:
        code = getattr(error, "code", None) or 500
        if code == 500:
            app.logger.exception("page")
        why = getattr(error, "description", None) if code != 500 else "The gate's log says more."
        return render_template("error.html", code=code, why=why), code

    for path, page in (
        ("/", overview),
        ("/tenants", tenants),
        ("/tenants/<name>", tenant),
        ("/policies", policies),
        ("/verdicts", verdicts),
        ("/style.css", stylesheet),
    ):
        app.add_url_rule(path, view_func=page, provide_automatic_options=False)
    app.after_request(finish)
    app.register_error_handler(Exception, failed)
    return app.wsgi_app


def _ago(seconds: float) -> str:
    """A span in one unit: `12 s`, `3 min`, `5 h`, `9 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.1f} s"


def _sets(facts: Facts | None) -> list[dict[str, Any]]:
    if facts is None:
        return []
    rows = [("active", facts.policy_set), *(("accepted", found) for found, _ in facts.accepted.values())]
    return [{"state": state, "set": policy_set} for state, policy_set in rows]


def _tenant(tenant: Tenant, facts: Facts) -> dict[str, Any]:
    used = facts.ledger(tenant.name).used
    models = {model: used.models.get(model, 0) for model in (*tenant.quota.models, *sorted(used.models))}
    namespaces = []
    for name in tenant.namespaces:
        labels = facts.namespaces.get(name)
        ref = tenant.policy_for(name)
        namespaces.append(
            {
                "name": name,
                "policy": ref,
                "canary": tenant.canary is not None and ref == tenant.canary.policy,
                "exists": labels is not None,
                "lane": (labels or {}).get(LANE_LABEL, ""),
                "mode": (labels or {}).get(MODE_LABEL, "enforce"),
                "templates": _present(tenant, name, ref, facts),
            }
        )
    return {"tenant": tenant, "used": used, "models": models, "namespaces": namespaces}


def _present(tenant: Tenant, namespace: str, ref: PolicyRef, facts: Facts) -> int:
    return sum((namespace, template.name) in facts.templates for template in facts.index.of(tenant.name, ref))


def _templates(tenant: Tenant, facts: Facts) -> list[dict[str, Any]]:
    """The tenant's templates that are in at least one of its namespaces, by policy and count."""
    rows = []
    refs = dict.fromkeys(ref for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace))
    for ref in refs:
        allowed = [namespace for namespace in tenant.namespaces if ref in tenant.valid_refs(namespace)]
        for template in facts.index.of(tenant.name, ref):
            present = [namespace for namespace in allowed if (namespace, template.name) in facts.templates]
            if present:
                rows.append({"template": template, "namespaces": present})
    return rows


def namespaces_with_templates(facts: Facts | None) -> tuple[int, int]:
    """How many gated namespaces of tenants have a template of their policy, and how many have none."""
    if facts is None:
        return 0, 0
    gated = [
        (name, facts.index.for_count(tenant.name, tenant.policy_for(name), 1).name)
        for tenant in facts.policy_set.tenants.values()
        for name in tenant.namespaces
        if LANE_LABEL in facts.namespaces.get(name, {})
    ]
    synced = sum(key in facts.templates for key in gated)
    return synced, len(gated) - synced
