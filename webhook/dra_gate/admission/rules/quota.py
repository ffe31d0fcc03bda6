"""A tenant holds no more devices than its quota, and has no Pods wait for what it can't get.

A held Pod is granted its devices by the arbiter, which has the last word. Said here is what is known before: what a
tenant that is to be refused holds already, and of a tenant whose Pods wait only what can never be granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dra_gate.admission.facts import Facts
from dra_gate.admission.held import MOST_CLAIMS
from dra_gate.admission.hold import hold_of
from dra_gate.admission.plugin_pod import PluginPod
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import ASKS, CLAIMS
from dra_gate.admission.verdict import Finding
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.fairness.quota import over_every_model, over_quota
from dra_gate.policy.compile import Template
from dra_gate.policy.model import NEVER, Tenant


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
    if context.templates:
        yield from findings(context.templates, context.late, context)
    if context.plugin is not None:
        yield from of_plugin_pod(context.plugin, context.scope.tenant, context.facts)


def of_plugin_pod(found: PluginPod, tenant: Tenant, facts: Facts) -> Iterator[Finding]:
    """What stands against a Pod in lane device-plugin. Nothing can hold it there, whatever `overQuota` says."""
    problem = over_quota(tenant.quota, facts.ledger(tenant.name).used, found.charge)
    if problem:
        yield RULE.finding("spec", f"tenant {tenant.name}: {problem}")


def findings(held: Mapping[str, Template], late: Mapping[str, int], context: Context) -> Iterator[Finding]:
    """What stands against giving the tenant the claims `held`, by entry, of which `late` are for so many devices."""
    tenant, policy = context.scope.tenant, context.scope.policy
    assert tenant is not None and policy is not None  # noqa: S101, PT018 - callers ask only for namespaces with a tenant
    ledger = context.facts.ledger(tenant.name)
    # What nothing holds is granted by nobody: then this is the only stop.
    waits = hold_of(context.object, context.scope, context.facts) != "free"
    may_wait = waits and tenant.over_quota == "wait"
    used = NOTHING if may_wait else ledger.used
    fixed = charge_of(template for entry, template in held.items() if entry not in late)
    devices = sum(late.values())
    # Late claims get one model, whichever has room; the others can't be narrowed.
    candidates = policy.candidates[:1] if policy.fallback == NEVER else policy.candidates
    problem = over_quota(tenant.quota, used, fixed + Charge(devices))
    if not problem and late:
        problem = over_every_model(tenant.quota, used + fixed, devices, candidates)
    if problem:
        remedy = "It would wait for ever: ask for fewer devices, or have the quota raised" if may_wait else ""
        yield RULE.finding("spec", f"tenant {tenant.name}: {problem}", remedy=remedy)
    elif may_wait:
        yield from _too_large(held, late, candidates, ledger.largest)
    if len(late) > MOST_CLAIMS:
        yield RULE.finding(
            "spec",
            f"{len(late)} claims would be granted to it at once, and one grant has room for {MOST_CLAIMS}",
            code="TOO_LARGE",
            remedy="It would wait for ever: make several Pods of it, or ask for all devices in fewer containers",
        )
    if waits and ledger.waiting >= tenant.max_waiting:
        yield RULE.finding(
            "spec",
            f"{ledger.waiting} Pods of tenant {tenant.name} wait already, and no more than {tenant.max_waiting} may",
            code="QUEUE_FULL",
            remedy="Create the Pod again when some of them have been granted or deleted",
        )


def _too_large(
    held: Mapping[str, Template], late: Mapping[str, int], candidates: tuple[str, ...], largest: Mapping[str, int]
) -> Iterator[Finding]:
    """What no node has: late claims of a Pod lie on one node, all of one model.

    Of a model that no node has nothing is known: its driver may be restarting, its nodes may be made on demand.
    """
    asked = [(template.count, template.candidates) for entry, template in held.items() if entry not in late]
    asked += [(sum(late.values()), candidates)] if late else []
    for count, models in asked:
        if all(0 < largest.get(model, 0) < count for model in models):
            listed = ", ".join(f"{largest[model]} {model}" for model in models)
            yield RULE.finding(
                "spec",
                f"it asks for {count} devices on one node, and the most that any node has is {listed}",
                code="TOO_LARGE",
                remedy="Ask for fewer devices in one Pod",
            )
            return


RULE = Rule(
    id="quota",
    title="The tenant's quota in devices",
    protects="other tenants' share",
    code="QUOTA",
    other_codes=("TOO_LARGE", "QUEUE_FULL"),
    fields=("spec",),
    remedy="Ask for fewer devices, wait until Pods of the tenant end, or have its quota raised",
    on=POD_CREATE,
    check=_check,
    signs=(CLAIMS, ASKS),
)
