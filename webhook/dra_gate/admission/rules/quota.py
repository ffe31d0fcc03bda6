"""A tenant holds no more devices than its quota."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import CLAIMS
from dra_gate.admission.verdict import Finding
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.fairness.quota import over_quota
from dra_gate.policy.compile import Template


def charge_of(templates: Iterable[Template]) -> Charge:
    """The worst case of the given compiled templates, one for each distinct claim of a Pod.

    Every alternative is one model, and all ask for `count` devices; companions cost nothing. The sum of `claim_charge`
    over their first requests says the same at a hundred times the cost.
    """
    devices, models = 0, dict[str, int]()
    for template in templates:
        devices += template.count
        for model in template.candidates:
            models[model] = models.get(model, 0) + template.count
    return Charge(devices, models)


def _check(context: Context) -> Iterator[Finding]:
    if context.scope.tenant is None:
        return
    yield from findings(charge_of(context.templates.values()), context)


def findings(asked: Charge, context: Context) -> Iterator[Finding]:
    """What stands against giving the tenant `asked` more."""
    tenant = context.scope.tenant
    assert tenant is not None  # noqa: S101 - callers ask only for namespaces with a tenant
    problem = over_quota(tenant.quota, context.facts.used.get(tenant.name, NOTHING), asked)
    if problem:
        yield RULE.finding("spec", f"{problem}; tenant {tenant.name}")


RULE = Rule(
    id="quota",
    title="The tenant's quota in devices",
    protects="other tenants' share",
    code="QUOTA",
    fields=("spec",),
    remedy="Ask for fewer devices, wait until Pods of the tenant end, or have its quota raised",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS,),
)
