"""No container asks for devices directly: a request that is left would be served by no policy."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import convert
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS, CONTAINERS
from dra_gate.admission.verdict import Finding
from dra_gate.policy.switch import DRA


def _check(context: Context) -> Iterator[Finding]:
    if context.scope.tenant is None:
        return  # rule no-tenant says it
    planned = convert.plan(context.object, context.scope, context.facts)
    yield from planned.findings
    if planned.findings:
        return
    for request in planned.converted:
        yield RULE.finding(request.field, f"{request.count} x {request.resource} is asked for directly, not by a claim")


# Names outside the served domains, and classes' own, are devices by what the cluster holds. In a namespace without a
# tenant rule no-tenant denies the same. The API server has quantities without leading zeros.
_TWIN = (
    f"{CONTAINERS}.exists(c, has(c.resources) && ("
    + " || ".join(
        f"(has(c.resources.{kind}) && c.resources.{kind}.exists(k, domains.exists(d, k.startsWith(d + '/')) && "
        f"string(c.resources.{kind}[k]).matches('^[1-9]')))"
        for kind in ("limits", "requests")
    )
    + "))"
)

RULE = Rule(
    id=convert.RULE,
    title="Devices come by claim",
    protects="order, constraints and quota of the policy: an extended resource request passes all three by",
    code="RAW_DEVICE_REQUEST",
    fields=("spec.containers[].resources.limits", "spec.initContainers[].resources.limits", "…requests"),
    remedy="Create the Pod again: the gate's mutating webhook, which makes claims of such requests, was not reached or "
    "was undone by a later one",
    on=POD_CREATE,
    check=_check,
    other_codes=("UNSUPPORTED_RESOURCE", "MALFORMED", "QUOTA"),
    signs=(ASKS,),
    lane=DRA,
    twin=_TWIN,
)
