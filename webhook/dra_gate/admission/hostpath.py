"""Which paths of a node lead to its devices, or to what hands devices out.

A path leads there when it lies in such a folder or when it holds one: `/` and `/var` hold sockets of container
runtimes. So a subPath of a mount changes nothing: what it can reach is below the volume's path, and `..` in it is
refused by the API server. Spelling plays no part (`//dev`, `/./dev/`, `dev`). Links on the node cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_RUN = (
    # Who may speak to a runtime starts containers with any device, or reaches into those that have one.
    "containerd",
    "docker",
    "docker.sock",
    "crio",
    "cri-dockerd.sock",
    "dockershim.sock",
    "podman",
    "k3s",
    "k0s",
    "nri",  # plugins that change containers as they start
    "cdi",  # descriptions of devices, by which runtimes inject them
    "nvidia",  # the driver container's root: /run/nvidia/driver/dev
)
PROTECTED = (
    "/dev",
    "/proc",  # /proc/<pid>/root is the whole host again
    "/sys",
    *(f"{run}/{name}" for run in ("/run", "/var/run") for name in _RUN),
    "/etc/cdi",
    "/etc/kubernetes/manifests",  # static Pods: no webhook is asked about them
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/pod-resources",
)
_ORDINARY = ("dev", "shm")  # shared memory: no device in it
_SPLIT = tuple(tuple(path[1:].split("/")) for path in PROTECTED)


def reached(path: str) -> str:
    """Where `path` leads: such as `lies in /dev`, `holds /dev`; empty for a path that leads to no device."""
    segments = tuple(segment for segment in path.split("/") if segment not in ("", "."))
    if ".." in segments:
        return "has a segment .., which may lead anywhere"
    if segments[:2] == _ORDINARY:
        return ""
    for protected, split in zip(PROTECTED, _SPLIT, strict=True):
        if segments[: len(split)] == split:
            return f"lies in {protected}" if len(segments) > len(split) else f"is {protected}"
        if split[: len(segments)] == segments:
            return f"holds {protected}"
    return ""


_SLASHES = "([.]?/)*"  # at the beginning of a segment: slashes and single dots that mean nothing
_ANYTHING = "(/(?s:.)*)?"


def _tree(paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for segment in path:
            node = node.setdefault(segment, {})
    return tree


def _below(node: dict[str, Any]) -> str:
    """RE2 for what may follow a segment: nothing, or the way down to one of the folders and anything in them."""
    if not node:
        return _ANYTHING
    return f"(/{_SLASHES}([.]?|{_one_of(node)}))?"


def _one_of(node: dict[str, Any]) -> str:
    return "|".join(segment.replace(".", "[.]") + _below(child) for segment, child in node.items())


def condition(path: str) -> str:
    """`reached` in CEL: holds for the same strings. `path` is a CEL expression."""
    leads = f"^{_SLASHES}([.]?|{_one_of(_tree(_SPLIT))})$"
    ordinary = f"^{_SLASHES}dev/{_SLASHES}shm{_ANYTHING}$"
    return f"({path}.matches('(^|/)[.][.](/|$)') || ({path}.matches('{leads}') && !{path}.matches('{ordinary}')))"
