"""No claim has admin access, whatever the namespace's label says."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.handmade_claim import by_the_cluster, spec_of
from dra_gate.admission.rules.rule import CLAIM_CREATE, POD_CREATE, Context, Rule
from dra_gate.admission.signs import CLAIMS, IS_CLAIM
from dra_gate.admission.verdict import Finding
from dra_gate.kube import claim as claims
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, mapping, text


def _check(context: Context) -> Iterator[Finding]:
    if context.request.resource != "pods":
        if not by_the_cluster(context):
            path, spec = spec_of(context)
            for request in _with_access(spec):
                yield RULE.finding(f"{path}.devices.requests", f"request {request} has adminAccess")
        return
    entries = pods.claim_entries(context.object)
    sources = (
        ("template", "resourceClaimTemplateName", context.facts.templates),
        ("claim", "resourceClaimName", context.facts.claims),
    )
    accesses: dict[tuple[str, str], tuple[str, ...]] = {}  # each is looked at once, however many entries name it
    for kind, key, known in sources:
        for name in {text(entry.get(key)) for entry in entries}:
            found = known.get((context.scope.namespace, name)) if name else None
            if found is not None:
                spec = mapping(found.spec.get("spec")) if kind == "template" else found.spec
                accesses[kind, name] = tuple(_with_access(spec))
    for index, entry in enumerate(entries if any(accesses.values()) else ()):
        for kind, key, _ in sources:
            name = text(entry.get(key))
            for request in accesses.get((kind, name), ()):
                yield RULE.finding(
                    f"spec.resourceClaims[{index}]", f"request {request} of {kind} {name} has adminAccess"
                )


def _with_access(spec: Object) -> Iterator[str]:
    for request in claims.requests(spec):
        # Only `exactly` can have it in v1; whatever else carries it is not given the benefit of the doubt.
        if any(alternative.raw.get("adminAccess") not in (None, False) for alternative in request.alternatives):
            yield request.name


RULE = Rule(
    id="admin-access",
    title="No admin access to devices",
    protects="devices that others hold: admin access (KEP-5018) takes them a second time and is charged to nobody",
    code="ADMIN_ACCESS",
    fields=("spec.resourceClaims", "spec.devices.requests", "spec.spec.devices.requests"),
    remedy="Leave adminAccess out. Monitoring that needs it runs in a namespace that is not gated",
    on=(*POD_CREATE, *CLAIM_CREATE),
    check=_check,
    as_written=True,
    signs=(CLAIMS, IS_CLAIM),
)
