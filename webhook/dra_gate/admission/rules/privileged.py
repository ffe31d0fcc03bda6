"""No container is privileged: such a one opens every device of its node, whatever it claims."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import PRIVILEGED
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import at, text


def _check(context: Context) -> Iterator[Finding]:
    for kind, index, raw in pods.containers_with(context.object, "securityContext"):
        if at(raw, "securityContext", "privileged") is True:
            yield RULE.finding(
                f"spec.{kind}[{index}].securityContext.privileged",
                f"container {text(raw.get('name'))} is privileged, and so opens every device of its node",
            )


RULE = Rule(
    id="privileged",
    title="No container is privileged",
    protects="every device of the node: the runtime gives all of them to a privileged container",
    code="PRIVILEGED",
    fields=("spec.containers[].securityContext.privileged", "spec.initContainers[].securityContext.privileged"),
    remedy="Leave privileged out; devices come by claim, and single capabilities may be added where needed",
    on=POD_CREATE,
    check=_check,
    signs=(PRIVILEGED,),
    as_written=True,
    twin=PRIVILEGED.condition,
)
