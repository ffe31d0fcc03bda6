"""`dra-gate canary report`: how Pods fare under DRA beside those under device plugins."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from dra_gate.cli.canary_world import Policies, World
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import connect, failures_option, kubeconfig_options
from dra_gate.cluster.client import ClusterError
from dra_gate.cluster.cohort_maps import SELECTOR, newest
from dra_gate.cluster.policy_map import MAPS_PATH, NAMESPACE
from dra_gate.cluster.prometheus import PrometheusError, usage
from dra_gate.migration.cohort import Cohorts
from dra_gate.migration.report import as_html, as_json, as_text, report, window
from dra_gate.migration.sides import LANES, Sides, elsewhere, versions
from dra_gate.migration.tally import Tally
from dra_gate.migration.usage import add_usage


@click.command(
    name="report",
    epilog="Exit codes: 0 same, better or too few to tell; 1 worse, or a hard stop; 2 the input is wrong.",
)
@click.option("--cohorts", "file", metavar="FILE", help="What was counted, as -o cohorts saves it; else: the cluster.")
@click.option(
    "--last", metavar="HOURS", type=click.IntRange(min=1), default=24, show_default=True, help="How far back."
)
@click.option("--policy", metavar="NAME@VERSION", help="Compare this policy version with another, not the lanes.")
@click.option(
    "--against", metavar="NAME@VERSION", help="With which.  [default: what most Pods of its tenants have elsewhere]"
)
@failures_option
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "html", "cohorts"]), default="text", show_default=True
)
@click.option("--prometheus", metavar="URL", help="Ask this one how busy devices were (DCGM exporter).")
@click.option(
    "--policies", metavar="DIR", help="With --prometheus: whose tenants, where the gate has its policies from a folder."
)
@kubeconfig_options
def report_command(
    file: str | None,
    last: int,
    policy: str | None,
    against: str | None,
    failures: float,
    output: str,
    prometheus: str | None,
    policies: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Say how Pods fare under DRA beside those under device plugins: better, worse, same, or too few to tell.

    Compared are Pods that were created in the same hour, ask for as many devices and prefer the same model. With
    --policy: Pods of that version with others of the same tenant, hour and number of devices. The controller counts
    them, and writes down what it counted about every half minute.

    \b
    Examples:
      dra-gate canary report --kubeconfig admin.conf
      dra-gate canary report --last 6 -o html > report.html
      dra-gate canary report -o cohorts > cohorts.json
      dra-gate canary report --prometheus http://localhost:9090
      dra-gate canary report --cohorts cohorts.json --policy training@8 --against training@7
    """
    if file is not None and (kubeconfig or context):
        raise Failure("--cohorts stands in place of a cluster: leave --kubeconfig and --context out")
    if file is not None and prometheus is not None:
        raise Failure("--prometheus needs the cluster, which says whose the namespaces are: leave --cohorts out")
    if policies is not None and prometheus is None:
        raise click.UsageError("--policies says whose devices --prometheus tells of: give both")
    where, cohorts = _of_file(file) if file is not None else _of_cluster(kubeconfig, context)
    if prometheus is not None:
        _add_usage(cohorts, last, prometheus, World.read(kubeconfig, context, Policies(policies)))
    if output == "cohorts":
        click.echo(cohorts.dumps(), nl=False)
        return
    hours = window(cohorts, last)
    if hours is None:
        raise Failure(f"{where}: nothing was counted yet")
    found = report(cohorts, *hours, failures / 100, _sides(cohorts, *hours, policy, against))
    if output == "json":
        click.echo(json.dumps(as_json(found), indent=2))
    else:
        click.echo(as_html(found) if output == "html" else as_text(found), nl=output == "text")
    if found.whole.stops or found.whole.verdict == "worse":
        raise click.exceptions.Exit(1)


def _of_file(file: str) -> tuple[str, Cohorts]:
    try:
        return file, Cohorts.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(f"{file}: {error}") from None


def _of_cluster(kubeconfig: str | None, context: str | None) -> tuple[str, Cohorts]:
    client = connect(kubeconfig, context)
    where = f"ConfigMaps {SELECTOR} in namespace {NAMESPACE}"
    try:
        maps = list(client.list(MAPS_PATH, params={"labelSelector": SELECTOR}))
    except ClusterError as error:
        raise Failure(f"{where} can't be read: {error}") from None
    _, data = newest(maps)
    if data is None:
        raise Failure(
            f"{where}: none is whole; does a controller lead that was started by this version?"
            if maps
            else f"{where}: there are none; the controller writes them half a minute after it begins to lead"
        )
    try:
        tally, written = Tally.loads(data)
    except ValueError as error:
        raise Failure(f"{where}: {error}; another version of the gate may have written them") from None
    now = time.time_ns() // 1_000_000
    if now - written > 600_000 and tally.pods:
        click.echo(
            f"warning: written {(now - written) // 60_000} min ago, or nothing has changed since; does a controller "
            "lead (metric dra_gate_cohort_writes_total)?",
            err=True,
        )
    return where, tally.cohorts(now)


def _add_usage(cohorts: Cohorts, last: int, url: str, world: World) -> None:
    """What the Prometheus knows of the hours that are compared."""
    hours = window(cohorts, last)
    if hours is None:
        return
    spaces = {space.name: space for space in world.spaces}
    try:
        left = add_usage(cohorts, usage(url, *hours, time.time_ns() // 1_000_000), spaces)
    except PrometheusError as error:
        raise Failure(f"how busy devices were can't be asked: {error}") from None
    if left:
        click.echo(
            f"warning: {left / 3600:,.1f} device-hours measured are left out: the lane of these Pods is not known, as "
            "their namespace changed it",
            err=True,
        )


def _sides(cohorts: Cohorts, since: int, until: int, policy: str | None, against: str | None) -> Sides:
    if policy is None:
        if against is not None:
            raise click.UsageError("--against says what --policy is compared with: give both")
        return LANES
    try:
        usual = elsewhere(cohorts, since, until, policy)
    except ValueError as error:
        raise Failure(str(error)) from None
    if against == policy:
        raise click.UsageError(f"{policy} can't be compared with itself")
    return versions(policy, against or usual)
