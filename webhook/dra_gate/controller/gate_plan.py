"""What the controller writes to the Gate, as a function of what is there. No I/O, no clock.

It writes two things: `spec.accepted`, where the set that was active before stays for a minute, and the status. Which
set is active is never its business, and published sets are never deleted: any of them may be what a rollback needs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra_gate.admission.backstop import switch_text, told
from dra_gate.cluster.gate import MAX_ACCEPTED, Accepted, Activation, Gate
from dra_gate.controller.settling import Held
from dra_gate.kube.raw import Object, mapping, sequence, text
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import Switch

ACCEPTED_SECONDS = 60.0
# What the schema takes at most.
HISTORY = 50
SETS = 16
TOLD = 1000  # exceptions, exempt users, domains
TOLD_NAMESPACES = 5000
MESSAGE = 32768  # characters of the condition's
READY = "Ready"


@dataclass(frozen=True, slots=True)
class Known:
    """What the controller knows of the policy sets.

    `in_use` is the digest that new Pods get, empty for none; `refused` says by digest why a set that the Gate names is
    not used; `missing` how many templates each set still lacks that templates are kept for (None: not known yet);
    `sets` are those that count, `recent` those that counted a moment ago as well; `held` for how many seconds this
    process has seen a set among the accepted ones; `lane` is the switch, and `namespaces` what their labels say (None:
    not known yet);
    `activator` who made the last change, for a change that says nothing about it.
    """

    in_use: str
    refused: Mapping[str, str]
    missing: Mapping[str, int] | None
    held: Mapping[str, float] = field(default_factory=dict)
    activator: str = ""
    sets: tuple[PolicySet, ...] = ()
    recent: tuple[PolicySet, ...] = ()
    lane: Held | None = None
    namespaces: Mapping[str, Held] | None = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What to write; None where it is right already."""

    accepted: tuple[Accepted, ...] | None
    status: dict[str, Any] | None


def activated(gate: Gate, in_use: str) -> bool:
    """Whether an activation has taken effect that the history does not know yet."""
    return in_use == gate.active and (not gate.history or gate.history[0].digest != gate.active)


def plan_gate(gate: Gate, known: Known, now: dt.datetime) -> GatePlan:
    """What to write. `now` is in UTC."""
    new = activated(gate, known.in_use)
    history = gate.history
    if new:
        by = gate.claimed or Activation(gate.active, "", known.activator)
        history = (replace(by, at=_stamp(now)), *history)[:HISTORY]
    # `dra-gate policy activate` has put the old set where it belongs, and it may have been withdrawn since.
    by_manifest = new and gate.claimed is None and gate.history
    accepted = _accepted(gate, known, now, replaced=gate.history[0].digest if by_manifest else "")
    status = _status(gate, known, history, now)
    return GatePlan(
        accepted=None if accepted == gate.accepted else accepted,
        status=None if status == gate.status else status,
    )


def _accepted(gate: Gate, known: Known, now: dt.datetime, *, replaced: str) -> tuple[Accepted, ...]:
    """The accepted sets as they should be.

    `since` is for people to read. What counts is how long this process has seen the entry: clocks jump and differ, and
    a set that is taken out too early costs Pods that are being admitted.
    """
    kept: list[Accepted] = []
    for entry in gate.accepted:
        if entry.pinned:
            kept.append(entry)
        elif entry.digest != gate.active and known.held.get(entry.digest, 0.0) < ACCEPTED_SECONDS:
            # (The active one would be taken for long replaced when it is.)
            kept.append(entry if entry.since else replace(entry, since=_stamp(now)))
    if replaced and replaced not in {gate.active, *(entry.digest for entry in kept)} and len(kept) < MAX_ACCEPTED:
        kept.append(Accepted(replaced, since=_stamp(now)))
    return tuple(kept)


def _status(gate: Gate, known: Known, history: tuple[Activation, ...], now: dt.datetime) -> dict[str, Any]:
    return {
        "observedGeneration": gate.generation,
        "history": [_entry(activation) for activation in history],
        "backstop": _backstop(gate, known, now),
        "sets": _sets(gate, known),
        "conditions": [
            *(c for c in sequence(gate.status.get("conditions")) if mapping(c).get("type") != READY),
            _ready(gate, known, now),
        ],
    }


def _entry(activation: Activation) -> dict[str, str]:
    fields = {"digest": activation.digest, "at": activation.at, "by": activation.by, "note": activation.note}
    return {name: value for name, value in fields.items() if value}


def _backstop(gate: Gate, known: Known, now: dt.datetime) -> dict[str, Any]:
    """What the backstop goes by (admission/backstop.py): what some set that counts lets pass, and all of them serve.

    While a set that the Gate names is neither loaded nor refused, a webhook may go by exceptions that are not known
    here: then, while the lane switch is not settled, and where there is more than the schema takes, it is about no set,
    and nothing is refused by it. What counted a moment ago a webhook may go by still, and a namespace is told of when
    its labels are settled.
    """
    before = mapping(gate.status.get("backstop"))
    counted = (*known.sets, *known.recent)
    yesterday = (now - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)).days - 1  # clocks differ, and so days do
    exceptions = {
        (rule, namespace)
        for found in counted
        for exception in found.exceptions
        if exception.expires >= yesterday
        for rule in exception.rules
        for namespace in exception.namespaces
    }
    users = {user for found in counted for user in found.settings.exempt_users}
    domains = frozenset.intersection(*(found.served_domains() for found in counted)) if counted else frozenset()
    namespaces = _namespaces(gate, known, counted)
    loaded = {found.digest for found in known.sets}.union(known.refused).issuperset(gate.named)
    switched = known.lane is None or not known.lane.settled(told=before.get("lane") == known.lane.said)
    too_much = max(len(exceptions), len(users), len(domains)) > TOLD or len(namespaces) > TOLD_NAMESPACES
    if not known.sets or not loaded or switched or too_much:
        return {"active": "", "lane": "", "namespaces": [], "domains": [], "exceptions": [], "exemptUsers": []}
    return {
        "active": gate.active,
        "lane": switch_text(gate.switch),
        "namespaces": sorted(namespaces),
        "domains": sorted(domains),
        "exceptions": [{"rule": rule, "namespace": namespace} for rule, namespace in sorted(exceptions)],
        "exemptUsers": sorted(users),
    }


def _namespaces(gate: Gate, known: Known, counted: Iterable[PolicySet]) -> list[str]:
    """What the backstop is told of namespaces. While none are listed, what it was told goes on: it fits the labels that
    a namespace has, or counts for nothing.
    """
    before = mapping(gate.status.get("backstop"))
    entries = [text(entry) for entry in sequence(before.get("namespaces"))]
    if known.namespaces is None:
        same = (before.get("active"), before.get("lane")) == (gate.active, switch_text(gate.switch))
        return entries if same else []
    listed = {entry.rpartition("/")[0] for entry in entries}
    return [
        told(one.said, lane)
        for name, one in known.namespaces.items()
        if one.said and one.settled(told=one.said in listed) and (lane := _lane(name, one.said, gate.switch, counted))
    ]


def _lane(namespace: str, said: str, switch: Switch, counted: Iterable[PolicySet]) -> str:
    """The namespace's lane; empty where the sets differ about it, as they differ about its tenant."""
    label = said.split("/")[1]
    owners = (found.tenant_of(namespace) for found in counted)
    lanes = {switch.lane_of("" if owner is None else owner.name, label) for owner in owners}
    return lanes.pop() if len(lanes) == 1 else ""


def _sets(gate: Gate, known: Known) -> list[dict[str, Any]]:
    accepted = {entry.digest for entry in gate.accepted}
    found: list[dict[str, Any]] = []
    for digest in dict.fromkeys((*filter(None, (known.in_use,)), *gate.named, *(known.missing or {}))):
        entry: dict[str, Any] = {"digest": digest}
        otherwise = "Unusable" if digest in known.refused else "Accepted" if digest in accepted else "Published"
        entry["state"] = "Active" if digest == known.in_use else otherwise
        if digest in known.refused:
            entry["message"] = known.refused[digest][:1024]
        if known.missing is not None and digest in known.missing:
            entry["templatesMissing"] = known.missing[digest]
        found.append(entry)
    return found[:SETS]


def _ready(gate: Gate, known: Known, now: dt.datetime) -> dict[str, Any]:
    lacking = (known.missing or {}).get(known.in_use)
    if known.in_use != gate.active:
        why = known.refused.get(gate.active, "it has not been loaded yet")
        stays = f"; policy set {known.in_use} stays in use" if known.in_use else ""
        status, reason, message = "False", "SetUnusable", f"the active policy set can't be used: {why}{stays}"
    elif known.in_use in known.refused:
        status, reason = "False", "SetLost"
        message = (
            f"the active policy set is in use, but replicas that start now have none: {known.refused[known.in_use]}"
        )
    elif lacking is None:
        status, reason, message = "Unknown", "TemplatesUnknown", "the cluster's templates have not been listed yet"
    elif lacking:
        status, reason, message = "False", "TemplatesMissing", f"{lacking} templates are not in place yet"
    else:
        status, reason, message = "True", "InUse", "the active policy set is in use and its templates are in place"
    before = next((mapping(c) for c in sequence(gate.status.get("conditions")) if mapping(c).get("type") == READY), {})
    same = before.get("status") == status
    return {
        "type": READY,
        "status": status,
        "observedGeneration": gate.generation,
        "lastTransitionTime": (text(before.get("lastTransitionTime")) if same else "") or _stamp(now),
        "reason": reason,
        "message": message[:MESSAGE],  # a refusal may quote a file
    }


def activator(gate: Object) -> str:
    """The field manager that last wrote `spec.active`, by the raw Gate's managedFields; empty if it doesn't say.

    kube-apiserver moves a field to whoever changes its value; who sent the same value by apply shares it, so that the
    newest entry counts.
    """
    newest, name = "", ""
    for entry in map(mapping, sequence(mapping(gate.get("metadata")).get("managedFields"))):
        fields = mapping(mapping(entry.get("fieldsV1")).get("f:spec"))
        if "f:active" in fields and text(entry.get("time")) >= newest:
            newest, name = text(entry.get("time")), text(entry.get("manager"))
    return name


def _stamp(now: dt.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
