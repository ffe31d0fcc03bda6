"""`dra-gate guards`: the API server's own policies, guards or backstop, ready for `kubectl apply`."""

from __future__ import annotations

import click

from dra_gate.admission import backstop
from dra_gate.admission import guards as guarded
from dra_gate.cli.webhooks import manifests_text


@click.command(name="guards")
@click.option("--backstop", "only_backstop", is_flag=True, help="Print the backstop instead.")
@click.option(
    "--static",
    is_flag=True,
    help="Print the guards for the API server's disk (staticManifestsDir): names end in .static.k8s.io, and one guard "
    "more holds the policies of the API.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def command(only_backstop: bool, static: bool, output: str) -> None:
    """Print ValidatingAdmissionPolicies, with their bindings, that the API server holds by itself.

    Only guardians change the lane, mode and tenant labels of namespaces, the gate's webhook configurations, published
    policy sets, the Gate, and templates and claims with the gate's prefix. A guardian is a cluster admin, the gate's
    controller, and whoever is bound to the ClusterRole dra-gate-guardian. The backstop, zz-dra-gate-backstop, refuses
    simple ways around the gate in gated namespaces also while the webhook is out of the way or set to Ignore.

    \b
    Example:
      dra-gate guards | kubectl apply -f -
      dra-gate guards --backstop | kubectl apply -f -
      dra-gate guards --static > /etc/kubernetes/dra-gate/guards.yaml
    """
    if only_backstop and static:
        raise click.UsageError("the backstop has a parameter, the Gate, and the API server's disk takes none such")
    made = backstop.manifests() if only_backstop else guarded.manifests(static=static)
    click.echo(manifests_text(made, output), nl=False)
