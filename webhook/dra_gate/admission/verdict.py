"""What a decision is: findings, a patch, warnings, audit annotations. Responses, logs and reports derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.kube.patch import Operation


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason for a denial, written for the person who is refused.

    `code` is stable and for programs, `field` the path in the object, `message` what is wrong there, `remedy` what to
    do instead, `rule` the id of the rule that found it.
    """

    rule: str
    code: str
    field: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one request. `ignored` requests are none of the gate's business and are let through untouched.

    `findings` are there in every mode; `allowed` already takes the mode into account.
    """

    allowed: bool
    ignored: bool = False
    findings: tuple[Finding, ...] = ()
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""
    tenant: str = ""
    policy: str = ""  # name@version
    charge: Charge = NOTHING
    exceptions: tuple[str, ...] = ()  # names of those without which there would be more findings

    @property
    def word(self) -> str:
        """mutate, admit, deny, warn, shadow or ignore: the verdict in one word, for logs and metrics."""
        if self.ignored:
            return "ignore"
        if not self.allowed:
            return "deny"
        if self.findings:
            return self.mode if self.mode in ("warn", "shadow") else "admit"
        return "mutate" if self.patch else "admit"


IGNORED = Verdict(allowed=True, ignored=True)
