"""How many Pods with a plain claim template a second this control plane binds: the yardstick of every later figure."""

from __future__ import annotations

import time
from dataclasses import dataclass

from controlplane.api import Object, wait_for
from controlplane.control_plane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane
from controlplane.fleet import Fleet

_NAMESPACE = "kit-rate"


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds that each stage took for `pods` Pods of one device each, on `nodes` nodes."""

    pods: int
    nodes: int
    created: float
    claims: float
    bound: float

    def __str__(self) -> str:
        def per_second(seconds: float) -> str:
            return f"{self.pods / seconds:.0f}/s" if seconds else "all at once"

        return (
            f"{self.pods} Pods with a plain firstAvailable template on {self.nodes} nodes: "
            f"created {per_second(self.created)}, claims made {per_second(self.claims)}, bound {per_second(self.bound)}"
        )


def plain_template(name: str, models: tuple[str, ...] = ("H100", "A100", "L40S"), count: int = 1) -> Object:
    """A ResourceClaimTemplate written by hand: `firstAvailable` over NVIDIA models, request `gpu`, no gate involved."""
    guard = "has(device.attributes['gpu.nvidia.com'].productName)"
    contains = "device.attributes['gpu.nvidia.com'].productName.contains('{}')"
    alternatives = [
        {
            "name": model.lower(),
            "deviceClassName": "gpu.nvidia.com",
            "count": count,
            "selectors": [{"cel": {"expression": f"{guard} && {contains.format(model)}"}}],
        }
        for model in models
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}},
    }


def template_pod(name: str, template: str, cpu: str = "100m") -> Object:
    """A Pod of one container with one claim, `gpu`, from the template."""
    resources = {"requests": {"cpu": cpu}, "claims": [{"name": "gpu"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        },
    }


def measure(plane: ControlPlane, pods: int = 400, fleet: str = "rate") -> Rate:
    """Makes every object before the claim controller and the scheduler start, so that each stage is timed alone.

    Leaves the fleet and its Pods in place: use a control plane of its own.
    """
    api = plane.api()
    made = Fleet.load(fleet)
    made.install(api)
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
    api.create(plain_template("plain"), _NAMESPACE)
    plane.stop(SCHEDULER)
    plane.stop(CONTROLLER_MANAGER)
    started = time.monotonic()
    api.create_many((template_pod(f"p-{number}", "plain") for number in range(pods)), _NAMESPACE)
    created = time.monotonic()
    plane.start(CONTROLLER_MANAGER)
    wait_for(lambda: api.list("resourceclaims", _NAMESPACE), 60, "the first claim", every=0.01)
    first = time.monotonic()
    wait_for(lambda: len(api.list("resourceclaims", _NAMESPACE)) == pods, 600, "every claim", every=0.2)
    claimed = time.monotonic()
    plane.start(SCHEDULER)
    ready = time.monotonic()
    wait_for(lambda: all("nodeName" in p["spec"] for p in api.list("pods", _NAMESPACE)), 600, "every Pod", every=0.2)
    return Rate(pods, len(made.nodes), created - started, claimed - first, time.monotonic() - ready)
