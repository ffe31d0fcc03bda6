"""The allocator of kube-scheduler restated for one snapshot (k8s.io/dynamic-resource-allocation, incubating)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dra_gate.allocation.outcome import Examination, Outcome
from dra_gate.allocation.snapshot import Snapshot
from dra_gate.kube.raw import Object


class Allocator:
    """What kube-scheduler would allocate, for one snapshot.

    Claims whose UID is in `ignore` count as not allocated: the state as it was before.
    """

    def __init__(self, snapshot: Snapshot, *, ignore: Collection[str] = ()) -> None:
        self._snapshot = snapshot
        self._ignore = frozenset(ignore)

    def allocate(self, node: str, claims: Sequence[Object]) -> Outcome:  # noqa: ARG002 - follows in the next commit
        """The answer for the node of that name to all of `claims` together."""
        return Outcome("cannot-evaluate", "not written yet")

    def examine(self, node: str, claims: Sequence[Object]) -> Examination:
        """The same, and why."""
        return Examination(self.allocate(node, claims), (), ())
