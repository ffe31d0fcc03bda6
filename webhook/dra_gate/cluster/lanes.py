"""Namespaces' lanes and the plan of waves, read and written: for the commands and for the controller.

The lane label is the truth, and each write of it is conditional on the version it was decided from. The plan of waves
is one ConfigMap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from dra_gate.admission.facts import LANE_LABEL
from dra_gate.admission.guards import CANARY_PLAN, MOVED
from dra_gate.cluster import events
from dra_gate.cluster.client import Client, Conflict, NotFound
from dra_gate.cluster.policy_map import MAPS_PATH, NAMESPACE
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.migration.waves import Move, Plan, Space, read_move, read_plan, seconds
from dra_gate.policy.switch import PLUGIN

PLAN_PATH = f"{MAPS_PATH}/{CANARY_PLAN}"
PLAN_KEY = "plan.json"
NAMESPACES_PATH = "/api/v1/namespaces"
_ATTEMPTS = 5
T = TypeVar("T")


class NotMovedError(Exception):
    """The namespace stays in its lane, as the message says; others may well be moved."""


def space_of(obj: Object, tenant: str = "") -> Space:
    """What the waves need of a namespace. Who labelled it last is known only of one with its managedFields."""
    by, when = _labelled(obj)
    return Space(
        text(at(obj, "metadata", "name")),
        tenant,
        text(at(obj, "metadata", "labels", LANE_LABEL)),
        read_move(text(at(obj, "metadata", "annotations", MOVED))),
        by,
        when,
        leaving=at(obj, "metadata", "deletionTimestamp") is not None,
    )


def move(client: Client, obj: Object, change: Move, *, dry_run: bool = False, attempts: int = _ATTEMPTS) -> None:
    """Write lane and record, if the lane still is what `obj` says. From the second attempt on it is asked for anew.

    Raises NotMovedError where it isn't, or where the namespace is gone; ClusterError when the API server refuses.
    """
    decided = space_of(obj)
    path = f"{NAMESPACES_PATH}/{decided.name}"
    for rest in reversed(range(attempts)):
        metadata = {
            "uid": at(obj, "metadata", "uid"),
            "resourceVersion": at(obj, "metadata", "resourceVersion"),
            "labels": {LANE_LABEL: change.to},
            "annotations": {MOVED: change.dumps()},
        }
        try:
            client.patch(path, {"metadata": metadata}, params={"dryRun": "All"} if dry_run else None)
            return
        except NotFound:
            raise NotMovedError("it was deleted meanwhile") from None
        except Conflict:
            if not rest:
                break
        try:
            obj = client.get(path)
        except NotFound:
            raise NotMovedError("it was deleted meanwhile") from None
        now = space_of(obj)
        if (now.lane, now.move, now.leaving) != (decided.lane, decided.move, decided.leaving):
            raise NotMovedError("somebody else changed it meanwhile")
    raise NotMovedError("others keep changing it: try again")


def tell(client: Client, obj: Object, change: Move) -> None:
    """An Event in the namespace. Raises ClusterError."""
    note = (
        f"lane {change.to}, before {change.source or 'not gated'}; by {change.by or 'somebody unknown'}: {change.why}"
    )
    name = text(at(obj, "metadata", "name"))
    about = {"apiVersion": "v1", "kind": "Namespace", "namespace": name, "name": name}
    uid = text(at(obj, "metadata", "uid"))
    reason = "LaneRolledBack" if change.to == PLUGIN else "LaneEnrolled"
    canary_event(client, {**about, "uid": uid}, reason, note, kind="Normal")


def canary_event(client: Client, about: Mapping[str, str], reason: str, note: str, *, kind: str = "Warning") -> None:
    """An Event of the canary. Raises ClusterError."""
    events.write_event(client, events.event(about, reason, "Move", note, kind=kind, part="canary"))


def read_stored(client: Client) -> tuple[Object | None, Plan | None]:
    """The plan's ConfigMap and what it says; None for both where there is none. Raises ClusterError, PlanError."""
    try:
        stored = client.get(PLAN_PATH)
    except NotFound:
        return None, None
    return stored, read_plan(text(at(stored, "data", PLAN_KEY)))


def write_plan(client: Client, stored: Object | None, plan: Plan) -> Object:
    """Write the plan in place of `stored`; None: of none. Raises Conflict where it is another by now."""
    fresh = {"name": CANARY_PLAN, "namespace": NAMESPACE}
    metadata = fresh if stored is None else mapping(stored.get("metadata"))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {PLAN_KEY: plan.dumps()}}
    return client.create(MAPS_PATH, body) if stored is None else client.replace(PLAN_PATH, body)


def replan(
    client: Client, change: Callable[[Plan], tuple[Plan, T]], seed: str, *, dry_run: bool = False
) -> tuple[Plan, Plan, T]:
    """Write what `change` makes of the plan: the plan before and after, and what else `change` gives.

    `change` is asked again when somebody else was faster. A new plan gets `seed`. Raises Conflict when others keep
    changing it; ClusterError; PlanError for a plan that can't be read, or from `change`.
    """
    for _ in range(_ATTEMPTS):
        stored, plan = read_stored(client)
        before = plan if plan is not None else Plan(seed)
        after, more = change(before)
        if dry_run or after == before:
            return before, after, more
        try:
            write_plan(client, stored, after)
        except Conflict:
            continue  # look at what they wrote
        return before, after, more
    raise Conflict(409, "Conflict", "others keep changing the plan: try again")


def _labelled(obj: Object) -> tuple[str, int]:
    """Who wrote the lane label last, and when at the latest: managedFields date all that a writer did."""
    for entry in map(mapping, sequence(at(obj, "metadata", "managedFields"))):
        if at(entry, "fieldsV1", "f:metadata", "f:labels", f"f:{LANE_LABEL}") is not None:
            try:
                return text(entry.get("manager")), seconds(text(entry.get("time")))
            except ValueError:
                break
    return "", 0
