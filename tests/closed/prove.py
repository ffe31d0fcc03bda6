"""Every way around is closed: hostile Pods by the thousand, judged by the gate and by an oracle that knows no rule.

make prove-closed        # 20,000 of each; CI runs a tenth
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from admission import setting
from closed import hostile
from closed.oracle import Site, reached
from dra_gate.admission.review import answer
from dra_gate.kube.patch import apply
from dra_gate.policy.model import PolicyRef

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "closed.md"
_HEAD = [
    "# Every way around, closed",
    "",
    "Made by `make prove-closed`. Hostile Pods in random combinations and spellings go through both webhooks. What is",
    "admitted is looked at by an oracle (`tests/closed/oracle.py`) that shares no code with the gate: what would the",
    "scheduler, the kubelet and the container runtime give this Pod? `python -m closed.disabled` prints, for each rule",
    "switched off, who notices, and `python -m closed.switches` the same for what is no rule.",
    "",
]
NAMESPACE = "fern-dev"
RUNTIMES = {"nvidia": "nvidia", "renamed": "nvidia-cdi", "runc": "runc", "gvisor": "runsc"}


@dataclass
class Result:
    """What became of the Pods; `through` are those that were admitted though they reach a device."""

    judged: int = 0
    spoiled: int = 0
    admitted: int = 0
    reaching: int = 0
    slowest: float = 0.0  # seconds, both routes of one Pod
    through: list[tuple[int, list[str], Any]] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)


def site() -> Site:
    """The oracle's view of the world that tests/admission judges in."""
    refs = (PolicyRef("train", 1), PolicyRef("train", 2))
    counts = range(1, 33)
    return Site(
        resources=frozenset({"nvidia.com/gpu", "example.com/anything"}),
        domains=("nvidia.com",),
        handlers=RUNTIMES,
        device_handlers=frozenset({"nvidia", "nvidia-cdi"}),
        own_templates=frozenset(
            setting.template_name("fern", ref.name, ref.version, n) for ref in refs for n in counts
        ),
        harmless_templates=frozenset({"nics", "nic-out-of-everything"}),
        harmless_claims=frozenset({"a-nic"}),
    )


def plugin_site() -> Site:
    """The same where the namespace is in lane device-plugin: no claim is the tenant's, and one model can be told."""
    return replace(
        site(),
        own_templates=frozenset(),
        served=frozenset({"nvidia.com/gpu"}),
        nodes={
            "nvidia.com/gpu.product": frozenset({"NVIDIA-H100-80GB-HBM3"}),
            "pool.example/devices": frozenset({"plugin"}),
        },
    )


def world_facts(lane: str = "dra") -> Any:
    """Facts with what hostile Pods name: runtime classes and nodes."""
    classes = [
        {"kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler} for name, handler in RUNTIMES.items()
    ]
    nodes = [
        {"kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}}
        for name in ("n0", "cpu-0")
    ]
    return setting.world(*classes, *nodes, setting.labelled(NAMESPACE, lane=lane)).facts()


def review(obj: Any, old: Any = None) -> bytes:
    """The body that the API server would send."""
    request = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "userInfo": {"username": "ada@fern.example", "groups": ["system:authenticated"]},
        "object": obj,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def judged(pod: Any, facts: Any, codes: Counter[str]) -> Any:
    """The Pod as it would be stored, or None when it is refused."""
    for route in ("mutate", "validate"):
        made = answer(route, review(pod), facts)  # type: ignore[arg-type]
        codes.update(made.record.reasons)
        response = json.loads(made.body)["response"]
        if not response["allowed"]:
            return None
        if "patch" in response:
            pod = apply(pod, json.loads(base64.b64decode(response["patch"])))
    return pod


def prove(count: int, seed: int, *, spoil: bool = True, lane: str = "dra") -> Result:
    """Judge `count` hostile Pods and, with `spoil`, as many spoiled ones, which only must not crash."""
    facts, there, result = world_facts(lane), site() if lane == "dra" else plugin_site(), Result()
    for number in range(count):
        draw = hostile.Dice(f"{seed}-{number}")  # the same Pods every time
        pod = setting.resolved(hostile.pod(draw))
        began = time.perf_counter()
        stored = judged(pod, facts, result.codes)
        result.slowest = max(result.slowest, time.perf_counter() - began)
        result.judged += 1
        result.reaching += bool(reached(pod, there))
        if stored is not None:
            result.admitted += 1
            ways = reached(stored, there)
            if ways:
                result.through.append((number, ways, pod))
        if spoil:
            result.spoiled += 1
            judged(hostile.spoiled(pod, draw), facts, Counter())
    return result


def main() -> int:
    """Prove, print; 1 when something got through."""
    parser = argparse.ArgumentParser(prog="python -m closed.prove", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    result = prove(options.count, options.seed)
    lines = told(result)
    print("\n".join(lines))
    for number, ways, pod in result.through[:20]:
        print(f"\n{number}: {'; '.join(ways)}\n{json.dumps(pod)}")
    if options.write:
        PROOF.write_text("\n".join([*_HEAD, f"{dt.datetime.now(dt.UTC).date()}, seed {options.seed}.", "", *lines, ""]))
    return 1 if result.through else 0


def told(result: Result) -> list[str]:
    """The result in Markdown."""
    return [
        f"- {result.judged:,} hostile Pods, {result.reaching:,} of which reach a device as they are written",
        f"- {len(result.through)} admitted that reach a device without a claim of their tenant",
        f"- {result.admitted:,} admitted: what mutate made of them reaches nothing else",
        f"- {result.spoiled:,} Pods with wrong types, odd text, huge maps and deep nesting inside: all answered",
        f"- slowest Pod: {result.slowest * 1000:.1f} ms for both calls",
        "",
        "| reason told | times |",
        "|---|---:|",
        *(f"| `{code}` | {number:,} |" for code, number in result.codes.most_common()),
    ]


if __name__ == "__main__":
    sys.exit(main())
