"""What became of one request in the few words that people compare: in policy tests, and under two policy sets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gate.admission import plugin_pod
from dra_gate.admission.convert import tenant_templates
from dra_gate.admission.facts import Facts
from dra_gate.admission.judge import judge
from dra_gate.admission.request import Request
from dra_gate.admission.scope import scope_of
from dra_gate.policy.compile import Template
from dra_gate.policy.model import PolicyRef
from dra_gate.policy.switch import PLUGIN


@dataclass(frozen=True, slots=True)
class Replay:
    """The verdict's word, the tenant's templates that the stored object names, one for each claim, and the findings.

    `placed` are the models whose nodes a Pod in lane device-plugin is kept on. `reasons` are codes and `rules` ids,
    each once. In modes warn and shadow they are there beside mutate or admit.
    """

    verdict: str
    templates: tuple[Template, ...]
    reasons: tuple[str, ...]
    rules: tuple[str, ...]
    placed: tuple[str, ...] = ()

    @property
    def policies(self) -> tuple[PolicyRef, ...]:
        """The policies of its claims, each once."""
        return tuple(dict.fromkeys(template.policy for template in self.templates))

    @property
    def candidates(self) -> tuple[str, ...]:
        """The models that it may get, in order of preference; of all its policies where there are several."""
        return self.placed or tuple(dict.fromkeys(model for one in self.templates for model in one.candidates))

    @property
    def claims(self) -> tuple[str, ...]:
        """Each claim as `policy@version xDEVICES`."""
        return tuple(f"{template.policy} x{template.count}" for template in self.templates)


def replay(request: Request, facts: Facts) -> Replay:
    """What becomes of `request`, by both webhooks in a row."""
    judgement = judge(request, facts)
    findings = judgement.deciding.findings
    held: Iterable[Template] = ()
    placed: tuple[str, ...] = ()
    scope = scope_of(request.namespace, facts)
    if scope is not None and judgement.word in ("mutate", "admit"):
        plugin, _ = plugin_pod.read(judgement.result, scope, facts)
        if plugin is not None:
            placed = plugin.placement.models
        elif scope.lane != PLUGIN:
            held = tenant_templates(judgement.result, scope, facts).values()
    return Replay(
        judgement.word,
        tuple(held),
        tuple(dict.fromkeys(finding.code for finding in findings)),
        tuple(dict.fromkeys(finding.rule for finding in findings)),
        placed,
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
