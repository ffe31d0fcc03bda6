"""The stamp on a new Pod says what the gate would say."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import stamp as stamps
from dra_gate.admission.plugin_pod import stamp as plugin_stamp
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS, CLAIMS, STAMPED
from dra_gate.admission.verdict import Finding


def _check(context: Context) -> Iterator[Finding]:
    expected = plugin_stamp(context.plugin, context.scope, context.facts) or stamps.stamp_of(
        context.templates,
        context.late,
        set_digest=context.facts.policy_set.digest,
        generation=context.facts.gate_generation,
        lane=context.scope.lane,
    )
    found = stamps.stamp_on(context.object)
    if expected and 0 <= stamps.generation_of(found) <= context.facts.gate_generation:
        # The Gate may have changed since mutate looked; that the set is honoured was asked before.
        expected[stamps.GATE_GENERATION] = str(found[stamps.GATE_GENERATION])
    for key in stamps.GUARDED:
        if found.get(key) != expected.get(key):
            said = f"says {found[key]!r}" if key in found else "is missing"
            should = (
                f"is {expected[key]!r}" if key in expected else "has no place on a Pod without devices of its tenant"
            )
            yield RULE.finding(f"metadata.annotations[{key}]", f"it {said}; the truth {should}")


RULE = Rule(
    id="stamp",
    title="The stamp is true",
    protects="audit, charges and replay: they read the stamp",
    code="FORGED_ANNOTATION",
    fields=("metadata.annotations",),
    remedy="Create the Pod again and leave dra-gate.io/ annotations to the gate: this stamp is not its own, or names a "
    "policy set that is no longer honoured",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS, STAMPED, ASKS),
)
