"""What there is to give, who gets it and why: a snapshot or events in, values out.

The names here are of the allocator: kube-scheduler's, restated for one snapshot.
"""

from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.nodes import BestNodes, best_nodes
from dra_gate.allocation.outcome import (
    CHECKS,
    ClaimResult,
    DeviceCheck,
    DeviceResult,
    Examination,
    Outcome,
    PoolState,
    RequestExamination,
)
from dra_gate.allocation.snapshot import Snapshot, SnapshotError, dumps, loads, snapshot_of, with_objects

__all__ = [
    "CHECKS",
    "Allocator",
    "BestNodes",
    "ClaimResult",
    "DeviceCheck",
    "DeviceResult",
    "Examination",
    "Outcome",
    "PoolState",
    "RequestExamination",
    "Snapshot",
    "SnapshotError",
    "best_nodes",
    "dumps",
    "loads",
    "snapshot_of",
    "with_objects",
]
