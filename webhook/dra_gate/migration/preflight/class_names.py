"""Two DeviceClasses with one extended resource name."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster


def _check(cluster: Cluster) -> Iterable[Finding]:
    for resource, classes in sorted(cluster.names.items()):
        if len(classes) > 1:
            yield Finding(
                "block",
                f"all have extendedResourceName {resource}. The newest counts; when any of them loses the name or is "
                "deleted the scheduler forgets it for all (seen on Kubernetes 1.37.2)",
                tuple(sorted(classes)),
            )


CHECK = Check(
    id="class-names",
    title="each extended resource name stands on one DeviceClass",
    severity="block",
    remedy="take the name off all but one, then off that one too and put it back on: that wakes the scheduler, and "
    "Pods that wait; try one Pod afterwards",
    reads=("DeviceClass",),
    check=_check,
)
