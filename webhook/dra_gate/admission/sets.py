"""Which policy sets count at one moment: what the cluster's Gate says, once its sets have been loaded."""

from __future__ import annotations

from dataclasses import dataclass

from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import NO_SWITCH, Switch


@dataclass(frozen=True, slots=True)
class PolicySets:
    """New Pods get `active`; stamps of `accepted` sets are honoured for a while after a change.

    `generation` is the Gate's metadata.generation, 0 where policies come from a folder. `switch` is the one
    between lanes, `switch_previous` what it said before its last change.
    """

    active: PolicySet
    accepted: tuple[PolicySet, ...] = ()
    generation: int = 0
    switch: Switch = NO_SWITCH
    switch_previous: Switch = NO_SWITCH

    @property
    def all(self) -> tuple[PolicySet, ...]:
        """Every set that counts, the active one first."""
        return (self.active, *self.accepted)
