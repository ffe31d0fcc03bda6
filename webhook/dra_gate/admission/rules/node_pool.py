"""A Pod that holds devices keeps the node pool of its policy."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS, CLAIMS
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping


def _check(context: Context) -> Iterator[Finding]:
    selector = mapping(at(context.object, "spec", "nodeSelector"))
    for ref in dict.fromkeys(template.policy for template in context.templates.values()):
        for label, value in context.facts.policy_set.policies[ref].constraints.nodes.items():
            if selector.get(label) != value:
                yield RULE.finding(
                    f"spec.nodeSelector[{label}]", f"policy {ref} keeps its Pods on nodes with {label}={value}"
                )
    if context.plugin is not None:
        for label, value in context.plugin.selector.items():
            if selector.get(label) != value:
                yield RULE.finding(f"spec.nodeSelector[{label}]", f"it is not {value!r}: {context.plugin.why[label]}")


RULE = Rule(
    id="node-pool",
    title="The policy's node pool holds",
    protects="the constraint `nodes`: devices of another pool are not the tenant's. In lane device-plugin also nodes "
    "where DRA gives devices, past the policy",
    code="NODE_POOL",
    fields=("spec.nodeSelector",),
    remedy="Leave that label out of nodeSelector, or give it the policy's value",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS, ASKS),
)
