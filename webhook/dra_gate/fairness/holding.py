"""What one Pod, or one claim that is nobody's own, holds against its tenant."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from sys import intern

from dra_gate.fairness.charge import Charge
from dra_gate.kube import pod as pods
from dra_gate.kube.pod import ResourceRequest
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN
from dra_gate.policy.model import MAX_CANDIDATES

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"  # on claims made for a Pod from a template
EXTENDED_CLAIM_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"  # on claims that the scheduler makes
_POLICY, _TENANT, _GRANT_GATE = f"{DOMAIN}/policy", f"{DOMAIN}/tenant", f"{DOMAIN}/grant"
_CLAIMS, _CANDIDATES = f"{DOMAIN}/claims", f"{DOMAIN}/candidates"


@dataclass(frozen=True, slots=True)
class PodHolding:
    """A Pod as far as it is charged: the templates it names by claim entry, and devices asked for directly.

    A finished Pod holds nothing; a terminating one still does, until it is gone. `tenant` is the stamped one. While it
    is `waiting` for its grant it holds nothing. `ends`: when the grace of its deletion is over, in milliseconds since
    1970; 0 where it is not being deleted, or is by force.
    """

    uid: str
    namespace: str
    templates: tuple[tuple[str, str], ...]  # (claim entry, template name)
    raw_devices: int
    tenant: str = ""
    node: str = ""
    late: tuple[tuple[str, Charge], ...] = ()  # late claims by name, and the worst case while there is none
    waiting: bool = False
    ends: int = 0
    candidates: tuple[str, ...] = ()  # stamped, of a Pod that asks for devices directly: what it may get


def pod_holding(pod: Object, is_device: Callable[[str], bool]) -> PodHolding:
    """What `pod` holds; `is_device` says which extended resource names give gated devices."""
    metadata = pod.get("metadata")
    uid, namespace = text(at(metadata, "uid")), text(at(metadata, "namespace"))
    if pods.is_finished(pod):
        return PodHolding(uid, namespace, (), 0)
    templates = tuple(
        (intern(text(entry.get("name"))), intern(text(entry["resourceClaimTemplateName"])))  # few names, many Pods
        for entry in pods.claim_entries(pod)
        if entry.get("resourceClaimTemplateName")
    )
    gates = (mapping(gate).get("name") for gate in sequence(at(pod, "spec", "schedulingGates")))
    raw = raw_devices(pods.resource_requests(pod, is_device))
    tenant = stamped_tenant(at(metadata, "annotations"))
    return PodHolding(
        uid,
        namespace,
        templates,
        raw,
        tenant,
        intern(text(at(pod, "spec", "nodeName"))),
        _late(pod, mapping(at(metadata, "annotations"))),
        _GRANT_GATE in gates,
        _ends(mapping(metadata)),
        tuple(map(intern, _candidates(mapping(at(metadata, "annotations"))))) if raw and tenant else (),
    )


def stamped_tenant(marks: object) -> str:
    """The tenant that the annotations of a Pod, or the labels of a claim, name; empty without the policy beside it."""
    tenant = text(at(marks, _TENANT))
    return intern(tenant) if tenant and at(marks, _POLICY) else ""


def _late(pod: Object, annotations: Object) -> tuple[tuple[str, Charge], ...]:
    """By the stamp, whose form the gate has seen to: `gate-0=2,gate-1=1`."""
    counts = dict(part.partition("=")[::2] for part in text(annotations.get(_CLAIMS)).split(","))
    models = _candidates(annotations) if annotations.get(_CLAIMS) else []
    found = []
    for entry in pods.claim_entries(pod) if annotations.get(_CLAIMS) else ():
        name, count = text(entry.get("resourceClaimName")), counts.get(text(entry.get("name")), "")
        if name and len(count) < 4 and count.isascii() and count.isdigit():
            found.append((name, Charge(int(count), dict.fromkeys(models, int(count)))))
    return tuple(found)


def _candidates(annotations: Object) -> list[str]:
    return [model for model in text(annotations.get(_CANDIDATES)).split(",", MAX_CANDIDATES)[:MAX_CANDIDATES] if model]


def _ends(metadata: Object) -> int:
    if metadata.get("deletionGracePeriodSeconds") == 0:
        return 0
    try:
        ends = dt.datetime.fromisoformat(text(metadata.get("deletionTimestamp")))
    except ValueError:
        return 0
    return 0 if ends.tzinfo is None else int(ends.timestamp()) * 1000


def raw_devices(requests: Iterable[ResourceRequest]) -> int:
    """Devices that a Pod asks for directly, as the device plugin serves them.

    That is the high-water mark: containers and sidecars together, or a serial init container beside the sidecars that
    started before it (KEP-753).
    """
    running = peak = apps = 0
    for container, count in pods.devices_by_container(requests):
        if container.is_serial_init:
            peak = max(peak, running + count)
        elif container.is_sidecar:
            running += count
        else:
            apps += count
    return max(peak, running + apps)
