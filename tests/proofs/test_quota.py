"""The short form of `make prove-quota`."""

from __future__ import annotations

import pytest

from proofs.quota import CREATES, QUOTA, TENANTS, USED, page, rounds

pytestmark = pytest.mark.controlplane


def test_no_burst_passes_a_quota_whatever_is_broken_meanwhile() -> None:
    found = []
    for one in rounds(3, seed=5):
        print(one)
        found.append(one)
        assert one.wrong == []
        assert one.most_allocated == one.most == QUOTA
        assert one.accepted + one.refused == CREATES
        assert one.let_go + one.waiting + one.ended == one.accepted + USED
    assert {one.tenant for one in found} == set(list(TENANTS)[:3])
    assert all(one.done["the leader was paused, and came back"] for one in found)
    assert "Overshoot: 0 rounds" in page(found, 5)
