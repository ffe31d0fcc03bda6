"""Where `NVIDIA_VISIBLE_DEVICES=void` belongs: containers whose environment may ask for devices out of anybody's sight.

The NVIDIA runtime gives what the variable names. ConfigMaps and Secrets that envFrom reads may be written after the
Pod; a container with CUDA_VERSION and without the variable counts as an old image and gets every device (container
toolkit, internal/config/image, IsLegacy). `env` wins over both, and over what an image says of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dra_gate.kube import pod as pods
from dra_gate.kube.pod import Container
from dra_gate.kube.raw import Object, sequence

NAME = "NVIDIA_VISIBLE_DEVICES"
LEGACY = "CUDA_VERSION"
MOST = 256  # containers of one Pod that get the variable: more is a mistake, and each costs operations of the patch
_ELSEWHERE = ("envFrom", "env")


def entry() -> dict[str, str]:
    """The item of `env` that gives no device."""
    return {"name": NAME, "value": "void"}


def lacking(pod: Object, setting: str, own: Collection[str]) -> Iterator[Container]:
    """The containers that should say void and say nothing of the variable, by `visibleDevicesVoid` as set.

    `own` are the Pod's claim entries for devices of its tenant. A container that sees one of them is left alone: its
    driver sets the variable itself.
    """
    if setting == "off":
        return
    everywhere = setting == "withoutClaim"
    for kind, index, raw in pods.containers_with(pod, *(() if everywhere else _ELSEWHERE)):
        if not everywhere and not looks_elsewhere(raw):
            continue
        container = Container(kind, index, raw)
        if not says(raw, NAME) and not any(name in own for name in container.claim_names()):
            yield container


def looks_elsewhere(raw: Object) -> bool:
    """The container's environment may ask for devices without the variable being written there."""
    return bool(sequence(raw.get("envFrom"))) or says(raw, LEGACY)


def says(raw: Object, name: str) -> bool:
    """The container's own `env` has the variable."""
    return name in [item.get("name") for item in sequence(raw.get("env")) if isinstance(item, dict)]
