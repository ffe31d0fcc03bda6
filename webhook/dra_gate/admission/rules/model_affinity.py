"""In lane device-plugin a Pod that asks for devices runs on nodes of its policy's models only."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.plugin_pod import TERMS, lacks
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, sequence
from dra_gate.policy.switch import PLUGIN
from dra_gate.policy.words import listed

_FIELD = ".".join(TERMS)


def _check(context: Context) -> Iterator[Finding]:
    if context.plugin is None:
        return
    placement = context.plugin.placement
    present = sequence(at(context.object, *TERMS))
    message = f"it may run on other nodes than those of {listed(placement.models)}, as their nodeLabels tell them"
    if not present:
        yield RULE.finding(_FIELD, message)
    for index, term in enumerate(present):
        if lacks(term, placement.terms):
            yield RULE.finding(f"{_FIELD}[{index}]", message)


RULE = Rule(
    id="model-affinity",
    title="In lane device-plugin the candidates are the limit",
    protects="candidates and constraints of the policy: without the affinity any node's devices do",
    code="MODEL_AFFINITY",
    fields=(_FIELD,),
    remedy="Create the Pod again: the gate's mutating webhook, which writes the affinity, was not reached or was "
    "undone by a later one",
    on=POD_CREATE,
    check=_check,
    signs=(ASKS,),
    lane=PLUGIN,
)
