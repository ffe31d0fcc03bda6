"""Exporters and dashboards that see no devices given by claim."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import mapping, text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster


def _check(cluster: Cluster) -> Iterable[Finding]:
    for tool in cluster.tools("dcgm-exporter"):
        settings = mapping(tool.get("settings")).values()
        if not any(text(value).lower() in ("true", "1") for value in settings):
            yield Finding(
                "warn",
                "KUBERNETES_ENABLE_DRA is not set: metrics of devices given by claim name no Pod",
                (text(mapping(tool.get("metadata")).get("name")),),
            )
    for tool in cluster.tools("kube-state-metrics"):
        yield Finding(
            "warn",
            "kube_pod_container_resource_requests counts no claims: dashboards on nvidia_com_gpu go empty "
            "(https://github.com/kubernetes/kube-state-metrics/issues/2979)",
            (text(mapping(tool.get("metadata")).get("name")),),
        )


CHECK = Check(
    id="exporters",
    title="exporters and dashboards see devices given by claim",
    severity="warn",
    remedy="set KUBERNETES_ENABLE_DRA=true for the DCGM exporter, with the right to read slices; build dashboards on "
    "the gate's own metrics (docs/reference/metrics.md)",
    reads=("Tool",),
    check=_check,
)
