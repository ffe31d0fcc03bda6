"""Which row of the table holds for a Pod: the one that asks for most, of equals the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_gate.allocation.failures.table import (
    CLASSES,
    ROWS,
    Action,
    Class,
    Pattern,
    Plan,
    Row,
    Stage,
    Told,
    Version,
    When,
    compiled,
    parse_version,
)
from dra_gate.kube.pod import claim_entries, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text

_CONDITIONS = frozenset(when.condition.type for row in ROWS for when in row.when if when.condition)
_CONTAINER_REASONS = frozenset(
    reason for row in ROWS for when in row.when if when.container for reason in when.container.reasons
)
_STATUSES = ("initContainerStatuses", "containerStatuses")
_SPOKEN = ("Unschedulable", "SchedulerError")  # reasons of PodScheduled that the scheduler writes after an attempt


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller knows around the Pod. A fact that is None is not known, and no row that asks for it holds."""

    seconds: float = 0.0
    """For how long the Pod has been in its stage."""
    taints: frozenset[str] = frozenset()
    """Keys of NoSchedule and NoExecute taints on devices that would meet its claims and that it does not tolerate."""
    fleet_can_match: bool | None = None
    """Some published device, free or not, healthy or not, meets an alternative of each of its requests."""
    pool_incomplete: bool | None = None
    """The newest generation of a pool that could serve it lacks slices."""
    pool_with_extra_slices: bool | None = None
    """The newest generation of a pool that could serve it has more slices than it says."""
    fits_without_bad_device: bool | None = None
    """Without the device on which an expression fails the Pod would get what it asks for."""
    class_serves: bool | None = None
    """A DeviceClass carries the name of the extended resource that it asks for."""
    plugin_serves: bool | None = None
    """Some node has that extended resource allocatable."""
    quota_has_room: bool | None = None
    """The ResourceQuota that refused its claim would let it pass now."""
    node_ready: bool | None = None
    """The node that it is bound to is there and Ready."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What keeps a Pod from its devices. `text` is what the control plane said, as it said it; it may be empty.

    `text` may name the Pod's own claims, nodes and devices, never another namespace's objects.
    """

    row: str
    klass: Class
    title: str
    action: Action
    told: tuple[Told, ...]
    backoff: Plan
    advice: str
    text: str = ""


def classify(
    pod: Object | None, claims: Iterable[Object], events: Iterable[Object], version: str, facts: Facts
) -> Failure | None:
    """The row that holds for the Pod, or None when nothing stands against it.

    `pod` is None when none came of what its owner tried: `events` are then the owner's. `claims` are those of the Pod's
    namespace that it names and that exist; more do no harm. `version` is the API server's. Raises ValueError for a
    version that is none.
    """
    look = _Look(pod, claims, events, parse_version(version), facts)
    best: tuple[int, Row, str] | None = None
    for row in ROWS:
        for when in row.when:
            if look.stage not in when.stages or (best and when.weight <= best[0]):
                continue
            said = look.holds(when)
            if said is not None:
                best = when.weight, row, said
    if best is None:
        return None
    row = best[1]
    return Failure(row.id, row.klass, row.title, row.action, row.told, CLASSES[row.klass], row.advice, best[2])


def evidence(pod: Object) -> Object:
    """The part of a Pod that `classify` reads: for callers that keep many Pods. It is classified as the whole is."""
    metadata, spec, status = (mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    kept = {
        "metadata": _kept(metadata, "uid", "deletionTimestamp"),
        "spec": _kept(spec, "nodeName", "schedulingGates", "resourceClaims"),
        "status": _kept(status, "phase", "reason", "message", "resourceClaimStatuses"),
    }
    conditions = [one for one in _mappings(status.get("conditions")) if one.get("type") in _CONDITIONS]
    if conditions:
        kept["status"]["conditions"] = [_kept(one, "type", "status", "reason", "message") for one in conditions]
    for kind in _STATUSES:
        containers = [told for one in _mappings(status.get(kind)) if (told := _told(one))]
        if containers:
            kept["status"][kind] = containers
    return kept


def look_again(seconds: float) -> float | None:
    """How long until a Pod that has been in its stage for `seconds` may come under another row by waiting alone."""
    steps = sorted({when.after for row in ROWS for when in row.when if when.after > seconds})
    return steps[0] - seconds if steps else None


class _Look:
    """One Pod and everything that is said of it."""

    def __init__(
        self, pod: Object | None, claims: Iterable[Object], events: Iterable[Object], version: Version, facts: Facts
    ) -> None:
        self._version = version
        self._facts = facts
        self._pod = pod or {}
        self._conditions = {text(one.get("type")): one for one in _mappings(at(pod, "status", "conditions"))}
        self._events = _newest(events)
        by_name = {text(at(claim, "metadata", "name")): claim for claim in claims}
        self._claims = frozenset(_claim_states(self._pod, by_name))
        self.stage = _stage(self._pod, self._claims, by_name)

    def holds(self, when: When) -> str | None:
        """What was said, if every clause holds; None if one does not."""
        if not when.of_version(self._version) or self._facts.seconds < when.after:
            return None
        if when.claims and self._claims.isdisjoint(when.claims):
            return None
        if any(getattr(self._facts, name) is not wanted for name, wanted in when.facts.items()):
            return None
        if when.taint and not any(compiled(when.taint).search(key) for key in self._facts.taints):
            return None
        if when.silent and text(self._conditions.get("PodScheduled", {}).get("reason")) in _SPOKEN:
            return None
        if when.health and not any(
            one in when.health for status in _container_statuses(self._pod) for one in _healths(status)
        ):
            return None
        said = ""
        for pattern, speakers in (
            (when.condition, self._of_condition),
            (when.event, self._of_event),
            (when.container, self._of_containers),
            (when.pod, self._of_pod),
        ):
            if pattern is not None:
                found = _heard(pattern, speakers(pattern))
                if found is None:
                    return None
                said = said or found
        return said

    def _of_condition(self, pattern: Pattern) -> Iterator[Object]:
        condition = self._conditions.get(pattern.type)
        if condition is not None and (condition.get("status") == "False") == (pattern.type == "PodScheduled"):
            yield condition

    def _of_event(self, pattern: Pattern) -> Iterator[Object]:
        return (self._events[reason] for reason in pattern.reasons if reason in self._events)

    def _of_containers(self, _: Pattern) -> Iterator[Object]:
        for status in _container_statuses(self._pod):
            for state in ("state", "lastState"):
                yield from (mapping(at(status, state, kind)) for kind in ("waiting", "terminated"))

    def _of_pod(self, _: Pattern) -> Iterator[Object]:
        yield mapping(self._pod.get("status"))


def _heard(pattern: Pattern, speakers: Iterable[Object]) -> str | None:
    """The message of the first speaker that the pattern takes."""
    for speaker in speakers:
        message = text(speaker.get("message")) or text(speaker.get("note"))  # note: events.k8s.io
        if pattern.reasons and speaker.get("reason") not in pattern.reasons:
            continue
        if not pattern.message or compiled(pattern.message).search(message):
            return message
    return None


def _stage(pod: Object, wrong: frozenset[str], claims: Mapping[str, Object]) -> Stage:
    if not pod:
        return "refused"
    if at(pod, "metadata", "deletionTimestamp"):
        return "leaving"
    if is_finished(pod):
        return "ended"
    if text(at(pod, "spec", "nodeName")):
        return "running" if at(pod, "status", "phase") == "Running" else "bound"
    if sequence(at(pod, "spec", "schedulingGates")):
        return "held"
    if wrong:
        return "claimless"
    return "binding" if _reserved(pod, claims) else "scheduling"


def _claim_states(pod: Object, claims: Mapping[str, Object]) -> Iterator[str]:
    """What is wrong with the claims that the Pod's entries stand for; nothing for those that are there."""
    made = _made(pod)
    for entry in claim_entries(pod):
        named = text(entry.get("resourceClaimName"))
        if not named:
            if text(entry.get("name")) not in made:
                yield "unmade"
                continue
            named = made[text(entry.get("name"))]
            if not named:  # the controller found that this entry needs no claim
                continue
        claim = claims.get(named)
        if claim is None:
            yield "missing" if entry.get("resourceClaimName") else "gone"
        elif at(claim, "metadata", "deletionTimestamp"):
            yield "deleting"


def _made(pod: Object) -> Mapping[str, str]:
    """The claims made from the Pod's templates, by entry; empty text where none was needed."""
    statuses = _mappings(at(pod, "status", "resourceClaimStatuses"))
    return {text(one.get("name")): text(one.get("resourceClaimName")) for one in statuses}


def _reserved(pod: Object, claims: Mapping[str, Object]) -> bool:
    """The Pod has claims, and all of them are allocated and reserved for it."""
    made = _made(pod)
    names = [text(e.get("resourceClaimName")) or made.get(text(e.get("name")), "") for e in claim_entries(pod)]
    uid = at(pod, "metadata", "uid")
    users = [sequence(at(claims.get(name), "status", "reservedFor")) for name in names if name]
    return bool(users) and all(any(at(user, "uid") == uid for user in reserved) for reserved in users)


def _container_statuses(pod: Object) -> Iterator[Object]:
    for kind in _STATUSES:
        yield from _mappings(at(pod, "status", kind))


def _healths(container: Object) -> Iterator[str]:
    for allocated in _mappings(container.get("allocatedResourcesStatus")):
        yield from (text(one.get("health")) for one in _mappings(allocated.get("resources")))


def _newest(events: Iterable[Object]) -> Mapping[str, Object]:
    """The newest event of each reason; of equally old ones the later in the list."""
    newest: dict[str, Object] = {}
    for event in sorted(events, key=_seen):
        newest[text(event.get("reason"))] = event
    return newest


def _seen(event: Object) -> str:
    """When it was last seen: RFC 3339 texts in UTC, which sort as they follow each other, but for fractions."""
    series = text(at(event, "series", "lastObservedTime"))
    others = (event.get("lastTimestamp"), event.get("eventTime"), event.get("deprecatedLastTimestamp"))
    created = text(at(event, "metadata", "creationTimestamp"))
    when = series or next(filter(None, map(text, others)), created)
    return when.removesuffix("Z")  # a whole second sorts before its fractions


def _told(container: Object) -> dict[str, Any]:
    """What a container's status says that some row may hear: of most, nothing."""
    told: dict[str, Any] = {}
    for state in ("state", "lastState"):
        for kind in ("waiting", "terminated"):
            said = mapping(at(container, state, kind))
            if said.get("reason") in _CONTAINER_REASONS:
                told.setdefault(state, {})[kind] = _kept(said, "reason", "message")
    if not set(_healths(container)) <= {"Healthy"}:
        told["allocatedResourcesStatus"] = container["allocatedResourcesStatus"]
    return told


def _kept(source: Object, *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names if source.get(name)}


def _mappings(value: object) -> Iterator[Object]:
    return (mapping(one) for one in sequence(value))
