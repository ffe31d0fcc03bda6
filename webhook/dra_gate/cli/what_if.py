"""`dra-gate what-if`: what Pods would get, were policies, nodes or devices a little different."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import click
import yaml

from dra_gate.allocation.changes import ChangeError, with_healthy, with_node_like, with_policies, without
from dra_gate.allocation.snapshot import SnapshotError, with_objects
from dra_gate.allocation.state import State
from dra_gate.allocation.what_if import Forecast, forecasts
from dra_gate.cli.explain import pod_name
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import kubeconfig_options, output_option
from dra_gate.cli.state import folder_set, state_from
from dra_gate.cluster.files import InputError, load_manifests


@click.command(name="what-if", epilog="Exit codes: 0 told, 2 the input is wrong.")
@click.argument("pods", nargs=-1, metavar="[NAMESPACE/NAME...]")
@click.option("--all-waiting", is_flag=True, help="Ask about every Pod that waits.")
@click.option("--snapshot", "file", metavar="FILE", help="Ask about what `dra-gate snapshot` saved.")
@kubeconfig_options
@click.option("--policies", metavar="DIR", help="Were these the policies, and the waiting Pods created under them.")
@click.option(
    "--add", "--add-node", multiple=True, metavar="PATH", help="Were these objects there: nodes, slices, Pods."
)
@click.option("--like", multiple=True, metavar="NODE", help="Was there one more node like NODE, empty.")
@click.option("--healthy", multiple=True, metavar="POOL/DEVICE", help="Was this device without taints.")
@click.option("--remove", multiple=True, metavar="WHAT", help="Was it gone: node/N, pod/NAMESPACE/N, device/POOL/N.")
@output_option
def command(
    pods: tuple[str, ...],
    all_waiting: bool,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    add: tuple[str, ...],
    like: tuple[str, ...],
    healthy: tuple[str, ...],
    remove: tuple[str, ...],
    output: str,
) -> None:
    """Say what Pods would get: as things are, and with the changes.

    \b
    Examples:
      dra-gate what-if --snapshot monday.json --like gpu-7 --all-waiting
      dra-gate what-if --snapshot monday.json --policies next/ research-train/train-0
      dra-gate what-if --kubeconfig admin.conf --healthy gpu-7/gpu-3 research-train/train-0
    """
    if bool(pods) == all_waiting:
        raise click.UsageError("name Pods as NAMESPACE/NAME, or give --all-waiting")
    names = None if all_waiting else [pod_name(pod) for pod in pods]
    state = state_from(file, kubeconfig, context, None)
    try:
        changed = _added(state, add)
        for node in like:
            changed = with_node_like(changed, node)
        for device in healthy:
            changed = with_healthy(changed, device)
        for what in remove:
            changed = without(changed, what)
        if policies:
            changed = with_policies(changed, *folder_set(policies))
        before = forecasts(state, None if names is None else _known(state, names))
        _print(before, forecasts(changed, names), output)
    except (ChangeError, SnapshotError) as error:
        raise Failure(str(error)) from None


def _added(state: State, paths: Sequence[str]) -> State:
    try:
        return replace(state, snapshot=with_objects(state.snapshot, load_manifests(paths)))
    except InputError as error:
        raise Failure(str(error)) from None


def _known(state: State, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of `names` that are there before the change: it may bring the Pod along."""
    there = {(pod["metadata"].get("namespace", ""), pod["metadata"]["name"]) for pod in state.snapshot.pods}
    return [name for name in names if name in there]


def _print(before: Sequence[Forecast], after: Sequence[Forecast], output: str) -> None:
    was = {(one.namespace, one.pod): one for one in before}
    entries = [
        {"now": asdict(old) if old is not None else None, "then": asdict(one)}
        for one in after
        for old in (was.get((one.namespace, one.pod)),)
    ]
    if output == "json":
        click.echo(json.dumps(entries, indent=2))
    elif output == "yaml":
        click.echo(yaml.safe_dump(json.loads(json.dumps(entries)), sort_keys=False), nl=False)
    else:
        for one in after:
            click.echo(_text(was.get((one.namespace, one.pod)), one))


def _text(old: Forecast | None, new: Forecast) -> str:
    name = f"Pod {new.namespace}/{new.pod}"
    if old is not None and (old.got, old.node, old.why) == (new.got, new.node, new.why):
        return f"{name}: no difference: {_said(new)}"
    lines = [f"{name}"]
    if old is not None:
        lines.append(f"  now:  {_said(old)}")
    lines.append(f"  then: {_said(new)}")
    lines += [f"        {chance}" for chance in new.chance]
    return "\n".join(lines)


def _said(one: Forecast) -> str:
    if not one.node:
        return f"waits: {one.why}"
    others = f" (or {len(one.nodes) - 1} more as good)" if len(one.nodes) > 1 else ""
    return f"on {one.node}{others}: {'; '.join(one.got)}"
