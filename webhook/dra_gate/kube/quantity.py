"""Kubernetes quantities (`40Gi`, `500m`, `1e3`) as exact, ordered values.

The rules are those of `resource.ParseQuantity` in k8s.io/apimachinery, oddities included: a number finer than one
billionth is rounded away from zero to a billionth, and a number with a binary suffix stops at 2**63-1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import total_ordering
from math import ceil, floor
from typing import Self

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_NANO = 10**9
# The scanner of ParseQuantity: sign, digits, point, then a suffix that is looked up or read as an exponent.
_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)", re.ASCII)
_DECIMAL = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_EXPONENT = re.compile(r"[eE][+-]?[0-9]+", re.ASCII)
_FAST_DIGITS = 18  # digits that always fit into an int64
MAX_DIGITS = 4000  # apimachinery has no bound; ours keeps one short text from filling memory


class QuantityError(ValueError):
    """The text is no quantity. The message names the text and the part that is wrong."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A number of something, in the unit that the resource defines (bytes for memory, ones for devices).

    Equality, order and hash go by `value`; `text` is what was parsed and is what `str()` gives back.
    `scale` is the power of ten of apimachinery's small form, None for its big form: `as_int64` depends on it.
    """

    value: Fraction
    text: str
    scale: int | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, source: str | int | float) -> Self:
        """Reads a quantity as the API server does; a number stands for its JSON text.

        Raises QuantityError exactly where `resource.ParseQuantity` returns an error, and for numbers of more than
        `MAX_DIGITS` digits, which no Kubernetes field holds.
        """
        if isinstance(source, bool) or not isinstance(source, str | int | float):
            raise QuantityError(f"a quantity is text or a number, not {type(source).__name__}")
        try:
            text = source if isinstance(source, str) else str(source)
        except ValueError as error:  # Python refuses to print integers of more than 4300 digits
            raise QuantityError(f"a quantity has at most {MAX_DIGITS} digits") from error
        value, scale = _parse(text)
        return cls(value, text, scale)

    @classmethod
    def of(cls, value: Fraction | int) -> Self:
        """The quantity of a number that was computed; anything finer than a billionth is rounded away from zero."""
        number = Fraction(value)
        if number.denominator != 1:
            number = _round_to_nano(number)
        if number.denominator == 1:
            return cls(number, str(number.numerator), 0 if _fits(number, 0) else None)
        return cls(number, f"{(number * _NANO).numerator}n", None)

    def whole(self) -> int | None:
        """The number as an int if it is a whole number, else None."""
        return self.value.numerator if self.value.denominator == 1 else None

    def as_int64(self) -> int | None:
        """What apimachinery's `AsInt64` returns: the whole number, None where that method gives up.

        It gives up on more than whole numbers beyond 64 bits: also on `1000m`, `1.0` and `1.5Gi`, by the form they
        were written in. CEL's `isInteger` and `asInteger` follow it.
        """
        if self.scale is None or self.scale < 0 or not _fits(self.value, 0):
            return None
        return self.value.numerator

    def __add__(self, other: Quantity) -> Quantity:
        return self._sum(other, self.value + other.value)

    def __sub__(self, other: Quantity) -> Quantity:
        return self._sum(other, self.value - other.value)

    def _sum(self, other: Quantity, value: Fraction) -> Quantity:
        """The sum in apimachinery's small form if both are and it fits, so that `as_int64` stays true to it."""
        scale: int | None
        if self.scale is None or other.scale is None:
            scale = None
        elif not self.value or not other.value:
            scale = self.scale if not other.value else other.scale
        else:
            scale = min(self.scale, other.scale)
            if not all(_fits(part, scale) for part in (self.value, other.value, value)):
                scale = None
        return replace(Quantity.of(value), scale=scale)

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return self.text


def _parse(text: str) -> tuple[Fraction, int | None]:
    match = _FORM.fullmatch(text)
    if not text or match is None:
        raise QuantityError(f"{text[:60]!r} is no quantity: write a number and one suffix, such as 40Gi, 500m or 1e3")
    sign, whole, fraction, suffix = match.groups(default="")
    numerator = whole.lstrip("0") or "0"
    binary = _BINARY.get(suffix)
    exponent = 0 if binary is not None else _decimal_exponent(suffix, text)
    zero = not (numerator + fraction).strip("0")
    if len(numerator) + len(fraction) > MAX_DIGITS or (exponent > MAX_DIGITS and not zero):
        raise QuantityError(f"{text[:60]!r} has more than {MAX_DIGITS} digits")
    scale = _small_form_scale(numerator, fraction, binary, exponent)
    if scale is None and not whole and not fraction:
        raise QuantityError(f"{text[:60]!r} has no number")
    if zero:
        return Fraction(0), scale
    digits = int(numerator + fraction)
    if exponent < -MAX_DIGITS - _FAST_DIGITS:  # smaller than any billionth whatever the digits
        value = Fraction(1, _NANO)
    else:
        value = Fraction(digits << (binary or 0), 10 ** len(fraction)) * Fraction(10) ** exponent
        value = _round_to_nano(value)
    if binary is not None and value > _INT64_MAX:
        value, scale = Fraction(_INT64_MAX), None
    return (-value if sign == "-" else value), scale


def _decimal_exponent(suffix: str, text: str) -> int:
    known = _DECIMAL.get(suffix)
    if known is not None:
        return known
    if _EXPONENT.fullmatch(suffix) and len(suffix) < MAX_DIGITS and abs(int(suffix[1:])) <= _INT64_MAX:
        return (int(suffix[1:]) + 2**31) % 2**32 - 2**31  # apimachinery cuts the exponent to 32 bits
    known_suffixes = "n u m k M G T P E, Ki Mi Gi Ti Pi Ei or an exponent such as e3"
    raise QuantityError(f"{text[:60]!r} has an unknown suffix {suffix[:20]!r}: use {known_suffixes}")


def _small_form_scale(numerator: str, fraction: str, binary: int | None, exponent: int) -> int | None:
    """The scale under which ParseQuantity keeps the number as an int64, or None if it falls back to a big decimal."""
    if binary is None:
        scale = exponent - len(fraction)
        return scale if len(numerator) + len(fraction) <= _FAST_DIGITS and scale >= -9 else None
    # The estimate of ParseQuantity: a binary suffix costs three tenths of its exponent in digits, and one more.
    room = 15 - len(numerator) - binary * 3 // 10 - 1
    fits = not fraction and room >= 0 and int(numerator) << binary <= _INT64_MAX
    return 0 if fits else None


def _fits(value: Fraction, scale: int) -> bool:
    """Whether value / 10**scale fits into an int64."""
    up, down = (10**scale, 1) if scale >= 0 else (1, 10**-scale)
    return _INT64_MIN * up * value.denominator <= value.numerator * down <= _INT64_MAX * up * value.denominator


def _round_to_nano(value: Fraction) -> Fraction:
    scaled = value * _NANO
    return value if scaled.denominator == 1 else Fraction(ceil(scaled) if scaled > 0 else floor(scaled), _NANO)
