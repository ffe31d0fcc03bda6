"""What the gate stands on, and who may change it: labels, webhook configurations, policy sets, Gate, ledgers, names.

Each guard is said twice: as a ValidatingAdmissionPolicy, which the API server holds by itself in every namespace, gate
or no gate, and here, for requests that come from files. Webhooks can't do it: a namespaceSelector looks at the labels
that a namespace would have, so taking the lane label off would pass, and no webhook is asked about webhook
configurations (Kubernetes, "Dynamic Admission Control").

A guardian is whoever may use the verb `guard` on gates.dra-gate.io: a cluster admin (all verbs), the gate's controller,
and whom the ClusterRole dra-gate-guardian is bound to. Roles are not in files, so there a guardian is a member of
system:masters or an account of the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL
from dra_gate.admission.request import Request
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import mapping, text
from dra_gate.policy.compile import NAME_PREFIX
from dra_gate.policy.model import GATE_NAMESPACE

# Of both webhook configurations; the guards' names begin with it. Sorted last: a webhook whose conditions were false in
# its turn is not called again when a later one adds a device container, and configurations run in the order of their
# names (measured on 1.37.2).
NAME = "zz-dra-gate"
TENANT_LABEL = "dra-gate.io/tenant"
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"  # KEP-5018; without it the API server refuses admin access
SET_LABEL = "dra-gate.io/policy-set"  # on the ConfigMaps of published sets
COHORTS_PREFIX = "dra-gate-cohorts-"  # of the ConfigMaps with the controller's counts
CANARY_PLAN = "dra-gate-canary"  # the ConfigMap with the plan of waves: the controller may move namespaces by it
LABELS = (LANE_LABEL, MODE_LABEL, TENANT_LABEL)
MOVED = "dra-gate.io/canary"  # annotation of a namespace: the last move of its lane, written with the label itself
# Of what the API server reads from its own disk; nobody can give such a name to an object of the API (KEP-5793).
STATIC_SUFFIX = ".static.k8s.io"
REMEDY = "Ask somebody who is bound to the ClusterRole dra-gate-guardian, or a cluster admin"
# They collect garbage, empty namespaces that go, and put finalizers on claims: a refusal would stop the cluster.
_CLUSTER = ("system:kube-scheduler", "system:kube-controller-manager")
_CLUSTER_PREFIX = "system:serviceaccount:kube-system:"
_MASTERS = "system:masters"

Metadata = Mapping[str, Any]
Touched = Iterator[tuple[str, str]]  # field, what is wrong with changing it


@dataclass(frozen=True, slots=True)
class Guard:
    """One thing that is guarded.

    `condition` is CEL that holds for a request that changes it, over `variables.before` and `variables.after`, the
    metadata that there was and that there is to be (empty where there is none); `touched` gives the fields that such a
    request changes, with what is wrong with that.
    """

    id: str
    title: str
    code: str
    group: str
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    condition: str
    touched: Callable[[Metadata, Metadata], Touched]
    namespace: str = ""  # only there

    def covers(self, request: Request) -> bool:
        """The guard is about this kind of request."""
        return (
            request.group == self.group
            and request.target in self.resources
            and request.operation in self.operations
            and (not self.namespace or request.namespace == self.namespace)
        )

    def findings(self, request: Request) -> Iterator[Finding]:
        """What the request changes, if it may not."""
        before, after = (mapping(mapping(obj).get("metadata")) for obj in (request.old_object, request.object))
        for field, problem in self.touched(before, after):
            yield Finding(self.id, self.code, field, problem, REMEDY)


def _labels_touched(before: Metadata, after: Metadata) -> Touched:
    was, now = mapping(before.get("labels")), mapping(after.get("labels"))
    for key in (*LABELS, *((ADMIN_ACCESS_LABEL,) if LANE_LABEL in was or LANE_LABEL in now else ())):
        if was.get(key) != now.get(key):
            yield f"metadata.labels[{key}]", "it says whether and how the gate judges what is in this namespace"
    if mapping(before.get("annotations")).get(MOVED) != mapping(after.get("annotations")).get(MOVED):
        yield f"metadata.annotations[{MOVED}]", "whether the namespace goes back with its wave hangs on it"


def _label_differs(keys: Iterable[str]) -> str:
    # Optionals compare by presence and value: a label that is empty is not one that is absent.
    return f"[{', '.join(repr(key) for key in keys)}].exists(k, variables.was[?k] != variables.now[?k])"


def _gate_touched(_before: Metadata, _after: Metadata) -> Touched:
    yield "metadata.name", "it names the policies that everybody is judged by"


def _ledger_touched(_before: Metadata, _after: Metadata) -> Touched:
    yield "metadata.name", "what a tenant is granted next hangs on it, and only the gate's controller keeps it"


def _configuration_touched(before: Metadata, after: Metadata) -> Touched:
    if NAME in (before.get("name"), after.get("name")):
        yield "metadata.name", "without this configuration, or with another, the gate is not asked"


def _set_touched(before: Metadata, after: Metadata) -> Touched:
    if any(text(metadata.get("name")).startswith(COHORTS_PREFIX) for metadata in (before, after)):
        yield "metadata.name", "what is counted there says whether a lane is good enough"
    if CANARY_PLAN in (before.get("name"), after.get("name")):
        yield "metadata.name", "the controller moves namespaces by it"
    if any(SET_LABEL in mapping(metadata.get("labels")) for metadata in (before, after)):
        yield f"metadata.labels[{SET_LABEL}]", "a published policy set decides who gets which devices"


def _name_touched(before: Metadata, after: Metadata) -> Touched:
    for key in ("name", "generateName"):
        name = text(after.get(key)) or text(before.get(key))
        if name.startswith(NAME_PREFIX):
            yield f"metadata.{key}", f"{name} begins with {NAME_PREFIX}, which is the gate's own"
            return


GUARDS: tuple[Guard, ...] = (
    Guard(
        id="guard-labels",
        title="Lane, mode, tenant and last move of a namespace, and admin access in a gated one",
        code="POLICY_LABEL",
        group="",
        # The subresources take labels along (Kubernetes' namespace strategy).
        resources=("namespaces", "namespaces/status", "namespaces/finalize"),
        operations=("CREATE", "UPDATE"),
        condition=f"{_label_differs(LABELS)} || (('{LANE_LABEL}' in variables.was || '{LANE_LABEL}' in variables.now) "
        f"&& {_label_differs([ADMIN_ACCESS_LABEL])}) || "
        f"variables.notesWas[?'{MOVED}'] != variables.notesNow[?'{MOVED}']",
        touched=_labels_touched,
    ),
    Guard(
        id="guard-configurations",
        title="The gate's webhook configurations",
        code="POLICY_OBJECT",
        group="admissionregistration.k8s.io",
        resources=("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        operations=("CREATE", "UPDATE", "DELETE"),
        condition=f"variables.name == '{NAME}'",
        touched=_configuration_touched,
    ),
    Guard(
        id="guard-policy-sets",
        title="Published policy sets, what is counted of both lanes, the plan of waves",
        code="POLICY_OBJECT",
        group="",
        resources=("configmaps",),
        operations=("CREATE", "UPDATE", "DELETE"),
        condition=f"'{SET_LABEL}' in variables.was || '{SET_LABEL}' in variables.now || "
        f"variables.name.startsWith('{COHORTS_PREFIX}') || variables.name == '{CANARY_PLAN}'",
        touched=_set_touched,
        namespace=GATE_NAMESPACE,
    ),
    Guard(
        id="guard-gate",
        title="The Gate: which policy set is active, which are accepted, the lane switch",
        code="POLICY_OBJECT",
        group="dra-gate.io",
        resources=("gates", "gates/status"),  # the backstop goes by the status
        operations=("CREATE", "UPDATE", "DELETE"),
        condition="true",
        touched=_gate_touched,
    ),
    Guard(
        id="guard-ledgers",
        title="The tenants' ledgers: what each holds, and what is granted",
        code="POLICY_OBJECT",
        group="dra-gate.io",
        resources=("tenantledgers", "tenantledgers/status"),  # admission goes by the status, the arbiter by the spec
        operations=("CREATE", "UPDATE", "DELETE"),
        condition="true",
        touched=_ledger_touched,
    ),
    Guard(
        id="guard-names",
        title="Templates and claims that bear the gate's prefix",
        code="RESERVED_NAME",
        group="resource.k8s.io",
        resources=("resourceclaims", "resourceclaimtemplates"),
        operations=("CREATE", "UPDATE", "DELETE"),
        condition=f"variables.name.startsWith('{NAME_PREFIX}')",
        touched=_name_touched,
    ),
)


# Only a policy from the API server's disk can hold policies of the API.
_POLICIES = Guard(
    id="guard-policies",
    title="The gate's admission policies",
    code="POLICY_OBJECT",
    group="admissionregistration.k8s.io",
    resources=("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    operations=("CREATE", "UPDATE", "DELETE"),
    condition=f"variables.name.startsWith('{NAME}')",
    touched=lambda *_: iter(()),  # offline nobody holds them
)


def findings(request: Request, writers: frozenset[str]) -> tuple[Finding, ...]:
    """What the request changes of what the gate stands on, if whoever sends it is no guardian as far as files tell.

    `writers` are the gate's own accounts.
    """
    user = request.username
    if user in writers or user in _CLUSTER or user.startswith(_CLUSTER_PREFIX) or _MASTERS in request.groups:
        return ()
    return tuple(one for guard in GUARDS if guard.covers(request) for one in guard.findings(request))


def manifests(*, static: bool = False) -> list[dict[str, Any]]:
    """A ValidatingAdmissionPolicy and its binding for each guard.

    `static`: for the API server's disk. There they can't be deleted through the API, and hold the policies that can.
    """
    made = (*GUARDS, _POLICIES) if static else GUARDS
    suffix = STATIC_SUFFIX if static else ""
    return [manifest for guard in made for manifest in (_policy(guard, suffix), _binding(guard, suffix))]


def _policy(guard: Guard, suffix: str) -> dict[str, Any]:
    rule = {
        "apiGroups": [guard.group],
        "apiVersions": ["*"],
        "resources": list(guard.resources),
        "operations": list(guard.operations),
    }
    cluster = ", ".join(f"'{user}'" for user in _CLUSTER)
    conditions = [
        {
            "name": "not-by-the-cluster-itself",
            "expression": f"!(request.userInfo.username in [{cluster}] || "
            f"request.userInfo.username.startsWith('{_CLUSTER_PREFIX}'))",
        }
    ]
    if guard.namespace:
        conditions.append({"name": "in-its-namespace", "expression": f"request.namespace == '{guard.namespace}'"})
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": _meta(guard, suffix),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": conditions,
            "variables": [
                {"name": "was", "expression": _words_of("oldObject", "labels")},
                {"name": "now", "expression": _words_of("object", "labels")},
                {"name": "notesWas", "expression": _words_of("oldObject", "annotations")},
                {"name": "notesNow", "expression": _words_of("object", "annotations")},
                {"name": "name", "expression": _NAME_EXPRESSION},
            ],
            "validations": [
                {
                    "expression": f"!({guard.condition}) || authorizer.group('dra-gate.io').resource('gates')"
                    ".check('guard').allowed()",
                    "message": f"{guard.title}: only guardians change this ({guard.code}). {REMEDY}.",
                    "reason": "Forbidden",
                }
            ],
        },
    }


_NAME_EXPRESSION = (
    "object != null && has(object.metadata.name) ? object.metadata.name : "
    "oldObject != null && has(oldObject.metadata.name) ? oldObject.metadata.name : "
    "object != null && has(object.metadata.generateName) ? object.metadata.generateName : ''"
)


def _words_of(obj: str, field: str) -> str:
    return f"{obj} != null && has({obj}.metadata.{field}) ? {obj}.metadata.{field} : {{}}"


def _binding(guard: Guard, suffix: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": _meta(guard, suffix),
        "spec": {"policyName": f"{NAME}-{guard.id}{suffix}", "validationActions": ["Deny", "Audit"]},
    }


def _meta(guard: Guard, suffix: str) -> dict[str, Any]:
    return {"name": f"{NAME}-{guard.id}{suffix}", "labels": {"app.kubernetes.io/part-of": "dra-gate"}}
