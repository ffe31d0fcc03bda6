"""A Pod whose devices have to be granted is held until they are."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import stamp as stamps
from dra_gate.admission.hold import hold_of
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import CLAIMS
from dra_gate.admission.verdict import Finding
from dra_gate.policy.switch import DRA


def _check(context: Context) -> Iterator[Finding]:
    hold = hold_of(context.object, context.scope, context.facts)
    if context.templates and hold != "free" and not stamps.is_held(context.object):
        assert context.scope.tenant is not None  # noqa: S101 - or there is no hold
        yield RULE.finding(
            "spec.schedulingGates",
            f"{stamps.GRANT_GATE} is missing, and tenant {context.scope.tenant.name} gets its devices granted one Pod "
            "after the other",
        )


RULE = Rule(
    id="held",
    title="Pods wait until their devices are granted",
    protects="quota, order and fair shares: a Pod without the gate is scheduled at once",
    code="NOT_HELD",
    fields=("spec.schedulingGates",),
    remedy="Create the Pod again: the gate puts it on every Pod that it has to hold, so it was not asked, or another "
    "webhook took it off",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS,),
    lane=DRA,
)
