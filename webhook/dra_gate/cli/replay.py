"""`dra-gate replay`: decisions made again, from the arbiter's log or from decision records and a saved state."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import click
from msgspec import structs

from dra_gate.allocation.record import DecisionRecord, chain, loads
from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.allocation.state import digest_of
from dra_gate.cli.arbiter_log import contents, is_arbiter_log, stretches
from dra_gate.cli.failure import Failure
from dra_gate.cli.state import read_state
from dra_gate.controller.replay import Difference, differences
from dra_gate.fairness import checker
from dra_gate.fairness.log import replay

_SHOWN = 20  # differences as text
_LONG = 1200  # characters of a line that is shown whole


@click.command(epilog="Exit codes: 0 the same, 1 something differs or a promise was broken, 2 the input is wrong.")
@click.argument("log", metavar="LOG")
@click.option("--snapshot", "file", metavar="FILE", help="For decision records: what `dra-gate snapshot` saved.")
@click.option("--pod", default="", metavar="NAMESPACE/NAME", help="Only the decision records of one Pod.")
@click.option("--check", is_flag=True, help="Of an arbiter's log: look whether every promise was kept, too.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(log: str, file: str | None, pod: str, check: bool, output: str) -> None:
    """Make decisions again, by the functions that made them, and say exactly what differs.

    LOG is a file, a folder of files that follow each other, or - for standard input: either of the arbiter's log, in
    which everything stands that it decides by, or of decision records. These need the state of the time of the
    decision: what has changed since shows as differences.

    \b
    Examples:
      dra-gate replay arbiter-log/ --check
      dra-gate replay decisions.jsonl --snapshot monday.json
      dra-gate replay decisions.jsonl --snapshot monday.json --pod research-train/train-0 -o json
    """
    files = contents(log)
    if is_arbiter_log(files[0][1]):
        if file or pod:
            raise click.UsageError("--snapshot and --pod are for decision records, and this is an arbiter's log")
        sys.exit(_arbiter(files, output, with_check=check))
    if check:
        raise click.UsageError(f"--check is for an arbiter's log, and {log} is none")
    if not file:
        raise click.UsageError(f"{log} is no arbiter's log, and decision records need --snapshot")
    sys.exit(_decisions(files, file, pod, output))


def _decisions(files: Sequence[tuple[str, bytes]], file: str, pod: str, output: str) -> int:
    state = read_state(file)
    digest = digest_of(state)
    try:
        found = [(one, differences(one, state, digest)) for one in _records(files, pod)]
    except SnapshotError as error:
        raise Failure(str(error)) from None
    if not found:
        raise Failure(f"{files[0][0]}: no record{f' of Pod {pod}' if pod else ''}")
    if output == "json":
        entries = [
            {
                "namespace": one.namespace,
                "pod": one.pod,
                "sequence": one.sequence,
                "differences": list(map(asdict, all_)),
            }
            for one, all_ in found
        ]
        click.echo(json.dumps(entries, indent=2))
    else:
        for one, all_ in found:
            click.echo("\n".join(_lines(one, all_)))
    return 1 if any(all_ for _, all_ in found) else 0


def _records(files: Iterable[tuple[str, bytes]], pod: str) -> Iterator[DecisionRecord]:
    for name, content in files:
        for number, line in enumerate(content.splitlines(), 1):
            try:
                record = loads(line)
            except ValueError as error:
                raise Failure(f"{name}:{number}: {error}") from None
            if pod in ("", f"{record.namespace}/{record.pod}"):
                yield record


def _lines(record: DecisionRecord, found: list[Difference]) -> Iterator[str]:
    name = f"Pod {record.namespace}/{record.pod}, decision {record.sequence}"
    yield f"{name}: {'the same again' if not found else 'differs'}: {chain(record)}"
    for one in found:
        yield f"  {one.field}: recorded {json.dumps(one.recorded)}, now {json.dumps(one.again)}"


def _arbiter(files: Sequence[tuple[str, bytes]], output: str, *, with_check: bool) -> int:
    """Replays the arbiter's log; the exit code."""
    found = stretches(files)
    differing: list[dict[str, object]] = []
    broken: list[dict[str, object]] = []
    notes: list[str] = []
    faults: list[str] = []
    for stretch in found:
        notes += stretch.notes
        faults += stretch.faults
        unwritten = 0
        for one in replay(stretch.lines):
            if not one.wrote and one.sequence == stretch.last:
                unwritten += 1
            else:
                differing.append({"place": stretch.place(one.sequence), **asdict(one)})
        if unwritten:
            place = stretch.place(stretch.last)
            notes.append(f"{place}: the last pass there made {unwritten} more decisions than were written")
        if with_check:
            broken += [
                {"place": stretch.place(one.sequence), **structs.asdict(one)} for one in checker.check(stretch.lines)
            ]
    decisions = sum(b'"kind":"granted"' in line or b'"kind":"revised"' in line for one in found for line in one.lines)
    lines = sum(len(one.lines) for one in found)
    if output == "json":
        told = {"lines": lines, "decisions": decisions, "differences": differing, "notes": notes, "faults": faults}
        told |= {"violations": broken} if with_check else {}
        click.echo(json.dumps(told, indent=2))
    else:
        for text in faults:
            click.echo(click.style(text, fg="red"))
        for text in notes:
            click.echo(f"note: {text}")
        for entry in differing[:_SHOWN]:
            click.echo(f"{entry['place']}: line {entry['sequence']} differs")
            wrote, decided = _where_they_differ(str(entry["wrote"]), str(entry["decided"]))
            click.echo(f"  written: {wrote or 'nothing'}\n  now:     {decided or 'nothing'}")
        if len(differing) > _SHOWN:
            click.echo(f"and {len(differing) - _SHOWN} more; what follows a difference often differs because of it")
        for entry in broken[:_SHOWN]:
            click.echo(f"{entry['place']}: line {entry['sequence']} breaks {entry['rule']}: {entry['text']}")
        if len(broken) > _SHOWN:
            click.echo(f"and {len(broken) - _SHOWN} more of these")
        what = f"{len(differing)} of {decisions} decisions differ" if differing else f"the same {decisions} decisions"
        kept = "" if not with_check else f"; {len(broken)} promises broken" if broken else "; every promise kept"
        click.echo(f"{what}, from {lines} lines{kept}")
    return 1 if differing or broken else 2 if faults else 0


def _where_they_differ(one: str, other: str) -> tuple[str, str]:
    """Both as they are; of lines that nobody would read, such as a State line, what is around the first difference."""
    if max(len(one), len(other)) <= _LONG:
        return one, other
    pairs = enumerate(zip(one, other, strict=False))
    start = max(0, next((at for at, (here, there) in pairs if here != there), 0) - _LONG // 10)
    return f"...{one[start : start + _LONG // 2]}...", f"...{other[start : start + _LONG // 2]}..."
