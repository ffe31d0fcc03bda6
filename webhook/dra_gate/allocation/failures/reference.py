"""The reference page of failures, made from the table.

`python -m dra_gate.allocation.failures.reference > docs/reference/failures.md`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dra_gate.allocation.failures.table import CLASSES, ROWS, Pattern, Row, When

_HEAD = """# Failures

<!-- Made by `python -m dra_gate.allocation.failures.reference` from the table.yaml beside it. Do not edit. -->

What can keep a Pod from its devices, how it shows, and what to do. Of several rows that hold the one that asks for most
is told, of equals the one that stands first here.

The texts are Kubernetes' own and no API: they were read in 1.34 to 1.37, and one that no row knows is a class of its
own, `unknown`. It is counted and alerted, because silence would be taken for health.
"""

_STAGES = {
    "refused": "no Pod came of it",
    "held": "it has scheduling gates",
    "claimless": "a claim that it names is not there",
    "scheduling": "not bound, claims there",
    "binding": "its claims are allocated to it, not bound",
    "bound": "bound, not running",
    "running": "running",
    "ended": "succeeded or failed",
    "leaving": "being deleted",
}


def page() -> str:
    """The page as Markdown."""
    lines = [_HEAD, "| class | means | we try again, where we act |", "|---|---|---|"]
    lines += [f"| {plan.name} | {plan.means} | {_pace(plan.first, plan.cap)} |" for plan in CLASSES.values()]
    lines += ["", "| row | what it is | class | told |", "|---|---|---|---|"]
    lines += [f"| [{row.id}](#{row.id}) | {row.title} | {row.klass} | {', '.join(row.told)} |" for row in ROWS]
    return "\n".join([*lines, "", *(line for row in ROWS for line in _row(row))])


def _pace(first: float, cap: float) -> str:
    if not cap:
        return "never"
    return f"after {first:g} s at first" + (f", then doubling up to {cap:g} s" if cap > first else ", and so on")


def _row(row: Row) -> Iterator[str]:
    yield f"## {row.id}\n"
    yield f"**{row.title}.** {row.advice}.\n".replace("?.\n", "?\n")
    yield f"- class: {row.klass}; action: {row.action}; told: {', '.join(row.told)}"
    for number, when in enumerate(row.when):
        yield f"- {'or ' if number else ''}when: {'; '.join(_clauses(when))}"
    yield f"- source: {row.source}{f' (signal {row.signal})' if row.signal else ''}\n"


def _clauses(when: When) -> Iterator[str]:
    yield " or ".join(_STAGES[stage] for stage in when.stages)
    if when.condition:
        yield _pattern(f"condition `{when.condition.type}`", when.condition)
    for what, pattern in (("event", when.event), ("a container's state", when.container), ("the Pod", when.pod)):
        if pattern:
            yield _pattern(what, pattern)
    if when.claims:
        yield f"a claim is {' or '.join(when.claims)}"
    if when.health:
        yield f"health `{'` or `'.join(when.health)}`"
    if when.taint:
        yield f"a device that would do has a taint whose key matches `{when.taint}`"
    for name, wanted in when.facts.items():
        yield f"{name.replace('_', ' ')}: {'yes' if wanted else 'no'}"
    if when.silent:
        yield "the scheduler has said nothing of it"
    if when.after:
        yield f"for {when.after:g} s"
    if when.since or when.until:
        bounds = (f"from {when.since}" if when.since else "", f"up to {when.until}" if when.until else "")
        yield " ".join(("Kubernetes", *filter(None, bounds)))


def _pattern(what: str, pattern: Pattern) -> str:
    reasons = f" `{'` or `'.join(pattern.reasons)}`" if pattern.reasons else ""
    return what + reasons + (f" with `{pattern.message}`" if pattern.message else "")


if __name__ == "__main__":
    sys.stdout.write(page())
