"""The lane label says dra or device-plugin: in a namespace with another word nobody gets devices."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import convert
from dra_gate.admission.facts import LANE_LABEL
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.scope import LANES
from dra_gate.admission.signs import ASKS, CLAIMS, STAMPED
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import text


def _check(context: Context) -> Iterator[Finding]:
    if context.scope.lane in LANES:
        return
    fields = [request.field for request in convert.device_requests(context.object, context.facts)]
    for index, entry in enumerate(pods.claim_entries(context.object)):
        if text(entry.get("name")) in context.templates:  # rule foreign-claim says what is wrong with the others
            fields.append(f"spec.resourceClaims[{index}]")
    for field in fields:
        yield RULE.finding(
            field, f"namespace {context.scope.namespace} has {LANE_LABEL}={context.scope.lane!r}, which is no lane"
        )


RULE = Rule(
    id="unknown-lane",
    title="The lane is one that exists",
    protects="against a typing error in a label that opens a namespace",
    code="POLICY_LABEL",
    fields=("metadata.namespace",),
    remedy=f"Have the namespace's label {LANE_LABEL} set to {' or '.join(LANES)}",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS, STAMPED, ASKS),
)
