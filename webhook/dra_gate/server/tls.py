"""The serving certificate: a TLS context that follows `tls.crt` and `tls.key` on disk without a restart.

Python can't take a certificate out of a live context, and a failed `load_cert_chain` leaves the context without a
usable pair: every later handshake fails. So each pair gets a context of its own, and a fixed front context hands new
handshakes to the newest one that loaded (`SSLContext.sni_callback`, which OpenSSL also calls for clients that send no
name). Open connections keep the context that they began with.
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

log = logging.getLogger(__name__)

CERTIFICATE = "tls.crt"
KEY = "tls.key"
POLL_SECONDS = 0.25  # a changed pair serves within a second; one look is two stat calls

_Identity = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """The pair in the directory can't be served; the message says which file and why, never what it holds."""


def _identity(directory: Path) -> _Identity:
    """What changes when a file is replaced or rewritten. Follows symbolic links: Secret volumes swap one."""
    stats = (path.stat() for path in (directory / CERTIFICATE, directory / KEY))
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def _no_password() -> str:
    """OpenSSL would ask the terminal."""
    raise CertificateError(f"{KEY} is encrypted; the server needs it in the clear")


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # kube-apiserver keeps no session cache, and a resumed session outlives its certificate
    context.set_alpn_protocols(["http/1.1"])  # what kube-apiserver asks for: apiserver/pkg/util/webhook/client.go
    return context


def _load(directory: Path) -> tuple[ssl.SSLContext, float]:
    from cryptography import x509  # noqa: PLC0415 - 50 ms that only the server and `certs` pay

    context = _new_context()
    try:
        context.load_cert_chain(directory / CERTIFICATE, directory / KEY, password=_no_password)
        leaf = x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes())
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise CertificateError(f"{directory}: {CERTIFICATE} and {KEY} are not a usable pair: {error}") from None
    return context, leaf.not_valid_after_utc.timestamp()


class ServingCertificate:
    """The pair in `directory`, kept current by `check`. Raises CertificateError without a usable pair to begin with.

    Give `context` to the server. `not_after` is seconds since the epoch; `failures` counts changed pairs that didn't
    load.
    """

    def __init__(self, directory: Path) -> None:
        self.failures = 0
        self.context = _new_context()
        self.context.sni_callback = self._switch
        self._directory = directory
        self._complained: _Identity | None = None
        self._seen, (self._current, self.not_after) = self._read()

    def check(self) -> bool:
        """Load the pair again if the files changed; True if new handshakes get another one from now on.

        A pair that doesn't load (half written, not matching) is counted and logged once and tried again at every call;
        what serves is not touched.
        """
        try:
            if _identity(self._directory) == self._seen:
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
                self.check()

        thread = threading.Thread(target=run, name="certificate", daemon=True)
        thread.start()
        return thread

    def _switch(self, connection: ssl.SSLObject, name: str | None, front: ssl.SSLContext) -> None:  # noqa: ARG002
        connection.context = self._current

    def _read(self) -> tuple[_Identity, tuple[ssl.SSLContext, float]]:
        """The pair and the identity it surely had: files that changed while they were read don't count as a pair."""
        try:
            before = _identity(self._directory)
            loaded = _load(self._directory)
            if _identity(self._directory) != before:
                raise CertificateError(f"{self._directory}: {CERTIFICATE} and {KEY} changed while they were read")
        except OSError as error:
            raise CertificateError(f"{self._directory}: {error.strerror}: {error.filename}") from None
        return before, loaded

    def _complain(self, error: Exception) -> None:
        try:
            now: _Identity | None = _identity(self._directory)
        except OSError:
            now = ()
        if now != self._complained:
            self._complained = now
            self.failures += 1
            log.error("the old serving certificate stays: %s", error)
