"""Verdicts and hard stops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_gate.migration.cohort import HOUR, Cell, Cohorts, Key
from dra_gate.migration.compare import ENOUGH, ERROR, MEASURES, TAIL, Comparison, compare, overall, stops
from dra_gate.migration.intervals import difference
from migration.simulated import HOURS, START, USUAL, Fares, simulate

END = START + HOURS * HOUR


def said(dra: Fares, pods: int, plugin: Fares = USUAL, **options: object) -> Comparison:
    return compare(simulate(dra, plugin, (pods, pods), 11), START, END, **options)  # type: ignore[arg-type]


def verdict(found: Comparison, name: str) -> str:
    return next(one.verdict for one in found.measures if one.name == name)


@pytest.mark.parametrize(
    ("fares", "name"),
    [
        (replace(USUAL, success=0.85), "success"),
        (replace(USUAL, first=0.4), "first-choice"),
        (replace(USUAL, bind=0.1), "bind-failures"),
        (replace(USUAL, prepare=0.1), "prepare-failures"),
        (replace(USUAL, restarts=0.1), "restarts"),
        (replace(USUAL, denied=0.15), "denials"),
        (replace(USUAL, median=60), "bound-p50"),
        (replace(USUAL, median=80), "bound-p95"),
    ],
)
def test_each_measure_is_worse_one_way_and_better_the_other(fares: Fares, name: str) -> None:
    worse, better = said(fares, 1_500), said(USUAL, 1_500, fares)
    assert (verdict(worse, name), worse.verdict) == ("worse", "worse")
    assert verdict(better, name) == "better"
    assert better.verdict in ("better", "too few")


def test_alike_and_many_is_same() -> None:
    assert said(USUAL, 10_000).verdict == "same"


def test_below_enough_everything_is_too_few() -> None:
    broken = Fares(success=0.0, first=0.0, prepare=1.0, median=2_000)
    found = said(broken, ENOUGH - 1)
    assert {one.verdict for one in found.measures} == {"too few"}
    assert {one.reason for one in found.stops} == {"Failures", "PrepareFailures"}  # it stops all the same


def test_what_has_no_counterpart_is_left_out() -> None:
    cohorts = simulate(USUAL, USUAL, (400, 400), 1)
    before = compare(cohorts, START, END)
    for number in range(500):
        cell = cohorts.cell(START, Key("dra", "team-0", 16, "h100"))
        cell.submitted += 1
        cell.failed += 1
        cell.bind(number)
    found = compare(cohorts, START, END)
    assert found.measures == before.measures
    assert found.left_out["dra"] == before.left_out["dra"] + 500
    assert found.pods["dra"] == before.pods["dra"] + 500
    assert found.stops  # though a stop needs no counterpart


def test_a_tenants_pods_are_compared_with_everybodys() -> None:
    cohorts = simulate(USUAL, USUAL, (900, 900), 4)
    found = compare(cohorts, START, END, tenant="team-1")
    assert 200 < found.pods["dra"] < 400 < 800 < found.pods["device-plugin"]
    found = compare(cohorts, START, END, first="a100")
    assert (
        found.pods["dra"] + compare(cohorts, START, END, first="h100").pods["dra"]
        == compare(cohorts, START, END).pods["dra"]
    )


def test_of_nothing_nothing_is_said() -> None:
    for cohorts in (Cohorts(), simulate(USUAL, USUAL, (100, 0), 0)):
        found = compare(cohorts, START, END)
        assert found.verdict == "too few"
        assert all(one.change is None for one in found.measures)
        assert found.stops == ()


def test_what_is_used_is_told_of_what_was_measured() -> None:
    cohorts = Cohorts()
    cell = cohorts.cell(START, Key("dra", "lilac", 2, "h100"))
    cell.held, cell.measured, cell.busy = 7200, 3600, 900
    held = compare(cohorts, START, END).held
    assert (held["dra"].hours, held["dra"].measured, held["dra"].busy) == (2, 1, 0.25)
    assert held["device-plugin"].busy is None


def test_a_breach_stops_at_once_and_says_what() -> None:
    (cap,), (double,) = stops(Cell(over_cap=1), Cell(), 0.05), stops(Cell(doubled=2), Cell(), 0.05)
    assert (cap.reason, cap.text) == ("CapBreach", "a tenant was above its cap, once")
    assert (double.reason, double.text) == ("DoubleAllocation", "a device was given to two Pods, 2 times")


def test_three_of_three_failures_stop_and_two_of_two_do_not() -> None:
    assert [one.reason for one in stops(Cell(failed=3), Cell(), 0.05)] == ["Failures"]
    assert stops(Cell(failed=2), Cell(), 0.05) == ()
    assert stops(Cell(failed=50, started=950), Cell(), 0.05) == ()


def test_what_fails_now_is_not_diluted_by_what_went_well() -> None:
    cohorts = Cohorts()
    for hour in range(HOURS):
        cell = cohorts.cell(START + hour * HOUR, Key("dra", "lilac", 1, "h100"))
        cell.submitted = cell.started = 100
    assert compare(cohorts, START, END).stops == ()
    cell.started, cell.failed = 75, 25
    (stop,) = compare(cohorts, START, END).stops
    assert stop.reason == "Failures"
    assert "25 of 200 Pods failed in the last two hours" in stop.text


def test_all_in_all() -> None:
    assert overall(["same", "worse", "too few"]) == "worse"
    assert overall(["same", "better", "too few"]) == "too few"
    assert overall(["same", "better"]) == "better"
    assert overall(["same"]) == "same"


def test_all_measures_share_the_error() -> None:
    cohorts = Cohorts()
    for lane, failed in (("dra", 9), ("device-plugin", 4)):
        cell = cohorts.cell(START, Key(lane, "lilac", 1, "h100"))  # type: ignore[arg-type]
        cell.submitted, cell.started, cell.failed = 100, 100 - failed, failed
    success = compare(cohorts, START, END).measures[0]
    assert (success.change, success.low, success.high) == difference([(0, 91, 100, 96, 100)], ERROR / MEASURES)


def test_a_95th_percentile_takes_more_pods() -> None:
    slow = replace(USUAL, median=20_000)
    assert verdict(said(slow, TAIL - 20), "bound-p50") == "worse"
    assert verdict(said(slow, TAIL - 20), "bound-p95") == "too few"
    assert verdict(said(slow, 3 * TAIL), "bound-p95") == "worse"


def test_what_nobody_notices_is_no_difference() -> None:
    quick = replace(USUAL, median=0.02)  # seconds, of one device
    assert verdict(said(replace(USUAL, median=0.1), 2000, quick), "bound-p50") == "same"
    assert verdict(said(replace(USUAL, median=3), 2000, quick), "bound-p50") == "worse"


def test_what_fails_under_device_plugins_stops_nothing() -> None:
    assert said(USUAL, 500, replace(USUAL, success=0.0, prepare=1.0)).stops == ()
