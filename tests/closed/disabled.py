"""Each rule switched off in turn: who notices? `python -m closed.disabled` prints the table.

Noticing is done by the whole gate, not by the rule's own check: rows of the rule's table that are judged through
validate, the handed cases through both webhooks, and hostile Pods that the oracle then sees reach a device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from admission import setting
from admission.test_rules import TABLES
from cases import harness
from closed.prove import PROOF, prove
from dra_gate.admission import rules
from dra_gate.admission.judge import judge
from dra_gate.admission.request import BadRequest
from dra_gate.admission.rules import Rule
from dra_gate.admission.rules.rule import Registry
from dra_gate.admission.validate import validate
from dra_gate.cli.review import requests_of
from dra_gate.cluster.facts import World
from dra_gate.fairness.charge import Charge

HOSTILE = 400  # Pods a rule


@dataclass(frozen=True)
class Noticed:
    """What is different without the rule: rows that are not refused or not told of, cases, hostile Pods let through."""

    rule: str
    rows: int
    cases: tuple[str, ...]
    hostile: int


@contextmanager
def without(rule: Rule) -> Iterator[None]:
    """The gate without one rule. Its signs stay: the API server would still ask."""
    whole = rules.ALL
    rules.ALL = Registry([one for one in whole if one is not rule])
    try:
        yield
    finally:
        rules.ALL = whole


def rows_of(rule: Rule) -> Iterator[Any]:
    """Requests and facts of the rows of the rule's table that it finds something in."""
    for raw in setting.load_table(TABLES / f"{rule.id.replace('-', '_')}.yaml"):
        if raw.get("findings"):
            row = setting.resolved(raw)
            request = setting.row_request(row)
            yield request, setting.world(*row.get("present", ())).facts()


def handed() -> Iterator[tuple[str, Any, Any]]:
    """Every handed input: its name, request and facts."""
    for case_id in harness.expectations():
        case = harness.case(case_id)
        for expectation in case.expected:
            if "pod" not in expectation and "review" not in expectation:
                continue
            world = World(harness.policy_set())
            for obj in [*harness.environment(), *case.objects]:
                world.apply(obj)
            world.set_used("lilac", Charge(8))
            document = case.document(expectation)
            name = f"{case_id}/{expectation.get('pod', expectation.get('review'))}"
            sender = (expectation.get("user") or harness.USER, frozenset(expectation.get("groups") or harness.GROUPS))
            try:
                requests = list(requests_of(document, sender, "default", harness.policy_set().settings))
            except BadRequest:
                continue  # no review: no rule is asked
            for _, request in requests:
                yield name, request, world.facts()


def findings(request: Any, facts: Any) -> set[tuple[str, str]]:
    """What is told of a request: by rule and field."""
    return {(one.rule, one.field) for one in judge(request, facts).deciding.findings}


def notice(rule: Rule, inputs: list[tuple[str, Any, Any]]) -> Noticed:
    """What becomes different when `rule` is switched off."""
    rows = 0
    for request, facts in rows_of(rule):
        before = {one.rule for one in validate(request, facts).findings}
        with without(rule):
            after = {one.rule for one in validate(request, facts).findings}
        rows += before != after
    cases = []
    for name, request, facts in inputs:
        before_word = judge(request, facts).word, findings(request, facts)
        with without(rule):
            if (judge(request, facts).word, findings(request, facts)) != before_word:
                cases.append(name)
    with without(rule):
        through = len(prove(HOSTILE, seed=3, spoil=False).through)
    return Noticed(rule.id, rows, tuple(dict.fromkeys(cases)), through)


def main() -> int:
    """Print the table; 1 when a rule could go unnoticed."""
    parser = argparse.ArgumentParser(prog="python -m closed.disabled", description=__doc__)
    parser.add_argument("--append", action="store_true", help=f"add it to docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    inputs = list(handed())
    lines = [
        f"| rule switched off | rows of its table | handed cases | of {HOSTILE} hostile Pods let through |",
        "|---|---:|---|---:|",
    ]
    unnoticed = 0
    print("\n".join(lines))
    for rule in list(rules.ALL):
        found = notice(rule, inputs)
        shown = ", ".join(found.cases[:6]) + (f" and {len(found.cases) - 6} more" if len(found.cases) > 6 else "")
        lines.append(f"| {found.rule} | {found.rows} | {shown} | {found.hostile} |")
        print(lines[-1], flush=True)
        unnoticed += not (found.rows or found.cases or found.hostile)
    if options.append:
        PROOF.write_text("\n".join([PROOF.read_text(), "## Each rule switched off: who notices", "", *lines, ""]))
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
