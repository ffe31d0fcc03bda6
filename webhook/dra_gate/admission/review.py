"""One question, one answer: what the server, the demo and recorded reviews all go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dra_gate.admission.facts import Facts
from dra_gate.admission.mutate import mutate
from dra_gate.admission.request import BadRequest, Request, parse, respond
from dra_gate.admission.validate import validate
from dra_gate.admission.verdict import Verdict
from dra_gate.admission.workloads import judge_workload, workload_in
from dra_gate.kube.pod import display_name

__all__ = ["Answer", "BadRequest", "Record", "Route", "answer"]

Route = Literal["mutate", "validate"]


@dataclass(frozen=True, slots=True)
class Record:
    """What logs and metrics say of one answer: no object, no environment, nothing secret."""

    route: str
    uid: str
    operation: str
    namespace: str
    name: str
    verdict: str  # mutate, admit, deny, warn, shadow or ignore
    reasons: tuple[str, ...]  # codes, each once
    policy: str  # name@version
    tenant: str
    exceptions: tuple[str, ...] = ()  # names


@dataclass(frozen=True, slots=True)
class Answer:
    """The response body (HTTP 200) and the record of what was decided."""

    body: bytes
    record: Record
    verdict: Verdict


def answer(route: Route, body: bytes, facts: Facts, *, may_look_again: bool = False) -> Answer:
    """Answer the AdmissionReview in `body`. Raises BadRequest for what is none.

    With `may_look_again`, raises BehindError where newer facts might say something else.
    """
    request = parse(body)
    if route == "mutate":
        verdict = mutate(request, facts)
    elif (workload := workload_in(request, facts.policy_set.settings)) is not None:
        verdict = judge_workload(request, workload, facts)
    else:
        verdict = validate(request, facts, may_look_again=may_look_again)
    return Answer(respond(request, verdict), _record(route, request, verdict), verdict)


def _record(route: Route, request: Request, verdict: Verdict) -> Record:
    return Record(
        route=route,
        uid=request.uid,
        operation=request.operation,
        namespace=request.namespace,
        name=request.name or display_name(request.object),
        verdict=verdict.word,
        reasons=tuple(dict.fromkeys(finding.code for finding in verdict.findings)),
        policy=verdict.policy,
        tenant=verdict.tenant,
        exceptions=verdict.exceptions,
    )
