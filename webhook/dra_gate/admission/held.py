"""A Pod that waits for its grant, as its stamp describes it. The arbiter's loop feeds it and keeps the results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sys import intern

from dra_gate.admission import late
from dra_gate.admission import stamp as stamps
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.fairness.events import Held
from dra_gate.fairness.resting import MOST_WHY
from dra_gate.kube import pod as pods
from dra_gate.kube.group import Group, controller_of, group_of, maker_of
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.times import milliseconds
from dra_gate.policy.model import PolicyRef

CONDITION = f"{stamps.DOMAIN}Granted"
DRAINING = f"{stamps.DOMAIN}Draining"  # condition of a Pod that is to be evicted at a time, since its lane went back
_OWNERS = 10_000  # owners whose Pods' ages are remembered
_HEIRS = 1000  # ages an owner
_LAPSE = 600_000  # milliseconds: an owner that makes no Pod for so long has given its place up

# What a TenantLedger has room for: one grant too large would keep its tenant's others from being written.
MOST_CLAIMS = 32
_LONGEST = {stamps.POLICY: 100, stamps.POLICY_VERSION: 18, stamps.POLICY_SET: 64}

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class LateEntry:
    """A claim entry that names a late claim for so many devices."""

    entry: str
    claim: str
    count: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Pod with our stamp and claims, whether our gate still holds it or not.

    Times are milliseconds since 1970. `gates` are all its scheduling gates in order. `since` is what its condition says
    of when it began to wait, None without one. `trouble` says why it can't be granted as it is.
    """

    namespace: str
    name: str
    uid: str
    created: int
    owner: str  # UID of what made it, empty for nobody
    gates: tuple[str, ...]
    tenant: str
    policy: str  # name@version
    policy_set: str
    late: tuple[LateEntry, ...]
    templates: tuple[tuple[str, str], ...]  # entry and template
    priority: int
    deadline: int | None  # activeDeadlineSeconds
    group: Group | None
    since: int | None
    told: tuple[str, str, str] | None  # status, reason and message of the condition
    finished: bool
    deleting: bool
    trouble: str
    lane: str = ""  # stamped
    maker: str = ""  # the controller that would make another, as Kind/name; empty for none
    bound: bool = False
    draining: str = ""  # what its condition says of its end
    unplaced: str = ""  # what the scheduler said when it last found no node for it, without what follows the counts

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def ref(self) -> PolicyRef | None:
        """The policy of its stamp; None where that names none: anybody may have written it."""
        name, _, version = self.policy.rpartition("@")
        return PolicyRef(name, int(version)) if version.isascii() and version.isdigit() and len(version) <= 18 else None

    @property
    def held(self) -> bool:
        """Our gate holds it, and it can still come to run."""
        return stamps.GRANT_GATE in self.gates and not self.finished and not self.deleting

    def request(self, queued: int, charge_of: Callable[[str, str], Charge], members: int) -> Held:
        """What the arbiter is told; `charge_of` gives the worst case of an entry's template."""
        fixed = sum((charge_of(*one) for one in self.templates), NOTHING)
        return Held(
            uid=self.uid,
            tenant=self.tenant,
            policy=self.policy,
            claims=tuple(one.count for one in self.late),
            queued=queued,
            fixed=fixed.devices,
            fixed_models=dict(fixed.models),
            priority=self.priority,
            group=self.group.key if self.group is not None and members > 1 else "",
            members=max(members, 1),
            pod=f"{self.namespace}/{self.name}",
        )


def read(pod: Object) -> Waiting | None:
    """The Pod as the arbiter's loop knows it; None for one without our stamp or without claims."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    stamp = stamps.stamp_on(pod)
    tenant = text(stamp.get(stamps.TENANT))
    gates = tuple(intern(text(mapping(gate).get("name"))) for gate in sequence(spec.get("schedulingGates")))
    if not tenant or not pods.claim_entries(pod):
        return None
    entries: tuple[LateEntry, ...] = ()
    trouble = ""
    try:
        entries = tuple(_entries(pod))
        if len(entries) > MOST_CLAIMS:
            raise ValueError(f"it has {len(entries)} late claims, and a grant has no more than {MOST_CLAIMS}")
        for key, most in _LONGEST.items():
            if len(text(stamp.get(key))) > most:
                raise ValueError(f"annotation {key} is longer than {most} characters")
    except ValueError as error:
        entries, trouble = (), str(error)
    conditions = {text(one.get("type")): one for one in map(mapping, sequence(at(pod, "status", "conditions")))}
    condition, draining = conditions.get(CONDITION), mapping(conditions.get(DRAINING))
    scheduled = mapping(conditions.get("PodScheduled"))
    priority, deadline = spec.get("priority"), spec.get("activeDeadlineSeconds")
    return Waiting(
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        created=milliseconds(text(metadata.get("creationTimestamp"))),
        owner=text(controller_of(pod).get("uid")),
        gates=gates,
        tenant=intern(tenant),
        policy=intern(f"{text(stamp.get(stamps.POLICY))}@{text(stamp.get(stamps.POLICY_VERSION))}"),
        policy_set=intern(text(stamp.get(stamps.POLICY_SET))),
        late=entries,
        templates=tuple(
            (text(entry.get("name")), intern(text(entry["resourceClaimTemplateName"])))
            for entry in pods.claim_entries(pod)
            if entry.get("resourceClaimTemplateName")
        ),
        priority=priority if isinstance(priority, int) else 0,
        deadline=deadline if isinstance(deadline, int) else None,
        group=group_of(pod),
        since=None
        if condition is None or condition.get("status") != "False"
        else milliseconds(text(condition.get("lastTransitionTime"))) or None,
        told=None
        if condition is None
        else (text(condition.get("status")), text(condition.get("reason")), text(condition.get("message"))),
        finished=pods.is_finished(pod),
        deleting=bool(metadata.get("deletionTimestamp")),
        trouble=trouble,
        lane=intern(text(stamp.get(stamps.LANE))),
        maker=maker_of(pod),
        bound=bool(at(pod, "spec", "nodeName")),
        draining=text(draining.get("message")) if draining.get("status") == "True" else "",
        unplaced=_unplaced(scheduled) if scheduled.get("reason") == "Unschedulable" else "",
    )


def _unplaced(scheduled: Object) -> str:
    """The scheduler's message (core/v1, reason Unschedulable), as far as it says of nodes why they don't do."""
    said = text(scheduled.get("message")).partition(" preemption: ")[0].rstrip(". ")
    return said[:MOST_WHY] or "no node"


def _entries(pod: Object) -> Iterator[LateEntry]:
    named = list(late.late_entries(pod))
    if not named:
        return
    counts = late.counts_of(at(pod, "metadata", "annotations", stamps.CLAIMS))
    if set(counts) != {entry for entry, _ in named}:
        raise ValueError(f"annotation {stamps.CLAIMS} names other entries than those with late claims")
    for entry, claim in named:
        yield LateEntry(entry, claim, counts[entry])


class Names:
    """Whose a late claim's name is: the first Pod created with it (creationTimestamp, then UID) has it for good."""

    def __init__(self) -> None:
        self._namers: dict[Key, dict[str, int]] = {}  # claim -> Pod UID -> created

    def add(self, pod: Waiting) -> None:
        """The Pod is there."""
        for one in pod.late:
            self._namers.setdefault((pod.namespace, one.claim), {})[pod.uid] = pod.created

    def drop(self, pod: Waiting) -> None:
        """The Pod is gone."""
        for one in pod.late:
            namers = self._namers.get((pod.namespace, one.claim), {})
            namers.pop(pod.uid, None)
            if not namers:
                self._namers.pop((pod.namespace, one.claim), None)

    def namers(self, claim: Key) -> list[str]:
        """The UIDs of the Pods that name the claim, the one whose it is first."""
        namers = self._namers.get(claim, {})
        return sorted(namers, key=lambda uid: (namers[uid], uid))

    def owns(self, pod: Waiting) -> bool:
        """Whether every late name of the Pod is its own."""
        return all(self.namers((pod.namespace, one.claim))[:1] == [pod.uid] for one in pod.late)


class Ages:
    """Since when a Pod waits, as far as its age counts: its creation, or an older age that a Pod of the same owner left
    behind when it went away ungranted.

    Each such age has one heir, the next new Pod of that owner, and comes back when the heir goes away ungranted, too.
    It lapses when the owner makes no Pod for ten minutes. Times in milliseconds.
    """

    def __init__(self) -> None:
        self._queued: dict[str, int] = {}  # Pod UID
        # namespace and owner UID -> (age, until), oldest first
        self._left: OrderedDict[Key, list[tuple[int, int]]] = OrderedDict()

    def of(self, pod: Waiting) -> int:
        """The Pod's age; asked again, the same."""
        found = self._queued.get(pod.uid)
        if found is None:
            found = pod.created if pod.since is None else min(pod.since, pod.created)
            owner = pod.namespace, pod.owner  # a UID of elsewhere may be written down anywhere
            ages = [one for one in self._left.get(owner, ()) if one[1] >= pod.created]
            if pod.since is None and ages:
                found = min(found, ages.pop(0)[0])
            if owner in self._left:
                self._left[owner] = ages
                if not ages:
                    del self._left[owner]
            self._queued[pod.uid] = found
        return found

    def gone(self, pod: Waiting, now: int, *, granted: bool) -> None:
        """The Pod is gone, or waits no more."""
        queued = self._queued.pop(pod.uid, None)
        if queued is None or granted or not pod.owner:
            return
        owner = pod.namespace, pod.owner
        ages = self._left.setdefault(owner, [])
        ages.append((queued, now + _LAPSE))
        ages.sort()
        del ages[_HEIRS:]
        self._left.move_to_end(owner)
        if len(self._left) > _OWNERS:
            self._left.popitem(last=False)
