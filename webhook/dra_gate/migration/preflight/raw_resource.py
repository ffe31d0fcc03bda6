"""Programs beside the gate that find device Pods by what they ask for, and so miss Pods with claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_gate.kube.raw import text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster

# By tool: what it misses, and the source. A version in which it was put right is not known for any of them.
READERS: Final = {
    "nvsentinel": (
        "its metadata-collector does not see devices given by claim, so its drainer drains the whole node",
        "https://github.com/NVIDIA/NVSentinel/issues/1865",
    ),
    "k8s-driver-manager": (
        "from before July 2026 it evicts only Pods that ask for nvidia.com/gpu before it reloads the driver: Pods with "
        "claims keep it from doing so",
        "https://github.com/NVIDIA/k8s-driver-manager/pull/204",
    ),
}


def _check(cluster: Cluster) -> Iterable[Finding]:
    for tool in cluster.tools(*READERS):
        missed, source = READERS[text(tool.get("tool"))]
        version = text(tool.get("version"))
        yield Finding("warn", f"{missed} ({source})", (f"{tool['tool']}{f' {version}' if version else ''}",))


CHECK = Check(
    id="raw-resource",
    title="no program that looks for raw device requests is relied on",
    severity="warn",
    remedy="see whether your version knows claims; if not, do without it on DRA nodes, or have it read the annotation "
    "dra-gate.io/devices, which every Pod with claims of the gate carries",
    reads=("Tool",),
    check=_check,
)
