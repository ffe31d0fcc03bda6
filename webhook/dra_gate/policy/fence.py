"""Core ResourceQuotas around what the arbiter grants: a second fence, coarse, that never bites first. Pure.

A core quota counts claims by DeviceClass and namespace, each for the most that it may get of the class, whatever it has
got (resource.k8s.io/v1; pkg/quota/v1/evaluator/core). So only what has no claim before it is granted can be fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dra_gate.policy.model import DevicePolicy, Model, PolicySet, Quota, Tenant
from dra_gate.policy.words import listed

NAME = "dra-gate-fence"
# A claim that is gone or written anew goes on being counted until the quota controller has looked again.
HEADROOM = 2


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence of one namespace: `hard` by resource name, in devices. `why_not` says what is not fenced, and why."""

    tenant: str
    namespace: str
    hard: Mapping[str, int]
    why_not: str = ""

    def manifest(self) -> dict[str, Any]:
        """The ResourceQuota to create."""
        return {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {
                "name": NAME,
                "namespace": self.namespace,
                "labels": {"dra-gate.io/tenant": self.tenant},
            },
            "spec": {"hard": {name: str(devices) for name, devices in self.hard.items()}},
        }


def fence(policy_set: PolicySet, tenant: Tenant, namespace: str) -> Fence:
    """The fence of a tenant's namespace. The whole tenant's limit holds in each: how it is spread is not known."""
    policies = policy_set.policies_of(tenant)
    early = [str(policy.ref) for policy in policies if tenant.hold(policy) != "late"]
    if tenant.quota == Quota():
        return Fence(tenant.name, namespace, {}, "it has no quota")
    if early:
        why_not = f"under {listed(early)} claims come from templates, and are counted before it is their Pods' turn"
        return Fence(tenant.name, namespace, {}, why_not)
    if namespace in policy_set.settings.kueue_namespaces:
        why_not = "Kueue's claims come from templates, and are counted before it is their Pods' turn"
        return Fence(tenant.name, namespace, {}, why_not)
    models = policy_set.models
    classes = dict.fromkeys(models[name].device_class for policy in policies for name in policy.candidates)
    most = {name: _most(name, tenant.quota, policies, models) for name in classes}
    unlimited = [name for name, devices in most.items() if devices is None]
    return Fence(
        tenant.name,
        namespace,
        {f"{name}.deviceclass.resource.k8s.io/devices": n * HEADROOM for name, n in most.items() if n is not None},
        f"nothing limits class {listed(unlimited)}, or what claims may get instead of it" if unlimited else "",
    )


def _most(
    device_class: str, quota: Quota, policies: Collection[DevicePolicy], models: Mapping[str, Model]
) -> int | None:
    """What a core quota can come to count of the class at most; None: any number.

    A claim that might have got the class counts though it has got another: so the limits of all models that stand in
    one list with the class add up.
    """
    candidates = [set(policy.candidates) for policy in policies]
    beside = set().union(*(some for some in candidates if any(models[m].device_class == device_class for m in some)))
    limits = [] if quota.devices is None else [quota.devices]
    if beside <= quota.models.keys():
        limits.append(sum(quota.models[model] for model in beside))
    return min(limits, default=None)
