"""Every claim that can give a gated device comes from a template of this tenant, by name and by content."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.facts import ClaimFacts
from dra_gate.admission.late import is_late_name
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import CLAIMS
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, text
from dra_gate.policy.model import PolicyRef
from dra_gate.policy.switch import PLUGIN

_SOURCES = ("resourceClaimTemplateName", "resourceClaimName")
_REMEDY_OF_PLUGIN_LANE = (
    "Ask for devices under resources.limits and leave resourceClaims out: in lane device-plugin no claim gives any"
)


def _check(context: Context) -> Iterator[Finding]:
    tenant, elsewhere = context.scope.tenant, context.scope.lane == PLUGIN
    valid = tenant.valid_refs(context.scope.namespace) if tenant is not None and not elsewhere else ()
    remedy = _REMEDY_OF_PLUGIN_LANE if elsewhere else context.or_by_companions(RULE.remedy)
    harmless = None  # the source of the entry before: a thousand entries of one template are looked at once
    for index, entry in enumerate(pods.claim_entries(context.object)):
        # Of two keys the other one is the source, or the entry is looked at.
        source = tuple(map(entry.get, _SOURCES)) if len(entry) == 2 and "name" in entry else None
        if source is not None and source == harmless:
            continue
        problem = _problem(entry, valid, context)
        harmless = None if problem else source
        if problem:
            yield RULE.finding(f"spec.resourceClaims[{index}]", problem, remedy=remedy)


def _problem(entry: Object, valid: tuple[PolicyRef, ...], context: Context) -> str:
    """Why the entry is foreign; empty when it is the tenant's own, or can give no gated device."""
    named = [key for key in _SOURCES if entry.get(key)]
    unknown = sorted(set(entry) - {"name", *_SOURCES})
    if len(named) != 1 or unknown:
        listed = ", ".join([*named, *unknown]) or "nothing"
        return (
            f"it names its claim by {listed}, and what cannot be resolved to one template or claim may give any device"
        )
    name = text(entry[named[0]])
    key = (context.scope.namespace, name)
    if named[0] == "resourceClaimName":
        if is_late_name(name):
            return ""  # rule late-claim's
        return _reached(f"claim {name}", context.facts.claims.get(key))
    found = context.facts.templates.get(key)
    tenant = context.scope.tenant
    compiled = context.facts.index.by_name(tenant.name, name) if tenant is not None else None
    if compiled is None or compiled.policy not in valid:
        return _reached(f"template {name}", found)
    # A template that is not there yet is the controller's to make; one that is there must be what we compiled.
    if found is not None and found.spec != compiled.spec:
        return f"template {name} has the name of the tenant's template and other content"
    return ""


def _reached(what: str, found: ClaimFacts | None) -> str:
    if found is None:
        return f"{what} is not there, and what is not known may give any device"
    if not found.reached:
        return ""
    first = found.reached[0]
    return f"request {first.request} of {what} can give a gated device past the tenant's policy: {first.why}"


RULE = Rule(
    id="foreign-claim",
    title="Claims for devices come from the tenant's templates",
    protects="order, constraints and quota of the policy: a hand-made claim has none of them",
    code="FOREIGN_CLAIM",
    fields=("spec.resourceClaims",),
    remedy="Ask for devices under resources.limits as before and leave the claim to the gate, or name one of the "
    "tenant's templates (dra-gate policy render)",
    on=POD_CREATE,
    check=_check,
    as_written=True,
    signs=(CLAIMS,),
)
