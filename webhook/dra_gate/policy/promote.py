"""A tenant's canary becomes its policy, or ends: as a small change of the file that people review. Pure.

Only what has to change is touched, so that comments, order and layout stay. What came out is read again: it says what
the file said, but for this tenant's three words, or nothing comes out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from dra_gate.policy.documents import read
from dra_gate.policy.model import PolicyRef, PolicySet, Tenant
from dra_gate.policy.words import listed

MOST_KEPT = 16  # keepVersions: maxItems of schema/Tenant.json
_BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r|$")


class PromotionError(ValueError):
    """A canary can't be promoted or ended; the message says where, why, and what to do instead."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """Characters [start, end) of a file give way to `text`."""

    start: int
    end: int
    text: str


def promote(
    files: Mapping[str, bytes], policy_set: PolicySet, tenants: Iterable[str], to: PolicyRef | None = None
) -> dict[str, bytes]:
    """The changed ones of `files`, which `policy_set` was loaded from: each tenant has its canary's policy, keeps the
    version it had, and has no canary any more. `to` is the version that is meant, which a tenant without canary gets.

    Raises PromotionError.
    """
    wanted = {name: _promoted(_tenant(policy_set, name), policy_set, to) for name in tenants}
    return _edited(files, policy_set, wanted)


def drop(files: Mapping[str, bytes], policy_set: PolicySet, tenants: Iterable[str]) -> dict[str, bytes]:
    """Likewise, the other way: each tenant's policy stays, and there is no canary any more. Raises PromotionError."""
    wanted = {}
    for name in tenants:
        tenant = _tenant(policy_set, name)
        if tenant.canary is None:
            raise PromotionError(f"{tenant.place}: tenant {name} has no canary that could end")
        wanted[name] = (tenant.policy, tenant.keep_versions)
    return _edited(files, policy_set, wanted)


# -- what is to stand there -------------------------------------------------------------------------------------------


def _tenant(policy_set: PolicySet, name: str) -> Tenant:
    if name not in policy_set.tenants:
        raise PromotionError(f"no tenant {name}: there is {listed(policy_set.tenants, 'or')}")
    return policy_set.tenants[name]


def _promoted(tenant: Tenant, policy_set: PolicySet, to: PolicyRef | None) -> tuple[PolicyRef, tuple[int, ...]]:
    """Its policy then, and the versions that it keeps."""
    where = f"{tenant.place}: tenant {tenant.name}"
    tried = None if tenant.canary is None else tenant.canary.policy
    if to is not None and tried not in (None, to):
        raise PromotionError(f"{where}: its canary is {tried}, not {to}: leave --to out, or end the canary (--drop)")
    new = to or tried
    if new is None:
        raise PromotionError(f"{where} has no canary: say with --to which policy version it is to have")
    if new not in policy_set.policies:
        there = [str(ref) for ref in policy_set.policies if ref.name == new.name] or list(map(str, policy_set.policies))
        raise PromotionError(f"no policy {new}: there is {listed(there, 'or')}")
    old, kept = tenant.policy, tenant.keep_versions
    if new == old and tenant.canary is None:
        raise PromotionError(f"{where} has {new} already")
    if new.name != old.name:
        raise PromotionError(
            f"{where}: {old} can't be kept beside {new}, as keepVersions are versions of one policy, and Pods that run "
            f"still name it. Write the new one as the next version of {old.name} and canary that; or write "
            f"policy: {new} by hand when no Pod names {old} any more"
        )
    if new != old and old.version not in kept:
        kept = (
            tuple(old.version if version == new.version else version for version in kept)
            if new.version in kept
            else (*kept, old.version)
        )
    if len(kept) > MOST_KEPT:
        raise PromotionError(
            f"{where} keeps {MOST_KEPT} versions, the most there can be: take one that no Pod names any more out of "
            f"keepVersions ({', '.join(map(str, tenant.keep_versions))}) to make room for {old.version}"
        )
    return new, kept


# -- how it gets there ------------------------------------------------------------------------------------------------


def _edited(
    files: Mapping[str, bytes], policy_set: PolicySet, wanted: Mapping[str, tuple[PolicyRef, tuple[int, ...]]]
) -> dict[str, bytes]:
    changed = dict[str, bytes]()
    for file in dict.fromkeys(policy_set.tenants[name].place.file for name in wanted):
        here = {name: end for name, end in wanted.items() if policy_set.tenants[name].place.file == file}
        text = files[file].decode("utf-8-sig")
        nodes = list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
        documents = read(file, files[file]).documents
        edits: list[_Edit] = []
        expected: list[Any] = [copy.deepcopy(document.value) for document in documents]
        for name, (policy, kept) in here.items():
            place = policy_set.tenants[name].place
            spec = next(_spec(node) for node in nodes if _starts_at(node, place.line, place.column))
            edits += _edits(text, spec, policy, kept)
            body = next(value for value, one in zip(expected, documents, strict=True) if one.at(()) == place)["spec"]
            body["policy"] = str(policy)
            body.pop("canary", None)
            if kept:
                body["keepVersions"] = list(kept)
        for edit in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        mark = _BOM if files[file].startswith(_BOM.encode()) else ""
        changed[file] = (mark + text).encode()
        _check(file, changed[file], expected, here)
    return changed


def _check(
    file: str, data: bytes, expected: Sequence[object], wanted: Mapping[str, tuple[PolicyRef, tuple[int, ...]]]
) -> None:
    """The file now says what it is to say, and nothing else has changed in it."""
    found = read(file, data)
    if found.errors or [document.value for document in found.documents] != expected:
        by_hand = "; ".join(
            f"tenant {name}: policy: {policy}, {f'keepVersions: {list(kept)}, ' if kept else ''}no canary"
            for name, (policy, kept) in wanted.items()
        )
        raise PromotionError(f"{file}: its layout is none that can be changed here: write by hand: {by_hand}")


def _starts_at(node: Any, line: int, column: int) -> bool:
    return isinstance(node, yaml.Node) and (node.start_mark.line + 1, node.start_mark.column + 1) == (line, column)


def _spec(tenant: Any) -> yaml.MappingNode:
    found: yaml.MappingNode = next(value for key, value in tenant.value if key.value == "spec")
    return found


def _edits(text: str, spec: yaml.MappingNode, policy: PolicyRef, kept: Sequence[int]) -> list[_Edit]:
    pairs: list[tuple[Any, Any]] = spec.value
    places = {key.value: (number, key, value) for number, (key, value) in enumerate(pairs)}
    _, policy_key, said = places["policy"]
    edits = []
    if said.value != str(policy):
        quote = said.style or ""
        edits.append(_Edit(said.start_mark.index, said.end_mark.index, f"{quote}{policy}{quote}"))
    if "keepVersions" in places:
        edits += _kept(text, places["keepVersions"][2], kept)
    elif kept:
        word = f"keepVersions: [{', '.join(map(str, kept))}]"
        if spec.flow_style:
            edits.append(_Edit(said.end_mark.index, said.end_mark.index, f", {word}"))
        else:
            edits.append(_line_after(text, said.end_mark.index, policy_key.start_mark.column, word))
    if "canary" in places:
        number, key, value = places["canary"]
        end = _last(value).end_mark.index
        if not spec.flow_style:
            edits.append(_Edit(_line_start(text, key.start_mark.index), _line_end(text, end), ""))
        else:
            before = pairs[number - 1][1].end_mark.index if number == len(pairs) - 1 else None
            edits.append(_out_of_flow(text, key.start_mark.index, end, before))
    return edits


def _kept(text: str, node: Any, kept: Sequence[int]) -> list[_Edit]:
    """A version in another's place where one went, one more at the end otherwise."""
    items = node.value
    edits = [
        _Edit(item.start_mark.index, item.end_mark.index, str(version))
        for item, version in zip(items, kept, strict=False)
        if item.value != str(version)
    ]
    end = items[-1].end_mark.index
    for version in kept[len(items) :]:
        if node.flow_style:
            edits.append(_Edit(end, end, f", {version}"))
        else:
            edits.append(_line_after(text, end, node.start_mark.column, f"- {version}"))
    return edits


def _last(node: Any) -> Any:
    """The last thing written in a node: a block ends only where the next one begins, after comments and empty lines."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last: Any = node.value[-1]
        node = last[1] if isinstance(node, yaml.MappingNode) else last
    return node


def _line_start(text: str, index: int) -> int:
    return max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1


def _line_end(text: str, index: int) -> int:
    """Behind the line that `index` is in."""
    found = _LINE_END.search(text, index)
    return len(text) if found is None else found.end()


def _line_after(text: str, index: int, indent: int, content: str) -> _Edit:
    end = _line_end(text, index)
    found = _LINE_END.search(text, index)
    own = found.group() if found is not None else ""
    line = f"{' ' * indent}{content}"
    return _Edit(end, end, f"{line}{own}" if own else f"\n{line}")


def _out_of_flow(text: str, start: int, end: int, before: int | None) -> _Edit:
    """A pair out of `{…}`, with one comma, and its line where nothing else is in it. `before` is where the pair before
    the last one ends.
    """
    if before is not None and not text[before:start].strip(", \t\r\n"):
        return _Edit(before, end, "")
    comma = re.compile(r"[ \t]*,?[ \t]*").match(text, end)
    end = comma.end() if comma is not None else end
    first, behind = _line_start(text, start), _line_end(text, end)
    if not text[first:start].strip() and not text[end:behind].strip():
        return _Edit(first, behind, "")
    return _Edit(start, end, "")
