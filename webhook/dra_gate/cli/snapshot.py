"""`dra-gate snapshot`: the state of a cluster in one file, to explain and to ask "what if" from."""

from __future__ import annotations

from pathlib import Path

import click

from dra_gate.allocation.state import digest_of, dumps
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import kubeconfig_options
from dra_gate.cli.state import live_state

_MIB = 2**20


@click.command(epilog="Exit codes: 0 written, 2 the cluster cannot be read, or the state is too big.")
@kubeconfig_options
@click.option("-o", "--output", "file", default="-", metavar="FILE", help="Where to write; - is standard output.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Of other namespaces only what is taken up.")
@click.option("--policies", metavar="DIR", help="Policies of a cluster whose gate has them from a folder.")
@click.option("--max-mib", default=64, show_default=True, type=click.IntRange(1), help="Write nothing bigger.")
def command(
    kubeconfig: str | None, context: str | None, file: str, namespace: str, policies: str | None, max_mib: int
) -> None:
    """Save nodes, slices, classes, taint rules, claims, Pods and policies, as far as choosing devices depends on them;
    and for preflight webhooks, runtime classes, the gate's rights and tools for devices, as far as you may read them.

    Left out are environments, commands, images, volumes, Secrets, annotations but those of devices, and of Pods
    without claims all but what they take up. Policy files are in it as they were published. The same objects give the
    same bytes.

    \b
    Examples:
      dra-gate snapshot --kubeconfig admin.conf -o monday.json
      dra-gate snapshot --kubeconfig admin.conf -n research-train -o train.json
    """
    state = live_state(kubeconfig, context, policies, namespace, with_around=not namespace)
    data = dumps(state)
    if len(data) > max_mib * _MIB:
        raise Failure(f"it would have {len(data) / _MIB:.1f} MiB: choose one --namespace, or raise --max-mib")
    if file == "-":
        click.echo(data, nl=False)
        return
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise Failure(f"{file}: {error.strerror or error}") from None
    click.echo(f"{file}: {len(data) / _MIB:.1f} MiB, digest {digest_of(state)}", err=True)
