"""The short form of `make prove-flood`."""

from __future__ import annotations

import pytest

from proofs.flood import CROWD, H100, SLACK, SMALL, page, run

pytestmark = pytest.mark.controlplane


def test_small_tenants_wait_no_longer_than_a_device_takes_to_come_free() -> None:
    found = run(150)
    print(page(found))
    assert (found.checker, found.faults) == ([], [])
    # A device changes hands half as fast on a machine half as fast. First come, first served would be 16 s.
    assert found.longest <= found.bound + SLACK
    assert found.granted[CROWD][-1] > 2 * found.bound  # there was a flood
    assert all(found.models[name]["h100"] > 0 for name in SMALL)
    assert sum(models.total() for models in found.models.values()) > 150 + H100
