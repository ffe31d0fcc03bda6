"""Which policy sets count at one moment: what the cluster's Gate says, once its sets have been loaded."""

from __future__ import annotations

from dataclasses import dataclass

from dra_gate.policy.model import PolicySet


@dataclass(frozen=True, slots=True)
class PolicySets:
    """New Pods get `active`; stamps of `accepted` sets are honoured for a while after a change.

    `generation` is the Gate's metadata.generation, 0 where policies come from a folder. `lane_override` is the switch:
    the lane of every gated namespace, or empty; `lane_previous` what it was before its last change.
    """

    active: PolicySet
    accepted: tuple[PolicySet, ...] = ()
    generation: int = 0
    lane_override: str = ""
    lane_previous: str = ""

    @property
    def all(self) -> tuple[PolicySet, ...]:
        """Every set that counts, the active one first."""
        return (self.active, *self.accepted)
