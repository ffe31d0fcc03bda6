"""Quantities against what apimachinery made of the same texts, and the laws that ordering and sums must keep."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.kube.quantity import MAX_DIGITS, Quantity, QuantityError

RECORDED = [(row[0], row[1:]) for row in yaml.safe_load((Path(__file__).parent / "quantities.yaml").read_text("utf-8"))]

numbers = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**22),
    st.sampled_from(["", ".", ".5", ".000000001", ".0000000001", ".125"]),
    st.sampled_from(
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-3", "e+2"]
    ),
)


@pytest.mark.parametrize(("text", "expected"), RECORDED, ids=[repr(text) for text, _ in RECORDED])
def test_as_apimachinery(text: str, expected: list[str]) -> None:
    if expected == ["refused"]:
        with pytest.raises(QuantityError):
            Quantity.parse(text)
        return
    quantity = Quantity.parse(text)
    assert quantity.value == Fraction(Decimal(expected[0]))
    assert quantity.as_int64() == (int(expected[0]) if "int64" in expected else None)
    assert str(quantity) == text


@pytest.mark.parametrize(
    ("source", "value"), [(0, 0), (-3, -3), (10**30, 10**30), (0.5, Fraction(1, 2)), (1e22, 10**22)]
)
def test_numbers_stand_for_their_json_text(source: int | float, value: Fraction) -> None:
    assert Quantity.parse(source).value == value


@pytest.mark.parametrize(
    "source",
    [True, None, [], float("nan"), float("inf"), 10**5000, "9" * (MAX_DIGITS + 1), "1e1000000"],
    ids=lambda source: type(source).__name__,
)
def test_refused_sources(source: object) -> None:
    with pytest.raises(QuantityError):
        Quantity.parse(source)  # type: ignore[arg-type]


def test_forms_of_one_value_are_one() -> None:
    same = [Quantity.parse(text) for text in ("1Gi", "1024Mi", "1073741824", "1073741824000m", "1.073741824G")]
    assert len(set(same)) == 1
    assert max(same) == min(same)
    assert [quantity.whole() for quantity in same] == [2**30] * 5
    assert Quantity.parse("1500m").whole() is None
    assert Quantity.parse("1Gi") != "1Gi"


@given(numbers, numbers)
def test_order_is_that_of_the_values(left: str, right: str) -> None:
    one, two = Quantity.parse(left), Quantity.parse(right)
    assert (one < two, one == two, one > two) == (one.value < two.value, one.value == two.value, one.value > two.value)
    assert (one == two) == (hash(one) == hash(two)) or one != two


@given(numbers, numbers)
def test_sums_are_exact(left: str, right: str) -> None:
    one, two = Quantity.parse(left), Quantity.parse(right)
    assert (one + two).value == one.value + two.value
    assert (one - two).value == one.value - two.value
    assert Quantity.parse(str(one + two)) == one + two


@given(st.fractions(max_denominator=10**12))
def test_computed_values_round_away_from_zero(value: Fraction) -> None:
    made = Quantity.of(value)
    assert Quantity.parse(str(made)) == made
    assert abs(value) <= abs(made.value) < abs(value) + Fraction(1, 10**9)
