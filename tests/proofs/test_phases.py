"""The short form of the second half of `make prove-migration`."""

from __future__ import annotations

import pytest

from proofs.phases import BACK, RULES, page, run

pytestmark = pytest.mark.controlplane


def test_every_pod_becomes_what_is_documented_though_the_controller_dies_half_way() -> None:
    found, judged, turns = run(["controller killed half-way"])
    print(page(found, judged, turns))
    (only,) = found
    assert (only.wrong, judged) == ([], [])
    assert len(only.ends) == len(BACK) * len(RULES)
    assert [turn.lane for turn in turns] == ["device-plugin"] * 3 + ["dra"] * 3
