"""One leader by a coordination.k8s.io/v1 Lease, as client-go's `tools/leaderelection` elects it.

Times are judged by this machine's monotonic clock since it saw the Lease change, never by the times written in it: the
clocks of two machines need not agree. Every write carries the resourceVersion that it was decided on.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dra_gate.cluster.client import Client, ClusterError, Conflict, NotFound, Object

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, with client-go's defaults: how long a lease holds unrenewed, how long its holder tries, how often."""

    duration: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew > self.retry > 0:
            raise ValueError("a lease must hold longer than its holder tries to renew it, and that longer than a retry")


@dataclass
class _Seen:
    """The Lease as last read, and when it was first seen so."""

    obj: Object = field(default_factory=dict)
    at: float = 0.0

    @property
    def spec(self) -> dict[str, Any]:
        spec = self.obj.get("spec")
        return spec if isinstance(spec, dict) else {}


class Lease:
    """Runs for election until `stop`, in a thread of its own; calls `on_started` and `on_stopped` in turns from it.

    Both must return soon. `on_stopped` comes within `Timing.renew` seconds of the last renewal, so before any other may
    start. `held()` is for the last look before a write: it is false as soon as the time is up, even where this process
    was asleep and the thread has not noticed yet.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_started: Callable[[], None],
        on_stopped: Callable[[], None],
        timing: Timing = Timing(),
    ) -> None:
        if not identity:
            raise ValueError("an empty identity is how a Lease says that nobody holds it")
        self.identity = identity
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._metadata = {"name": name, "namespace": namespace}
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._timing = timing
        self._seen = _Seen()
        self._stale = True  # what we saw is not what is there: read before writing
        self._held_until = 0.0  # time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> Lease:
        """Start running for election; returns self."""
        self._thread.start()
        return self

    def stop(self, timeout: float = 5.0) -> None:
        """Stop leading, give the Lease up so that whoever asks next has it; waits at most `timeout` seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def held(self) -> bool:
        """Whether we lead, by the clock."""
        return time.monotonic() < self._held_until

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def holder(self) -> str:
        """Who held the Lease when it was last read; empty if nobody did."""
        return str(self._seen.spec.get("holderIdentity") or "")

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._attempt(time.monotonic() + self._timing.renew):
                self._lead()
            else:
                # client-go's JitterFactor 1.2: standbys do not ask in step.
                self._stopping.wait(self._timing.retry * (1 + 1.2 * random.random()))  # noqa: S311

    def _lead(self) -> None:
        _log.info("lease %s: %s leads", self._path, self.identity)
        self._on_started()
        try:
            while not self._stopping.wait(self._timing.retry):
                deadline = self._held_until
                while not self._attempt(deadline):
                    if not self._mine() or self._stopping.wait(min(self._timing.retry, deadline - time.monotonic())):
                        return
                    if time.monotonic() >= deadline:
                        _log.warning("lease %s: not renewed in %.0f s", self._path, self._timing.renew)
                        return
        finally:
            self._held_until = 0.0
            self._on_stopped()
            _log.info("lease %s: %s leads no more", self._path, self.identity)
            if self._stopping.is_set() and self._mine():
                self._release()

    def _mine(self) -> bool:
        return self.holder() == self.identity

    def _attempt(self, deadline: float) -> bool:
        """Acquire or renew, with no request waiting past `deadline` (time.monotonic()) for an answer."""
        began = time.monotonic()
        # Half, so that one lost packet leaves time for a second try (client-go: the lock's client times out likewise).
        patience = max(0.1, min(self._timing.renew / 2, deadline - began))
        try:
            try:
                taken = self._take(patience)
            except (Conflict, NotFound):
                self._stale = True  # somebody wrote or deleted it in between, which need not mean that it is lost
                taken = self._take(patience)
        except ClusterError as error:
            _log.warning("lease %s: %s", self._path, error)
            return False
        if not taken:
            return False
        # Counted from before the request: the server wrote our time no earlier than we asked.
        self._held_until = began + self._timing.renew
        return True

    def _take(self, patience: float) -> bool:
        if self._stale or not (self.held() and self._mine()):
            try:
                self._observe(self._client.get(self._path, timeout=patience))
            except NotFound:
                self._observe(self._client.create(self._collection, self._new(), timeout=patience))
                return True
            lasts = self._seen.spec.get("leaseDurationSeconds") or 0
            if self.holder() and not self._mine() and time.monotonic() < self._seen.at + lasts:
                return False
        self._write(self._record(acquired=not self._mine()), patience)
        return True

    def _new(self) -> Object:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._metadata,
            "spec": self._record(acquired=True),
        }

    def _record(self, *, acquired: bool) -> dict[str, Any]:
        """The spec to write (api/coordination/v1 LeaseSpec), over what is there."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._seen.spec
        record = {
            **old,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0),
        }
        if acquired:
            record["acquireTime"] = now
            if old:
                record["leaseTransitions"] += 1
        return record

    def _write(self, spec: dict[str, Any], patience: float) -> None:
        self._observe(self._client.replace(self._path, {**self._seen.obj, "spec": spec}, timeout=patience))

    def _observe(self, obj: Object) -> None:
        if obj.get("spec") != self._seen.spec:
            self._seen.at = time.monotonic()
        self._seen.obj = obj
        self._stale = False

    def _release(self) -> None:
        spec = {**self._record(acquired=False), "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            self._write(spec, min(2.0, self._timing.renew / 2))
        except ClusterError as error:
            _log.warning("lease %s: not given up: %s", self._path, error)
