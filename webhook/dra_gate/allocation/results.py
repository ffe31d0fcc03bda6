"""A search's picks as the allocation results that the scheduler writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dra_gate.allocation.asked import Claim
from dra_gate.allocation.outcome import ClaimResult, DeviceResult
from dra_gate.allocation.problems import Failed
from dra_gate.allocation.search import Picked
from dra_gate.kube.claim import MAX_ALTERNATIVES
from dra_gate.kube.raw import Object, at, mapping, sequence, text


def results_of(node: Object, claims: Sequence[Claim], picked: Sequence[Sequence[Picked]]) -> tuple[ClaimResult, ...]:
    """The allocation of each claim. Raises Failed for a slice whose node selector has several terms."""
    return tuple(
        ClaimResult(tuple(map(_result, picks)), _node_selector(node, claim, picks))
        for claim, picks in zip(claims, picked, strict=True)
    )


def score_of(picked: Iterable[Sequence[Picked]]) -> int:
    """The raw score: 8 for each request that gets its first alternative, 7 for the second, and so on."""
    chosen = {
        (index, pick.alternative.parent): pick.alternative.index
        for index, picks in enumerate(picked)
        for pick in picks
        if pick.alternative.parent
    }
    return sum(MAX_ALTERNATIVES - index for index in chosen.values())


def _result(pick: Picked) -> DeviceResult:
    asked = pick.alternative
    consumed = {name: share.text for name, share in pick.taken.items()}
    return DeviceResult(asked.full_name, *pick.device.id, asked.admin, consumed, asked.tolerations)


def _node_selector(node: Object, claim: Claim, picks: Sequence[Picked]) -> Object | None:
    """The nodes that can use all the devices: this one if one of them is local, else those of all their selectors."""
    term: dict[str, list[Any]] = {"matchFields": [], "matchExpressions": []}
    for pick in picks:
        device, origin = pick.device, pick.device.slice
        places = device.raw if origin.per_device else origin.spec
        if places.get("nodeName") is not None or device.raw.get("bindsToNode") is True:
            name = text(at(node, "metadata", "name"))
            local = {"key": "metadata.name", "operator": "In", "values": [name]}
            return {"nodeSelectorTerms": [{"matchFields": [local]}]}
        terms = sequence(at(places, "nodeSelector", "nodeSelectorTerms"))
        if len(terms) > 1:
            what = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
            raise Failed(f"create NodeSelector for claim {claim.short_name}: {what}")
        for kind, found in term.items() if terms else ():
            for requirement in map(mapping, sequence(at(terms[0], kind))):
                if not any(_same(requirement, other) for other in found):
                    found.append(requirement)
    kept = {kind: found for kind, found in term.items() if found}
    return {"nodeSelectorTerms": [kept]} if kept else None


def _same(one: Object, two: Object) -> bool:
    return all(one.get(name) == two.get(name) for name in ("key", "operator")) and (
        set(sequence(one.get("values"))) == set(sequence(two.get("values")))
    )
