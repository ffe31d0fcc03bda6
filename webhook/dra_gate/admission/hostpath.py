"""Which paths of a node lead to its devices, or to what hands devices out.

A path leads there when it lies in such a folder or when it holds one: `/` and `/var` hold sockets of container
runtimes. So a subPath of a mount changes nothing: what it can reach is below the volume's path, and `..` in it is
refused by the API server. Spelling plays no part (`//dev`, `/./dev/`, `dev`). Links on the node cannot be seen.
"""

from __future__ import annotations

import re
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
    "/var/lib/kubelet/pods",  # the tokens and keys of every Pod of the node, its drivers' and the gate's among them
)
_SPLIT = tuple(tuple(path[1:].split("/")) for path in PROTECTED)

# RE2, and Python's: between segments any slashes, and single dots that mean nothing.
_SLASHES = "(?:[.]?/)*"
_ANYTHING = "(?:/(?s:.)*)?"


def _tree(paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for segment in path:
            node = node.setdefault(segment, {})
    return tree


def _below(node: dict[str, Any]) -> str:
    """What may follow a segment: nothing, or the way down to one of the folders and anything in them."""
    if not node:
        return _ANYTHING
    return f"(?:/{_SLASHES}(?:[.]?|{_one_of(node)}))?"


def _one_of(node: dict[str, Any]) -> str:
    return "|".join(segment.replace(".", "[.]") + _below(child) for segment, child in node.items())


_CLIMBS = "(^|/)[.][.](/|$)"
_LEADS = f"{_SLASHES}(?:[.]?|{_one_of(_tree(_SPLIT))})"
_ORDINARY = f"{_SLASHES}dev/{_SLASHES}shm{_ANYTHING}"  # shared memory: no device in it
_FIRST = tuple({split[0] for split in _SPLIT})
_LEADS_THERE, _IS_ORDINARY = re.compile(_LEADS), re.compile(_ORDINARY)


def condition(path: str) -> str:
    """`reached` in CEL: holds for the same strings. `path` is a CEL expression."""
    return f"({path}.matches('{_CLIMBS}') || ({path}.matches('^{_LEADS}$') && !{path}.matches('^{_ORDINARY}$')))"


def reached(path: str) -> str:
    """Where `path` leads: such as `lies in /dev`, `holds /dev`; empty for a path that leads to no device."""
    if ".." in path and ".." in path.split("/"):
        return "has a segment .., which may lead anywhere"
    first = path.lstrip("/.")
    if first and not first.startswith(_FIRST):
        return ""  # most paths: many times faster than the whole expression
    if not _LEADS_THERE.fullmatch(path) or _IS_ORDINARY.fullmatch(path):
        return ""
    segments = tuple(segment for segment in path.split("/") if segment not in ("", "."))
    for protected, split in zip(PROTECTED, _SPLIT, strict=True):
        if segments[: len(split)] == split:
            return f"lies in {protected}" if len(segments) > len(split) else f"is {protected}"
        if split[: len(segments)] == segments:
            return f"holds {protected}"
    return "leads to devices"
