"""`python -m bench.capacity`: what one event and one decision record cost at 1,000 nodes and 8,000 devices.

CPU time of this process, so that neighbours on the machine are not in it. Nothing is asked of a cluster.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from allocation.fleet import NOW, TRAIN, claim, device, gpu_class, node, policy_set, slice_of, taint_rule
from dra_gate.allocation.capacity import Capacity
from dra_gate.allocation.inversion import Inversion, Room, inversion
from dra_gate.controller.decision_plan import Fleet, Heard, PodSeen, decide, read_claim, read_pod
from dra_gate.policy.compile import templates_of
from dra_gate.policy.model import PolicyRef

POD = {
    "metadata": {"namespace": "m1", "name": "p", "uid": "u"},
    "spec": {
        "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}],
        "containers": [{"resources": {"requests": {"cpu": "8"}}}],
    },
    "status": {
        "resourceClaimStatuses": [{"name": "g", "resourceClaimName": "p-g"}],
        "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1000 nodes are available: 1000 cannot allocate all claims. preemption: 0/1000 nodes are "
            "available: 1000 Preemption is not helpful for scheduling.",
        }],
    },
}  # fmt: skip
NODES, DEVICES = 1000, 8
MODELS = ("h100", "a100", "l40s")
EVENT_MS, RECORD_MS = 1.0, 5.0
RECORDS = ("candidates", "decision record", "view by model")  # once a Pod or a scrape; the others for each event


def large() -> Capacity:
    """1,000 nodes with eight devices each; every second device is held, by ninety namespaces."""
    capacity = Capacity()
    capacity.use([policy_set()])
    capacity.set_class(("", "gpu.nvidia.com"), gpu_class())
    for number in range(NODES):
        name = f"n{number:04}"
        capacity.set_node(("", name), node())
        capacity.set_slice(("", name), published(name))
        for index in range(0, DEVICES, 2):
            capacity.set_claim((("m1", "b1", "x")[number % 3], f"c-{number}-{index}"), claim((name, f"gpu-{index}")))
    return capacity


def published(name: str, generation: int = 1, **first: Any) -> dict[str, Any]:
    """The slice of a node; `first` is said of its first device only."""
    model = MODELS[int(name[1:]) % 3]
    devices = [device(f"gpu-{index}", model, **(first if index == 0 else {})) for index in range(DEVICES)]
    for index, one in enumerate(devices):
        one["attributes"]["uuid"] = {"string": f"{name}-{index}"}
    return slice_of(name, devices, generation)


def made_claim() -> dict[str, Any]:
    """A claim of tenant maple's, not allocated."""
    spec = templates_of(policy_set()).for_count("maple", TRAIN, 2).spec
    return {"metadata": {"name": "p-g", "uid": "c", **spec["metadata"]}, "spec": spec["spec"]}


def timed(rounds: int, call: Callable[[int], object]) -> list[float]:
    """CPU milliseconds of each call, smallest first."""
    found = []
    for number in range(rounds):
        began = time.thread_time()
        call(number)
        found.append(1000 * (time.thread_time() - began))
    return sorted(found)


def measured(capacity: Capacity, rounds: int = 200) -> dict[str, list[float]]:
    """Milliseconds by what is done."""
    spot = "n0500"
    waiting = read_pod(POD)
    assert waiting is not None
    claims = {"p-g": read_claim(made_claim())}
    room = Room({"kubernetes.io/hostname": "x"}, (), {"cpu": 1000, "pods": 1000})

    def inverted(pod: PodSeen, ref: PolicyRef, model: str, count: int) -> Inversion:
        better = capacity.nodes_with(ref, model, count)
        return inversion(pod.spec, pod.node, better, lambda _: replace(room, free=dict(room.free)), NODES)

    asked = Fleet(capacity.candidates, capacity.model_of, inverted, capacity.node_ready)
    heard = Heard("v1.37.2", NOW - 20)
    return {
        "claim allocated": timed(
            rounds, lambda n: capacity.set_claim(("m1", f"new-{n}"), claim((spot, f"gpu-{n % 8}")))
        ),
        "claim released": timed(rounds, lambda n: capacity.drop_claim(("m1", f"new-{n}"))),
        "device tainted": timed(
            rounds,
            lambda n: capacity.set_slice(
                ("", spot), published(spot, taints=[{"key": f"k{n}", "effect": "NoSchedule", "timeAdded": ""}])
            ),
        ),
        "generation moved": timed(rounds, lambda n: capacity.set_slice(("", spot), published(spot, n + 2))),
        "device replaced": timed(
            rounds, lambda n: capacity.set_slice(("", spot), published(spot, 300, memory=f"{n + 1}Gi"))
        ),
        "node cordoned": timed(rounds, lambda n: capacity.set_node(("", spot), node(cordoned=n % 2 == 0))),
        "taint rule": timed(rounds, lambda n: capacity.set_taint_rule(("", "r"), taint_rule({"pool": f"n{n:04}"}))),
        "candidates": timed(rounds, lambda n: capacity.candidates(TRAIN, "maple", 1 + n % 8)),
        "decision record": timed(rounds, lambda _: decide(waiting, claims, "maple", asked, NOW, heard)),
        "view by model": timed(rounds, lambda n: capacity.by_model(NOW)),
        "kinds": timed(rounds, lambda n: capacity.kinds()),
        "held back": timed(rounds, lambda n: capacity.hold_back([("gpu.nvidia.com", spot, f"gpu-{n % 8}")])),
    }


def main() -> int:
    began = time.thread_time()
    capacity = large()
    print(f"built in {time.thread_time() - began:.2f} s of CPU")
    late = 0
    print("| what | median ms | worst ms |\n|---|---|---|")
    for what, found in measured(capacity).items():
        median, worst = statistics.median(found), found[-1]
        late += median > (RECORD_MS if what in RECORDS else EVENT_MS)
        print(f"| {what} | {median:.3f} | {worst:.3f} |")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
