"""DeviceClasses that the policies name."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster


def _check(cluster: Cluster) -> Iterable[Finding]:
    assert cluster.policy_set is not None  # noqa: S101 - it is read
    wanted: dict[str, list[str]] = {}
    for model in cluster.policy_set.models.values():
        wanted.setdefault(model.device_class, []).append(f"model {model.name}")
    for policy in cluster.policy_set.policies.values():
        for companion in policy.companions:
            wanted.setdefault(companion.device_class, []).append(f"companion {companion.name} of {policy.ref}")
    for name, users in sorted(wanted.items()):
        if name not in cluster.classes:
            why = "a claim that names it waits for ever, even if another of its candidates is free"
            yield Finding("block", f"there is no such DeviceClass, and {', '.join(users)} is of it: {why}", (name,))


CHECK = Check(
    id="classes",
    title="every DeviceClass that the policies name is there",
    severity="block",
    remedy="install the driver's DeviceClasses (they come with its chart), or correct deviceClassName in the policy",
    reads=("DeviceClass", "PolicySet"),
    check=_check,
)
