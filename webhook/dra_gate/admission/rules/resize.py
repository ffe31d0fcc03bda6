"""Resizing a running Pod adds no device."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import convert
from dra_gate.admission.rules.rule import Context, Rule, is_going
from dra_gate.admission.signs import RESIZES_DEVICES
from dra_gate.admission.verdict import Finding


def _check(context: Context) -> Iterator[Finding]:
    if is_going(context.request):
        return
    before = {
        (request.container.name, request.resource): request.count
        for request in convert.device_requests(context.request.old_object, context.facts)
    }
    for request in convert.device_requests(context.object, context.facts):
        held = before.get((request.container.name, request.resource), 0)
        if request.count is None or held is None or request.count > held:
            yield RULE.finding(request.field, f"the Pod would hold {request.resource} that it was not created with")


# Kubernetes refuses it today (KEP-1287: "only cpu and memory resources are mutable"): this stands for when it no longer
# does.
RULE = Rule(
    id="resize",
    title="Devices are asked for when a Pod is created",
    protects="order, constraints and quota of the policy: nothing converts what is asked for later",
    code="RAW_DEVICE_REQUEST",
    fields=("spec.containers[].resources", "spec.initContainers[].resources"),
    remedy="Create another Pod that asks for as many devices as it needs; cpu and memory may be resized as always",
    on=(("", "pods/resize", "UPDATE"),),
    check=_check,
    signs=(RESIZES_DEVICES,),
)
