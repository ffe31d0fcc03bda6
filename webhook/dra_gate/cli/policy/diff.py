"""`dra-gate policy diff`: what a change of policy means, and which recorded Pods it moves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from dra_gate.admission.replay import Replay, moves, replay
from dra_gate.admission.request import BadRequest, Request
from dra_gate.admission.sets import PolicySets
from dra_gate.admission.stamp import POLICY_SET, stamp_on
from dra_gate.cli.options import gate_tenants, load_policies, world_from
from dra_gate.cli.review import requests_of
from dra_gate.cluster.facts import World
from dra_gate.cluster.files import InputError, read_manifests
from dra_gate.kube.pod import display_name
from dra_gate.policy.diff import EFFECTS, Difference, compare, loosens
from dra_gate.policy.model import PolicySet
from dra_gate.policy.report import Heading, Paragraph, Part, Report, Table, as_markdown, as_text
from dra_gate.policy.words import many

LOOSER = 3  # the exit code that asks for a second approval
_COMMENT = 60_000  # characters; GitHub takes 65,536 in a comment
_CELL = 300  # characters of one value
_folder = click.Path(exists=True, file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A recorded request that the change moves, and in which words."""

    source: str
    pod: str
    words: tuple[str, ...]
    before: Replay
    after: Replay


@click.command(name="diff", epilog="Exit codes: 0 nothing loosens, 3 something does, 2 input or policy error.")
@click.argument("old", metavar="OLD", type=_folder)
@click.argument("new", metavar="NEW", type=_folder)
@click.option("--reviews", multiple=True, metavar="PATH", help="Pods, workloads or AdmissionReviews to judge by both.")
@click.option(
    "--cluster", multiple=True, metavar="PATH", help="Files or folders of manifests that stand for the cluster."
)
@click.option("-n", "--namespace", default="default", metavar="NAME", help="Namespace of objects that name none.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
def diff_command(
    old: Path, new: Path, reviews: Sequence[str], cluster: tuple[str, ...], namespace: str, output: str
) -> None:
    """Say what a change of policy means: what became looser, tighter, or just different, and why.

    With --reviews also the Pods whose verdict, claims or candidates change. Without --cluster the namespaces of all
    tenants count as gated.

    \b
    Examples:
      dra-gate policy diff main/policies/ policies/
      dra-gate policy diff main/policies/ policies/ -o markdown | gh pr comment --body-file -
      dra-gate policy diff main/policies/ policies/ --reviews recorded/ --cluster dump/
    """
    before, after = load_policies(str(old)), load_policies(str(new))
    differences = compare(before, after)
    moved: list[_Moved] | None = None
    judged = 0
    if reviews:
        moved, judged = _moved(before, after, reviews, cluster, namespace)
    if output == "json":
        click.echo(json.dumps(_entry(differences, moved, judged), indent=2, ensure_ascii=False))
    elif output == "markdown":
        click.echo(_comment(differences, moved, judged), nl=False)
    else:
        click.echo(told(differences, moved, judged), nl=False)
    if _looser(differences, moved):
        raise click.exceptions.Exit(LOOSER)


def told(differences: Sequence[Difference], moved: Sequence[_Moved] | None = None, judged: int = 0) -> str:
    """For a terminal: all of it."""
    return as_text(_report(differences, moved, judged, len(differences) + len(moved or ())))


def _moved(
    before: PolicySet, after: PolicySet, reviews: Sequence[str], cluster: tuple[str, ...], namespace: str
) -> tuple[list[_Moved], int]:
    world = World(before)
    if cluster:
        world_from(world, cluster, None, None)
    else:
        gate_tenants(world, (before, after))
    requests: list[tuple[str, Request]] = []
    try:
        for document in read_manifests(reviews):
            source = f"{document.source}#{document.index}"
            try:
                made = list(requests_of(document.value, ("", frozenset()), namespace, after.settings))
            except BadRequest as error:
                click.echo(f"warning: {source}: {error}", err=True)
                continue
            for where, request in made:
                if POLICY_SET in stamp_on(request.object):
                    click.echo(f"warning: {source}: skipped, a policy set has decided it before", err=True)
                    continue
                requests.append((f"{source} {where}".rstrip(), request))
    except InputError as error:
        raise click.UsageError(str(error)) from None
    olds = [replay(request, world.facts()) for _, request in requests]
    world.use(PolicySets(after))
    news = [replay(request, world.facts()) for _, request in requests]
    moved = [
        _Moved(source, f"{request.namespace}/{request.name or display_name(request.object)}", words, old, new)
        for (source, request), old, new in zip(requests, olds, news, strict=True)
        if (words := moves(old, new))
    ]
    return moved, len(requests)


def _looser(differences: Sequence[Difference], moved: Sequence[_Moved] | None) -> bool:
    """Something loosens, or a recorded request that was refused is not refused any more."""
    return loosens(differences) or any("deny" == one.before.verdict != one.after.verdict for one in moved or ())


# -- output -----------------------------------------------------------------------------------------------------------


def _entry(differences: Sequence[Difference], moved: Sequence[_Moved] | None, judged: int) -> dict[str, object]:
    entry: dict[str, object] = {
        "loosens": _looser(differences, moved),
        "differences": [asdict(difference) for difference in differences],
    }
    if moved is not None:
        entry["judged"] = judged
        entry["pods"] = [
            {
                "source": one.source,
                "pod": one.pod,
                "differs": list(one.words),
                "before": _replayed(one.before),
                "after": _replayed(one.after),
            }
            for one in moved
        ]
    return entry


def _replayed(found: Replay) -> dict[str, object]:
    return {
        "verdict": found.verdict,
        "reasons": list(found.reasons),
        "claims": list(found.claims),
        "candidates": list(found.candidates),
        "templates": [template.name for template in found.templates],
    }


def _comment(differences: Sequence[Difference], moved: Sequence[_Moved] | None, judged: int) -> str:
    """Markdown that one comment has room for; what is left out is counted."""
    rows = len(differences) + len(moved or ())
    while len(said := as_markdown(_report(differences, moved, judged, rows))) > _COMMENT and rows:
        rows = rows * 3 // 4
    return said


def _report(differences: Sequence[Difference], moved: Sequence[_Moved] | None, judged: int, rows: int) -> Report:
    return Report(_title(differences), tuple(_parts(differences, moved, judged, rows)))


def _title(differences: Sequence[Difference]) -> str:
    counted = Counter(difference.effect for difference in differences)
    said = ", ".join(many(counted[effect], *_COUNTED[effect]) for effect in EFFECTS if counted[effect])
    return f"Policy: {said}" if said else "Policy: no difference in meaning"


_COUNTED = {
    "loosens": ("difference loosens", "differences loosen"),
    "tightens": ("tightens", "tighten"),
    "changes": ("changes", "change"),
}


def _parts(differences: Sequence[Difference], moved: Sequence[_Moved] | None, judged: int, rows: int) -> Iterator[Part]:
    if differences:
        shown = tuple(
            (one.effect, one.where, one.what, _cut(one.before), _cut(one.after), _cut(one.why))
            for one in differences[:rows]
        )
        yield Table(("", "Where", "What", "Before", "After", "Why"), shown)
        if left := differences[rows:]:
            looser = sum(one.effect == "loosens" for one in left)
            yield Paragraph(f"And {len(left)} more that have no room here, {looser} of which loosen.")
    if moved is not None:
        yield Heading(2, f"{len(moved)} of {many(judged, 'recorded request')} differ")
        if moved:
            yield Table(("Pod", "What", "Before", "After"), tuple(map(_pod_row, moved[:rows])))
        if left_out := len(moved[rows:]):
            yield Paragraph(f"And {left_out} more that have no room here.")


def _pod_row(one: _Moved) -> tuple[str, str, str, str]:
    return one.pod, ", ".join(one.words), _cut(_said(one.before)), _cut(_said(one.after))


def _said(found: Replay) -> str:
    parts = [found.verdict]
    if found.reasons:
        parts.append(f"({', '.join(found.reasons)})")
    if found.claims:
        parts.append(f"{', '.join(found.claims)}: {' → '.join(found.candidates)}")
    return " ".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
