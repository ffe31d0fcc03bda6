"""The prefix `dra-gate-` is the gate's own: for templates, for claims, and for Pods, whose claims would bear it."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import CLAIM_CREATE, POD_CREATE, Context, Rule
from dra_gate.admission.signs import RESERVED
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, text
from dra_gate.policy.compile import NAME_PREFIX


def _check(context: Context) -> Iterator[Finding]:
    if context.request.username in context.facts.writers:
        return
    for key in ("name", "generateName"):
        name = text(at(context.object, "metadata", key))
        if name.startswith(NAME_PREFIX):
            yield RULE.finding(f"metadata.{key}", f"{name} begins with {NAME_PREFIX}, which is the gate's own")
            return


RULE = Rule(
    id="reserved-name",
    title="The gate's names are the gate's",
    protects="templates that are named before they exist: nobody may make one in the gate's place",
    code="RESERVED_NAME",
    fields=("metadata.name", "metadata.generateName"),
    remedy=f"Choose a name that does not begin with {NAME_PREFIX}",
    on=(*POD_CREATE, *CLAIM_CREATE),
    check=_check,
    as_written=True,
    signs=(RESERVED,),
    twin=RESERVED.condition,  # of claims the guards say it, in every namespace
)
