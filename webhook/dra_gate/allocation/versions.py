"""What of the allocator each version of Kubernetes promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_gate.allocation.problems import CannotEvaluate

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
    """By which rules to search: whether DeviceTaintRules count, and capacity may be shared in fractions."""

    minor: int
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
    rules = gates.get("DRADeviceTaintRules", minor >= 37)
    return Rules(minor, rules, gates.get("DRAFractionalCapacityRange", False))
