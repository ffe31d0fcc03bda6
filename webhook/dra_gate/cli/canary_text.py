"""What the commands of `dra-gate canary` tell: for a terminal, or as a body for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dra_gate.cli.canary_world import Pods, World
from dra_gate.cli.gate_change import last_change, switch_body
from dra_gate.cli.text import plain
from dra_gate.cluster.gate import Gate
from dra_gate.fairness.view import ago
from dra_gate.migration.stopping import stopped_text
from dra_gate.migration.waves import Left, OnStop, Paused, Plan, Space, seconds, stamp, wave_of
from dra_gate.policy.switch import DRA, NO_SWITCH, PLUGIN, Switch
from dra_gate.policy.words import listed, many

NOTE = (
    "In lane device-plugin requests stay, and policy becomes node affinity: what node labels cannot say does not hold "
    "there, nothing waits for its turn, and what would go above a quota is refused."
)


def moves_text(moved: Sequence[Space], left: Sequence[Left], to: str, said: str, *, dry_run: bool) -> Iterator[str]:
    if said:
        yield f"would be: {said}" if dry_run else said
    would = "would move" if dry_run else "moved"
    for space in moved:
        owner = f" (tenant {space.tenant})" if space.tenant else ""
        yield f"{would} {space.name}{owner}: {space.lane or 'not gated'} → {to}"
    for one in left:
        yield f"left alone {one.space.name}: {plain(one.why)}"
    if not moved:
        yield "nobody would be moved" if dry_run else "nobody was moved"
    elif to == PLUGIN:
        yield f"note: {NOTE}"


def status_body(world: World, plan: Plan, pods: Pods, gate: Gate | None) -> dict[str, Any]:
    spaces = world.spaces
    switch = gate.switch if gate is not None else NO_SWITCH
    waves = wave_of(plan, spaces)
    rows = [
        {
            "wave": waves.get(space.name),
            "tenant": space.tenant or None,
            "namespace": space.name,
            "lane": space.lane or None,
            "since": stamp(space.since) if space.since else None,
            "by": plain(space.by) or None,
            "why": plain(space.own.why) if space.own is not None else None,
            "pods": {lane: pods.by_lane.get(space.name, Counter())[lane] for lane in (DRA, PLUGIN)},
            "note": "; ".join(filter(None, (plain(space.told), _switched(switch, space)))),
        }
        for space in sorted(spaces, key=lambda one: (waves.get(one.name, len(plan.waves) + 1), one.tenant, one.name))
    ]
    held = plan.paused
    return {
        "kind": "Canary",
        "paused": held and {"by": plain(held.by), "at": stamp(held.at), "why": plain(held.why)},
        "onStop": {"act": plan.on_stop.act, "failures": plan.on_stop.failures},
        "stopped": plan.stopped
        and {
            "act": plan.stopped.act,
            "at": stamp(plan.stopped.at),
            "why": plain(plan.stopped.why),
            "done": stamp(plan.stopped.done) if plan.stopped.done else None,
        },
        "switch": {**switch_body(switch), "last": last_change(gate.switched, world.now)}
        if gate is not None and switch != NO_SWITCH
        else None,
        "seed": plan.seed,
        "waves": [
            {
                "wave": number,
                "of": str(wave),
                "begun": number <= plan.begun,
                "namespaces": sum(row["wave"] == number for row in rows),
                "inLaneDra": sum(row["wave"] == number and row["lane"] == DRA for row in rows),
            }
            for number, wave in enumerate(plan.waves, 1)
        ],
        "policyCanaries": list(_policy_canaries(world, pods)),
        "namespaces": rows,
    }


def _switched(switch: Switch, space: Space) -> str:
    lane = switch.lane_of(space.tenant, space.lane) if space.lane else ""
    return f"in lane {lane} by the switch" if lane != space.lane else ""


def _policy_canaries(world: World, pods: Pods) -> Iterator[dict[str, Any]]:
    """Tenants some of whose namespaces get another policy version, and the Pods on each version that any has."""
    for tenant in world.policy_set.tenants.values() if world.policy_set is not None else ():
        if tenant.canary is None:
            continue
        counted = Counter({str(ref): 0 for ref in (tenant.canary.policy, tenant.policy)})
        for namespace in tenant.namespaces:
            counted.update(pods.by_policy.get(namespace, {}))
        yield {
            "tenant": tenant.name,
            "policy": str(tenant.policy),
            "canary": str(tenant.canary.policy),
            "namespaces": list(tenant.canary.namespaces),
            "pods": dict(counted),
        }


def status_text(body: dict[str, Any], now: int) -> Iterator[str]:
    rows = body["namespaces"]
    by = " by their labels" if body["switch"] else ""
    yield f"{sum(row['lane'] == DRA for row in rows)} of {many(len(rows), 'namespace')} in lane dra{by}"
    if body["paused"]:
        held = body["paused"]
        yield f"paused, {paused_text(Paused(held['by'], seconds(held['at']), held['why']), now)}"
    if body["stopped"]:
        stop = body["stopped"]
        ago_ = ago(max(now - seconds(stop["at"]), 0))
        yield f"stopped {ago_} ago: {stopped_text(stop['act'], done=bool(stop['done']))}"
    if body["switch"]:
        last = f", {body['switch']['last']}" if body["switch"]["last"] else ""
        yield f"the switch goes before labels, until dra-gate rollback --off: {body['switch']['says']}{last}"
    for wave in body["waves"]:
        word = "begun" if wave["begun"] else "to come"
        yield f"wave {wave['wave']} ({wave['of']}): {word}; {wave['inLaneDra']} of {wave['namespaces']} in lane dra"
    for one in body["policyCanaries"]:
        counted = listed(f"{many(count, 'Pod')} of {name}" for name, count in one["pods"].items())
        where = f"{one['canary']} in {listed(one['namespaces'])}, {one['policy']} elsewhere"
        yield f"policy canary of tenant {one['tenant']}: {where}; {counted}"
    rule = body["onStop"]
    yield on_stop_text(OnStop(rule["act"], rule["failures"]))
    if not rows:
        return
    yield ""
    table = [("WAVE", "TENANT", "NAMESPACE", "LANE", "SINCE", "BY", "PODS DRA", "PODS PLUGIN", "NOTE")]
    table += [
        (
            str(row["wave"] or "-"),
            row["tenant"] or "-",
            row["namespace"],
            row["lane"] or "-",
            f"{ago(max(now - seconds(row['since']), 0))} ago" if row["since"] else "-",
            row["by"] or "-",
            str(row["pods"][DRA]),
            str(row["pods"][PLUGIN]),
            row["note"],
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    if any(row["lane"] == PLUGIN for row in rows):
        yield f"note: {NOTE}"


def paused_text(paused: Paused | None, now: int) -> str:
    if paused is None:
        return ""
    since = f" {ago(max(now - paused.at, 0))} ago" if paused.at else ""
    return plain(f"by {paused.by or 'somebody'}{since}{': ' if paused.why else ''}{paused.why}")


def on_stop_text(rule: OnStop) -> str:
    does = {"alert": "tells", "pause": "pauses the plan", "rollback": "pauses the plan and rolls back"}[rule.act]
    return f"on a hard stop, such as failures above {100 * rule.failures:.3g} %, the controller {does}"
