"""`dra-gate serve`: the two admission routes over TLS, fed by watches of a cluster or by manifests; the second port.

The master process only supervises. Policies, manifests and all code that decides are loaded in the worker: what both
held would be held twice, because counting references copies the pages that a fork shares.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gate.cli.failure import Failure

if TYPE_CHECKING:
    from dra_gate.admission.facts import Facts
    from dra_gate.server.app import App
    from dra_gate.server.run import Process

_LISTEN = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+):(\d{1,5})")


@click.command(name="serve")
@click.option(
    "--policies", metavar="DIR", help="Folder of policy files; default: what is published in the cluster, by its Gate."
)
@click.option(
    "--cert-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder with tls.crt and tls.key; a changed pair is taken within a second.",
)
@click.option("--listen", default="0.0.0.0:8443", show_default=True, metavar="ADDRESS:PORT", help="Where to listen.")
@click.option(
    "--status-listen",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where probes, metrics and pages are served without TLS; off: nowhere.",
)
@click.option(
    "--client-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA certificates (PEM); callers must show a client certificate that one of them signed.",
)
@click.option(
    "--client-name",
    "client_names",
    metavar="NAME",
    multiple=True,
    help="Common or DNS name that the client certificate must carry; may be repeated. Needs --client-ca.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0, 600),
    default=5.0,
    show_default=True,
    help="After SIGTERM, how long to go on answering while endpoints forget this replica.",
)
@click.option(
    "--stale-seconds",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Verdicts carry a warning when the API server has not been heard for so long.",
)
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
    help="User name of an account of the gate, which it never judges; may be repeated; default: those of deploy/.",
)
@click.option(
    "--record",
    "record_folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep judged reviews in this folder, without secrets, for `dra-gate review` and `dra-gate policy diff`.",
)
@click.option(
    "--record-bytes",
    type=click.IntRange(4 << 20),
    default=64 << 20,
    show_default=True,
    help="Most that the recorded reviews may take; the oldest go.",
)
def command(
    policies: str | None,
    cert_dir: Path,
    listen: str,
    status_listen: str,
    client_ca: Path | None,
    client_names: tuple[str, ...],
    drain_seconds: float,
    stale_seconds: float,
    kubeconfig: str | None,
    context: str | None,
    cluster: tuple[str, ...],
    writers: tuple[str, ...],
    record_folder: Path | None,
    record_bytes: int,
) -> None:
    """Serve /mutate and /validate over TLS, and on a second port, without TLS, probes, metrics and pages for people.

    Ready when there are policies and every kind that verdicts read has been listed once. SIGTERM ends it: not
    ready any more, it answers on until --drain-seconds have passed, then open connections get three more seconds.

    \b
    Examples:
      dra-gate serve --cert-dir certs/local --kubeconfig ~/.kube/config --listen 127.0.0.1:8443
      dra-gate serve --policies policies --cert-dir certs/local --cluster tests/cluster.yaml --listen 127.0.0.1:8443
    """
    from dra_gate.server.run import CANNOT_START, serve  # noqa: PLC0415 - what only a server needs
    from dra_gate.server.tls import Callers, CertificateError  # noqa: PLC0415

    _address(listen, "--listen")
    if cluster and (kubeconfig or context):
        raise click.UsageError("--cluster takes the place of a cluster: leave out --kubeconfig and --context")
    if cluster and policies is None:
        raise click.UsageError(
            "--cluster takes the place of a cluster, and with it of the published policies: name a "
            "folder with --policies"
        )
    if client_names and client_ca is None:
        raise click.UsageError("--client-name says which holders of a certificate may call: it needs --client-ca")
    callers = None if client_ca is None else Callers(client_ca, frozenset(client_names))
    status = None if status_listen == "off" else _address(status_listen, "--status-listen")
    recording = None if record_folder is None else (record_folder, record_bytes)
    build = partial(_build, policies, writers, status, stale_seconds, kubeconfig, context, cluster, recording)
    master = os.getpid()
    try:
        serve(build, listen=listen, certificates=cert_dir, callers=callers, drain_seconds=drain_seconds)
    except CertificateError as error:
        raise Failure(str(error)) from None
    except SystemExit as end:
        if os.getpid() != master:  # the worker came out of the same call, by fork
            raise
        # gunicorn ends with 1 when it can't listen, and has said why; with us 1 means that something was refused.
        raise SystemExit(2 if end.code in (1, CANNOT_START) else end.code) from None


def _address(text: str, option: str) -> tuple[str, int]:
    address = _LISTEN.fullmatch(text)
    if address is None or int(address[2]) > 65535:
        raise click.BadParameter(f"{text!r} is not ADDRESS:PORT", param_hint=option)
    return address[1].strip("[]"), int(address[2])


def _listen(address: str, port: int) -> socket.socket:
    from dra_gate.server.console import listen  # noqa: PLC0415

    try:
        return listen(address, port)
    except OSError as error:
        raise Failure(f"can't listen on {address}:{port} (--status-listen): {error.strerror}") from None


def _build(
    policies: str | None,
    writers: tuple[str, ...],
    status: tuple[str, int] | None,
    stale_seconds: float,
    kubeconfig: str | None,
    context: str | None,
    cluster: tuple[str, ...],
    recording: tuple[Path, int] | None,
    process: Process,
) -> App:
    """Everything that lives in the serving process; runs there, after the fork.

    What is wrong with the input goes to stderr as from any verb, and ends this process with `CANNOT_START`.
    """
    from dra_gate.admission.configurations import GATE_WRITERS  # noqa: PLC0415
    from dra_gate.admission.redact import recorded  # noqa: PLC0415
    from dra_gate.cli.options import connect, load_policies  # noqa: PLC0415
    from dra_gate.cluster.facts import LEDGERS, World  # noqa: PLC0415
    from dra_gate.cluster.files import InputError, load_manifests  # noqa: PLC0415
    from dra_gate.cluster.policies import PolicySource  # noqa: PLC0415
    from dra_gate.cluster.reflector import Reflector  # noqa: PLC0415
    from dra_gate.server.app import App  # noqa: PLC0415
    from dra_gate.server.console import Console, View, namespaces_with_templates, serve_console  # noqa: PLC0415
    from dra_gate.server.log import LineWriter  # noqa: PLC0415
    from dra_gate.server.metrics import Metrics  # noqa: PLC0415
    from dra_gate.server.record import Recorder  # noqa: PLC0415
    from dra_gate.server.run import CANNOT_START  # noqa: PLC0415

    try:
        policy_set = None if policies is None else load_policies(policies)
        manifests = load_manifests(cluster) if cluster else ()
        client = None if cluster else connect(kubeconfig, context)
        port = None if status is None else _listen(*status)
        recorder = None if recording is None else Recorder(*recording, recorded)
    except OSError as error:
        Failure(f"{error.filename}: {error.strerror} (--record)").show()
        sys.exit(CANNOT_START)
    except (InputError, click.ClickException) as error:
        (error if isinstance(error, click.ClickException) else Failure(str(error))).show()
        sys.exit(CANNOT_START)
    except click.exceptions.Exit:  # has been said
        sys.exit(CANNOT_START)
    certificate = process.certificate
    world = World(policy_set, writers=writers or GATE_WRITERS, counting=client is None)
    for manifest in manifests:
        world.apply(manifest)
    reflectors: list[Reflector] = []
    ledgers: Reflector | None = None  # not waited for: their CRD may come later
    source: PolicySource | None = None
    if client is not None:
        caches = {path: Reflector(client, path, sink, path.rpartition("/")[2]) for path, sink in world.sinks().items()}
        reflectors, ledgers = list(caches.values()), caches[LEDGERS]
        if policy_set is None:
            source = PolicySource(client, world.use)
    writer = LineWriter()

    def ready() -> list[str]:
        reasons = source.waiting() if source is not None else []
        reasons += [
            f"{one.name} not listed yet" for one in reflectors if one is not ledgers and not one.synced.is_set()
        ]
        if time.time() >= certificate.not_after:
            reasons.append("the serving certificate has ended")
        if process.stopping():
            reasons.append("stopping")
        return reasons

    def facts() -> Facts | None:
        return world.facts() if world.ready else None

    def sets() -> dict[str, str]:
        known = facts()
        return {} if known is None else {known.policy_set.digest: "active"} | dict.fromkeys(known.accepted, "accepted")

    def ages() -> dict[str, float]:
        followed = source.reflectors if source is not None else ()
        heard = [one for one in reflectors if one is not ledgers or one.synced.is_set()]
        return {reflector.name: reflector.age() for reflector in (*heard, *followed)}

    def refusals() -> dict[str, int]:
        return dict(source.refused) if source is not None else {}

    def refused() -> dict[str, str]:
        return {} if source is None else {name: refusal.message for name, refusal in source.problems().items()}

    def stale() -> str:
        age, name = max(((age, name) for name, age in ages().items()), default=(0.0, ""))
        return f"dra-gate: judged by what was known {age / 60:.0f} min ago ({name})" if age > stale_seconds else ""

    def start() -> None:
        writer.start()
        if recorder is not None:
            recorder.start()
        if source is not None:
            source.start()
        for reflector in reflectors:
            reflector.start()
        if port is not None:
            serve_console(Console(view), port)

    def stop() -> None:
        for reflector in reflectors:
            reflector.stop(timeout=0)  # the threads are daemons: what they wait for ends with the process
        if source is not None:
            source.stop(timeout=0)
        if recorder is not None:
            recorder.close()
        writer.close()

    metrics = Metrics(
        sets=sets,
        generation=lambda: known.gate_generation if (known := facts()) is not None else 0,
        refusals=refusals,
        ages=ages,
        namespaces=lambda: namespaces_with_templates(facts()),
        certificate=lambda: (certificate.not_after, certificate.failures),
        dropped=lambda: writer.dropped,
        unrecorded=lambda: 0 if recorder is None else recorder.dropped,
        connections=process.connections,
    )
    app = App(
        facts=world.facts,
        ready=ready,
        metrics=metrics,
        write=writer.write,
        stale=stale,
        record=None if recorder is None else recorder.take,
        refresh=None if source is None else source.refresh,
        start=start,
        stop=stop,
    )
    view = View(
        facts=facts,
        reasons=app.reasons_against,
        metrics=metrics.page,
        recent=lambda: app.recent,
        turned=lambda: app.turned,
        stale_seconds=stale_seconds,
        ages=ages,
        refused=refused,
        not_after=lambda: certificate.not_after,
    )
    return app
