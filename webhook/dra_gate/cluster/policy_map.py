"""A published policy set: an immutable ConfigMap named by the set's digest. To and from the object; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.policy.load import RELEASED, PolicyErrors, load_documents
from dra_gate.policy.model import GATE_NAMESPACE, PolicySet

NAMESPACE = GATE_NAMESPACE
MAPS_PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
PREFIX = "policy-set-"
LABEL = "dra-gate.io/policy-set"
SELECTOR = f"{LABEL}=true"
PUBLISHED_BY = "dra-gate.io/published-by"
PUBLISHED_AT = "dra-gate.io/published-at"
SUMMARY = "dra-gate.io/summary"
MAX_BYTES = 900 * 1024  # of file names and contents; etcd and the API server take 1 MiB with everything around it
_DIGEST = re.compile("[0-9a-f]{64}")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")  # of ConfigMap data: apimachinery validation.IsConfigMapKey


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a published set is not used. `uid` is empty where the Gate names a set that is not published.

    Codes: NotImmutable, BadName, BinaryData, TooLarge, Invalid, OtherContent, NotPublished.
    """

    name: str
    uid: str
    code: str
    message: str

    @property
    def digest(self) -> str:
        """The digest in the name; empty if there is none."""
        return digest_of(self.name)


class RefusedError(Exception):
    """The object is no usable policy set; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class UnpublishableError(ValueError):
    """These files cannot be made a ConfigMap."""


def name_of(digest: str) -> str:
    """The name of the ConfigMap that holds the set."""
    return PREFIX + digest


def digest_of(name: str) -> str:
    """The digest in a ConfigMap's name; empty if it is not named as a policy set."""
    digest = name.removeprefix(PREFIX)
    return digest if name != digest and _DIGEST.fullmatch(digest) else ""


def policy_map(digest: str, files: Mapping[str, bytes], annotations: Mapping[str, str]) -> dict[str, Any]:
    """The ConfigMap for the files of a set that has been loaded. Raises UnpublishableError."""
    data: dict[str, str] = {}
    for name, content in sorted(files.items()):
        if not _KEY.fullmatch(name):
            raise UnpublishableError(f"{name!r}: file names may hold letters, digits, '-', '_' and '.' only")
        try:
            data[name] = content.decode()
        except UnicodeDecodeError:
            raise UnpublishableError(f"{name} is not UTF-8") from None
    size = _size(data)
    if size > MAX_BYTES:
        raise UnpublishableError(f"the files have {size // 1024} KiB, and a set may have {MAX_BYTES // 1024}")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name_of(digest),
            "namespace": NAMESPACE,
            "labels": {LABEL: "true", "app.kubernetes.io/part-of": "dra-gate"},
            **({"annotations": dict(annotations)} if annotations else {}),
        },
        "immutable": True,
        "data": data,
    }


def read_policy_map(obj: Object) -> PolicySet:
    """The policy set that a ConfigMap holds. Raises RefusedError.

    Nothing about it is taken on trust: an immutable ConfigMap can be deleted and made again with other content.
    """
    name, uid = text(at(obj, "metadata", "name")), text(at(obj, "metadata", "uid"))

    def refused(code: str, message: str) -> RefusedError:
        return RefusedError(Refusal(name, uid, code, message))

    digest = digest_of(name)
    if not digest:
        raise refused("BadName", f"a published policy set is called {PREFIX}<digest of its content>")
    if obj.get("immutable") is not True:
        raise refused("NotImmutable", "the ConfigMap is not immutable: publish it again with immutable: true")
    if obj.get("binaryData"):
        raise refused("BinaryData", "the ConfigMap has binaryData: policy files are text")
    data = {key: text(value) for key, value in mapping(obj.get("data")).items()}
    if _size(data) > MAX_BYTES:
        raise refused("TooLarge", f"{_size(data) // 1024} KiB of policy files: at most {MAX_BYTES // 1024} are read")
    files = {key: value.encode("utf-8", "surrogatepass") for key, value in data.items()}
    released = files.pop(RELEASED, None)
    try:
        loaded = load_documents(files, released)
    except PolicyErrors as errors:
        first, rest = errors.errors[0], len(errors.errors) - 1
        raise refused("Invalid", f"{first}" + (f" (and {rest} more errors)" if rest else "")) from None
    if loaded.digest != digest:
        raise refused("OtherContent", f"the content is not what the name says: it has digest {loaded.digest}")
    return loaded


def _size(data: Mapping[str, str]) -> int:
    return sum(len(key) + len(value.encode("utf-8", "surrogatepass")) for key, value in data.items())
