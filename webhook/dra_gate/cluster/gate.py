"""The Gate as a value, and what it means: which of the published policy sets count. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dra_gate.admission.sets import PolicySets
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import NO_SWITCH, Switch

GATE = "default"  # the name of the one Gate
GATES_PATH = "/apis/dra-gate.io/v1alpha1/gates"
GATE_PATH = f"{GATES_PATH}/{GATE}"
# On the Gate, written by `dra-gate policy activate` with the change itself: JSON with digest, generation, by and note.
ACTIVATION = "dra-gate.io/activation"
# On the Gate, written by `dra-gate policy withdraw`: JSON, the newest first, each with digest, at, by and note.
WITHDRAWALS = "dra-gate.io/withdrawals"
MAX_WITHDRAWALS = 20  # that are remembered: annotations have 256 KiB in all
MAX_ACCEPTED = 8  # what the schema takes
MAX_SWITCHED = 500  # tenants with a lane of their own
PREPARED = 2  # published sets that were never active: so many of the newest have their templates made beforehand


@dataclass(frozen=True, slots=True)
class Accepted:
    """A set that is still honoured. `since`: RFC 3339, empty until the controller has written it."""

    digest: str
    pinned: bool = False
    since: str = ""


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation that took effect, or a withdrawal. `at` is RFC 3339; `by` and `note` may be empty."""

    digest: str
    at: str
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Switched:
    """The last change of the switch: who, when (RFC 3339) and why, as the command said it; all may be empty.

    `count` is how many changes of lanes commands have made.
    """

    by: str = ""
    at: str = ""
    reason: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Gate:
    """The Gate as far as anybody reads it. `status` is the raw one; `history` and `observed` are its fields.

    `claimed` is who says to have activated the present set, if the annotation is about this change (`read_gate`);
    `withdrawals` are those by command, the newest first.
    """

    uid: str
    resource_version: str
    generation: int
    active: str
    accepted: tuple[Accepted, ...] = ()
    switch: Switch = NO_SWITCH
    switch_previous: Switch = NO_SWITCH
    switched: Switched = Switched()
    claimed: Activation | None = None
    history: tuple[Activation, ...] = ()
    withdrawals: tuple[Activation, ...] = ()
    observed: int = 0
    status: Object = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """The digests that the spec names, the active one first."""
        return tuple(dict.fromkeys((self.active, *(entry.digest for entry in self.accepted))))

    @property
    def previous(self) -> str:
        """The set that a rollback goes back to: the last one that was active before the present one; or empty."""
        return next((entry.digest for entry in self.history if entry.digest != self.active), "")


def read_gate(obj: Object) -> Gate:
    """The Gate that the API server has stored: its schema has been checked (deploy/base/crds/gate.yaml)."""
    metadata, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    status = mapping(obj.get("status"))
    observed = _number(status.get("observedGeneration"))
    active = text(spec.get("active"))
    return Gate(
        uid=text(metadata.get("uid")),
        resource_version=text(metadata.get("resourceVersion")),
        generation=_number(metadata.get("generation")),
        active=active,
        accepted=tuple(
            Accepted(text(entry.get("digest")), entry.get("pinned") is True, text(entry.get("since")))
            for entry in map(mapping, sequence(spec.get("accepted")))
        ),
        switch=_switch(spec, "override", "tenants"),
        switch_previous=_switch(spec, "previous", "previousTenants"),
        switched=_switched(mapping(spec.get("lane"))),
        claimed=_claimed(text(at(metadata, "annotations", ACTIVATION)), active, observed),
        history=_entries(status.get("history")),
        withdrawals=_entries(_json(text(at(metadata, "annotations", WITHDRAWALS)))),
        observed=observed,
        status=status,
    )


def _switch(spec: Object, override: str, tenants: str) -> Switch:
    lane = mapping(spec.get("lane"))
    entries = {text(entry.get("name")): entry for entry in map(mapping, sequence(lane.get(tenants)))}
    return Switch(
        text(lane.get(override)),
        {name: text(entry.get("lane")) for name, entry in entries.items()},
        text(lane.get("drainBy")) if override == "override" else "",
        {name: text(entry.get("drainBy")) for name, entry in entries.items() if "drainBy" in entry},
    )


def _switched(lane: Object) -> Switched:
    return Switched(
        text(lane.get("by")), text(lane.get("at")), text(lane.get("reason")), _number(lane.get("generation"))
    )


def _entries(raw: object) -> tuple[Activation, ...]:
    return tuple(
        Activation(text(entry.get("digest")), text(entry.get("at")), text(entry.get("by")), text(entry.get("note")))
        for entry in map(mapping, sequence(raw))
    )


def _json(annotation: str) -> object:
    """What the annotation holds; None where it is no JSON."""
    try:
        return json.loads(annotation) if annotation else None
    except (ValueError, RecursionError):
        return None


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _claimed(annotation: str, active: str, observed: int) -> Activation | None:
    """What the annotation claims, if it is about the active set and a generation that was not yet dealt with.

    One that a later change by other means left behind is about an older generation.
    """
    said = _json(annotation)
    if not isinstance(said, dict) or said.get("digest") != active or _number(said.get("generation")) <= observed:
        return None
    return Activation(active, "", text(said.get("by"))[:256], text(said.get("note"))[:1024])


def with_active(
    stored: Object | None, digest: str, *, by: str = "", note: str = "", pin_old: bool = False
) -> dict[str, Any]:
    """The Gate to write so that `digest` is active and the set that was stays accepted; `stored` None makes the first.

    All else stays as it is. `by` and `note` go along for the history. Raises ValueError when so many sets are pinned
    that the old one finds no place.
    """
    metadata, spec = _parts(stored or {"metadata": {"name": GATE}})
    if by or note:
        # What is written changes the spec, which makes it the next generation (apimachinery, ObjectMeta.generation).
        said = {"digest": digest, "generation": _number(metadata.get("generation")) + 1, "by": by, "note": note}
        annotations = mapping(metadata.get("annotations"))
        metadata["annotations"] = {**annotations, ACTIVATION: json.dumps(said, ensure_ascii=False)}
    old = text(spec.get("active"))
    accepted = [entry for entry in map(mapping, sequence(spec.get("accepted"))) if entry.get("digest") != digest]
    if old and old != digest:
        pinned = pin_old or any(entry.get("pinned") is True for entry in accepted if entry.get("digest") == old)
        accepted = [entry for entry in accepted if entry.get("digest") != old]
        if len(accepted) >= MAX_ACCEPTED:
            loose = next((entry for entry in accepted if entry.get("pinned") is not True), None)
            if loose is None:
                raise ValueError(f"{MAX_ACCEPTED} accepted sets are pinned: withdraw one (dra-gate policy withdraw)")
            accepted.remove(loose)
        accepted.append({"digest": old, **({"pinned": True} if pinned else {})})
    if accepted or "accepted" in spec:
        spec["accepted"] = accepted
    spec["active"] = digest
    return {"apiVersion": "dra-gate.io/v1alpha1", "kind": "Gate", "metadata": metadata, "spec": spec}


def with_withdrawn(stored: Object, withdrawal: Activation) -> dict[str, Any]:
    """The Gate to write so that the withdrawal's set is accepted no more, pinned or not; all else stays as it is."""
    metadata, spec = _parts(stored)
    accepted = map(mapping, sequence(spec.get("accepted")))
    spec["accepted"] = [entry for entry in accepted if entry.get("digest") != withdrawal.digest]
    said = [asdict(entry) for entry in (withdrawal, *read_gate(stored).withdrawals)][:MAX_WITHDRAWALS]
    annotations = mapping(metadata.get("annotations"))
    metadata["annotations"] = {**annotations, WITHDRAWALS: json.dumps(said, ensure_ascii=False)}
    return {"apiVersion": "dra-gate.io/v1alpha1", "kind": "Gate", "metadata": metadata, "spec": spec}


def with_switch(stored: Object, switch: Switch, change: Switched) -> dict[str, Any]:
    """The Gate to write so that `switch` counts; all else stays as it is. `change.count` is not looked at.

    Where the lanes stay as they are only what is said of the change is new. Raises ValueError for more tenants than the
    schema takes.
    """
    if len(switch.tenants) > MAX_SWITCHED:
        raise ValueError(f"{len(switch.tenants)} tenants with a lane of their own, and {MAX_SWITCHED} is the most")
    metadata, spec = _parts(stored)
    gate = read_gate(stored)
    before, count = gate.switch_previous, gate.switched.count
    if not switch.same_lanes(gate.switch):
        before, count = gate.switch, count + 1
    said = {"by": change.by, "at": change.at, "reason": change.reason, "drainBy": switch.drain_by}
    spec["lane"] = {
        "override": switch.override,
        "tenants": [
            entry | ({"drainBy": switch.drains[entry["name"]]} if switch.drains.get(entry["name"]) else {})
            for entry in _lanes(switch)
        ],
        "previous": before.override,
        "previousTenants": _lanes(before),
        "generation": count,
        **{name: value for name, value in said.items() if value},
    }
    return {"apiVersion": "dra-gate.io/v1alpha1", "kind": "Gate", "metadata": metadata, "spec": spec}


def _lanes(switch: Switch) -> list[dict[str, str]]:
    return [{"name": name, "lane": lane} for name, lane in sorted(switch.tenants.items())]


def _parts(stored: Object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and spec to write changes into."""
    metadata = dict(mapping(stored.get("metadata")))
    metadata.pop("managedFields", None)
    return metadata, dict(mapping(stored.get("spec")))


def choose(
    gate: Gate | None, sets: Mapping[str, PolicySet], last: PolicySets | None, bridged: Sequence[PolicySet] = ()
) -> PolicySets | None:
    """The sets that count, or None while there are none to go by.

    `sets` are those that are published and can be used, by digest; `last` is what counted before; `bridged` were active
    a moment ago and have not been seen among the accepted ones yet. What counts goes on to count whatever becomes of
    its ConfigMap; what does not, has to be published to begin. Where the Gate's active set can't be used the last one
    that could stays; a replica that has just started finds it in the Gate's history, so that all agree. If it is the
    active set itself that was in use and is there no more, a new replica has nothing to agree on: it waits. A Gate that
    is gone changes nothing.
    """
    if gate is None:
        return last
    active = sets.get(gate.active) or (last.active if last is not None else None)
    if active is None and gate.history and gate.history[0].digest != gate.active:
        active = sets.get(gate.history[0].digest)
    if active is None:
        return None
    counting = {found.digest: found for found in last.all} if last is not None else {}
    known = {**counting, **sets}
    honoured = [known[digest] for digest in gate.named if digest in known] + list(bridged)
    accepted = {found.digest: found for found in honoured if found.digest != active.digest}
    return PolicySets(active, tuple(accepted.values()), gate.generation, gate.switch, gate.switch_previous)


def kept(gate: Gate | None, published: Mapping[str, str]) -> tuple[str, ...]:
    """The digests that are worth having ready, most wanted first.

    What the Gate names, what a rollback would name, and the newest that were never active: whatever is activated next
    is then loaded, and its templates are there. `published` gives the creation time (RFC 3339, as the API server
    writes it) of each set that is published and not refused.
    """
    known = {entry.digest for entry in gate.history} if gate is not None else set()
    fresh = [digest for digest in published if digest not in known and (gate is None or digest not in gate.named)]
    fresh.sort(key=lambda digest: (published[digest], digest), reverse=True)
    named = () if gate is None else (*gate.named, *filter(None, (gate.previous,)))
    return tuple(dict.fromkeys((*named, *fresh[:PREPARED])))
