"""An autoscaler that makes nodes for Pods with claims."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dra_gate.kube.raw import Object, mapping, text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster

_MINOR = re.compile(r"v?1\.([0-9]+)", re.ASCII)


def _check(cluster: Cluster) -> Iterable[Finding]:
    """cluster-autoscaler: `--enable-dynamic-resource-allocation`, off by default before 1.35, then always on.
    Karpenter: from 1.14 on, and only with `IGNORE_DRA_REQUESTS=false`.
    """
    for tool in cluster.tools("cluster-autoscaler"):
        on = _says(tool, "--enable-dynamic-resource-allocation", "true")
        yield _finding(tool, on or _minor(tool) >= 35, "set --enable-dynamic-resource-allocation=true")
    for tool in cluster.tools("karpenter"):
        on = _says(tool, "IGNORE_DRA_REQUESTS", "false") or _says(tool, "--ignore-dra-requests", "false")
        new = _minor(tool) >= 14 or not text(tool.get("version"))
        yield _finding(tool, on and new, "take 1.14 or newer and set IGNORE_DRA_REQUESTS=false")


def _finding(tool: Object, knows: bool, missing: str) -> Finding:
    name = (text(mapping(tool.get("metadata")).get("name")),)
    if not knows:
        return Finding("warn", f"makes no node for a Pod with claims: {missing}", name)
    told = "whether it also does so from no node at all is up to its provider and cannot be seen from here"
    return Finding("unknown", f"makes nodes for Pods with claims; {told}", name)


def _says(tool: Object, name: str, wanted: str) -> bool:
    return text(mapping(tool.get("settings")).get(name)).lower() == wanted


def _minor(tool: Object) -> int:
    found = _MINOR.match(text(tool.get("version")))
    return int(found[1]) if found else 0


CHECK = Check(
    id="autoscaler",
    title="the autoscaler makes nodes for Pods with claims",
    severity="warn",
    remedy="switch DRA on in the autoscaler, and keep one node of each DRA node group until a Pod with a claim "
    "has been seen to bring one up from zero (https://github.com/kubernetes/autoscaler/issues/10277)",
    reads=("Tool",),
    check=_check,
)
