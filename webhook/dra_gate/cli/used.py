"""What tenants hold in a saved state: by the facts that the webhook decides from."""

from __future__ import annotations

from collections.abc import Mapping

from dra_gate.admission.sets import PolicySets
from dra_gate.allocation.state import State
from dra_gate.cluster.facts import World
from dra_gate.policy.model import PolicySet


def used_of(state: State) -> Mapping[str, int]:
    """Devices by tenant; nothing where the state has no active policy set. Raises SnapshotError as it does."""
    sets = state.policy_sets()
    if state.active not in sets:
        return {}
    accepted: tuple[PolicySet, ...] = tuple(one for digest, one in sets.items() if digest != state.active)
    world = World()
    world.use(PolicySets(sets[state.active], accepted))
    snapshot = state.snapshot
    for kind, objects in (
        ("Namespace", state.namespaces),
        ("DeviceClass", snapshot.classes),
        ("ResourceSlice", snapshot.slices),
        ("ResourceClaimTemplate", state.templates),
        ("ResourceClaim", snapshot.claims),
        ("Pod", snapshot.pods),
    ):
        for obj in objects:
            world.apply({**obj, "kind": kind})
    return {tenant: charge.devices for tenant, charge in world.facts().used.items()}
