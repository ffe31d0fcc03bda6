"""Workloads, judged when they are applied: what will be said of their Pods, while a person is there to read it.

The API server shows warnings to whoever sends the request. A controller that is refused a Pod later writes an Event,
or a condition, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from dra_gate.admission.facts import Facts
from dra_gate.admission.mutate import mutate
from dra_gate.admission.outcome import outcome
from dra_gate.admission.request import Request
from dra_gate.admission.rules import quota
from dra_gate.admission.rules.rule import MAX_FINDINGS, is_going
from dra_gate.admission.scope import is_exempt, scope_of
from dra_gate.admission.validate import validate
from dra_gate.admission.verdict import IGNORED, Finding, Verdict
from dra_gate.kube.patch import apply
from dra_gate.kube.raw import Object, at, text
from dra_gate.kube.workload import (
    BUILT_IN,
    CONTROLLER_MANAGER,
    CONTROLLER_PREFIX,
    CONTROLLER_SUFFIX,
    Path,
    WorkloadKind,
    pod_from,
    templates,
)
from dra_gate.policy.model import Settings

MAX_TEMPLATES = 64  # judged of one object: a warning is worth no more time, and every Pod is judged by itself
MAX_WARNINGS = 3  # the API server cuts all warnings of a response at 4,096 characters, and nobody reads a page of them

_BUILT_IN = {(kind.group, kind.resource): kind for kind in BUILT_IN}


@dataclass(frozen=True, slots=True)
class Workload:
    """What a request is about, when that makes Pods: `kind` of the built-in ones, and where the Pod templates stand."""

    kind: WorkloadKind | None
    paths: tuple[Path, ...]


def workload_in(request: Request, settings: Settings) -> Workload | None:
    """The workload that is created or changed; None for all other requests, scale and status among them."""
    if request.subresource or request.operation not in ("CREATE", "UPDATE"):
        return None
    built_in = _BUILT_IN.get((request.group, request.resource))
    if built_in is not None:
        return Workload(built_in, (built_in.template,))
    for custom in settings.workloads:
        if (custom.group, custom.resource) == (request.group, request.resource):
            return Workload(None, custom.pod_templates)
    return None


def by_a_controller(username: str) -> bool:
    """One of the cluster's own controllers, which makes ReplicaSets of Deployments and Jobs of CronJobs.

    What it sends was told to the person who made the object above.
    """
    return username == CONTROLLER_MANAGER or (
        username.startswith(CONTROLLER_PREFIX) and username.endswith(CONTROLLER_SUFFIX)
    )


def pod_requests(request: Request, workload: Workload) -> Iterator[tuple[str, Request]]:
    """The requests by which Pods will be made of templates that are new or changed, each with its template's path."""
    if is_going(request):
        return
    before = {where: template for path in workload.paths for where, template in templates(request.old_object, path)}
    found = (one for path in workload.paths for one in templates(request.object, path))
    changed = ((where, template) for where, template in found if before.get(where) != template)
    for where, template in islice(changed, MAX_TEMPLATES):
        yield where, pod_request(request, workload, template)


def pod_request(request: Request, workload: Workload, template: Object) -> Request:
    """The request by which a Pod will be made of one of the workload's templates, as the controller sends it.

    Of custom kinds it is not known who that is.
    """
    pod = pod_from(request.object, template)
    pod["metadata"]["namespace"] = request.namespace
    user, groups = "", frozenset({"system:authenticated"})
    if workload.kind is not None:
        kind, name = workload.kind, text(at(request.object, "metadata", "name"))
        # A ReplicaSet or Job that is made in between has an ending of its own; which one is not known yet.
        owner = name if kind.owner == kind.kind else f"{name}-"
        pod["metadata"]["ownerReferences"] = [{"kind": kind.owner, "name": owner, "controller": True}]
        user = CONTROLLER_PREFIX + kind.controller
        groups |= {"system:serviceaccounts", "system:serviceaccounts:kube-system"}
    return replace(
        request,
        operation="CREATE",
        group="",
        resource="pods",
        name="",
        username=user,
        groups=groups,
        object=pod,
        old_object={},
    )


def judge_workload(request: Request, workload: Workload, facts: Facts) -> Verdict:
    """Warnings for what would be refused of the workload's Pods, or a denial where the cluster's settings say so.

    Only in mode enforce is anything refused. Quota plays no part: how many of the Pods there will be at a time, and
    what the tenant holds then, is not in the object.
    """
    scope = scope_of(request.namespace, facts)
    if (
        scope is None
        or request.username in facts.writers
        or by_a_controller(request.username)
        or is_exempt(request, facts)
    ):
        return IGNORED
    findings = tuple(
        islice(
            (
                replace(finding, field=_field(where, finding.field))
                for where, pod_request in pod_requests(request, workload)
                for finding in _pod_findings(pod_request, facts)
            ),
            MAX_FINDINGS,
        )
    )
    denies = facts.policy_set.settings.workload_verdict == "deny"
    mode = "warn" if scope.mode == "enforce" and not denies else scope.mode
    # Exceptions were asked about each Pod as its controller sends it: who applies the workload does not create Pods.
    verdict = outcome(replace(request, username="", object={}), replace(scope, mode=mode), findings, facts)
    return replace(verdict, warnings=_warnings(findings)) if mode == "warn" else verdict


def _pod_findings(request: Request, facts: Facts) -> Iterator[Finding]:
    """What mutate and then validate find, as the API server would ask them; quota aside."""
    facts = replace(facts, used={}, ledgers={})
    first = mutate(request, facts)
    if first.findings:
        found = first.findings  # mutate has then said what validate would say of the Pod as it was written
    else:
        found = validate(replace(request, object=apply(request.object, list(first.patch))), facts).findings
    return (finding for finding in found if finding.rule != quota.RULE.id)


def _field(where: str, field: str) -> str:
    """The path in the workload of a path in its Pod, whose name comes from the workload's own."""
    return "metadata.name" if field in ("metadata.name", "metadata.generateName") else f"{where}.{field}"


def _warnings(findings: tuple[Finding, ...]) -> tuple[str, ...]:
    told = [f"dra-gate would refuse its Pods: {f.code} {f.field}: {f.message}. {f.remedy}" for f in findings]
    more = len(told) - MAX_WARNINGS
    if more > 0:
        told[MAX_WARNINGS:] = [
            f"dra-gate would refuse its Pods for {more} more reasons: dra-gate review tells them all"
        ]
    return tuple(told)
