"""What the arbiter is told and what it decides: the lines of its log.

The log is all that a replay or the checker gets, so everything the arbiter decides by is in it. Integers and strings
only: times in milliseconds since 1970, devices as counts, tags in units of `SCALE` a device and weight of one. A log
file begins with a `State` line, so that each file can be replayed by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

SCALE = 720_720_000  # tags of one device at weight 1; weights up to 16 and many others divide it
NOW, NEVER = 0, -1  # of a policy's fallback
NO_LIMIT = -1


class Line(Struct, frozen=True, tag_field="kind", kw_only=True):
    """One line of the log; `sequence` counts them without gaps, over restarts of the arbiter too."""

    sequence: int = 0


# -- what it is told --------------------------------------------------------------------------------------------------


class Candidate(Struct, frozen=True, array_like=True):
    """A policy's candidate: the model, and the bits that a kind of device must have to meet the constraints."""

    model: str
    needs: int


class PolicyRules(Struct, frozen=True):
    """A policy as the arbiter knows it. `fallback`: milliseconds of waiting after which all candidates count."""

    candidates: tuple[Candidate, ...]
    fallback: int = NOW


class TenantRules(Struct, frozen=True):
    """A tenant as the arbiter knows it.

    `weight` 0: it is in no fair queue (it has neither weight nor late claims), only its cap in devices counts.
    `devices` and `models` are its caps. `wants` are the models in which it has a share. `lease` in seconds, 0: none.
    `reserve` are devices of its share that are never lent. `reserve_after` in milliseconds.
    """

    weight: int = 1
    devices: int = NO_LIMIT
    models: Mapping[str, int] = {}
    wants: tuple[str, ...] = ()
    lease: int = 0
    reserve: Mapping[str, int] = {}
    reserve_after: int = 1_800_000


class Config(Line, frozen=True, tag="config"):
    """The rules from now on: `digest` of the active policy set, models in catalogue order."""

    digest: str
    models: tuple[str, ...]
    policies: Mapping[str, PolicyRules]
    tenants: Mapping[str, TenantRules]


class Kind(Struct, frozen=True):
    """Devices of one model that meet the same constraints (`holds`, bits).

    `healthy` of them count for shares; `free` says how many homes (nodes) have how many that are healthy and in no
    allocation, `whole` how many homes have how many healthy ones, allocated or not: what could ever be free there.
    """

    model: str
    holds: int
    healthy: int
    free: tuple[tuple[int, int], ...]  # devices free on a home, homes; fewest devices first
    whole: tuple[tuple[int, int], ...]


class Capacity(Line, frozen=True, tag="capacity"):
    """What there is from now on; replaces what was said before."""

    kinds: tuple[Kind, ...]


class Held(Line, frozen=True, gc=False, tag="held"):  # no cycle leads through it
    """A Pod waits.

    `claims` are the devices of each of its late claims, which all get the same model and lie on one node. `fixed` is
    the worst case of claims from templates that it names itself: they can't be narrowed. `queued` is since when it
    waits, as far as its age counts. A Pod of a group goes with the others or not at all: `members` is how many there
    have to be. `only`, if not empty, is the one model that its late claims may get, at once whatever the fallback: of
    a Pod whose group has it already. Said again of a Pod that waits: it replaces what was said before.
    """

    uid: str
    tenant: str
    policy: str  # name@version
    claims: tuple[int, ...]
    queued: int
    fixed: int = 0  # devices
    fixed_models: Mapping[str, int] = {}
    priority: int = 0  # only inside the tenant
    group: str = ""
    members: int = 1
    only: str = ""
    pod: str = ""  # namespace/name, for who reads the log


class Left(Line, frozen=True, tag="left"):
    """A Pod waits no more, without a grant: deleted, or no longer ours."""

    uid: str


class Used(Line, frozen=True, tag="used"):
    """What a tenant holds beside its open grants, the worst case where nobody knows better. Replaces what was said."""

    tenant: str
    devices: int
    models: Mapping[str, int] = {}


class Opened(Line, frozen=True, tag="opened"):
    """An open grant that the ledger has, from an arbiter before this one: counts as if granted here."""

    request: Held
    model: str
    candidates: tuple[str, ...]
    borrowed: bool = False
    at: int = 0
    left: tuple[str, ...] = ()  # candidates that it had: a claim written for them may be allocated yet, so they count


def left_of(before: tuple[str, ...], left: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """`left` of an open grant that gets the candidates `after`."""
    return tuple(sorted({*before, *left} - {*after}))


class Settled(Line, frozen=True, tag="settled"):
    """An open grant is open no more: `model` was allocated, or nothing and never will be ("").

    The charge goes on in the tenant's Used, said right before or after without a decision in between.
    """

    uid: str
    model: str = ""


class Tags(Line, frozen=True, tag="tags"):
    """Where a tenant stands in the fair queue of each model, from its ledger: the start tag of its last grant and its
    finish tag."""

    tenant: str
    tags: Mapping[str, tuple[int, int]]


class Pass(Line, frozen=True, tag="pass"):
    """Decide, at this time; at most so many grants. The decisions follow."""

    at: int
    limit: int = 256


# -- what it decides --------------------------------------------------------------------------------------------------


class Account(Struct, frozen=True):
    """A tenant's charge: devices in all and by model, open grants included at their worst case."""

    devices: int
    models: Mapping[str, int] = {}


class Granted(Line, frozen=True, tag="granted"):
    """A Pod may go.

    `model` is the candidate that it won in the fair queue and that pays the tags; `candidates` are what its late
    claims may have so far: a Revised line of the same pass may add to them. `tier` 0: the tenant is within its share
    with it, 1: above. `before` and `after` are the tenant's account. `free` and `open`: healthy free devices of
    `model` that suit it, and how many of these other open grants may take. `lease` in seconds, 0: none. Of a group one
    line for each member, one after the other.
    """

    at: int
    uid: str
    tenant: str
    model: str
    candidates: tuple[str, ...]
    devices: int
    queued: int
    tier: int
    aged: bool
    start: int
    finish: int
    before: Account
    after: Account
    free: int
    open: int
    lease: int = 0
    group: str = ""
    overtakes: int = 0  # waiting requests of the same queue that are older


class Revised(Line, frozen=True, tag="revised"):
    """An open grant's claims get other candidates, as they are not allocated yet.

    `reason`: `leftover` (granted in this pass, and there is more than those who wait can use; write its claims once,
    with these), `fallback` (it is open for a while, and has waited long enough for more), `impossible` (what it had
    can't be had any more).
    """

    at: int
    uid: str
    candidates: tuple[str, ...]
    reason: str


class State(Line, frozen=True, tag="state"):
    """Everything that the arbiter knows: enough to go on from here. The first line of each file."""

    config: Config | None
    capacity: Capacity | None
    waiting: tuple[Held, ...]
    open: tuple[Opened, ...]
    used: tuple[Used, ...]
    tags: tuple[Tags, ...]


Event = Config | Capacity | Held | Left | Used | Opened | Settled | Tags
Decision = Granted | Revised
AnyLine = Event | Pass | Decision | State


Reason = Literal[
    "Queued",  # its turn has not come: others of its tier are before it
    "Quota",  # its tenant's cap leaves no room
    "Share",  # above its share, and somebody below theirs waits
    "NoDevices",  # none free of what it may have now
    "Reserved",  # what is free is kept for one that waits for longer
    "GroupIncomplete",  # not all members of its group are there
    "Unsatisfiable",  # no node has, or no cap allows, as many as it asks for
    "LedgerFull",  # too many grants of its tenant are open
    # Before the arbiter is told of it:
    "NameTaken",  # another Pod was created first with the name of its claim
    "PolicyUnknown",  # no policy set that counts has what its stamp names
    "StampUnreadable",
    "NotScheduled",  # it had a grant that the scheduler could not use, and rests
    "LaneWentBack",  # its namespace is under device plugins again
    "NotGated",  # its stamp is of a namespace where nobody judges what is written
]


class Why(Struct, frozen=True):
    """Why a Pod still waits; `text` says it with numbers and without other tenants' names."""

    reason: Reason
    text: str
