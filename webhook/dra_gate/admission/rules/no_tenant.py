"""Devices in a gated namespace are somebody's: one that no tenant owns gets none."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import convert
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS, CLAIMS, STAMPED
from dra_gate.admission.verdict import Finding


def _check(context: Context) -> Iterator[Finding]:
    if context.scope.tenant is not None:
        return
    for request in convert.device_requests(context.object, context.facts):
        yield RULE.finding(request.field, f"namespace {context.scope.namespace} is gated and belongs to no tenant")


RULE = Rule(
    id="no-tenant",
    title="A gated namespace has an owner",
    protects="quota: devices that nobody is charged for",
    code="NO_TENANT",
    fields=("metadata.namespace",),
    remedy="Have the namespace listed in a Tenant of the policy set, or take its dra-gate.io/lane label away",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS, STAMPED, ASKS),
)
