"""Counting: nothing is lost, nothing grows without bound."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.migration.cohort import BOUNDS, CELLS, HOUR, HOURS, KEYS, MARKS, OTHERS, STEP, Cell, Cohorts, Key, Mark
from migration.simulated import START, USUAL, simulate

KEY = Key("dra", "lilac", 1, "h100")


def total(cohorts: Cohorts, name: str) -> int:
    return sum(getattr(cell, name) for cells in cohorts.hours.values() for cell in cells.values())


@given(st.integers(min_value=BOUNDS[0], max_value=BOUNDS[-1]))
def test_a_wait_is_known_to_nine_percent(waited: int) -> None:
    cell = Cell()
    cell.bind(waited)
    (bucket,) = cell.waits
    assert waited <= BOUNDS[bucket] <= waited * STEP + 1


def test_longer_than_all_bounds_is_a_bucket_too() -> None:
    cell = Cell()
    cell.bind(BOUNDS[-1] + 1)
    assert cell.waits == {len(BOUNDS): 1}
    assert cell.bound == 1


def test_what_is_written_is_read_again_byte_for_byte() -> None:
    cohorts = simulate(USUAL, USUAL, (200, 200), 0)
    cohorts.mark(Mark(START, "wave 1"))
    written = cohorts.dumps()
    assert Cohorts.loads(written).dumps() == written
    assert Cohorts.loads(Cohorts().dumps()).hours == {}


def test_merged_is_counted_together() -> None:
    whole, one, other = Cohorts(), simulate(USUAL, USUAL, (100, 50), 1), simulate(USUAL, USUAL, (70, 90), 2)
    one.mark(Mark(START, "wave 1"))
    other.mark(Mark(START, "wave 1"))
    for cohorts in (other, one):
        whole.merge(cohorts)
    for name in ("submitted", "started", "failed", "bound", "held"):
        assert total(whole, name) == total(one, name) + total(other, name)
    assert whole.marks == [Mark(START, "wave 1")]
    one.merge(other)
    assert one.dumps() == whole.dumps()


def test_tenants_without_number_are_counted_under_others() -> None:
    cohorts = Cohorts()
    for number in range(KEYS + 100):
        cohorts.cell(START, Key("dra", f"team-{number}", 1, "h100")).submitted += 1
        cohorts.cell(START, Key("device-plugin", f"team-{number}", 1, "h100")).submitted += 1
    cells = cohorts.hours[START]
    assert len(cells) <= KEYS + 2
    assert total(cohorts, "submitted") == 2 * KEYS + 200
    assert cells[Key("dra", OTHERS, 0, OTHERS)].submitted == KEYS + 100 - KEYS // 2


def test_the_oldest_hours_go_first_and_late_news_of_them_is_not_counted() -> None:
    cohorts = Cohorts()
    for hour in range(HOURS + 10):
        cohorts.cell(START + hour * HOUR, KEY).submitted += 1
    assert len(cohorts.hours) == HOURS
    assert cohorts.since == min(cohorts.hours) == START + 10 * HOUR
    cohorts.cell(START, KEY).submitted += 1
    assert total(cohorts, "submitted") == HOURS
    assert Cohorts.loads(cohorts.dumps()).since == cohorts.since


def test_cells_are_bounded_and_so_is_the_file() -> None:
    cohorts = Cohorts()
    for hour in range(40):
        for number in range(200):
            cell = cohorts.cell(START + hour * HOUR, Key("dra", f"team-{number:03}", 8, "h100"))
            cell.submitted += 100
            for waited in (1_000, 5_000, 20_000, 80_000):
                cell.bind(waited)
    assert sum(map(len, cohorts.hours.values())) <= CELLS
    assert max(cohorts.hours) == START + 39 * HOUR
    assert len(cohorts.dumps()) < 150 * CELLS
    cohorts.cell(START + 40 * HOUR, KEY).submitted += 1
    forgotten = cohorts.since - HOUR  # though there is room again
    cohorts.cell(forgotten, KEY).submitted += 1
    assert forgotten not in cohorts.hours


def test_marks_are_bounded() -> None:
    cohorts = Cohorts()
    for number in range(2 * MARKS):
        cohorts.mark(Mark(START + number, "wave"))
    assert [one.at for one in cohorts.marks] == list(range(START + MARKS, START + 2 * MARKS))


@pytest.mark.parametrize(
    "change",
    [
        lambda hours: hours[0][1][0][1].__setitem__(0, -1),
        lambda hours: hours[0].__setitem__(0, START + 1),
        lambda hours: hours[0][1][0][0].__setitem__(0, "gpu"),
        lambda hours: hours[0][1][0][1].__setitem__(-1, {"999": 1}),
        lambda hours: hours[0][1][0][1].__setitem__(-1, {"3": -1}),
    ],
)
def test_what_cannot_be_is_no_cohort(change: object) -> None:
    cohorts = Cohorts()
    cohorts.cell(START, KEY).bind(1_000)
    stored = json.loads(cohorts.dumps())
    change(stored["hours"])  # type: ignore[operator]
    with pytest.raises(ValueError, match="no cohorts"):
        Cohorts.loads(json.dumps(stored).encode())
    with pytest.raises(ValueError, match="no cohorts"):
        Cohorts.loads(b"{")
