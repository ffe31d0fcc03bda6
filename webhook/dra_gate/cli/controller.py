"""`dra-gate controller`: keeps the tenants' claim templates in place, one leader at a time."""

from __future__ import annotations

import datetime as dt
import logging.config
import re
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gate.cli.failure import Failure
from dra_gate.cli.options import duration
from dra_gate.policy.errors import PolicyErrors
from dra_gate.policy.load import load
from dra_gate.policy.model import GATE_NAMESPACE

if TYPE_CHECKING:
    from dra_gate.admission.sets import PolicySets
    from dra_gate.controller.certificate_plan import Settings
    from dra_gate.controller.http import Page, StatusServer
    from dra_gate.policy.model import PolicySet
    from dra_gate.policy.model import Settings as PolicySettings

LEASE = "dra-gate-controller"
_SERVICE = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")
_LISTEN = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s]+):(\d{1,5})")


@click.command(name="controller")
@click.option(
    "--policies",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of policy files; default: what is published in the cluster, as its Gate says.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Cluster to work on; default: $KUBECONFIG, ~/.kube/config, or the Pod's service account.",
)
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--lease-namespace", default="dra-gate", show_default=True, help=f"Where the Lease {LEASE} is.")
@click.option("--identity", help="Name of this replica in the Lease; default: host name and a random part.")
@click.option(
    "--own-certificates", is_flag=True, help="Be the certificate authority of the webhook; see certs/README.md."
)
@click.option(
    "--service",
    metavar="NAMESPACE/NAME",
    default="dra-gate/dra-gate-webhook",
    show_default=True,
    help="With --own-certificates: the Service that the API server calls.",
)
@click.option(
    "--url-host", "hosts", metavar="HOST", multiple=True, help="Or the host of the URL that it calls; may be repeated."
)
@click.option(
    "--ca-life", type=duration, metavar="DURATION", default="3650d", show_default=True, help="Life of the own CA."
)
@click.option(
    "--certificate-life",
    type=duration,
    metavar="DURATION",
    default="90d",
    show_default=True,
    help="Of the certificate.",
)
@click.option("--backstop", is_flag=True, help="The backstop is installed: tell when it is missing or altered, too.")
@click.option(
    "--recreate",
    is_flag=True,
    help="Evict Pods whose device falls ill before they run, where their policy says onUnhealthy: recreate, and Pods "
    "whose lane went back to device plugins, where it says onRollback: recreate or the Gate says drainBy.",
)
@click.option(
    "--return-rate",
    type=click.FloatRange(0.1, 100),
    default=5.0,
    show_default=True,
    help="With --recreate: so many Pods a second are evicted at most where a lane went back to device plugins.",
)
@click.option(
    "--grant-timeout",
    type=duration,
    metavar="DURATION",
    default="5m",
    show_default=True,
    help="Take a grant back whose Pod could not be scheduled for so long, for others to use; 0s: never.",
)
@click.option(
    "--metrics-listen",
    metavar="ADDRESS:PORT",
    help="Serve /metrics, /healthz and pages on /fleet, /queue and /canary there, without TLS.",
)
@click.option(
    "--decisions",
    "decisions_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep decision records in, as JSON Lines.",
)
@click.option(
    "--decisions-bytes",
    type=click.IntRange(min=1 << 20),
    default=64 << 20,
    show_default=True,
    help="With --decisions: the most that the folder may hold; the oldest records go first.",
)
@click.option(
    "--arbiter-log",
    "arbiter_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep the arbiter's log in, as JSON Lines: what it was told and what it decided.",
)
@click.option(
    "--arbiter-log-bytes",
    "arbiter_bytes",
    type=click.IntRange(min=1 << 20),
    default=256 << 20,
    show_default=True,
    help="With --arbiter-log: about how much the folder may hold; the oldest files go first.",
)
def command(
    policies: Path | None,
    kubeconfig: str | None,
    context: str | None,
    lease_namespace: str,
    identity: str | None,
    own_certificates: bool,
    service: str,
    hosts: tuple[str, ...],
    ca_life: dt.timedelta,
    certificate_life: dt.timedelta,
    backstop: bool,
    recreate: bool,
    return_rate: float,
    grant_timeout: dt.timedelta,
    metrics_listen: str | None,
    decisions_folder: Path | None,
    decisions_bytes: int,
    arbiter_folder: Path | None,
    arbiter_bytes: int,
) -> None:
    """Keep the claim templates of all tenant namespaces in place, the Gate's status true, and say on each Pod with
    claims which devices it got or why it waits.

    It also looks whether the webhook configurations and the guards are there and unchanged, and tells when they are
    not: in its log, by an Event in namespace default, and in metric dra_gate_footing_intact. And it looks after Pods
    that hold a device which is not healthy: an Event on the Pod, metrics, and with --recreate what their policy says.
    Where a lane goes back to device plugins it takes back what was granted and not allocated, and does with Pods that
    wait what their policy says (onRollback).

    It is the arbiter, too: it alone grants Pods that the gate holds, writes their claims, and keeps a TenantLedger for
    each tenant. `kubectl get tenantledgers` shows what tenants hold; the condition dra-gate.io/Granted on a Pod why it
    waits.

    It counts what becomes of Pods in both lanes (`dra-gate canary report`), and does on a hard stop what the plan of
    waves says (`dra-gate canary on-stop`).

    Replicas elect a leader by a Lease; the others keep their caches warm. The log goes to stderr, one JSON object a
    line. SIGTERM or SIGINT gives the Lease up: another replica goes on within 5 s, not after the 20 s that a crash
    may cost.

    \b
    Examples:
      dra-gate controller --kubeconfig ~/.kube/config
      dra-gate controller --policies policies --metrics-listen 127.0.0.1:9090
      dra-gate controller --own-certificates --url-host gate.example.com
    """
    from dra_gate.admission.sets import PolicySets  # noqa: PLC0415
    from dra_gate.cluster.client import Client, ConfigError  # noqa: PLC0415 - slow to import, and no other verb's
    from dra_gate.cluster.lease import Lease  # noqa: PLC0415
    from dra_gate.cluster.line_log import LineLog  # noqa: PLC0415
    from dra_gate.controller.arbiter import ArbiterController  # noqa: PLC0415
    from dra_gate.controller.certificates import CertificateController  # noqa: PLC0415
    from dra_gate.controller.counter import CounterController  # noqa: PLC0415
    from dra_gate.controller.decisions import DecisionController  # noqa: PLC0415
    from dra_gate.controller.footing import FootingController  # noqa: PLC0415
    from dra_gate.controller.gate import GateController  # noqa: PLC0415
    from dra_gate.controller.health import HealthController  # noqa: PLC0415
    from dra_gate.controller.pages import Pages  # noqa: PLC0415
    from dra_gate.controller.returning import ReturnController  # noqa: PLC0415
    from dra_gate.controller.stops import StopController  # noqa: PLC0415
    from dra_gate.controller.templates import TemplateController  # noqa: PLC0415
    from dra_gate.server.log import logging_config  # noqa: PLC0415

    try:
        policy_set = None if policies is None else load(policies)
        client = Client.connect(kubeconfig, context)
        log = None if decisions_folder is None else LineLog(decisions_folder, decisions_bytes)
        arbiter_log = (
            None if arbiter_folder is None else LineLog(arbiter_folder, arbiter_bytes, "arbiter", by_hand=True)
        )
    except OSError as error:
        raise Failure(f"records can't be kept: {error}") from None
    except PolicyErrors as errors:
        raise Failure(f"the policies can't be used\n{errors}") from None
    except ConfigError as error:
        raise Failure(str(error)) from None
    logging.config.dictConfig(logging_config())

    settings = _certificates(service, hosts, ca_life, certificate_life) if own_certificates else None
    name = identity or f"{socket.gethostname()}_{secrets.token_hex(4)}"

    def leading() -> bool:
        return lease.held()

    controller = TemplateController(client, identity=name, leading=leading)
    decisions = DecisionController(client, identity=name, leading=leading, log=log)
    arbiter = ArbiterController(
        client, decisions, leading=leading, log=arbiter_log, grant_timeout=grant_timeout.total_seconds()
    )
    counter = CounterController(client, decisions, arbiter, leading=leading)
    stops = StopController(client, counter.stops, leading=leading)
    loops: list[
        ArbiterController
        | CertificateController
        | CounterController
        | DecisionController
        | FootingController
        | GateController
        | HealthController
        | ReturnController
        | StopController
    ] = [decisions, arbiter, counter, stops]

    def use(sets: PolicySets) -> None:
        decisions.use(sets.all)
        arbiter.use(sets.all)
        arbiter.switch(sets.switch)
        counter.use(sets)

    def policy_settings() -> list[PolicySettings] | None:
        return [policy_set.settings] if policy_set is not None else gate.settings()

    if policy_set is not None:
        controller.use([policy_set])
        use(PolicySets(policy_set))
    else:
        gate = GateController(client, controller, identity=name, leading=leading, on_sets=use)
        loops.append(gate)
    called = frozenset() if settings is None else settings.names
    footing = FootingController(
        client, policy_settings, with_backstop=backstop, called=called, identity=name, leading=leading
    )
    loops.append(footing)

    def policy_sets() -> list[PolicySet] | None:
        if policy_set is not None:
            return [policy_set]
        sets = gate.source.sets
        return None if sets is None else list(sets.all)

    def enforcing() -> set[str]:
        return {namespace for namespace, held in controller.lanes.held().items() if held.said}

    loops.append(HealthController(client, policy_sets, enforcing, recreate=recreate, identity=name, leading=leading))
    loops.append(
        ReturnController(client, arbiter.desk, recreate=recreate, rate=return_rate, identity=name, leading=leading)
    )
    if settings is not None:
        loops.append(CertificateController(client, GATE_NAMESPACE, settings, identity=name, leading=leading))
    for loop in loops:
        controller.metrics.registry.register(loop)
    controller.metrics.watch([*decisions.reflectors, *counter.reflectors])

    def lead() -> None:
        controller.activate()
        for loop in loops:
            loop.wake()

    def follow() -> None:
        controller.deactivate()
        decisions.deactivate()
        arbiter.deactivate()
        counter.deactivate()

    lease = Lease(client, lease_namespace, LEASE, name, on_started=lead, on_stopped=follow)

    def problems() -> list[str]:
        wrong = [problem for loop in (controller, *loops) for problem in loop.problems()]
        return wrong + ([] if lease.alive() else ["the election has ended"])

    status = (
        None
        if metrics_listen is None
        else _status(
            metrics_listen,
            controller.metrics.text,
            problems,
            Pages(decisions.seen, arbiter.queue, counter.report, stops.shown).paths(),
        )
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    controller.start()
    for loop in loops:
        loop.start()
    lease.start()
    stop.wait()
    counter.stop()  # while we lead: it writes what it has counted
    lease.stop()
    controller.stop()
    for loop in loops:
        loop.stop()
    if status is not None:
        status.close()


def _certificates(
    service: str, hosts: tuple[str, ...], ca_life: dt.timedelta, certificate_life: dt.timedelta
) -> Settings:
    from dra_gate.controller.certificate_plan import Settings  # noqa: PLC0415

    if not hosts and _SERVICE.fullmatch(service) is None:
        raise click.BadParameter(f"{service!r} is not NAMESPACE/NAME", param_hint="--service")
    namespace, _, name = service.partition("/")
    names = frozenset(hosts) or frozenset([f"{name}.{namespace}.svc"])  # apiserver/pkg/util/webhook, ServerName
    if not all(host.isascii() for host in names):
        raise click.BadParameter("write a name that is not ASCII in punycode", param_hint="--url-host")
    # Long enough for every API server to have heard of a new CA; it hears of it in about a second.
    settle = min(dt.timedelta(seconds=30), certificate_life / 10)
    try:
        return Settings(names, ca_life, certificate_life, settle)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ca-life") from None


def _status(
    listen: str, metrics: Callable[[], bytes], problems: Callable[[], list[str]], pages: Mapping[str, Page]
) -> StatusServer:
    from dra_gate.controller.http import StatusServer  # noqa: PLC0415

    address = _LISTEN.fullmatch(listen)
    if address is None or int(address[2]) > 65535:
        raise click.BadParameter(f"{listen!r} is not ADDRESS:PORT", param_hint="--metrics-listen")
    try:
        return StatusServer(address[1].strip("[]"), int(address[2]), metrics=metrics, problems=problems, pages=pages)
    except OSError as error:
        raise Failure(f"cannot listen on {listen}: {error}") from None
