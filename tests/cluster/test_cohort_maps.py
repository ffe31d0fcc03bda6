"""Counts in ConfigMaps: the newest whole set is read, whatever was left half-written."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.cluster import cohort_maps as module
from dra_gate.cluster.cohort_maps import TooLargeError, cohort_maps, newest

MIB = 1 << 20


def names(maps: list[dict[str, Any]]) -> list[str]:
    return [one["metadata"]["name"] for one in maps]


def noise(length: int, seed: int = 0) -> bytes:
    """What can't be packed."""
    return random.Random(seed).randbytes(length)


@given(st.binary(max_size=2000), st.integers(1, 1 << 40))
def test_what_is_written_is_read(data: bytes, generation: int) -> None:
    assert newest(cohort_maps(data, generation)) == (generation, data)


def test_two_sets_take_turns_and_each_map_is_small_enough() -> None:
    data = noise(2_000_000)
    even, odd = cohort_maps(data, 8), cohort_maps(b"x", 9)
    assert names(even) == ["dra-gate-cohorts-0", "dra-gate-cohorts-2", "dra-gate-cohorts-4"]
    assert names(odd) == ["dra-gate-cohorts-1"]
    for one in even:
        assert len(base64.b64decode(one["binaryData"]["part"])) + len(one["data"]["head.json"]) < MIB
    assert newest([*even, *odd]) == (9, b"x")


@pytest.mark.parametrize("missing", range(3))
def test_a_set_that_lacks_a_part_is_not_used(missing: int) -> None:
    whole, half = cohort_maps(b"old", 3), cohort_maps(noise(2_000_000), 4)
    half[missing : missing + 1] = []
    assert newest([*half, *whole])[1] == b"old"
    assert newest(half) == (4, None)


@pytest.mark.parametrize("left", [1, 2])
def test_whatever_crashes_how_often_in_the_middle_the_whole_set_stays(left: int) -> None:
    """The next to write takes the maps of the one that was left half-written, not those of the whole one."""
    stored = {one["metadata"]["name"]: one for one in cohort_maps(noise(2_000_000), 10)}
    for attempt in range(4):
        generation, data = newest(stored.values())
        assert data == noise(2_000_000)
        for one in cohort_maps(noise(2_000_000, attempt + 1), generation + 1)[: left if attempt < 3 else None]:
            stored[one["metadata"]["name"]] = one
    assert newest(stored.values())[1] == noise(2_000_000, 4)


def test_parts_of_two_writers_are_no_set() -> None:
    """One was paused in the middle, and went on after the other had begun at the same generation."""
    one, other = cohort_maps(noise(1_500_000, 1), 6), cohort_maps(noise(1_500_000, 2), 6)
    old = cohort_maps(b"old", 5)
    assert newest([one[0], other[1], *old])[1] == b"old"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", -1), ("generation", "9"), ("generation", True), ("part", 1), ("parts", 0), ("parts", 99),
        ("digest", "0" * 64), ("digest", None), ("generation", 1 << 60),
    ],
)  # fmt: skip
def test_a_map_that_was_spoilt_is_left_alone(field: str, value: object) -> None:
    (spoilt,) = cohort_maps(b"new", 4)
    head = json.loads(spoilt["data"]["head.json"])
    spoilt["data"]["head.json"] = json.dumps({**head, field: value})
    assert newest([spoilt, *cohort_maps(b"old", 3)])[1] == b"old"


def test_what_is_no_map_of_ours_is_left_alone() -> None:
    assert newest([{}, {"data": {"head.json": "["}}, {"data": {"head.json": "[]"}, "binaryData": {"part": "?"}}]) == (
        0,
        None,
    )


def test_more_than_the_maps_hold_is_refused_and_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooLargeError, match="8 ConfigMaps hold"):
        cohort_maps(noise(8_000_000), 1)
    monkeypatch.setattr(module, "_MOST", 1000)
    assert newest(cohort_maps(bytes(2000), 1)) == (1, None)
    assert zlib.decompress(base64.b64decode(cohort_maps(bytes(2000), 1)[0]["binaryData"]["part"])) == bytes(2000)
