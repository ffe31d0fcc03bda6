"""What a request must show for some rule to deny it, or for mutate to change it.

Each sign is said twice: in CEL, for the API server's matchConditions, and here, for requests that come from files; a
property holds the two equal. A sign may hold for more requests than its rules deny, never for fewer: what carries no
sign never reaches the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dra_gate.admission import stamp as stamps
from dra_gate.admission.request import Request
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN as OUR_DOMAIN
from dra_gate.policy.compile import NAME_PREFIX

DOMAIN = f"{OUR_DOMAIN}/"
# Environment variables by which container runtimes hand out devices: NVIDIA's, AMD's and Habana's container runtime.
VISIBLE_DEVICES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True)
class Sign:
    """`condition` is CEL over `object`, `oldObject` and `request`; `shown` says the same of a request.

    CEL stops at a field that is not there, so every optional one is asked for with has() first.
    """

    name: str
    condition: str
    shown: Callable[[Request], bool]


def any_of(signs: Iterable[Sign]) -> str:
    """CEL that holds when one of the signs does; each is said once."""
    return " || ".join(f"({condition})" for condition in dict.fromkeys(sign.condition for sign in signs))


def _asks(request: Request) -> bool:
    return any(True for container in pods.containers(request.object) for _ in pods.extended_resource_names(container))


def _reserved(request: Request) -> bool:
    names = (text(at(request.object, "metadata", key)) for key in ("name", "generateName"))
    return any(name.startswith(NAME_PREFIX) for name in names)


def our_annotations(obj: object) -> dict[str, Any]:
    """The annotations of our domain."""
    annotations = mapping(at(obj, "metadata", "annotations"))
    return {key: value for key, value in annotations.items() if key.startswith(DOMAIN)}


def _differs(ours: str, theirs: str) -> str:
    """Some annotation of our domain in `ours` is absent from `theirs` or has another value there."""
    return (
        f"(has({ours}.metadata.annotations) && {ours}.metadata.annotations.exists(k, k.startsWith('{DOMAIN}') && "
        f"!(has({theirs}.metadata.annotations) && k in {theirs}.metadata.annotations && "
        f"{theirs}.metadata.annotations[k] == {ours}.metadata.annotations[k])))"
    )


def _containers(obj: str) -> str:
    """Both lists that hold devices. Every expression about containers is a macro over this."""
    return f"({obj}.spec.containers + (has({obj}.spec.initContainers) ? {obj}.spec.initContainers : []))"


def _held(obj: str) -> str:
    return f"has({obj}.spec.schedulingGates) && {obj}.spec.schedulingGates.exists(g, g.name == '{stamps.GRANT_GATE}')"


def _may_reach(container: object) -> bool:
    """An ephemeral container says something that may give it devices; the rule knows whether it does."""
    return (
        at(container, "securityContext", "privileged") is True
        or any(at(container, field) is not None for field in ("envFrom", "volumeMounts"))
        or any(at(variable, "name") in VISIBLE_DEVICES for variable in sequence(at(container, "env")))
    )


def _extended(pod: object) -> set[tuple[str, str, str, str]]:
    """Container, limits or requests, extended resource, and the quantity as it is written."""
    return {
        (text(at(container, "name")), kind, name, text(quantity))
        for where in ("containers", "initContainers")
        for container in sequence(at(pod, "spec", where))
        for kind in ("limits", "requests")
        for name, quantity in mapping(at(container, "resources", kind)).items()
        if "/" in name
    }


CONTAINERS = _containers("object")

# Extended resources, implicit ones included, are exactly the names with a slash (core v1, IsExtendedResourceName). The
# condition does not list ours: a class may get an extendedResourceName at any time, and must not open a way around.
ASKS = Sign(
    "asks-for-an-extended-resource",
    f"{CONTAINERS}.exists(c, "
    "has(c.resources) && ("
    "(has(c.resources.limits) && c.resources.limits.exists(k, k.contains('/'))) || "
    "(has(c.resources.requests) && c.resources.requests.exists(k, k.contains('/')))))",
    _asks,
)
CLAIMS = Sign(
    "names-claims",
    "has(object.spec.resourceClaims) && size(object.spec.resourceClaims) > 0",
    lambda request: bool(pods.claim_entries(request.object)),
)
STAMPED = Sign(
    "carries-a-stamp",
    f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, k.startsWith('{DOMAIN}'))",
    lambda request: bool(our_annotations(request.object)),
)
RESERVED = Sign(
    "bears-our-prefix",
    f"(has(object.metadata.name) && object.metadata.name.startsWith('{NAME_PREFIX}')) || "
    f"(has(object.metadata.generateName) && object.metadata.generateName.startsWith('{NAME_PREFIX}'))",
    _reserved,
)
HELD = Sign("carries-our-gate", _held("object"), lambda request: stamps.is_held(request.object))
GATE_CHANGES = Sign(
    "changes-our-gate",
    f"({_held('object')}) != ({_held('oldObject')})",
    lambda request: stamps.is_held(request.object) != stamps.is_held(request.old_object),
)
# kubectl debug adds a container without any of this; one that it adds for a node or as sysadmin is privileged.
EPHEMERAL_REACH = Sign(
    "an-ephemeral-container-may-reach-devices",
    "has(object.spec.ephemeralContainers) && object.spec.ephemeralContainers.exists(c, "
    "(has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged) || "
    "has(c.envFrom) || has(c.volumeMounts) || "
    f"(has(c.env) && c.env.exists(e, e.name in {list(VISIBLE_DEVICES)})))",
    lambda request: any(map(_may_reach, sequence(at(request.object, "spec", "ephemeralContainers")))),
)
RESIZES_DEVICES = Sign(
    "changes-a-request-for-an-extended-resource",
    " || ".join(
        f"{_containers('object')}.exists(c, has(c.resources) && has(c.resources.{kind}) && "
        f"c.resources.{kind}.exists(k, k.contains('/') && !{_containers('oldObject')}.exists(o, o.name == c.name && "
        f"has(o.resources) && has(o.resources.{kind}) && k in o.resources.{kind} && "
        f"o.resources.{kind}[k] == c.resources.{kind}[k])))"
        for kind in ("limits", "requests")
    ),
    lambda request: not _extended(request.object) <= _extended(request.old_object),
)
STAMP_CHANGES = Sign(
    "changes-a-stamp",
    f"{_differs('object', 'oldObject')} || {_differs('oldObject', 'object')}",
    lambda request: our_annotations(request.object) != our_annotations(request.old_object),
)
