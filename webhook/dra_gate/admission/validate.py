"""validate: the final object, judged by every rule, whatever webhooks ran before and in whichever order."""

from __future__ import annotations

from dra_gate.admission import rules
from dra_gate.admission import stamp as stamps
from dra_gate.admission.facts import BehindError, Facts
from dra_gate.admission.mutate import changes
from dra_gate.admission.outcome import outcome
from dra_gate.admission.plugin_pod import warnings as plugin_warnings
from dra_gate.admission.request import Request
from dra_gate.admission.rules import held, model_affinity, node_pool, raw_device_request, stamp, visible_devices_void
from dra_gate.admission.rules.quota import charge_of
from dra_gate.admission.rules.rule import Context
from dra_gate.admission.scope import Scope, earlier_scopes, is_exempt, is_mirror, scope_of
from dra_gate.admission.verdict import IGNORED, Verdict
from dra_gate.kube.patch import apply
from dra_gate.kube.raw import Object, text
from dra_gate.policy.switch import PLUGIN

# What a Pod shows when the replica that mutated did not yet see that its namespace is gated. Nothing else is forgiven.
_LEFT_BY_MUTATE = (raw_device_request.RULE.id, stamp.RULE.id, held.RULE.id, visible_devices_void.RULE.id)
_LEFT_IN_PLUGIN_LANE = (*_LEFT_BY_MUTATE, model_affinity.RULE.id, node_pool.RULE.id)


def validate(request: Request, facts: Facts, *, may_look_again: bool = False) -> Verdict:
    """The verdict of the validating webhook.

    CREATE is judged in full, UPDATE only by the rules about changes: nobody is held back for what a Pod already is.
    What no rule is about passes: DELETE, CONNECT, and of subresources all but those that rules name. A stamp is judged
    by the policy set that it names, if that is honoured.
    With `may_look_again`, raises BehindError for a stamp that names what these facts do not know.
    """
    if not rules.ALL.judges(request) or is_mirror(request) or is_exempt(request, facts):
        return IGNORED
    scope = scope_of(request.namespace, facts)
    if scope is None:
        return IGNORED
    if request.is_about("", "pods", "CREATE"):
        facts = _facts_of_stamp(request, facts, may_look_again=may_look_again)
        scope = scope_of(request.namespace, facts) or scope
    verdict = _judged(request, scope, facts)
    if verdict.findings:
        for earlier in earlier_scopes(request.namespace, facts):
            if earlier is None:
                forgiven = _LEFT_IN_PLUGIN_LANE if scope.lane == PLUGIN else _LEFT_BY_MUTATE
                if all(finding.rule in forgiven for finding in verdict.findings):
                    return IGNORED
                continue
            before = _judged(request, earlier, facts)
            if not before.findings:
                return before
    return verdict


def _facts_of_stamp(request: Request, facts: Facts, *, may_look_again: bool) -> Facts:
    """The facts under the set that the Pod's stamp names, or the active one where it names none that counts."""
    stamped = stamps.stamp_on(request.object)
    digest, generation = text(stamped.get(stamps.POLICY_SET)), stamps.generation_of(stamped)
    if not digest:
        return facts
    known = facts.under(digest)
    if may_look_again and (known is None or generation > facts.gate_generation):
        raise BehindError(digest, generation)
    return known or facts


def _judged(request: Request, scope: Scope, facts: Facts) -> Verdict:
    context = Context.of(request, _as_judged(request, scope, facts), scope, facts)
    findings = rules.ALL.findings(context)
    if not request.is_about("", "pods", "CREATE"):
        return outcome(request, scope, findings, facts)
    plugin = context.plugin
    if plugin is None:
        return outcome(request, scope, findings, facts, charge=charge_of(context.templates.values()))
    told = () if findings or scope.mode == "shadow" else tuple(plugin_warnings(plugin, facts))
    return outcome(request, scope, findings, facts, charge=plugin.charge, warnings=told)


def _as_judged(request: Request, scope: Scope, facts: Facts) -> Object:
    """The object that rules see: in shadow, where mutate leaves Pods alone, what it would have made of this one."""
    if scope.mode != "shadow" or scope.tenant is None or not request.is_about("", "pods", "CREATE"):
        return request.object
    _, patch = changes(request, scope, facts)
    judged: Object = apply(request.object, patch.operations)
    return judged
