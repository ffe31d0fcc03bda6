"""The way to the API server that a Pod has by its service account.

The `kubernetes` package knows it too, but takes 17 MB and 0.3 s of CPU to import, in every replica.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import urllib3
from urllib3.connection import HTTPConnection

FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# An idle watch notices a peer that is gone for good: probes after 30 s, every 15 s, nine of them, as client-go does.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 9}


def given(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a Pod and reaches the API server without a proxy."""
    proxied = any(environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    return "KUBERNETES_SERVICE_HOST" in environ and not proxied


class ServiceAccount:
    """`host` is the API server's URL, `pool_manager` makes at most `connections` at once that trust the Pod's CA."""

    def __init__(
        self, connections: int = 32, *, folder: Path | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        """Raises KeyError, ValueError or OSError when something of it is missing or empty."""
        folder = folder or FOLDER
        self._token = folder / "token"
        authority = folder / "ca.crt"
        if not authority.read_bytes().strip():
            raise ValueError(f"{authority} is empty")
        self.headers()
        host = environ["KUBERNETES_SERVICE_HOST"]
        self.host = f"https://{f'[{host}]' if ':' in host else host}:{int(environ['KUBERNETES_SERVICE_PORT'])}"
        probes = [(socket.IPPROTO_TCP, getattr(socket, n), v) for n, v in _KEEP_ALIVE.items() if hasattr(socket, n)]
        options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *probes]
        # By its file's name: each new connection reads what the CA is by then.
        self.pool_manager = urllib3.PoolManager(
            maxsize=connections, cert_reqs="CERT_REQUIRED", ca_certs=str(authority), socket_options=options
        )

    def headers(self) -> dict[str, str]:
        """What says who asks. The kubelet replaces the token: it is read each time. Raises OSError, ValueError."""
        token = self._token.read_text(encoding="ascii").strip()
        if not token:
            raise ValueError(f"{self._token} is empty")
        return {"authorization": f"Bearer {token}"}
