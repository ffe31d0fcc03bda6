"""Decision records: what a Pod got, or why it waits, and what there was to give. Read by people and by replay.

A record names the tenant, Pod and devices that it is about and no others: what others hold stands in it as counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from dra_gate.allocation.capacity import CandidateCounts

API_VERSION = "decision.dra-gate.io/v1alpha1"
NOTE_BYTES = 1024  # events.k8s.io/v1: the note's limit
_CUT = " …"

Outcome = Literal["allocated", "waiting", "failed"]
# Why a better candidate was not given, the first that holds.
Passed = Literal["unpublished", "unmatched", "unhealthy", "in-use", "scattered", "ungranted", "inverted"]


@dataclass(frozen=True, slots=True)
class ClaimDecision:
    """One claim of the Pod: what it asked for and what it was given.

    `candidates` are the models in the claim's order, or in the Pod's where a grant wrote the claim; `count` the devices
    asked for. `model` is empty and `rank` 0 until it is allocated. `devices` are written pool/device. A claim without
    an order has one candidate or none.
    """

    entry: str
    name: str
    count: int
    candidates: tuple[str, ...]
    model: str = ""
    rank: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A better candidate that was not given, and why."""

    model: str
    code: Passed
    text: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision about one Pod; `sequence` counts its decisions from 1. With the Pod's UID it says which one it is.

    `candidates`, `model`, `rank` and `passed` are those of the decisive claim: the one of the worst rank, or the first
    that waits. `policy` is name@version, empty for a claim of no policy. `klass`, `reason` and `text` say why it waits
    or failed, empty where it was allocated; `inversion` why a better candidate stayed free, where one did. `snapshot`
    is the digest of a saved snapshot, `at` in seconds since 1970.
    """

    namespace: str
    pod: str
    uid: str
    sequence: int
    outcome: Outcome
    policy: str
    policy_set: str
    tenant: str
    lane: str
    claims: tuple[ClaimDecision, ...]
    candidates: tuple[CandidateCounts, ...] = ()
    model: str = ""
    rank: int = 0
    passed: tuple[PassedOver, ...] = ()
    klass: str = ""
    reason: str = ""
    text: str = ""
    inversion: str | None = None
    snapshot: str | None = None
    at: float = 0.0

    @property
    def of(self) -> int:
        """How many candidates the decisive claim has."""
        decisive = self.decisive
        return 0 if decisive is None else len(decisive.candidates)

    @property
    def decisive(self) -> ClaimDecision | None:
        """The claim that the record's rank is about."""
        return decisive_of(self.claims)


def decisive_of(claims: Sequence[ClaimDecision]) -> ClaimDecision | None:
    """The first claim that waits, else the first of the worst rank; None where none has candidates."""
    ordered = [claim for claim in claims if claim.candidates]
    waiting = next((claim for claim in ordered if not claim.rank), None)
    return waiting or max(ordered, key=lambda claim: claim.rank, default=None)


def dumps(record: DecisionRecord) -> bytes:
    """One line of JSON."""
    head = {"apiVersion": API_VERSION, "kind": "DecisionRecord"}
    return msgspec.json.encode({**head, **msgspec.to_builtins(record)})


def loads(line: bytes) -> DecisionRecord:
    """The record of a line. Raises ValueError for what is none."""
    head = msgspec.json.decode(line)
    if not isinstance(head, dict) or head.get("apiVersion") != API_VERSION or head.get("kind") != "DecisionRecord":
        raise ValueError(f"not a DecisionRecord of {API_VERSION}")
    return msgspec.convert(head, DecisionRecord)  # its ValidationError is a ValueError


def passed_over(
    counts: Iterable[CandidateCounts], rank: int, count: int, inversion: str, asked: Collection[str] | None = None
) -> tuple[PassedOver, ...]:
    """Why the candidates before `rank` (all for rank 0) were not given to who asked for `count` devices.

    `inversion` says why one that was free all the same was passed over. `asked` are the models that the claim asks for,
    if not all: a grant leaves others out.
    """
    better = list(counts)
    return tuple(
        _passed(one, count, inversion, granted=asked is None or one.model in asked)
        for one in (better[: rank - 1] if rank else better)
    )


def _passed(one: CandidateCounts, count: int, inversion: str, *, granted: bool) -> PassedOver:
    if not one.published:
        return PassedOver(one.model, "unpublished", "none published")
    if not one.matching:
        return PassedOver(one.model, "unmatched", f"none of {one.published} meets {_each(one.turned_away)}")
    some = f"{one.matching}" if one.matching == one.published else f"{one.matching} of {one.published} that match"
    if not one.usable:
        return PassedOver(one.model, "unhealthy", f"none of {some} healthy: {_each(one.unusable)}")
    healthy = f"{one.usable} healthy" if one.usable < one.matching else some
    if not one.free:
        yours = f", {one.own} by this tenant" if one.own else ""
        return PassedOver(one.model, "in-use", f"all {healthy} in use{yours}")
    if not one.places:
        return PassedOver(one.model, "scattered", f"{one.free} free, nowhere {count} together")
    if not granted:
        return PassedOver(one.model, "ungranted", f"{one.free} free now, and had no room when the Pod was granted")
    return PassedOver(one.model, "inverted", f"{one.free} free: {inversion or 'it is not known why'}")


def _each(reasons: object) -> str:
    assert isinstance(reasons, dict)  # noqa: S101 - counts are made as dicts
    return ", ".join(f"{reason} ({count})" for reason, count in reasons.items())


def chain(record: DecisionRecord, as_tenant: str | None = None) -> str:
    """The decision as one text for people, at most 1,024 bytes; for another tenant only that one was made."""
    if as_tenant is not None and as_tenant != record.tenant:
        return f"1 Pod of another tenant: {record.outcome}."
    decisive = record.decisive
    head = [f"{_asked(record)}."]
    steps = [f"{one.model}: {one.text}." for one in record.passed]
    if decisive is not None and record.outcome == "allocated":
        steps.append(f"{decisive.model}: given, rank {decisive.rank} of {len(decisive.candidates)}.")
    tail = [f"{claim.entry}: {_given(claim)}." for claim in record.claims if claim.devices]
    if record.text:
        tail.append(f"{record.klass}: {record.text}")
    return _fitted(head, steps, tail)


def _asked(record: DecisionRecord) -> str:
    decisive = record.decisive
    count = decisive.count if decisive is not None else sum(claim.count for claim in record.claims)
    policy = f" under {record.policy}" if record.policy else ""
    others = len(record.claims) - 1
    beside = f" in {decisive.entry}, beside {others} more claim{'s' * (others > 1)}" if others > 0 and decisive else ""
    return f"Asked for {count} device{'s' * (count != 1)}{policy}{beside}"


def _given(claim: ClaimDecision) -> str:
    model = f"{claim.model} " if claim.model else ""
    return model + ", ".join(claim.devices)


def _fitted(head: list[str], steps: list[str], tail: list[str]) -> str:
    """All of it if it fits; else without devices and texts from the end, and last cut in the middle of a word."""
    cut = _CUT.strip()
    # Added up once: a Pod may name tens of thousands of claims.
    size = sum(len(part.encode()) + 1 for part in (*head, *steps, *tail)) - 1
    while size > NOTE_BYTES and (tail or steps):
        size -= len((tail or steps).pop().encode()) + 1
        if head[-1] != cut:
            head = [*head, cut]
            size += len(cut.encode()) + 1
    return clipped(" ".join([*head, *steps, *tail]), NOTE_BYTES)


def clipped(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[: limit - len(_CUT.encode())].decode(errors="ignore") + _CUT
