"""Where a Pod may run, as far as its own node selector and required node affinity say: on device nodes, on others?

Node selection is core v1's: `nodeSelector` and one of the ORed `nodeSelectorTerms` must hold, in a term every
expression and field must (k8s.io/component-helpers, nodeaffinity). Taints, resources and the scheduler's other filters
play no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from sys import intern
from typing import Any

from dra_gate.kube.raw import Object, at, mapping, sequence, text

NAME_FIELD = "metadata.name"
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choices:
    """Whether some node without devices, and some node with devices, is selected."""

    plain: bool
    device: bool


class Nodes:
    """The nodes by name with their labels, and which of them have gated devices.

    Written when objects arrive. A question costs a few set operations, and one pass over the nodes when it is
    the first about a label.
    """

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._devices: set[str] = set()
        self._version = 0
        self._index = (0, _Index({}, _NONE))  # of which version; made again when somebody asks

    def __len__(self) -> int:
        return len(self._labels)

    def set(self, name: str, labels: Mapping[str, str], *, devices: bool) -> None:
        """A node is there, with these labels, with or without gated devices."""
        if self._labels.get(name) == labels and (name in self._devices) == devices:
            return
        self._labels[name] = {intern(text(key)): intern(text(value)) for key, value in labels.items()}
        (self._devices.add if devices else self._devices.discard)(name)
        self._version += 1

    def drop(self, name: str) -> None:
        """A node is gone."""
        if self._labels.pop(name, None) is not None:
            self._devices.discard(name)
            self._version += 1

    def is_device_node(self, name: str) -> bool:
        """The node is known and has gated devices."""
        return name in self._devices

    def knows(self, name: str) -> bool:
        """The node is known, with or without devices."""
        return name in self._labels

    def choices(self, selector: Object, required: object) -> Choices:
        """Which nodes a node selector and a required node affinity leave; None for no affinity."""
        version, (made, index) = self._version, self._index
        if made != version:
            # Writers do not wait for us: what was copied during a change bears a version that is over.
            index = _Index(dict(self._labels), frozenset(self._devices))
            self._index = version, index
        left = index.selected(selector, required)
        return Choices(plain=not left <= index.devices, device=not left.isdisjoint(index.devices))


class _Index:
    """The nodes of one moment, by label and value as somebody asks for them."""

    def __init__(self, labels: Mapping[str, Mapping[str, str]], devices: Set[str]) -> None:
        self.devices = devices
        self._labels = labels
        self._all = frozenset(labels)
        self._names = {name: frozenset({name}) for name in labels}
        self._by_key: dict[str, dict[str, set[str]]] = {}  # label -> value -> names

    def selected(self, selector: Object, required: object) -> Set[str]:
        left: Set[str] = self._all
        for key, value in selector.items():
            left &= self._with(key).get(value, _NONE) if isinstance(value, str) else _NONE
            if not left:
                return left
        if required is None:
            return left
        return left & _NONE.union(*(self._term(mapping(term)) for term in terms(required)))

    def _term(self, term: Object) -> Set[str]:
        expressions, fields = sequence(term.get("matchExpressions")), sequence(term.get("matchFields"))
        if not expressions and not fields:
            return _NONE  # core v1: a null or empty term matches no objects
        left: Set[str] = self._all
        for one in expressions:
            left = self._narrowed(left, mapping(one), self._with(text(mapping(one).get("key"))))
        for one in fields:
            named = mapping(one).get("key") == NAME_FIELD
            left = self._narrowed(left, mapping(one), self._names if named else {})
        return left

    def _with(self, key: str) -> Mapping[str, Set[str]]:
        found = self._by_key.get(key)
        if found is None:
            found = {}
            for name, labels in self._labels.items():
                if key in labels:
                    found.setdefault(labels[key], set()).add(name)
            if found:  # what no node has is asked for by any name, and not kept
                self._by_key[key] = found
        return found

    def _narrowed(self, left: Set[str], requirement: Object, by_value: Mapping[str, Set[str]]) -> Set[str]:
        """Those of `left` that one `NodeSelectorRequirement` leaves; none for one that the API server would refuse."""
        values = [value for value in sequence(requirement.get("values")) if isinstance(value, str)]
        match requirement.get("operator"):
            case "In" | "NotIn" as operator:
                named = _NONE.union(*(by_value.get(value, _NONE) for value in values))
            case "Exists" | "DoesNotExist" as operator:
                named = _NONE.union(*by_value.values())
            case "Gt" | "Lt" as operator:
                named = _NONE.union(*(by_value[found] for found in by_value if _compares(operator, found, values)))
            case _:
                return _NONE
        return left - named if operator in ("NotIn", "DoesNotExist") else left & named


def required_of(pod_spec: Object) -> object:
    """The Pod's required node affinity, None for none."""
    return at(pod_spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def terms(required: object) -> Iterable[Any]:
    """The `nodeSelectorTerms`, of which one must hold."""
    return sequence(at(required, "nodeSelectorTerms"))


def _compares(operator: str, found: str, values: Iterable[str]) -> bool:
    try:
        (limit,) = (int(value) for value in values)
        number = int(found)
    except ValueError:
        return False
    return number > limit if operator == "Gt" else number < limit
