"""What is done about Pods whose devices turn out unhealthy. Pure: past, budget and time come in as arguments.

Healthy is what the capacity view says of a device (allocation/capacity.py), with the tolerations that the claim was
allocated with. Times are in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Literal

from dra_gate.allocation.capacity import CORDONED, TAINTED, UNPUBLISHED, DeviceId
from dra_gate.kube.pod import claim_entries, claim_names, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN
from dra_gate.policy.model import PolicyRef

Action = Literal["none", "alert", "recreate"]
# Why that is done. The first five are told of nobody.
Code = Literal[
    "healthy", "ended", "kept", "cordoned", "settling", "alerted", "running", "uncontrolled", "forbidden", "looping",
    "budget", "recreated",
]  # fmt: skip

# A driver publishes a pool anew slice by slice, a node misses a heartbeat, a taint comes and goes: none is an illness.
SETTLE_SECONDS = 10.0
# As many Pods one after the other meet the same fate: then the fault is not in one device, and no more is tried.
MOST_ATTEMPTS = 3
FORGET_SECONDS = 3600.0  # an attempt counts for so long
# A node of eight devices at once, and then two Pods a minute: a lost rack moves within the hour, a flapping driver does
# not drive a tenant's Pods around.
BUDGET = 8.0
REFILL_SECONDS = 30.0

_SHOWN = 3  # devices in a text


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A Pod that holds claims. `claims` are their names; `owner` is the UID of the controller that would make another,
    empty where none would; `begun`: a container of it runs or has run; `ended`: for good, or it is being deleted.
    """

    uid: str
    version: str
    owner: str
    claims: tuple[str, ...]
    begun: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """An allocated claim: the policy that it is of, if any, and its devices, each with the tolerations it was given
    with. Devices for administration are left out: to look at an ill device is what they are for.
    """

    policy: PolicyRef | None
    devices: tuple[tuple[DeviceId, tuple[Object, ...]], ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A Pod of some owner was recreated, when; `number` counts from 1 those that one led to the other."""

    at: float
    number: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How many Pods may be recreated: `left` at time `at`, and one more every REFILL_SECONDS, up to BUDGET.

    Who begins to lead does not know what was spent before, so a budget begins with one.
    """

    left: float
    at: float

    @classmethod
    def first(cls, now: float) -> Budget:
        """The budget of somebody of whom nothing is known."""
        return cls(1.0, now)

    def by(self, now: float) -> Budget:
        """As it is at `now`."""
        return Budget(min(BUDGET, self.left + max(0.0, now - self.at) / REFILL_SECONDS), max(now, self.at))

    def spent(self, now: float) -> Budget:
        """One less."""
        found = self.by(now)
        return replace(found, left=found.left - 1)

    def refill(self, now: float) -> float:
        """When the next Pod may be recreated."""
        found = self.by(now)
        return found.at + max(0.0, 1 - found.left) * REFILL_SECONDS


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do about a Pod now, why, the same for people, and when to look again if nothing changes meanwhile."""

    action: Action
    code: Code
    text: str = ""
    again: float | None = None


def read_pod(pod: Object) -> PodSeen | None:
    """The Pod, or None for one without claims."""
    if not claim_entries(pod):
        return None
    metadata = mapping(pod.get("metadata"))
    return PodSeen(
        uid=text(metadata.get("uid")),
        version=text(metadata.get("resourceVersion")),
        owner=_owner(metadata),
        claims=claim_names(pod),
        begun=_begun(mapping(pod.get("status"))),
        ended=is_finished(pod) or bool(metadata.get("deletionTimestamp")),
    )


def read_claim(claim: Object) -> ClaimSeen | None:
    """The claim, or None for one that is not allocated."""
    results = [mapping(one) for one in sequence(at(claim, "status", "allocation", "devices", "results"))]
    if not results:
        return None
    labels = mapping(at(claim, "metadata", "labels"))
    name, version = text(labels.get(f"{DOMAIN}/policy")), text(labels.get(f"{DOMAIN}/policy-version"))
    devices = (
        (
            (intern(text(one.get("driver"))), intern(text(one.get("pool"))), intern(text(one.get("device")))),
            tuple(map(mapping, sequence(one.get("tolerations")))),
        )
        for one in results
        if one.get("adminAccess") is not True
    )
    ref = PolicyRef(name, int(version)) if name and version.isascii() and version.isdigit() else None
    return ClaimSeen(ref, tuple(devices))


def _owner(metadata: Object) -> str:
    """A static Pod belongs to its node, and no controller would make another."""
    owners = map(mapping, sequence(metadata.get("ownerReferences")))
    return next((text(o.get("uid")) for o in owners if o.get("controller") is True and o.get("kind") != "Node"), "")


def _begun(status: Object) -> bool:
    """Phase Pending is not enough: init containers run in it."""
    if status.get("phase") not in (None, "Pending"):
        return True
    containers = (
        mapping(one) for key in ("initContainerStatuses", "containerStatuses") for one in sequence(status.get(key))
    )
    return any(
        one.get("restartCount") or {"running", "terminated"} & mapping(one.get("state")).keys() for one in containers
    )


def attempts(past: Iterable[Attempt], seen: float, now: float) -> int:
    """How many Pods were recreated one after the other to bring about a Pod that was first seen at `seen`.

    `past` are those of its owner. Any that came before it may have led to it, so the longest row counts.
    """
    return max((one.number for one in past if one.at <= seen and now - one.at < FORGET_SECONDS), default=0)


def reason_of(problem: str) -> str:
    """What kind of thing is wrong, of a few: taint, pool, node or gone."""
    if problem.startswith(TAINTED):
        return "taint"
    return "gone" if problem == UNPUBLISHED else problem.partition(" ")[0]


def judge(
    pod: PodSeen,
    ill: Mapping[DeviceId, str],
    *,
    word: str,
    since: float,
    before: int,
    budget: Budget,
    may_recreate: str,
    now: float,
) -> Judgement:
    """What is done about `pod`, of whose devices those in `ill` are not healthy, and why each, since `since`.

    `word` is its policy's onUnhealthy; `before` how many Pods were recreated to bring it about; `may_recreate` why none
    may be at all, empty where they may.
    """
    if not ill:
        return Judgement("none", "healthy")
    if pod.ended:
        return Judgement("none", "ended")
    if word == "keep":
        return Judgement("none", "kept")
    if pod.begun and set(ill.values()) == {CORDONED}:
        return Judgement("none", "cordoned")  # it keeps new Pods off and says nothing of those that run
    # A Pod that came of others waits for longer, so that whatever goes round goes round ever more slowly.
    settled = since + SETTLE_SECONDS * 2 ** min(before, MOST_ATTEMPTS)
    if now < settled:
        return Judgement("none", "settling", again=settled)
    told = _told(ill)
    if pod.begun:
        return Judgement("alert", "running", f"{told}. The Pod has started and is left to its controller.")
    if word != "recreate":
        return Judgement("alert", "alerted", f"{told}. The Pod has not started; its policy says to leave it.")
    if not pod.owner:
        why = "has no controller that would make another, so it is left"
        return Judgement("alert", "uncontrolled", f"{told}. The Pod has not started; it {why}.")
    if may_recreate:
        return Judgement("alert", "forbidden", f"{told}. The Pod has not started; it is left, because {may_recreate}.")
    if before >= MOST_ATTEMPTS:
        why = f"{before} Pods before it met the same fate and were recreated"
        return Judgement("alert", "looping", f"{told}. The Pod has not started; it is left, because {why}.")
    if budget.by(now).left < 1:
        why = "too many Pods of this tenant were recreated lately; its turn comes"
        return Judgement("alert", "budget", f"{told}. The Pod has not started; {why}.", again=budget.refill(now))
    return Judgement("recreate", "recreated", f"{told}. The Pod had not started; its controller makes another.")


def _told(ill: Mapping[DeviceId, str]) -> str:
    shown = [f"{'/'.join(device)}: {problem}" for device, problem in sorted(ill.items())]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    which = "A device it was given is" if len(shown) == 1 else f"{len(shown)} devices it was given are"
    return f"{which} not healthy: {', '.join(shown[:_SHOWN])}{more}"
