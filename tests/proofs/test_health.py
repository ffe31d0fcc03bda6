"""The short form of `make prove-health`."""

from __future__ import annotations

import pytest

from proofs.health import NAMESPACES, busiest, plot, run

pytestmark = pytest.mark.controlplane


def test_every_pod_ends_bound_or_with_a_true_reason_and_without_a_storm() -> None:
    found = run(0.75, seed=7, every=1.0)
    print(found.ends, found.wrong, found.done)
    assert found.wrong == []
    assert sum(found.ends.values()) == sum(NAMESPACES.values())
    assert found.ends["bound, well"] > 100
    assert found.evictions > 0
    # What each of the Pods got is written in the beginning, three requests each; after that it is what changes.
    assert busiest(found.per_second()) <= 60
    assert len(found.calls) <= 10 * sum(NAMESPACES.values())
    assert (len(found.killed), len(found.restarted)) == (2, 2)
    assert found.memory
    assert plot("t", found.memory, {"killed": found.killed}, "MiB").startswith("<svg")
