"""`dra-gate policy lint | render | release | schema`: what needs no more than the files."""

from __future__ import annotations

import json
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from dra_gate.cli.failure import Failure
from dra_gate.cli.options import cluster_options, connect, load_policies, output_option
from dra_gate.cluster.client import Client, ClusterError, NotFound
from dra_gate.cluster.files import InputError, load_manifests
from dra_gate.policy.compile import compile_template
from dra_gate.policy.errors import PolicyError
from dra_gate.policy.fence import fence
from dra_gate.policy.lint import Cluster, Finding, cluster_of, lint, lint_exceptions
from dra_gate.policy.load import RELEASED, PolicyErrors, load_with_warnings, read_folder, read_released
from dra_gate.policy.model import MAX_DEVICES, PolicySet, Tenant
from dra_gate.policy.schemas import ALL_KINDS, schema

_COLOURS = {"error": "red", "warning": "yellow", "note": "bright_black"}
_DRA = "/apis/resource.k8s.io/v1/"
folder_argument = click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.command(name="lint")
@folder_argument
@cluster_options
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@output_option
def lint_command(
    folder: Path, cluster: Sequence[str], kubeconfig: str | None, context: str | None, strict: bool, output: str
) -> None:
    """Report what is wrong with a policy folder, and how it fits what a cluster publishes.

    Without a cluster the files alone are checked. With one, every model and candidate is evaluated against the
    published devices. Exit code 0: no errors; 1: errors against the cluster; 2: the files themselves are wrong.

    \b
    Examples:
      dra-gate policy lint policies/
      dra-gate policy lint policies/ --cluster dump/ -o json
    """
    if cluster and (kubeconfig or context):
        raise click.UsageError("--cluster reads files and --kubeconfig a live cluster: give one of the two")
    try:
        policy_set, warnings = load_with_warnings(folder)
    except PolicyErrors as errors:
        report([policy_entry("error", "POLICY", error) for error in errors.errors], folder, output)
        raise click.exceptions.Exit(2) from None
    entries = [policy_entry("warning", "POLICY", warning) for warning in warnings]
    entries += [finding_entry(finding) for finding in lint_exceptions(policy_set, today())]
    if cluster or kubeconfig or context:
        seen = _from_files(cluster) if cluster else live_cluster(connect(kubeconfig, context))
        entries += [finding_entry(finding) for finding in lint(policy_set, seen)]
    report(entries, folder, output)
    failing = ("error", "warning") if strict else ("error",)
    if any(entry["severity"] in failing for entry in entries):
        raise click.exceptions.Exit(1)


@click.command(name="render")
@folder_argument
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
@click.option("-n", "--namespace", metavar="NAME", help="Only this namespace.")
@click.option(
    "--count",
    "counts",
    type=click.IntRange(1, MAX_DEVICES),
    multiple=True,
    help="Devices per claim; may be repeated.  [default: 1 to 8]",
)
@click.option("--resourcequota", is_flag=True, help="Print core ResourceQuotas instead: a second fence, coarse.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def render_command(
    folder: Path, tenant: str | None, namespace: str | None, counts: Sequence[int], resourcequota: bool, output: str
) -> None:
    """Print the ResourceClaimTemplates exactly as they will be in the cluster, or ResourceQuotas around their claims.

    A ResourceQuota allows twice what the gate lets the tenant hold, in each of its namespaces, so that it never bites
    first. What can't be fenced like that is said: in comments, with -o json on standard error.

    \b
    Examples:
      dra-gate policy render policies/ --tenant research --count 2
      dra-gate policy render policies/ -n serving-prod -o json
      dra-gate policy render policies/ --resourcequota | kubectl apply -f -
    """
    if resourcequota and counts:
        raise click.UsageError("--count is about templates, --resourcequota prints none: give one of the two")
    policy_set = load_policies(str(folder))
    owned = list(_owned(policy_set, tenant, namespace))
    if not owned:
        raise Failure("nothing to render: no tenant of these policies fits --tenant and --namespace")
    if resourcequota:
        fences = [fence(policy_set, owner, name) for owner, name in owned]
        manifests = [one.manifest() for one in fences if one.hard]
        notes = [f"{one.tenant}, {one.namespace}: not fenced: {one.why_not}" for one in fences if one.why_not]
        for note in notes:
            click.echo(f"# {note}", err=output == "json" or not manifests)
        if not manifests:
            raise Failure("nothing to render: no tenant can be fenced")
    else:
        manifests = list(_templates(policy_set, owned, counts))
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
    else:
        click.echo(yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=200, allow_unicode=True), nl=False)


@click.command(name="release")
@folder_argument
def release_command(folder: Path) -> None:
    """Add the policy versions that are not yet in RELEASED, with their digests.

    A released version is never edited: one that changed since it was released is an error, and nothing is written.

    \b
    Example:
      dra-gate policy release policies/ && git add policies/RELEASED
    """
    policy_set = load_policies(str(folder))
    before = read_folder(folder).get(RELEASED, b"")
    known, _ = read_released(before)
    new = [policy for ref, policy in policy_set.policies.items() if ref not in known]
    if not new:
        click.echo("nothing new to release")
        return
    lines = [
        f"{policy.ref} sha256:{policy.digest}" for policy in sorted(new, key=lambda p: (p.ref.name, p.ref.version))
    ]
    if not before:
        before = b"# Digests of released policy versions, added by `dra-gate policy release`. Never edit a line.\n"
    separator = b"" if before.endswith(b"\n") else b"\n"
    write_file(folder / RELEASED, before + separator + "".join(f"{line}\n" for line in lines).encode())
    for line in lines:
        click.echo(line)


@click.command(name="schema")
@click.argument("kind", type=click.Choice(ALL_KINDS))
def schema_command(kind: str) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind, for editors and CI.

    \b
    Example:
      dra-gate policy schema DevicePolicy > device-policy.schema.json
    """
    click.echo(json.dumps(schema(kind), indent=2, ensure_ascii=False))


class _Dumper(yaml.SafeDumper):
    """Writes out what appears twice: reviewers do not read aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _owned(policy_set: PolicySet, tenant: str | None, namespace: str | None) -> Iterator[tuple[Tenant, str]]:
    """Tenants and their namespaces that are asked for."""
    if tenant is not None and tenant not in policy_set.tenants:
        raise Failure(f"no tenant {tenant}: there is {', '.join(policy_set.tenants) or 'none'}")
    for owner in policy_set.tenants.values():
        for owned in owner.namespaces:
            if tenant in (None, owner.name) and namespace in (None, owned):
                yield owner, owned


def _templates(
    policy_set: PolicySet, owned: Iterable[tuple[Tenant, str]], counts: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for owner, namespace in owned:
        for ref in owner.valid_refs(namespace):
            policy = policy_set.policies[ref]
            for count in counts or range(1, min(8, policy.max_devices) + 1):
                try:
                    template = compile_template(owner, policy, policy_set.models, count)
                except ValueError as error:
                    raise Failure(f"--count {count}: {error}") from None
                yield template.manifest(namespace)


def policy_entry(severity: str, code: str, error: PolicyError) -> dict[str, Any]:
    place = error.place
    return {
        "severity": severity,
        "code": code,
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "message": error.message,
        "remedy": error.remedy,
    }


def finding_entry(finding: Finding) -> dict[str, Any]:
    place = finding.place
    return {
        "severity": finding.severity,
        "code": finding.code,
        "file": place.file if place else None,
        "line": place.line if place else None,
        "column": place.column if place else None,
        "message": finding.message,
        "remedy": "",
    }


def report(entries: list[dict[str, Any]], folder: Path, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    if output == "yaml":
        click.echo(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=200), nl=False)
        return
    for entry in entries:
        where = "cluster"
        if entry["file"] is not None:
            inside = (folder / entry["file"]).exists()
            where = f"{folder / entry['file'] if inside else folder}:{entry['line']}:{entry['column']}"
        severity = click.style(entry["severity"], fg=_COLOURS[entry["severity"]], bold=True)
        remedy = f"; {entry['remedy']}" if entry["remedy"] else ""
        click.echo(f"{where} {severity}: {entry['message']}{remedy}")
    counted = Counter(entry["severity"] for entry in entries)
    summary = ", ".join(
        f"{counted[severity]} {severity}{'' if counted[severity] == 1 else 's'}"
        for severity in ("error", "warning")
        if counted[severity]
    )
    click.echo(summary or "no errors, no warnings", err=True)


def today() -> int:
    """Days since 1970-01-01 UTC."""
    return int(time.time() // 86_400)


def _from_files(paths: Sequence[str]) -> Cluster:
    try:
        return cluster_of(load_manifests(paths))
    except InputError as error:
        raise Failure(str(error)) from None


def live_cluster(client: Client) -> Cluster:
    """What lint reads of the cluster. Ends the command with exit code 2 where it can't be read."""
    try:
        slices, classes = list(client.list(f"{_DRA}resourceslices")), list(client.list(f"{_DRA}deviceclasses"))
        nodes = list(client.list("/api/v1/nodes"))
        try:
            rules = list(client.list(f"{_DRA}devicetaintrules"))
        except NotFound:  # served from Kubernetes 1.37
            rules = []
    except ClusterError as error:
        raise Failure(f"the cluster cannot be read: {error}") from None
    return Cluster(tuple(slices), tuple(classes), tuple(nodes), tuple(rules))


def write_file(path: Path, content: bytes) -> None:
    """Put `content` in the file's place, in one step: a reader sees the old file or the new one, never half of it.

    A file that is there keeps its mode, and its name if that is a link. Ends the command where it can't be written.
    """
    target = path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(content)
        Path(file.name).chmod(mode)
        Path(file.name).replace(target)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
