"""What a TenantLedger says (deploy/base/crds/tenantledgers.yaml): its spec as values, and back. Pure.

Times are milliseconds since 1970: the arbiter decides by them, and an RFC 3339 time would be another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from dra_gate.fairness.charge import Charge
from dra_gate.fairness.events import Held, Opened
from dra_gate.fairness.holdings import HeldBack
from dra_gate.fairness.resting import Rest


class GrantedClaim(Struct, frozen=True, omit_defaults=True):
    """A late claim of a grant: the Pod's entry, the claim's name, devices, SHA-256 of the spec that it is to have."""

    entry: str
    name: str
    count: int
    digest: str


class Grant(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An open grant. `generation` is the ledger's when it was made or last revised; its claims carry it.

    `candidates` are those of all its claims. The rest is what the arbiter was told of the Pod.
    """

    uid: str
    namespace: str
    name: str
    generation: int
    at: int
    queued: int
    policy: str
    policy_set: str
    model: str
    candidates: tuple[str, ...]
    claims: tuple[GrantedClaim, ...] = ()
    borrowed: bool = False
    lease: int = 0
    fixed: int = 0
    fixed_models: Mapping[str, int] = {}
    priority: int = 0
    group: str = ""
    members: int = 1
    only: str = ""
    left: tuple[str, ...] = ()

    def opened(self, tenant: str) -> Opened:
        """As the arbiter is told of it by whoever leads next."""
        request = Held(
            uid=self.uid,
            tenant=tenant,
            policy=self.policy,
            claims=tuple(one.count for one in self.claims),
            queued=self.queued,
            fixed=self.fixed,
            fixed_models=self.fixed_models,
            priority=self.priority,
            group=self.group,
            members=self.members,
            only=self.only,
            pod=f"{self.namespace}/{self.name}",
        )
        return Opened(
            request=request,
            model=self.model,
            candidates=self.candidates,
            borrowed=self.borrowed,
            at=self.at,
            left=self.left,
        )


class Observed(Struct, frozen=True):
    """How new the caches were: resourceVersions of their kinds."""

    pods: str = ""
    claims: str = ""

    def reached(self, other: Observed) -> bool:
        """Whether these are as new as `other`; versions of one resource are decimals to compare (KEP-5504)."""
        return _number(self.pods) >= _number(other.pods) and _number(self.claims) >= _number(other.claims)


class Tag(Struct, frozen=True):
    """Where the tenant stands in the fair queue of one model: start and finish tag of its last grant there."""

    start: int
    finish: int


class KeptBack(Struct, frozen=True, omit_defaults=True):
    """What a Pod that was deleted by force held: charged until its node is gone or the time is up (`holdings`)."""

    uid: str
    namespace: str
    name: str
    node: str
    until: int
    devices: tuple[tuple[str, str, str], ...] = ()
    count: int = 0
    models: Mapping[str, int] = {}

    @classmethod
    def of(cls, held: HeldBack) -> KeptBack:
        """As the ledger of its tenant keeps it."""
        charge = held.charge
        return cls(
            held.uid, held.namespace, held.name, held.node, held.until, held.devices, charge.devices, charge.models
        )

    def held(self, tenant: str) -> HeldBack:
        """As it was."""
        charge = Charge(self.count, dict(self.models))
        return HeldBack(self.uid, self.namespace, self.name, self.node, tenant, self.devices, charge, self.until)


class LedgerSpec(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`spec`; `generation` counts its writes."""

    generation: int = 0
    grants: tuple[Grant, ...] = ()
    tags: Mapping[str, Tag] = {}
    held_back: tuple[KeptBack, ...] = ()
    resting: tuple[Rest, ...] = ()
    observed: Observed = Observed()


def read_spec(spec: object) -> LedgerSpec:
    """The spec of a stored ledger. Raises ValueError for what the CRD would not have let in."""
    try:
        return msgspec.convert(spec, LedgerSpec)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def written_spec(spec: LedgerSpec) -> dict[str, Any]:
    """As JSON values."""
    found = msgspec.to_builtins(spec)
    assert isinstance(found, dict)  # noqa: S101 - what a Struct becomes
    return found


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdigit() else 0
