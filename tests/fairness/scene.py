"""Small worlds for the arbiter: models, tenants and Pods in a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import (
    Candidate,
    Capacity,
    Config,
    Decision,
    Granted,
    Held,
    Kind,
    PolicyRules,
    Settled,
    TenantRules,
    Used,
)


def config(
    tenants: Mapping[str, TenantRules],
    policies: Mapping[str, PolicyRules] | None = None,
    models: str = "h100 a100 l40s",
) -> Config:
    """Rules; by default one policy `p@1` with all models in order."""
    names = tuple(models.split())
    rules = policies or {"p@1": policy(models)}
    return Config(digest="d", models=names, policies=rules, tenants=tenants)


def policy(models: str, fallback: int = 0) -> PolicyRules:
    """Candidates without constraints, in that order."""
    return PolicyRules(tuple(Candidate(name, 0) for name in models.split()), fallback)


def capacity(**homes: list[int]) -> Capacity:
    """`h100=[8, 8]`: two nodes with eight free ones each."""
    kinds = []
    for model, free in homes.items():
        counts = tuple(sorted(Counter(free).items()))
        kinds.append(Kind(model, 0, sum(free), counts, counts))
    return Capacity(kinds=tuple(kinds))


def pod(uid: str, tenant: str, claims: int | tuple[int, ...] = 1, at: int = 0, **more: object) -> Held:
    """A Pod that waits since `at`."""
    sizes = (claims,) if isinstance(claims, int) else claims
    return Held(uid=uid, tenant=tenant, policy=str(more.pop("policy", "p@1")), claims=sizes, queued=at, **more)  # type: ignore[arg-type]


def models_of(decisions: list[Decision]) -> dict[str, str]:
    """The Pods granted, and the model that each won."""
    return {one.uid: one.model for one in decisions if isinstance(one, Granted)}


def give(arbiter: Arbiter, uid: str, tenant: str, model: str, devices: int, used: Mapping[str, int]) -> None:
    """The Pod's claims are allocated; `used` is what the tenant holds then beside open grants."""
    arbiter.take(Settled(uid=uid, model=model))
    arbiter.take(Used(tenant=tenant, devices=sum(used.values()), models=used))
