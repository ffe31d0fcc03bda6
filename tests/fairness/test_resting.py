"""Grants that are of no use to their Pods, and how long these rest."""

from __future__ import annotations

import pytest

from dra_gate.fairness.resting import LONGEST_REST, MOST_RESTS, Rest, idle_because, kept, rest_after

MINUTE = 60_000
NOW = 1_000 * MINUTE


@pytest.mark.parametrize(
    ("gates", "unplaced", "age", "timeout", "why"),
    [
        pytest.param((), "0/3 nodes are available", 5 * MINUTE, 5 * MINUTE, "0/3 nodes are available", id="in vain"),
        pytest.param((), "0/3 nodes are available", 5 * MINUTE - 1, 5 * MINUTE, "", id="not for long enough"),
        pytest.param((), "", 99 * MINUTE, 5 * MINUTE, "", id="the scheduler has not looked: it may be away"),
        pytest.param(("a.b/c",), "", 5 * MINUTE, 5 * MINUTE, "scheduling gate a.b/c holds it", id="others hold it"),
        pytest.param((), "0/3 nodes are available", 99 * MINUTE, 0, "", id="switched off"),
        pytest.param((), "0/3 nodes are available", -MINUTE, 5 * MINUTE, "", id="the clock was turned back"),
    ],
)
def test_when_a_grant_is_of_no_use(gates: tuple[str, ...], unplaced: str, age: int, timeout: int, why: str) -> None:
    assert idle_because(gates, unplaced, granted=NOW - age, now=NOW, timeout=timeout) == why


def test_each_rest_is_twice_as_long_up_to_an_hour() -> None:
    lengths, rest = [], None
    for _ in range(100):
        rest = rest_after(rest, "u", NOW, "no node")
        lengths.append((rest.until - NOW) // MINUTE)
    assert lengths[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(lengths[6:]) == {60}


def test_a_clock_that_jumps_ends_a_rest_or_prolongs_it_by_an_hour_at_most() -> None:
    rest = rest_after(None, "u", NOW, "no node")
    assert rest.lasts(NOW)
    assert not rest.lasts(NOW + MINUTE)
    assert not rest.lasts(NOW - LONGEST_REST), "a day back does not hold the Pod for a day"


def test_the_pod_is_told_why_and_until_when() -> None:
    told = rest_after(None, "u", NOW, "0/3 nodes are available: 3 Insufficient cpu").text
    assert told == (
        "its grant was taken back, as it could not be scheduled: 0/3 nodes are available: 3 Insufficient cpu. "
        "It waits again from 1970-01-01T16:41:00Z on"
    )


def test_a_ledger_keeps_the_rests_that_end_last_and_short_reasons() -> None:
    rests = [Rest(f"u{number:04}", 1, number) for number in range(MOST_RESTS + 100)]
    assert kept(rests) == tuple(rests[100:])
    assert len(rest_after(None, "u", NOW, "x" * 10_000).why) == 160
