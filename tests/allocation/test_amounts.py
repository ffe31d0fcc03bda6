"""Amounts as apimachinery writes them (recorded: what a share of a device with that capacity consumes)."""

from __future__ import annotations

import pytest

from dra_gate.allocation.amounts import written
from dra_gate.kube.quantity import Quantity

SAME = "0 1 +5 007 1.500 1500Mi 1500m 100u 1n 1e3 1200e-3 1E 100E 1E3 2048 1023Ki 8Ki 1000Ki 1e0 1Ei 1234567 1e18 100e3"
OTHER = {
    "0Gi": "0",
    "0e3": "0",
    "1000": "1k",
    "1000k": "1M",
    "3000000": "3M",
    "1024Mi": "1Gi",
    "0.5Gi": "512Mi",
    "1.5Gi": "1536Mi",
    "8Ei": "9223372036854775807",
    "1000m": "1",
    "1.0": "1",
    "1.5": "1500m",
    "0.1": "100m",
    "0.001": "1m",
    "0.0001": "100u",
    "1e4": "10e3",
    "12e-1": "1200e-3",
    "5e19": "50e18",
    "1.5e-7": "150e-9",
    "2.5Ki": "2560",
    "0.3Ki": "307200m",
    "1.0001Ki": "1024102400u",
}


@pytest.mark.parametrize(("source", "text"), [*((word, word) for word in SAME.split()), *OTHER.items()])
def test_written(source: str, text: str) -> None:
    assert written(Quantity.parse(source)) == text
