"""Figures from the literature, and what has to hold of every figure."""

from __future__ import annotations

import random
from math import comb, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.migration.cohort import BOUNDS, STEP, Cell
from dra_gate.migration.intervals import at_least, difference, exact, order_limits, quantile, rate, ratio, wilson


@pytest.mark.parametrize(
    ("x", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_in_newcombe_1998(x: int, n: int, low: float, high: float) -> None:
    assert wilson(x, n, 0.05) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("x", "n", "low", "high"),
    [(81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (0, 20, 0.0, 0.1684), (1, 29, 0.0009, 0.1776)],
)
def test_exact_as_in_newcombe_1998(x: int, n: int, low: float, high: float) -> None:
    assert exact(x, n, 0.05) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("x", "n", "y", "m", "low", "high"),
    [
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (5, 56, 0, 29, -0.0381, 0.1926),
        (0, 10, 0, 20, -0.1611, 0.2775),
        (10, 10, 0, 10, 0.6075, 1.0),
    ],
)
def test_difference_as_in_newcombe_1998(x: int, n: int, y: int, m: int, low: float, high: float) -> None:
    assert difference([(0, x, n, y, m)], 0.05) == pytest.approx((x / n - y / m, low, high), abs=1e-4)


def test_small_numbers_are_exact() -> None:
    assert rate(1, 29, 0.05) == exact(1, 29, 0.05) != wilson(1, 29, 0.05)
    assert rate(81, 263, 0.05) == wilson(81, 263, 0.05)


@given(st.integers(0, 30), st.integers(1, 30), st.floats(0.01, 0.99))
def test_tails_of_the_binomial(x: int, n: int, p: float) -> None:
    told = sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(x, n + 1))
    assert at_least(x, n, p) == pytest.approx(told, abs=1e-9)


def test_a_different_mix_is_no_difference() -> None:
    """Simpson's: the same rates in each size, most large Pods under DRA."""
    strata = [(0, 980, 1000, 98, 100), (1, 70, 100, 700, 1000)]
    middle, low, high = difference(strata, 0.05)
    assert middle == pytest.approx(0)
    assert low < 0 < high
    together = [(0, 1050, 1100, 798, 1100)]
    assert difference(together, 0.05)[1] > 0.15


COUNTS = st.integers(0, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
STRATA = st.lists(st.tuples(st.integers(0, 3), COUNTS, COUNTS), min_size=1, max_size=6)


@given(STRATA)
def test_the_other_way_round_is_the_negative(drawn: list[tuple[int, tuple[int, int], tuple[int, int]]]) -> None:
    there = difference([(hour, *one, *other) for hour, one, other in drawn], 0.05)
    back = difference([(hour, *other, *one) for hour, one, other in drawn], 0.05)
    assert there == pytest.approx((-back[0], -back[2], -back[1]), abs=1e-9)
    assert there[1] <= there[0] + 1e-9
    assert there[0] <= there[2] + 1e-9


def test_hours_that_differ_widen_what_is_said() -> None:
    """The same 20 failures of 400: in each hour alike, or all in one."""
    spread = [(hour, 95, 100, 99, 100) for hour in range(4)]
    at_once = [(hour, 80 if hour == 0 else 100, 100, 99, 100) for hour in range(4)]
    assert difference(spread, 0.05)[2] < 0 < difference(at_once, 0.05)[2]
    assert difference(spread, 0.05)[0] == pytest.approx(difference(at_once, 0.05)[0])


def waits(values: list[float]) -> dict[int, int]:
    cell = Cell()
    for value in values:
        cell.bind(int(value))
    return cell.waits


@pytest.mark.parametrize("shift", [-12, -3, 0, 1, 8])
def test_the_ratio_of_shifted_times_is_the_shift(shift: int) -> None:
    draw = random.Random(3)
    base = {bucket + 40: draw.randrange(1, 9) for bucket in range(40)}
    pods = sum(base.values())
    middle, low, high = ratio([(0, {b + shift: n for b, n in base.items()}, pods, base, pods)], 0.5, 0.05)
    assert middle == pytest.approx(STEP**shift, rel=0.05)
    assert low < STEP**shift < high


def test_times_of_another_mix_are_no_longer() -> None:
    draw = random.Random(5)

    def some(count: int, median: float) -> dict[int, int]:
        return waits([1000 * median * draw.lognormvariate(0, 0.5) for _ in range(count)])

    strata = [(0, some(40, 10), 40, some(400, 10), 400), (1, some(400, 90), 400, some(40, 90), 40)]
    _, low, high = ratio(strata, 0.5, 0.05)
    assert low < 1 < high
    together = [(0, waits([1]) | strata[0][1] | strata[1][1], 440, strata[0][3], 440)]
    assert ratio(together, 0.5, 0.05)[1] > 1


def test_pods_that_were_never_bound_are_longer_than_any() -> None:
    bound = {10: 100}
    assert ratio([(0, bound, 300, bound, 100)], 0.5, 0.05)[1] >= 1
    assert quantile(bound, 300, 0.5) == len(BOUNDS)
    assert quantile(bound, 199, 0.5) == 10


def test_nothing_to_compare_says_nothing() -> None:
    assert ratio([], 0.5, 0.05) == ratio([(0, {3: 5}, 5, {}, 0)], 0.5, 0.05) == (1.0, 0.0, inf)
    assert difference([], 0.05) == difference([(0, 1, 5, 0, 0)], 0.05) == (0.0, -1.0, 1.0)


def test_limits_of_a_quantile_hold_it_as_often_as_they_say() -> None:
    draw = random.Random(7)
    truth = 1000 * 20.0
    held = 0
    for _ in range(400):
        values = [truth * draw.lognormvariate(0, 1) for _ in range(60)]
        low, high = order_limits(waits(values), 60, 0.5, 0.05)
        held += BOUNDS[low - 1] <= truth <= BOUNDS[high]
    assert held >= 0.95 * 400


def test_strata_weigh_as_mantel_and_haenszel_have_it() -> None:
    assert difference([(0, 8, 10, 2, 10), (0, 50, 100, 50, 100)], 0.05)[0] == pytest.approx(5 * 0.6 / 55)
    assert difference([(0, 8, 10, 20, 100), (0, 50, 100, 50, 100)], 0.05)[0] == pytest.approx(6 / (100 / 11 + 50) / 1.1)


def test_the_ratio_the_other_way_round_is_the_inverse() -> None:
    draw = random.Random(13)
    for _ in range(20):
        one, other = (waits([20_000 * draw.lognormvariate(0, 1) for _ in range(n)]) for n in (90, 40))
        there, back = ratio([(0, one, 90, other, 40)], 0.5, 0.05), ratio([(0, other, 40, one, 90)], 0.5, 0.05)
        assert there == pytest.approx((1 / back[0], 1 / back[2], 1 / back[1]))


def test_few_hours_that_differ_are_known_to_be_few() -> None:
    """Five hours, each lane with good and bad ones of its own: the interval holds the truth as often as it says."""
    draw = random.Random(17)
    held = 0
    for _ in range(400):
        rates = [min(1.0, 0.2 * draw.lognormvariate(0, 0.6)) for _ in range(10)]
        counts = [sum(draw.random() < p for _ in range(200)) for p in rates]
        _, low, high = difference([(h, counts[h], 200, counts[h + 5], 200) for h in range(5)], 0.05)
        held += low <= 0 <= high
    assert held >= 0.93 * 400
