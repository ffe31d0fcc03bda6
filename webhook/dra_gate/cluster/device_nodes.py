"""Which nodes have gated devices: told from slices, from what device plugins offer, from the models' labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import intern

from dra_gate.admission.nodes import Nodes
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.policy.model import Model


class DeviceNodes:
    """Keeps `nodes` true to Nodes, slices and models as they come and go. `is_device` judges extended resources."""

    def __init__(self, is_device: Callable[[str], bool]) -> None:
        self.nodes = Nodes()
        self._is_device = is_device
        self._drivers: frozenset[str] = frozenset()
        self._models: tuple[Mapping[str, tuple[str, ...]], ...] = ()  # their node labels
        self._seen: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {}  # node -> labels, extended resources
        self._slices: dict[str, str] = {}  # slice -> node
        self._on_node: dict[str, dict[str, str]] = {}  # node -> slice -> driver

    def use(self, models: Iterable[Model]) -> None:
        """Judge by these models from now on."""
        listed = list(models)
        self._drivers = frozenset(model.driver for model in listed)
        self._models = tuple(model.node_labels for model in listed if model.node_labels)

    def judge_again(self) -> None:
        """Models, or which resources give devices, have changed."""
        for name in self._seen:
            self._judge(name)

    def set_node(self, name: str, node: Object) -> None:
        """A node was made or changed."""
        labels = {intern(key): intern(text(value)) for key, value in mapping(at(node, "metadata", "labels")).items()}
        offered = mapping(at(node, "status", "allocatable"))
        resources = tuple(intern(key) for key, count in offered.items() if "/" in key and count not in ("0", 0))
        if self._seen.get(name) != (labels, resources):
            self._seen[name] = labels, resources
            self._judge(name)

    def drop_node(self, name: str) -> None:
        """A node is gone."""
        self._seen.pop(name, None)
        self.nodes.drop(name)

    def set_slice(self, name: str, spec: Object) -> None:
        """A slice was made or changed. One that belongs to no single node tells nothing here."""
        node = text(spec.get("nodeName"))
        if self._slices.get(name) != node:
            self.drop_slice(name)
        if node:
            self._slices[name] = intern(node)
            self._on_node.setdefault(intern(node), {})[name] = intern(text(spec.get("driver")))
            self._judge(node)

    def drop_slice(self, name: str) -> None:
        """A slice is gone."""
        node = self._slices.pop(name, None)
        if node is not None:
            del self._on_node[node][name]
            if not self._on_node[node]:
                del self._on_node[node]
            self._judge(node)

    def _judge(self, name: str) -> None:
        found = self._seen.get(name)
        if found is None:
            return
        labels, resources = found
        devices = (
            any(driver in self._drivers for driver in self._on_node.get(name, {}).values())
            or any(map(self._is_device, resources))
            or any(all(labels.get(key) in values for key, values in wanted.items()) for wanted in self._models)
        )
        self.nodes.set(name, labels, devices=devices)
