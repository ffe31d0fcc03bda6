"""`dra-gate queue`: who waits for what and how long, who holds what against share and quota, who borrows."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click
import yaml

from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.cli.arbiter_log import Stretch, contents, stretches
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import kubeconfig_options, output_option
from dra_gate.cli.state import state_from
from dra_gate.cli.text import table
from dra_gate.controller.standing import standing
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import Granted, Pass, Revised, Used
from dra_gate.fairness.flow import Flow
from dra_gate.fairness.holdings import HeldBack
from dra_gate.fairness.log import loads
from dra_gate.fairness.view import ModelUse, ModelView, QueueView, TenantView, WaitingPod, ago, as_tenant, view
from dra_gate.policy.words import many

_FIRST = 5  # Pods of each tenant that are shown where none was named
_MOST = 1000  # of the one that was


@click.command(epilog="Exit codes: 0 told, 1 no such tenant, 2 the input is wrong.")
@click.argument("tenant", default="")
@click.option("--snapshot", "file", metavar="FILE", help="Tell from what `dra-gate snapshot` saved.")
@click.option("--log", metavar="LOG", help="Tell what an arbiter's log ends with; then there are estimates, too.")
@kubeconfig_options
@click.option("--policies", metavar="DIR", help="Policies of a live cluster whose gate has them from a folder.")
@click.option("--as-tenant", "reader", default="", metavar="TENANT", help="Name no other tenants, only count them.")
@output_option
def command(
    tenant: str,
    file: str | None,
    log: str | None,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    reader: str,
    output: str,
) -> None:
    """Say who waits for what and how long, who holds how much of its share and quota, and who borrows from whom.

    With TENANT all of its Pods that wait, each with the reason. How long it may still take is told from what came free
    within the last hour: page /queue of the controller knows that, and the arbiter's log.

    \b
    Examples:
      dra-gate queue --kubeconfig admin.conf
      dra-gate queue research --kubeconfig admin.conf
      dra-gate queue --log arbiter-log/ -o json
    """
    if log and (file or kubeconfig or context or policies):
        raise click.UsageError("--log tells everything by itself: give no --snapshot, --kubeconfig or --policies")
    named = tenant or None
    most = _MOST if tenant or output != "text" else _FIRST
    if log:
        seen, notes = _of_log(log, named, most)
    else:
        now = round(dt.datetime.now(dt.UTC).timestamp() * 1000)
        try:
            found = standing(state_from(file, kubeconfig, context, policies), now)
        except SnapshotError as error:
            raise Failure(str(error)) from None
        seen = replace(view(found.arbiter, now, tenant=named, most=most), refused=found.refused)
        notes = [*_notes(found.due, found.unsized), *_held_back(found.held_back, now, tenant or reader)]
    if reader:
        seen = as_tenant(seen, reader)
    if tenant:
        seen = replace(seen, refused=tuple(one for one in seen.refused if one.tenant == tenant))
        seen = replace(seen, tenants=tuple(one for one in seen.tenants if one.name == tenant))
    for name in {tenant, reader} - {""}:
        if not any(one.name == name for one in seen.tenants):
            click.echo(f"no tenant {name}: no policy knows it, and it neither holds nor asks for anything", err=True)
            sys.exit(1)
    if output == "text":
        click.echo("\n".join((*_text(seen, one_tenant=bool(tenant)), *(f"note: {note}" for note in notes))))
        return
    told = json.loads(json.dumps(asdict(seen) | {"notes": notes}))
    click.echo(json.dumps(told, indent=2) if output == "json" else yaml.safe_dump(told, sort_keys=False).rstrip())


def _notes(due: int, unsized: int) -> Iterator[str]:
    if due:
        yield f"{many(due, 'Pod')} could be granted now: if they go on waiting, is the controller running, and leading?"
    if unsized:
        yield f"{many(unsized, 'Pod')} of groups whose size is not known here are taken for all there are"


def _held_back(kept: Sequence[HeldBack], now: int, only: str) -> Iterator[str]:
    for tenant in dict.fromkeys(one.tenant for one in kept):
        if only and tenant != only:
            continue
        own = [one for one in kept if one.tenant == tenant]
        devices, longest = sum(one.charge.devices for one in own), max(one.until for one in own)
        yield (
            f"{many(devices, 'device')} of {tenant or 'no tenant'} that nobody gets for {_ago(longest - now)} yet: "
            f"{_named([f'{one.namespace}/{one.name}' for one in own])} went without having ended (kubectl delete "
            "--force, or a node that is away) and may still run"
        )


def _of_log(path: str, tenant: str | None, most: int) -> tuple[QueueView, list[str]]:
    """What the last stretch of a log ends with, and what is to be said about it."""
    last = next((one for one in reversed(stretches(contents(path))) if one.lines), None)
    if last is None:
        raise Failure(f"{path}: no arbiter's log: no line is a state line")
    arbiter, flow, now = _run(last)
    when = dt.datetime.fromtimestamp(now / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return view(arbiter, now, flow, tenant=tenant, most=most), [f"as of {when} UTC, the last decision in the log"]


def _run(stretch: Stretch) -> tuple[Arbiter, Flow, int]:
    lines = [loads(line) for line in stretch.lines]
    times = [line.at for line in lines if isinstance(line, Pass)]
    if not times:
        raise Failure(f"{stretch.places[-1]}: nothing was decided since {stretch.places[0]}: the time is not known")
    arbiter, now = Arbiter(), times[0]
    flow = Flow(now)
    for line in lines:
        match line:
            case Pass():
                now = line.at
                for decision in arbiter.decide(now, line.limit):
                    if isinstance(decision, Granted):
                        flow.granted(decision)
            case Granted() | Revised():
                pass
            case _:
                arbiter.take(line)
                if isinstance(line, Used):
                    flow.used(line, now)
    return arbiter, flow, now


# -- as text ----------------------------------------------------------------------------------------------------------


def _text(seen: QueueView, *, one_tenant: bool) -> Iterator[str]:
    yield _headline(seen.tenants)
    models = [
        [one.model, one.healthy, one.free, one.open, one.waiting, _ago(one.oldest), _loans(one)]
        for one in seen.models
        if one.healthy or one.waiting or one.open or one.borrowers
    ]
    if models:
        yield ""
        yield from table(["model", "healthy", "free", "granted", "asked for", "oldest", "borrowed"], models)
    shown = [one for one in seen.tenants if one_tenant or one.pods or one.held]
    for tenant in sorted(shown, key=lambda one: -(one.oldest or -1)):
        yield ""
        yield from _tenant(tenant, one_tenant=one_tenant)
    for refused in seen.refused:
        yield ""
        yield f"Pod {refused.pod} is held and can never be granted: {refused.reason}: {refused.text}"


def _headline(tenants: Sequence[TenantView]) -> str:
    pods, devices = sum(one.pods for one in tenants), sum(one.devices_waiting for one in tenants)
    oldest = max((one.oldest for one in tenants if one.oldest is not None), default=None)
    if oldest is None:
        return "Nobody waits."
    wait = "waits" if pods == 1 else "wait"
    return f"{many(pods, 'Pod')} {wait} for {many(devices, 'device')}, the first for {_ago(oldest)}."


def _tenant(tenant: TenantView, *, one_tenant: bool) -> Iterator[str]:
    quota = "" if tenant.quota is None else f" of {tenant.quota}"
    weight = "in no fair queue" if tenant.weight is None else f"weight {tenant.weight}"
    waits = f"; {many(tenant.pods, 'Pod')} {'waits' if tenant.pods == 1 else 'wait'}" if tenant.pods else ""
    overtaken = f", overtaken up to {many(tenant.most_overtaken, 'time')}" if tenant.most_overtaken else ""
    yield click.style(f"Tenant {tenant.name}", bold=True) + (
        f" ({weight}) holds {many(tenant.held, 'device') if not quota else f'{tenant.held}{quota} devices'}"
        f"{waits}{overtaken}"
    )
    if tenant.models:
        yield "  " + "; ".join(_use(one) for one in tenant.models)
    for pod in tenant.waiting:
        yield from _pod(pod, estimate=one_tenant or pod.estimate.minutes is not None)
    if tenant.pods > len(tenant.waiting):
        yield f"     and {tenant.pods - len(tenant.waiting)} more"


def _use(one: ModelUse) -> str:
    counts = (("share", one.share), ("quota", one.quota), ("borrowed", one.borrowed), ("not yet allocated", one.open))
    limits = [f"{word} {count}" for word, count in counts[:2] if count is not None]
    limits += [f"{count} {word}" for word, count in counts[2:] if count]
    return f"{one.model} {one.held}" + (f" ({', '.join(limits)})" if limits else "")


def _pod(pod: WaitingPod, *, estimate: bool) -> Iterator[str]:
    asked = f" of {' > '.join(pod.candidates)}" if pod.candidates else ""
    more = [f"group {pod.group}"] if pod.group else []
    more += ["in its turn all it waits for is kept for it"] if pod.aged else []
    more += [f"overtaken {many(pod.overtaken, 'time')}"] if pod.overtaken else []
    rest = f" ({', '.join(more)})" if more else ""
    yield f"  {pod.position:3}. {pod.pod or pod.uid}  {pod.devices}{asked}, waits {_ago(pod.waited)}{rest}"
    yield f"       {click.style(pod.reason, fg='yellow')}: {pod.text}"
    if estimate:
        yield f"       {pod.estimate}"


def _loans(model: ModelView) -> str:
    if not model.borrowers:
        return ""
    taken = _named([f"{one.tenant} {one.devices}" for one in model.borrowers])
    given = _named(
        [
            f"{one.tenant} ({one.unused} unused{f', {one.waiting} wanted' if one.waiting else ''})"
            for one in model.lenders
        ]
    )
    return taken + (f" from {given}" if given else "")


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _ago(milliseconds: int | None) -> str:
    return "" if milliseconds is None else ago(milliseconds / 1000)
