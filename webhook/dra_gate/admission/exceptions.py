"""Exceptions of the policy set: findings that do not count for this request, until a day."""

from __future__ import annotations

import datetime as dt

from dra_gate.admission.facts import Facts
from dra_gate.admission.request import Request
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping, sequence, text
from dra_gate.policy.model import PolicyException


def excepted(
    findings: tuple[Finding, ...], request: Request, facts: Facts
) -> tuple[tuple[Finding, ...], tuple[PolicyException, ...]]:
    """The findings that count, and the exceptions by which the others do not.

    The owners of a Pod are whom its ownerReferences name as controller; who sends the request tells whether that is
    to be believed.
    """
    exceptions = facts.policy_set.exceptions
    if not findings or not exceptions:
        return findings, ()
    references = (mapping(raw) for raw in sequence(at(request.object, "metadata", "ownerReferences")))
    owners = [(text(one.get("kind")), text(one.get("name"))) for one in references if one.get("controller") is True]
    left: list[Finding] = []
    used: dict[str, PolicyException] = {}
    for finding in findings:
        for exception in exceptions:
            if exception.covers(finding.rule, request.namespace, owners, request.username, facts.day):
                used[exception.name] = exception
                break
        else:
            left.append(finding)
    return tuple(left), tuple(used.values())


def line(exception: PolicyException) -> str:
    """One line for the person whose Pod it lets pass."""
    until = dt.date(1970, 1, 1) + dt.timedelta(days=exception.expires)
    return f"dra-gate: let pass by exception {exception.name} ({exception.ticket}) until {until}"
