"""`dra-gate serve`: the two admission routes over TLS, fed by watches of a cluster or by manifests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import load_policies
from dra_gate.policy.model import PolicySet

if TYPE_CHECKING:
    from dra_gate.cluster.client import Client
    from dra_gate.kube.raw import Object
    from dra_gate.server.app import App
    from dra_gate.server.tls import ServingCertificate

_LISTEN = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+):(\d{1,5})")


@click.command(name="serve")
@click.option("--policies", required=True, metavar="DIR", help="Folder of policy files.")
@click.option(
    "--cert-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder with tls.crt and tls.key; a changed pair is taken within a second.",
)
@click.option("--listen", default="0.0.0.0:8443", show_default=True, metavar="ADDRESS:PORT", help="Where to listen.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Cluster to watch; default: $KUBECONFIG, ~/.kube/config, or the Pod's service account.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
@click.option(
    "--cluster", multiple=True, metavar="PATH", help="Files or folders of manifests to take for the cluster instead."
)
@click.option(
    "--writer",
    "writers",
    metavar="USER",
    multiple=True,
    default=GATE_WRITERS,
    show_default=True,
    help="User name of an account of the gate, which it never judges; may be repeated.",
)
def command(
    policies: str,
    cert_dir: Path,
    listen: str,
    kubeconfig: str | None,
    context: str | None,
    cluster: tuple[str, ...],
    writers: tuple[str, ...],
) -> None:
    """Serve /mutate and /validate over TLS, and /healthz, /readyz and /metrics beside them.

    Ready when the policies are loaded and every kind that verdicts read has been listed once. SIGTERM ends it: open
    requests are answered, idle connections get three seconds.

    \b
    Examples:
      dra-gate serve --policies policies --cert-dir certs/local --kubeconfig ~/.kube/config --listen 127.0.0.1:8443
      dra-gate serve --policies policies --cert-dir certs/local --cluster tests/cluster.yaml --listen 127.0.0.1:8443
    """
    from dra_gate.cluster.client import Client, ConfigError  # noqa: PLC0415 - what only a server needs
    from dra_gate.cluster.files import InputError, load_manifests  # noqa: PLC0415
    from dra_gate.server.run import serve  # noqa: PLC0415
    from dra_gate.server.tls import CertificateError  # noqa: PLC0415

    address = _LISTEN.fullmatch(listen)
    if address is None or int(address[2]) > 65535:
        raise click.BadParameter(f"{listen!r} is not ADDRESS:PORT", param_hint="--listen")
    if cluster and (kubeconfig or context):
        raise click.UsageError("--cluster takes the place of a cluster: leave out --kubeconfig and --context")
    policy_set = load_policies(policies)
    try:
        if cluster:
            build = partial(_build, policy_set, writers, None, load_manifests(cluster))
        else:
            connect = partial(Client.connect, kubeconfig, context)
            connect()  # a wrong configuration ends us now; connections are made by the worker
            build = partial(_build, policy_set, writers, connect, ())
        serve(build, listen=listen, certificates=cert_dir)
    except (ConfigError, InputError, CertificateError) as error:
        raise Failure(str(error)) from None
    except SystemExit as end:
        # gunicorn ends with 1 when it can't listen, and has said why; with us 1 means that something was refused.
        raise SystemExit(2 if end.code == 1 else end.code) from None


def _build(
    policy_set: PolicySet,
    writers: Sequence[str],
    connect: Callable[[], Client] | None,
    manifests: Sequence[Object],
    certificate: ServingCertificate,
    stopping: Callable[[], bool],
) -> App:
    """Everything that lives in the serving process; runs there, after the fork."""
    from dra_gate.cluster.facts import World  # noqa: PLC0415
    from dra_gate.cluster.reflector import Reflector  # noqa: PLC0415
    from dra_gate.server.app import App  # noqa: PLC0415
    from dra_gate.server.log import LineWriter  # noqa: PLC0415
    from dra_gate.server.metrics import Metrics  # noqa: PLC0415

    world = World(policy_set, writers=writers)
    for manifest in manifests:
        world.apply(manifest)
    reflectors: list[Reflector] = []
    if connect is not None:
        client = connect()
        reflectors = [Reflector(client, path, sink, path.rpartition("/")[2]) for path, sink in world.sinks().items()]
    writer = LineWriter()

    def ready() -> list[str]:
        reasons = [f"{reflector.name} not listed yet" for reflector in reflectors if not reflector.synced.is_set()]
        if time.time() >= certificate.not_after:
            reasons.append("the serving certificate has ended")
        if stopping():
            reasons.append("stopping")
        return reasons

    def start() -> None:
        writer.start()
        for reflector in reflectors:
            reflector.start()

    def stop() -> None:
        for reflector in reflectors:
            reflector.stop(timeout=0)  # the threads are daemons: what they wait for ends with the process
        writer.close()

    metrics = Metrics(
        policy_set=policy_set.digest,
        ages=lambda: {reflector.name: reflector.age() for reflector in reflectors},
        certificate=lambda: (certificate.not_after, certificate.failures),
        dropped=lambda: writer.dropped,
    )
    return App(facts=world.facts, ready=ready, metrics=metrics, write=writer.write, start=start, stop=stop)
