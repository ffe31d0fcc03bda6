"""What a claim costs its tenant: the worst case until it is allocated, the truth after. Devices, integers only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from dra_gate.kube.claim import Alternative, requests
from dra_gate.kube.raw import Object, at, mapping, sequence, text


@dataclass(frozen=True, slots=True)
class Charge:
    """Devices in all and by model.

    Before allocation the models may add up to more than `devices`: each is its own worst case.
    """

    devices: int = 0
    models: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Charge) -> Charge:
        # Most sums have one term: they share it.
        if other == NOTHING:
            return self
        if self == NOTHING:
            return other
        models = Counter(self.models)
        models.update(other.models)
        return Charge(self.devices + other.devices, dict(models))

    def __sub__(self, other: Charge) -> Charge:
        """What is left; never below nothing."""
        if other == NOTHING:
            return self
        return Charge(max(0, self.devices - other.devices), dict(Counter(self.models) - Counter(other.models)))


NOTHING = Charge()


def worst_case(alternatives: Iterable[Alternative], model_of: Mapping[str, str] | None = None) -> Charge:
    """The charge of one request before it is allocated: any of its alternatives may be the one (KEP-4816).

    An alternative's model is the one of its name (`model_of` renames); counts may differ between alternatives.
    Raises UnknownAllocationMode.
    """
    devices, models = 0, Counter[str]()
    for alternative in alternatives:
        count = alternative.devices()
        devices = max(devices, count)
        model = alternative.name if model_of is None else model_of.get(alternative.name, "")
        if model:
            models[model] = max(models[model], count)
    return Charge(devices, dict(models))


def claim_charge(spec: Object) -> Charge:
    """The worst case of a whole claim spec: its requests add up."""
    return sum((worst_case(request.alternatives) for request in requests(spec)), NOTHING)


Given = tuple[tuple[tuple[str, str], int], ...]  # driver and model -> devices; no model: not by an alternative


def given_devices(claim: Object, model_of: Callable[[tuple[str, str, str]], str] | None = None) -> Given | None:
    """What an allocated claim really holds, from `status.allocation`; None while it is not allocated.

    The model is the sub-request's name in `request/subrequest`, unless `model_of` knows better what a device (driver,
    pool, name) is. Devices given for admin access are nobody's.
    """
    allocation = at(claim, "status", "allocation")
    if not isinstance(allocation, dict):
        return None
    given = Counter[tuple[str, str]]()
    for raw in sequence(at(allocation, "devices", "results")):
        result = mapping(raw)
        if result.get("adminAccess") is not True:
            driver = text(result.get("driver"))
            model = model_of((driver, text(result.get("pool")), text(result.get("device")))) if model_of else ""
            given[driver, model or text(result.get("request")).partition("/")[2]] += 1
    return tuple(sorted(given.items()))


def given_charge(given: Given, drivers: Collection[str]) -> Charge:
    """What `given` costs under a catalogue of these drivers.

    A device of another driver that no alternative stands for is a companion, or nobody's business: it is free.
    """
    counted = [(model, count) for (driver, model), count in given if model or driver in drivers]
    models = Counter[str]()
    for model, count in counted:
        if model:
            models[model] += count
    return Charge(sum(count for _, count in counted), dict(models))
