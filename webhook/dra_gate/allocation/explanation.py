"""An explanation as values: what became of a Pod's claims, candidate by candidate, and why. And as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

API_VERSION = "explanation.dra-gate.io/v1alpha1"

PodState = Literal["bound", "waiting", "held", "finished", "deleted"]
Fate = Literal["given", "possible", "not judged", "no", "not asked for"]


UNGRANTED = "ungranted"  # the reason of a candidate that the Pod's grant left out


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not so. `code` is for programs, `text` for people.

    `devices` counts the devices that it is about (0: it is about none in particular), `nodes` names where they are, and
    `holders` says who holds how many of them.
    """

    code: str
    text: str
    devices: int = 0
    nodes: tuple[str, ...] = ()
    holders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One device of a candidate's model; `code` is empty for one that could be given."""

    device: str
    node: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One alternative of a request, in the order of preference.

    `published` counts the devices of the model, `healthy` those that could be given to somebody, `matching` those that
    meet what the policy asks, `free` those that are both and in nobody's hands. `possible` are nodes on which the whole
    Pod could be placed with this candidate; its fate is "not judged" where something of the Pod that is not looked at
    may say otherwise (`notes`).
    """

    model: str
    rank: int
    count: int
    published: int
    healthy: int
    matching: int
    free: int
    fate: Fate
    reasons: tuple[Reason, ...]
    possible: tuple[str, ...] = ()
    devices: tuple[DeviceLine, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestExplained:
    """One request of a claim: its candidates, and what was given (`pool/device`) for the one of `rank`; 0: nothing."""

    request: str
    candidates: tuple[Candidate, ...]
    rank: int = 0
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimExplained:
    """One claim entry of the Pod. `claim` is empty while there is none, `containers` are those that see it."""

    entry: str
    claim: str
    template: str
    containers: tuple[str, ...]
    policy: str
    requests: tuple[RequestExplained, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of a Pod and why. `causes` are what holds all of it up, the first one first: with one of them the
    candidates may be fine. `notes` say what is not known, and where chance decides.
    """

    namespace: str
    pod: str
    state: PodState
    node: str
    tenant: str
    policy: str
    policy_set: str
    claims: tuple[ClaimExplained, ...]
    causes: tuple[Reason, ...]
    notes: tuple[str, ...]


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as JSON; the names of the fields are a contract."""
    return {"apiVersion": API_VERSION, "kind": "Explanation", **asdict(explanation)}
