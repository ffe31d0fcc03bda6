"""What the end-to-end tests share: gated namespaces, Pods that ask for devices, and who got which."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.api import Api, Object, wait_for
from controlplane.kubelet import end_all

LANE = {"dra-gate.io/lane": "dra"}


def namespace(api: Api, name: str, labels: dict[str, str] | None = None) -> str:
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or LANE}})
    return name


def container(name: str = "main", gpus: Any = 1, **more: Any) -> Object:
    resources: Object = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    if "cpu" in more:
        resources["requests"] = {"cpu": more.pop("cpu")}
    return {"name": name, "image": "registry.example/none:1", "resources": resources, **more}


def pod(name: str, *containers: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": list(containers) or [container()], **spec},
    }


@dataclass(frozen=True, slots=True)
class Given:
    """One device of a Pod's claims: the alternative that was chosen and where the device is."""

    alternative: str  # gpu/h100
    pool: str
    device: str


def bound(api: Api, namespace: str, name: str, timeout: float = 60) -> Object:
    """The Pod, once it is on a node."""
    return api.wait("pods", name, namespace, lambda found: "nodeName" in found["spec"], timeout, f"{name} to be bound")


def is_waiting(api: Api, namespace: str, name: str) -> Object:
    """The Pod, once the scheduler has said that it fits nowhere."""

    def unschedulable(found: Object) -> bool:
        conditions = found.get("status", {}).get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    return api.wait("pods", name, namespace, unschedulable, 60, f"{name} to be unschedulable")


def given(api: Api, pod: Object) -> list[Given]:
    """The devices of the Pod's claims, in the order of its claim entries."""
    names = {s["name"]: s["resourceClaimName"] for s in pod["status"].get("resourceClaimStatuses", [])}
    found = []
    for entry in pod["spec"].get("resourceClaims", []):
        name = entry.get("resourceClaimName") or names[entry["name"]]
        claim = api.get("resourceclaims", name, pod["metadata"]["namespace"])
        results = claim["status"]["allocation"]["devices"]["results"]
        found += [Given(result["request"], result["pool"], result["device"]) for result in results]
    return found


def clear(api: Api, *namespaces: str) -> None:
    """Take every workload and Pod away, and wait until their devices are free again."""
    for name in namespaces:
        for resource in ("deployments", "statefulsets", "daemonsets", "jobs", "replicasets"):
            api.delete_all(resource, name)
        end_all(api, name)

    def empty() -> bool:
        for name in namespaces:
            end_all(api, name)
        return not any(api.list(resource, name) for name in namespaces for resource in ("pods", "resourceclaims"))

    wait_for(empty, 30, f"{', '.join(namespaces)} to be empty", every=0.2)
    time.sleep(0.3)  # the scheduler hears a moment later that devices are free


def products(api: Api) -> dict[tuple[str, str], str]:
    """The product of every published device, by pool and name."""
    return {
        (slice_["spec"]["pool"]["name"], device["name"]): device["attributes"]["productName"]["string"]
        for slice_ in api.list("resourceslices")
        for device in slice_["spec"].get("devices", [])
        if "productName" in device.get("attributes", {})
    }


def messages(events: Iterable[Object]) -> str:
    return "\n".join(str(event.get("message", "")) for event in events)
