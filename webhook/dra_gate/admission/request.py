"""AdmissionReview v1 in and out (admission.k8s.io/v1): the envelope, and nothing that decides."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from dra_gate.admission.verdict import Finding, Verdict
from dra_gate.kube.raw import Object, mapping, sequence, text

API_VERSION = "admission.k8s.io/v1"
# The API server raises warnings of any length, but asks for at most 120 characters and cuts all of them at 4,096 runes.
_WARNING_LENGTH = 256
_WARNINGS = 12


class BadRequest(Exception):
    """What was sent is no AdmissionReview v1: an HTTP 4xx, never a verdict. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One AdmissionRequest. `object` and `old_object` are raw JSON, empty where the request has none."""

    uid: str
    operation: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    username: str
    groups: frozenset[str]
    dry_run: bool
    object: Object
    old_object: Object

    @property
    def target(self) -> str:
        """The resource, with the subresource behind a slash: `pods/resize`, as webhook rules write it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def is_about(self, group: str, resource: str, operation: str) -> bool:
        """The request is `operation` on `resource` itself, not on a subresource."""
        return (
            self.resource == resource and self.group == group and self.operation == operation and not self.subresource
        )


_Parts = dict[str, msgspec.Raw]


class _AskedFor(TypedDict, total=False):
    """The fields of an AdmissionRequest that `read` looks at; the others are passed over."""

    uid: Any
    operation: Any
    resource: Any
    subResource: Any
    namespace: Any
    name: Any
    userInfo: Any
    dryRun: Any
    object: _Parts | None
    oldObject: _Parts | None


class _Review(TypedDict, total=False):
    apiVersion: Any
    kind: Any
    request: _AskedFor


_decode = msgspec.json.Decoder().decode
_decode_review = msgspec.json.Decoder(_Review).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode
_encode = msgspec.json.Encoder().encode


def parse(body: bytes) -> Request:
    """The request in an AdmissionReview v1. Of the objects in it only `metadata.managedFields` are left out.

    Raises BadRequest (400) for anything else: other bytes, another kind, another version, no uid. Its message quotes
    nothing of the body, since callers and logs repeat it.
    """
    try:
        review = _review(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(400, f"the body is not JSON: {error}") from None
    return read(review)


def _review(body: bytes) -> object:
    """What is in `body`, without what nobody reads: an object's managedFields take up several times its own size.

    The API server writes them before it asks, and where the object is then too large for etcd it asks again without.
    """
    try:
        review = _decode_review(body)
    except msgspec.ValidationError:
        return _decode(body)  # another shape than the API server's: `read` says what is wrong with it
    request = review.get("request")
    if request is None:
        return review
    found = {"object": _object(request.get("object")), "oldObject": _object(request.get("oldObject"))}
    return {**review, "request": {**request, **found}}


def _object(parts: _Parts | None) -> Object | None:
    if parts is None:
        return None
    return {key: _metadata(raw) if key == "metadata" else _decode(raw) for key, raw in parts.items()}


def _metadata(raw: msgspec.Raw) -> object:
    try:
        parts = _decode_parts(raw)
    except msgspec.ValidationError:
        return _decode(raw)
    return {key: _decode(one) for key, one in parts.items() if key != "managedFields"}


def read(review: object) -> Request:
    """The request in an AdmissionReview that is already parsed. Raises BadRequest (400)."""
    if not isinstance(review, dict):
        raise BadRequest(400, "the body is not an AdmissionReview")
    if review.get("kind") != "AdmissionReview":
        raise BadRequest(400, "kind is not AdmissionReview, which is all that is answered here")
    if review.get("apiVersion") != API_VERSION:
        raise BadRequest(400, f"apiVersion is not {API_VERSION}: send the review in that version")
    raw = review.get("request")
    if not isinstance(raw, dict):
        raise BadRequest(400, "request is missing: this is an answer, or no AdmissionReview at all")
    uid = raw.get("uid")
    if not isinstance(uid, str) or not uid:
        raise BadRequest(400, "request.uid is missing: the answer could not be matched to its question")
    resource, user = mapping(raw.get("resource")), mapping(raw.get("userInfo"))
    return Request(
        uid=uid,
        operation=text(raw.get("operation")),
        group=text(resource.get("group")),
        resource=text(resource.get("resource")),
        subresource=text(raw.get("subResource")),
        namespace=text(raw.get("namespace")),
        name=text(raw.get("name")),
        username=text(user.get("username")),
        groups=frozenset(text(group) for group in sequence(user.get("groups"))),
        dry_run=raw.get("dryRun") is True,
        object=mapping(raw.get("object")),
        old_object=mapping(raw.get("oldObject")),
    )


def respond(request: Request, verdict: Verdict) -> bytes:
    """The AdmissionReview that answers `request`: `patch` and `patchType` together or not at all."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": verdict.allowed}
    if verdict.patch and verdict.allowed:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_encode(verdict.patch)).decode("ascii")
    if not verdict.allowed:
        response["status"] = _status(verdict)
    if verdict.warnings:
        response["warnings"] = [_cut(warning, _WARNING_LENGTH) for warning in verdict.warnings[:_WARNINGS]]
    if verdict.audit:
        response["auditAnnotations"] = dict(verdict.audit)
    return _encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def _status(verdict: Verdict) -> dict[str, Any]:
    # 403: kubectl shows our message. With 422 it drops the message, 429 makes it retry for a minute (measured).
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": 403,
        "reason": "Forbidden",
        "message": denial_message(verdict),
        "details": {
            "causes": [
                {"reason": finding.code, "field": finding.field, "message": f"{finding.message}. {finding.remedy}"}
                for finding in verdict.findings
            ]
        },
    }


def denial_message(verdict: Verdict) -> str:
    """Every finding in full: kubectl shows only this message and hides the causes."""
    by = f" by policy {verdict.policy} of tenant {verdict.tenant}" if verdict.policy else ""
    lines = [finding_line(finding) for finding in verdict.findings]
    if len(lines) == 1:
        return f"refused{by}: {lines[0]}"
    return f"refused{by} for {len(lines)} reasons: " + "; ".join(
        f"({number}) {line}" for number, line in enumerate(lines, 1)
    )


def finding_line(finding: Finding) -> str:
    """One finding in one line: code, field, what is wrong, what to do, rule."""
    where = f" {finding.field}" if finding.field else ""
    return f"{finding.code}{where}: {finding.message}. {finding.remedy} [rule {finding.rule}]"


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else line[: limit - 1] + "…"
