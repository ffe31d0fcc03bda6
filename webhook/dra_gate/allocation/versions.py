"""What of the allocator each version of Kubernetes promises."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_gate.allocation.asked import Claim
from dra_gate.allocation.pools import Device, Slices, View
from dra_gate.allocation.problems import CannotEvaluate
from dra_gate.kube.raw import mapping

_VERSION: Final = re.compile(r"v?1\.([0-9]+)(?:[.+-].*)?", re.ASCII)
_DEFAULTS: Final[dict[str, bool]] = {  # what selects the allocator "incubating" in 1.36 and 1.37, and steers it
    "DRAAdminAccess": True,
    "DRAConsumableCapacity": True,
    "DRADerivedAttributes": False,
    "DRADeviceBindingConditions": True,
    "DRADeviceCompatibilityGroups": False,
    "DRADeviceTaints": True,
    "DRAListTypeAttributes": False,
    "DRAOptionalNodeOperations": False,
    "DRAPartitionableDevices": True,
    "DRAPrioritizedList": True,
    "DRAResourceClaimDeviceStatus": True,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """By which rules to search.

    `new` is 1.37 and later: counters, shares and distinctAttribute are reckoned as restated here, and texts name the
    device. `taint_rules` tells whether DeviceTaintRules count, `fractional` whether capacity is shared in thousandths.
    """

    new: bool
    taint_rules: bool
    fractional: bool


def rules_of(version: str, gates: Mapping[str, bool]) -> Rules:
    """The rules of a version with these feature gates. Raises CannotEvaluate for what is not restated here."""
    parts = _VERSION.fullmatch(version)
    if parts is None:
        raise CannotEvaluate(f"Kubernetes version {version!r} is not understood")
    minor = int(parts[1])
    if minor < 36:
        raise CannotEvaluate(f"Kubernetes 1.{minor} promises no order of devices (1.36 is the first that does)")
    if minor > 37:
        raise CannotEvaluate(f"the allocator of Kubernetes 1.{minor} is not known here (up to 1.37)")
    for name, default in sorted(_DEFAULTS.items()):
        if gates.get(name, default) is not default:
            state = "off" if default else "on"
            raise CannotEvaluate(f"feature gate {name} is {state}: only the allocator of the defaults is restated here")
    new = minor >= 37
    return Rules(new, gates.get("DRADeviceTaintRules", new), gates.get("DRAFractionalCapacityRange", False))


def refuse_what_changed(view: View, claims: Sequence[Claim], slices: Slices) -> None:
    """Raises CannotEvaluate for what the allocator of 1.36 does in its own way.

    It knows no list attributes, charges counters for devices that it then rejects and keeps them by the name of the
    pool alone, forgets that a device is shared once a share is put back, and compares distinctAttribute with one device
    of a request only.
    """
    found = ""
    if slices.has_counters:
        found = "counters"
    elif any(device.multiple for device, _ in view.devices):
        found = "devices that are shared"
    elif any(_has_lists(device) for device, _ in view.devices):
        found = "list attributes"
    for claim in claims:
        if any(constraint is not None and constraint.distinct for constraint in claim.constraints):
            found = "distinctAttribute"
        if any(alternative.capacity for request in claim.requests for alternative in request.alternatives):
            found = "capacity requests"
    if found:
        raise CannotEvaluate(f"{found} in Kubernetes 1.36: restated here for 1.37 only")


def _has_lists(device: Device) -> bool:
    attributes = mapping(device.raw.get("attributes")).values()
    return any(isinstance(value, list) for attribute in attributes for value in mapping(attribute).values())
