"""The two webhook configurations, and the same conditions said again for offline use.

The configurations select gated namespaces by label and, in them, only requests that some rule could deny or mutate
would change: a Pod that asks for no device, and shows no way around, is admitted whether the gate is up or not.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

from dra_gate.admission.facts import LANE_LABEL, Facts
from dra_gate.admission.guards import NAME
from dra_gate.admission.request import Request
from dra_gate.admission.rules import ALL, group_claim
from dra_gate.admission.rules.handmade_claim import CLAIM_MAKERS
from dra_gate.admission.scope import NODE_USER, is_mirror, scope_of
from dra_gate.admission.signs import ANY_POD, ASKS, CLAIMS, DRA_GROUP, ENV_FROM, RESERVED, STAMPED, Sign, any_of
from dra_gate.admission.workloads import by_a_controller, pod_requests, workload_in
from dra_gate.kube import pod as pods
from dra_gate.kube.workload import BUILT_IN, CONTROLLER_MANAGER, CONTROLLER_PREFIX, CONTROLLER_SUFFIX
from dra_gate.policy.model import GATE_NAMESPACE, NEVER_GATED, Settings, Workload

CONTROLLER = f"system:serviceaccount:{GATE_NAMESPACE}:dra-gate-controller"
# The gate's own accounts: what they write is not judged.
GATE_WRITERS = (
    CONTROLLER,
    f"system:serviceaccount:{GATE_NAMESPACE}:dra-gate-webhook",
)
MUTATE_SECONDS = 2
VALIDATE_SECONDS = 3

_SUBRESOURCES = ("ephemeralcontainers", "resize")  # of Pods: `pods` does not include them
_CLAIM_KINDS = ("resourceclaims", "resourceclaimtemplates")

NOT_MIRROR = (
    "!('system:nodes' in request.userInfo.groups && has(object.metadata.annotations) && "
    f"'{pods.MIRROR_ANNOTATION}' in object.metadata.annotations && has(object.spec.nodeName) && "
    f"object.spec.nodeName != '' && request.userInfo.username == '{NODE_USER}' + object.spec.nodeName)"
)
# What mutate changes; what validate denies is said by its rules. ENV_FROM stands here also where the settings leave
# such Pods alone: switching it on must not wait for somebody to write the configurations again.
_MUTATED: tuple[Sign, ...] = (CLAIMS, STAMPED, ASKS, ENV_FROM)


def mutated(settings: Settings) -> tuple[Sign, ...]:
    """What a Pod shows that mutate may change under these settings."""
    return (ANY_POD,) if settings.visible_devices_void == "withoutClaim" else _MUTATED


def created(settings: Settings) -> tuple[Sign, ...]:
    """What a new Pod shows that some rule may deny under these settings."""
    return (ANY_POD,) if settings.visible_devices_void == "withoutClaim" else ALL.signs("", "pods", "CREATE")


def configurations(
    *,
    url: str | None = None,
    service: tuple[str, str, int] | None = None,
    ca_bundle: bytes,
    writers: Sequence[str],
    settings: Settings | None = None,
) -> list[dict[str, Any]]:
    """MutatingWebhookConfiguration and ValidatingWebhookConfiguration, by `url` (`https://host:port`) or by `service`
    (namespace, name, port). `ca_bundle` is PEM; `writers` are the gate's own accounts, which it never judges. Without
    the policies' `settings` they are the defaults.
    """
    settings = settings or Settings()

    def client(route: str) -> dict[str, Any]:
        bundle = {"caBundle": base64.b64encode(ca_bundle).decode("ascii")}
        if url is not None:
            return {"url": f"{url.rstrip('/')}/{route}", **bundle}
        assert service is not None  # noqa: S101 - the command line asks for one of the two
        namespace, name, port = service
        return {"service": {"namespace": namespace, "name": name, "port": port, "path": f"/{route}"}, **bundle}

    own = not_by(writers)
    pods_rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced"}
    mutating = _webhook(
        "mutate.dra-gate.io",
        client("mutate"),
        [{**pods_rule, "operations": ["CREATE"]}],
        [own, ("not-a-mirror-pod", NOT_MIRROR), ("devices", any_of(mutated(settings)))],
        failure_policy="Ignore",
        seconds=MUTATE_SECONDS,
    )
    validating = _webhook(
        "validate.dra-gate.io",
        client("validate"),
        [
            {**pods_rule, "operations": ["CREATE", "UPDATE"]},
            {**pods_rule, "resources": [f"pods/{name}" for name in _SUBRESOURCES], "operations": ["UPDATE"]},
        ],
        [own, ("not-a-mirror-pod", NOT_MIRROR), ("devices", _pods_shown(settings))],
        failure_policy="Fail",
        seconds=VALIDATE_SECONDS,
    )
    claims = _webhook(
        "claims.dra-gate.io",
        client("validate"),
        [
            {
                "apiGroups": [DRA_GROUP],
                "apiVersions": ["v1"],
                "resources": list(_CLAIM_KINDS),
                "operations": ["CREATE"],
                "scope": "Namespaced",
            },
            {
                "apiGroups": [group_claim.GROUP],
                "apiVersions": list(group_claim.VERSIONS),
                "resources": [group_claim.KIND],
                "operations": ["CREATE"],
                "scope": "Namespaced",
            },
        ],
        [
            not_by([*writers, *CLAIM_MAKERS]),
            (
                "claims",
                f"request.resource.resource == '{group_claim.KIND}' ? "
                f"({any_of(ALL.signs(group_claim.GROUP, group_claim.KIND, 'CREATE'))}) : "
                f"({any_of(ALL.signs(DRA_GROUP, 'resourceclaims', 'CREATE'))})",
            ),
        ],
        failure_policy="Fail",
        seconds=VALIDATE_SECONDS,
    )
    told = _webhook(
        "workloads.dra-gate.io",
        client("validate"),
        _workload_rules(settings.workloads),
        [
            not_by([*writers, CONTROLLER_MANAGER]),
            (
                "not-by-a-controller",
                f"!(request.userInfo.username.startsWith('{CONTROLLER_PREFIX}') && "
                f"request.userInfo.username.endsWith('{CONTROLLER_SUFFIX}'))",
            ),
            ("devices", _templates_shown(custom=bool(settings.workloads))),
        ],
        failure_policy="Ignore",  # Pods are judged in any case: no workload has to wait for us
        seconds=MUTATE_SECONDS,
    )
    meta = {"name": NAME, "labels": {"app.kubernetes.io/name": "dra-gate"}}
    api = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "MutatingWebhookConfiguration",
            "metadata": meta,
            "webhooks": [{**mutating, "reinvocationPolicy": "IfNeeded"}],
        },
        {
            "apiVersion": api,
            "kind": "ValidatingWebhookConfiguration",
            "metadata": meta,
            "webhooks": [validating, claims, told],
        },
    ]


def _pods_shown(settings: Settings) -> str:
    """CEL: the request for a Pod or one of its subresources shows a sign of the rules that are about it."""
    shown = f"request.operation == 'UPDATE' ? ({any_of(ALL.signs('', 'pods', 'UPDATE'))}) : "
    shown += f"({any_of(created(settings))})"
    for name in _SUBRESOURCES:
        signs = any_of(ALL.signs("", f"pods/{name}", "UPDATE"))
        shown = f"has(request.subResource) && request.subResource == '{name}' ? ({signs}) : ({shown})"
    return shown


def _workload_rules(custom: Sequence[Workload]) -> list[dict[str, Any]]:
    """One rule a group; settings name no versions, and a kind may have several."""
    versions = {kind.group: ["v1"] for kind in BUILT_IN}
    resources: dict[str, list[str]] = {}
    asked = [(kind.group, kind.resource) for kind in BUILT_IN] + [(one.group, one.resource) for one in custom]
    for group, resource in dict.fromkeys(asked):
        resources.setdefault(group, []).append(resource)
    return [
        {
            "apiGroups": [group],
            "apiVersions": versions.get(group, ["*"]),
            "resources": names,
            "operations": ["CREATE", "UPDATE"],
            "scope": "Namespaced",
        }
        for group, names in resources.items()
    ]


def _templates_shown(*, custom: bool) -> str:
    """CEL: a built-in workload's Pod template is new or changed, and shows a sign; custom kinds show theirs anyhow.

    The list of one gives the template a name, by which the signs are said of it. A template may have no metadata; the
    name that a sign speaks of is the workload's.
    """

    def template(obj: str) -> str:
        return f"(has({obj}.spec.jobTemplate) ? {obj}.spec.jobTemplate.spec.template : {obj}.spec.template)"

    signs = ALL.signs("", "pods", "CREATE")
    shown = any_of(sign for sign in signs if sign is not RESERVED)
    shown = re.sub(r"\bhas\(object\.metadata\.(\w+)\)", r"(has(template.metadata) && has(template.metadata.\1))", shown)
    shown = re.sub(r"\bobject\.", "template.", shown)
    changed = f"(request.operation == 'CREATE' || {template('object')} != {template('oldObject')})"
    named = " || ".join(f"({sign.condition})" for sign in signs if sign is RESERVED)
    condition = f"{changed} && ({named} || [{template('object')}].exists(template, {shown}))"
    groups = list(dict.fromkeys(kind.group for kind in BUILT_IN))
    return f"!(request.resource.group in {groups}) || ({condition})" if custom else condition


def _webhook(
    name: str,
    client: dict[str, Any],
    rules: list[dict[str, Any]],
    conditions: list[tuple[str, str]],
    *,
    failure_policy: str,
    seconds: int,
) -> dict[str, Any]:
    return {
        "name": name,
        "clientConfig": client,
        "rules": rules,
        "matchPolicy": "Equivalent",
        "namespaceSelector": gated_namespaces(),
        "matchConditions": [{"name": name, "expression": expression} for name, expression in conditions],
        "failurePolicy": failure_policy,
        "sideEffects": "None",
        "timeoutSeconds": seconds,
        "admissionReviewVersions": ["v1"],
    }


def gated_namespaces() -> dict[str, Any]:
    """The namespaceSelector that selects what `scope_of` calls gated."""
    return {
        "matchExpressions": [
            {"key": LANE_LABEL, "operator": "Exists"},
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": sorted(NEVER_GATED)},
        ]
    }


def not_by(users: Sequence[str]) -> tuple[str, str]:
    """A match condition, name and CEL: somebody else sends the request."""
    listed = ", ".join(f"'{user}'" for user in users)
    return "not-by-the-cluster-itself", f"!(request.userInfo.username in [{listed}])"


def reaches(request: Request, facts: Facts) -> bool:
    """Would the API server send this request to us? The conditions above, for requests that come from files.

    A namespace that the files do not name is not gated: offline, no API server has selected it.
    """
    if request.username in facts.writers or is_mirror(request):
        return False
    if request.namespace not in facts.namespaces or scope_of(request.namespace, facts) is None:
        return False
    if request.resource in (*_CLAIM_KINDS, group_claim.KIND) and request.username in CLAIM_MAKERS:
        return False
    workload = workload_in(request, facts.policy_set.settings)
    if workload is not None:
        if by_a_controller(request.username):
            return False
        made = (pod_request for _, pod_request in pod_requests(request, workload))
        pod_signs = ALL.signs("", "pods", "CREATE")
        return workload.kind is None or any(sign.shown(one) for one in made for sign in pod_signs)
    signs = ALL.signs(request.group, request.target, request.operation)
    if request.is_about("", "pods", "CREATE"):
        settings = facts.policy_set.settings
        signs = (*created(settings), *mutated(settings))
    return any(sign.shown(request) for sign in signs)
