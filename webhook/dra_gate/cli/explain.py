"""`dra-gate explain`: why a Pod got what it got, or waits."""

from __future__ import annotations

import json
import sys

import click
import yaml

from dra_gate.allocation.chain import text_of
from dra_gate.allocation.explain import Explainer, NoSuchPodError
from dra_gate.allocation.explanation import as_json
from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import kubeconfig_options, output_option
from dra_gate.cli.state import state_from
from dra_gate.cli.used import used_of


@click.group(name="explain")
def command() -> None:
    """Say why a Pod got the devices it has, or why it waits.

    \b
    Examples:
      dra-gate explain pod research-train/train-0 --kubeconfig admin.conf
      dra-gate explain pod research-train/train-0 --snapshot monday.json --devices
    """


def pod_name(value: str) -> tuple[str, str]:
    """`NAMESPACE/NAME`. Fails with a usage error."""
    namespace, _, name = value.partition("/")
    if not namespace or not name or "/" in name:
        raise click.UsageError(f"{value!r} is no Pod: write NAMESPACE/NAME")
    return namespace, name


@command.command(name="pod", epilog="Exit codes: 0 explained, 1 no such Pod, 2 the input is wrong.")
@click.argument("pod", metavar="NAMESPACE/NAME")
@click.option("--snapshot", "file", metavar="FILE", help="Explain from what `dra-gate snapshot` saved.")
@kubeconfig_options
@click.option("--policies", metavar="DIR", help="Policies of a live cluster whose gate has them from a folder.")
@click.option("--devices", is_flag=True, help="Every device of every candidate, and what keeps it away.")
@click.option("--as-tenant", default="", metavar="TENANT", help="Name no Pods of other tenants, only count them.")
@output_option
def pod_command(
    pod: str,
    file: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    devices: bool,
    as_tenant: str,
    output: str,
) -> None:
    """Explain one Pod: what it asked for, each candidate in order with what there is of it, and what was given."""
    namespace, name = pod_name(pod)
    state = state_from(file, kubeconfig, context, policies)
    try:
        explanation = Explainer(state, as_tenant=as_tenant, used=used_of(state)).pod(namespace, name, devices=devices)
    except NoSuchPodError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    except SnapshotError as error:
        raise Failure(str(error)) from None
    if output == "json":
        click.echo(json.dumps(as_json(explanation), indent=2))
    elif output == "yaml":
        click.echo(yaml.safe_dump(json.loads(json.dumps(as_json(explanation))), sort_keys=False), nl=False)
    else:
        click.echo(text_of(explanation))
