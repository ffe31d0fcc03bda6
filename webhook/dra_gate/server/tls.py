"""The serving certificate, and whose certificate is asked for: a TLS context that follows its files without a restart.

Python can't take a certificate out of a live context, and a failed `load_cert_chain` leaves the context without a
usable pair: every later handshake fails. So each pair gets a context of its own, and a fixed front context hands new
handshakes to the newest one that loaded (`SSLContext.sni_callback`, which OpenSSL also calls for clients that send no
name). Open connections keep the context that they began with.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

CERTIFICATE = "tls.crt"
KEY = "tls.key"
POLL_SECONDS = 0.25  # a changed pair serves within a second; one look is two stat calls

_Identity = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """The pair in the directory can't be served; the message says which file and why, never what it holds."""


@dataclass(frozen=True, slots=True)
class Callers:
    """Who may call: holders of a client certificate that a CA in `authority` (PEM) has signed.

    With `names`, only those whose common name or one of whose DNS names is among them. kube-apiserver shows a
    certificate where its admission configuration names a kubeconfig for the webhook (`kubeConfigFile`).
    """

    authority: Path
    names: frozenset[str] = frozenset()


def _identity(files: tuple[Path, ...]) -> _Identity:
    """What changes when a file is replaced or rewritten. Follows symbolic links: Secret volumes swap one."""
    stats = (path.stat() for path in files)
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def _no_password() -> str:
    """OpenSSL would ask the terminal."""
    raise CertificateError(f"{KEY} is encrypted; the server needs it in the clear")


def names_in(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The common name and the DNS names of a certificate as `ssl.SSLObject.getpeercert` gives it."""
    common = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(common | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"})


class _KnownCaller(ssl.SSLObject):
    """A connection whose handshake fails unless the client's certificate carries one of `names`."""

    names: frozenset[str] = frozenset()

    def do_handshake(self) -> None:
        super().do_handshake()
        if self.names.isdisjoint(names_in(self.getpeercert() or {})):
            raise ssl.SSLCertVerificationError("the client certificate carries none of the names that may call")


def _new_context(callers: Callers | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # kube-apiserver keeps no session cache, and a resumed session outlives its certificate
    context.set_alpn_protocols(["http/1.1"])  # what kube-apiserver asks for: apiserver/pkg/util/webhook/client.go
    if callers is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        if callers.names:
            context.sslobject_class = type("_Caller", (_KnownCaller,), {"names": callers.names})
    return context


def _load(directory: Path, callers: Callers | None) -> tuple[ssl.SSLContext, float]:
    from cryptography import x509  # noqa: PLC0415 - 50 ms that only the server and `certs` pay

    context = _new_context(callers)
    try:
        context.load_cert_chain(directory / CERTIFICATE, directory / KEY, password=_no_password)
        leaf = x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes())
    except (OSError, ValueError, x509.InvalidVersion) as error:  # ssl.SSLError is an OSError
        raise CertificateError(f"{directory}: {CERTIFICATE} and {KEY} are not a usable pair: {error}") from None
    if callers is not None:
        try:
            context.load_verify_locations(callers.authority)
        except OSError as error:
            raise CertificateError(f"{callers.authority}: no usable CA certificates: {error}") from None
    return context, leaf.not_valid_after_utc.timestamp()


class ServingCertificate:
    """The pair in `directory`, kept current by `check`. Raises CertificateError without a usable pair to begin with.

    With `callers` a client without a good certificate is refused in the handshake; their CA is kept current likewise.
    Give `context` to the server. `not_after` is seconds since the epoch; `failures` counts changed pairs that didn't
    load.
    """

    def __init__(self, directory: Path, callers: Callers | None = None) -> None:
        self.failures = 0
        self.context = _new_context(callers)
        self.context.sni_callback = self._switch
        self._directory = directory
        self._callers = callers
        self._files = (directory / CERTIFICATE, directory / KEY, *((callers.authority,) if callers else ()))
        self._complained: _Identity | None = None
        self._seen, (self._current, self.not_after) = self._read()

    def check(self) -> bool:
        """Load the pair again if the files changed; True if new handshakes get another one from now on.

        A pair that doesn't load (half written, not matching) is counted and logged once and tried again at every call;
        what serves is not touched.
        """
        try:
            if _identity(self._files) == self._seen:
                return False
            seen, (current, not_after) = self._read()
        except (OSError, CertificateError) as error:
            self._complain(error)
            return False
        self._seen, self._current, self.not_after, self._complained = seen, current, not_after, None
        log.info("serving certificate changed")
        return True

    def watch(self, stop: threading.Event, interval: float = POLL_SECONDS) -> threading.Thread:
        """Call `check` every `interval` seconds in a thread until `stop` is set."""

        def run() -> None:
            while not stop.wait(interval):
                try:
                    self.check()
                except Exception:  # a dead thread would serve the old pair beyond its end
                    log.exception("the serving certificate can't be looked at")

        thread = threading.Thread(target=run, name="certificate", daemon=True)
        thread.start()
        return thread

    def _switch(self, connection: ssl.SSLObject, name: str | None, front: ssl.SSLContext) -> None:  # noqa: ARG002
        connection.context = self._current

    def _read(self) -> tuple[_Identity, tuple[ssl.SSLContext, float]]:
        """The pair and the identity it surely had: files that changed while they were read don't count as a pair."""
        try:
            before = _identity(self._files)
            loaded = _load(self._directory, self._callers)
            if _identity(self._files) != before:
                raise CertificateError(f"{self._directory}: the files changed while they were read")
        except OSError as error:
            raise CertificateError(f"{error.strerror}: {error.filename}") from None
        return before, loaded

    def _complain(self, error: Exception) -> None:
        try:
            now: _Identity | None = _identity(self._files)
        except OSError:
            now = ()
        if now != self._complained:
            self._complained = now
            self.failures += 1
            log.error("the old serving certificate stays: %s", error)
