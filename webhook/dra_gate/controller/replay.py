"""A decision made again from a saved state, by the functions that made it, and what differs. No I/O, no clock."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dra_gate.allocation import inversion as inversions
from dra_gate.allocation.capacity import Capacity
from dra_gate.allocation.inversion import Inversion, Room
from dra_gate.allocation.record import DecisionRecord
from dra_gate.allocation.state import State
from dra_gate.controller.decision_plan import Decision, Fleet, Heard, PodSeen, decide, read_claim, read_pod
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import PolicyRef

_NOT_COMPARED = frozenset({"sequence", "snapshot", "at"})  # which decision it is, not what was decided


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a record by its path, such as `claims[0].devices`: as recorded, and as decided again."""

    field: str
    recorded: Any
    again: Any


def differences(record: DecisionRecord, state: State, digest: str) -> list[Difference]:
    """What a decision about the record's Pod from `state`, whose digest that is, says otherwise; nothing: the same.

    Raises SnapshotError for policies that do not load.
    """
    found = [Difference("snapshot", record.snapshot, digest)] if record.snapshot not in (None, digest) else []
    again = decided_again(record, state)
    if again is None:
        return [*found, Difference("outcome", record.outcome, "nothing is said about the Pod")]
    return found + list(_compared("", asdict(record), asdict(again.record)))


def decided_again(record: DecisionRecord, state: State) -> Decision | None:
    """The decision about the record's Pod at the record's time. None where there is nothing to say, as of a Pod that
    is not there.
    """
    snapshot = state.snapshot
    pod = next((one for one in snapshot.pods if at(one, "metadata", "uid") == record.uid), None)
    seen = None if pod is None else read_pod(pod)
    if pod is None or seen is None:
        return None
    claims = {
        text(at(claim, "metadata", "name")): read_claim(claim)
        for claim in snapshot.claims
        if at(claim, "metadata", "namespace") == seen.namespace
    }
    sets = [*state.policy_sets().values()]
    tenant = sets[0].tenant_by_namespace.get(seen.namespace, "") if sets else ""
    events = [event for event in state.events if at(event, "involvedObject", "uid") == seen.uid]
    heard = Heard(snapshot.version, _since(pod), events)
    return decide(seen, claims, tenant, _fleet(state), record.at, heard)


def _fleet(state: State) -> Fleet:
    """What decisions ask of the fleet, from the objects of a state in place of events."""
    snapshot, capacity = state.snapshot, Capacity()
    capacity.use([*state.policy_sets().values()])
    for objects, put in (
        (snapshot.classes, capacity.set_class),
        (snapshot.nodes, capacity.set_node),
        (snapshot.taint_rules, capacity.set_taint_rule),
        (snapshot.slices, capacity.set_slice),
        (snapshot.claims, capacity.set_claim),
    ):
        for obj in objects:
            put((text(at(obj, "metadata", "namespace")), text(at(obj, "metadata", "name"))), obj)
    rooms = _rooms(state)

    def inversion(pod: PodSeen, policy: PolicyRef, model: str, count: int) -> Inversion:
        better = capacity.nodes_with(policy, model, count)
        return inversions.inversion(pod.spec, pod.node, better, rooms.get, len(rooms))

    return Fleet(capacity.candidates, capacity.model_of, inversion, capacity.node_ready)


def _rooms(state: State) -> dict[str, Room]:
    taken: dict[str, Counter[str]] = {}
    for pod in state.snapshot.pods:
        if inversions.holds_room(pod):
            taken.setdefault(text(at(pod, "spec", "nodeName")), Counter()).update(inversions.requested(pod))
    rooms = {}
    for node in state.snapshot.nodes:
        name = text(at(node, "metadata", "name"))
        labels = {key: text(value) for key, value in mapping(at(node, "metadata", "labels")).items()}
        used = taken.get(name, Counter())
        free = {resource: amount - used[resource] for resource, amount in inversions.allocatable(node).items()}
        rooms[name] = Room(labels, inversions.taints_of(node), free)
    return rooms


def _since(pod: Object) -> float:
    """Since when the Pod is in its stage: the scheduler's last word about it, or else since it was created."""
    for one in map(mapping, sequence(at(pod, "status", "conditions"))):
        if one.get("type") == "PodScheduled" and one.get("lastTransitionTime"):
            return _seconds(one.get("lastTransitionTime"))
    return _seconds(at(pod, "metadata", "creationTimestamp"))


def _seconds(written: object) -> float:
    try:
        return dt.datetime.fromisoformat(text(written)).timestamp()
    except ValueError:
        return 0.0


def _compared(path: str, one: Any, two: Any) -> Iterator[Difference]:
    """Where two values of plain data differ, as deep as their shapes are the same."""
    if isinstance(one, Mapping) and isinstance(two, Mapping) and one.keys() == two.keys():
        for key in one:
            if path or key not in _NOT_COMPARED:
                yield from _compared(f"{path}.{key}" if path else key, one[key], two[key])
    elif isinstance(one, tuple | list) and isinstance(two, tuple | list) and len(one) == len(two):
        for index, (left, right) in enumerate(zip(one, two, strict=True)):
            yield from _compared(f"{path}[{index}]", left, right)
    elif one != two:
        yield Difference(path, one, two)
