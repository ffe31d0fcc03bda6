"""From findings to a verdict, by the namespace's mode.

enforce denies, warn says what it would have denied and lets through, shadow changes nothing and only records.
"""

from __future__ import annotations

from dra_gate.admission.exceptions import excepted, line
from dra_gate.admission.facts import Facts
from dra_gate.admission.request import Request, finding_line
from dra_gate.admission.scope import Scope
from dra_gate.admission.verdict import Finding, Verdict
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.kube.patch import Operation


def outcome(
    request: Request,
    scope: Scope,
    findings: tuple[Finding, ...],
    facts: Facts,
    *,
    patch: tuple[Operation, ...] = (),
    charge: Charge = NOTHING,
    warnings: tuple[str, ...] = (),
) -> Verdict:
    """The verdict on a Pod in a gated namespace: what no exception lets pass counts.

    Audit annotations say the same in both rounds of mutation: the API server drops a value that differs when the
    webhook is called again.
    """
    findings, exceptions = excepted(findings, request, facts)
    policy = "" if scope.policy is None else str(scope.policy.ref)
    tenant = "" if scope.tenant is None else scope.tenant.name
    audit = {"policy": policy, "tenant": tenant, "lane": scope.lane, "mode": scope.mode}
    audit = {key: value for key, value in audit.items() if value}
    audit["policy-set"] = facts.policy_set.digest
    if findings:
        audit["reasons"] = ",".join(dict.fromkeys(finding.code for finding in findings))
        audit["rules"] = ",".join(dict.fromkeys(finding.rule for finding in findings))
    if exceptions:
        audit["exceptions"] = ",".join(one.name for one in exceptions)
        warnings = (*warnings, *map(line, exceptions))
    allowed = not findings or scope.mode != "enforce"
    if findings and scope.mode == "warn":
        warnings = (*warnings, *(f"dra-gate would refuse: {finding_line(finding)}" for finding in findings))
    return Verdict(
        allowed=allowed,
        findings=findings,
        patch=() if findings or scope.mode == "shadow" else patch,
        warnings=warnings,
        audit=audit,
        mode=scope.mode,
        tenant=tenant,
        policy=policy,
        charge=charge,
        exceptions=tuple(one.name for one in exceptions),
    )
