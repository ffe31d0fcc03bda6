"""`dra-gate rollback`: the switch between lanes, for all tenants or for some; one write to the Gate, and nothing else.

It needs neither replicas nor a controller: these follow the Gate by themselves, when they are there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dra_gate.admission.facts import LANE_LABEL
from dra_gate.admission.plugin_pod import refused_in
from dra_gate.admission.stamp import TENANT
from dra_gate.cli.controller import LEASE
from dra_gate.cli.failure import Failure
from dra_gate.cli.gate_change import asked, last_change, rewrite, stored_gate, switch_body, user_of
from dra_gate.cli.options import connect, duration, kubeconfig_options, load_policies, output_option, why_option
from dra_gate.cli.text import plain, printed, table
from dra_gate.cluster.client import Client, ClusterError, NotFound
from dra_gate.cluster.events import event, write_event
from dra_gate.cluster.facts import DRA, PATHS
from dra_gate.cluster.gate import Gate, Switched, read_gate, with_switch
from dra_gate.cluster.policy_map import MAPS_PATH, NAMESPACE, RefusedError, name_of, read_policy_map
from dra_gate.fairness.view import ago
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.kube.times import milliseconds
from dra_gate.migration.returning import Fate
from dra_gate.migration.switching import Around, fates, summed
from dra_gate.migration.waves import seconds, stamp
from dra_gate.policy.model import NEVER_GATED, ON_ROLLBACK, PolicySet
from dra_gate.policy.switch import PLUGIN, Switch
from dra_gate.policy.words import listed, many, some

NONE = "none"
_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
_LEASE_SECONDS = 20  # without a renewal, and nobody leads: the Lease has run out, clocks that differ included


def _until(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """RFC 3339 in UTC; empty for none; None where nothing was said."""
    if value is None or value == NONE:
        return "" if value else None
    if "T" not in value:
        return stamp(_now() + int(duration(value).total_seconds()))
    try:
        when = seconds(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time such as 2026-11-30T18:00:00Z, with its zone, and no span such as 30m"
        ) from None
    if when <= _now():
        raise click.BadParameter(f"{value} is over: it is {stamp(_now())} now")
    return stamp(when)


@click.command(name="rollback", epilog="Exit codes: 0 done, told, or nothing to do; 2 refused, or the input is wrong.")
@click.argument("tenants", metavar="[TENANT…]", nargs=-1)
@click.option("--off", is_flag=True, help="Forward again: the labels of namespaces count.")
@why_option("the Gate and its Event")
@click.option(
    "--drain-by",
    "until",
    metavar="TIME",
    callback=_until,
    help=f"Evict Pods that still run under DRA then: 2h, 2026-11-30T18:00:00Z, or {NONE} to let them end.",
)
@click.option("--dry-run", is_flag=True, help="Say what would become of each Pod with devices. Nothing is changed.")
@click.option("--policies", metavar="DIR", help="Whose tenants, where the active policy set can't be read.")
@kubeconfig_options
@output_option
def command(
    tenants: tuple[str, ...],
    off: bool,
    why: str,
    until: str | None,
    dry_run: bool,
    policies: str | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
) -> None:
    """Send all tenants, or these, back to lane device-plugin; with --off, forward to the lanes of their labels.

    One write to the Gate. New Pods get the lane within a second, with no controller too. What becomes of Pods that wait
    is their policy's onRollback. Pods that run go on, unless --drain-by says until when.

    \b
    Examples:
      dra-gate rollback --why "driver 580.82 fails to prepare" --dry-run
      dra-gate rollback --why "driver 580.82 fails to prepare"
      dra-gate rollback lilac mint --why "their jobs hang" --drain-by 2h
      dra-gate rollback --off --why "driver 580.95 is out"
    """
    if off and until:
        raise click.UsageError("--drain-by is about Pods that stay behind under DRA: it does not go with --off")
    client = connect(kubeconfig, context)
    tenants = tuple(dict.fromkeys(tenants))
    gate = _gate(client)
    sets = _Sets.read(client, gate, policies)
    sets.know([name for name in tenants if name not in gate.switch.tenants])
    done = _turn(client, tenants, off=off, until=until, why=why, dry_run=dry_run)
    found = list(_fates(client, sets, done, tenants)) if dry_run else []
    leader = _leader(client)
    if output == "text":
        click.echo("\n".join(_text(done, leader, off=off, why=why, dry_run=dry_run)))
        if dry_run:
            click.echo("\n".join(_fates_text(found)))
    else:
        printed(_body(done, found, leader, dry_run=dry_run), output)


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of the switch. `after` is `before` where there was nothing to do."""

    before: Gate
    after: Gate
    to: Switch

    @property
    def changed(self) -> bool:
        return self.before.switch != self.to


def _gate(client: Client) -> Gate:
    stored = asked(lambda: stored_gate(client))
    if stored is None:
        raise Failure(
            "there is no Gate, so nobody follows a switch: where the gate has its policies from a folder, roll "
            "namespaces back by their labels (dra-gate canary rollback)"
        )
    return read_gate(stored)


def _turn(client: Client, tenants: Collection[str], *, off: bool, until: str | None, why: str, dry_run: bool) -> _Done:
    """Write the switch, and an Event about it. Decided anew where somebody else has changed the Gate meanwhile."""
    change = Switched(asked(lambda: user_of(client)), stamp(_now()), why)
    to = Switch()

    def changed(stored: Object | None) -> dict[str, Any] | None:
        nonlocal to
        if stored is None:
            raise Failure("the Gate was deleted meanwhile")
        present = read_gate(stored).switch
        to = present.forward(tenants) if off else present.back(tenants, until)
        try:
            return None if to == present else with_switch(stored, to, change)
        except ValueError as error:
            raise Failure(str(error)) from None

    stored, written = rewrite(client, changed, dry_run=dry_run)
    before = read_gate(stored)
    if written is None or dry_run:
        return _Done(before, before, to)
    done = _Done(before, read_gate(written), to)
    try:
        write_event(client, _event(done, change))
    except ClusterError as error:
        click.echo(f"warning: the Gate is written, but no Event: {error}", err=True)
    return done


def _event(done: _Done, change: Switched) -> dict[str, object]:
    note = f"{done.to}; before: {done.before.switch}; by {change.by or 'somebody unknown'}: {change.reason}"
    regarding = {"apiVersion": "dra-gate.io/v1alpha1", "kind": "Gate", "name": "default", "uid": done.after.uid}
    return event(regarding, "LaneSwitched", "Switch", note, kind="Normal", part="rollback")


# -- whose Pods, and what becomes of them -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sets:
    """The policy sets that count, the active one first; none where they can't be read: the way back needs none."""

    known: Sequence[PolicySet] = ()

    @classmethod
    def read(cls, client: Client, gate: Gate, folder: str | None) -> _Sets:
        if folder:
            return cls([load_policies(folder)])
        found = []
        for digest in gate.named:
            try:
                found.append(read_policy_map(client.get(f"{MAPS_PATH}/{name_of(digest)}")))
            except (ClusterError, RefusedError) as error:
                if digest == gate.active:
                    click.echo(f"warning: the active policy set can't be read: {error}", err=True)
        return cls(found)

    def know(self, tenants: Collection[str]) -> None:
        """End the command for a tenant that no set has; tell where nobody can say."""
        unknown = [name for name in tenants if not any(name in one.tenants for one in self.known)]
        if unknown and self.known:
            there = some(sorted({name for one in self.known for name in one.tenants}))
            raise Failure(f"the policies have no tenant {listed(unknown, 'or')}, but {there}. Nothing was changed")
        if unknown:
            click.echo(f"warning: nobody knows whether there is a tenant {listed(unknown, 'or')}", err=True)

    def owner(self, namespace: str) -> str:
        """The tenant that owns the namespace; empty for none."""
        return self.known[0].tenant_by_namespace.get(namespace, "") if self.known else ""

    def refused(self, namespace: str) -> str:
        """Why no Pod with devices can follow another there in lane device-plugin; empty where nobody knows."""
        return refused_in(namespace, self.known[0]) if self.known else ""

    def rule(self, policy: str) -> str:
        """The onRollback of a policy at a version; the default where nobody knows it."""
        rules = (one.on_rollback for known in self.known for ref, one in known.policies.items() if str(ref) == policy)
        return next(rules, ON_ROLLBACK[0])


def _fates(client: Client, sets: _Sets, done: _Done, tenants: Collection[str]) -> Iterator[Fate]:
    """What becomes of each Pod of these tenants, or of all, in namespaces that the switch sends back or forward."""
    try:
        labels = {
            text(at(obj, "metadata", "name")): text(at(obj, "metadata", "labels", LANE_LABEL))
            for obj in client.list(PATHS["Namespace"])
        }
        pods = list(client.list(PATHS["Pod"]))
        claims: dict[str, dict[str, Object]] = {}
        for claim in client.list(f"{DRA}resourceclaims"):
            metadata = mapping(claim.get("metadata"))
            claims.setdefault(text(metadata.get("namespace")), {})[text(metadata.get("name"))] = claim
        jobs = {
            (text(at(job, "metadata", "namespace")), text(at(job, "metadata", "name"))): job
            for job in client.list("/apis/batch/v1/jobs")
        }
    except ClusterError as error:
        raise Failure(f"what becomes of Pods can't be said: {error}") from None
    # Without policies the stamps say whose namespace it is.
    stamped = {text(at(pod, "metadata", "namespace")): _stamped_tenant(pod) for pod in pods if _stamped_tenant(pod)}

    def owner(namespace: str) -> str:
        return sets.owner(namespace) if sets.known else stamped.get(namespace, "")

    def lane(namespace: str) -> str:
        label, name = labels.get(namespace, ""), owner(namespace)
        if not label or namespace in NEVER_GATED or (tenants and name not in tenants):
            return ""
        before, after = (switch.lane_of(name, label) for switch in (done.before.switch, done.to))
        return after if PLUGIN in (before, after) else ""

    def drain_by(namespace: str) -> int | None:
        return milliseconds(done.to.drain_of(owner(namespace))) // 1000 or None

    return fates(pods, Around(lane, sets.rule, drain_by, sets.refused, claims, jobs), _now())


def _stamped_tenant(pod: Object) -> str:
    return text(at(pod, "metadata", "annotations", TENANT))


@dataclass(frozen=True, slots=True)
class _Leader:
    """The controller that leads; `holder` is empty where none does. `seen`: seconds since it renewed its Lease."""

    holder: str = ""
    seen: int | None = None


def _leader(client: Client) -> _Leader | None:
    """None: it can't be told."""
    try:
        spec = mapping(client.get(_LEASE_PATH).get("spec"))
        seen = max(_now() - seconds(text(spec.get("renewTime"))), 0)
    except NotFound:
        return _Leader()
    except (ClusterError, ValueError):
        return None
    return _Leader(text(spec.get("holderIdentity")) if seen <= _LEASE_SECONDS else "", seen)


# -- telling ----------------------------------------------------------------------------------------------------------


def _text(done: _Done, leader: _Leader | None, *, off: bool, why: str, dry_run: bool) -> Iterator[str]:
    if not done.changed:
        last = last_change(done.after.switched, _now())
        yield f"nothing to do: {plain(str(done.to))}" + (f" (last changed {last})" if last else "")
        return
    would = "would be: " if dry_run else ""
    yield plain(f"{would}{done.to}; before: {done.before.switch}; why: {why}")
    drains = bool(done.to.drain_by or done.to.drains)
    if drains:
        untils = sorted({done.to.drain_by, *done.to.drains.values()} - {""})
        yield f"Pods that still run under DRA there are evicted at {listed(untils)}"
    if dry_run:
        yield "the API server takes it; nothing is written"
        return
    generation = done.after.generation
    yield (
        f"new Pods: each replica follows within a second, with no controller too; one that shows "
        f"dra_gate_gate_generation {generation} or more has"
    )
    yield f"Pods that are there: {_who_acts(leader, off=off, drains=drains)}"


def _who_acts(leader: _Leader | None, *, off: bool, drains: bool) -> str:
    then = "those that wait are granted in turn" if off else "those that wait go by their policy's onRollback"
    until = " until then" if drains else ""
    if leader is None:
        return f"{then}, by the controller; whether one leads can't be told from here"
    if not leader.holder:
        last = f" (the last was seen {ago(leader.seen)} ago)" if leader.seen is not None else ""
        return f"nothing becomes of them yet, since no controller leads{last}; when one does, {then}"
    return plain(f"{then}, by {leader.holder}, which was seen {ago(leader.seen or 0)} ago; those that run go on{until}")


_STEPS = {
    "recreate": "evicted; its owner makes another",
    "withdraw": "claims taken away before devices are given",
    "keep": "held until the lane is dra again",
    "release": "gets devices under DRA in its turn",
    "finish": "runs on",
    "drain": "evicted, as its PodDisruptionBudget allows",
    "nothing": "not touched",
}


def _fates_text(found: Sequence[Fate]) -> Iterator[str]:
    if not found:
        yield "no Pod with the gate's stamp is there that it would be about"
        return
    rows = [
        (row.tenant, row.phase, row.pods, ", then ".join(_STEPS[step] for step in (row.step, row.then) if step))
        for row in summed(found)
    ]
    yield from table(("TENANT", "PHASE", "PODS", "WHAT BECOMES OF THEM"), rows)
    yield f"{many(len(found), 'Pod')}; each, and why: -o json"
    if {"recreate", "drain"} & {step for one in found for step in (one.step, one.then)}:
        yield "evictions take a controller that may evict (deploy/components/recreate); without one these Pods stay"


def _body(done: _Done, found: Sequence[Fate], leader: _Leader | None, *, dry_run: bool) -> dict[str, Any]:
    last = done.after.switched
    return {
        "kind": "LaneSwitch",
        "dryRun": dry_run,
        "changed": done.changed,
        "before": switch_body(done.before.switch),
        "after": switch_body(done.to),
        "last": {"by": last.by, "at": last.at, "why": last.reason, "count": last.count},
        "gateGeneration": done.after.generation,
        "controller": None if leader is None else {"leads": leader.holder or None, "secondsAgo": leader.seen},
        "counts": [
            {"tenant": row.tenant, "phase": row.phase, "step": row.step, "then": row.then or None, "pods": row.pods}
            for row in summed(found)
        ],
        "pods": [
            {
                "namespace": one.pod.namespace,
                "name": one.pod.name,
                "uid": one.pod.uid,
                "tenant": one.pod.tenant,
                "policy": one.pod.policy,
                "lane": one.pod.lane,
                "phase": one.pod.phase,
                "owner": one.pod.owner or None,
                "step": one.step,
                "then": one.then,
                "why": one.why,
            }
            for one in found
        ],
    }


def _now() -> int:
    return int(dt.datetime.now(dt.UTC).timestamp())
