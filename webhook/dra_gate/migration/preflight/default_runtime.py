"""A container runtime that hands out devices to whoever has an environment variable."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import mapping, text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster

_LOOK = "look for default_runtime_name in the containerd configuration of a DRA node"


def _check(cluster: Cluster) -> Iterable[Finding]:
    """NVIDIA/gpu-operator tells the toolkit; of the two variables the toolkit takes the first that is set."""
    if not any(driver.endswith("nvidia.com") for drivers in cluster.by_slices.values() for driver in drivers):
        return
    toolkits = cluster.tools("container-toolkit")
    if not toolkits:
        handlers = {text(one.get("handler")) for one in cluster.around("RuntimeClass")}
        hint = (
            " (a RuntimeClass nvidia is there, which says that the runtime is installed)"
            if "nvidia" in handlers
            else ""
        )
        yield Finding("unknown", f"which runtime is the nodes' default cannot be seen from here{hint}: {_LOOK}")
    for tool in toolkits:
        settings = mapping(tool.get("settings"))
        names = ("CONTAINERD_SET_AS_DEFAULT", "NVIDIA_RUNTIME_SET_AS_DEFAULT")
        said = next((text(settings[name]).lower() for name in names if name in settings), "")
        where = (text(mapping(tool.get("metadata")).get("name")),)
        if said in ("true", "1"):
            yield Finding(
                "warn",
                "makes nvidia the default runtime: a container whose image says NVIDIA_VISIBLE_DEVICES=all, as CUDA "
                "images do, sees devices that nobody gave it",
                where,
            )
        elif said not in ("false", "0"):
            yield Finding("unknown", f"does not say whether it makes nvidia the default runtime: {_LOOK}", where)


CHECK = Check(
    id="default-runtime",
    title="nvidia is not the default container runtime",
    severity="warn",
    remedy="set cdi.enabled in the GPU Operator, or NVIDIA_RUNTIME_SET_AS_DEFAULT=false for the toolkit; else say "
    "visibleDevicesVoid: withoutClaim in the ClusterSettings",
    reads=("Tool", "RuntimeClass"),
    check=_check,
)
