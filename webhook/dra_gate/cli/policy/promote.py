"""`dra-gate policy promote`: a tenant's canary becomes its policy, in the files that people review."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

import click

from dra_gate.cli.failure import Failure
from dra_gate.cli.options import load_policies
from dra_gate.cli.policy.diff import told
from dra_gate.cli.policy.files import finding_entry, policy_entry, report, today, write_file
from dra_gate.policy.diff import compare
from dra_gate.policy.lint import lint_exceptions
from dra_gate.policy.load import RELEASED, PolicyErrors, PolicyWarning, load_documents_with_warnings, read_folder
from dra_gate.policy.model import PolicyRef, PolicySet
from dra_gate.policy.promote import PromotionError, drop, promote
from dra_gate.policy.words import listed


def _ref(_context: click.Context, _option: click.Parameter, value: str | None) -> PolicyRef | None:
    if value is None:
        return None
    name, _, version = value.rpartition("@")
    if not name or not version.isascii() or not version.isdigit():
        raise click.BadParameter("write a policy and its version, such as training@8")
    return PolicyRef(name, int(version))


@click.command(
    name="promote",
    epilog="Exit codes: 0 done, 1 done, but an exception has ended, so that it can't be published; "
    "2 refused, and nothing is changed.",
)
@click.argument("tenants", metavar="TENANT…", nargs=-1, required=True)
@click.option(
    "--policies", "folder", metavar="DIR", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--to",
    metavar="NAME@VERSION",
    callback=_ref,
    help="The version that is meant: one whose canary is another is refused, one without canary gets it.",
)
@click.option("--drop", "dropped", is_flag=True, help="End the canary the other way: the policy stays what it is.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
def promote_command(tenants: tuple[str, ...], folder: Path, to: PolicyRef | None, dropped: bool, dry_run: bool) -> None:
    """Make the canary's policy version the tenant's own: policy, keepVersions and canary in the Tenant's file.

    The version that the tenant had goes into keepVersions, as Pods that run still name it. Comments and layout stay,
    but for those on the lines of the canary. Nothing is published: that is the next step, after review.

    \b
    Examples:
      dra-gate policy promote lilac --policies policies/ --dry-run
      dra-gate policy promote lilac mint --policies policies/ --to training@8
      dra-gate policy promote lilac --policies policies/ --drop
    """
    if dropped and to is not None:
        raise click.UsageError("--drop keeps the policy, --to gives another: give one of the two")
    before = load_policies(str(folder))
    files = read_folder(folder)
    try:
        changed = drop(files, before, tenants) if dropped else promote(files, before, tenants, to)
    except PromotionError as error:
        raise Failure(str(error)) from None
    after, warnings = _loaded({**files, **changed}, folder)
    known = {warning.message for warning in _loaded(files, folder)[1]}
    for name, content in changed.items():
        click.echo(_unified(name, files[name], content), nl=False)
    click.echo("\n" + told(compare(before, after)))
    findings = lint_exceptions(after, today())
    entries = [policy_entry("warning", "POLICY", one) for one in warnings if one.message not in known]
    report([*entries, *map(finding_entry, findings)], folder, "text")
    if dry_run:
        click.echo("nothing was written (--dry-run)")
    else:
        for name, content in changed.items():
            write_file(folder / name, content)
        click.echo(f"{listed(changed)} written; once that is reviewed: dra-gate policy publish {folder} --activate")
    if any(finding.severity == "error" for finding in findings):
        raise click.exceptions.Exit(1)


def _loaded(files: Mapping[str, bytes], folder: Path) -> tuple[PolicySet, tuple[PolicyWarning, ...]]:
    """The set that the files make; one that does not load ends the command."""
    documents = {name: content for name, content in files.items() if name != RELEASED}
    try:
        return load_documents_with_warnings(documents, files.get(RELEASED), folder.name)
    except PolicyErrors as errors:
        report([policy_entry("error", "POLICY", error) for error in errors.errors], folder, "text")
        raise Failure("nothing is changed: the result would not load") from None


def _unified(name: str, before: bytes, after: bytes) -> str:
    """As `diff -u` has it."""
    old, new = (content.decode().splitlines(keepends=True) for content in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
