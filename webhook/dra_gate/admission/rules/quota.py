"""A tenant holds no more devices than its quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dra_gate.admission import convert
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.verdict import Finding
from dra_gate.fairness.charge import NOTHING, Charge, claim_charge
from dra_gate.fairness.quota import over_quota
from dra_gate.kube.raw import mapping
from dra_gate.policy.compile import Template


def charge_of(templates: Iterable[Template]) -> Charge:
    """The worst case of the given compiled templates, one for each distinct claim of a Pod."""
    times = Counter[str]()
    by_name: dict[str, Template] = {}
    for template in templates:
        times[template.name] += 1
        by_name[template.name] = template
    devices, models = 0, Counter[str]()
    for name, count in times.items():
        charge = claim_charge(mapping(by_name[name].spec.get("spec")))
        devices += charge.devices * count
        models.update({model: held * count for model, held in charge.models.items()})
    return Charge(devices, dict(models))


def _check(context: Context) -> Iterator[Finding]:
    if context.scope.tenant is None:
        return
    templates = convert.tenant_templates(context.object, context.scope, context.facts)
    yield from findings(charge_of(templates.values()), context)


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
)
