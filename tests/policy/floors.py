"""floors.yaml as policies and devices."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dra_gate.policy.compile import Template, templates_of
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef

_API = "policy.dra-gate.io/v1alpha1"


@dataclass(frozen=True, slots=True)
class Table:
    """One policy over one model, and devices that it gives (True) or refuses (False), as published, in list order."""

    name: str
    driver: str
    template: Template
    devices: tuple[tuple[dict[str, Any], bool], ...]

    @property
    def given(self) -> set[str]:
        """The names of the devices that must be given."""
        return {device["name"] for device, given in self.devices if given}


def tables() -> list[Table]:
    """All tables. Given and refused devices take turns, so that neither all come first."""
    content = yaml.safe_load((Path(__file__).parent / "floors.yaml").read_text())
    return [_table(raw, content["base"][raw["driver"]]) for raw in content["tables"]]


def policy_files(
    products: list[str],
    constraints: dict[str, Any],
    driver: str = "gpu.nvidia.com",
    namespace: str = "floors",
    companions: Sequence[dict[str, Any]] = (),
) -> dict[str, bytes]:
    """A folder with one model, one policy (floors@1) and one tenant."""
    model = {"name": "model", "deviceClassName": driver, "products": products}
    spec: dict[str, Any] = {"serves": ["example.com/gpu"], "candidates": ["model"]}
    if constraints:
        spec["constraints"] = constraints
    if companions:
        spec["companions"] = copy.deepcopy(list(companions))
    documents: list[dict[str, Any]] = [
        {"apiVersion": _API, "kind": "DeviceCatalog", "models": [model]},
        {"apiVersion": _API, "kind": "DevicePolicy", "metadata": {"name": "floors", "version": 1}, "spec": spec},
        {
            "apiVersion": _API,
            "kind": "Tenant",
            "metadata": {"name": "floors"},
            "spec": {"namespaces": [namespace], "policy": "floors@1"},
        },
    ]
    return {"floors.yaml": yaml.safe_dump_all(documents).encode()}


def compiled(files: dict[str, bytes], count: int = 1) -> Template:
    """The template of `policy_files` for `count` devices."""
    return templates_of(load_documents(files)).for_count("floors", PolicyRef("floors", 1), count)


def _table(raw: dict[str, Any], base: dict[str, Any]) -> Table:
    files = policy_files(raw["products"], raw["constraints"], raw["driver"])
    turns = [[(name, change, given) for name, change in raw[key].items()] for key, given in _KEYS]
    longest = max(len(turn) for turn in turns)
    mixed = [turn[index] for index in range(longest) for turn in turns if index < len(turn)]
    devices = tuple((_device(name, base, change), given) for name, change, given in mixed)
    return Table(raw["name"], raw["driver"], compiled(files), devices)


_KEYS = (("refused", False), ("given", True))


def _device(name: str, base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = {"name": name}
    for part in ("attributes", "capacity"):
        merged = {**base[part], **change.get(part, {})}
        device[part] = {key: value for key, value in merged.items() if value is not None}
    if "allowMultipleAllocations" in change:
        device["allowMultipleAllocations"] = change["allowMultipleAllocations"]
    return device
