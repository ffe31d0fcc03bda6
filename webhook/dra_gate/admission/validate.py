"""validate: the final object, judged by every rule, whatever webhooks ran before and in whichever order."""

from __future__ import annotations

from dra_gate.admission import convert, rules
from dra_gate.admission import stamp as stamps
from dra_gate.admission.facts import BehindError, Facts
from dra_gate.admission.mutate import changes
from dra_gate.admission.outcome import outcome
from dra_gate.admission.request import Request
from dra_gate.admission.rules import foreign_claim, raw_device_request, stamp, visible_devices_void
from dra_gate.admission.rules.quota import charge_of
from dra_gate.admission.rules.rule import Context
from dra_gate.admission.scope import Scope, earlier_scopes, is_exempt, is_mirror, scope_of
from dra_gate.admission.verdict import IGNORED, Verdict
from dra_gate.fairness.charge import NOTHING
from dra_gate.kube.patch import apply
from dra_gate.kube.raw import Object, text

# What a Pod shows when the replica that mutated did not yet see that its namespace is gated. Nothing else is forgiven.
_LEFT_BY_MUTATE = (raw_device_request.RULE.id, stamp.RULE.id, visible_devices_void.RULE.id)
LANE_NOT_SERVED = (
    "dra-gate: lane device-plugin is left alone by this version: "
    "the Pod keeps its device requests and claims, and no policy was applied"
)


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
                if all(finding.rule in _LEFT_BY_MUTATE for finding in verdict.findings):
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
    if scope.lane == "device-plugin":
        context = Context.of(request, request.object, scope, facts)
        asks = request.is_about("", "pods", "CREATE") and (
            any(True for _ in convert.device_requests(request.object, facts))
            or bool(context.templates)
            or any(True for _ in foreign_claim.RULE.check(context))
        )
        return outcome(request, scope, rules.ALL.findings(context), facts, warnings=(LANE_NOT_SERVED,) if asks else ())
    judged = _as_judged(request, scope, facts)
    context = Context.of(request, judged, scope, facts)
    findings = rules.ALL.findings(context)
    charge = charge_of(context.templates.values()) if request.is_about("", "pods", "CREATE") else NOTHING
    return outcome(request, scope, findings, facts, charge=charge)


def _as_judged(request: Request, scope: Scope, facts: Facts) -> Object:
    """The object that rules see: in shadow, where mutate leaves Pods alone, what it would have made of this one."""
    if scope.mode != "shadow" or scope.tenant is None or not request.is_about("", "pods", "CREATE"):
        return request.object
    _, patch = changes(request, scope, facts)
    judged: Object = apply(request.object, patch.operations)
    return judged
