"""Quantities as the allocator reckons with them: exact, in billionths, and written as apimachinery writes them."""

from __future__ import annotations

import re
from typing import Final

from dra_gate.allocation.problems import CannotEvaluate
from dra_gate.kube.quantity import Quantity, QuantityError

NANO: Final = 10**9
_DECIMAL: Final = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_PARTS: Final = re.compile(r"[+-]?([0-9]*)\.?([0-9]*)(.*)", re.ASCII)


def quantity_of(value: object, place: str) -> Quantity:
    """The quantity in a field; raises CannotEvaluate for what is none."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return Quantity.parse(value)
        except QuantityError as error:
            raise CannotEvaluate(f"{place}: {error}") from error
    raise CannotEvaluate(f"{place}: no quantity")


def nano(quantity: Quantity) -> int:
    """The quantity in billionths, of which every quantity is a whole number."""
    return quantity.value.numerator * (NANO // quantity.value.denominator)


def form_of(quantity: Quantity) -> str:
    """The form in which it was written: "binary", "exponent" or "decimal"."""
    suffix = _suffix(quantity.text)
    if suffix in _BINARY[1:]:
        return "binary"
    return "exponent" if re.fullmatch("[eE][+-]?[0-9]+", suffix) else "decimal"


def same_form(one: Quantity, two: Quantity) -> bool:
    """Whether Go's `==` holds of the two structs: the same digits at the same scale in the same form.

    Numbers in apimachinery's big form hold a pointer and equal nothing.
    """
    if one.scale is None or two.scale is None:
        return False
    return (one.value, one.scale, form_of(one), _kept(one)) == (two.value, two.scale, form_of(two), _kept(two))


def written(quantity: Quantity) -> str:
    """The canonical text, as `Quantity.String()` gives it."""
    return _kept(quantity) or canonical(
        quantity.value.numerator * NANO // quantity.value.denominator, form_of(quantity)
    )


def canonical(amount: int, form: str) -> str:
    """Billionths in canonical form: as few digits as go with a suffix of that form."""
    if not amount:
        return "0"
    if form == "binary" and abs(amount) >= 1024 * NANO and amount % NANO == 0:
        number, power = amount // NANO, 0
        while number % 1024 == 0 and power < len(_BINARY) - 1:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY[power]}"
    number, exponent = amount, -9
    while number % 1000 == 0 and (form == "exponent" or exponent < max(_DECIMAL)):
        number, exponent = number // 1000, exponent + 3
    if form == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL[exponent]}"


def _suffix(source: str) -> str:
    parts = _PARTS.fullmatch(source)
    return parts[3] if parts else ""


def _kept(quantity: Quantity) -> str:
    """The text that ParseQuantity keeps because it takes it for canonical already, "" where it keeps none."""
    parts = _PARTS.fullmatch(quantity.text)
    if parts is None or quantity.scale is None:
        return ""
    if quantity.text == "0":
        return "0"
    digits = parts[1].lstrip("0") + parts[2]
    if form_of(quantity) == "binary":
        return quantity.text if int(digits or "0") & 7 else ""
    plain = quantity.scale % 3 == 0 and not digits.endswith("000") and not digits.startswith("0")
    return quantity.text if plain and digits else ""
