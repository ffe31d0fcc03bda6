"""Runs the application under gunicorn: a supervising master and one worker with an asyncio loop.

One worker a replica: metrics, watches and caches would multiply with more, and one loop answers thousands of reviews a
second. gunicorn's threaded worker is no choice behind TLS: an idle connection holds a thread for ever.
"""

from __future__ import annotations

import gc
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

from dra_gate.server.log import logging_config
from dra_gate.server.tls import CERTIFICATE, KEY, Callers, ServingCertificate
from dra_gate.server.worker import KEEP_ALIVE, Handshake, Worker

if TYPE_CHECKING:
    from dra_gate.server.app import App  # brings in all that decides, which only the worker needs

CANNOT_START: int = Arbiter.APP_LOAD_ERROR  # a worker that ends with it is not replaced: gunicorn ends with it too
# How long a thread that reads watches may go on while a review waits: by default 5 ms, which is then what it waits.
SWITCH_SECONDS = 0.001
WORKER_TIMEOUT = 30  # seconds without a heartbeat after which the master replaces the worker
LINGER = 3  # seconds after the drain in which requests on open connections are still answered
SPARE = 4  # more seconds, after which the master kills a worker that won't end


@dataclass(frozen=True)
class Process:
    """What the application may ask about the process that it runs in.

    `stopping` is true from SIGTERM on; `connections` gives how many are open and how many were turned away so far.
    """

    certificate: ServingCertificate
    stopping: Callable[[], bool]
    connections: Callable[[], tuple[int, int]]


Build: TypeAlias = "Callable[[Process], App]"


def serve(
    build: Build, *, listen: str, certificates: Path, callers: Callers | None = None, drain_seconds: float = 0.0
) -> None:
    """Serve HTTPS on `listen` (`address:port`) until SIGTERM or SIGINT; does not return (SystemExit).

    `build` makes the application, in the worker, after the fork: threads started there live. When it can't, it says why
    and raises SystemExit(CANNOT_START), with which then everything ends. `certificates` is the folder of the serving
    pair; `callers` says whose client certificate is asked for (None: anybody may call). After SIGTERM everything goes
    on for `drain_seconds`, but not ready and with `Connection: close` on each answer.
    Raises tls.CertificateError before anything is opened if the folder holds no usable pair, or no CA can be loaded.
    """
    ServingCertificate(certificates, callers)
    _Gunicorn(build, listen, certificates, callers, drain_seconds).run()


class _Gunicorn(BaseApplication):  # type: ignore[misc]  # gunicorn is untyped
    def __init__(
        self, build: Build, listen: str, certificates: Path, callers: Callers | None, drain_seconds: float
    ) -> None:
        self._build = build
        self._listen = listen
        self._certificates = certificates
        self._callers = callers
        self._drain = drain_seconds
        self._worker: Any = None
        self._certificate: ServingCertificate | None = None
        super().__init__()

    def load_config(self) -> None:
        settings: dict[str, object] = {
            "bind": [self._listen],
            "workers": 1,
            "worker_class": Worker,
            "asgi_loop": "asyncio",  # `auto` would take a uvloop that happens to be installed: run what is tested
            "http_parser": "python",  # likewise
            "asgi_lifespan": "on",
            "keepalive": int(KEEP_ALIVE),
            "timeout": WORKER_TIMEOUT,
            "graceful_timeout": int(self._drain) + LINGER + SPARE,
            "certfile": str(self._certificates / CERTIFICATE),  # without both names gunicorn would serve in the clear
            "keyfile": str(self._certificates / KEY),
            "ssl_context": self._context,
            "pre_fork": _before_fork,
            "post_fork": self._forked,
            "control_socket_disable": True,
            "logconfig_dict": logging_config(),
            "proc_name": "dra-gate",
        }
        if Path("/dev/shm").is_dir():  # noqa: S108 - the heartbeat file; the root file system may be read-only
            settings["worker_tmp_dir"] = "/dev/shm"  # noqa: S108
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> App:
        """Runs in the worker; an exception here ends gunicorn with status 3."""
        worker = self._worker
        sys.setswitchinterval(SWITCH_SECONDS)
        self._certificate = ServingCertificate(self._certificates, self._callers)
        self._certificate.watch(threading.Event())  # a daemon thread: ends with the worker
        return self._build(
            Process(
                certificate=self._certificate,
                stopping=lambda: worker.draining or not worker.alive,
                connections=lambda: (worker.nr_conns, worker.turned_away + Handshake.turned_away),
            )
        )

    def _context(self, _config: object, _default: object) -> ssl.SSLContext:
        # gunicorn serves in the clear when this hook raises, so all that can fail has been done in load().
        assert self._certificate is not None  # noqa: S101
        return self._certificate.context

    def _forked(self, _arbiter: object, worker: Any) -> None:
        self._worker = worker
        worker.drain = self._drain
        # In the worker's own copy: gunicorn waits so long for idle keep-alive connections, which don't end themselves.
        worker.cfg.set("graceful_timeout", LINGER)


def _before_fork(_arbiter: object, _worker: object) -> None:
    gc.freeze()  # the worker's collector would write to, and so copy, every page that it shares with the master
