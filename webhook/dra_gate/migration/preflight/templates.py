"""The tenants' claim templates are in their namespaces."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster, full_name
from dra_gate.policy.compile import templates_of


def _check(cluster: Cluster) -> Iterable[Finding]:
    """The one for one device tells: the controller makes those of usual counts together."""
    assert cluster.policy_set is not None  # noqa: S101 - it is read
    index = templates_of(cluster.policy_set)
    present = {full_name(one) for one in cluster.state.templates}
    missing: dict[str, list[str]] = {}
    for namespace, tenant in cluster.tenants():
        for ref in tenant.valid_refs(namespace):
            if f"{namespace}/{index.for_count(tenant.name, ref, 1).name}" not in present:
                missing.setdefault(str(ref), []).append(namespace)
    for policy, namespaces in sorted(missing.items()):
        text = f"no template of {policy}: the first Pods wait for one, and for ever if the controller does not run"
        yield Finding("block", text, tuple(sorted(namespaces)))


CHECK = Check(
    id="templates",
    title="the tenants' claim templates are there",
    severity="block",
    remedy="see that the controller runs and what it says (kubectl -n dra-gate logs deploy/dra-gate-controller)",
    reads=("Namespace", "ResourceClaimTemplate", "PolicySet"),
    check=_check,
)
