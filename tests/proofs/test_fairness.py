"""The short form of `make prove-fairness`."""

from __future__ import annotations

import statistics

import pytest

from dra_gate.migration.plot import distribution, lines
from fairness import scenes
from fairness.simulate import MINUTE, simulate
from proofs.fairness import WORSE, small, unbounded


@pytest.mark.parametrize("seed", [0, 1])
def test_a_flood_keeps_small_tenants_from_nothing_and_costs_the_flooder_little(seed: int) -> None:
    """Issue 7, Shown by 3."""
    scene = scenes.flood(seed)
    fair, fifo = simulate(scene), simulate(scene, "fifo")
    assert fair.fair is not None
    assert fair.fair.violations == []
    assert fair.lost == fifo.lost == []
    assert unbounded(fair) == []
    assert unbounded(fifo)  # so that the judge can say otherwise
    names = small(scene)
    assert fair.waits(names)[-1] < 5 * MINUTE < 100 * MINUTE < fifo.waits(names)[-1]
    assert statistics.fmean(fair.waits(["flood"])) <= WORSE * statistics.fmean(fifo.waits(["flood"]))
    assert lines("t", {"a": distribution([1, 2, 3])}, "x", "y").startswith("<svg")


def test_overtaking_is_counted() -> None:
    scene = scenes.flood(0, 300)
    assert set(simulate(scene, "fifo").overtaken().values()) == {0}
    assert max(simulate(scene).overtaken().values()) > 0
