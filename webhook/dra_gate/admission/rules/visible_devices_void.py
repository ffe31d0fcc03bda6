"""A container whose environment is out of sight says NVIDIA_VISIBLE_DEVICES=void, as far as the settings ask for it."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import convert, void
from dra_gate.admission.facts import Facts
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.scope import LANES
from dra_gate.admission.signs import ENV_FROM
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import Object
from dra_gate.policy.switch import PLUGIN


def _check(context: Context) -> Iterator[Finding]:
    scope = context.scope
    if scope.lane not in LANES or scope.tenant is None:
        return  # mutate leaves such a Pod alone
    asking = asking_containers(context.object, context.facts) if scope.lane == PLUGIN else ()
    setting = context.facts.policy_set.settings.visible_devices_void
    for container in void.lacking(context.object, setting, context.templates):
        if container.path not in asking:
            yield RULE.finding(
                f"{container.field}.env",
                f"container {container.name} is given no device and lacks {void.NAME}=void: what its environment asks "
                "for is out of sight",
            )


def asking_containers(pod: Object, facts: Facts) -> frozenset[tuple[str | int, ...]]:
    """The paths of the containers that ask for devices: of these a device plugin sets the variable itself."""
    return frozenset(request.container.path for request in convert.device_requests(pod, facts))


RULE = Rule(
    id="visible-devices-void",
    title="An environment from elsewhere asks for no devices",
    protects="devices that are somebody else's: a ConfigMap may name them after the Pod was judged",
    code="VISIBLE_DEVICES",
    fields=("spec.containers[].env", "spec.containers[].envFrom", "spec.initContainers[]…"),
    remedy="Create the Pod again: the gate's mutating webhook, which sets the variable, was not reached or was undone "
    f"by a later one; or set {void.NAME}=void in env yourself",
    on=POD_CREATE,
    check=_check,
    signs=(ENV_FROM,),
)
