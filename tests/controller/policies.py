"""A small policy set with a canary and a kept version, for namespaces of the test's choice."""

from __future__ import annotations

from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicySet

_SET = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- {{name: h100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA H100*"], memory: 81559Mi, architecture: Hopper}}
- {{name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"], architecture: Ampere}}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {{name: train, version: 1}}
spec: {{serves: [nvidia.com/gpu], candidates: [a100]}}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {{name: train, version: 2}}
spec: {{serves: [nvidia.com/gpu], candidates: [h100, a100]}}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {{name: train, version: 3}}
spec: {{serves: [nvidia.com/gpu], candidates: [h100, a100], constraints: {{memory: {{min: 40Gi}}}}}}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {{name: maple}}
spec:
  namespaces: [{own}, {canary}]
  policy: train@2
  {keep}
  canary: {{policy: train@3, namespaces: [{canary}]}}
"""


def policy_text(own: str = "maple-a", canary: str = "maple-c", *, keep: bool = True) -> str:
    return _SET.format(own=own, canary=canary, keep="keepVersions: [1]" if keep else "")


def policy_set(own: str = "maple-a", canary: str = "maple-c", *, keep: bool = True) -> PolicySet:
    return load_documents({"set.yaml": policy_text(own, canary, keep=keep).encode()})
