"""The shape of policy files: JSON Schema (draft 2020-12) in `schema/`, and its findings in plain words."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema

from dra_gate.policy.documents import Document, Path
from dra_gate.policy.errors import PolicyError

# What a policy set is made of.
KINDS = ("DeviceCatalog", "DevicePolicy", "Tenant", "ClusterSettings", "PolicyException")
TEST_KINDS = ("PolicyTest",)  # what stands in tests/ beside it
ALL_KINDS = (*KINDS, *TEST_KINDS)


@functools.cache
def schema(kind: str) -> Mapping[str, Any]:
    """The published JSON Schema of a kind. Raises KeyError for a kind that is not one of `ALL_KINDS`."""
    if kind not in ALL_KINDS:
        raise KeyError(kind)
    text = importlib.resources.files("dra_gate.policy").joinpath("schema", f"{kind}.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


def shape_errors(document: Document, kinds: Sequence[str] = KINDS) -> list[PolicyError]:
    """Everything that a document's schema refuses. A document of no such kind has one error: which there are."""
    value = document.value
    if not isinstance(value, dict):
        return [
            PolicyError(
                document.at(()), f"{_kind(value)} where a policy document should be", "start with apiVersion: and kind:"
            )
        ]
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        if document.is_broken(("kind",)):
            return []
        found = "no kind" if "kind" not in value else f"kind {kind}"
        if kind in TEST_KINDS:
            return [PolicyError(document.at(("kind",)), f"{found} is no policy", "put it into a folder tests/")]
        known = " or ".join(part for part in (", ".join(kinds[:-1]), kinds[-1]) if part)
        return [PolicyError(document.at(("kind",)), found, f"write kind: {known}")]
    errors = [error for problem in _validator(kind).iter_errors(value) for error in _explain(document, problem)]
    return list(dict.fromkeys(errors))


def sound_part(document: Document) -> Document | None:
    """The document without what its schema refuses, to look for further errors in; None when too little is left.

    Refused fields are left out, refused models of a catalogue become None.
    """
    if not isinstance(document.value, dict) or document.value.get("kind") not in KINDS:
        return None
    value: dict[str, Any] = copy.deepcopy(document.value)
    validator = _validator(value["kind"])
    refused = list(document.broken)
    while True:
        for path in refused:
            if not _leave_out(value, path):
                return None
        kept, models = value, value.get("models")
        if isinstance(models, list):
            kept = {**value, "models": [model for model in models if model is not None]}
        problems = list(validator.iter_errors(kept))
        if not problems:
            return dataclasses.replace(document, value=value)
        if isinstance(models, list) and None in models:
            return None  # the places of the remaining models would be wrong
        refused = [path for problem in problems for path in _refused(problem)]


def _refused(problem: Any) -> Iterator[Path]:
    path: Path = tuple(problem.absolute_path)
    if problem.validator == "additionalProperties":
        known = problem.schema.get("properties", ())
        yield from ((*path, key) for key in problem.instance if key not in known)
    else:
        yield (*path, problem.instance) if "propertyNames" in problem.absolute_schema_path else path


def _leave_out(value: dict[str, Any], path: Path) -> bool:
    """Takes the field at `path`, or the nearest around it, out of `value`. False when that is the whole document."""
    if path[:1] == ("models",) and len(path) > 1 and isinstance(value.get("models"), list):
        value["models"][path[1]] = None
        return True
    while path and not isinstance(path[-1], str):
        path = path[:-1]
    inner: Any = value
    for step in path[:-1]:
        try:
            inner = inner[step]
        except (KeyError, IndexError, TypeError):
            return True  # left out already, with what it stood in
    if path and isinstance(inner, dict):
        inner.pop(path[-1], None)
    return bool(path)


def _pattern(
    _validator: object, pattern: str, instance: object, _schema: object
) -> Iterator[jsonschema.ValidationError]:
    # Python's $ also matches before a last line break, ECMAScript's (JSON Schema's) does not.
    if isinstance(instance, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


_extend: Any = jsonschema.validators.extend
_Validator = _extend(jsonschema.Draft202012Validator, {"pattern": _pattern})


@functools.cache
def _validator(kind: str) -> Any:
    return _Validator(schema(kind))


def _explain(document: Document, problem: Any) -> Iterator[PolicyError]:
    path: Path = tuple(problem.absolute_path)
    if document.is_broken(path):
        return
    rule, wanted, found = problem.validator, problem.validator_value, problem.instance
    remedy = str(problem.schema.get("x-remedy", "")) if isinstance(problem.schema, Mapping) else ""
    if "propertyNames" in problem.absolute_schema_path:
        yield PolicyError(document.key_at((*path, found)), f"{_show(found)} cannot stand here", remedy)
    elif rule == "additionalProperties":
        known = list(problem.schema.get("properties", ()))
        for key in found:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                fields = f"write {close[0]}" if close else f"known here: {', '.join(known)}"
                yield PolicyError(document.key_at((*path, key)), f"unknown field {_show(key)}", fields)
    elif rule == "required":
        for key in wanted:
            if key not in found:
                place = document.key_at(path) if path and isinstance(path[-1], str) else document.at(path)
                yield PolicyError(place, f"{key} is missing", f"add {key}:")
    elif rule == "uniqueItems":
        for index, item in enumerate(found):
            if item in found[:index] and not document.is_broken((*path, index)):
                yield PolicyError(document.at((*path, index)), f"{_show(item)} is there twice", "keep one")
    elif rule == "oneOf":
        if not isinstance(found, dict):
            return  # its kind is an error of its own
        given = [word for choice in wanted for word in choice["required"] if word in found]
        what = (
            " and ".join(given) + " together" if given else "neither " + " nor ".join(c["required"][0] for c in wanted)
        )
        yield PolicyError(document.at(path), what, remedy)
    else:
        what, fallback = _say(str(rule), wanted, found, problem.message)
        if rule in ("const", "enum", "minimum", "maximum"):  # a bare 0 says nothing
            field = next((step for step in reversed(path) if isinstance(step, str)), "")
            what = f"{field} is {what}" if field else what
        yield PolicyError(document.at(path), what, remedy or fallback)


def _say(rule: str, wanted: Any, found: Any, message: str) -> tuple[str, str]:
    match rule:
        case "type":
            wants = wanted if isinstance(wanted, list) else [wanted]
            quotes = "string" in wants and isinstance(found, int | float)
            expected = " or ".join(_KIND_WORDS[word] for word in wants)
            return f"{_kind(found)} where {expected} is expected", "put it in quotes" if quotes else f"write {expected}"
        case "const":
            return _show(found), f"write {_show(wanted)}"
        case "enum":
            return _show(found), "write one of " + ", ".join(_show(item) for item in wanted)
        case "pattern" | "not":
            return f"{_show(found)} cannot stand here", ""
        case "minItems" | "minProperties" | "minLength":
            return "empty", "write something, or leave the field out"
        case "maxItems" | "maxProperties":
            return f"{len(found)} items", f"at most {wanted}"
        case "maxLength":
            return f"{len(found)} characters", f"at most {wanted}"
        case "minimum":
            return _show(found), f"at least {wanted}"
        case "maximum":
            return _show(found), f"at most {wanted}"
        case _:
            return message, ""


_KIND_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "array": "a list",
    "object": "a mapping",
    "boolean": "true or false",
}


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the word {str(value).lower()}"
        case int():
            return f"the number {value}"
        case str():
            return f"the text {_show(value)}"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
