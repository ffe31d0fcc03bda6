"""The gate's scheduling gate is on no Pod but those that the gate holds."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import stamp as stamps
from dra_gate.admission.hold import hold_of
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS, CLAIMS, HELD
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping, sequence


def _check(context: Context) -> Iterator[Finding]:
    if context.request.username in context.facts.writers:
        return
    if hold_of(context.object, context.scope, context.facts) != "free" and context.holds_devices:
        return
    for index, gate in enumerate(sequence(at(context.object, "spec", "schedulingGates"))):
        if mapping(gate).get("name") == stamps.GRANT_GATE:
            yield RULE.finding(
                f"spec.schedulingGates[{index}]",
                f"{stamps.GRANT_GATE} is the gate's own, and nobody takes it off a Pod that the gate does not hold",
            )


RULE = Rule(
    id="grant-gate",
    title="The gate holds Pods itself",
    protects="Pods from waiting for ever, and the order in which devices are granted",
    code="FORGED_GATE",
    fields=("spec.schedulingGates",),
    remedy=f"Leave {stamps.GRANT_GATE} out; to hold a Pod yourself, use a gate of your own name",
    on=POD_CREATE,
    check=_check,
    as_written=True,
    signs=(HELD,),
    twin=f"({HELD.condition}) && !({CLAIMS.condition}) && !({ASKS.condition})",
)
