"""What a share of a device takes of its capacity, and whether that is still there (DRAConsumableCapacity).

For a device that is given whole the same rules say whether it is large enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_gate.allocation.amounts import NANO, canonical, form_of, nano, quantity_of, same_form, written
from dra_gate.allocation.problems import Failed
from dra_gate.kube.quantity import Quantity
from dra_gate.kube.raw import Object, at, mapping, sequence

_MILLI: Final = NANO // 1000
_INT64_MAX: Final = 2**63 - 1
_UNREPRESENTABLE: Final = "capacity request cannot be represented in the device's range arithmetic"
Amounts = Mapping[str, int]  # capacity name -> billionths


@dataclass(frozen=True, slots=True)
class Range:
    """`requestPolicy.validRange`: from `minimum` in steps up to `maximum`."""

    minimum: Quantity | None
    maximum: Quantity | None
    step: Quantity | None
    fractional: bool  # the gate DRAFractionalCapacityRange

    @property
    def in_milli(self) -> bool:
        """Whether it is reckoned in thousandths: all that it names are whole thousandths, and not too many."""
        named = [amount for amount in (self.minimum, self.maximum, self.step) if amount is not None]
        if not self.fractional or any(_milli(nano(amount)) is None for amount in named):
            return False
        return self.step is None or nano(self.step) >= _MILLI


@dataclass(frozen=True, slots=True)
class Capacity:
    """One entry of a device's `capacity`, with its request policy."""

    value: Quantity
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] | None = None
    valid_range: Range | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What is taken of one capacity: billionths, their text, and the quantity that somebody wrote, if one did."""

    amount: int
    text: str
    source: Quantity | None = None


def capacities_of(device: Object, fractional: bool) -> Mapping[str, Capacity]:
    """The capacity of a device as published. Raises CannotEvaluate for what is no quantity."""
    return {
        name: _capacity(mapping(entry), f"capacity[{name}]", fractional)
        for name, entry in mapping(device.get("capacity")).items()
    }


def requested(request: Object) -> Mapping[str, Quantity]:
    """What a request asks of each capacity. Raises CannotEvaluate for what is no quantity."""
    asked = mapping(at(request, "capacity", "requests"))
    return {name: quantity_of(value, f"capacity.requests[{name}]") for name, value in asked.items()}


def shares(asked: Mapping[str, Quantity], capacity: Mapping[str, Capacity]) -> Mapping[str, Share]:
    """What a request takes of each capacity of a device, rounded up as the device's policy wants it.

    Raises Failed, without saying where, for what cannot be reckoned. Of several the scheduler names any one, here it is
    the first in the order of names.
    """
    found = {}
    for name in sorted(capacity):
        try:
            share = _share(asked.get(name), capacity[name])
        except Failed as error:
            raise Failed(f'capacity "{name}": {error}') from error
        if share.amount < 0:
            raise Failed(f'capacity "{name}": capacity value is negative')
        found[name] = share
    return found


def fits(taken: Mapping[str, Share], capacity: Mapping[str, Capacity], *used: Amounts) -> str:
    """The first capacity that has no room for `taken` beside what is used, or whose policy forbids it; or ""."""
    for name, share in taken.items():
        entry = capacity[name]
        if _violates(share, entry) or share.amount + sum(of.get(name, 0) for of in used) > nano(entry.value):
            return name
    return ""


def missing(asked: Mapping[str, Quantity], capacity: Mapping[str, Capacity]) -> str:
    """The first capacity that is asked for and that the device does not have; or ""."""
    return next((name for name in asked if name not in capacity), "")


def _capacity(entry: Object, place: str, fractional: bool) -> Capacity:
    policy = mapping(entry.get("requestPolicy"))

    def optional(source: object, name: str) -> Quantity | None:
        value = at(source, name)
        return None if value is None else quantity_of(value, f"{place}.requestPolicy")

    values, bounds = policy.get("validValues"), policy.get("validRange")
    return Capacity(
        quantity_of(entry.get("value", "0"), place),
        optional(policy, "default"),
        tuple(quantity_of(value, f"{place}.requestPolicy") for value in sequence(values)) if values else None,
        Range(optional(bounds, "min"), optional(bounds, "max"), optional(bounds, "step"), fractional)
        if isinstance(bounds, dict)
        else None,
    )


def _share(asked: Quantity | None, capacity: Capacity) -> Share:
    if asked is None:
        return _as_written(capacity.value if capacity.default is None else capacity.default)
    bounds = capacity.valid_range
    if bounds is not None and bounds.minimum is not None:
        return _rounded(asked, bounds.minimum, bounds)
    if capacity.valid_values is not None:
        return _as_written(next((value for value in capacity.valid_values if asked <= value), asked))
    return _as_written(asked)


def _as_written(quantity: Quantity) -> Share:
    return Share(nano(quantity), written(quantity), quantity)


def _rounded(asked: Quantity, minimum: Quantity, bounds: Range) -> Share:
    """`asked`, rounded up to a whole number of steps from the minimum."""
    if asked < minimum:
        return _as_written(minimum)
    if bounds.step is None:
        return _as_written(asked)
    form = form_of(bounds.step)
    if bounds.in_milli:
        start = _milli(nano(asked))
        if start is None:
            raise Failed(f"{_UNREPRESENTABLE}: request {written(asked)} is not a representable milli value")
        least, step = nano(minimum) // _MILLI, nano(bounds.step) // _MILLI
        unit, limit = _MILLI, "the milli-value range"
    else:
        start = _whole(nano(asked))
        if nano(asked) > _INT64_MAX * NANO:
            raise Failed(f"{_UNREPRESENTABLE}: request {written(asked)} exceeds MaxInt64")
        least, step = _whole(nano(minimum)), _whole(nano(bounds.step))
        unit, limit = NANO, "MaxInt64"
    steps = -((least - start) // step)
    if steps > (_INT64_MAX - least) // step:
        raise Failed(f"{_UNREPRESENTABLE}: rounding request {written(asked)} up to the next step passes {limit}")
    amount = (least + step * steps) * unit
    return Share(amount, canonical(amount, form))


def _violates(share: Share, capacity: Capacity) -> bool:
    """Whether the policy of a capacity forbids such a share."""
    if capacity.default is not None and share.source is not None and same_form(share.source, capacity.default):
        return False
    bounds = capacity.valid_range
    if bounds is not None:
        if bounds.maximum is not None and share.amount > nano(bounds.maximum):
            return True
        return bounds.step is not None and _off_step(share.amount, bounds, bounds.step)
    if capacity.valid_values:
        return all(share.amount != nano(value) for value in capacity.valid_values)
    return False


def _off_step(amount: int, bounds: Range, step: Quantity) -> bool:
    least = nano(bounds.minimum) if bounds.minimum is not None else 0
    if bounds.in_milli:
        milli = _milli(amount)
        return milli is None or (milli - least // _MILLI) % (nano(step) // _MILLI) != 0
    return (_whole(amount) - _whole(least)) % _whole(nano(step)) != 0


def _milli(amount: int) -> int | None:
    """Billionths as thousandths, None where they are none or too many for 64 bits."""
    milli, rest = divmod(amount, _MILLI)
    return milli if not rest and -_INT64_MAX - 1 <= milli <= _INT64_MAX else None


def _whole(amount: int) -> int:
    """Billionths as whole numbers, rounded up."""
    return -(-amount // NANO)
