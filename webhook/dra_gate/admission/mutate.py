"""mutate: a Pod's device requests become claims from the tenant's template or late ones, the stamp goes on, and the
scheduling gate that holds the Pod until its devices are granted; containers whose environment comes from elsewhere are
told that they see no device. In lane device-plugin requests stay and node affinity goes on instead.

Pure and idempotent: the same request and facts give the same patch, and its own result gives none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Any

from dra_gate.admission import convert, rules, void
from dra_gate.admission import stamp as stamps
from dra_gate.admission.convert import Plan
from dra_gate.admission.exceptions import excepted
from dra_gate.admission.facts import Facts
from dra_gate.admission.hold import hold_of
from dra_gate.admission.late import late_name
from dra_gate.admission.outcome import outcome
from dra_gate.admission.plugin_pod import MAX_TERMS, TERMS, narrow, narrowed_count
from dra_gate.admission.plugin_pod import stamp as plugin_stamp
from dra_gate.admission.request import Request
from dra_gate.admission.rules import model_affinity, node_pinning, node_pool, quota, visible_devices_void
from dra_gate.admission.rules.rule import Context
from dra_gate.admission.scope import LANES, Scope, is_exempt, is_mirror, scope_of
from dra_gate.admission.verdict import IGNORED, Finding, Verdict
from dra_gate.kube.patch import Patch, PatchError
from dra_gate.kube.pod import Container
from dra_gate.kube.raw import Object, at, mapping, sequence
from dra_gate.policy.compile import Template
from dra_gate.policy.model import Model
from dra_gate.policy.switch import PLUGIN

# Preferred node affinity by rank of the candidate. At stock weights the scheduler's own score for ranks (200/174/150)
# loses to CPU-heavy Pods' other scores in 28 of 60 cases, these in none (measured on 1.37.2).
_RANK_WEIGHTS = (100, 10, 1)


def mutate(request: Request, facts: Facts) -> Verdict:
    """The verdict of the mutating webhook. Only Pod CREATE is ever changed; all else is let through as it came."""
    if not request.is_about("", "pods", "CREATE") or is_mirror(request) or is_exempt(request, facts):
        return IGNORED
    scope = scope_of(request.namespace, facts)
    if scope is None:
        return IGNORED
    if scope.lane not in LANES or scope.tenant is None:
        # validate says what is wrong with a Pod that asks for devices here; mutate has nothing to add to it.
        return outcome(request, scope, (), facts)
    findings, patch = changes(request, scope, facts)
    if findings:  # whoever is refused hears all of it, not what validate would say another time
        written = rules.ALL.findings(Context.of(request, request.object, scope, facts), as_written=True)
        findings = tuple(dict.fromkeys((*findings, *written)))
    return outcome(request, scope, findings, facts, patch=tuple(patch.operations))


def changes(request: Request, scope: Scope, facts: Facts) -> tuple[tuple[Finding, ...], Patch]:
    """What is to be done to the Pod, or why it is refused: with findings the patch is empty. The mode plays no part."""
    if scope.lane == PLUGIN:
        return plugin_changes(request, scope, facts)
    pod, patch = request.object, Patch(request.object)
    planned = convert.plan(pod, scope, facts)
    if planned.findings:
        return planned.findings, patch
    hold, own = hold_of(pod, scope, facts), convert.tenant_templates(pod, scope, facts)
    held = {**own, **dict(planned.entries)}
    late = convert.late_counts(pod, own)
    if hold == "late":
        late |= {name: template.count for name, template in planned.entries}
    found: list[Finding] = []
    if planned.converted:
        context = Context.of(request, pod, scope, facts)
        found += node_pinning.unscheduled(context)
        if planned.entries:
            found += quota.findings(held, late, context)
            found += _pool_conflicts(pod, held, facts)
    unseen = _without_void(pod, {container.path for container, _ in planned.uses}, held, facts)
    if len(unseen) > void.MOST:
        found.append(_too_many_unseen())
    if found:
        return tuple(found), patch
    try:
        _claims(patch, planned, request.uid if hold == "late" else "")
        if held and hold != "free" and not stamps.is_held(pod):
            patch.append(("spec", "schedulingGates"), {"name": stamps.GRANT_GATE})
        _placement(patch, pod, planned, held, scope, facts)
        for container in unseen:
            patch.append((*container.path, "env"), void.entry())
        digest, generation = facts.policy_set.digest, facts.gate_generation
        stamp = stamps.stamp_of(held, late, set_digest=digest, generation=generation, lane=scope.lane)
        _write_stamp(patch, pod, stamp)
    except PatchError as error:
        return (_malformed(error),), Patch(pod)
    return (), patch


def plugin_changes(request: Request, scope: Scope, facts: Facts) -> tuple[tuple[Finding, ...], Patch]:
    """The same in lane device-plugin: requests stay, and the policy becomes node selector and node affinity."""
    context = Context.of(request, request.object, scope, facts)
    pod, patch, plugin = request.object, Patch(request.object), context.plugin
    if context.plugin_findings:
        return context.plugin_findings, patch
    found: list[Finding] = []
    if plugin is not None:
        assert scope.tenant is not None  # noqa: S101 - or there is no such Pod
        # One that is let pass gets all else: the kubelet holds its node against selector and affinity.
        found += excepted(tuple(node_pinning.unscheduled(context)), request, facts)[0]
        found += quota.of_plugin_pod(plugin, scope.tenant, facts)
        found += (
            _other_pool(label, f"{value!r} is what it must be: {plugin.why[label]}", pod)
            for label, value in plugin.selector.items()
            if at(pod, "spec", "nodeSelector", label) not in (None, value)
        )
    unseen = _without_void(pod, visible_devices_void.asking_containers(pod, facts), {}, facts)
    if len(unseen) > void.MOST:
        found.append(_too_many_unseen())
    if plugin is not None and narrowed_count(pod, plugin.placement.terms) > MAX_TERMS:
        found.append(_too_many_terms())
    if found:
        return tuple(found), patch
    try:
        if plugin is not None:
            for label, value in plugin.selector.items():
                patch.set(("spec", "nodeSelector", label), value)
            narrow(patch, pod, plugin.placement.terms)
            _prefer(patch, pod, plugin.placement.models, facts)
        for container in unseen:
            patch.append((*container.path, "env"), void.entry())
        _write_stamp(patch, pod, plugin_stamp(plugin, scope, facts))
    except PatchError as error:
        return (_malformed(error),), Patch(pod)
    return (), patch


def _malformed(error: PatchError) -> Finding:
    return Finding(convert.RULE, "MALFORMED", "spec", str(error), "Send a Pod as core/v1 describes it")


def _too_many_terms() -> Finding:
    return Finding(
        model_affinity.RULE.id,
        "MALFORMED",
        ".".join(TERMS),
        f"with the nodes of the policy's models in each, it would have more than {MAX_TERMS} alternatives",
        "Choose nodes by fewer alternatives",
    )


def _claims(patch: Patch, planned: Plan, late_by: str) -> None:
    """`late_by`: the uid by which late claims are named; empty where claims come from templates."""
    for name, template in planned.entries:
        source = (
            {"resourceClaimName": late_name(late_by, name)} if late_by else {"resourceClaimTemplateName": template.name}
        )
        patch.append(("spec", "resourceClaims"), {"name": name, **source})
    for container, name in planned.uses:
        patch.append((*container.path, "resources", "claims"), {"name": name})
    for request in planned.converted:
        resources = (*request.container.path, "resources")
        if request.in_limits:
            patch.remove((*resources, "limits", request.resource))
        if request.in_requests:
            patch.remove((*resources, "requests", request.resource))


def _without_void(
    pod: Object, given: Set[tuple[str | int, ...]], held: Mapping[str, Template], facts: Facts
) -> list[Container]:
    """The containers that are to say void: at most one more than there may be. Those at `given` get devices."""
    lacking = void.lacking(pod, facts.policy_set.settings.visible_devices_void, held)
    return list(islice((container for container in lacking if container.path not in given), void.MOST + 1))


def _too_many_unseen() -> Finding:
    return Finding(
        visible_devices_void.RULE.id,
        "MALFORMED",
        "spec",
        f"more than {void.MOST} containers without a claim whose environment may ask for devices",
        f"Make several Pods of it, or set {void.NAME}=void in each container's env yourself",
    )


def _placement(
    patch: Patch, pod: Object, planned: Plan, held: Mapping[str, Template], scope: Scope, facts: Facts
) -> None:
    policies = facts.policy_set.policies
    selector = mapping(at(pod, "spec", "nodeSelector"))
    for ref in dict.fromkeys(template.policy for template in held.values()):
        for label, value in policies[ref].constraints.nodes.items():
            if label not in selector:
                patch.set(("spec", "nodeSelector", label), value)
    if not planned.entries and not planned.uses:
        return  # a Pod that names its claims itself has said where it wants to be
    policy = scope.policy
    assert policy is not None  # noqa: S101 - a plan is made only for a tenant, who always has a policy
    for resource in policy.serves:
        toleration = {"key": resource, "operator": "Exists", "effect": "NoSchedule"}
        if not _tolerates(pod, resource):
            patch.append(("spec", "tolerations"), toleration)
    _prefer(patch, pod, policy.candidates, facts)


def _prefer(patch: Patch, pod: Object, candidates: Iterable[str], facts: Facts) -> None:
    path = ("spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
    present = sequence(at(pod, *path))
    for term in preferred_terms(candidates, facts.policy_set.models):
        if term not in present:
            patch.append(path, term)


def preferred_terms(candidates: Iterable[str], models: Mapping[str, Model]) -> list[dict[str, Any]]:
    """One preferred node affinity term for each of the first candidates that says which nodes have it."""
    terms = []
    for weight, name in zip(_RANK_WEIGHTS, candidates, strict=False):
        labels = models[name].node_labels
        if labels:
            expressions = [
                {"key": key, "operator": "In", "values": list(values)} for key, values in sorted(labels.items())
            ]
            terms.append({"weight": weight, "preference": {"matchExpressions": expressions}})
    return terms


def _tolerates(pod: Object, key: str) -> bool:
    """The Pod tolerates a NoSchedule taint `key` of any value already, as ExtendedResourceToleration would have it."""
    for raw in sequence(at(pod, "spec", "tolerations")):
        toleration = mapping(raw)
        if (
            toleration.get("operator") == "Exists"
            and toleration.get("key") in (key, "", None)
            and toleration.get("effect") in ("NoSchedule", "", None)
        ):
            return True
    return False


def _pool_conflicts(pod: Object, held: Mapping[str, Template], facts: Facts) -> list[Finding]:
    selector = mapping(at(pod, "spec", "nodeSelector"))
    return [
        _other_pool(label, f"policy {ref} keeps its Pods on {value!r}", pod)
        for ref in dict.fromkeys(template.policy for template in held.values())
        for label, value in facts.policy_set.policies[ref].constraints.nodes.items()
        if label in selector and selector[label] != value
    ]


def _other_pool(label: str, why: str, pod: Object) -> Finding:
    wanted = at(pod, "spec", "nodeSelector", label)
    return Finding(
        node_pool.RULE.id,
        "NODE_POOL",
        f"spec.nodeSelector[{label}]",
        f"the Pod wants {wanted!r} and {why}",
        "Leave that label out of nodeSelector",
    )


def _write_stamp(patch: Patch, pod: Object, expected: Mapping[str, str]) -> None:
    for key, value in expected.items():
        patch.set(("metadata", "annotations", key), value)
    for key in stamps.stamp_on(pod):
        if key not in expected:
            patch.remove(("metadata", "annotations", key))
