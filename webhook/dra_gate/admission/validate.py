"""validate: the final object, judged by every rule, whatever webhooks ran before and in whichever order."""

from __future__ import annotations

from dra_gate.admission import convert, rules
from dra_gate.admission.facts import Facts
from dra_gate.admission.mutate import changes
from dra_gate.admission.outcome import outcome
from dra_gate.admission.request import Request
from dra_gate.admission.rules.quota import charge_of
from dra_gate.admission.rules.rule import Context
from dra_gate.admission.scope import Scope, is_mirror, scope_of
from dra_gate.admission.verdict import IGNORED, Verdict
from dra_gate.kube.patch import apply
from dra_gate.kube.raw import Object

_JUDGED = ("CREATE", "UPDATE")
LANE_NOT_SERVED = (
    "dra-gate: lane device-plugin is left alone by this version: "
    "the Pod keeps its device request and no policy was applied"
)


def validate(request: Request, facts: Facts) -> Verdict:
    """The verdict of the validating webhook.

    CREATE is judged in full, UPDATE only by the rules about changes: nobody is held back for what a Pod already is.
    Subresources, DELETE and CONNECT pass.
    """
    if request.subresource or request.operation not in _JUDGED or is_mirror(request):
        return IGNORED
    scope = scope_of(request.namespace, facts)
    if scope is None:
        return IGNORED
    if scope.lane == "device-plugin":
        asks = any(True for _ in convert.device_requests(request.object, facts))
        return outcome(scope, (), facts, warnings=(LANE_NOT_SERVED,) if asks else ())
    judged = _as_judged(request, scope, facts)
    context = Context(request, judged, scope, facts)
    findings = rules.ALL.findings(context)
    charge = charge_of(convert.tenant_templates(judged, scope, facts).values())
    return outcome(scope, findings, facts, charge=charge)


def _as_judged(request: Request, scope: Scope, facts: Facts) -> Object:
    """The object that rules see: in shadow, where mutate leaves Pods alone, what it would have made of this one."""
    if scope.mode != "shadow" or scope.tenant is None or not request.is_about("", "pods", "CREATE"):
        return request.object
    _, patch = changes(request, scope, facts)
    judged: Object = apply(request.object, patch.operations)
    return judged
