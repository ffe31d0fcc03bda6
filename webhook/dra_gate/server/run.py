"""Runs the application under gunicorn: a supervising master and one worker with an asyncio loop.

One worker a replica: metrics, watches and caches would multiply with more, and one loop answers thousands of reviews a
second. gunicorn's threaded worker is no choice behind TLS: an idle connection holds a thread for ever.
"""

from __future__ import annotations

import ssl
import threading
from asyncio import sslproto
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from dra_gate.server.app import App
from dra_gate.server.log import logging_config
from dra_gate.server.tls import CERTIFICATE, KEY, ServingCertificate

KEEP_ALIVE = 120  # seconds; kube-apiserver keeps idle connections for 90 s and must never find one closed by us
TLS_BUFFER = 32 * 1024  # bytes a connection; a TLS record has at most 16 KiB, a usual review 10
WORKER_TIMEOUT = 30  # seconds without a heartbeat after which the master replaces the worker
LINGER = 3  # seconds in which, after SIGTERM, requests on open connections are still answered, with `Connection: close`
HARD_STOP = 10  # seconds after which the master kills a worker that won't end

Build = Callable[[ServingCertificate, Callable[[], bool]], App]


def serve(build: Build, *, listen: str, certificates: Path) -> None:
    """Serve HTTPS on `listen` (`address:port`) until SIGTERM or SIGINT; does not return (SystemExit).

    `build` makes the application, in the worker, after the fork: threads started there live. It gets the certificate,
    loaded from the folder `certificates`, and a function that tells whether the worker has been told to stop.
    Raises tls.CertificateError before anything is opened if the folder holds no usable pair.
    """
    ServingCertificate(certificates)
    _Gunicorn(build, listen, certificates).run()


class _Gunicorn(BaseApplication):  # type: ignore[misc]  # gunicorn is untyped
    def __init__(self, build: Build, listen: str, certificates: Path) -> None:
        self._build = build
        self._listen = listen
        self._certificates = certificates
        self._worker: Any = None
        self._certificate: ServingCertificate | None = None
        super().__init__()

    def load_config(self) -> None:
        settings: dict[str, object] = {
            "bind": [self._listen],
            "workers": 1,
            "worker_class": "asgi",
            "asgi_loop": "asyncio",  # `auto` would take a uvloop that happens to be installed: run what is tested
            "asgi_lifespan": "on",
            "keepalive": KEEP_ALIVE,
            "timeout": WORKER_TIMEOUT,
            "graceful_timeout": HARD_STOP,
            "certfile": str(self._certificates / CERTIFICATE),  # without both names gunicorn would serve in the clear
            "keyfile": str(self._certificates / KEY),
            "ssl_context": self._context,
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
        # asyncio gives each TLS connection a read buffer of 256 KiB. kube-apiserver keeps 25 connections, every probe
        # makes one, and gunicorn leaves closed ones to the garbage collector: memory would follow the connections.
        sslproto.SSLProtocol.max_size = TLS_BUFFER
        self._certificate = ServingCertificate(self._certificates)
        self._certificate.watch(threading.Event())  # a daemon thread: ends with the worker
        return self._build(self._certificate, lambda: not self._worker.alive)

    def _context(self, _config: object, _default: object) -> ssl.SSLContext:
        # gunicorn serves in the clear when this hook raises, so all that can fail has been done in load().
        assert self._certificate is not None  # noqa: S101
        return self._certificate.context

    def _forked(self, _arbiter: object, worker: Any) -> None:
        self._worker = worker
        # In the worker's own copy: gunicorn waits so long for idle keep-alive connections, which don't end themselves.
        worker.cfg.set("graceful_timeout", LINGER)
