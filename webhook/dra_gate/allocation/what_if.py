"""What Pods would get, all that wait or some, in a state that may have been changed (`changes`). Pure.

They are placed in the scheduler's order, one after another, each on the first by name of the nodes that are best for
devices. What else has a say is told, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_gate.allocation.against import unallocated
from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.chain import reason_text
from dra_gate.allocation.changes import ChangeError, unplaced
from dra_gate.allocation.explain import Explainer
from dra_gate.allocation.fit import Room, not_judged
from dra_gate.allocation.nodes import best_nodes
from dra_gate.allocation.outcome import ClaimResult, Outcome
from dra_gate.allocation.podclaims import POD_CLAIM, PodClaim, elsewhere, name_of
from dra_gate.allocation.snapshot import with_objects
from dra_gate.allocation.state import State
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.policy.words import listed

_LATER = frozenset({"claim-not-made", "template-missing", "held"})  # what passes by itself, or by the gate


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one Pod would get. `got` are its claims' requests as `entry request/alternative: pool/device, …`.

    `node` is the one taken among `nodes`, which are equally good; empty where it gets nothing, then `why` says why.
    """

    namespace: str
    pod: str
    node: str
    nodes: tuple[str, ...]
    got: tuple[str, ...]
    why: str
    chance: tuple[str, ...]


def forecasts(state: State, pods: Iterable[tuple[str, str]] | None = None) -> list[Forecast]:
    """What these Pods (namespace, name), or else all that wait, would get, in the scheduler's order.

    A Pod that is placed already is asked about as if it were not. Raises ChangeError for one that is not there.
    """
    if pods is not None:
        state = unplaced(state, set(pods))
    explainer = Explainer(state)
    wanted = explainer.waiting()
    if pods is not None:
        chosen = set(pods)
        wanted = [pod for pod in wanted if name_of(pod) in chosen]
        missing = chosen - {name_of(pod) for pod in wanted}
        if missing:
            raise ChangeError(f"no Pod {'/'.join(min(missing))} that asks for claims and has not ended")
    return _placed(state, explainer, wanted)


def _placed(state: State, explainer: Explainer, pods: Sequence[Object]) -> list[Forecast]:
    allocator, room = Allocator(state.snapshot), Room(state.snapshot.pods, state.snapshot.classes)
    nodes = {name_of(node)[1]: node for node in state.snapshot.nodes}
    found: dict[tuple[str, str], Forecast] = {}
    changed: list[Object] = []
    for pod in pods:
        blockers = [one for one in explainer.blockers(pod) if one.code not in _LATER]
        known = [claim for claim in explainer.claims(pod) if claim.obj is not None]
        claims = [claim for claim in known if not claim.allocated]
        if blockers or not claims:
            continue
        fitting, asked = room.fitting(pod), [unallocated(claim.obj) for claim in claims]
        fits = [n for n in explainer.reached if not fitting(nodes[n]) and elsewhere(known, nodes[n]) is None]
        outcomes = {name: allocator.allocate(name, asked) for name in fits}
        best = best_nodes(outcomes)
        if not best.nodes or any(outcome.kind == "failed" for outcome in outcomes.values()):
            continue
        outcome = outcomes[best.nodes[0]]
        placed = {**pod, "spec": {**mapping(pod.get("spec")), "nodeName": best.nodes[0]}}
        given = [_given(pod, claim, result) for claim, result in zip(claims, outcome.claims, strict=True)]
        for claim in given:
            allocator.hold(claim)
        room.take(placed)
        changed += [{**placed, "kind": "Pod"}, *({**claim, "kind": "ResourceClaim"} for claim in given)]
        unknown = not_judged(pod)
        chance = (*best.chance, *((f"not judged here: the Pod's {listed(unknown)}",) if unknown else ()))
        found[name_of(pod)] = Forecast(*name_of(pod), best.nodes[0], best.nodes, _got(claims, outcome), "", chance)
    if len(found) < len(pods):
        # Who gets nothing is told why as it is when the others have theirs.
        after = Explainer(replace(state, snapshot=with_objects(state.snapshot, changed)))
        found |= {name_of(pod): _nothing(after, pod) for pod in pods if name_of(pod) not in found}
    return [found[name_of(pod)] for pod in pods]


def _nothing(explainer: Explainer, pod: Object) -> Forecast:
    explanation = explainer.of(pod)
    reasons = [cause.text for cause in explanation.causes if cause.code not in _LATER] or [
        f"{one.model}: {', '.join(map(reason_text, one.reasons))}"
        for claim in explanation.claims
        for request in claim.requests
        for one in request.candidates
        if one.rank and one.reasons
    ]
    if not reasons and explanation.state == "held":
        reasons = [*(cause.text for cause in explanation.causes), "what it would be granted then is not told here"]
    return Forecast(*name_of(pod), "", (), (), "; ".join(reasons) or "it is not known why", ())


def _got(claims: Sequence[PodClaim], outcome: Outcome) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for claim, result in zip(claims, outcome.claims, strict=True):
        for device in result.results:
            found.setdefault(f"{claim.entry} {device.request}", []).append(f"{device.pool}/{device.device}")
    return tuple(f"{request}: {', '.join(devices)}" for request, devices in found.items())


def _given(pod: Object, claim: PodClaim, result: ClaimResult) -> dict[str, Any]:
    """The claim as it is when the scheduler has written its allocation."""
    namespace, name = name_of(pod)
    uid = text(at(pod, "metadata", "uid"))
    metadata = dict(mapping(at(claim.obj, "metadata")))
    if not claim.made:
        annotations = {**mapping(metadata.get("annotations")), POD_CLAIM: claim.entry}
        metadata |= {"name": f"{name}-{claim.entry}", "uid": f"{uid}-{claim.entry}", "annotations": annotations}
        metadata["ownerReferences"] = [{"kind": "Pod", "name": name, "uid": uid}]
    results = [
        {
            "request": one.request,
            "driver": one.driver,
            "pool": one.pool,
            "device": one.device,
            **({"adminAccess": True} if one.admin_access else {}),
            **({"consumedCapacity": dict(one.consumed_capacity), "shareID": uid} if one.consumed_capacity else {}),
        }
        for one in result.results
    ]
    allocation: dict[str, Any] = {"devices": {"results": results}}
    if result.node_selector is not None:
        allocation["nodeSelector"] = result.node_selector
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": uid}]}
    return {**mapping(claim.obj), "metadata": {**metadata, "namespace": namespace}, "status": status}
