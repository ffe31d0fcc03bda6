"""In lane device-plugin a Pod gets in only if the lane can keep its policy."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.admission import plugin_pod
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS
from dra_gate.admission.verdict import Finding
from dra_gate.policy.switch import PLUGIN


def _check(context: Context) -> Iterable[Finding]:
    return context.plugin_findings


RULE = Rule(
    id=plugin_pod.RULE,
    title="Lane device-plugin can keep the policy",
    protects="constraints of the policy: there node labels are all that tells devices apart; and against names that "
    "only a class serves, for which the scheduler makes a claim past every policy",
    code="LANE_CANNOT_KEEP",
    other_codes=("UNSUPPORTED_RESOURCE", "MALFORMED"),
    fields=("spec.containers[].resources.limits", "spec.initContainers[].resources.limits", "…requests"),
    remedy="Use a namespace in lane dra, or another policy",
    on=POD_CREATE,
    check=_check,
    signs=(ASKS,),
    lane=PLUGIN,
)
