"""Runs the handed cases: what the README beside this file says, as code.

Template names of the cases (`lilac-gpu-v7-x2`) stand for compiled templates: names are swapped wherever they stand, and
the content of those in `environment.yaml` is. A template of such a name in a case file keeps its content: it is a
look-alike.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dra_gate.policy.compile import TemplateIndex, templates_of
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, PolicySet

HERE = Path(__file__).parent
POLICIES = HERE / "policies"
TENANT = "lilac"
POLICY = "lilac-gpu"
USED = "lilac=8"  # the tenant's quota is 16, with 8 left at the start of every case
USER, GROUPS = "ada@lilac.example", ["lilac-dev", "system:authenticated"]
_PLACEHOLDER = re.compile(r"lilac-gpu-v(\d+)-x(\d+)")
_INPUT_KINDS = ("Pod", "AdmissionReview")


@dataclass
class Case:
    """One case file: its inputs, the objects that must be there, tables, and what is expected."""

    id: str
    pods: dict[str, dict[str, Any]]
    reviews: list[Any]
    objects: list[dict[str, Any]]
    tables: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    fragments: list[dict[str, Any]] = field(default_factory=list)

    def document(self, expectation: dict[str, Any]) -> Any:
        """The Pod or review that an expectation is about."""
        return self.reviews[expectation["review"]] if "review" in expectation else self.pods[expectation["pod"]]


@cache
def policy_set() -> PolicySet:
    """The cases' policy, written as the product's files."""
    return load_documents({file.name: file.read_bytes() for file in sorted(POLICIES.glob("*.yaml"))})


@cache
def index() -> TemplateIndex:
    return templates_of(policy_set())


@cache
def expectations() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((HERE / "handed" / "expected.yaml").read_text())
    return loaded


def environment() -> list[dict[str, Any]]:
    """The objects that every case takes for granted, templates compiled."""
    return [
        _compiled(document)
        for document in yaml.safe_load_all((HERE / "environment.yaml").read_text())
        if document["kind"] != "PolicyFragment"
    ]


def case(case_id: str) -> Case:
    entry = expectations()[case_id]
    documents = list(yaml.safe_load_all((HERE / "handed" / entry["file"]).read_text()))
    found = Case(case_id, {}, [], [], [], entry["inputs"])
    for document in map(_renamed, documents):
        kind = document.get("kind", "")
        if kind == "AdmissionReview" or not kind:
            found.reviews.append(document)
        elif kind == "Pod":
            metadata = document["metadata"]
            found.pods[metadata.get("name") or metadata["generateName"]] = document
        elif kind == "PolicyFragment":
            found.fragments.append(document)
        elif kind.endswith("Table"):
            found.tables.append(document)
        else:
            found.objects.append(document)
    return found


def template_name(version: int, count: int) -> str:
    """The compiled name of the tenant's template."""
    return index().for_count(TENANT, PolicyRef(POLICY, version), count).name


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    match = _PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else template_name(int(match[1]), int(match[2]))


def _compiled(document: dict[str, Any]) -> dict[str, Any]:
    match = _PLACEHOLDER.fullmatch(document["metadata"]["name"])
    if document["kind"] != "ResourceClaimTemplate" or match is None:
        return document
    template = index().for_count(TENANT, PolicyRef(POLICY, int(match[1])), int(match[2]))
    return copy.deepcopy(template.manifest(document["metadata"]["namespace"]))


def at_path(value: Any, path: str) -> Any:
    """The value at a path as expectations write it: `spec.volumes`, `spec.containers[0].args`, `a["b/c"]`."""
    for name, number, quoted in re.findall(r'([^.\[\]"]+)|\[(\d+)\]|\["([^"]+)"\]', path):
        value = value[int(number)] if number else value.get(quoted or name)
    return value
