"""`dra-gate policy publish | list | activate | rollback | withdraw | history`: policy sets in a cluster.

What counts is what the API server has stored: sets are loaded from there and verified before one is activated, and
nothing is written over a Gate that changed meanwhile.
"""

from __future__ import annotations

import datetime as dt
import heapq
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from dra_gate.cli.failure import Failure
from dra_gate.cli.gate_change import asked, rewrite, stored_gate, user_of
from dra_gate.cli.options import connect, kubeconfig_options, load_policies, output_option
from dra_gate.cli.policy.files import finding_entry, folder_argument, live_cluster, report, today
from dra_gate.cli.text import plain, printed
from dra_gate.cluster.client import Client, ClusterError, Conflict
from dra_gate.cluster.gate import (
    Activation,
    Gate,
    read_gate,
    with_active,
    with_withdrawn,
)
from dra_gate.cluster.policy_map import (
    MAPS_PATH,
    NAMESPACE,
    PREFIX,
    PUBLISHED_AT,
    PUBLISHED_BY,
    SELECTOR,
    SUMMARY,
    RefusedError,
    UnpublishableError,
    name_of,
    policy_map,
    read_policy_map,
)
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.lint import lint, lint_exceptions
from dra_gate.policy.load import read_folder
from dra_gate.policy.model import PolicySet
from dra_gate.policy.summary import summary

SHOWN = 12  # digits of a digest that people read
WAIT_SECONDS = 60.0

_wait = click.option(
    "--wait", is_flag=True, help=f"Wait until the set's templates are in place, at most {WAIT_SECONDS:.0f} s."
)
_note = click.option("--note", metavar="TEXT", default="", help="Why, for the history.")
_pin_old = click.option(
    "--pin-old", is_flag=True, help="Go on honouring the set that was active until somebody takes it out of the Gate."
)


@click.command(name="publish")
@folder_argument
@click.option("--activate", is_flag=True, help="Make it the active set at once.")
@_note
@_wait
@click.option("--no-lint", is_flag=True, help="Don't hold the policies against the cluster's devices first.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the manifests; no cluster is asked or changed."
)
@kubeconfig_options
def publish_command(
    folder: Path,
    activate: bool,
    note: str,
    wait: bool,
    no_lint: bool,
    output: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Put a policy folder into the cluster: an immutable ConfigMap, named by the digest of its content.

    Published is not active: nothing changes for anybody before it is activated. Doing it again changes nothing.
    Exit code 1: the policies don't fit the cluster, or --wait waited in vain; 2: they can't be published.

    \b
    Examples:
      dra-gate policy publish policies/
      dra-gate policy publish policies/ --activate --wait --note "H200 for research"
      dra-gate policy publish policies/ --activate -o yaml > cluster/policy.yaml
    """
    policy_set = load_policies(str(folder))
    files = read_folder(folder)
    _refuse_ended(policy_set, folder)
    if output is not None:
        if note or wait:
            raise click.UsageError("manifests carry no note and nobody waits for them: the commit says why")
        _print_manifests(_made(policy_set, files, {}), policy_set.digest if activate else "", output)
        return
    client = connect(kubeconfig, context)
    if not no_lint:
        _lint(client, policy_set, folder)
    gate = asked(lambda: stored_gate(client))
    who = asked(lambda: user_of(client))
    annotations = {PUBLISHED_AT: _now(), SUMMARY: summary(_active_set(client, gate), policy_set)}
    if who:
        annotations[PUBLISHED_BY] = who
    digest = policy_set.digest
    try:
        asked(lambda: client.create(MAPS_PATH, _made(policy_set, files, annotations)))
        new = True
        click.echo(f"{digest} is published: {annotations[SUMMARY]}")
    except Conflict:
        new = False
        _verified(_published_map(client, digest))
        click.echo(f"{digest} is published already")
    # The controller makes templates for newly published sets beforehand, once there is a Gate to report in.
    beforehand = new and gate is not None
    if wait and (beforehand or not activate):
        _wait_for_templates(client, digest)
    if activate:
        generation = _activate(client, digest, who=who, note=note)
        if wait and not beforehand:
            _wait_for_templates(client, digest, generation)
    elif gate is None or read_gate(gate).active != digest:
        click.echo(f"it is not active: dra-gate policy activate {digest[:12]} gives it to new Pods", err=True)


@click.command(name="list")
@output_option
@kubeconfig_options
def list_command(output: str, kubeconfig: str | None, context: str | None) -> None:
    """Show the published policy sets, the newest first, and what each is to the Gate.

    \b
    Example:
      dra-gate policy list
    """
    client = connect(kubeconfig, context)
    gate, maps = asked(lambda: stored_gate(client)), asked(lambda: _maps(client))
    seen = None if gate is None else read_gate(gate)
    entries = [_listed(obj, seen) for obj in maps]
    if seen is not None:
        missing = [digest for digest in seen.named if not any(digest == entry["digest"] for entry in entries)]
        entries += [{"digest": digest, "state": f"{_state(digest, seen)}, not published"} for digest in missing]
    if output != "text":
        printed(list(entries), output)
        return
    rows = [
        (
            str(entry["digest"])[:SHOWN],
            str(entry["state"]),
            str(entry.get("publishedAt", "")),
            str(entry.get("publishedBy", "")),
            str(entry.get("refused") or entry.get("summary", "")),
        )
        for entry in entries
    ]
    _table(("SET", "STATE", "PUBLISHED", "BY", "WHAT"), rows, "no policy set is published")


@click.command(name="activate")
@click.argument("digest", metavar="DIGEST")
@_note
@_pin_old
@_wait
@kubeconfig_options
def activate_command(
    digest: str, note: str, pin_old: bool, wait: bool, kubeconfig: str | None, context: str | None
) -> None:
    """Make a published set the active one: new Pods get it within a second. DIGEST may be a beginning that is unique.

    Pods that are being admitted under the set that was active are honoured for a minute, or longer with --pin-old.

    \b
    Examples:
      dra-gate policy activate 2d835297c92c
      dra-gate policy activate 2d835297c92c --note "after the H200s were added" --wait
    """
    client = connect(kubeconfig, context)
    obj = _by_prefix(asked(lambda: _maps(client)), digest)
    chosen = _verified(obj).digest
    generation = _activate(client, chosen, who=asked(lambda: user_of(client)), note=note, pin_old=pin_old)
    if wait:
        _wait_for_templates(client, chosen, generation)


@click.command(name="rollback")
@_note
@_pin_old
@_wait
@kubeconfig_options
def rollback_command(note: str, pin_old: bool, wait: bool, kubeconfig: str | None, context: str | None) -> None:
    """Activate the set that was active before the present one. Twice is back again.

    \b
    Example:
      dra-gate policy rollback --note "training jobs don't start"
    """
    client = connect(kubeconfig, context)
    raw = asked(lambda: stored_gate(client))
    gate = None if raw is None else read_gate(raw)
    if gate is None:
        raise Failure("nothing was ever activated")
    # Where no controller keeps the history, the accepted set is what the last activation replaced.
    previous = gate.previous or next((entry.digest for entry in reversed(gate.accepted)), "")
    if gate.history and gate.history[0].digest != gate.active:
        previous = gate.history[0].digest  # the present one never took effect
    if not previous:
        raise Failure("there is no set to go back to: the history names one only")
    chosen = _verified(_published_map(client, previous)).digest
    generation = _activate(client, chosen, who=asked(lambda: user_of(client)), note=note, pin_old=pin_old)
    if wait:
        _wait_for_templates(client, chosen, generation)


@click.command(name="withdraw")
@click.argument("digest", metavar="DIGEST")
@_note
@kubeconfig_options
def withdraw_command(digest: str, note: str, kubeconfig: str | None, context: str | None) -> None:
    """Honour an accepted set no more, pinned or not. DIGEST may be a beginning that is unique.

    Pods that are being admitted under it are refused from then on; running ones are not touched, and the set stays
    published. The active set can't be withdrawn: activate another first.

    \b
    Example:
      dra-gate policy withdraw 2d835297c92c --note "its memory floor is too low"
    """
    client = connect(kubeconfig, context)
    who = asked(lambda: user_of(client))
    chosen = ""

    def change(stored: Object | None) -> dict[str, Any]:
        nonlocal chosen
        if stored is None:
            raise Failure("nothing was ever activated, so there is nothing to withdraw")
        chosen = _accepted(read_gate(stored), digest)
        return with_withdrawn(stored, Activation(chosen, _now(), who, note[:1024]))

    rewrite(client, change)
    click.echo(f"{chosen} is withdrawn: Pods that are stamped with it are refused")


@click.command(name="history")
@output_option
@kubeconfig_options
def history_command(output: str, kubeconfig: str | None, context: str | None) -> None:
    """Show which sets were activated or withdrawn, the newest first: when, by whom, and what changed.

    Who and why are what the command or the manifest said; the API server's audit log is the proof.

    \b
    Example:
      dra-gate policy history
    """
    client = connect(kubeconfig, context)
    raw = asked(lambda: stored_gate(client))
    gate = None if raw is None else read_gate(raw)
    entries = [] if gate is None else _history(client, gate)
    if gate is not None and (not gate.history or gate.history[0].digest != gate.active):
        why = next(
            (text(e.get("message")) for e in _status_sets(gate.status) if e.get("digest") == gate.active), ""
        ) or ("no controller has seen it take effect")
        click.echo(f"note: {gate.active[:SHOWN]} is named active, and is not in the history: {plain(why)}", err=True)
    if output != "text":
        printed(list(entries), output)
        return
    rows = [(e["at"], e["by"], e["digest"][:SHOWN], e["change"], e["note"]) for e in entries]
    _table(("AT", "BY", "SET", "CHANGE", "NOTE"), rows, "nothing was activated yet")


# -- the cluster ------------------------------------------------------------------------------------------------------


def _maps(client: Client) -> list[dict[str, Any]]:
    found = list(client.list(MAPS_PATH, params={"labelSelector": SELECTOR}))
    return sorted(found, key=lambda obj: (text(at(obj, "metadata", "creationTimestamp")), _name(obj)), reverse=True)


def _published_map(client: Client, digest: str) -> Object:
    try:
        return asked(lambda: client.get(f"{MAPS_PATH}/{name_of(digest)}"))
    except Failure:
        raise Failure(f"policy set {digest[:SHOWN]} is not published") from None


def _verified(obj: Object) -> PolicySet:
    try:
        return read_policy_map(obj)
    except RefusedError as error:
        raise Failure(
            f"{_name(obj)} can't be used ({error.refusal.code}): {plain(error.refusal.message)}\n"
            f"To mend it: kubectl -n {NAMESPACE} delete configmap {_name(obj)}, and publish the policies again"
        ) from None


def _by_prefix(maps: Sequence[Object], wanted: str) -> Object:
    prefix = wanted.removeprefix(PREFIX).lower()
    found = [obj for obj in maps if prefix and _name(obj).startswith(PREFIX + prefix)]
    if not found:
        raise Failure(f"no published policy set begins with {wanted}: see dra-gate policy list")
    if len(found) > 1:
        raise Failure(f"{wanted} is the beginning of {', '.join(_name(obj)[len(PREFIX) :][:SHOWN] for obj in found)}")
    return found[0]


def _accepted(gate: Gate, wanted: str) -> str:
    """The accepted set whose digest begins with `wanted`. A set may be accepted and published no more."""
    prefix = wanted.removeprefix(PREFIX).lower()
    found = [digest for digest in gate.named if prefix and digest.startswith(prefix)]
    if len(found) > 1:
        raise Failure(f"{wanted} is the beginning of {', '.join(digest[:SHOWN] for digest in found)}")
    if not found:
        raise Failure(f"no accepted policy set begins with {wanted}: see dra-gate policy list")
    if found[0] == gate.active:
        raise Failure(
            f"{found[0][:SHOWN]} is the active policy set, which new Pods get: activate another first "
            "(dra-gate policy activate, or rollback)"
        )
    return found[0]


def _activate(client: Client, digest: str, *, who: str, note: str, pin_old: bool = False) -> int:
    """Write the Gate so that `digest` is active; the generation of the Gate that says so."""

    def change(stored: Object | None) -> dict[str, Any] | None:
        if stored is not None and at(stored, "spec", "active") == digest:
            return None
        try:
            return with_active(stored, digest, by=who, note=note[:1024], pin_old=pin_old)
        except ValueError as error:
            raise Failure(str(error)) from None

    stored, written = rewrite(client, change)
    if written is None:
        click.echo(f"{digest} is active already")
        return read_gate(stored).generation
    before = text(at(stored, "spec", "active"))
    click.echo(f"{digest} is active" + (f", instead of {before[:SHOWN]}" if before else ""))
    return read_gate(written).generation


def _wait_for_templates(client: Client, digest: str, generation: int = 0) -> None:
    """Wait until the controller, having seen the Gate's `generation`, reports that the set lacks no template."""
    ends = time.monotonic() + WAIT_SECONDS
    said = "no controller has reported: does dra-gate controller run?"
    while time.monotonic() < ends:
        raw = asked(lambda: stored_gate(client))
        status = mapping(at(raw, "status"))
        observed = status.get("observedGeneration")
        if isinstance(observed, int) and observed >= generation:
            entry = next((e for e in _status_sets(status) if e.get("digest") == digest), {})
            missing = entry.get("templatesMissing")
            if missing == 0:
                click.echo("its templates are in place")
                return
            said = text(entry.get("message")) or f"{'its' if missing is None else missing} templates are not in place"
        time.sleep(0.2)
    click.echo(f"waited {WAIT_SECONDS:.0f} s for the templates of {digest[:SHOWN]}: {plain(said)}", err=True)
    raise click.exceptions.Exit(1)


def _refuse_ended(policy_set: PolicySet, folder: Path) -> None:
    """An exception that has ended must not come back with a new set, nor be forgotten in it."""
    found = lint_exceptions(policy_set, today())
    if found:
        report([finding_entry(finding) for finding in found], folder, "text")
    if any(finding.severity == "error" for finding in found):
        raise Failure("not published: exceptions have ended")


def _lint(client: Client, policy_set: PolicySet, folder: Path) -> None:
    findings = lint(policy_set, live_cluster(client))
    worth = [finding_entry(finding) for finding in findings if finding.severity != "note"]
    if worth:
        report(worth, folder, "text")
    if any(entry["severity"] == "error" for entry in worth):
        click.echo(
            "not published: the policies don't fit this cluster (--no-lint publishes them all the same)", err=True
        )
        raise click.exceptions.Exit(1)


def _active_set(client: Client, gate: Object | None) -> PolicySet | None:
    """The set that is active now, as far as it can be read: it is only for telling what changes."""
    digest = text(at(gate, "spec", "active"))
    return _readable(client, digest) if digest else None


def _readable(client: Client, digest: str) -> PolicySet | None:
    try:
        return read_policy_map(client.get(f"{MAPS_PATH}/{name_of(digest)}"))
    except (ClusterError, RefusedError):
        return None


# -- what is shown ----------------------------------------------------------------------------------------------------


def _history(client: Client, gate: Gate) -> list[dict[str, str]]:
    maps = {_name(obj): obj for obj in asked(lambda: _maps(client))}
    sets: dict[str, PolicySet | None] = {}

    def found(digest: str) -> PolicySet | None:
        if digest not in sets:
            try:
                sets[digest] = read_policy_map(maps[name_of(digest)])
            except (KeyError, RefusedError):
                sets[digest] = None
        return sets[digest]

    entries = []
    for number, activation in enumerate(gate.history):
        older = gate.history[number + 1].digest if number + 1 < len(gate.history) else ""
        after, before = found(activation.digest), found(older) if older else None
        if after is None:
            change = "no longer published"
        elif older and before is None:
            change = _annotation(maps[name_of(activation.digest)], SUMMARY)
        else:
            change = summary(before, after)
        entries.append(_row(activation, change))
    # By time, and each list in its own order all the same: the clocks of those who wrote them differ.
    withdrawn = (_row(withdrawal, "withdrawn: no longer accepted") for withdrawal in gate.withdrawals)
    return list(heapq.merge(withdrawn, entries, key=lambda entry: entry["at"], reverse=True))


def _row(event: Activation, change: str) -> dict[str, str]:
    return {
        "at": plain(event.at),
        "by": plain(event.by) or "unknown",
        "digest": plain(event.digest),
        "change": change,
        "note": plain(event.note),
    }


def _listed(obj: Object, gate: Gate | None) -> dict[str, Any]:
    digest = _name(obj).removeprefix(PREFIX)
    entry: dict[str, Any] = {
        "digest": digest,
        "state": _state(digest, gate),
        "publishedAt": _annotation(obj, PUBLISHED_AT) or text(at(obj, "metadata", "creationTimestamp")),
        "publishedBy": _annotation(obj, PUBLISHED_BY),
        "summary": _annotation(obj, SUMMARY),
    }
    try:
        read_policy_map(obj)
    except RefusedError as error:
        entry["state"] += ", refused"
        entry["refused"] = f"{error.refusal.code}: {plain(error.refusal.message)}"
    return entry


def _state(digest: str, gate: Gate | None) -> str:
    if gate is not None and digest == gate.active:
        return "active"
    for entry in gate.accepted if gate is not None else ():
        if entry.digest == digest:
            return "accepted, pinned" if entry.pinned else "accepted"
    return "published"


def _status_sets(status: Object) -> list[Object]:
    return [mapping(entry) for entry in sequence(status.get("sets"))]


def _made(policy_set: PolicySet, files: dict[str, bytes], annotations: dict[str, str]) -> dict[str, Any]:
    try:
        return policy_map(policy_set.digest, files, annotations)
    except UnpublishableError as error:
        raise Failure(f"the policies can't be published: {error}") from None


def _print_manifests(obj: dict[str, Any], active: str, output: str) -> None:
    manifests = [obj, *([with_active(None, active)] if active else [])]
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2, ensure_ascii=False))
    else:
        click.echo(yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=200), nl=False)


class _Dumper(yaml.SafeDumper):
    """Files as blocks: whoever reviews the manifest reads the policies in it."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], nothing: str) -> None:
    if not rows:
        click.echo(nothing)
        return
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _annotation(obj: Object, key: str) -> str:
    return plain(text(at(obj, "metadata", "annotations", key)))


def _name(obj: Object) -> str:
    return text(at(obj, "metadata", "name"))


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
