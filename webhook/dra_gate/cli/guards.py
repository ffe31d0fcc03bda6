"""`dra-gate guards`: the API server's own policies, guards and backstop, ready for `kubectl apply`."""

from __future__ import annotations

import click

from dra_gate.admission import backstop
from dra_gate.admission import guards as guarded
from dra_gate.cli.webhooks import manifests_text


@click.command(name="guards")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def command(output: str) -> None:
    """Print ValidatingAdmissionPolicies, with their bindings, that the API server holds by itself.

    Only guardians change the lane, mode and tenant labels of namespaces, the gate's webhook configurations, published
    policy sets, the Gate, and templates and claims with the gate's prefix. A guardian is a cluster admin, the gate's
    controller, and whoever is bound to the ClusterRole dra-gate-guardian. The last one, zz-dra-gate-backstop, refuses
    simple ways around the gate in gated namespaces while the webhook is down or set to Ignore.

    \b
    Example:
      dra-gate guards | kubectl apply -f -
    """
    click.echo(manifests_text([*guarded.manifests(), *backstop.manifests()], output), nl=False)
