"""Counts inversions: Pods that got a lower candidate while a higher one was free on a node where they fit.

Pods are made one after the other, each once the one before is bound, so that what was free is known exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane.api import Api, Object
from controlplane.fleet import Fleet
from dra_gate.kube.quantity import Quantity
from e2e import scene
from e2e.scene import Given

RANKS = ("H100", "A100", "L40S")


@dataclass
class Outcome:
    """What a run of Pods came to."""

    given: list[Given] = field(default_factory=list)
    inversions: int = 0
    unbound: int = 0


def run_pods(api: Api, fleet: Fleet, pods: Iterable[Object], namespace: str, timeout: float = 60) -> Outcome:
    """Create the one-device Pods in turn and watch what each gets."""
    published = scene.products(api)
    free = {place: _rank(product) for place, product in published.items()}
    cpu = {node["metadata"]["name"]: _cpus(node["status"]["allocatable"]["cpu"]) for node in fleet.nodes}
    outcome = Outcome()
    for pod in pods:
        asked = _cpus(pod["spec"]["containers"][0]["resources"].get("requests", {}).get("cpu", "0"))
        best = min((rank for (node, _), rank in free.items() if cpu.get(node, 0) >= asked), default=None)
        name = pod["metadata"]["name"]
        api.create(pod, namespace)
        try:
            stored = scene.bound(api, namespace, name, timeout)
        except TimeoutError:
            outcome.unbound += 1
            continue
        (got,) = scene.given(api, stored)
        rank = free.pop((got.pool, got.device))
        cpu[stored["spec"]["nodeName"]] -= asked
        outcome.given.append(got)
        outcome.inversions += best is not None and rank > best
    return outcome


def _rank(product: str) -> int:
    return next(rank for rank, model in enumerate(RANKS) if model in product)


def _cpus(text: object) -> float:
    return float(Quantity.parse(str(text)).value)
