"""An ephemeral container that is added to a running Pod reaches no device past its claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dra_gate.admission import void
from dra_gate.admission.rules import host_device, privileged, visible_devices
from dra_gate.admission.rules.rule import NOT_GOING, Context, Rule, is_going
from dra_gate.admission.signs import EPHEMERAL_REACH
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import Object, at, mapping, sequence, text

_Found = tuple[str, str, str]  # code, field below the container, what is wrong


def _check(context: Context) -> Iterator[Finding]:
    if is_going(context.request):
        return
    # Ephemeral containers are added and never changed (core validation): those that were there are not judged again.
    old = sequence(at(context.request.old_object, "spec", "ephemeralContainers"))
    before = {_written(container) for container in old}
    reached = {
        text(at(volume, "name")): found[1]
        for volume in sequence(at(context.object, "spec", "volumes"))
        if (found := host_device.reached_by(volume))
    }
    voided = context.facts.policy_set.settings.visible_devices_void != "off"
    for index, raw in enumerate(sequence(at(context.object, "spec", "ephemeralContainers"))):
        if _written(raw) in before:
            continue
        for code, field, problem in _found(mapping(raw), reached, voided=voided):
            yield RULE.finding(f"spec.ephemeralContainers[{index}].{field}", problem, code=code)


def _found(container: Object, reached: Mapping[str, str], *, voided: bool) -> Iterator[_Found]:
    """What the three rules about hosts say of it; `reached` are the volumes that reach devices, and how."""
    if at(container, "securityContext", "privileged") is True:
        yield (
            privileged.RULE.code,
            "securityContext.privileged",
            "a privileged container opens every device of its node",
        )
    for field, problem in visible_devices.asked_of_the_runtime(container):
        yield visible_devices.RULE.code, field, problem
    if voided and void.looks_elsewhere(container) and not void.says(container, void.NAME):
        # Nothing is mutated here, so nobody else adds it.
        field = "envFrom" if container.get("envFrom") else "env"
        yield visible_devices.RULE.code, field, f"{void.NAME} may be set out of sight; add it to env, with value void"
    for number, mount in enumerate(sequence(container.get("volumeMounts"))):
        problem = reached.get(text(at(mount, "name")), "")
        if problem:
            yield host_device.RULE.code, f"volumeMounts[{number}]", problem


def _written(container: Any) -> bytes:
    return msgspec.json.encode(container, order="sorted")


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
    other_codes=(visible_devices.RULE.code, host_device.RULE.code),
    signs=(EPHEMERAL_REACH,),
    # What it mounts, and what its variables come to, are left to the rule.
    twin=f"{NOT_GOING} && has(object.spec.ephemeralContainers) && object.spec.ephemeralContainers.exists(c, "
    "has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged && "
    "!(has(oldObject.spec.ephemeralContainers) && "
    "oldObject.spec.ephemeralContainers.exists(o, o.name == c.name)))",
)
