"""Nobody but the gate takes its scheduling gate off a Pod."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import stamp as stamps
from dra_gate.admission.rules.rule import NOT_GOING, POD_UPDATE, Context, Rule, is_going
from dra_gate.admission.signs import GATE_CHANGES
from dra_gate.admission.verdict import Finding


def _check(context: Context) -> Iterator[Finding]:
    if context.request.username in context.facts.writers or is_going(context.request):
        return
    before, after = stamps.is_held(context.request.old_object), stamps.is_held(context.object)
    if before != after:
        # Putting it on a running Pod: core validation refuses every added gate (KEP-3521); said all the same.
        done = "takes it off" if before else "puts it on"
        yield RULE.finding("spec.schedulingGates", f"{stamps.GRANT_GATE} is the gate's own, and nobody else {done}")


RULE = Rule(
    id="grant-gate-edit",
    title="A held Pod stays held until its devices are granted",
    protects="order, quota and fair shares: a Pod without the gate is scheduled at once",
    code="FORGED_GATE",
    fields=("spec.schedulingGates",),
    remedy="Wait until the gate grants the Pod its devices, or delete it; other gates may be taken off as always",
    on=POD_UPDATE,
    check=_check,
    signs=(GATE_CHANGES,),
    twin=f"{NOT_GOING} && {GATE_CHANGES.condition}",
)
