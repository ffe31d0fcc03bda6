"""Talking to the API server, raw JSON in and out.

Typed client models drop the fields they do not know and cost ten times the parsing, so none is built here. The
`kubernetes` package is used for what it knows better: kubeconfig merging, contexts, exec plugins, token refresh,
proxies. A Pod needs none of that (service_account.py).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3

from dra_gate import __version__
from dra_gate.cluster import service_account

JSON_PATCH = "application/json-patch+json"  # RFC 6902
MERGE_PATCH = "application/merge-patch+json"  # RFC 7386
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # server-side apply; JSON is YAML

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# An idle watch gets a bookmark after 60 to 120 s (seen on 1.37.2). One that was silent for longer has probably lost its
# peer without a FIN: a frozen process, a dropped NAT entry. Bookmarks are no promise (Kubernetes API concepts, "Watch
# bookmarks"), so being wrong must be cheap: it costs one new watch from the last version.
QUIET_SECONDS = 150.0
PAGE = 500  # objects in a page of a list, as client-go asks for
# At once: a watch for each kind, workers, the lease. The default (five a core) makes small machines reconnect.
CONNECTIONS = 32
RELOAD_SECONDS = 5.0  # least time between two readings of the configuration after 401s
SKEW_SECONDS = 10.0  # clocks that differ by less agree
# Nobody looks at what Events and owner references call an object, and it becomes part of a path. With
# "../../pods?watch=true" it would be another request, and one that never ends.
_PATH = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._:~@=,+-]+)+")
# A claim carries up to 10 KiB of parameters for its driver, in any form: what is nested by the thousand Python neither
# reads nor writes. With it in a list nobody would ever see the other objects.
_DEEPEST = 100  # lists and mappings around a value; in an object of the API's own form there are some twenty
_FREE = b'"parameters"'
# Possessive: a text without an end, as a broken connection leaves it, is given up at once.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{}\]]', re.DOTALL)

Object = dict[str, Any]
Shape = TypeVar("Shape")
Params = Mapping[str, str | int | bool]


class ClusterError(Exception):
    """The API server could not be asked, or said no. Base of everything that `Client` raises on purpose."""


class ConfigError(ClusterError):
    """No usable kubeconfig, context or service account."""


class Unreachable(ClusterError):
    """No answer: refused, reset, timed out, TLS failed, or the answer broke off."""


class ApiError(ClusterError):
    """An answer outside 2xx, with the fields of its `metav1.Status`; `retry_after` is in seconds, None if not given."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after

    def has_cause(self, reason: str) -> bool:
        """Whether `details.causes` names `reason` (for example NamespaceTerminating)."""
        causes = self.details.get("causes")
        return isinstance(causes, list) and any(isinstance(c, dict) and c.get("reason") == reason for c in causes)


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object exists (`reason` AlreadyExists) or a precondition failed (`reason` Conflict)."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


_BY_STATUS: Mapping[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def api_error(status: int, body: object, retry_after: float | None = None) -> ApiError:
    """The error for an HTTP status and the `metav1.Status` (or anything else) that came with it."""
    fields = body if isinstance(body, dict) else {}
    code = fields.get("code")
    status = code if isinstance(code, int) and code >= 400 else status
    details = fields.get("details")
    return _BY_STATUS.get(status, ApiError)(
        status,
        str(fields.get("reason") or "Unknown"),
        str(fields.get("message") or "no message"),
        details if isinstance(details, dict) else None,
        retry_after,
    )


class _ListMeta(msgspec.Struct):
    resourceVersion: str  # noqa: N815 - as metav1.ListMeta spells it
    token: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    """A list as it came. Its items are still JSON: decoded all at once they take ten times the room."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None
    apiVersion: str = ""  # noqa: N815
    kind: str = ""


class _Event(msgspec.Struct, Generic[Shape]):
    type: str
    object: Shape


_decode_page = msgspec.json.Decoder(_Page).decode


@functools.cache
def decoder(shape: Any, around: int = 0) -> Callable[[bytes | msgspec.Raw], Any]:
    """JSON to plain values, only what the msgspec type `shape` names; None: all.

    Where a value has another type than `shape` says, all of it comes: its reader is to judge. What is nested too deeply
    comes as null; `around` says how deep in the JSON the object is.
    """
    typed = None if shape is None else msgspec.json.Decoder(shape).decode

    def read(data: bytes) -> Any:
        if typed is None:
            return _decode(data)
        try:
            return msgspec.to_builtins(typed(data))
        except msgspec.ValidationError:
            return _decode(data)

    def decode(data: bytes | msgspec.Raw) -> Any:
        data = bytes(data)
        # Only parameters have no form of their own, and few have so much of it that it is worth looking closer.
        if _FREE in data and data.count(b"[") + data.count(b"{") > _DEEPEST:
            data = _shallow(data, _DEEPEST + around)
        try:
            return read(data)
        except RecursionError:
            return read(_shallow(data, _DEEPEST + around))

    return decode


def _shallow(data: bytes, deepest: int) -> bytes:
    """JSON without what is in more than `deepest` lists and mappings."""
    kept, begun, done, depth = list[bytes](), 0, 0, 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth == deepest + 1:
                begun = token.start()
        elif first in b"]}":
            if depth == deepest + 1:
                kept += data[done:begun], b"null"
                done = token.end()
            depth -= 1
    return b"".join((*kept, data[done:]))


class Listing:
    """The objects of a collection at one moment. Iterate over it once: each page is read when its first object is due.

    Each object gets the `apiVersion` and `kind` that lists leave out, and loses `managedFields`. Iteration raises what
    `Client.get` raises, Gone when the list outlived its pages, and Unreachable for an answer that is no list: a proxy's
    page must not look like an empty cluster.
    """

    def __init__(self, path: str, read: Callable[[str], bytes], decode: Callable[[msgspec.Raw], Object]) -> None:
        """`read` gives the body of the page that a continue token stands for, of the first one for an empty token."""
        self.resource_version = ""  # where to watch from; known after the last object
        self._path = path
        self._read = read
        self._decode = decode

    def __iter__(self) -> Iterator[Object]:
        token = ""
        while True:
            page = self._page(token)
            kind = page.kind.removesuffix("List")
            for raw in page.items or ():
                item = self._decode(raw)
                item.setdefault("apiVersion", page.apiVersion)
                item.setdefault("kind", kind)
                yield lean(item)
            token = page.metadata.token
            if not token:
                self.resource_version = page.metadata.resourceVersion
                return

    def _page(self, token: str) -> _Page:
        try:
            body = self._read(token)
            try:
                page = _decode_page(body)
            except RecursionError:
                page = _decode_page(_shallow(body, _DEEPEST + 2))
        except msgspec.DecodeError as error:
            raise Unreachable(f"{self._path}: the answer is no list: {error}") from error
        if not page.metadata.resourceVersion:
            raise Unreachable(f"{self._path}: the answer is no list: it has no resourceVersion")
        return page


def lean(obj: Object) -> Object:
    """`obj` itself without `metadata.managedFields`, often a third of it and of use to nobody here."""
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return obj


class Watch:
    """One open watch: iterate over its events (dicts with `type` and `object`), `close()` from any thread to end it.

    Iteration ends when the server or `close()` ends the watch. It raises Unreachable when the connection breaks or
    stays silent, and ApiError (Gone for 410) for an ERROR event.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, shape: type | None = None) -> None:
        self._response = response
        self._decode = decoder(None if shape is None else _Event[shape], 1)  # type: ignore[valid-type]
        self._closed = False

    def __iter__(self) -> Iterator[Object]:
        tail = b""
        try:
            while True:
                chunk = self._response.read1(1 << 16)
                if not chunk:
                    break
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield self._event(line)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError: http.client's word for a chunk header or a file that vanished under it.
            if not self._closed:
                raise Unreachable(f"the watch broke off: {error}") from error
        finally:
            with contextlib.suppress(Exception):
                self._response.close()

    def _event(self, line: bytes) -> Object:
        try:
            event = self._decode(line)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the watch sent something that is no JSON: {error}") from error
        if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
            raise Unreachable("the watch sent something that is no event")
        if event.get("type") == "ERROR":
            raise api_error(500, _decode(line)["object"])  # a Status has other fields than the kind that is watched
        return event

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            self._response.close()

    def close(self) -> None:
        """End the watch; a thread blocked in reading it wakes at once."""
        self._closed = True
        # close() alone does not wake a blocked recv; shutdown does. It refuses when reading has already ended.
        with contextlib.suppress(Exception):
            self._response.shutdown()


class Way(Protocol):
    """How one API server is reached as one user. `host` is its URL, without a slash at the end."""

    host: str
    pool_manager: urllib3.PoolManager

    def headers(self) -> dict[str, str]:
        """What says who asks, anew for each request. May raise anything."""


class Client:
    """Requests to one API server as one user. Safe for use by many threads.

    Every method raises ApiError (NotFound, Conflict, Gone) for an answer outside 2xx and Unreachable for none. Nothing
    is retried, except once after 401 with the configuration read anew (rotated token files, expired exec credentials).
    Paths are absolute API paths such as `/api/v1/namespaces`; one that is none is answered as the API server would, by
    NotFound, and not asked for.
    """

    def __init__(self, load: Callable[[], Way]) -> None:
        """`load` is called now and after 401s. Raises ConfigError."""
        self._load = load
        self._lock = threading.Lock()
        self._ahead = 0.0
        self._configure()

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Client:
        """A client by the kubeconfig given, else $KUBECONFIG, else ~/.kube/config, else the Pod's service account.

        Nothing is sent yet. Raises ConfigError.
        """
        return cls(lambda: _way(kubeconfig, context))

    def _configure(self) -> None:
        self._way = self._load()
        self._pool = self._way.pool_manager
        self._configured = time.monotonic()

    def _prepared(self) -> tuple[urllib3.PoolManager, str, dict[str, str]]:
        with self._lock:  # the refresh hook runs exec plugins and is not made for threads
            try:
                credentials = self._way.headers()
            except Exception as error:  # whatever a token file or plugin raises
                raise Unreachable(f"no credentials: {error}") from error
            headers = {"User-Agent": f"dra-gate/{__version__}", "Accept": "application/json", **credentials}
            return self._pool, self._way.host, headers

    def _reconfigured(self, pool: urllib3.PoolManager) -> bool:
        """Read the configuration anew after `pool` got 401; False if that was done a moment ago."""
        with self._lock:
            if self._pool is not pool:
                return True  # another thread did
            if time.monotonic() - self._configured < RELOAD_SECONDS:
                return False
            try:
                self._configure()
            except ConfigError:
                self._configured = time.monotonic()
                return False
            return True

    def _send(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeout: urllib3.Timeout | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """The answer with its body unread, if it is 2xx."""
        if _PATH.fullmatch(path) is None:
            raise NotFound(404, "NotFound", f"no object has a path such as {path[:200]!r}")
        payload = None if body is None else _encode(body)
        fields = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in (params or {}).items()}
        query = urlencode(fields) if fields else ""
        for attempt in (1, 2):
            pool, host, headers = self._prepared()
            if payload is not None:
                headers["Content-Type"] = content_type
            began = time.time()
            try:
                response = pool.urlopen(
                    method,
                    f"{host}{path}?{query}" if query else f"{host}{path}",
                    body=payload,
                    headers=headers,
                    timeout=timeout or urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                    retries=False,  # the default tries a dead server four times without a pause
                    preload_content=False,
                    redirect=False,
                )
                self._ahead = _ahead(response.headers.get("Date", ""), began, time.time())
                if response.status < 300:
                    return response
                data = response.data
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise Unreachable(f"{method} {host}{path}: {error}") from error
            if response.status == 401 and attempt == 1 and self._reconfigured(pool):
                continue
            raise _answer_error(response, data)
        raise AssertionError  # pragma: no cover - the second round returns or raises

    def ahead(self) -> float:
        """By how many seconds this machine's clock is ahead of the API server's (less than 0: behind), as its last
        answer told; 0 where they agree. For who does what can't be taken back at a time that others have said.
        """
        return self._ahead

    def _body(self, response: urllib3.BaseHTTPResponse) -> bytes:
        try:
            return response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"the answer broke off: {error}") from error

    def _json(self, response: urllib3.BaseHTTPResponse) -> Object:
        try:
            value = decoder(None)(self._body(response))
        except msgspec.DecodeError as error:
            raise Unreachable(f"the answer is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise Unreachable("the answer is no object")
        return value

    def get(self, path: str, params: Params | None = None, timeout: float | None = None) -> Object:
        """The object or list at `path`. `timeout` in seconds holds for connecting and each wait for bytes."""
        return self._json(self._send("GET", path, params, timeout=_total(timeout)))

    def read(self, path: str) -> bytes:
        """What stands at `path`, which is no object: /metrics and the like."""
        return self._body(self._send("GET", path))

    def list(self, path: str, limit: int = PAGE, params: Params | None = None, shape: type | None = None) -> Listing:
        """Everything at `path`, `limit` objects a page (0: all at once). Nothing is asked before it is iterated over.

        `shape` is a msgspec type of what the caller reads of each object: the rest is not decoded. None: all of it.
        """

        def read(token: str) -> bytes:
            asked = {**(params or {}), "limit": limit, **({"continue": token} if token else {})}
            return self._body(self._send("GET", path, asked))

        return Listing(path, read, decoder(shape))

    def watch(self, path: str, params: Params, timeout_seconds: int = 300, shape: type | None = None) -> Watch:
        """An open watch at `path`, which the server ends after `timeout_seconds`; `shape` as for `list`."""
        quiet = min(timeout_seconds + 10.0, QUIET_SECONDS)
        response = self._send(
            "GET",
            path,
            {**params, "watch": True, "timeoutSeconds": timeout_seconds},
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=quiet),
        )
        return Watch(response, shape)

    def create(
        self, path: str, obj: Mapping[str, Any], timeout: float | None = None, params: Params | None = None
    ) -> Object:
        """POST `obj` to the collection at `path`; the stored object."""
        return self._json(self._send("POST", path, params, body=obj, timeout=_total(timeout)))

    def replace(
        self, path: str, obj: Mapping[str, Any], timeout: float | None = None, params: Params | None = None
    ) -> Object:
        """PUT `obj` at `path`; with `metadata.resourceVersion` in it a Conflict is raised when somebody was faster."""
        return self._json(self._send("PUT", path, params, body=obj, timeout=_total(timeout)))

    def patch(
        self,
        path: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        content_type: str = MERGE_PATCH,
        params: Params | None = None,
    ) -> Object:
        """PATCH `path` with a patch of the given content type; the stored object."""
        return self._json(self._send("PATCH", path, params, body=patch, content_type=content_type))

    def delete(
        self, path: str, uid: str | None = None, resource_version: str | None = None, params: Params | None = None
    ) -> Object:
        """DELETE `path`, only if it still has `uid` and `resource_version` where given (else Conflict)."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions} if preconditions else None
        return self._json(self._send("DELETE", path, params, body=body))

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()


def _ahead(date: str, began: float, ended: float) -> float:
    """By an answer's Date (RFC 9110, whole seconds) and when it was asked for and came."""
    try:
        said = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
    if said < began - SKEW_SECONDS:
        return began - said
    return ended - said if said > ended + SKEW_SECONDS else 0.0


def _total(timeout: float | None) -> urllib3.Timeout | None:
    return None if timeout is None else urllib3.Timeout(total=timeout)


def _answer_error(response: urllib3.BaseHTTPResponse, data: bytes) -> ApiError:
    body: object
    try:
        body = _decode(data)
    except msgspec.DecodeError:
        body = {"reason": response.reason or "Unknown", "message": data[:300].decode("utf-8", "replace")}
    try:
        retry_after = float(response.headers["Retry-After"]) if "Retry-After" in response.headers else None
    except ValueError:
        retry_after = None  # an HTTP date: no API server sends one
    return api_error(response.status, body, retry_after)


def _way(kubeconfig: str | None, context: str | None) -> Way:
    source = kubeconfig or os.environ.get("KUBECONFIG")
    if source is None and Path("~/.kube/config").expanduser().exists():
        source = "~/.kube/config"
    try:
        if source is None and context is None and service_account.given():
            return service_account.ServiceAccount(CONNECTIONS)
        return _Configured(source, context)
    except Exception as error:  # ConfigException, OSError, yaml errors, KeyError: all mean the same to the caller
        found, why = source or "no KUBECONFIG, no ~/.kube/config, no service account of a Pod", str(error).rstrip(".")
        if source is not None and os.pathsep not in source and not Path(source).expanduser().exists():
            why = "there is no such file"
        told = f"no usable cluster configuration ({found}): {why}. Give --kubeconfig FILE, or set KUBECONFIG"
        raise ConfigError(told) from error


class _Configured:
    """A way by kubeconfig, or behind a proxy. Importing the package takes 0.3 s and 17 MB: not before it is needed."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        config: Any = importlib.import_module("kubernetes.config")
        self._configuration = importlib.import_module("kubernetes.client.configuration").Configuration()
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=self._configuration)
        else:
            file = kubeconfig or "~/.kube/config"
            config.load_kube_config(config_file=file, context=context, client_configuration=self._configuration)
        # With keep-alive probes an idle watch notices a peer that is gone for good.
        self._configuration.keep_alive = True
        self._configuration.connection_pool_maxsize = CONNECTIONS
        transport: Any = importlib.import_module("kubernetes.client.rest")
        self.pool_manager: urllib3.PoolManager = transport.RESTClientObject(self._configuration).pool_manager
        self.host = str(self._configuration.host).rstrip("/")

    def headers(self) -> dict[str, str]:
        entries = self._configuration.auth_settings().values()
        return {str(entry["key"]): str(entry["value"]) for entry in entries if entry["value"]}
