"""`dra-gate replay`: a decision made again from its record and a saved state."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from dra_gate.allocation.record import DecisionRecord, chain, loads
from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.allocation.state import digest_of
from dra_gate.cli.failure import Failure
from dra_gate.cli.state import read_state
from dra_gate.controller.replay import Difference, differences


@click.command(epilog="Exit codes: 0 the same, 1 something differs, 2 the input is wrong.")
@click.argument("records", metavar="RECORDS")
@click.option("--snapshot", "file", required=True, metavar="FILE", help="What `dra-gate snapshot` saved.")
@click.option("--pod", default="", metavar="NAMESPACE/NAME", help="Only the records of one Pod.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(records: str, file: str, pod: str, output: str) -> None:
    """Make decisions again, by the functions that made them, and say exactly what differs.

    RECORDS is a file of the controller's decision log, one record a line, or - for standard input. The state has to be
    of the time of the decision: what has changed since shows as differences.

    \b
    Examples:
      dra-gate replay decisions.jsonl --snapshot monday.json
      dra-gate replay decisions.jsonl --snapshot monday.json --pod research-train/train-0 -o json
    """
    state = read_state(file)
    digest = digest_of(state)
    try:
        found = [(one, differences(one, state, digest)) for one in _records(records, pod)]
    except SnapshotError as error:
        raise Failure(str(error)) from None
    if not found:
        raise Failure(f"{records}: no record{f' of Pod {pod}' if pod else ''}")
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
    sys.exit(1 if any(all_ for _, all_ in found) else 0)


def _records(file: str, pod: str) -> Iterator[DecisionRecord]:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise Failure(f"{file}: {error.strerror or error}") from None
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = loads(line)
        except ValueError as error:
            raise Failure(f"{file}:{number}: {error}") from None
        if pod in ("", f"{record.namespace}/{record.pod}"):
            yield record


def _lines(record: DecisionRecord, found: list[Difference]) -> Iterator[str]:
    name = f"Pod {record.namespace}/{record.pod}, decision {record.sequence}"
    yield f"{name}: {'the same again' if not found else 'differs'}: {chain(record)}"
    for one in found:
        yield f"  {one.field}: recorded {json.dumps(one.recorded)}, now {json.dumps(one.again)}"
