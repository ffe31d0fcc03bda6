"""The restated allocator beside the scheduler's own, on one question; and what a question is made of."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from allocation.oracle import Object, Oracle, Question, Verdict
from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.outcome import ClaimResult, Outcome
from dra_gate.allocation.snapshot import snapshot_of

VERSION = "v1.37.2"
GAVE_UP = "filter operation aborted"  # the scheduler's own time limit: there is no answer to compare with


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both answers for one node. `difference` is "" where they agree and where one of them gave none."""

    verdict: Verdict
    outcome: Outcome
    difference: str

    @property
    def evaluated(self) -> bool:
        """Whether the restated allocator answered."""
        return self.outcome.kind != "cannot-evaluate"


def compare(question: Question, verdicts: list[Verdict]) -> tuple[list[Comparison], float]:
    """Each node's verdict beside the restated allocator's outcome, and the seconds that the latter took for all."""
    snapshot = snapshot_of(question.objects, version=VERSION, gates=question.gates)
    claims = question.claims
    started = time.perf_counter()
    allocator = Allocator(snapshot)
    outcomes = [allocator.allocate(verdict.node, claims) for verdict in verdicts]
    took = time.perf_counter() - started
    pairs = zip(verdicts, outcomes, strict=True)
    return [Comparison(verdict, outcome, _difference(claims, verdict, outcome)) for verdict, outcome in pairs], took


def _difference(claims: list[Object], verdict: Verdict, outcome: Outcome) -> str:
    if outcome.kind == "cannot-evaluate" or verdict.error.startswith(GAVE_UP):
        return ""
    if outcome.kind != verdict.kind:
        told = f" ({outcome.message})" if outcome.message else ""
        return f"{outcome.kind}{told} for {verdict.kind} {verdict.error}".strip()
    if verdict.results is None:
        return "" if outcome.message == verdict.error else f"text {outcome.message!r} for {verdict.error!r}"
    ours, theirs = [plain(one) for one in outcome.claims], [canonical(one) for one in verdict.results]
    if ours != theirs:
        return f"{ours} for {theirs}"
    score = _score(claims, verdict.results)
    return "" if outcome.score == score else f"score {outcome.score} for {score}"


def plain(claim: ClaimResult) -> Object:
    """One claim of an outcome, in the shape of `canonical`."""
    results = [
        {
            "request": one.request,
            "device": f"{one.driver}/{one.pool}/{one.device}",
            "adminAccess": one.admin_access,
            "consumed": dict(one.consumed_capacity),
            "tolerations": list(one.tolerations),
        }
        for one in claim.results
    ]
    return {"results": results, "nodeSelector": claim.node_selector}


def canonical(allocation: Object) -> Object:
    """An allocation of the scheduler in the same shape; share IDs are random, so nobody compares them."""
    results = [
        {
            "request": one["request"],
            "device": f"{one['driver']}/{one['pool']}/{one['device']}",
            "adminAccess": one.get("adminAccess") or False,
            "consumed": one.get("consumedCapacity") or {},
            "tolerations": one.get("tolerations") or [],
        }
        for one in allocation["devices"].get("results") or []
    ]
    return {"results": results, "nodeSelector": allocation.get("nodeSelector")}


def _score(claims: list[Object], allocations: list[Object]) -> int:
    """The raw score of the scheduler: 8 less the index, for each alternative that was taken."""
    score = 0
    for claim, allocation in zip(claims, allocations, strict=True):
        taken = {one["request"] for one in allocation["devices"].get("results") or []}
        for request in claim["spec"]["devices"]["requests"]:
            for index, sub in enumerate(request.get("firstAvailable", ())):
                score += (8 - index) * (f"{request['name']}/{sub['name']}" in taken)
    return score


def went_back(question: Question, verdict: Verdict) -> bool:
    """Whether the search took a choice back before it found its results, by the scheduler's own count of steps."""
    if verdict.results is None:
        return False
    needed = 1
    for claim, allocation in zip(question.claims, verdict.results, strict=True):
        taken = [one["request"] for one in allocation["devices"].get("results") or []]
        needed += 1 + len(taken)
        for request in claim["spec"]["devices"]["requests"]:
            needed += 1
            for index, sub in enumerate(request.get("firstAvailable", ())):
                if f"{request['name']}/{sub['name']}" in taken:
                    needed += 1 + index
    return verdict.steps > needed


def constructs(question: Question) -> set[str]:
    """What occurs in the question, in words: the rows of the proof's table."""
    found = set(_of_slices(question)) | set(_of_claims(question))
    if len(question.claims) > 1:
        found.add("several claims of a Pod")
    for rule in question.of("DeviceTaintRule"):
        found.add(f"taint rule, {rule['spec']['taint']['effect']}")
    holders = [one for one in question.of("ResourceClaim") if "status" in one]
    if holders:
        found.add("devices held by others")
    for holder in holders:
        for result in holder["status"]["allocation"]["devices"]["results"]:
            found |= {"held with admin access"} if result.get("adminAccess") else set()
            found |= {"shares held by others"} if result.get("shareID") else set()
    return found


def _of_slices(question: Question) -> Iterator[str]:
    pools: dict[tuple[str, str], list[Object]] = {}
    for one in question.of("ResourceSlice"):
        spec = one["spec"]
        pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        yield from ("slice for " + key for key in ("nodeSelector", "allNodes", "perDeviceNodeSelection") if key in spec)
        if "sharedCounters" in spec:
            yield "shared counters, partitions"
        for device in spec.get("devices", ()):
            if device.get("allowMultipleAllocations"):
                yield "shared devices"
                for capacity in device.get("capacity", {}).values():
                    yield from (f"requestPolicy {key}" for key in capacity.get("requestPolicy", {}))
            for taint in device.get("taints", ()):
                yield f"device taint, {taint['effect']}"
            if "bindingConditions" in device:
                yield "binding conditions"
            if device.get("bindsToNode"):
                yield "binds to node"
            if any(key in value for value in device.get("attributes", {}).values() for key in ("strings", "ints")):
                yield "list attribute"
    for slices in pools.values():
        newest = max(spec["pool"]["generation"] for spec in slices)
        current = [spec for spec in slices if spec["pool"]["generation"] == newest]
        if len(current) < len(slices):
            yield "pool of several generations"
        if len({spec.get("nodeName") for spec in slices}) > 1:
            yield "pool name on several nodes"
        wanted = current[0]["pool"]["resourceSliceCount"]
        if len(current) != wanted:
            yield "pool incomplete" if len(current) < wanted else "pool of too many slices"
        if len(current) > 1:
            yield "pool of several slices"
        names = [device["name"] for spec in current for device in spec.get("devices", ())]
        if len(set(names)) < len(names):
            yield "device name twice in a pool"
        if len(names) > 32:
            yield "more than 32 devices"


def _of_claims(question: Question) -> Iterator[str]:
    classes = {one["metadata"]["name"]: one for one in question.of("DeviceClass")}
    for claim in question.claims:
        devices = claim["spec"]["devices"]
        if len(devices["requests"]) > 1:
            yield "several requests"
        for constraint in devices.get("constraints", ()):
            names = constraint.get("requests", [])
            kind = "matchAttribute" if "matchAttribute" in constraint else "distinctAttribute"
            yield f"{kind}, {'sub-requests' if any('/' in name for name in names) else 'whole requests'}"
        for request in devices["requests"]:
            bodies = request.get("firstAvailable") or [request["exactly"]]
            if "firstAvailable" in request:
                yield "firstAvailable"
                if len({body.get("count") for body in bodies}) > 1:
                    yield "alternatives with different counts"
            for body in bodies:
                if body["allocationMode"] == "All":
                    yield "mode All"
                elif body["count"] > 1:
                    yield "count > 32" if body["count"] > 32 else "count > 1"
                if body["deviceClassName"] not in classes:
                    yield "class missing"
                yield from (word for key, word in _OF_A_REQUEST if key in body)


_OF_A_REQUEST = (
    ("adminAccess", "admin access"),
    ("tolerations", "tolerations"),
    ("capacity", "capacity requests"),
    ("selectors", "selectors"),
)


# -- smaller questions ------------------------------------------------------------------------------------------------


def differs(oracle: Oracle, question: Question) -> str:
    """The first node on which the two disagree, and how; "" if they agree."""
    comparisons, _ = compare(question, oracle.ask(question))
    return next((f"{c.verdict.node}: {c.difference}" for c in comparisons if c.difference), "")


def shrink(question: Question, still: Callable[[Question], bool]) -> Question:
    """A question with as little in it as possible for which `still` holds, by taking parts away one after the other."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _less(question):
            if still(candidate):
                question, smaller = candidate, True
                break
    return question


def _less(question: Question) -> Iterator[Question]:
    """The question with one part taken away, the large parts first."""
    for index, one in enumerate(question.objects):
        rest = (*question.objects[:index], *question.objects[index + 1 :])
        name = f"{one['metadata'].get('namespace')}/{one['metadata']['name']}"
        asked = tuple(wanted for wanted in question.allocate if one["kind"] != "ResourceClaim" or wanted != name)
        if asked:
            yield Question(rest, asked, question.gates)
    for index, one in enumerate(question.objects):
        for path in _parts(one, ()):
            changed = copy.deepcopy(one)
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            del holder[path[-1]]
            objects = (*question.objects[:index], changed, *question.objects[index + 1 :])
            yield Question(objects, question.allocate, question.gates)


_OPEN = {"attributes", "capacity", "counters", "labels"}  # maps whose keys may go
_OPTIONAL = {
    *("selectors", "constraints", "tolerations", "taints", "status", "capacity", "adminAccess", "bindsToNode"),
    *("bindingConditions", "bindingFailureConditions", "allowMultipleAllocations", "consumesCounters", "attributes"),
    *("requestPolicy", "consumedCapacity", "shareID", "value", "timeAdded", "tolerationSeconds", "labels"),
}


def _parts(part: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Where something may be taken away so that an object of the same kind is left."""
    if isinstance(part, list):
        if len(part) > 1 or path[-1] not in {"requests", "firstAvailable", "nodeSelectorTerms", "values", "results"}:
            yield from ((*path, index) for index in range(len(part)))
        for index, one in enumerate(part):
            yield from _parts(one, (*path, index))
    elif isinstance(part, dict):
        for key, one in part.items():
            inside = path and path[-1] in _OPEN
            value_of_something = key == "value" and path and "taints" not in path and "tolerations" not in path
            if inside or (key in _OPTIONAL and not value_of_something):
                yield (*path, key)
            yield from _parts(one, (*path, key))
