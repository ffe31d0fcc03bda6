"""What one Pod, or one claim that is nobody's own, holds against its tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from sys import intern

from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, at, text

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"  # on claims made for a Pod from a template


@dataclass(frozen=True, slots=True)
class PodHolding:
    """A Pod as far as it is charged: the templates it names by claim entry, and devices asked for directly.

    A finished Pod holds nothing; a terminating one still does, until it is gone.
    """

    uid: str
    namespace: str
    templates: tuple[tuple[str, str], ...]  # (claim entry, template name)
    raw_devices: int


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
    return PodHolding(uid, namespace, templates, raw_devices(pod, is_device))


def raw_devices(pod: Object, is_device: Callable[[str], bool]) -> int:
    """Devices that a Pod asks for directly, as the device plugin serves them.

    That is the high-water mark: containers and sidecars together, or a serial init container beside the sidecars that
    started before it (KEP-753).
    """
    running = peak = apps = 0
    for container, count in pods.devices_by_container(pods.resource_requests(pod, is_device)):
        if container.is_serial_init:
            peak = max(peak, running + count)
        elif container.is_sidecar:
            running += count
        else:
            apps += count
    return max(peak, running + apps)


def held(holding: PodHolding, charge_of: Callable[[str, str], Charge]) -> Charge:
    """The Pod's charge; `charge_of(entry, template name)` gives one claim's."""
    claims = sum((charge_of(entry, template) for entry, template in holding.templates), NOTHING)
    return claims + Charge(holding.raw_devices)
