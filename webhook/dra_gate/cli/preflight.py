"""`dra-gate preflight`: whether a cluster is ready for the next namespaces, or a node to change sides."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
import yaml

from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import kubeconfig_options, output_option
from dra_gate.cli.state import state_from
from dra_gate.migration.preflight import ALL, Cluster, Result, verdict_of
from dra_gate.migration.preflight.node import NoSuchNodeError, node_report
from dra_gate.policy.switch import DRA, PLUGIN, Lane
from dra_gate.policy.words import listed, many

_CODES: Final = {"ready": 0, "blocked": 1, "unknown": 2}
_SAID: Final = {"ready": "READY", "blocked": "BLOCKED", "unknown": "CANNOT TELL"}
_WORDS: Final = {"block": "block", "warn": "warn", "unknown": "?"}
_COLOURS: Final = {"block": "red", "warn": "yellow", "unknown": "cyan"}
_HEADS: Final = {"ready": "green", "blocked": "red", "unknown": "cyan"}


@click.command(epilog="Exit codes: 0 nothing blocks, 1 something blocks, 2 it cannot be told, or the input is wrong.")
@click.option("--snapshot", "file", metavar="FILE", help="Check what `dra-gate snapshot` saved.")
@kubeconfig_options
@click.option("--policies", metavar="DIR", help="Check for these policies, of a live cluster.")
@click.option("--node", metavar="NODE", help="Only whether this node can change sides now.")
@click.option("--to", "way", type=click.Choice([PLUGIN, DRA]), help="With --node: to which side.")
@output_option
def command(
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    node: str | None,
    way: Lane | None,
    output: str,
) -> None:
    """Say what stands in the way of moving namespaces to DRA, or back, and what to do about it. Changes nothing.

    \b
    Examples:
      dra-gate preflight --kubeconfig admin.conf
      dra-gate preflight --snapshot monday.json -o json
      dra-gate preflight --kubeconfig admin.conf --node gpu-7 --to device-plugin
    """
    if (node is None) != (way is None):
        raise click.UsageError("--node says which node and --to to which side: give both")
    if file and policies:
        raise click.UsageError("--snapshot has its policies in it: --policies goes with a live cluster")
    state = state_from(file, kubeconfig, context, policies, with_around=node is None)
    step = ""
    try:
        cluster = Cluster(state)
        if node is None or way is None:
            results = ALL.results(cluster)
        else:
            report = node_report(cluster, node, way)
            results, step = report.results, report.next
    except (SnapshotError, NoSuchNodeError) as error:
        raise Failure(str(error)) from None
    verdict = verdict_of(results)
    if output == "text":
        click.echo(_text(verdict, results, step))
    else:
        body = _body(verdict, results, step)
        click.echo(json.dumps(body, indent=2) if output == "json" else yaml.safe_dump(body, sort_keys=False).rstrip())
    sys.exit(_CODES[verdict])


def _body(verdict: str, results: Sequence[Result], step: str) -> dict[str, Any]:
    checks = [
        {
            "id": one.id,
            "title": one.title,
            "verdict": one.verdict,
            "findings": [
                {"verdict": found.verdict, "subjects": list(found.subjects), "text": found.text}
                for found in one.findings
            ],
            "remedy": one.remedy if one.findings else "",
        }
        for one in results
    ]
    return {"kind": "Preflight", "verdict": verdict, "checks": checks} | ({"next": step} if step else {})


def _text(verdict: str, results: Sequence[Result], step: str) -> str:
    """The gravest first, each with what to do; what is well in one line."""
    lines = []
    for word in ("block", "warn", "unknown"):
        for one in results:
            if one.verdict == word:
                lines += _lines(one)
    well = [one.id for one in results if one.verdict == "ok"]
    bad = {word: sum(one.verdict == word for one in results) for word in ("block", "warn", "unknown")}
    told = [
        *([f"{many(bad['block'], 'check')} in the way"] if bad["block"] else []),
        *([many(bad["warn"], "warning")] if bad["warn"] else []),
        *([f"{bad['unknown']} that cannot be seen from here"] if bad["unknown"] else []),
        *([f"{len(well)} well"] if well else []),
    ]
    head = click.style(_SAID[verdict], fg=_HEADS[verdict], bold=True)
    ends = [f"well: {', '.join(well)}"] if well else []
    return "\n".join([f"{head}: {listed(told)}", *lines, *ends, *([f"next: {step}"] if step else [])])


def _lines(one: Result) -> list[str]:
    """A finding that is less grave than the first says so itself."""
    word = click.style(f"{_WORDS[one.verdict]:6}", fg=_COLOURS[one.verdict], bold=True)
    first, *rest = (
        str(found) if found.verdict == one.verdict else f"({_WORDS[found.verdict]}) {found}" for found in one.findings
    )
    return [f"{word} {one.id}: {first}", *(f"       {found}" for found in rest), f"       → {one.remedy}"]
