"""Which Pods are compared with which: those of the two lanes, or those of two policy versions in lane dra. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from dra_gate.migration.cohort import Cohorts, Key
from dra_gate.policy.switch import DRA, PLUGIN
from dra_gate.policy.words import listed


@dataclass(frozen=True, slots=True)
class Sides:
    """Two groups of Pods, of which the first is on trial. `names` are lanes, or with `versions` policies as
    name@version; `titles` are what people call them.
    """

    names: tuple[str, str]
    titles: tuple[str, str]
    versions: bool = False

    def of(self, key: Key) -> int | None:
        """The side that these Pods are on, 0 or 1; None: they are on neither."""
        if self.versions and key.lane != DRA:
            return None
        name = key.policy if self.versions else key.lane
        return self.names.index(name) if name in self.names else None

    def likeness(self, key: Key) -> Hashable:
        """What Pods of both sides have in common, beside the hour, when they are compared.

        Of lanes: size and first choice. Of versions: size and tenant; a version has one first choice by definition, and
        a new one may well be about another, so that nothing would have a counterpart.
        """
        return (key.tenant, key.size) if self.versions else (key.size, key.first)

    def pays(self, key: Key, tenant: str) -> bool:
        """Whether the Pods count when `tenant` is looked at: of versions its own on both sides; of lanes its own in
        lane dra, beside everybody's in the other.
        """
        return key.tenant == tenant or (not self.versions and key.lane != DRA)


LANES = Sides((DRA, PLUGIN), ("DRA", "device plugins"))


def versions(policy: str, against: str) -> Sides:
    """The Pods of `policy` in lane dra beside those of `against`, each as name@version."""
    return Sides((policy, against), (policy, against), versions=True)


def elsewhere(cohorts: Cohorts, since: int, until: int, policy: str) -> str:
    """The policy that most other Pods have in lane dra, of the tenants that have some of `policy`: what it is to be
    compared with. Of the hours that begin in [since, until).

    Raises ValueError where no Pod of `policy` was counted, or none of another.
    """
    pods: dict[str, Counter[str]] = {}
    for _, key, cell in cohorts.between(since, until):
        if key.lane == DRA and key.policy and cell.submitted + cell.denied:
            pods.setdefault(key.policy, Counter())[key.tenant] += cell.submitted
    if policy not in pods:
        raise ValueError(
            f"no Pod of {policy} was counted in these hours, but of {listed(sorted(pods), nothing='no policy')}"
        )
    others = {name: sum(counted[tenant] for tenant in pods[policy]) for name, counted in pods.items() if name != policy}
    shared = [name for name in others if pods[name].keys() & pods[policy].keys()]
    if not shared:
        raise ValueError(f"{listed(sorted(pods[policy]))} had Pods of {policy} alone: nothing to compare them with")
    return min(shared, key=lambda name: (-others[name], name))
