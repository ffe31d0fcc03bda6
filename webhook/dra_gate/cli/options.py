"""Options and steps that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dra_gate.cli.failure import Failure
from dra_gate.cluster.facts import World
from dra_gate.cluster.files import InputError, read_manifests
from dra_gate.kube.raw import mapping, text
from dra_gate.policy.load import PolicyErrors, load_with_warnings
from dra_gate.policy.model import PolicySet

if TYPE_CHECKING:
    from dra_gate.cluster.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_QUIET_KINDS = frozenset({"Node"})  # read by other verbs, and no reason to warn here


def output_option(function: F) -> F:
    """`-o text|json|yaml`."""
    return click.option(
        "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True
    )(function)


def kubeconfig_options(function: F) -> F:
    """`--kubeconfig` and `--context`."""
    function = click.option("--context", metavar="NAME", help="Context of the kubeconfig.")(function)
    return click.option("--kubeconfig", metavar="FILE", callback=_not_empty, help="Read a live cluster.")(function)


def _not_empty(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Nobody means the empty name that an unset variable gives: taken for "no cluster", it would check too little."""
    if value == "":
        raise click.BadParameter("it is empty; is $KUBECONFIG set?")
    return value


def cluster_options(function: F) -> F:
    """`--cluster PATH…`, or `--kubeconfig` and `--context`."""
    function = kubeconfig_options(function)
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


def _from_live(world: World, kubeconfig: str | None, context: str | None) -> None:
    from dra_gate.cluster.client import Client, ClusterError  # noqa: PLC0415 - slow to import, and often not needed

    try:
        client = Client.connect(kubeconfig, context)
        for path, sink in world.sinks().items():
            sink.replace(client.list(path, shape=sink.shape))
    except ClusterError as error:
        raise click.UsageError(f"the cluster cannot be read: {error}") from None
