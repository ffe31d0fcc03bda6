"""What the arbiter is told of policy sets and of what there is: its Config and Capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dra_gate.allocation.capacity import KindCounts
from dra_gate.fairness import events
from dra_gate.policy.model import DevicePolicy, PolicyRef, PolicySet, Tenant

Needs = Callable[[PolicyRef], Iterable[tuple[str, int]]]  # a policy's candidates and their bits (`Capacity.needs`)


def config_of(sets: Sequence[PolicySet], needs: Needs) -> events.Config:
    """The rules under `sets`, the active one first: its models and tenants, and the policies of all.

    Where two sets have a policy at the same version, the active one's counts.
    """
    active = sets[0]
    policies = {ref: policy for policy_set in reversed(sets) for ref, policy in policy_set.policies.items()}
    return events.Config(
        digest=active.digest,
        models=tuple(active.models),
        policies={str(ref): _policy(policy, needs(ref)) for ref, policy in sorted(policies.items(), key=_by_name)},
        tenants={name: _tenant(active.tenants[name], active) for name in sorted(active.tenants)},
    )


def capacity_of(kinds: Iterable[KindCounts]) -> events.Capacity:
    """What there is, as the view counts it."""
    return events.Capacity(
        kinds=tuple(
            events.Kind(one.model, one.holds, one.healthy, tuple(one.free.items()), tuple(one.whole.items()))
            for one in kinds
        )
    )


def payer_of(sets: Sequence[PolicySet]) -> Callable[[str, str], str | None]:
    """Who pays for what is in a namespace and stamped with a tenant's name ("": not stamped), as a function.

    The stamped tenant if any of `sets` knows it, so that a charge stays when a namespace moves; else the owner of the
    namespace under the first, the active one; else nobody.
    """
    known = {name for policy_set in sets for name in policy_set.tenants}
    owners: Mapping[str, str] = sets[0].tenant_by_namespace
    return lambda namespace, stamped: stamped if stamped in known else owners.get(namespace)


def _by_name(item: tuple[PolicyRef, DevicePolicy]) -> tuple[str, int]:
    return item[0].name, item[0].version


def _policy(policy: DevicePolicy, needs: Iterable[tuple[str, int]]) -> events.PolicyRules:
    fallback = policy.fallback * 1000 if policy.fallback > 0 else policy.fallback
    return events.PolicyRules(tuple(events.Candidate(model, bits) for model, bits in needs), fallback)


def _tenant(tenant: Tenant, policy_set: PolicySet) -> events.TenantRules:
    refs = {ref for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace)}
    late = [policy_set.policies[ref] for ref in refs if tenant.hold(policy_set.policies[ref]) == "late"]
    wanted = {model for policy in late for model in policy.candidates}
    return events.TenantRules(
        weight=(tenant.weight or 1) if late else 0,
        devices=events.NO_LIMIT if tenant.quota.devices is None else tenant.quota.devices,
        models=dict(sorted(tenant.quota.models.items())),
        wants=tuple(model for model in policy_set.models if model in wanted),
        lease=tenant.lease or 0,
        reserve=dict(sorted(tenant.reserve.items())),
        reserve_after=tenant.reserve_after * 1000,
    )
