"""A device as selectors see it: the `device` variable of resource.k8s.io CEL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.semver import Semver, SemverError

Scalar = str | int | bool | Semver
Attribute = Scalar | tuple[Scalar, ...]

MAX_STRING = 64  # bytes: resource.k8s.io/v1 DeviceAttributeMaxValueLength
_INT64_MAX = 2**63 - 1


class DomainMap(dict[str, dict[str, Any]]):
    """domain -> id -> value, where an unknown domain reads as an empty map, though `in` tells the truth.

    The scheduler's evaluator does the same: newStringInterfaceMapWithDefault in k8s.io/dynamic-resource-allocation/cel.
    """

    __slots__ = ()

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Device:
    """One published device.

    `attributes` and `capacity` map domain -> id -> value; any mappings will do, they are copied. A list attribute
    (alpha in 1.37) is a tuple.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, Attribute]] = field(default_factory=DomainMap)
    capacity: Mapping[str, Mapping[str, Quantity]] = field(default_factory=DomainMap)
    allow_multiple_allocations: bool = False

    def __post_init__(self) -> None:
        # The evaluator indexes these without asking what they are, so they are made what it expects once, here.
        for name in ("attributes", "capacity"):
            outer = getattr(self, name)
            copied = DomainMap({domain: dict(inner) for domain, inner in outer.items()})
            object.__setattr__(self, name, copied)


Known = dict[tuple[str, str], Any]  # values that have been read, by kind and text


def device_of(driver: str, device: Mapping[str, Any], known: Known | None = None) -> Device:
    """Reads one entry of a ResourceSlice's `spec.devices`.

    A bare name goes under the driver's name, `domain/id` under its domain. Raises ValueError, with the path of the
    field, for what the API server refuses: no value or two, a bad quantity, a version that is not semver 2.0.0.
    Who reads thousands of devices gives `known`, so that what most of them say is read once.
    """
    known = {} if known is None else known
    attributes = DomainMap()
    for name, entry in _mapping(device.get("attributes"), "attributes").items():
        domain, identifier = _split(name, driver)
        attributes.setdefault(domain, {})[identifier] = _remembered(known, entry, f"attributes[{name}]")
    capacity = DomainMap()
    for name, entry in _mapping(device.get("capacity"), "capacity").items():
        domain, identifier = _split(name, driver)
        written = _mapping(entry, f"capacity[{name}]").get("value", "0")
        value = known.get(("capacity", written)) if isinstance(written, str) else None
        if value is None:
            try:
                value = Quantity.parse(written)
            except QuantityError as error:
                raise ValueError(f"capacity[{name}].value: {error}") from error
            if isinstance(written, str):
                known["capacity", written] = value
        capacity.setdefault(domain, {})[identifier] = value
    multiple = device.get("allowMultipleAllocations") or False
    if not isinstance(multiple, bool):
        raise ValueError(f"allowMultipleAllocations: {multiple!r} is neither true nor false")
    return Device(driver, attributes, capacity, multiple)


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: an object is expected, not {type(value).__name__}")
    return value


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _remembered(known: Known, entry: object, path: str) -> Attribute:
    if isinstance(entry, dict) and len(entry) == 1:
        ((kind, written),) = entry.items()
        if isinstance(written, str):
            found: Attribute | None = known.get((kind, written))
            if found is None:
                found = known[kind, written] = _attribute(entry, path)
            return found
    return _attribute(entry, path)


def _attribute(entry: object, path: str) -> Attribute:
    values = {kind: value for kind, value in _mapping(entry, path).items() if value is not None}
    if len(values) != 1:
        raise ValueError(f"{path}: exactly one value must be specified, found {sorted(values) or 'none'}")
    ((kind, value),) = values.items()
    if kind.endswith("s") and kind[:-1] in _SCALARS:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{path}.{kind}: a list with at least one value is expected")
        return tuple(_scalar(kind[:-1], item, f"{path}.{kind}[{index}]") for index, item in enumerate(value))
    if kind not in _SCALARS:
        raise ValueError(f"{path}.{kind}: unknown kind of attribute: use string, int, bool or version")
    return _scalar(kind, value, f"{path}.{kind}")


_SCALARS: dict[str, type] = {"string": str, "int": int, "bool": bool, "version": str}


def _scalar(kind: str, value: object, path: str) -> Scalar:
    if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
        raise ValueError(f"{path}: {value!r} is not of kind {kind}")
    if isinstance(value, str):
        if len(value.encode(errors="surrogatepass")) > MAX_STRING:
            raise ValueError(f"{path}: longer than {MAX_STRING} bytes")
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError(f"{path}: half a character (a lone surrogate)")
        if kind == "version":
            try:
                return Semver.parse(value)
            except SemverError as error:
                raise ValueError(f"{path}: {error}") from error
        return value
    assert isinstance(value, int)  # noqa: S101 - the table above leaves nothing else
    if abs(value) > _INT64_MAX and value != -_INT64_MAX - 1:
        raise ValueError(f"{path}: {value} does not fit into 64 bits")
    return value
