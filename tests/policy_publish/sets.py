"""Small policy sets that differ as a test wants them to, and the objects that stand for them in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_gate.cluster.policy_map import policy_map
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicySet

CATALOGUE = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- {name: h100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA H100*"], memory: 81559Mi, architecture: Hopper}
- {name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"], architecture: Ampere}
"""


def files(version: int = 1, *, namespaces: Sequence[str] = ("maple-a",), quota: int | None = None) -> dict[str, bytes]:
    """The files of a set: tenant maple gets `train@version`, whose memory floor tells the versions apart."""
    policy = f"""
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {{name: train, version: {version}}}
spec: {{serves: [nvidia.com/gpu], candidates: [h100, a100], constraints: {{memory: {{min: {version}Gi}}}}}}
"""
    tenant = f"""
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {{name: maple}}
spec:
  namespaces: [{", ".join(namespaces)}]
  policy: train@{version}
  {"" if quota is None else f"quota: {{devices: {quota}}}"}
"""
    return {"catalog.yaml": CATALOGUE.encode(), "train.yaml": policy.encode(), "tenants.yaml": tenant.encode()}


def made(version: int = 1, **kind: Any) -> PolicySet:
    return load_documents(files(version, **kind))


def published(version: int = 1, **kind: Any) -> dict[str, Any]:
    """The ConfigMap of that set."""
    return policy_map(made(version, **kind).digest, files(version, **kind), {})


def gate(active: str, accepted: Sequence[dict[str, Any]] = (), **metadata: Any) -> dict[str, Any]:
    """The Gate to send to an API server."""
    return {
        "apiVersion": "dra-gate.io/v1alpha1",
        "kind": "Gate",
        "metadata": {"name": "default", **metadata},
        "spec": {"active": active, "accepted": list(accepted)},
    }
