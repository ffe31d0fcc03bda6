"""Nobody writes claims or templates for gated devices by hand, not even before a Pod names them."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import CLAIM_CREATE, Context, Rule
from dra_gate.admission.signs import IS_CLAIM
from dra_gate.admission.verdict import Finding
from dra_gate.kube import claim as claims
from dra_gate.kube.raw import Object, at, mapping, sequence

# These make claims for everybody, and a refusal would block the scheduler: they are never judged.
CLAIM_MAKERS = (
    "system:kube-scheduler",
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:resource-claim-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
)


def by_the_cluster(context: Context) -> bool:
    """The gate itself, or who makes claims from templates, has written it."""
    return context.request.username in context.facts.writers or context.request.username in CLAIM_MAKERS


def spec_of(context: Context) -> tuple[str, Object]:
    """The claim spec in the claim or template that is written, and the path where it stands."""
    spec = mapping(context.object.get("spec"))
    if context.request.resource == "resourceclaimtemplates":
        return "spec.spec", mapping(spec.get("spec"))
    return "spec", spec


def _check(context: Context) -> Iterator[Finding]:
    if by_the_cluster(context):
        return
    path, spec = spec_of(context)
    requests = sequence(at(spec, "devices", "requests"))
    if len(requests) > claims.MAX_REQUESTS or any(
        len(sequence(mapping(request).get("firstAvailable"))) > claims.MAX_ALTERNATIVES for request in requests
    ):
        yield RULE.finding(
            f"{path}.devices.requests",
            f"more than {claims.MAX_REQUESTS} requests, or {claims.MAX_ALTERNATIVES} alternatives in one, which no API "
            "server takes",
        )
        return
    for reached in context.facts.reached_by(spec):
        yield RULE.finding(
            f"{path}.devices.requests",
            f"request {reached.request} can give a gated device outside the tenant's templates: {reached.why}",
            remedy=context.or_by_companions(RULE.remedy),
        )


RULE = Rule(
    id="handmade-claim",
    title="Claims for devices are not written by hand",
    protects="order, constraints and quota of the policy; and Pods that were admitted with a harmless template of the "
    "same name",
    code="FOREIGN_CLAIM",
    fields=("spec.devices.requests", "spec.spec.devices.requests"),
    remedy="Ask for gated devices in the Pod, under resources.limits, and the gate makes the claim. For other devices "
    "name a DeviceClass that gives no gated ones",
    on=CLAIM_CREATE,
    check=_check,
    signs=(IS_CLAIM,),
)
