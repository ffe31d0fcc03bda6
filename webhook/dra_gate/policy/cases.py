"""Policy tests in, cases out; or everything that is wrong with the files, with file, line and column. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gate.policy.documents import Document, Path, read
from dra_gate.policy.errors import PolicyError, PolicyErrors
from dra_gate.policy.model import Place, PolicySet
from dra_gate.policy.schemas import TEST_KINDS, shape_errors


@dataclass(frozen=True, slots=True)
class Expected:
    """What is to come out; None where it is not looked at."""

    verdict: str
    reasons: tuple[str, ...] | None
    claims: tuple[str, ...] | None
    candidates: tuple[str, ...] | None
    fits: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `document` is the Pod, workload or AdmissionReview as a file would hold it; `used` is by tenant."""

    name: str
    place: Place
    document: Mapping[str, Any]
    namespace: str
    user: str
    groups: frozenset[str]
    facts: tuple[Mapping[str, Any], ...]
    used: Mapping[str, int]
    expected: Expected


def read_cases(files: Mapping[str, bytes], policy_set: PolicySet) -> tuple[Case, ...]:
    """The cases of test files by name. Raises PolicyErrors with all errors."""
    errors: list[PolicyError] = []
    cases: list[Case] = []
    for name in sorted(files):
        content = read(name, files[name])
        errors += content.errors
        for document in content.documents:
            found = shape_errors(document, TEST_KINDS)
            errors += found
            if not found and not document.broken:
                errors += _unknown(document, policy_set)
                cases += _cases(document)
    if errors:
        raise PolicyErrors(tuple(sorted(errors, key=lambda error: (error.place.file, error.place.line))))
    return tuple(cases)


def _unknown(document: Document, policy_set: PolicySet) -> list[PolicyError]:
    """Names that the policies do not have: such an expectation could never hold, or hold for the wrong reason."""
    assert isinstance(document.value, dict)  # noqa: S101 - the schema has seen it
    errors = []
    here: Path = ()
    places: list[tuple[Path, Mapping[str, Any]]] = [(here, document.value)]
    places += [(("cases", number), raw) for number, raw in enumerate(document.value["cases"])]
    for path, raw in places:
        for tenant in raw.get("used", {}):
            if tenant not in policy_set.tenants:
                there = f"there is {', '.join(policy_set.tenants) or 'none'}"
                errors.append(PolicyError(document.key_at((*path, "used", tenant)), f"no tenant {tenant}", there))
        for index, model in enumerate(raw.get("expect", {}).get("candidates", ())):
            if model not in policy_set.models:
                place = document.at((*path, "expect", "candidates", index))
                there = f"the catalogue has {', '.join(policy_set.models)}"
                errors.append(PolicyError(place, f"no model is called {model}", there))
    return errors


def _cases(document: Document) -> list[Case]:
    assert isinstance(document.value, dict)  # noqa: S101 - the schema has seen it
    common = document.value
    return [
        Case(
            name=raw["name"],
            place=document.at(("cases", number)),
            document=_object(raw),
            namespace=raw.get("namespace", "default"),
            user=raw.get("user", ""),
            groups=frozenset(raw.get("groups", ())),
            facts=(*common.get("facts", ()), *raw.get("facts", ())),
            used={**common.get("used", {}), **raw.get("used", {})},
            expected=Expected(raw["expect"]["verdict"], *(_listed(raw["expect"], word) for word in _WORDS)),
        )
        for number, raw in enumerate(common["cases"])
    ]


_WORDS = ("reasons", "claims", "candidates", "fits")


def _listed(raw: Mapping[str, Sequence[str]], word: str) -> tuple[str, ...] | None:
    return tuple(raw[word]) if word in raw else None


def _object(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    if "asks" in raw:
        container = {"name": "c", "image": "registry.example/c:1", "resources": {"limits": raw["asks"]}}
        return {**_POD, "metadata": {"name": "asks"}, "spec": {"containers": [container]}}
    if "review" in raw:
        return {"kind": "AdmissionReview", **raw["review"]}
    return {**_POD, **raw["pod"]}


_POD = {"apiVersion": "v1", "kind": "Pod"}
