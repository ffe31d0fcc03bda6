"""Where a Pod may run, as far as its own node selector and required node affinity say: on device nodes, on others?

Node selection is core v1's: `nodeSelector` and one of the ORed `nodeSelectorTerms` must hold, in a term every
expression and field must (k8s.io/component-helpers, nodeaffinity). Taints, resources and the scheduler's other filters
play no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

import msgspec

from dra_gate.kube.raw import Object, at, mapping, sequence, text

_ANSWERS = 4096  # distinct selections remembered
NAME_FIELD = "metadata.name"


@dataclass(frozen=True, slots=True)
class Choices:
    """Whether some node without devices, and some node with devices, is selected."""

    plain: bool
    device: bool


ANYWHERE = Choices(plain=True, device=True)


class Nodes:
    """The nodes by name with their labels, and which of them have gated devices.

    Written when objects arrive; a question costs a look-up, or one pass over the nodes the first time that it is asked.
    """

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self._devices: set[str] = set()
        self._answers: dict[bytes, Choices] = {}
        self._version = 0

    def __len__(self) -> int:
        return len(self._labels)

    def set(self, name: str, labels: Mapping[str, str], *, devices: bool) -> None:
        """A node is there, with these labels, with or without gated devices."""
        if self._labels.get(name) == labels and (name in self._devices) == devices:
            return
        self._labels[name] = {intern(text(key)): intern(text(value)) for key, value in labels.items()}
        (self._devices.add if devices else self._devices.discard)(name)
        self._changed()

    def drop(self, name: str) -> None:
        """A node is gone."""
        if self._labels.pop(name, None) is not None:
            self._devices.discard(name)
            self._changed()

    def is_device_node(self, name: str) -> bool:
        """The node is known and has gated devices."""
        return name in self._devices

    def knows(self, name: str) -> bool:
        """The node is known, with or without devices."""
        return name in self._labels

    def choices(self, pod_spec: Object) -> Choices:
        """Which nodes the Pod's own selector and required affinity leave; all of them where it says nothing."""
        selector = mapping(pod_spec.get("nodeSelector"))
        return self.left_by(selector, required_of(pod_spec))

    def left_by(self, selector: Object, required: object) -> Choices:
        """Which nodes a node selector and a required node affinity (None for none) leave."""
        if not selector and required is None:
            return ANYWHERE
        asked = msgspec.json.encode([selector, required], order="sorted")
        found = self._answers.get(asked)
        if found is None:
            version = self._version
            found = self._search(selector, required)
            if version == self._version:
                if len(self._answers) >= _ANSWERS:
                    self._answers.clear()
                self._answers[asked] = found
        return found

    def _changed(self) -> None:
        self._version += 1
        self._answers.clear()

    def _search(self, selector: Object, required: object) -> Choices:
        plain = device = False
        for name, labels in list(self._labels.items()):
            has_devices = name in self._devices
            if (device if has_devices else plain) or not selects(selector, required, name, labels):
                continue
            if has_devices:
                device = True
            else:
                plain = True
            if plain and device:
                break
        return Choices(plain, device)


def required_of(pod_spec: Object) -> object:
    """The Pod's required node affinity, None for none."""
    return at(pod_spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def selects(selector: Object, required: object, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node of that name and labels is selected. `required` is the required node affinity, None for none."""
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    return required is None or any(_term(mapping(term), name, labels) for term in terms(required))


def terms(required: object) -> Iterable[Any]:
    """The `nodeSelectorTerms`, of which one must hold."""
    return sequence(at(required, "nodeSelectorTerms"))


def _term(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = sequence(term.get("matchExpressions")), sequence(term.get("matchFields"))
    if not expressions and not fields:
        return False  # core v1: a null or empty term matches no objects
    return all(holds(mapping(one), labels) for one in expressions) and all(
        holds(mapping(one), {NAME_FIELD: name}) for one in fields
    )


def holds(requirement: Object, labels: Mapping[str, str]) -> bool:
    """Whether one `NodeSelectorRequirement` holds; one that the API server would refuse does not."""
    key, operator, values = (
        text(requirement.get("key")),
        requirement.get("operator"),
        sequence(requirement.get("values")),
    )
    found = labels.get(key)
    match operator:
        case "In":
            return found is not None and found in values
        case "NotIn":
            return found is None or found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _compares(operator, found, values)
        case _:
            return False


def _compares(operator: str, found: str | None, values: Iterable[Any]) -> bool:
    try:
        (limit,) = (int(value) for value in values)
        number = int(found or "")
    except (ValueError, TypeError):
        return False
    return number > limit if operator == "Gt" else number < limit
