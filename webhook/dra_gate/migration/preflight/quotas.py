"""ResourceQuotas on device requests that count no claims."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import at, mapping, text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster, full_name

_PREFIX = "requests."  # the only one that ResourceQuota takes for extended resources


def _check(cluster: Cluster) -> Iterable[Finding]:
    """A claim counts against `requests.<name>` if its class has that extendedResourceName (seen on 1.37.2)."""
    assert cluster.policy_set is not None  # noqa: S101 - it is read
    tenants = dict(cluster.tenants())
    for quota in cluster.state.quotas:
        tenant = tenants.get(text(at(quota, "metadata", "namespace")))
        if tenant is None:
            continue
        policies = cluster.policy_set.policies_of(tenant)
        classes = {cluster.policy_set.models[name].device_class for one in policies for name in one.candidates}
        for limit in sorted(mapping(at(quota, "spec", "hard"))):
            resource = limit.removeprefix(_PREFIX)
            mapped = set(cluster.names.get(resource, ())) if cluster.names_count else set()
            if resource == limit or not cluster.is_device(resource) or classes <= mapped:
                continue
            bounded = tenant.quota.devices is not None or bool(tenant.quota.models)
            instead = "the tenant's own quota is the limit then" if bounded else "and the tenant has no other"
            text_ = f"{limit} stops counting: claims are no {resource} unless their class has it as name; {instead}"
            yield Finding("warn" if bounded else "block", text_, (full_name(quota),))


CHECK = Check(
    id="quotas",
    title="no ResourceQuota stops counting when Pods hold claims",
    severity="block",
    remedy="give the tenant a quota in its policy file (spec.quota), and take the limit out of the ResourceQuota",
    reads=("ResourceQuota", "DeviceClass", "PolicySet"),
    check=_check,
)
