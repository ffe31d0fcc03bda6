"""Kubernetes, its feature gates and device drivers, as new as the policies need."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.lint import offered
from dra_gate.policy.model import PolicySet
from dra_gate.policy.words import many

FIRST = 34  # docs/support.md


def _check(cluster: Cluster) -> Iterable[Finding]:
    version = cluster.state.snapshot.version
    if cluster.minor is None:
        yield Finding("unknown", f"Kubernetes version {version!r} is not understood")
    elif cluster.minor < FIRST:
        yield Finding("block", f"Kubernetes {version}: claims with an order of candidates came with 1.{FIRST}")
    elif cluster.minor < 36:
        lost = "of devices on a node and of nodes" if cluster.minor == FIRST else "of devices on a node"
        yield Finding("warn", f"Kubernetes {version} promises no order {lost}: lower candidates are given more often")
    for gate in ("DynamicResourceAllocation", "DRAPrioritizedList"):
        if cluster.gate(gate) is False:
            yield Finding("block", f"feature gate {gate} is off, and every claim needs it")
    # From 1.36 on these two cannot be switched off.
    if not cluster.knows("FeatureGate") and cluster.minor in (34, 35):
        yield Finding("unknown", "feature gates: GET /metrics of the API server is not allowed, or not in this file")
    if cluster.names and cluster.gate("DRAExtendedResource") is False:
        resources = ", ".join(sorted(cluster.names))
        yield Finding("warn", f"feature gate DRAExtendedResource is off: {resources} on a class means nothing")
    taints = cluster.gate("DRADeviceTaints")
    if taints is None and cluster.minor is not None:
        taints = cluster.minor >= 36
    if not taints and cluster.minor is not None:
        yield Finding("warn", "feature gate DRADeviceTaints is off: devices that a driver taints as ill are given on")
    if cluster.policy_set is not None:
        yield from _drivers(cluster, cluster.policy_set)


def _drivers(cluster: Cluster, policy_set: PolicySet) -> Iterable[Finding]:
    for policy in policy_set.policies.values():
        if policy.constraints.driver_min is None:
            continue
        words = [word for _, _, word in offered(policy_set, policy, cluster.published)]
        old = words.count("driverVersion")
        if old:
            usable = words.count("")
            yield Finding(
                "warn" if usable else "block",
                f"policy {policy.ref} wants driver {policy.constraints.driver_min}: {many(old, 'device')} with an "
                f"older one, {many(usable, 'device')} can be given",
            )


CHECK = Check(
    id="versions",
    title="Kubernetes, its feature gates and the device drivers are new enough",
    severity="block",
    remedy="upgrade what is too old, or lower driverVersion in the policy; switch the gate on in API server, "
    "scheduler, controller manager and kubelets (only the API server's are seen from here)",
    reads=("ResourceSlice",),
    check=_check,
)
