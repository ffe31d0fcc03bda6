"""What there is to say about a Pod with claims: which devices it got, or why it waits. No I/O, no clock.

A Pod's condition says it, and ends with the number of the decision: so whoever leads next reads from the Pod what has
been said already.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern
from typing import Literal

from dra_gate.admission import stamp as stamps
from dra_gate.admission.late import counts_of
from dra_gate.allocation import failures
from dra_gate.allocation.capacity import EXTRA, INCOMPLETE, TAINTED, CandidateCounts, DeviceId
from dra_gate.allocation.inversion import Inversion
from dra_gate.allocation.record import ClaimDecision, DecisionRecord, chain, clipped, decisive_of, passed_over
from dra_gate.fairness.holding import EXTENDED_CLAIM_ANNOTATION, POD_CLAIM_ANNOTATION
from dra_gate.kube.claim import UnknownAllocationMode, requests
from dra_gate.kube.pod import claim_entries, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN
from dra_gate.policy.model import PolicyRef

CONDITION = f"{DOMAIN}/DeviceAllocated"
SILENT_SECONDS = 5.0  # a Pod that waits for its turn or its claim no longer than this is not worth a word
BOUND_SECONDS = 10.0  # nor is one that a node has not started yet
Stage = Literal["held", "claimless", "scheduling", "binding", "bound", "running", "going"]
_ANY_VERSION = "1.37"  # what is said of a Pod that has ended is said so by each
_MESSAGE_BYTES = 2048
_SAID_BYTES = 300
# What tells, too, why a Pod is not scheduled at all.
_KEPT_OFF = ("affinity", "taint", "resources", "unknown-node", "not-judged")
_MARK = re.compile(r" \[decision (\d{1,9})\]$")
_TROUBLE = re.compile(r"; [a-z]+/([a-z0-9-]+): ")  # what has befallen a Pod that has its devices


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim as decisions read it. `orders`: for each request its name and its alternatives (name, count), in order;
    an `exactly` has one without a name. `results` are request and device; None: not allocated.
    """

    uid: str
    policy: PolicyRef | None
    orders: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    results: tuple[tuple[str, DeviceId], ...] | None
    extended: bool
    pod: str  # name of the Pod that it was made for, empty for others
    deleting: str = ""  # since when
    users: tuple[str, ...] = ()  # UIDs of the Pods that it is reserved for


@dataclass(frozen=True, slots=True)
class Told:
    """What a Pod's condition says already."""

    status: str
    reason: str
    message: str
    sequence: int

    @property
    def row(self) -> str:
        """The cause of a Pod that waits; for one that has its devices what has befallen it, empty for nothing."""
        if self.status != "True":
            return self.message.partition(":")[0]
        found = _TROUBLE.search(self.message)
        return "" if found is None else found[1]

    @property
    def words(self) -> frozenset[str]:
        """The words of the message: devices among them."""
        return frozenset(re.split("[ ,;]+", self.message))


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A Pod with claims. `entries`: claim entry and claim name, empty while there is none. `spec` holds what says
    where the Pod fits, `evidence` what says how it fares.
    """

    namespace: str
    name: str
    uid: str
    created: float
    node: str
    entries: tuple[tuple[str, str], ...]
    stamp: Mapping[str, str]
    told: Told | None
    model: str  # the annotation
    spec: Object
    evidence: Object

    def stage(self, claims: Mapping[str, ClaimSeen]) -> Stage:
        """How far it has come; `going` to its end, or there."""
        if is_finished(self.evidence) or at(self.evidence, "metadata", "deletionTimestamp"):
            return "going"
        if self.node:
            return "running" if at(self.evidence, "status", "phase") == "Running" else "bound"
        if at(self.evidence, "spec", "schedulingGates"):
            return "held"
        there = [claims.get(name) for _, name in self.entries]
        if any(one is None or one.deleting for one in there):
            return "claimless"
        return "binding" if all(one is not None and self.uid in one.users for one in there) else "scheduling"


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known around the Pod: the API server's version, since when (seconds since 1970) it is in its stage, its
    Events as far as somebody asked for them.
    """

    version: str
    since: float
    events: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """What decisions ask of the fleet. `inversion` gets the Pod, the claim's policy, the model and the count."""

    candidates: Callable[[PolicyRef, str, int], Sequence[CandidateCounts]]
    model_of: Callable[[DeviceId], str]
    inversion: Callable[[PodSeen, PolicyRef, str, int], Inversion]
    node_ready: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Decision:
    """A record, and what the Pod's condition and annotation are to say."""

    record: DecisionRecord
    status: str
    reason: str
    message: str
    inversion: Inversion | None = None

    def says_the_same(self, told: Told | None, *, closely: bool) -> bool:
        """Whether `told` says it already; `closely`: which candidate is missing why, too, not only the cause."""
        if told is None or told.status != self.status:
            return False
        if told.message == self.message:
            return True
        if self.status == "True":
            # What a device is may be forgotten when it is published no more; which one was given stays.
            devices = {device for claim in self.record.claims for device in claim.devices}
            return devices <= told.words and told.row == self.record.reason
        return not closely and (told.reason, told.row) == (self.reason, self.message.partition(":")[0])

    def condition(self, now: str) -> dict[str, object]:
        """The entry for `status.conditions`; `now` in RFC 3339."""
        return {
            "type": CONDITION,
            "status": self.status,
            "reason": self.reason,
            "message": f"{self.message} [decision {self.record.sequence}]",
            "lastProbeTime": None,
            "lastTransitionTime": now,
        }


def read_pod(pod: Object) -> PodSeen | None:
    """The Pod as decisions read it; None for one without claims, or that has ended with nothing to tell of its devices:
    there may be thousands of these.
    """
    metadata, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    evidence = failures.evidence(pod)
    if not claim_entries(pod) or (
        is_finished(pod) and failures.classify(evidence, (), (), _ANY_VERSION, failures.Facts()) is None
    ):
        return None
    generated = {
        text(mapping(one).get("name")): text(mapping(one).get("resourceClaimName"))
        for one in sequence(status.get("resourceClaimStatuses"))
    }
    # An entry that resolved to no claim has a status without a name: the Pod needs none for it.
    entries = tuple(
        (text(entry.get("name")), text(entry.get("resourceClaimName")) or generated.get(text(entry.get("name")), ""))
        for entry in claim_entries(pod)
        if entry.get("resourceClaimName") or generated.get(text(entry.get("name")), "-")
    )
    conditions = {text(mapping(one).get("type")): mapping(one) for one in sequence(status.get("conditions"))}
    annotations = mapping(metadata.get("annotations"))
    spec = mapping(pod.get("spec"))
    words = ("nodeSelector", "affinity", "tolerations", "containers", "initContainers", "topologySpreadConstraints")
    bound = [volume for volume in sequence(spec.get("volumes")) if volume]  # of kinds that bind it to nodes
    return PodSeen(
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        created=_seconds(text(metadata.get("creationTimestamp"))),
        node=text(spec.get("nodeName")),
        entries=entries,
        stamp={key: intern(text(annotations[key])) for key in stamps.KEYS if key in annotations},
        told=_told(conditions.get(CONDITION)),
        model=text(annotations.get(stamps.MODEL)),
        spec={"spec": {word: spec[word] for word in words if spec.get(word)} | ({"volumes": bound} if bound else {})},
        evidence=evidence,
    )


def read_claim(claim: Object) -> ClaimSeen:
    """The claim as decisions read it."""
    metadata = mapping(claim.get("metadata"))
    labels, annotations = mapping(metadata.get("labels")), mapping(metadata.get("annotations"))
    name, version = text(labels.get(f"{DOMAIN}/policy")), text(labels.get(f"{DOMAIN}/policy-version"))
    results = None
    if isinstance(at(claim, "status", "allocation"), dict):
        results = tuple(
            (text(one.get("request")), (text(one.get("driver")), text(one.get("pool")), text(one.get("device"))))
            for one in map(mapping, sequence(at(claim, "status", "allocation", "devices", "results")))
        )
    owners = (mapping(one) for one in sequence(metadata.get("ownerReferences")))
    owner = next((text(one.get("name")) for one in owners if one.get("kind") == "Pod"), "")
    extended = annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true"
    return ClaimSeen(
        uid=text(metadata.get("uid")),
        policy=PolicyRef(name, int(version)) if name and version.isascii() and version.isdigit() else None,
        orders=_orders(mapping(claim.get("spec"))),
        results=results,
        extended=extended,
        pod=owner if extended or POD_CLAIM_ANNOTATION in annotations else "",
        deleting=text(metadata.get("deletionTimestamp")),
        users=tuple(text(mapping(one).get("uid")) for one in sequence(at(claim, "status", "reservedFor"))),
    )


def decide(
    pod: PodSeen, claims: Mapping[str, ClaimSeen], tenant: str, fleet: Fleet, now: float, heard: Heard
) -> Decision | None:
    """What to say about `pod`, whose claims are among `claims` by name; None while there is nothing to say.

    `tenant` owns its namespace. The record carries no sequence yet.
    """
    found = [(entry, name, claims.get(name)) for entry, name in pod.entries]
    late = _late_counts(pod)
    written = tuple(
        ClaimDecision(entry, name, late.get(entry, 0), ())
        if claim is None
        else _claim_decision(entry, name, claim, fleet.model_of)
        for entry, name, claim in found
    )
    preferred = tuple(pod.stamp.get(stamps.CANDIDATES, "").split(","))
    parts = tuple(_in_order(one, preferred) if one.entry in late else one for one in written)
    stage = pod.stage(claims)
    allocated = stage != "going" and all(claim is not None and claim.results is not None for _, _, claim in found)
    decisive = decisive_of(parts)
    claim = next((seen for _, name, seen in found if decisive is not None and name == decisive.name), None)
    ref = _policy(claim, pod)
    count, rank = (decisive.count, decisive.rank) if decisive is not None else (0, 0)
    counts = tuple(fleet.candidates(ref, tenant, count)) if ref is not None else ()
    if decisive is None or tuple(one.model for one in counts) != decisive.candidates:
        counts = ()  # no claim is there yet, the policy has gone, or it was made by hand: there is no order to count by
    facts = _facts(counts, now - heard.since, pod.node, fleet)
    named = [_as_object(name, seen) for _, name, seen in found if seen is not None]
    failure = failures.classify(pod.evidence, named, heard.events, heard.version, facts)
    if stage in ("held", "claimless") and now - heard.since <= SILENT_SECONDS:
        return None
    if not allocated and failure is None:
        return None
    # What a grant left out nobody could give. A better candidate that is free all the same; of a Pod that waits, any.
    kept = next((one.candidates for one, part in zip(written, parts, strict=True) if part is decisive), ())
    better = counts[: rank - 1] if rank else counts
    free = next((one for one in better if one.places and one.model in kept), None)
    inverted = None if free is None or ref is None else fleet.inversion(pod, ref, free.model, count)
    why = "" if inverted is None else inverted.text
    if inverted is not None and not allocated:
        why = why if inverted.code in _KEPT_OFF else "not together with what else the Pod asks for"
        inverted = None
    record = DecisionRecord(
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        sequence=0,
        outcome="allocated" if allocated else "failed" if failure and failure.klass == "terminal" else "waiting",
        policy="" if ref is None else str(ref),
        policy_set=pod.stamp.get(stamps.POLICY_SET, ""),
        tenant=tenant,
        lane=pod.stamp.get(stamps.LANE, ""),
        claims=parts,
        candidates=counts,
        model=decisive.model if decisive is not None else "",
        rank=rank,
        passed=passed_over(counts, rank, count, why, kept),
        klass="" if failure is None else failure.klass,
        reason="" if failure is None else failure.row,
        text="" if failure is None else _worded(failure),
        inversion=None if inverted is None else inverted.code,
        at=now,
    )
    if not allocated:
        message = f"{record.reason}: {record.text}"
        if any(one.count for one in parts):
            message += f" {chain(replace(record, text=''))}"
        return Decision(record, "False", record.klass.capitalize(), clipped(message, _MESSAGE_BYTES))
    told = "; ".join(_told_claim(one, record.policy if one is decisive else "") for one in parts)
    if failure is not None:
        told = f"{told}; {record.klass}/{record.reason}: {record.text}"
    reason = "Fallback" if any(one.rank > 1 for one in parts) else "FirstChoice"
    return Decision(record, "True", reason, clipped(told, _MESSAGE_BYTES), inverted)


def _worded(failure: failures.Failure) -> str:
    """The row in words; what the control plane said only where no row knows it."""
    said = f" It says: {clipped(failure.text, _SAID_BYTES)}" if failure.klass == "unknown" and failure.text else ""
    return f"{failure.title}. {failure.advice}.{said}"


def _facts(counts: Sequence[CandidateCounts], seconds: float, node: str, fleet: Fleet) -> failures.Facts:
    reasons = {reason for one in counts for reason in one.unusable}
    # Where nothing at all is published a driver may be starting: that says nothing for good.
    can_match = any(one.matching for one in counts) if any(one.published for one in counts) else None
    return failures.Facts(
        seconds=seconds,
        taints=frozenset(re.split("[=:]", one.removeprefix(TAINTED))[0] for one in reasons if one.startswith(TAINTED)),
        fleet_can_match=can_match,
        pool_incomplete=INCOMPLETE in reasons if counts else None,
        pool_with_extra_slices=EXTRA in reasons if counts else None,
        fits_without_bad_device=any(one.places for one in counts) if counts else None,
        node_ready=fleet.node_ready(node) if node else None,
    )


def _as_object(name: str, claim: ClaimSeen) -> Object:
    """What the table reads of a claim."""
    metadata = {"name": name, **({"deletionTimestamp": claim.deleting} if claim.deleting else {})}
    return {"metadata": metadata, "status": {"reservedFor": [{"uid": uid} for uid in claim.users]}}


def _late_counts(pod: PodSeen) -> Mapping[str, int]:
    """How many devices each claim is for that is written when the Pod is granted."""
    try:
        return counts_of(pod.stamp.get(stamps.CLAIMS, ""))
    except ValueError:  # not the gate's; validate and the arbiter say so
        return {}


def _claim_decision(entry: str, name: str, claim: ClaimSeen, model_of: Callable[[DeviceId], str]) -> ClaimDecision:
    # The request with an order is the accelerators'; where none has one, the first.
    request, order = next(
        (one for one in claim.orders if len(one[1]) > 1 or one[1][0][0]), (*claim.orders, ("", ()))[0]
    )
    candidates = tuple(alternative for alternative, _ in order if alternative)
    count = order[0][1] if order else 0
    if claim.results is None:
        return ClaimDecision(entry, name, count, candidates)
    devices = tuple(f"{pool}/{device}" for _, (_, pool, device) in claim.results)
    chosen = next((result for result in claim.results if result[0].partition("/")[0] == request), None)
    if chosen is None:
        return ClaimDecision(entry, name, count, candidates, devices=devices)
    alternative = chosen[0].partition("/")[2]
    if not alternative:
        model = model_of(chosen[1])
        return ClaimDecision(entry, name, count, (model,) if model else (), model, 1 if model else 0, devices)
    if alternative not in candidates:
        return ClaimDecision(entry, name, count, candidates, alternative, 0, devices)
    rank = candidates.index(alternative) + 1
    return ClaimDecision(entry, name, order[rank - 1][1], candidates, alternative, rank, devices)


def _in_order(claim: ClaimDecision, preferred: tuple[str, ...]) -> ClaimDecision:
    """A claim that was written with the grant, by the order of its Pod: it asks for those that had room then alone."""
    if not claim.candidates or not set(claim.candidates) <= set(preferred):
        return claim
    rank = preferred.index(claim.model) + 1 if claim.rank else 0
    return replace(claim, candidates=preferred, rank=rank)


def _told_claim(claim: ClaimDecision, policy: str) -> str:
    where = ", ".join(claim.devices)
    if not claim.rank:
        return f"{claim.entry}: {where}"
    return f"{claim.model}, rank {claim.rank} of {len(claim.candidates)}{f' of {policy}' if policy else ''}: {where}"


def _policy(claim: ClaimSeen | None, pod: PodSeen) -> PolicyRef | None:
    if claim is not None:
        return claim.policy
    name, version = pod.stamp.get(stamps.POLICY, ""), pod.stamp.get(stamps.POLICY_VERSION, "")
    return PolicyRef(name, int(version)) if name and version.isascii() and version.isdigit() else None


def _orders(spec: Object) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    try:
        return tuple(
            (intern(one.name), tuple((intern(each.name), each.devices()) for each in one.alternatives))
            for one in requests(spec)
            if one.alternatives
        )
    except UnknownAllocationMode:
        return ()


def _told(condition: Object | None) -> Told | None:
    if condition is None:
        return None
    message = text(condition.get("message"))
    mark = _MARK.search(message)
    return Told(
        text(condition.get("status")),
        text(condition.get("reason")),
        message if mark is None else message[: mark.start()],
        0 if mark is None else int(mark[1]),
    )


def _seconds(timestamp: str) -> float:
    try:
        return dt.datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0
