"""The hard cap in total devices, as a pure rule of (limit, used, asked)."""

from __future__ import annotations

from dra_gate.fairness.charge import Charge
from dra_gate.policy.model import Quota


def over_quota(quota: Quota, used: Charge, asked: Charge) -> str:
    """Why `asked` does not fit beside `used`, in words for the person who is refused; empty when it fits.

    A request for nothing always fits: lowering a quota below what is held refuses new devices, not other Pods.
    """
    if quota.devices is None or asked.devices == 0 or used.devices + asked.devices <= quota.devices:
        return ""
    left = max(0, quota.devices - used.devices)
    held = f"{used.devices} of {quota.devices} held"
    return f"it asks for {asked.devices} devices and the tenant has {left} left ({held})"
