"""What the allocator answers: the choice for one node, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from dra_gate.kube.raw import Object

OutcomeKind = Literal["allocated", "impossible", "invalid-pools", "failed", "cannot-evaluate"]
PoolKind = Literal["used", "incomplete", "invalid", "old", "elsewhere"]
Check = Literal["in-use", "class-selector", "selector", "node", "capacity", "counters", "taint", "constraint", ""]

CHECKS: Final[tuple[Check, ...]] = (
    *("in-use", "class-selector", "selector", "node", "capacity", "counters", "taint", "constraint"),
)
"""The checks that a device goes through, in the scheduler's order."""


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One device of an allocation; `request` is `request/alternative` where there were alternatives."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    consumed_capacity: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The allocation of one claim, and the nodes on which it can be used (None: on all)."""

    results: tuple[DeviceResult, ...]
    node_selector: Object | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scheduler's allocator answers for one node.

    `impossible` and `invalid-pools` rule out the node, `failed` ends the attempt for all nodes. `message` is the
    scheduler's own text of the latter two; of `cannot-evaluate` it names what is not understood here. `claims` are in
    the order of the claims asked for. `score` is the raw one: over the requests with alternatives the sum of 8 less the
    index of the alternative.
    """

    kind: OutcomeKind
    message: str = ""
    claims: tuple[ClaimResult, ...] = ()
    score: int = 0


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a pool is for one node. `order` is its turn among the pools that are used, -1 for the others."""

    driver: str
    pool: str
    generation: int
    state: PoolKind
    reason: str = ""
    order: int = -1


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The first check that a device fails, "" if it fits.

    `detail` holds the index of a selector or constraint, or the words for what is missing; `claims` who holds the
    device, as namespace/name. `matches` tells whether the selectors and the node accept it, in use or not. `given` is
    the request of these claims that gets the device in the end.
    """

    driver: str
    pool: str
    device: str
    check: Check
    detail: str = ""
    claims: tuple[str, ...] = ()
    matches: bool = True
    given: str = ""


@dataclass(frozen=True, slots=True)
class RequestExamination:
    """One alternative of one request (`alternative` is "" for `exactly`) against every device of the node's pools.

    `count` is how many devices it wants; of mode All, how many there are.
    """

    claim: int
    request: str
    alternative: str
    count: int
    devices: tuple[DeviceCheck, ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """Why the outcome for one node is what it is.

    `backtracked` says, a sentence each, which choice a later request or claim forced.
    """

    outcome: Outcome
    pools: tuple[PoolState, ...]
    requests: tuple[RequestExamination, ...]
    backtracked: tuple[str, ...] = ()
