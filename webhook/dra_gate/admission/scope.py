"""Is this Pod the gate's business, and under which lane, mode, tenant and policy?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL, Facts
from dra_gate.admission.request import Request
from dra_gate.kube.pod import MIRROR_ANNOTATION
from dra_gate.kube.raw import at, text
from dra_gate.policy.model import NEVER_GATED, DevicePolicy, Tenant
from dra_gate.policy.switch import DRA, PLUGIN, Switch

LANES = (DRA, PLUGIN)
MODES = ("enforce", "warn", "shadow")
NODE_USER = "system:node:"


@dataclass(frozen=True, slots=True)
class Scope:
    """A gated namespace: its lane, by switch or label, its mode, its owner. One that nobody owns has no tenant."""

    namespace: str
    lane: str
    mode: str
    tenant: Tenant | None
    policy: DevicePolicy | None


def scope_of(namespace: str, facts: Facts) -> Scope | None:
    """The scope of `namespace`, or None where the gate has no say.

    A namespace that the cache does not know yet counts as gated in lane dra: the API server calls only for namespaces
    that carry the lane label, and a namespace made a moment ago must not be a way around. An unknown mode enforces.
    """
    if not namespace or namespace in NEVER_GATED:
        return None
    labels = facts.namespaces.get(namespace, _UNKNOWN)
    return _scope(namespace, labels, facts.switch, facts)


def earlier_scopes(namespace: str, facts: Facts) -> list[Scope | None]:
    """What the scope was just before labels or the switch changed, None for "not gated"; nothing when nothing did.

    Another replica may still have seen that when it mutated the Pod: what was right a moment ago is not refused.
    """
    if namespace in NEVER_GATED:
        return []
    labels = facts.namespaces.get(namespace, _UNKNOWN)
    earlier = facts.previous_labels.get(namespace, labels)
    if earlier is labels and facts.switch_previous == facts.switch:
        return []
    switches = [facts.switch] if facts.switch_previous == facts.switch else [facts.switch, facts.switch_previous]
    labelled = (labels, earlier) if earlier is not labels else (labels,)
    return [
        None if before is None else _scope(namespace, before, switch, facts)
        for switch in switches
        for before in labelled
    ]


_UNKNOWN: Mapping[str, str] = {LANE_LABEL: DRA}


def _scope(namespace: str, labels: Mapping[str, str], switch: Switch, facts: Facts) -> Scope | None:
    if LANE_LABEL not in labels:
        return None
    mode = labels.get(MODE_LABEL, "enforce")
    tenant = facts.policy_set.tenant_of(namespace)
    lane = switch.lane_of("" if tenant is None else tenant.name, labels[LANE_LABEL])
    policy = None if tenant is None else facts.policy_set.policies[tenant.policy_for(namespace)]
    return Scope(namespace, lane, mode if mode in MODES else "enforce", tenant, policy)


def is_exempt(request: Request, facts: Facts) -> bool:
    """Sent by a driver or operator that the cluster's settings exempt: nothing that it writes is judged."""
    return request.username in facts.policy_set.settings.exempt_users


def is_mirror(request: Request) -> bool:
    """A static Pod's image in the API, written by its own node's kubelet: nothing we say changes what already runs.

    The annotation alone can be written by anybody; who writes it cannot be chosen. Kubelets are `system:node:<name>` in
    group system:nodes (Kubernetes' node authorization), and no kubelet mirrors what runs on another node.
    """
    return (
        "system:nodes" in request.groups
        and at(request.object, "metadata", "annotations", MIRROR_ANNOTATION) is not None
        and request.username == NODE_USER + text(at(request.object, "spec", "nodeName"))
        and request.username != NODE_USER
    )
