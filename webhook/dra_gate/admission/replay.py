"""What became of one request in the few words that people compare: in policy tests, and under two policy sets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gate.admission.facts import Facts
from dra_gate.admission.judge import judge
from dra_gate.admission.request import Request
from dra_gate.kube.pod import claim_entries
from dra_gate.kube.raw import text
from dra_gate.policy.compile import Template
from dra_gate.policy.model import PolicyRef


@dataclass(frozen=True, slots=True)
class Replay:
    """The verdict's word, the tenant's templates that the stored object names, one for each claim, and the findings.

    `reasons` are codes and `rules` ids, each once. In modes warn and shadow they are there beside mutate or admit.
    """

    verdict: str
    templates: tuple[Template, ...]
    reasons: tuple[str, ...]
    rules: tuple[str, ...]

    @property
    def policies(self) -> tuple[PolicyRef, ...]:
        """The policies of its claims, each once."""
        return tuple(dict.fromkeys(template.policy for template in self.templates))

    @property
    def candidates(self) -> tuple[str, ...]:
        """The models that its claims may get, in order of preference; of all its policies where there are several."""
        return tuple(dict.fromkeys(model for template in self.templates for model in template.candidates))

    @property
    def claims(self) -> tuple[str, ...]:
        """Each claim as `policy@version xDEVICES`."""
        return tuple(f"{template.policy} x{template.count}" for template in self.templates)


def replay(request: Request, facts: Facts) -> Replay:
    """What becomes of `request`, by both webhooks in a row."""
    judgement = judge(request, facts)
    findings = judgement.deciding.findings
    held: Iterable[Template | None] = ()
    if judgement.word in ("mutate", "admit"):
        named = (text(entry.get("resourceClaimTemplateName")) for entry in claim_entries(judgement.result))
        held = map(facts.index.named, named)
    return Replay(
        judgement.word,
        tuple(template for template in held if template is not None),
        tuple(dict.fromkeys(finding.code for finding in findings)),
        tuple(dict.fromkeys(finding.rule for finding in findings)),
    )


def moves(before: Replay, after: Replay) -> tuple[str, ...]:
    """In which words two replays of one request differ: verdict, reasons, claims, candidates, templates.

    A template's name holds a digest of its content: it differs also where only a constraint does.
    """
    pairs = {
        "verdict": (before.verdict, after.verdict),
        "reasons": (set(before.reasons), set(after.reasons)),
        "claims": (before.claims, after.claims),
        "candidates": (before.candidates, after.candidates),
        "templates": ([one.name for one in before.templates], [one.name for one in after.templates]),
    }
    return tuple(what for what, (old, new) in pairs.items() if old != new)
