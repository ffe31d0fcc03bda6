"""Which node kube-scheduler may take, as far as devices decide it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_gate.allocation.outcome import Outcome

MAX_SCORE: Final = 100
SAMPLED_ABOVE: Final = 100  # nodes: minFeasibleNodesToFind


@dataclass(frozen=True, slots=True)
class BestNodes:
    """The nodes with the best devices, and what else has a say.

    `score` is their normalised score, `scores` that of every node where the claims can be allocated. `certain` is true
    if devices leave the scheduler one node. `chance` says, in words, what may lead it elsewhere.
    """

    nodes: tuple[str, ...]
    score: int
    certain: bool
    chance: tuple[str, ...]
    scores: Mapping[str, int] = field(default_factory=dict)


def best_nodes(outcomes: Mapping[str, Outcome], base: int = 0) -> BestNodes:
    """The best of the nodes that the Pod's other requirements let through.

    `base` is the raw score of those of the Pod's claims that are allocated already: it counts for every node.
    """
    failures = sorted(name for name, outcome in outcomes.items() if outcome.kind == "failed")
    unknown = sorted(name for name, outcome in outcomes.items() if outcome.kind == "cannot-evaluate")
    raw = {name: outcome.score + base for name, outcome in sorted(outcomes.items()) if outcome.kind == "allocated"}
    highest = max(raw.values(), default=0)
    scores = {name: value * MAX_SCORE // highest if highest else value for name, value in raw.items()}
    best = max(scores.values(), default=0)
    nodes = tuple(name for name, score in scores.items() if score == best)
    chance = []
    if failures:
        chance.append(
            f"the attempt ends for all nodes when it meets {_some(failures)}, unless it has found enough others before"
        )
    if unknown:
        chance.append(f"what {_some(unknown)} would give is not known here")
    if len(nodes) > 1:
        chance.append(f"{len(nodes)} nodes are equally good for devices: among equals the scheduler draws lots")
    if len(scores) > len(nodes):
        chance.append(
            "a node with a lower choice can win all the same: the scheduler also rates free CPU and memory, preferred "
            "affinity, taints to be avoided and spreading"
        )
    if len(outcomes) > SAMPLED_ABOVE:
        chance.append(f"with {len(outcomes)} nodes the scheduler looks at a sample only, and may not see the best")
    return BestNodes(nodes, best, len(raw) == 1 and not failures and not unknown, tuple(chance), scores)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more nodes"
