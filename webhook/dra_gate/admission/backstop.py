"""The backstop: what the API server refuses by itself when the webhook is down, out of the way or set to Ignore.

The rules' CEL twins, as one ValidatingAdmissionPolicy. Its parameter is the Gate: from that it knows the lane switch
and, from the status, what the policy sets serve and let pass. It refuses nothing that the webhook would admit. The
status also says what it is about: the active set, the switch, and each namespace's labels with the lane that the two
come to, when they have stood for so long that no webhook goes by earlier ones. Where the present is not what the status
says, nothing is refused, so that a change counts at once and a status that is late or missing closes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dra_gate.admission.configurations import GATE_WRITERS, NOT_MIRROR, gated_namespaces, not_by
from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL
from dra_gate.admission.guards import NAME
from dra_gate.admission.rules import ALL, Rule
from dra_gate.admission.signs import CONTAINERS
from dra_gate.policy.model import EXCEPTABLE
from dra_gate.policy.switch import DRA, PLUGIN, Switch

BACKSTOP = f"{NAME}-backstop"
_GATE = "default"
_STATUS = "params.status.backstop"
_OVERRIDE = "params.spec.?lane.?override.orValue('')"
# As `switch_text` writes it.
_SWITCH = (
    f"([{_OVERRIDE}] + params.spec.?lane.?tenants.orValue([]).map(t, t.name + '=' + t.?lane.orValue(''))).join(' ')"
)
_KNOWN = (
    f"has(params.status) && has({_STATUS}) && has({_STATUS}.namespaces) && has({_STATUS}.lane) && "
    f"{_STATUS}.active == params.spec.active && {_STATUS}.lane == {_SWITCH}"
)


def switch_text(switch: Switch) -> str:
    """The switch as the status says it, in the order in which the Gate lists tenants."""
    return " ".join((switch.override, *(f"{name}={lane}" for name, lane in switch.tenants.items())))


def told(said: str, lane: str) -> str:
    """A namespace as the status lists it: what `labelled` says, and the lane that it really is in."""
    return f"{said}/{lane if lane == PLUGIN else DRA}"


def labelled(namespace: str, labels: Mapping[str, object]) -> str:
    """What a namespace's labels say, once they are settled; empty for one where nothing is refused anyway."""
    lane, mode = labels.get(LANE_LABEL), labels.get(MODE_LABEL, "enforce")
    return "" if lane is None or mode in _OPEN_MODES else f"{namespace}/{lane}/{mode}"


_OPEN_MODES = ("warn", "shadow")


def _label(key: str, otherwise: str) -> str:
    return f"namespaceObject.metadata.?labels[?'{key}'].orValue('{otherwise}')"


# Said of the request once; a variable is computed when an expression first asks for it.
VARIABLES = {
    "about": "request.operation + ' ' + request.resource.resource + "
    "(has(request.subResource) && request.subResource != '' ? '/' + request.subResource : '')",
    "mode": _label(MODE_LABEL, "enforce"),
    "lane": _label(LANE_LABEL, ""),
    # To the API server's type checker the two lists hold different things, and can't be joined.
    "containers": "dyn(object.spec.containers) + "
    "(has(object.spec.initContainers) ? dyn(object.spec.initContainers) : dyn([]))",
    "said": "request.namespace + '/' + variables.lane + '/' + variables.mode",
    "plugin": f"has(params.status) && has({_STATUS}) && has({_STATUS}.namespaces) && "
    f"(variables.said + '/{PLUGIN}') in {_STATUS}.namespaces",
    "open": f"variables.mode in {list(_OPEN_MODES)} || !({_KNOWN}) || "
    f"!(variables.plugin || (variables.said + '/{DRA}') in {_STATUS}.namespaces) || "
    f"request.userInfo.username in {_STATUS}.exemptUsers",
}


def twins() -> Iterator[tuple[Rule, tuple[str, ...]]]:
    """The rules that have a twin, with what it is about: `CREATE pods`, `UPDATE pods/ephemeralcontainers`."""
    for rule in ALL:
        if rule.twin:
            yield rule, tuple(f"{operation} {resource}" for group, resource, operation in rule.on if not group)


def expression(rule: Rule, about: tuple[str, ...]) -> str:
    """CEL that holds unless the rule's twin refuses the request."""
    let_pass = ["variables.open", *(f"variables.about != '{one}'" for one in about)]
    if rule.lane == DRA:
        let_pass.append("variables.plugin")
    if rule.id in EXCEPTABLE:
        let_pass.append(f"{_STATUS}.exceptions.exists(e, e.rule == '{rule.id}' && e.namespace == request.namespace)")
    return " || ".join((*let_pass, f"!({_over_variables(rule.twin)})"))


def _over_variables(twin: str) -> str:
    return re.sub(r"\bdomains\b", f"{_STATUS}.domains", twin.replace(CONTAINERS, "variables.containers"))


def manifests() -> list[dict[str, Any]]:
    """The ValidatingAdmissionPolicy and its binding."""
    api = "admissionregistration.k8s.io/v1"
    meta = {"name": BACKSTOP, "labels": {"app.kubernetes.io/part-of": "dra-gate"}}
    policy = {
        # Without the Gate's CRD, Fail would refuse every change of every Pod in gated namespaces. CEL gives up on a Pod
        # of enormous strings, too; of those the webhooks' own conditions, which Fail, say no.
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": "dra-gate.io/v1alpha1", "kind": "Gate"},
        "matchConstraints": {"resourceRules": list(_resource_rules())},
        "matchConditions": [
            {"name": name, "expression": condition}
            for name, condition in (not_by(GATE_WRITERS), ("not-a-mirror-pod", NOT_MIRROR))
        ],
        "variables": [{"name": name, "expression": said} for name, said in VARIABLES.items()],
        "validations": [
            {
                "expression": expression(rule, about),
                "message": f"dra-gate: {rule.title} ({rule.code}, rule {rule.id}). {rule.remedy}.",
                "reason": "Forbidden",
            }
            for rule, about in twins()
        ],
    }
    binding = {
        "policyName": BACKSTOP,
        "paramRef": {"name": _GATE, "parameterNotFoundAction": "Allow"},
        "matchResources": {"namespaceSelector": gated_namespaces()},
        "validationActions": ["Deny", "Audit"],
    }
    return [
        {"apiVersion": api, "kind": f"ValidatingAdmissionPolicy{kind}", "metadata": meta, "spec": spec}
        for kind, spec in (("", policy), ("Binding", binding))
    ]


def _resource_rules() -> Iterator[dict[str, Any]]:
    operations: dict[str, list[str]] = {}
    for about in dict.fromkeys(one for _, abouts in twins() for one in abouts):
        operation, _, resource = about.partition(" ")
        operations.setdefault(resource, []).append(operation)
    for resource, listed in operations.items():
        yield {"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource], "operations": listed}
