"""Hostile Pods: what gets at a device by the back door, in random combinations and spellings, among honest parts."""

from __future__ import annotations

from random import Random
from typing import Any

from closed.oracle import DOORS, VARIABLE

RESOURCES = [
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.5gb",
    "nvidia.com/gpu.shared",
    "nvidia.com/gpumem",
    "nvidia.com/GPU",
    "nvidia.com/é",
    "example.com/anything",
    "example.com/nic",
    "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
    "deviceclass.resource.kubernetes.io/mig.nvidia.com",
    "deviceclass.resource.kubernetes.io/gpu.unknown",
    "cpu",
    "amd.com/gpu",
]
AMOUNTS = [
    "1",
    1,
    "0",
    0,
    "1k",
    "0.5",
    "1e0",
    "1000m",
    "-1",
    "+2",
    "999999999999999999999",
    "",
    None,
    True,
    [],
    {"a": 1},
]
VALUES = [
    "all",
    "0",
    "GPU-1",
    "nvidia.com/gpu=0",
    "void",
    "none",
    "",
    "ALL",
    " all",
    "$(X)",
    "$(NVIDIA_X)",
    "$$(X)",
    "void,all",
]
ODD = ["", "x" * 5000, "ä\u202e\u0000", "\ud7ff", None, 0, -1, 1e300, True, [], [[]], {}, {"a": {"b": []}}]
OWN = ["<fern: train@2 x1>", "<fern: train@2 x2>", "<fern: train@1 x1>"]
FOREIGN = ["<moss: pooled@1 x1>", "nic-and-gpu", "gpu-out-of-everything", "unknown-class", "not-there"]
TEMPLATES = [*OWN, *FOREIGN, "nics", "dra-gate-train-v2-x1-0000000000"]
CLAIMS = ["a-nic", "a-gpu", "not-there", "dra-gate-late-1"]
ANNOTATIONS = {
    "cdi.k8s.io/devices": ["nvidia.com/gpu=all", "vendor.example/nic=nic0", ""],
    "nvidia.cdi.k8s.io/container.c": ["management.nvidia.com/gpu=all"],
    "devices.gke.io/container.c": ["- path: /dev/nvidia0\n", "- path: /dev/nic0\n"],
    "kubernetes.io/config.mirror": ["x"],
    "dra-gate.io/policy": ["train"],
    "dra-gate.io/policy-set": ["0" * 64],
    "dra-gate.io/devices": ["1"],
    "note": ["all"],
}


class Dice(Random):
    """Chances that are all greater or smaller for one Pod: some have one thing wrong with them, some everything."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self._scale = self.choice([0.1, 0.2, 0.5, 1.0])

    def chance(self, share: float) -> bool:
        """True in `share` of all cases, less for a tame Pod."""
        return self.random() < share * self._scale

    def amount(self) -> Any:
        """What is asked for of a resource, mostly written as people do."""
        return self.choice(AMOUNTS if self.chance(0.7) else ["1", "2", 1])


def spelled(path: str, draw: Dice) -> str:
    """The path as somebody writes it who wants a reader to miss it; or a folder above it."""
    parts = path.strip("/").split("/")
    if draw.chance(0.4):
        parts = parts[: draw.randint(0, len(parts))]
    made = ""
    for part in parts:
        made += draw.choice(["/", "/", "/", "//", "/./", "/x/../"]) + part
    return made + draw.choice(["", "", "/", "/.", "//"]) or draw.choice(["/", "//", "/..", "/./"])


def _resources(draw: Dice) -> Any:
    made: dict[str, Any] = {}
    for part in ("limits", "requests"):
        if draw.chance(0.5):
            made[part] = {draw.choice(RESOURCES): draw.amount() for _ in range(draw.randint(0, 2))}
    if draw.chance(0.3):
        made["claims"] = [{"name": draw.choice(["g0", "g1", "gate-0", "nope"])} for _ in range(draw.randint(1, 2))]
    return made


def _environment(draw: Dice) -> list[Any]:
    names = [VARIABLE, VARIABLE, "X", "NVIDIA_X", "NVIDIA_DRIVER_CAPABILITIES", "nvidia_visible_devices", "PATH"]
    made: list[Any] = []
    for _ in range(draw.randint(0, 4)):
        entry: dict[str, Any] = {"name": draw.choice(names), "value": draw.choice(VALUES)}
        if draw.chance(0.2):
            entry = {"name": entry["name"], "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}}
        made.append(entry)
    return made


def _container(draw: Dice, number: int) -> dict[str, Any]:
    made: dict[str, Any] = {"name": f"c{number}", "image": "registry.example/a:1"}
    if draw.chance(0.6):
        made["resources"] = _resources(draw)
    if draw.chance(0.3):
        made["env"] = _environment(draw)
    if draw.chance(0.2):
        made["envFrom"] = [{"prefix": draw.choice(["", "NVIDIA_"]), "configMapRef": {"name": "x"}}]
    if draw.chance(0.15):
        made["securityContext"] = {"privileged": draw.choice([True, True, False])}
    if draw.chance(0.2):
        made["restartPolicy"] = "Always"
    if draw.chance(0.2):
        made["volumeMounts"] = [
            {"name": "v0", "mountPath": "/x", "subPath": draw.choice(["", "nvidia0", "run/docker.sock"])}
        ]
    return made


def pod(draw: Dice) -> dict[str, Any]:
    """A Pod of the right types: every part of it could be stored, or is refused by the API server for its value."""
    spec: dict[str, Any] = {"containers": [_container(draw, n) for n in range(draw.randint(1, 3))]}
    if draw.chance(0.3):
        spec["initContainers"] = [_container(draw, n + 10) for n in range(draw.randint(1, 2))]
    if draw.chance(0.4):
        spec["resourceClaims"] = [
            {"name": f"g{n}", "resourceClaimTemplateName": draw.choice(TEMPLATES)}
            if draw.chance(0.5)
            else {"name": f"g{n}", "resourceClaimName": draw.choice(CLAIMS)}
            for n in range(draw.randint(1, 2))
        ]
    if draw.chance(0.3):
        paths = [*DOORS, "/dev/shm", "/var/log", "/etc/ssl", "/data", "/devices"]
        spec["volumes"] = [
            {"name": f"v{n}", "hostPath": {"path": spelled(draw.choice(paths), draw)}}
            for n in range(draw.randint(1, 2))
        ]
    if draw.chance(0.1):
        spec["nodeName"] = draw.choice(["n0", "cpu-0"])
    if draw.chance(0.1):
        spec["runtimeClassName"] = draw.choice(["nvidia", "renamed", "runc", "gvisor"])
    if draw.chance(0.1):
        spec["nodeSelector"] = {draw.choice(["nvidia.com/gpu.product", "kubernetes.io/os", "pool"]): "x"}
    metadata: dict[str, Any] = {"name": "dra-gate-p" if draw.chance(0.15) else "p"}
    if draw.chance(0.3):
        chosen = draw.sample(sorted(ANNOTATIONS), draw.randint(1, 3))
        metadata["annotations"] = {key: draw.choice(ANNOTATIONS[key]) for key in chosen}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def spoiled(value: Any, draw: Dice) -> Any:
    """The same with wrong types, odd text, huge maps or deep nesting somewhere inside."""
    chance = draw.random()
    if chance < 0.03:
        return draw.choice(ODD)
    if chance < 0.035:
        return {f"k{n}": n for n in range(2000)}
    if chance < 0.04:
        deep: Any = "x"
        for _ in range(200):
            deep = [deep] if draw.chance(0.5) else {"containers": deep}
        return deep
    if isinstance(value, dict):
        return {key: spoiled(inner, draw) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner, draw) for inner in value]
    return value
