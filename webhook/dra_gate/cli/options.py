"""Options and steps that several verbs share."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dra_gate.admission.facts import LANE_LABEL
from dra_gate.cli.failure import Failure
from dra_gate.cluster.facts import LEDGERS, World
from dra_gate.cluster.files import InputError, read_manifests
from dra_gate.kube.raw import mapping, text
from dra_gate.migration.compare import FAILURES
from dra_gate.policy.load import PolicyErrors, load_with_warnings
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import DRA

if TYPE_CHECKING:
    from dra_gate.cluster.client import Client

F = TypeVar("F", bound=Callable[..., Any])
LONGEST_REASON = 512  # characters: an Event's note has 1,024 bytes for everything
_DURATION = re.compile(r"([1-9]\d{0,7})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_QUIET_KINDS = frozenset({"Node"})  # read by other verbs, and no reason to warn here


class WholeSentences(click.Group):
    """A group whose `--help` says the whole first sentence of each verb: click cuts it after 45 characters."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        verbs = [(name, self.commands[name].get_short_help_str(limit=400)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(verbs)


def output_option(function: F) -> F:
    """`-o text|json|yaml`."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True
    )(function)


def kubeconfig_options(function: F) -> F:
    """`--kubeconfig` and `--context`, for verbs that always ask a cluster."""
    return _kubeconfig("The cluster; default: $KUBECONFIG, ~/.kube/config, or the Pod's service account.")(function)


def _kubeconfig(said: str) -> Callable[[F], F]:
    def options(function: F) -> F:
        function = click.option("--context", metavar="NAME", help="Context of the kubeconfig.")(function)
        return click.option("--kubeconfig", metavar="FILE", callback=_not_empty, help=said)(function)

    return options


def _not_empty(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Nobody means the empty name that an unset variable gives: taken for "no cluster", it would check too little."""
    if value == "":
        raise click.BadParameter("it is empty; is $KUBECONFIG set?")
    return value


def failures_option(function: F) -> F:
    """`--failures PERCENT`."""
    return click.option(
        "--failures",
        metavar="PERCENT",
        type=click.FloatRange(0, 100, min_open=True, max_open=True),
        default=100 * FAILURES,
        show_default=True,
        help="A rate of failures above this is a hard stop.",
    )(function)


def why_option(where: str) -> Callable[[F], F]:
    """`--why TEXT`, which is not to be left empty; `where` it can be read."""
    return click.option("--why", metavar="TEXT", required=True, callback=_said, help=f"The reason, for {where}.")


def _said(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty: say why, for those who will read it")
    return value.strip()[:LONGEST_REASON]


def duration(text: str) -> dt.timedelta:
    """What `90s`, `15m`, `12h` or `90d` stands for. Raises click.BadParameter."""
    found = _DURATION.fullmatch(text)
    if found is None or int(found[1]) * _UNITS[found[2]] > 36500 * 86400:
        raise click.BadParameter(f"{text!r} is no duration such as 90s, 15m, 12h or 90d, at most 36500d")
    return dt.timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def cluster_options(function: F) -> F:
    """`--cluster PATH…`, or `--kubeconfig` and `--context`."""
    function = _kubeconfig("Read a live cluster; without it none is asked.")(function)
    return click.option(
        "--cluster", multiple=True, metavar="PATH", help="Files or folders of manifests that stand for the cluster."
    )(function)


def connect(kubeconfig: str | None, context: str | None) -> Client:
    """A client of the cluster; without a usable configuration the command ends with exit code 2."""
    from dra_gate.cluster.client import Client, ConfigError  # noqa: PLC0415 - slow to import, and often not needed

    try:
        return Client.connect(kubeconfig, context)
    except ConfigError as error:
        raise Failure(str(error)) from None


def load_policies(folder: str) -> PolicySet:
    """The policy set of `folder`; warnings go to stderr, errors end the command with exit code 2."""
    try:
        policy_set, warnings = load_with_warnings(folder)
    except PolicyErrors as errors:
        click.echo(str(errors), err=True)
        raise click.exceptions.Exit(2) from None
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    return policy_set


def world_from(world: World, cluster: tuple[str, ...], kubeconfig: str | None, context: str | None) -> None:
    """Fill `world` from files, or from a live cluster listed once. Ends the command with exit code 2 on bad input."""
    if cluster and (kubeconfig or context):
        raise click.UsageError("--cluster reads files and --kubeconfig a live cluster: give one of the two")
    if kubeconfig or context:
        _from_live(world, kubeconfig, context)
        return
    try:
        for document in read_manifests(cluster):
            obj = document.value
            known = isinstance(obj, dict) and world.apply(obj)
            if not known and text(mapping(obj).get("kind")) not in _QUIET_KINDS:
                kind = obj.get("kind") if isinstance(obj, dict) else type(obj).__name__
                click.echo(f"warning: {document.source} document {document.index}: kind {kind} is skipped", err=True)
    except InputError as error:
        raise click.UsageError(str(error)) from None


def gate_tenants(world: World, policy_sets: Iterable[PolicySet]) -> None:
    """Puts the namespaces of all tenants under the gate, for facts that say nothing of them."""
    for policy_set in policy_sets:
        for namespace in policy_set.tenant_by_namespace:
            world.apply({"kind": "Namespace", "metadata": {"name": namespace, "labels": {LANE_LABEL: DRA}}})


def _from_live(world: World, kubeconfig: str | None, context: str | None) -> None:
    from dra_gate.cluster.client import Client, ClusterError, NotFound  # noqa: PLC0415 - slow, and often not needed

    try:
        client = Client.connect(kubeconfig, context)
        for path, sink in world.sinks().items():
            with suppress(NotFound) if path == LEDGERS else nullcontext():
                sink.replace(client.list(path, shape=sink.shape))
    except ClusterError as error:
        raise click.UsageError(f"the cluster cannot be read: {error}") from None
