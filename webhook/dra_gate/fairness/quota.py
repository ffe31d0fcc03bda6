"""The hard caps, as pure rules of (limit, used, asked)."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.fairness.charge import Charge
from dra_gate.policy.model import Quota
from dra_gate.policy.words import many


def over_quota(quota: Quota, used: Charge, asked: Charge) -> str:
    """Why `asked` does not fit beside `used`, in words for the person who is refused; empty when it fits.

    Models count at their worst case. A request for nothing always fits: lowering a quota below what is held refuses new
    devices, not other Pods.
    """
    if quota.devices is not None and asked.devices > 0 and used.devices + asked.devices > quota.devices:
        left = _left(quota.devices, used.devices)
        return f"it asks for {many(asked.devices, 'device')} and the tenant has {left}"
    for model, count in asked.models.items():
        limit, held = quota.models.get(model), used.models.get(model, 0)
        if limit is not None and count > 0 and held + count > limit:
            return f"it may be given {count} {model} and the tenant has {_left(limit, held)}"
    return ""


def over_every_model(quota: Quota, used: Charge, devices: int, candidates: Iterable[str]) -> str:
    """Why `devices` more of one model fit beside `used` with none of `candidates`; empty when they do with one."""
    full = []
    for model in candidates:
        limit, held = quota.models.get(model), used.models.get(model, 0)
        if limit is None or held + devices <= limit:
            return ""
        full.append(f"{_left(limit, held)} of {model}")
    return f"it asks for {many(devices, 'device')} of one model and the tenant has {', '.join(full)}"


def _left(limit: int, held: int) -> str:
    if not held:  # or what is held does not matter, as the Pod may wait
        return f"{limit} in all"
    return f"{max(0, limit - held)} left ({held} of {limit} held)"
