"""Why a Pod got a lower candidate although a higher one stayed free on another node: what kept the Pod off there.

kube-scheduler filters nodes before it scores them, so that the first filter a Pod fails on a node answers the question;
where it fails none, chance or the scores of others decided, or a filter that is not judged here (`fit.not_judged`).
Judged by what is there now: a device may have been freed since, which nobody can tell afterwards.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Literal

from dra_gate.allocation.fit import not_judged
from dra_gate.kube.pod import is_finished
from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.taint import BLOCKING, tolerated
from dra_gate.policy.words import listed

SAMPLED_ABOVE = 100  # nodes: with fewer kube-scheduler looks at all of them (minFeasibleNodesToFind)
LOOKED_AT = 100  # better nodes that are asked about one Pod: enough to tell why, whatever the size of the cluster
CLAUSES = 200  # of a Pod that says more about nodes, fewer are asked: it would keep everybody else waiting
_MILLI = 1000

Code = Literal["same-node", "affinity", "taint", "resources", "unknown-node", "not-judged", "sampling", "score"]
Amounts = Mapping[str, int]  # thousandths by resource


@dataclass(frozen=True, slots=True)
class Inversion:
    """Why, as a code for counting and as a text for people."""

    code: Code
    text: str


@dataclass(frozen=True, slots=True)
class Room:
    """A node as far as Pods fit on it. `free` is what is left of its allocatable resources."""

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()  # key, value, effect
    free: Amounts = field(default_factory=dict)


def inversion(
    pod: Object, node: str, better: Iterable[str], room: Callable[[str], Room | None], nodes: int
) -> Inversion:
    """Why `pod`, which is on `node`, is not on one of the `better` nodes, in a cluster of so many `nodes`.

    `better` are those where enough devices of a higher candidate are free; an empty name stands for devices of no
    single node. Of many nodes the first hundred are looked at, fewer for a Pod of very many clauses.
    """
    found: list[Inversion] = []
    asked = requested(pod)
    for name in islice(better, max(1, LOOKED_AT // (1 + _clauses(pod) // CLAUSES))):
        if name in ("", node):
            # The scheduler takes the first that fits on a node: something else of this Pod did not fit beside it.
            found.append(Inversion("same-node", "beside what the Pod's other requests and constraints need"))
            continue
        there = room(name)
        blocked = (
            Inversion("unknown-node", "on nodes that are gone") if there is None else _blocked(pod, asked, name, there)
        )
        if blocked is None:
            unknown = not_judged(pod)
            if unknown:
                return Inversion("not-judged", f"perhaps for its {listed(unknown)}, which the gate does not judge")
            if nodes > SAMPLED_ABOVE:
                return Inversion("sampling", f"of {nodes} nodes the scheduler looks at some, and rates these by more")
            told = "the scheduler rated another node higher by what else it weighs"
            avoided = there and next((one for one in there.taints if _avoids(pod, one)), None)
            return Inversion("score", f"{told}: one has taint {avoided[0]}:PreferNoSchedule" if avoided else told)
        found.append(blocked)
    if not found:
        return Inversion("unknown-node", "freed since, or nowhere enough together")
    code = Counter(one.code for one in found).most_common(1)[0][0]
    return next(one for one in found if one.code == code)


def requested(pod: Object) -> dict[str, int]:
    """What a Pod asks of native and extended resources, and one Pod's place; in thousandths.

    Containers and sidecars together, or the largest serial init container beside the sidecars that started before it.
    """
    running: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for raw in sequence(at(pod, "spec", "initContainers")):
        asked = _amounts(at(raw, "resources", "requests"))
        if mapping(raw).get("restartPolicy") == "Always":
            running.update(asked)
        else:
            peak |= running + asked
    for raw in sequence(at(pod, "spec", "containers")):
        running.update(_amounts(at(raw, "resources", "requests")))
    return {**(peak | running), "pods": _MILLI}


def holds_room(pod: Object) -> bool:
    """Whether the Pod takes room on its node."""
    return bool(at(pod, "spec", "nodeName")) and not is_finished(pod)


def allocatable(node: Object) -> dict[str, int]:
    """What a node offers, in thousandths."""
    return dict(_amounts(at(node, "status", "allocatable")))


def taints_of(node: Object) -> tuple[tuple[str, str, str], ...]:
    """The taints of a node."""
    found = map(mapping, sequence(at(node, "spec", "taints")))
    return tuple((text(one.get("key")), text(one.get("value")), text(one.get("effect"))) for one in found)


def _clauses(pod: Object) -> int:
    """How much the Pod says of nodes: tolerations, terms of its affinity, expressions and values in them."""
    affinity = at(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    found = len(sequence(at(pod, "spec", "tolerations")))
    for term in sequence(mapping(affinity).get("nodeSelectorTerms")):
        expressions = (*sequence(at(term, "matchExpressions")), *sequence(at(term, "matchFields")))
        found += 1 + len(expressions) + sum(len(sequence(at(one, "values"))) for one in expressions)
    return found


def _blocked(pod: Object, asked: Amounts, name: str, room: Room) -> Inversion | None:
    """The first filter that keeps the Pod off the node, None where it fits."""
    if not _wanted(pod, name, room.labels):
        return Inversion("affinity", "on nodes that its own nodeSelector or affinity excludes")
    taint = next((one for one in room.taints if one[2] in BLOCKING and not _tolerated(pod, one)), None)
    if taint is not None:
        return Inversion("taint", f"on nodes whose taint {taint[0]} it does not tolerate")
    short = sorted(name for name, amount in asked.items() if amount > room.free.get(name, 0))
    if short:
        return Inversion("resources", f"on nodes with too little {', '.join(short)}")
    return None


def _wanted(pod: Object, name: str, labels: Mapping[str, str]) -> bool:
    selector = mapping(at(pod, "spec", "nodeSelector"))
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    required = at(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    if not isinstance(required, dict):
        return True
    terms = map(mapping, sequence(required.get("nodeSelectorTerms")))
    return any(_term(term, name, labels) for term in terms)


def _term(term: Object, name: str, labels: Mapping[str, str]) -> bool:
    """One term: all of it holds. An empty one matches nothing (core v1, NodeSelectorTerm)."""
    expressions = [(mapping(one), labels) for one in sequence(term.get("matchExpressions"))]
    expressions += [(mapping(one), {"metadata.name": name}) for one in sequence(term.get("matchFields"))]
    return bool(expressions) and all(_expression(one, values) for one, values in expressions)


def _expression(raw: Object, values: Mapping[str, str]) -> bool:
    value = values.get(text(raw.get("key")))
    wanted = sequence(raw.get("values"))
    match raw.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as word:
            one, other = _number(value), _number(wanted[0] if len(wanted) == 1 else None)
            return one is not None and other is not None and (one > other if word == "Gt" else one < other)
    return False


def _number(value: object) -> int | None:
    try:
        return int(text(value))
    except ValueError:
        return None


def _tolerated(pod: Object, taint: tuple[str, str, str]) -> bool:
    one = dict(zip(("key", "value", "effect"), taint, strict=True))
    return tolerated(one, sequence(at(pod, "spec", "tolerations")))


def _avoids(pod: Object, taint: tuple[str, str, str]) -> bool:
    return taint[2] == "PreferNoSchedule" and not _tolerated(pod, taint)


def _amounts(raw: object) -> Counter[str]:
    return Counter({name: _milli(str(amount)) for name, amount in mapping(raw).items()})


@functools.lru_cache(maxsize=4096)
def _milli(written: str) -> int:
    try:
        return int(Fraction(Quantity.parse(written).value) * _MILLI)
    except QuantityError:
        return 0
