"""Whether the gate holds a Pod until its devices are granted, and how the Pod then comes by its claims."""

from __future__ import annotations

from dra_gate.admission.facts import Facts
from dra_gate.admission.scope import Scope
from dra_gate.kube.raw import Object, at, mapping, sequence
from dra_gate.policy.model import Hold, Settings
from dra_gate.policy.switch import DRA

# Of a Pod that Kueue manages by itself people write the first label, its webhook the second and the gate
# (pkg/controller/jobs/pod). The Pods of a Job that it has started carry the third alone (pkg/controller/jobframework).
KUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed", "kueue.x-k8s.io/podset")
KUEUE_GATE = "kueue.x-k8s.io/admission"


def hold_of(pod: Object, scope: Scope, facts: Facts) -> Hold:
    """How `pod`, if it holds devices, is held: as its tenant says under the policy of its namespace.

    Only in lane dra, and never a Pod that Kueue manages: Kueue would count it as running while it waits for us.
    """
    if scope.lane != DRA or scope.tenant is None or scope.policy is None:
        return "free"
    hold = scope.tenant.hold(scope.policy)
    return "free" if hold != "free" and managed_by_kueue(pod, scope.namespace, facts.policy_set.settings) else hold


def managed_by_kueue(pod: Object, namespace: str, settings: Settings) -> bool:
    """Kueue decides when the Pod may go: by its label or scheduling gate, or all Pods of the namespace."""
    if namespace in settings.kueue_namespaces:
        return True
    labels = mapping(at(pod, "metadata", "labels"))
    return any(label in labels for label in KUEUE_LABELS) or any(
        mapping(gate).get("name") == KUEUE_GATE for gate in sequence(at(pod, "spec", "schedulingGates"))
    )
