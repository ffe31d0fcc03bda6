"""The restated allocator beside kube-scheduler's, on generated questions and on a control plane; writes
docs/proofs/allocator.md. A disagreement is shrunk, printed and kept under tests/allocation/cases/."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from allocation import live
from allocation.compare import GAVE_UP, compare, constructs, differs, shrink, went_back
from allocation.generate import question
from allocation.oracle import Oracle, Question
from controlplane.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs" / "proofs" / "allocator.md"
CASES = ROOT / "tests" / "allocation" / "cases"
LIVE_CLUSTERS, LIVE_PODS = 50, 12
_CHUNK = 250


@dataclass
class Tally:
    """What a range of questions came to."""

    questions: int = 0
    allocatable: int = 0  # questions with a node that takes the claims
    nodes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # the scheduler's answers
    went_back: int = 0
    gave_up: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)
    of: Counter[str] = field(default_factory=Counter)  # questions by construct
    allocated: Counter[str] = field(default_factory=Counter)  # of these, the allocatable
    ours: list[float] = field(default_factory=list)  # seconds a question
    theirs: list[float] = field(default_factory=list)
    disagreeing: list[int] = field(default_factory=list)  # seeds

    def add(self, other: Tally) -> None:
        """Puts another range to this one."""
        for name in self.__dataclass_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(more)
            else:
                setattr(self, name, mine + more)


def judge(seeds: Sequence[int]) -> Tally:
    """The questions of these seeds, asked of both."""
    tally = Tally()
    with Oracle() as oracle:
        for seed in seeds:
            asked = question(seed)
            verdicts = oracle.ask(asked)
            compared, took = compare(asked, verdicts)
            fits = any(verdict.kind == "allocated" for verdict in verdicts)
            found = constructs(asked)
            tally.questions += 1
            tally.nodes += len(verdicts)
            tally.allocatable += fits
            tally.of.update(found)
            tally.allocated.update(found if fits else ())
            tally.gave_up += sum(verdict.error.startswith(GAVE_UP) for verdict in verdicts)
            tally.kinds.update(verdict.kind for verdict in verdicts if not verdict.error.startswith(GAVE_UP))
            tally.went_back += sum(went_back(asked, verdict) for verdict in verdicts)
            tally.unanswered.update(one.outcome.message for one in compared if not one.evaluated)
            tally.ours.append(took)
            tally.theirs.append(sum(verdict.microseconds for verdict in verdicts) / 1e6)
            if any(one.difference for one in compared):
                tally.disagreeing.append(seed)
    return tally


def judge_all(first: int, count: int) -> Tally:
    """`count` questions from seed `first` on, on every core."""
    tally = Tally()
    ranges = [range(at, min(at + _CHUNK, first + count)) for at in range(first, first + count, _CHUNK)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(judge, ranges):
            tally.add(done)
            print(f"{tally.questions} questions, {len(tally.disagreeing)} disagreements", file=sys.stderr, flush=True)
    return tally


def keep(seeds: Iterable[int]) -> None:
    """Shrinks the disagreements, prints them and writes each to a case file."""
    with Oracle() as oracle:
        for seed in seeds:
            asked = shrink(question(seed), lambda smaller: _is_whole(smaller) and bool(differs(oracle, smaller)))
            case = {"objects": list(asked.objects), "allocate": list(asked.allocate), "gates": dict(asked.gates)}
            text = f"# seed {seed}: {differs(oracle, asked)}\n" + yaml.safe_dump(case, sort_keys=False)
            (CASES / f"found-{seed}.yaml").write_text(text)
            print(text)


def _is_whole(smaller: Question) -> bool:
    held = {f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in smaller.of("ResourceClaim")}
    return set(smaller.allocate) <= held


def judge_live(clusters: int, pods: int) -> live.Judged:
    """Pods on a control plane of its own."""
    with ControlPlane() as plane, Oracle() as oracle:
        plane.configure_scheduler(profiles=live.ONLY_DEVICES)
        return live.run(plane.api(), oracle, live.clusters(clusters), pods)


def main() -> int:
    """Exit code 1 when the two disagreed, or when too little was evaluated."""
    parser = argparse.ArgumentParser(prog="python -m proofs.allocator", description=__doc__)
    parser.add_argument("--questions", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="seed of the first; default: %(default)s")
    parser.add_argument("--no-live", action="store_true", help="leave the control plane out, and write nothing")
    arguments = parser.parse_args()
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    with ProcessPoolExecutor(1) as beside:  # it waits more than it works
        pods = None if arguments.no_live else beside.submit(judge_live, LIVE_CLUSTERS, LIVE_PODS)
        tally = judge_all(arguments.first, arguments.questions)
        keep(tally.disagreeing[:10])
        lines = generated_report(tally, arguments.first, commit)
        problems = [f"seed {seed}" for seed in tally.disagreeing]
        if pods is not None:
            judged = pods.result()
            problems += judged.problems
            lines += live_report(judged)
            PROOF.write_text("\n".join([*lines, ""]))
    print("\n".join(lines))
    print("\n".join(problems), file=sys.stderr)
    return bool(problems) or sum(tally.unanswered.values()) > 0.02 * tally.nodes


def generated_report(tally: Tally, first: int, commit: str) -> list[str]:
    """The page's head and what the generated questions came to."""
    unanswered = sum(tally.unanswered.values())
    ratios = sorted(ours / theirs for ours, theirs in zip(tally.ours, tally.theirs, strict=True))
    percentiles = statistics.quantiles(ratios, n=100)
    lines = [
        "# The restated allocator beside kube-scheduler's",
        "",
        f"Made by `make prove-allocator` on {dt.datetime.now(dt.UTC):%Y-%m-%d} at commit {commit}.",
        "",
        "`allocation/allocator.py` restates the allocator of kube-scheduler 1.37.2. Here it answers the same questions",
        "as the original (`k8s.io/dynamic-resource-allocation`, with the scheduler's features, gathered devices and",
        "merged taint rules), node by node: devices in their order, request names, consumed capacity, admin access,",
        "tolerations, node selector, score, and the exact text of errors. Share IDs are random and not compared.",
        "",
        "## Generated questions",
        "",
        f"A question is a small cluster and the claims of one Pod (`tests/allocation/generate.py`, seeds {first} to",
        f"{first + tally.questions - 1}). Half of the clusters hold little that is odd.",
        "",
        "| | |",
        "| --- | --- |",
        f"| questions | {tally.questions} |",
        f"| of these with a node that takes the claims | {_share(tally.allocatable, tally.questions)} |",
        f"| nodes compared | {tally.nodes} |",
        f"| **questions with a disagreement** | **{len(tally.disagreeing)}** |",
        f"| evaluated | {_share(tally.nodes - unanswered, tally.nodes)} |",
    ]
    lines += [f"| cannot be evaluated: {why} | {count} |" for why, count in tally.unanswered.most_common()]
    lines += [f"| the scheduler itself gave up after 10 s | {tally.gave_up} |"]
    lines += [f"| the scheduler says: {kind} | {_share(n, tally.nodes)} |" for kind, n in tally.kinds.most_common()]
    lines += [
        f"| allocated after taking a choice back | {_share(tally.went_back, tally.kinds['allocated'])} of allocated |",
        f"| time, Python ÷ Go, over all | {sum(tally.ours) / sum(tally.theirs):.1f} |",
        f"| the same a question, p50 and p99 | {percentiles[49]:.1f} and {percentiles[98]:.1f} |",
        f"| Python a question, p50 and p99 | {_milliseconds(tally.ours, 49)} and {_milliseconds(tally.ours, 98)} ms |",
        f"| Go a question, p50 and p99 | {_milliseconds(tally.theirs, 49)} and {_milliseconds(tally.theirs, 98)} ms |",
        "",
        "| what occurs | questions | of these with a node that takes the claims |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {word} | {n} | {_share(tally.allocated[word], n)} |" for word, n in sorted(tally.of.items())]
    return lines


def live_report(judged: live.Judged) -> list[str]:
    """What the Pods on the control plane came to."""
    ranks = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(judged.alternatives.items()))
    reasons = ", ".join(f"{reason} {count}" for reason, count in judged.unbound.most_common())
    return [
        "",
        "## Pods on a control plane",
        "",
        f"{LIVE_CLUSTERS} generated clusters are made on a control plane of 1.37.2, with {LIVE_PODS} Pods on each, one",
        "after the other through claim templates; older ones go now and then. Each is judged by the cluster as it was",
        "just before. DynamicResources is the only plugin that scores nodes here, and all nodes are of one size: in a",
        "stock scheduler other plugins' scores may outweigh it.",
        "",
        "| | |",
        "| --- | --- |",
        f"| Pods bound | {judged.bound}, with {judged.devices} devices |",
        f"| refused on every node, as foreseen | {sum(judged.unbound.values())} ({reasons}) |",
        f"| claims | {judged.claims} |",
        f"| alternatives taken | {ranks} |",
        f"| bound Pods with a single best node | {judged.one_best} |",
        f"| Pods with a node that cannot be evaluated | {judged.not_evaluated} |",
        f"| **other devices, or a node that is not among the best** | **{len(judged.problems)}** |",
    ]


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"


def _milliseconds(seconds: list[float], percentile: int) -> str:
    return f"{statistics.quantiles(seconds, n=100)[percentile] * 1000:.1f}"


if __name__ == "__main__":
    sys.exit(main())
