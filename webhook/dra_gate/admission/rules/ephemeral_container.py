"""An ephemeral container that is added to a running Pod reaches no device past its claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from posixpath import normpath
from typing import Any

import msgspec

from dra_gate.admission.rules.rule import Context, Rule, is_going
from dra_gate.admission.signs import EPHEMERAL_REACH, VISIBLE_DEVICES
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping, sequence, text

_HARMLESS = ("void", "none", "")  # NVIDIA Container Toolkit: no devices
# What is at, below or above one of these is the host's devices, or the way to somebody who hands them out.
_HOST = ("/dev", "/proc", "/sys", "/run", "/var/run")
_Found = tuple[str, str, str]  # code, field below the container, what is wrong


def _check(context: Context) -> Iterator[Finding]:
    if is_going(context.request):
        return
    # Ephemeral containers are added and never changed (core validation): those that were there are not judged again.
    old = sequence(at(context.request.old_object, "spec", "ephemeralContainers"))
    before = {_written(container) for container in old}
    host_volumes = {
        text(at(volume, "name")): text(at(volume, "hostPath", "path"))
        for volume in sequence(at(context.object, "spec", "volumes"))
        if at(volume, "hostPath") is not None
    }
    for index, raw in enumerate(sequence(at(context.object, "spec", "ephemeralContainers"))):
        container = mapping(raw)
        if _written(raw) in before:
            continue
        for code, field, problem in (
            *_privileged(container),
            *_visible_devices(container, context.facts.policy_set.settings.visible_devices_void),
            *_host_devices(container, host_volumes),
        ):
            yield RULE.finding(f"spec.ephemeralContainers[{index}].{field}", problem, code=code)


def _written(container: object) -> bytes:
    return msgspec.json.encode(container, order="sorted")


def _privileged(container: Mapping[str, Any]) -> Iterator[_Found]:
    if at(container, "securityContext", "privileged") is True:
        yield "PRIVILEGED", "securityContext.privileged", "a privileged container sees every device of its node"


def _visible_devices(container: Mapping[str, Any], void: str) -> Iterator[_Found]:
    last = {text(at(one, "name")): (index, mapping(one)) for index, one in enumerate(sequence(container.get("env")))}
    for name, (index, variable) in last.items():  # the last of two definitions counts
        if name not in VISIBLE_DEVICES:
            continue
        if variable.get("valueFrom") is not None:
            yield "VISIBLE_DEVICES", f"env[{index}].valueFrom", f"{name} is set to what is known only when it starts"
        elif variable.get("value") is not None and variable["value"] not in _HARMLESS:
            yield "VISIBLE_DEVICES", f"env[{index}].value", f"{name} makes the container runtime hand out devices"
    if sequence(container.get("envFrom")) and void != "off":
        name = VISIBLE_DEVICES[0]
        if name not in last:
            yield "VISIBLE_DEVICES", "envFrom", f"it may set {name}; only env itself rules that out: {name}=void"


def _host_devices(container: Mapping[str, Any], host_volumes: Mapping[str, str]) -> Iterator[_Found]:
    for index, mount in enumerate(sequence(container.get("volumeMounts"))):
        path = host_volumes.get(text(at(mount, "name")))
        if path is not None and _reaches(normpath(f"/{path}")):
            yield "HOST_DEVICE", f"volumeMounts[{index}]", f"it shows {path} of the host"


def _reaches(path: str) -> bool:
    path = "/" + path.strip("/")
    return any(path == root or path.startswith(f"{root}/") or path in ("/", "/var") for root in _HOST)


RULE = Rule(
    id="ephemeral-container",
    title="Debugging a Pod gives no devices",
    protects="devices from those who may debug a Pod: ephemeral containers take no resources and no claims",
    code="PRIVILEGED",
    fields=("spec.ephemeralContainers",),
    remedy="Debug without it (kubectl debug --profile=general --target=CONTAINER): that shows the processes and files "
    "of the container, its devices included where the Pod holds them",
    on=(("", "pods/ephemeralcontainers", "UPDATE"),),
    check=_check,
    signs=(EPHEMERAL_REACH,),
    every_lane=True,
)
