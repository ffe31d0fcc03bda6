"""Objects that explanations are tested with: nodes with devices, Pods with claims from a policy's templates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from dra_gate.allocation.state import State, state_of
from dra_gate.kube.raw import Object
from dra_gate.policy.compile import compile_template
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, PolicySet

GPU = "gpu.nvidia.com"
PRODUCTS = {
    "h100": ("NVIDIA H100 80GB HBM3", "Hopper", "81559Mi"),
    "a100": ("NVIDIA A100-SXM4-80GB", "Ampere", "81920Mi"),
    "l40s": ("NVIDIA L40S", "Ada Lovelace", "46068Mi"),
}
POLICIES = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- {name: h100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA H100*"], memory: 81559Mi, architecture: Hopper}
- {name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"], memory: 81920Mi, architecture: Ampere}
- {name: l40s, deviceClassName: gpu.nvidia.com, products: ["NVIDIA L40S"], memory: 46068Mi, architecture: Ada Lovelace}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: training, version: 6}
spec: {serves: [nvidia.com/gpu], candidates: [a100, l40s]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: training, version: 7}
spec:
  serves: [nvidia.com/gpu]
  candidates: [h100, a100, l40s]
  constraints: {memory: {min: 40Gi}, driverVersion: {min: 550.54.15}, sameAttribute: [resource.kubernetes.io/pcieRoot]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: research}
spec: {namespaces: [research], policy: training@7, keepVersions: [6], quota: {devices: 4}}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: lilac}
spec: {namespaces: [lilac], policy: training@7}
"""
POLICY_SET: PolicySet = load_documents({"policies.yaml": POLICIES.encode()})


def device_class(name: str = GPU, driver: str = GPU) -> dict[str, Any]:
    selector = f"device.driver == '{driver}'"
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name, "uid": f"class-{name}"},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    }


def node(name: str, *, cpu: str = "64", labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def gpu(name: str, model: str = "h100", *, root: str = "pci0000:00", driver: str = "550.127.8", **more: Any) -> Object:
    product, architecture, memory = PRODUCTS[model]
    return {
        "name": name,
        "attributes": {
            "productName": {"string": product},
            "architecture": {"string": architecture},
            "driverVersion": {"version": driver},
            "type": {"string": "gpu"},
            "uuid": {"string": more.pop("uuid", f"GPU-{name}")},
            "resource.kubernetes.io/pcieRoot": {"string": root},
        },
        "capacity": {"memory": {"value": more.pop("memory", memory)}},
        **more,
    }


def resource_slice(
    on: str, *devices: Object, generation: int = 1, count: int = 1, name: str = "", driver: str = GPU
) -> dict[str, Any]:
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{on}-{driver}-{generation}", "uid": f"slice-{on}-{name}-{generation}"},
        "spec": {
            "driver": driver,
            "nodeName": on,
            "pool": {"name": on, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def template(count: int = 1, tenant: str = "research", version: int = 7) -> Any:
    policy = POLICY_SET.policies[PolicyRef("training", version)]
    return compile_template(POLICY_SET.tenants[tenant], policy, POLICY_SET.models, count)


def claim(
    name: str,
    made: Any = None,
    *,
    namespace: str = "research",
    owner: str = "",
    entry: str = "gate-0",
    given: Iterable[tuple[str, str, str]] = (),
    at: str = "2026-11-30T10:00:00Z",
    spec: Object | None = None,
) -> dict[str, Any]:
    """A claim; `given` are request, pool and device of what it holds."""
    made = made or template()
    source = made.spec if spec is None else {"metadata": {}, "spec": spec}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": f"claim-{namespace}-{name}",
        **source["metadata"],
    }
    status: dict[str, Any] = {}
    if owner:
        metadata["ownerReferences"] = [
            {"kind": "Pod", "name": owner, "uid": f"pod-{namespace}-{owner}", "controller": True}
        ]
        metadata["annotations"] = {**metadata.get("annotations", {}), "resource.kubernetes.io/pod-claim-name": entry}
    results = [{"request": request, "driver": GPU, "pool": pool, "device": device} for request, pool, device in given]
    if results:
        status = {"allocation": {"devices": {"results": results}, "allocationTimestamp": at}}
        if owner:
            status["reservedFor"] = [{"resource": "pods", "name": owner, "uid": f"pod-{namespace}-{owner}"}]
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": source["spec"], "status": status}


def pod(
    name: str,
    *,
    namespace: str = "research",
    entries: Mapping[str, Mapping[str, str]] | None = None,
    on: str = "",
    cpu: str = "1",
    created: str = "2026-11-30T09:00:00Z",
    **spec: Any,
) -> dict[str, Any]:
    """A Pod whose one container sees all its claims."""
    if entries is None:
        entries = {"gate-0": {"resourceClaimTemplateName": template().name}}
    conditions = (
        [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T10:00:00Z"}] if on else []
    )
    container = {
        "name": "main",
        "image": "registry.example/secret-project:1",
        "args": ["--password=hunter2"],
        "env": [{"name": "TOKEN", "value": "s3cr3t"}],
        "resources": {"requests": {"cpu": cpu}, "claims": [{"name": entry} for entry in entries]},
    }
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"pod-{namespace}-{name}",
            "creationTimestamp": created,
            "labels": {"submitted-by": "jane.doe"},
            "annotations": {"example.com/mail": "person@example.com", "dra-gate.io/policy-set": POLICY_SET.digest},
        },
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": entry, **source} for entry, source in entries.items()],
            **({"nodeName": on} if on else {}),
            **spec,
        },
        "status": {"phase": "Running" if on else "Pending", "conditions": conditions},
    }


def asking(
    name: str, count: int = 1, *, given: Iterable[tuple[str, str, str]] = (), version: int = 7, **more: Any
) -> list[Object]:
    """A Pod and the claim that was made for it."""
    namespace = more.get("namespace", "research")
    made = template(count, POLICY_SET.tenant_by_namespace.get(namespace, "research"), version)
    at = more.pop("at", "2026-11-30T10:00:00Z")
    entries = {"gate-0": {"resourceClaimTemplateName": made.name}}
    asks = pod(name, entries=entries, **more)
    asks["status"]["resourceClaimStatuses"] = [{"name": "gate-0", "resourceClaimName": f"{name}-gate-0"}]
    return [asks, claim(f"{name}-gate-0", made, namespace=namespace, owner=name, given=given, at=at)]


def state(*objects: Any, version: str = "v1.37.2", **more: Any) -> State:
    """The state of these objects (lists of them are flattened), class and policies in place."""
    flat = itertools.chain.from_iterable(one if isinstance(one, list) else [one] for one in objects)
    policies = {POLICY_SET.digest: {"policies.yaml": POLICIES}}
    return state_of([device_class(), *flat], version=version, policies=policies, active=POLICY_SET.digest, **more)
