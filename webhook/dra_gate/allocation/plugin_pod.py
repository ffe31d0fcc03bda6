"""A Pod in lane device-plugin, as far as anything is known of it: it has no claim, and its node knows the rest."""

from __future__ import annotations

from dra_gate.allocation.explanation import Reason
from dra_gate.kube.raw import Object, at, text
from dra_gate.policy.compile import DOMAIN
from dra_gate.policy.switch import PLUGIN
from dra_gate.policy.words import listed, many


def in_plugin_lane(pod: Object) -> bool:
    """The gate let it in to ask a device plugin for its devices, as its stamp says."""
    return _stamped(pod, "lane") == PLUGIN


def stamped_policy(pod: Object) -> str:
    """`name@version` of the policy that it was let in under; empty in another lane."""
    name = _stamped(pod, "policy")
    return f"{name}@{_stamped(pod, 'policy-version')}" if in_plugin_lane(pod) and name else ""


def known_of(pod: Object) -> Reason:
    """What it asks for, and where it may get that."""
    devices, models = _stamped(pod, "devices"), _stamped(pod, "candidates").split(",")
    count = many(int(devices), "device") if devices.isascii() and devices.isdigit() else "devices"
    asked = f"in lane device-plugin it asks for {count} on nodes of {listed(models, 'or')}"
    known = "which ones it has only its node knows" if at(pod, "spec", "nodeName") else "no node is chosen yet"
    return Reason("device-plugin", f"{asked}; {known}")


def _stamped(pod: Object, word: str) -> str:
    return text(at(pod, "metadata", "annotations", f"{DOMAIN}/{word}"))
