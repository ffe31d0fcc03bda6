"""A cache of one kind of object kept true by list and watch, calm when the API server is ill.

The order of things is client-go's (`tools/cache/reflector.go`): list, watch from the list's resourceVersion, list again
only when that is too old. What differs from the `kubernetes` package's informer: every failure waits, every read has a
time-out, and a long idle watch keeps its place by bookmarks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from dra_gate.cluster.client import (
    PAGE,
    ApiError,
    Client,
    ClusterError,
    Gone,
    NotFound,
    Object,
    Params,
    Unreachable,
    Watch,
    lean,
)

BACKOFF_SECONDS = (0.2, 30.0)  # first and longest wait between attempts
WATCH_SECONDS = (240, 480)  # the server ends a watch after a time drawn from here: replicas come back one by one
STEADY_SECONDS = 5.0  # a watch that lived this long was no failure, however it ended
UNSERVED_SECONDS = (60, 120)  # until a kind that the server does not serve is asked for again
PATIENCE = 5  # refusals in a row before the place in the stream is given up and all is listed anew

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where the objects go. Called from the reflector's thread only; it keeps what it needs and lets go of the rest.

    `shape` is a msgspec type of all that the sink reads of an object, its name, namespace and resourceVersion among it;
    only that comes. None: all comes, but for `metadata.managedFields`, with `apiVersion` and `kind` set. An exception
    is counted and answered by a new list, so a sink need not repair itself.
    """

    @property
    def shape(self) -> type | None:
        """What to decode of an object."""

    def replace(self, objects: Iterable[Object]) -> None:
        """The whole truth at one moment: what is not in `objects` does not exist.

        `objects` come off the network as they are iterated over, once: hold no lock meanwhile, and take nothing for
        gone before the last has come. What the iteration raises must pass.
        """

    def upsert(self, obj: Object) -> None:
        """`obj` was created or changed."""

    def delete(self, obj: Object) -> None:
        """`obj`, in its last state, was deleted."""


class Backoff:
    """Waits that double from `first` to `longest` seconds, each drawn from the upper half, so that clients spread."""

    def __init__(self, first: float, longest: float, draw: Callable[[], float] = random.random) -> None:
        self._first = first
        self._longest = longest
        self._draw = draw
        self.failures = 0

    def next(self) -> float:
        """Count a failure; the seconds to wait before the next attempt."""
        wait = min(self._longest, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return wait * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """Something worked: start small again."""
        self.failures = 0


class _SinkError(Exception):
    """The sink raised; `__cause__` says what."""


class Reflector:
    """Keeps `sink` equal to the collection at `path`, in a thread of its own.

    `synced` is set after the first complete list and stays set. `age()` says how long ago the server was last heard:
    the cache is at most that far behind. Counters: `lists`, `watches`, `failures`, `sink_failures`.

    `optional`: older API servers do not serve the kind. Then there is none of it, until it is served.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        sink: Sink,
        name: str,
        label_selector: str | None = None,
        *,
        field_selector: str | None = None,
        backoff_seconds: tuple[float, float] = BACKOFF_SECONDS,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
        optional: bool = False,
    ) -> None:
        self.name = name
        self.synced = threading.Event()
        self.lists = self.watches = self.failures = self.sink_failures = 0
        self.last_seen: float | None = None  # time.monotonic() of the server's last word; None before the first list
        self._client = client
        self._path = path
        self._sink = sink
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selector = {name: selector for name, selector in selectors.items() if selector}
        self._backoff = Backoff(*backoff_seconds)
        self._watch_seconds = watch_seconds
        self._optional = optional
        self._born = time.monotonic()
        self._version: str | None = None  # where to go on watching; None: list first
        self._opened: float | None = None  # time.monotonic() when this round's watch was answered
        self._refusals = 0  # in a row
        self._page = PAGE
        self._relisting = False
        self._watch: Watch | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reflector-{name}", daemon=True)

    def start(self) -> Reflector:
        """Start the thread; returns self."""
        self._thread.start()
        return self

    def stop(self, timeout: float = 2.0) -> None:
        """End the watch and the thread; waits at most `timeout` seconds for a request that is under way."""
        self._stopping.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def version(self) -> str:
        """The resourceVersion that the sink has taken all up to; empty before the first list, and while listing."""
        return self._version or ""

    def relist(self) -> None:
        """List anew, soon: for who knows that there is something newer than a quiet watch has told of."""
        with self._lock:
            self._relisting = True
            if self._watch is not None:
                self._watch.close()

    def age(self) -> float:
        """Seconds since the server was last heard; before the first list, since this was made."""
        return time.monotonic() - (self._born if self.last_seen is None else self.last_seen)

    def _run(self) -> None:
        while not self._stopping.is_set():
            wait = self._round()
            if wait:
                self._stopping.wait(wait)

    def _round(self) -> float:
        """List if needed, watch to the end of the watch; the seconds to wait before the next round."""
        self._opened = None
        retry_after = 0.0
        error: Exception
        try:
            with self._lock:
                if self._relisting:
                    self._relisting, self._version = False, None
            if self._version is None:
                self._version = self._list()
            if self._version is None:
                return random.uniform(*UNSERVED_SECONDS)  # noqa: S311 - spreads load, guards nothing
            self._follow(self._version)
            if self._steady() or self._stopping.is_set() or self._relisting:
                return 0.0
            error = Unreachable("the watch was closed as soon as it was opened")
        except ApiError as caught:
            error = caught
            retry_after = caught.retry_after or 0.0
            self._refusals += 1
            if isinstance(caught, Gone) and self._version is None:
                self._page = 0  # the list outlived its pages: take all at once
            # A server that comes up says 429, 500, 503, and 403 until it has read who may do what: none of that makes
            # our place in the stream void, and lists by everybody are what it can bear least.
            if isinstance(caught, Gone) or self._refusals >= PATIENCE:
                self._version = None
        except ClusterError as caught:
            error = caught  # no answer: the place in the stream is as good as before
        except _SinkError as caught:
            self.sink_failures += 1
            self._version = None
            error = caught
        except Exception as caught:  # noqa: BLE001 - a dead thread would serve a frozen cache for ever
            self._version = None
            error = caught
        if self._stopping.is_set():
            return 0.0
        self._steady()
        self.failures += 1
        wait = max(self._backoff.next(), min(retry_after, BACKOFF_SECONDS[1]))
        expected = isinstance(error, ClusterError)
        _log.warning(
            "reflector %s: %s; next attempt in %.1f s (%s)",
            self.name,
            error if expected else _place(error.__cause__ or error),
            wait,
            "list" if self._version is None else f"watch from {self._version}",
        )
        return wait

    def _steady(self) -> bool:
        """Whether this round's watch lived long enough to count as success; if so, failures are forgotten."""
        if self._opened is None or time.monotonic() - self._opened < STEADY_SECONDS:
            return False
        self._backoff.reset()
        self._refusals = 0
        return True

    def _list(self) -> str | None:
        """The place to watch from; None where the server does not serve the kind."""
        self.lists += 1
        listing = self._client.list(self._path, self._page, self._selector, self._sink.shape)
        served = True
        try:
            try:
                self._sink.replace(listing)
            except NotFound:
                if not self._optional:
                    raise
                served = False
                self._sink.replace(())
        except ClusterError:
            raise  # the list's own; sinks ask the server nothing
        except Exception as error:
            raise _SinkError from error
        self._page = PAGE
        self.last_seen = time.monotonic()
        self.synced.set()
        return listing.resource_version if served else None

    def _follow(self, version: str) -> None:
        self.watches += 1
        params: Params = {**self._selector, "resourceVersion": version, "allowWatchBookmarks": True}
        seconds = random.randint(*self._watch_seconds)  # noqa: S311 - spreads load, guards nothing
        with self._client.watch(self._path, params, seconds, self._sink.shape) as watch:
            with self._lock:
                if self._stopping.is_set() or self._relisting:  # asked for while there was no watch to close
                    return
                self._watch = watch
            self._opened = self.last_seen = time.monotonic()
            try:
                for event in watch:
                    self._take(event)
            finally:
                with self._lock:
                    self._watch = None
        self.last_seen = time.monotonic()

    def _take(self, event: dict[str, Any]) -> None:
        obj = event["object"]
        kind = event.get("type")
        try:
            if kind in ("ADDED", "MODIFIED"):
                self._sink.upsert(lean(obj))
            elif kind == "DELETED":
                self._sink.delete(lean(obj))
        except Exception as error:
            raise _SinkError from error
        # Only now: an event that the sink did not take must come again.
        version = str(obj.get("metadata", {}).get("resourceVersion") or "")
        if _older(version, self._version):
            raise Gone(410, "Expired", f"the server went back from version {self._version} to {version}")
        if version:
            self._version = version
        self.last_seen = time.monotonic()


def _place(error: BaseException) -> str:
    """What was raised and where. Not its words: they may quote the object, and objects hold secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    where = "; ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames[-4:])
    return f"{type(error).__name__} ({where})"


def _older(version: str, than: str | None) -> bool:
    """Whether `version` is before `than`, as after a restored etcd backup: then events of the gap never come.

    Since KEP-5504 (Kubernetes 1.35) resourceVersions are decimal numbers that may be compared within one resource.
    """
    return version.isdecimal() and than is not None and than.isdecimal() and int(version) < int(than)
