"""`dra-gate policy test`: the cases beside a policy folder, judged as the gate would judge them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import click

from dra_gate.admission.coverage import Coverage, Result, coverage, examine
from dra_gate.admission.replay import replay
from dra_gate.admission.request import BadRequest
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import gate_tenants, load_policies
from dra_gate.cli.policy.files import folder_argument
from dra_gate.cli.review import requests_of
from dra_gate.cluster.facts import World
from dra_gate.fairness.charge import Charge
from dra_gate.policy.cases import Case, read_cases
from dra_gate.policy.lint import cluster_of
from dra_gate.policy.load import PolicyErrors, read_folder
from dra_gate.policy.model import PolicySet
from dra_gate.policy.report import printable


@dataclass(frozen=True, slots=True)
class _Run:
    """The cases of one policy folder and what came of them."""

    folder: Path
    results: tuple[Result, ...]
    coverage: Coverage


@click.command(name="test", epilog="Exit codes: 0 every case holds, 1 some case does not, 2 input or policy error.")
@folder_argument
@click.option("-o", "--output", type=click.Choice(["text", "json", "junit"]), default="text", show_default=True)
def test_command(folder: Path, output: str) -> None:
    """Run the cases in DIR/tests/ (and in folders tests/ further down), and say what of the policies none touches.

    Each is judged by the policies of the folder that holds tests/, or of the nearest one around it that has any.

    \b
    Examples:
      dra-gate policy test policies/
      dra-gate policy test policies/ -o junit > policy-tests.xml
    """
    runs = [_run(owner, tests) for owner, tests in _folders(folder)]
    if not any(run.results for run in runs):
        raise Failure(f"no cases: write some into {folder / 'tests'}/, kind: PolicyTest")
    {"text": _text, "json": _json, "junit": _junit}[output](runs)
    if any(result.mismatches for run in runs for result in run.results):
        raise click.exceptions.Exit(1)


def _folders(folder: Path) -> list[tuple[Path, list[Path]]]:
    """Folders of policies, each with the folders `tests` that are judged by it."""
    found: dict[Path, list[Path]] = {}
    for tests in sorted(path for path in (folder, *folder.rglob("tests")) if path.name == "tests" and path.is_dir()):
        around = [path for path in tests.parents if path == folder or folder in path.parents]
        owner = next((path for path in around if _has_policies(path)), folder)
        found.setdefault(owner, []).append(tests)
    return list(found.items())


def _has_policies(folder: Path) -> bool:
    return any(path.suffix in (".yaml", ".yml") for path in folder.iterdir() if path.is_file())


def _run(folder: Path, tests: Sequence[Path]) -> _Run:
    policy_set = load_policies(str(folder))
    try:
        files = {
            str((path / name).relative_to(folder)): content
            for path in tests
            for name, content in read_folder(path).items()
            if name.endswith((".yaml", ".yml"))
        }
        cases = read_cases(files, policy_set)
    except PolicyErrors as errors:
        click.echo("\n".join(f"{folder}/{error}" for error in errors.errors), err=True)
        raise click.exceptions.Exit(2) from None
    worlds: dict[tuple[int, ...], World] = {}  # cases of one document share its facts
    results = tuple(_judge(case, policy_set, worlds) for case in cases)
    return _Run(folder, results, coverage(policy_set, results))


def _judge(case: Case, policy_set: PolicySet, worlds: dict[tuple[int, ...], World]) -> Result:
    key = tuple(map(id, case.facts))
    if key not in worlds:
        worlds[key] = World(policy_set)
        gate_tenants(worlds[key], (policy_set,))
        for manifest in case.facts:
            worlds[key].apply(manifest)
    facts = worlds[key].facts()
    used = {tenant: Charge(devices) for tenant, devices in case.used.items()}
    counted = {tenant: view for tenant, view in facts.ledgers.items() if tenant not in used}
    facts = replace(facts, used={**facts.used, **used}, ledgers=counted)
    try:
        sender = (case.user, case.groups)
        _, request = next(requests_of(dict(case.document), sender, case.namespace, policy_set.settings))
    except BadRequest as error:
        raise Failure(f"{case.place} {case.name}: {error}") from None
    return examine(case, replay(request, facts), policy_set, cluster_of(case.facts))


# -- output -----------------------------------------------------------------------------------------------------------


def _text(runs: Sequence[_Run]) -> None:
    for run in runs:
        for result in run.results:
            word = click.style("FAIL", fg="red", bold=True) if result.mismatches else click.style("ok  ", fg="green")
            click.echo(f"{word} {run.folder}/{result.case.place}  {printable(result.case.name)}")
            for wrong in result.mismatches:
                click.echo(f"       {wrong.word}: expected {wrong.expected}")
                click.echo(f"       {' ' * len(wrong.word)}  found    {wrong.found}")
        click.echo(f"\nnot touched by any case in {run.folder}:")
        for kind, names in run.coverage.untouched.items():
            click.echo(f"  {len(names)} of {run.coverage.total[kind]} {kind}{': ' if names else ''}{', '.join(names)}")
        click.echo()
    results = [result for run in runs for result in run.results]
    failed = sum(bool(result.mismatches) for result in results)
    click.echo(f"{len(results)} cases, {failed} failed")


def _json(runs: Sequence[_Run]) -> None:
    click.echo(json.dumps([_entry(run) for run in runs], indent=2, ensure_ascii=False))


def _entry(run: _Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "cases": [
            {
                "name": result.case.name,
                "file": result.case.place.file,
                "line": result.case.place.line,
                "passed": not result.mismatches,
                "mismatches": [
                    {"word": wrong.word, "expected": wrong.expected, "found": wrong.found}
                    for wrong in result.mismatches
                ],
                "found": found_entry(result),
            }
            for result in run.results
        ],
        "untouched": {kind: list(names) for kind, names in run.coverage.untouched.items()},
        "total": dict(run.coverage.total),
    }


def found_entry(result: Result) -> dict[str, Any]:
    """What came out, in the words of `expect`."""
    found = result.replay
    return {
        "verdict": found.verdict,
        "reasons": list(found.reasons),
        "claims": list(found.claims),
        "candidates": list(found.candidates),
    }


def _junit(runs: Sequence[_Run]) -> None:
    # The form that CI systems read: https://github.com/testmoapp/junitxml
    click.echo('<?xml version="1.0" encoding="UTF-8"?>')
    click.echo("<testsuites>")
    for run in runs:
        failed = sum(bool(result.mismatches) for result in run.results)
        click.echo(f'  <testsuite name={_attribute(run.folder)} tests="{len(run.results)}" failures="{failed}">')
        for result in run.results:
            click.echo("\n".join(_junit_case(result)))
        click.echo("  </testsuite>")
    click.echo("</testsuites>")


def _junit_case(result: Result) -> Iterator[str]:
    place = result.case.place
    head = f'    <testcase classname={_attribute(place.file)} name={_attribute(result.case.name)} line="{place.line}"'
    if not result.mismatches:
        yield f"{head}/>"
        return
    yield f"{head}>"
    said = "; ".join(f"{wrong.word}: expected {wrong.expected}, found {wrong.found}" for wrong in result.mismatches)
    yield f"      <failure message={_attribute(said)}/>"
    yield "    </testcase>"


def _attribute(value: object) -> str:
    return quoteattr(printable(str(value)))
