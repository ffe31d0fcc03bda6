"""A small raw-JSON client for tests: objects go in and come out as dicts, nothing is dropped.

Resources are named by their plural (`pods`, `resourceclaims`, `deviceclasses` …); which group and version serves one is
read from the server's own discovery, the core group first, then the order the server gives.
"""

from __future__ import annotations

import base64
import builtins
import copy
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import urllib3
import yaml

T = TypeVar("T")
Object = dict[str, Any]
Objects = list[Object]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
_WORKERS = 16


class ApiError(Exception):
    """The server refused a request, or nobody answered (`status` 0). `body` is the Status object, if there is one."""

    def __init__(self, status: int, body: Mapping[str, Any], warnings: tuple[str, ...] = ()) -> None:
        self.status = status
        self.body = body
        self.reason = str(body.get("reason", ""))
        self.message = str(body.get("message", ""))
        self.warnings = warnings
        super().__init__(f"{status} {self.reason}: {self.message}")

    @property
    def causes(self) -> Objects:
        """`details.causes` of the Status."""
        causes: Objects = (self.body.get("details") or {}).get("causes") or []
        return causes


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the decoded body and the texts of `Warning` headers, in order."""

    status: int
    body: Any
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Resource:
    plural: str
    kind: str
    api_version: str
    namespaced: bool

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if namespace is not None and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/".join(parts)


_Resources = list[_Resource]


class Api:
    """A client as one user; safe to use from several threads.

    Every method raises ApiError when the server answers with an error or can't be reached.
    """

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._connect(url, ssl.create_default_context(cafile=str(ca_file)))
        self._headers = {**self._headers, "Authorization": f"Bearer {token}"}

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Api:
        """A client by the current context of a kubeconfig that holds a token or a client certificate inline."""
        config = yaml.safe_load(path.read_text())
        named = {kind: {one["name"]: one for one in config[kind]} for kind in ("contexts", "clusters", "users")}
        context = named["contexts"][config["current-context"]]["context"]
        cluster = named["clusters"][context["cluster"]]["cluster"]
        user = named["users"][context["user"]]["user"]
        tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        api = cls.__new__(cls)
        if "client-key-data" in user:
            with tempfile.NamedTemporaryFile() as pair:  # the only way that the ssl module takes one; mode 0600
                pair.write(b"".join(base64.b64decode(user[f"client-{half}-data"]) for half in ("certificate", "key")))
                pair.flush()
                tls.load_cert_chain(pair.name)
        api._connect(cluster["server"], tls)
        if "token" in user:
            api._headers = {**api._headers, "Authorization": f"Bearer {user['token']}"}
        return api

    def _connect(self, url: str, context: ssl.SSLContext) -> None:
        self.url = url
        self._http = urllib3.PoolManager(maxsize=2 * _WORKERS, ssl_context=context, retries=False, timeout=60.0)
        self._headers: Mapping[str, str] = {"User-Agent": "control-plane-kit"}
        self._resources: _Resources = []

    def acting_as(self, user: str, groups: Iterable[str] = ()) -> Api:
        """The same client, asking the server to take its requests for another user's (impersonation)."""
        other = copy.copy(self)
        names = urllib3.HTTPHeaderDict(self._headers)
        names.add("Impersonate-User", user)
        for group in groups:
            names.add("Impersonate-Group", group)
        other._headers = names
        return other

    def close(self) -> None:
        """Closes the connections."""
        self._http.clear()

    def healthy(self, path: str) -> bool:
        """Whether a GET of `path` gives 200; False when nobody answers."""
        try:
            return self._http.request("GET", self.url + path, headers=self._headers, timeout=2.0).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """One request, as given. `body` is JSON-encoded unless it is bytes; `query` is added to `path`."""
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = (
            urllib3.HTTPHeaderDict(self._headers)
            | {"Accept": accept}
            | ({"Content-Type": content_type} if data is not None else {})
        )
        try:
            got = self._http.request(method, url, body=data, headers=headers)
        except urllib3.exceptions.HTTPError as problem:
            raise ApiError(0, {"reason": "Unreachable", "message": str(problem)}) from problem
        warnings = tuple(_warning_text(header) for header in got.headers.getlist("Warning"))
        try:
            decoded = json.loads(got.data)
        except ValueError:
            decoded = got.data.decode(errors="replace")
        if got.status >= 300:
            status = decoded if isinstance(decoded, dict) else {"message": str(decoded).strip()}
            raise ApiError(got.status, status, warnings)
        return Answer(got.status, decoded, warnings)

    # -- one object ---------------------------------------------------------------------------------------------------

    def get(self, resource: str, name: str, namespace: str | None = None) -> Object:
        """The object. ApiError 404 if there is none."""
        return self._object(self.request("GET", self.path(resource, namespace, name)))

    def stored(self, obj: Mapping[str, Any]) -> Object:
        """What the server holds under the kind, namespace and name of `obj`. ApiError 404 if there is nothing."""
        return self._object(
            self.request("GET", self._by_kind(obj).path(obj["metadata"].get("namespace"), obj["metadata"]["name"]))
        )

    def find(self, resource: str, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None if there is none."""
        try:
            return self.get(resource, name, namespace)
        except ApiError as problem:
            if problem.status == 404:
                return None
            raise

    def list(self, resource: str, namespace: str | None = None, *, labels: str = "") -> Objects:
        """All objects (of all namespaces when none is given), `labels` being a label selector.

        Each gets the apiVersion and kind that items of a list come without, so that it can be written back.
        """
        query = {"labelSelector": labels} if labels else None
        known = self._lookup(lambda one: one.plural == resource, resource)
        items: Objects = self.request("GET", known.path(namespace), query=query).body["items"]
        return [{"apiVersion": known.api_version, "kind": known.kind} | item for item in items]

    def create(self, obj: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False) -> Object:
        """Creates an object of any kind; `namespace` is used if the object names none. Returns what was stored."""
        return self._object(self.create_answer(obj, namespace, dry_run=dry_run))

    def create_answer(self, obj: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False) -> Answer:
        """As `create`, but with the status and the warnings."""
        path = self._path_of(obj, namespace)
        return self.request("POST", path, obj, query={"dryRun": "All"} if dry_run else None)

    def create_many(self, objects: Iterable[Mapping[str, Any]], namespace: str | None = None) -> Objects:
        """Creates objects in parallel and returns them in the order given. Raises the first error met."""
        wanted = list(objects)
        for obj in wanted[:1]:
            self._path_of(obj, namespace)  # discovery once, not in sixteen threads
        return self.parallel(lambda obj: self.create(obj, namespace), wanted)

    def replace(self, obj: Mapping[str, Any], *, subresource: str | None = None) -> Object:
        """PUT of an object that was read before."""
        meta = obj["metadata"]
        resource = self._by_kind(obj)
        return self._object(self.request("PUT", resource.path(meta.get("namespace"), meta["name"], subresource), obj))

    def patch(
        self,
        resource: str,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        content_type: str = MERGE,
    ) -> Object:
        """Patches an object, by default with a JSON merge patch. Returns the result."""
        path = self.path(resource, namespace, name, subresource)
        return self._object(self.request("PATCH", path, patch, content_type=content_type))

    def apply(
        self, obj: Mapping[str, Any], namespace: str | None = None, *, manager: str = "control-plane-kit"
    ) -> Object:
        """Server-side apply, taking over fields that somebody else owns."""
        resource = self._by_kind(obj)
        at = obj["metadata"].get("namespace", namespace)
        path = resource.path(at, obj["metadata"]["name"])
        query = {"fieldManager": manager, "force": "true"}
        return self._object(self.request("PATCH", path, obj, query=query, content_type=APPLY))

    def apply_yaml(self, text: str, namespace: str | None = None) -> Objects:
        """Applies every document of a YAML text, in order; a List's items count as documents."""
        done: Objects = []
        for document in yaml.safe_load_all(text):
            if document is not None:
                items = document["items"] if document.get("kind") == "List" else [document]
                done += [self.apply(item, namespace) for item in items]
        return done

    def delete(
        self,
        resource: str,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
        missing_ok: bool = False,
    ) -> None:
        """Deletes an object, a Pod with `grace` seconds (0 takes it away at once)."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.request("DELETE", self.path(resource, namespace, name), options)
        except ApiError as problem:
            if problem.status != 404 or not missing_ok:
                raise

    def delete_all(
        self, resource: str, namespace: str | None = None, *, labels: str = "", grace: int | None = None
    ) -> None:
        """Deletes all objects of a namespace, or of a cluster-scoped resource, that carry the labels."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        query = {"labelSelector": labels} if labels else None
        self.request("DELETE", self.path(resource, namespace), options, query=query)

    # -- waiting and doing much ---------------------------------------------------------------------------------------

    def wait(
        self,
        resource: str,
        name: str,
        namespace: str | None,
        predicate: Callable[[Object], Any],
        timeout: float = 10.0,
        what: str = "",
    ) -> Object:
        """Waits until the object is there and `predicate` holds of it; returns it. TimeoutError tells its status."""
        last: Object | None = None

        def look() -> Object | None:
            nonlocal last
            last = self.find(resource, name, namespace)
            return last if last is not None and predicate(last) else None

        try:
            return wait_for(look, timeout, what or f"{resource} {name}")
        except TimeoutError as problem:
            state = "it doesn't exist" if last is None else json.dumps(last.get("status"))[:2000]
            raise TimeoutError(f"{problem}; status: {state}") from None

    def parallel(self, function: Callable[[Any], T], items: Iterable[Any]) -> builtins.list[T]:
        """Calls the function for each item, sixteen at a time; results keep the order. Raises the first error."""
        with ThreadPoolExecutor(_WORKERS) as pool:
            return list(pool.map(function, items))

    def serves(self, resource: str) -> bool:
        """Whether the server has a resource of this plural: older ones lack some."""
        try:
            self.path(resource)
        except KeyError:
            return False
        return True

    # -- paths --------------------------------------------------------------------------------------------------------

    def path(
        self, resource: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """URL path of a resource. Raises KeyError when the server serves no such plural."""
        found = self._lookup(lambda known: known.plural == resource, resource)
        return found.path(namespace, name, subresource)

    def _path_of(self, obj: Mapping[str, Any], namespace: str | None) -> str:
        return self._by_kind(obj).path(obj["metadata"].get("namespace", namespace))

    def _by_kind(self, obj: Mapping[str, Any]) -> _Resource:
        wanted = obj["apiVersion"], obj["kind"]
        return self._lookup(lambda known: (known.api_version, known.kind) == wanted, f"{wanted[1]} of {wanted[0]}")

    def _lookup(self, test: Callable[[_Resource], bool], what: str) -> _Resource:
        for attempt in range(2):
            for known in self._resources:
                if test(known):
                    return known
            if attempt == 0:
                self._resources = self._discover()
        raise KeyError(f"the API server serves no {what}")

    def _discover(self) -> _Resources:
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        found: _Resources = []
        for root in ("/api", "/apis"):
            for group in self.request("GET", root, accept=accept).body["items"]:
                for version in group["versions"]:
                    name = group["metadata"].get("name", "")
                    api_version = f"{name}/{version['version']}" if name else version["version"]
                    for entry in version.get("resources", []):
                        scope = entry["scope"] == "Namespaced"
                        found.append(_Resource(entry["resource"], entry["responseKind"]["kind"], api_version, scope))
        return found

    @staticmethod
    def _object(answer: Answer) -> Object:
        assert isinstance(answer.body, dict), answer.body
        return answer.body


def wait_for(probe: Callable[[], T | None], timeout: float, what: str, *, every: float = 0.05) -> T:
    """Calls `probe` until it returns something true and returns that. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(every)


def _warning_text(header: str) -> str:
    """Text of a `Warning: 299 - "…"` header (RFC 7234 section 5.5)."""
    start = header.find('"')
    return header[start + 1 : header.rfind('"')].replace('\\"', '"').replace("\\\\", "\\") if start >= 0 else header
