"""No volume reaches the node's devices, or the sockets and folders of what hands devices out."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import hostpath
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import DEVICE_TYPES, HOST_DEVICE
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, sequence


def reached_by(volume: object) -> tuple[str, str] | None:
    """The field below the volume by which it reaches the node's devices, and what is wrong; None where it does not."""
    source = volume.get("hostPath") if isinstance(volume, dict) else None
    if not isinstance(source, dict):
        return None  # nearly all: seen before anything is read
    path = source.get("path")
    if isinstance(path, str) and (why := hostpath.reached(path)):
        return "hostPath.path", f"the node's path {path[:200]!r} {why}"
    if source.get("type") in DEVICE_TYPES:
        return "hostPath.type", f"a volume of type {source['type']} is a device"
    return None


def _check(context: Context) -> Iterator[Finding]:
    for index, volume in enumerate(sequence(at(context.object, "spec", "volumes"))):
        if found := reached_by(volume):
            yield RULE.finding(f"spec.volumes[{index}].{found[0]}", found[1])


RULE = Rule(
    id="host-device",
    title="No volume reaches the node's devices",
    protects="devices that are somebody else's: a device file, or a runtime's socket, passes every claim by",
    code="HOST_DEVICE",
    fields=("spec.volumes[].hostPath.path", "spec.volumes[].hostPath.type"),
    remedy="Leave the volume out: devices come by claim, shared memory by an emptyDir of medium Memory; of a node's "
    "other folders mount the one that is needed, not one above it",
    on=POD_CREATE,
    check=_check,
    signs=(HOST_DEVICE,),
    as_written=True,
    twin=HOST_DEVICE.condition,
)
