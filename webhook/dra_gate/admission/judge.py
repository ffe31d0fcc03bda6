"""Both webhooks in a row on one request, as the API server would call them: what offline review and replay report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dra_gate.admission import guards
from dra_gate.admission.configurations import reaches
from dra_gate.admission.facts import Facts
from dra_gate.admission.mutate import mutate
from dra_gate.admission.request import Request
from dra_gate.admission.scope import scope_of
from dra_gate.admission.stamp import DOMAIN
from dra_gate.admission.validate import validate
from dra_gate.admission.verdict import IGNORED, Verdict
from dra_gate.admission.workloads import judge_workload, workload_in
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.kube.patch import Operation, apply, pointer
from dra_gate.kube.raw import Object

_ANNOTATIONS = pointer("metadata", "annotations")
_GATES = pointer("spec", "schedulingGates")
_OUR_ANNOTATIONS = pointer("metadata", "annotations", DOMAIN)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`word` is mutate (more than our marks change: annotations, scheduling gate), admit, deny or ignore (would never
    reach us).

    `deciding` is the verdict that settled it, `patch` what mutate did, `result` the object as it would be stored.
    """

    word: str
    deciding: Verdict
    patch: tuple[Operation, ...]
    result: Object
    warnings: tuple[str, ...]
    charge: Charge


def judge(request: Request, facts: Facts) -> Judgement:
    """What becomes of `request`: first the guards, then mutate, then validate on the result.

    Of a workload, what is said of its Pods.
    """
    guarded = guards.findings(request, facts.writers)
    if guarded:
        scope = scope_of(request.namespace, facts)
        denied = Verdict(
            allowed=False,
            findings=guarded,
            audit={"policy-set": facts.policy_set.digest},
            mode="enforce",  # a namespace's mode is one of the things that are guarded
            tenant="" if scope is None or scope.tenant is None else scope.tenant.name,
            policy="" if scope is None or scope.policy is None else str(scope.policy.ref),
        )
        return Judgement("deny", denied, (), request.object, (), NOTHING)
    if not reaches(request, facts):
        return Judgement("ignore", IGNORED, (), request.object, (), NOTHING)
    workload = workload_in(request, facts.policy_set.settings)
    if workload is not None:
        told = judge_workload(request, workload, facts)
        word = "ignore" if told.ignored else "admit" if told.allowed else "deny"
        return Judgement(word, told, (), request.object, told.warnings, NOTHING)
    first = mutate(request, facts)
    if not first.allowed:
        return Judgement("deny", first, (), request.object, first.warnings, NOTHING)
    result: Any = apply(request.object, list(first.patch))
    second = validate(replace(request, object=result), facts)
    warnings = tuple(dict.fromkeys((*first.warnings, *second.warnings)))
    if not second.allowed:
        return Judgement("deny", second, first.patch, result, warnings, NOTHING)
    if first.ignored and second.ignored:
        return Judgement("ignore", second, (), request.object, (), NOTHING)
    word = "mutate" if _changes_more_than_marks(first.patch) else "admit"
    return Judgement(word, second, first.patch, result, warnings, second.charge)


def _changes_more_than_marks(operations: Iterable[Operation]) -> bool:
    return any(
        not operation["path"].startswith((_OUR_ANNOTATIONS, _GATES))  # of gates mutate adds ours alone
        and not (operation["path"] == _ANNOTATIONS and operation["value"] == {})
        for operation in operations
    )
