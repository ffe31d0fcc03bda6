"""Simple ways around the gate, each with the rule that closes it and whose twin the API server holds by itself."""

from __future__ import annotations

from typing import Any

from admission import setting

GRANT = [{"name": "dra-gate.io/grant"}]
STAMP = {"dra-gate.io/devices": "1", "team.example/owner": "x"}


def container(**fields: Any) -> dict[str, Any]:
    """A container that asks for nothing beside `fields`."""
    return {"name": "c", "image": "registry.example/a:1", **fields}


def variable(*values: Any) -> dict[str, Any]:
    """A Pod that defines NVIDIA_VISIBLE_DEVICES so many times."""
    return setting.pod(containers=[container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": one} for one in values])])


def annotated(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A Pod with these annotations."""
    made = setting.pod(**spec)
    made["metadata"]["annotations"] = annotations
    return made


def debugged(*containers: dict[str, Any]) -> dict[str, Any]:
    """A Pod with these ephemeral containers."""
    return setting.pod(ephemeralContainers=[{"image": "registry.example/d:1", **one} for one in containers])


_TRUE = {"privileged": True}
_CLAIM = [{"name": "g", "resourceClaimTemplateName": "nics"}]
_HELD = setting.pod(schedulingGates=GRANT)
# The rule, what is created.
CREATED: list[tuple[str, dict[str, Any]]] = [
    ("raw-device-request", setting.pod(containers=[setting.asking("1")])),
    ("raw-device-request", setting.pod(initContainers=[{**setting.asking("2", "nvidia.com/mig-1g.5gb"), "name": "i"}])),
    ("privileged", setting.pod(containers=[container(securityContext=_TRUE)])),
    ("privileged", setting.pod(initContainers=[container(name="i", securityContext=_TRUE)])),
    ("host-device", setting.pod(volumes=[{"name": "v", "hostPath": {"path": "//dev/./nvidia0"}}])),
    ("host-device", setting.pod(volumes=[{"name": "v", "hostPath": {"path": "/x", "type": "CharDevice"}}])),
    ("visible-devices", variable("all")),
    ("visible-devices", variable("0", "all")),
    (
        "visible-devices",
        setting.pod(
            volumes=[{"name": "v", "emptyDir": {}}],
            containers=[container(volumeMounts=[{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}])],
        ),
    ),
    ("third-party-allocator", annotated({"gpu-fraction": "0.5"})),
    ("node-pinning", setting.pod(nodeName="n0", resourceClaims=_CLAIM)),
    ("grant-gate", _HELD),
    ("late-claim", setting.pod(resourceClaims=[{"name": "g", "resourceClaimName": f"dra-gate-late-{'0a' * 16}"}])),
    ("reserved-name", {**setting.pod(), "metadata": {"name": "dra-gate-p"}}),
]
# The rule, what there is, what it becomes, and where that is sent to.
CHANGED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("stamp-edit", annotated(STAMP), annotated({**STAMP, "dra-gate.io/devices": "0"}), "pods"),
    ("stamp-edit", annotated(STAMP), annotated({"team.example/owner": "x"}), "pods"),
    ("stamp-edit", setting.pod(), annotated(STAMP), "pods"),
    ("grant-gate-edit", _HELD, setting.pod(schedulingGates=[]), "pods"),
    (
        "ephemeral-container",
        debugged({"name": "there"}),
        debugged({"name": "there"}, {"name": "new", "securityContext": _TRUE}),
        "pods/ephemeralcontainers",
    ),
]
ORDINARY: list[dict[str, Any]] = [
    setting.pod(containers=[setting.asking("0")]),
    setting.pod(containers=[setting.asking("1", "amd.example/nic")]),
    setting.pod(),
    setting.pod(containers=[container(securityContext={"privileged": False})]),
    setting.pod(volumes=[{"name": "v", "hostPath": {"path": "/dev/shm"}}]),
    setting.pod(volumes=[{"name": "v", "hostPath": {"path": "/data", "type": "Directory"}}]),
    variable("void"),
    variable("all", "none"),
    setting.pod(nodeName="n0"),
    setting.pod(resourceClaims=_CLAIM),
    annotated({"team.example/owner": "x", "dra-gate.io/other": "x"}),
]
# What may be made of a Pod that carries the first one's annotations.
ORDINARY_CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (annotated(STAMP), annotated({**STAMP, "team.example/owner": "y", "dra-gate.io/other": "z"}), "pods"),
    (setting.pod(), setting.pod(), "pods"),
    (setting.pod(), debugged({"name": "new"}), "pods/ephemeralcontainers"),
]
