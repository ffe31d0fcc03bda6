"""A late claim is named by the Pod that it will be written for, as the stamp says, and by no other."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import stamp as stamps
from dra_gate.admission.hold import hold_of
from dra_gate.admission.late import LATE_NAME, is_late_name
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import CLAIMS, HELD
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import text


def _check(context: Context) -> Iterator[Finding]:
    named = set[str]()
    for index, entry in enumerate(pods.claim_entries(context.object)):
        name = text(entry.get("resourceClaimName"))
        if not is_late_name(name):
            continue
        problem = f"claim {name} is named twice" if name in named else _problem(text(entry.get("name")), name, context)
        named.add(name)
        if problem:
            yield RULE.finding(f"spec.resourceClaims[{index}]", problem)


def _problem(entry: str, name: str, context: Context) -> str:
    """Why a late claim's name is not this Pod's; empty when as far as anybody can tell it is."""
    if (context.scope.namespace, name) in context.facts.claims:
        return f"claim {name} is there already, so it was granted to another Pod"
    if entry in context.templates:
        return ""
    if hold_of(context.object, context.scope, context.facts) != "late":
        return f"claim {name} would be one that the gate writes at the grant, and this Pod gets its claims otherwise"
    if not stamps.is_held(context.object):
        return f"claim {name} is written when the Pod is granted, and nothing holds the Pod until then"
    return (
        f"claim {name} is not among those that annotation {stamps.CLAIMS} has the devices of, or for more devices than "
        "one claim holds, or its entry names a template, too"
    )


RULE = Rule(
    id="late-claim",
    title="A late claim is for the Pod that it is written for",
    protects="devices that were granted to another Pod; and Pods from waiting for a claim that nobody writes",
    code="FOREIGN_CLAIM",
    fields=("spec.resourceClaims",),
    remedy="Ask for devices under resources.limits as before and leave the claim to the gate; take resourceClaims, "
    "schedulingGates and dra-gate.io/ annotations out of a manifest that was copied from a Pod",
    on=POD_CREATE,
    check=_check,
    as_written=True,
    signs=(CLAIMS,),
    twin=f"!({HELD.condition}) && ({CLAIMS.condition}) && object.spec.resourceClaims.exists(c, "
    f"has(c.resourceClaimName) && c.resourceClaimName.matches('^{LATE_NAME}$'))",
)
