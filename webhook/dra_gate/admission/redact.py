"""A review without what nobody needs to judge it: recorded reviews are kept in files and handed around.

What is kept is listed; everything else goes, fields that Kubernetes does not have yet included. Gone are environment
values (but for the variables that rules read), commands and arguments, images' pull secrets, probes, annotations that
no rule reads, volumes that are not of the host, and everything about the sender but name and groups. A redacted review
gets the verdict and the patch that the original gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dra_gate.admission.configurations import mutated
from dra_gate.admission.request import read
from dra_gate.admission.review import Route
from dra_gate.admission.signs import (
    CDI_ANNOTATIONS,
    DEVICE_LIST_ANNOTATIONS,
    DEVICE_VARIABLES,
    DOMAIN,
    OTHER_ALLOCATORS,
)
from dra_gate.kube.pod import MIRROR_ANNOTATION
from dra_gate.kube.raw import mapping, text
from dra_gate.policy.model import Settings

Keep = Callable[[Any], Any]

_REQUEST = ("uid", "kind", "resource", "subResource", "operation", "namespace", "name", "dryRun")
# What rules read: annotations by prefix, and variables of which the value counts. Of CUDA_VERSION only the name does.
_ANNOTATIONS = (
    DOMAIN,
    MIRROR_ANNOTATION,
    "resource.kubernetes.io/",
    *CDI_ANNOTATIONS,
    *DEVICE_LIST_ANNOTATIONS,
    *OTHER_ALLOCATORS,
)


def recorded(route: Route, body: bytes) -> bytes | None:
    """The line that is kept of a review's body; None for the second one about a Pod.

    The API server asks mutate about every new Pod that shows a sign of what mutate changes, and then validate about the
    result: the first says all. Raises msgspec.DecodeError or BadRequest for what is no review.
    """
    review = msgspec.json.decode(body)
    request = read(review)
    asked_twice = request.is_about("", "pods", "CREATE") and any(sign.shown(request) for sign in mutated(Settings()))
    return None if route == "validate" and asked_twice else msgspec.json.encode(redact(review))


def redact(review: Mapping[str, Any]) -> dict[str, Any]:
    """The AdmissionReview with what judging needs; shares parts with `review` and changes none."""
    request = mapping(review.get("request"))
    user = mapping(request.get("userInfo"))
    kept = {key: request[key] for key in _REQUEST if key in request}
    kept["userInfo"] = {key: user[key] for key in ("username", "groups") if key in user}
    for key in ("object", "oldObject"):
        if key in request:
            kept[key] = _object(request[key], text(mapping(request.get("resource")).get("resource")))
    return {"apiVersion": review.get("apiVersion"), "kind": review.get("kind"), "request": kept}


def _object(value: Any, resource: str) -> Any:
    if not isinstance(value, dict):
        return value
    match resource:
        case "pods":
            return _POD(value)
        case "resourceclaims" | "resourceclaimtemplates" | "namespaces":
            return _only({"metadata": _METADATA, "spec": _as_it_is})(value)
        case "podgroups":
            return _only({"metadata": _METADATA, "spec": _only({"resourceClaims": _as_it_is})})(value)
        case _:
            return _only({"metadata": _METADATA})(value) | _templates(value)


def _templates(value: Any) -> Any:
    """Of an object that makes Pods: nothing but the way to their templates, and the templates."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            return _SPEC(value)
        found = {key: _templates(inner) for key, inner in value.items()}
        kept = {key: inner for key, inner in found.items() if inner}
        if "spec" in kept and "metadata" in value:
            kept["metadata"] = _METADATA(value["metadata"])
        return kept
    if isinstance(value, list):
        return [_templates(inner) for inner in value]
    return None


def _as_it_is(value: Any) -> Any:
    return value


def _only(fields: Mapping[str, Keep]) -> Keep:
    """Of a JSON object the named fields, each in its own way, and what says its kind."""

    def keep(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        head = {key: value[key] for key in ("apiVersion", "kind") if key in value}
        return head | {key: inner(value[key]) for key, inner in fields.items() if key in value}

    return keep


def _each(keep: Keep) -> Keep:
    return lambda value: [keep(item) for item in value] if isinstance(value, list) else value


def _annotations(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # The map stays even when it is empty: a patch adds to it.
    return {key: inner for key, inner in value.items() if key.startswith(_ANNOTATIONS)}


def _variable(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name = value.get("name")
    if name in DEVICE_VARIABLES:
        known = {key: value[key] for key in ("name", "value") if key in value}
        return known | ({"valueFrom": {}} if "valueFrom" in value else {})
    return {"name": name}


def _volume(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: value[key] for key in ("name", "hostPath") if key in value}


def _nothing(value: Any) -> Any:
    """That there is one, and no more."""
    return {} if isinstance(value, dict) else value


_METADATA = _only(
    {
        **dict.fromkeys(("name", "generateName", "namespace", "labels", "ownerReferences", "uid"), _as_it_is),
        "deletionTimestamp": _as_it_is,
        "annotations": _annotations,
    }
)
_CONTAINER = _only(
    {
        **dict.fromkeys(("name", "image", "resources", "restartPolicy", "targetContainerName"), _as_it_is),
        "securityContext": _only({"privileged": _as_it_is}),
        "env": _each(_variable),
        "envFrom": _each(_nothing),
        "volumeMounts": _each(_only(dict.fromkeys(("name", "mountPath", "subPath", "subPathExpr"), _as_it_is))),
    }
)
_SPEC = _only(
    {
        **dict.fromkeys(("initContainers", "containers", "ephemeralContainers"), _each(_CONTAINER)),
        **dict.fromkeys(("resourceClaims", "nodeName", "nodeSelector", "affinity", "tolerations"), _as_it_is),
        **dict.fromkeys(("runtimeClassName", "schedulerName", "schedulingGates", "schedulingGroup"), _as_it_is),
        "volumes": _each(_volume),
    }
)
_POD = _only({"metadata": _METADATA, "spec": _SPEC, "status": _only({"phase": _as_it_is})})
