"""The claims of a Pod as the search goes through them: requests in order, alternatives in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_gate.allocation.consumption import requested
from dra_gate.allocation.problems import CannotEvaluate, Failed
from dra_gate.kube.quantity import Quantity
from dra_gate.kube.raw import Object, at, mapping, sequence, text

MAX_RESULTS = 32  # AllocationResultsMaxSize


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """One way to satisfy a request: its `exactly` (`parent` is ""), or an entry of its `firstAvailable`."""

    index: int
    parent: str
    name: str
    class_name: str
    class_selectors: tuple[str, ...]
    selectors: tuple[str, ...]
    every: bool  # allocationMode All: `count` says nothing
    count: int
    admin: bool
    tolerations: tuple[Object, ...]
    capacity: Mapping[str, Quantity]

    @property
    def full_name(self) -> str:
        """What results and constraints call it."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def request(self) -> str:
        """The name of the request that it belongs to."""
        return self.parent or self.name


@dataclass(frozen=True, slots=True)
class Request:
    """One request; one with a list of alternatives is `listed` even if the list has one."""

    name: str
    alternatives: tuple[Alternative, ...]
    listed: bool


@dataclass(frozen=True, slots=True)
class Constraint:
    """All devices of `requests` (all, if there are none) have one value of `attribute`, or no two of them the same."""

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def binds(self, alternative: Alternative) -> bool:
        """Whether the devices of an alternative are concerned."""
        named = self.requests
        return not named or alternative.request in named or alternative.full_name in named


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim to be allocated; `name` is `namespace/name`."""

    name: str
    short_name: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint | None, ...]  # None is one that says nothing that is known


def claims_of(raw: Sequence[Object], classes: Mapping[str, Object]) -> tuple[Claim, ...]:
    """Reads claims.

    Raises Failed, with the text of the scheduler's PreFilter, for a class that is not there, be it of the last
    alternative; CannotEvaluate for what the API server would not have let through.
    """
    for claim in raw:
        for label, request in _forms(claim):
            name = text(request.get("deviceClassName"))
            if name not in classes:
                raise Failed(f"request {label}: device class {name} does not exist")
    return tuple(_claim(claim, classes) for claim in raw)


def _forms(claim: Object) -> Iterator[tuple[str, Object]]:
    for request in map(mapping, sequence(at(claim, "spec", "devices", "requests"))):
        name, exactly = text(request.get("name")), request.get("exactly")
        if isinstance(exactly, dict):
            yield name, exactly
            continue
        listed = sequence(request.get("firstAvailable"))
        if not listed:
            raise CannotEvaluate(f"request {name} is of a form that is not known here")
        for sub in map(mapping, listed):
            yield f"{name}/{text(sub.get('name'))}", sub


def _claim(raw: Object, classes: Mapping[str, Object]) -> Claim:
    namespace, name = text(at(raw, "metadata", "namespace")), text(at(raw, "metadata", "name"))
    devices = at(raw, "spec", "devices")
    return Claim(
        f"{namespace}/{name}" if namespace else name,
        name,
        tuple(_request(mapping(request), classes) for request in sequence(at(devices, "requests"))),
        tuple(_constraint(mapping(constraint)) for constraint in sequence(at(devices, "constraints"))),
    )


def _request(raw: Object, classes: Mapping[str, Object]) -> Request:
    name, exactly = text(raw.get("name")), raw.get("exactly")
    if isinstance(exactly, dict):
        return Request(name, (_alternative(0, "", name, exactly, classes),), False)
    listed = map(mapping, sequence(raw.get("firstAvailable")))
    subs = (_alternative(index, name, text(sub.get("name")), sub, classes) for index, sub in enumerate(listed))
    return Request(name, tuple(subs), True)


def _alternative(index: int, parent: str, name: str, raw: Object, classes: Mapping[str, Object]) -> Alternative:
    mode, count, class_name = raw.get("allocationMode") or "ExactCount", raw.get("count"), text(raw["deviceClassName"])
    if mode not in ("ExactCount", "All"):
        raise CannotEvaluate(f"request {name}: allocation mode {mode} is not known")
    if raw.get("derivedAttributes"):
        raise CannotEvaluate(f"request {name}: derived attributes (alpha)")
    return Alternative(
        index,
        parent,
        name,
        class_name,
        _selectors(at(classes[class_name], "spec", "selectors"), f"class {class_name}"),
        _selectors(raw.get("selectors"), f"request {name}"),
        mode == "All",
        count if isinstance(count, int) and count > 0 else 1,  # the API stores an absent or zero count as 1
        not parent and raw.get("adminAccess") is True,
        tuple(map(mapping, sequence(raw.get("tolerations")))),
        requested(raw),
    )


def _selectors(raw: object, place: str) -> tuple[str, ...]:
    found = tuple(at(selector, "cel", "expression") for selector in sequence(raw))
    if not all(isinstance(expression, str) for expression in found):
        raise CannotEvaluate(f"{place}: a selector that is not CEL")
    return found


def _constraint(raw: Object) -> Constraint | None:
    requests = frozenset(map(text, sequence(raw.get("requests"))))
    for key, distinct in (("matchAttribute", False), ("distinctAttribute", True)):
        if raw.get(key) is not None:
            return Constraint(text(raw[key]), distinct, requests)
    return None
