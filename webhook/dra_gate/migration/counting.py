"""What is seen of one Pod over time, and what it adds to its cohort. Pure.

What is known of a Pod only grows: it may be seen in any order and as often as it likes, by several controllers, and all
that was known is put together by `merge`. Times are milliseconds since 1970; 0 stands for never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from sys import intern
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dra_gate.allocation.failures.table import ROWS, Pattern, compiled
from dra_gate.fairness.holding import EXTENDED_CLAIM_ANNOTATION, raw_devices
from dra_gate.kube.pod import containers, extended_resource_names, is_finished, resource_requests
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.times import milliseconds
from dra_gate.migration.cohort import HOUR, Cell, Key
from dra_gate.policy.compile import DOMAIN
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import DRA, PLUGIN

# A bound Pod that has not started for so long has failed, its init containers' time aside: when they run, devices are
# prepared. So long after its start a restart counts.
STANDING = 600_000

BIND_FAILED, PREPARE_FAILED, MISTAKE, FAILED, NOT_OURS, INIT_RUNS, INIT_FAILED = 1, 2, 4, 8, 16, 32, 64

_BIND_ROWS = ("bind-conflict", "binding-failed", "binding-timeout", "scheduler-refused", "claim-in-use")
_BINDING = tuple(
    when.condition
    for row in ROWS
    if row.id in _BIND_ROWS
    for when in row.when
    if when.condition is not None and when.condition.reasons == ("SchedulerError",)
)
# Of plugins that need no device: pkg/scheduler/framework/runtime/framework.go.
_BINDING_TEXT = re.compile(r"^running (Reserve|PreBind|Bind) plugin |^binding rejected")
PREPARE_EVENTS = frozenset(
    reason
    for row in ROWS
    for when in row.when
    if when.event is not None and "bound" in when.stages
    for reason in when.event.reasons
)
_REFUSED = tuple(
    when.event for row in ROWS if row.id == "refused-by-gate" for when in row.when if when.event is not None
)
DENIED_EVENT = "FailedCreate"  # pkg/controller/controller_utils.go
_OF_DEVICES = tuple(when.container for row in ROWS for when in row.when if when.container is not None)
# pkg/kubelet/images/types.go, pkg/kubelet/container/sync_result.go and kuberuntime_container.go.
_MISTAKES = frozenset({
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
    "SignatureValidationFailed", "CreateContainerConfigError",
})  # fmt: skip
_UNRUNNABLE = frozenset({"RunContainerError", "StartError", "ContainerCannotRun", "CreateContainerError"})
_NO_COMMAND = re.compile(
    r"executable file not found|no such file or directory|permission denied|exec format error|no command specified"
)


_LONGEST_POLICY = 120  # characters of name and version
# Of the stamp: lane, tenant, devices, candidates, policy, version.
_STAMP = tuple(f"{DOMAIN}/{word}" for word in ("lane", "tenant", "devices", "candidates", "policy", "policy-version"))


class Facts(Struct, array_like=True):
    """What is known of one Pod.

    `created` and `bound` are whole seconds, as the API server and the scheduler write them; `seen` and `bound_seen` are
    when somebody who watched first saw it so. `started`: all of its containers ran. `restarted`: its first known
    restart. `taken`: somebody asked to delete it. `ended`: it finished, or was gone. `got`: of each of its claims a
    number, the version that says so, and whether it is the first choice. `version` is the newest one that was seen.
    `initialised`: its init containers had ended well, if it has any.
    """

    created: int
    seen: int = 0
    bound: int = 0
    bound_seen: int = 0
    started: int = 0
    restarted: int = 0
    taken: int = 0
    ended: int = 0
    flags: int = 0
    version: int = 0
    got: tuple[tuple[int, int, bool], ...] = ()
    initialised: int = 0

    def merge(self, other: Facts) -> Facts:
        """What both know together."""
        got = self.got
        if other.got != got:
            newest: dict[int, tuple[int, int, bool]] = {}
            for one in sorted((*got, *other.got)):
                newest[one[0]] = one
            got = tuple(sorted(newest.values()))
        return Facts(
            _first(self.created, other.created),
            _first(self.seen, other.seen),
            _first(self.bound, other.bound),
            _first(self.bound_seen, other.bound_seen),
            _first(self.started, other.started),
            _first(self.restarted, other.restarted),
            _first(self.taken, other.taken),
            _first(self.ended, other.ended),
            self.flags | other.flags,
            max(self.version, other.version),
            got,
            _first(self.initialised, other.initialised),
        )


class PodSeen(Struct, frozen=True):
    """What was seen of a Pod once. `asked` are extended resources by name; `facts` are of this look alone."""

    uid: str
    namespace: str
    node: str
    stamp: tuple[str, ...]  # as _STAMP
    asked: tuple[tuple[str, int], ...]
    facts: Facts

    def after(self, earlier: PodSeen | None) -> PodSeen:
        """This look, knowing what an earlier one saw."""
        return self if earlier is None else replace(self, facts=earlier.facts.merge(self.facts))


def read_pod(pod: Object, now: int) -> PodSeen | None:
    """A look at a Pod at `now`; None for one that has nothing to do with devices."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    stamp = tuple(intern(text(annotations.get(key))) for key in _STAMP) if _STAMP[0] in annotations else ()
    asked = asked_of(pod)
    if not stamp and not asked:
        return None
    return PodSeen(
        text(metadata.get("uid")),
        intern(text(metadata.get("namespace"))),
        intern(text(spec.get("nodeName"))),
        stamp,
        asked,
        _facts(pod, metadata, spec, now),
    )


def asked_of(pod: Object) -> tuple[tuple[str, int], ...]:
    """The extended resources that a Pod asks for, and how many of each it needs at once."""
    names = {name for container in containers(pod) for name in extended_resource_names(container)}
    found = ((intern(name), raw_devices(resource_requests(pod, name.__eq__))) for name in sorted(names))
    return tuple((name, count) for name, count in found if count)


class ClaimSeen(Struct, frozen=True):
    """A claim that Pods have reserved: by UID, and the models that its devices are of (empty: the only one that it may
    have). `extended`: the scheduler made it for an extended resource.
    """

    pods: tuple[str, ...]
    number: int
    version: int
    models: tuple[str, ...]
    extended: bool

    def facts(self, first: str) -> Facts:
        """What it says of a Pod whose first choice is `first`."""
        if self.extended:
            return Facts(0, flags=NOT_OURS)
        is_first = all(model in ("", first) for model in self.models)
        return Facts(0, got=((self.number, self.version, is_first),))


def read_claim(claim: Object) -> ClaimSeen | None:
    """A claim that gives devices to Pods; None for one that gives none yet, or is neither a policy's nor the
    scheduler's own.
    """
    metadata = mapping(claim.get("metadata"))
    extended = mapping(metadata.get("annotations")).get(EXTENDED_CLAIM_ANNOTATION) == "true"
    results = sequence(at(claim, "status", "allocation", "devices", "results"))
    pods = tuple(text(mapping(one).get("uid")) for one in sequence(at(claim, "status", "reservedFor")))
    if not results or not pods or not (extended or f"{DOMAIN}/policy" in mapping(metadata.get("labels"))):
        return None
    alternatives = {text(mapping(one).get("request")).partition("/")[2] for one in results}
    models = tuple(sorted(intern(one) for one in alternatives - {""})) or ("",)
    return ClaimSeen(pods, _number(text(metadata.get("uid"))), version_of(metadata), models, extended)


class Denial(Struct, frozen=True):
    """A Pod that its owner wanted was refused by the gate. `at` is when it was last."""

    owner: str
    kind: str
    namespace: str
    name: str
    at: int

    @property
    def hour(self) -> int:
        """The hour in which it counts."""
        return self.at - self.at % HOUR


def read_denial(event: Object) -> Denial | None:
    """What an Event tells of an owner whose Pod the gate refused; None for any other refusal."""
    reason, message = text(event.get("reason")), text(event.get("message"))
    about = mapping(event.get("involvedObject"))
    if not any(_says(one, reason, message) for one in _REFUSED) or not about.get("uid"):
        return None
    uid, kind, namespace, name = (text(about.get(word)) for word in ("uid", "kind", "namespace", "name"))
    return Denial(uid, kind, namespace, name, event_time(event))


def event_time(event: Object) -> int:
    """When the Event last came."""
    series = text(at(event, "series", "lastObservedTime"))
    others = (text(event.get("lastTimestamp")), text(event.get("eventTime")))
    created = text(at(event, "metadata", "creationTimestamp"))
    return next((found for one in (series, *others, created) if (found := milliseconds(one))), 0)


class Around(Struct, frozen=True):
    """What says to which cohort a Pod belongs. `lane` is the lane of a namespace, empty for one that is not gated."""

    sets: Sequence[PolicySet]
    lane: Callable[[str], str]

    def served(self, name: str) -> bool:
        """Some policy answers requests for this extended resource."""
        return any(name in policy.serves for one in self.sets for policy in one.policies.values())


def key_of(pod: PodSeen, around: Around) -> Key | None:
    """The cohort of a Pod; None for one that does not count: it asks for no device, or nobody pays for it.

    What the stamp says counts where the gate judges stamps. Whoever asks for devices directly, and was given no claim
    instead, is a Pod of the lane of device plugins: before its namespace was gated, too.
    """
    if pod.stamp and around.lane(pod.namespace):
        lane, tenant, devices, candidates, policy, version = pod.stamp
        size = int(devices) if devices.isascii() and devices.isdigit() and len(devices) < 6 else 0
        first = candidates.partition(",")[0]
        known = any(tenant in one.tenants for one in around.sets) and any(first in one.models for one in around.sets)
        if lane in (DRA, PLUGIN) and size and known:
            # Where the gate only warns anybody may have written it, at any length, and the counts have to fit.
            said = f"{policy}@{version}" if len(policy) + len(version) < _LONGEST_POLICY else ""
            return Key(DRA if lane == DRA else PLUGIN, tenant, size, first, intern(said))
    return key_of_request(pod.namespace, dict(pod.asked), around, PLUGIN)


def key_of_request(namespace: str, asked: Mapping[str, int], around: Around, lane: str) -> Key | None:
    """The cohort of a Pod without a stamp that asks for these extended resources there."""
    active = around.sets[0]
    tenant = active.tenant_of(namespace)
    size = 0 if tenant is None else sum(count for name, count in asked.items() if around.served(name))
    if tenant is None or not size:
        return None
    ref = tenant.policy_for(namespace)
    first = active.policies[ref].candidates[0]
    if lane == DRA:
        return Key(DRA, tenant.name, size, first, intern(str(ref)))
    return Key(PLUGIN, tenant.name, size, first)


def counted(facts: Facts, key: Key, uid: str, now: int) -> Cell:
    """What the Pod adds to its cell, as known at `now`. It only grows as more is known and time passes."""
    cell = Cell()
    if facts.flags & NOT_OURS:
        return cell
    cell.submitted = 1
    cell.bind_failed = int(bool(facts.flags & BIND_FAILED))
    if not facts.bound:
        return cell
    bound = _moment(facts.bound, facts.bound_seen, uid, "bound")
    cell.bind(max(0, bound - _moment(facts.created, facts.seen, uid, "created")))
    cell.first = int(bool(facts.got) and all(first for _, _, first in facts.got))
    cell.prepare_failed = int(bool(facts.flags & PREPARE_FAILED))
    cell.held = key.size * max(0, (facts.ended or max(now, facts.bound)) - facts.bound) // 1000
    if facts.started and facts.started <= _ready(facts, facts.started) + STANDING:
        cell.started = 1
        cell.restarted = int(0 < facts.restarted <= facts.started + STANDING)
    elif not facts.flags & MISTAKE:
        cell.failed = int(bool(facts.started) or _has_failed(facts, now))
    return cell


def version_of(metadata: Object) -> int:
    """The resourceVersion as a number, which may be compared within a kind since KEP-5504; 0 for something else."""
    said = text(metadata.get("resourceVersion"))
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else 0


def _ready(facts: Facts, now: int) -> int:
    """Since when only its devices, its images and its node keep the Pod from starting; `now` while init containers run.

    One that failed may have done so for its devices: then it is since it was bound.
    """
    if facts.flags & INIT_FAILED or not (facts.initialised or facts.flags & INIT_RUNS):
        return facts.bound
    return facts.initialised or now


def _has_failed(facts: Facts, now: int) -> bool:
    """Of a bound Pod that did not start in time. One that was taken away before that, well as it was, has not."""
    stood_until = min(one for one in (now, facts.taken, facts.ended) if one)
    gone = facts.ended or facts.taken
    return bool(
        stood_until > _ready(facts, stood_until) + STANDING
        or (facts.flags & FAILED and facts.ended)
        or (facts.flags & PREPARE_FAILED and gone)
    )


def _moment(second: int, seen: int, uid: str, what: str) -> int:
    """When within that second it happened: as it was seen, if somebody looked then, else anywhere, by the UID.

    Kubernetes writes whole seconds. Were they taken as they are, a wait of half a second would be none or a whole one.
    """
    if 0 <= seen - second < 1500:
        return min(seen, second + 999)
    return second + _number(f"{uid} {what}") % 1000


def _facts(pod: Object, metadata: Object, spec: Object, now: int) -> Facts:
    status = mapping(pod.get("status"))
    scheduled = next(
        (one for one in map(mapping, sequence(status.get("conditions"))) if one.get("type") == "PodScheduled"), {}
    )
    facts = Facts(milliseconds(text(metadata.get("creationTimestamp"))), now, version=version_of(metadata))
    if text(spec.get("nodeName")):
        since = milliseconds(text(scheduled.get("lastTransitionTime"))) if scheduled.get("status") == "True" else 0
        facts.bound, facts.bound_seen = since or now - now % 1000, now
    elif scheduled.get("reason") == "SchedulerError" and _binding_failed(text(scheduled.get("message"))):
        facts.flags |= BIND_FAILED
    if metadata.get("deletionTimestamp"):
        grace = metadata.get("deletionGracePeriodSeconds")
        ends = milliseconds(text(metadata["deletionTimestamp"]))
        facts.taken = max(1, ends - 1000 * (grace if isinstance(grace, int) else 0))
    if text(status.get("reason")) == "UnexpectedAdmissionError":
        facts.flags |= PREPARE_FAILED
    main = [mapping(one) for one in sequence(status.get("containerStatuses"))]
    if facts.bound:
        _of_containers(facts, main, len(sequence(spec.get("containers"))))
        _of_init_containers(facts, sequence(spec.get("initContainers")), sequence(status.get("initContainerStatuses")))
        both = (*main, *map(mapping, sequence(status.get("initContainerStatuses"))))
        if any(_mistaken(said) for container in both for said in _troubles(container)):
            facts.flags |= MISTAKE
    if is_finished(pod):
        ends_at = [milliseconds(text(at(one, "state", "terminated", "finishedAt"))) for one in main]
        facts.ended = max(ends_at, default=0) or now
        if status.get("phase") == "Failed":
            facts.flags |= FAILED
        elif not facts.started:
            facts.started = facts.ended  # it succeeded, so it ran
    return facts


def _of_containers(facts: Facts, statuses: Sequence[Object], wanted: int) -> None:
    starts = [_start(one, facts.bound) for one in statuses]
    if starts and len(starts) >= wanted and all(starts):
        facts.started = max(starts)
        ends = [milliseconds(text(at(one, "lastState", "terminated", "finishedAt"))) for one in statuses]
        facts.restarted = min((end for end in ends if end), default=0)


def _of_init_containers(facts: Facts, wanted: Sequence[Any], statuses: Sequence[Any]) -> None:
    """The kubelet keeps statuses in the order of the containers. Sidecars do not end."""
    pairs = zip(map(mapping, wanted), map(mapping, statuses), strict=False)
    serial = [said for container, said in pairs if container.get("restartPolicy") != "Always"]
    ends = [mapping(at(said, "state", "terminated")) for said in serial]
    if any(end.get("exitCode") or said.get("restartCount") for said, end in zip(serial, ends, strict=True)):
        facts.flags |= INIT_FAILED
    if any(end or mapping(at(said, "state", "running")) for said, end in zip(serial, ends, strict=True)):
        facts.flags |= INIT_RUNS
    if serial and len(statuses) == len(wanted) and all(end.get("exitCode") == 0 for end in ends):
        facts.initialised = max(milliseconds(text(end.get("finishedAt"))) for end in ends)


def _start(status: Object, bound: int) -> int:
    """When the container first ran, or the earliest that may be; 0 if it never did."""
    found = [
        milliseconds(text(at(status, *path, "startedAt")))
        for path in (("lastState", "terminated"), ("state", "running"), ("state", "terminated"))
    ]
    ran = [one for one in found if one]
    restarts = status.get("restartCount")
    if ran and isinstance(restarts, int) and restarts > 1:
        return bound  # what its status says of its first run is gone
    return min(ran, default=0)


def _troubles(container: Object) -> Iterator[Object]:
    for state in ("state", "lastState"):
        yield from (mapping(at(container, state, kind)) for kind in ("waiting", "terminated"))


def _mistaken(said: Object) -> bool:
    """Whether a container cannot run for what its owner wrote, and not for its devices."""
    reason, message = text(said.get("reason")), text(said.get("message"))
    if reason in _MISTAKES:
        return True
    if reason not in _UNRUNNABLE or not _NO_COMMAND.search(message):
        return False
    return not any(_says(pattern, reason, message) for pattern in _OF_DEVICES)


def _binding_failed(message: str) -> bool:
    return bool(_BINDING_TEXT.search(message)) or any(_says(one, "SchedulerError", message) for one in _BINDING)


def _says(pattern: Pattern, reason: str, message: str) -> bool:
    return reason in pattern.reasons and (not pattern.message or bool(compiled(pattern.message).search(message)))


def _first(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def _number(of: str) -> int:
    return int.from_bytes(blake2b(of.encode(), digest_size=4).digest(), "big")
