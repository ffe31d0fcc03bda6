"""`python -m bench.capacity`: what one event and one decision record cost at 1,000 nodes and 8,000 devices.

CPU time of this process, so that neighbours on the machine are not in it. Nothing is asked of a cluster.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from allocation.fleet import NOW, TRAIN, claim, device, gpu_class, node, policy_set, slice_of, taint_rule
from dra_gate.allocation.capacity import Capacity

NODES, DEVICES = 1000, 8
MODELS = ("h100", "a100", "l40s")
EVENT_MS, RECORD_MS = 1.0, 5.0


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
        "decision record": timed(rounds, lambda n: capacity.candidates(TRAIN, "maple", 1 + n % 8)),
        "view by model": timed(rounds, lambda n: capacity.by_model(NOW)),
    }


def main() -> int:
    began = time.thread_time()
    capacity = large()
    print(f"built in {time.thread_time() - began:.2f} s of CPU")
    late = 0
    print("| what | median ms | worst ms |\n|---|---|---|")
    for what, found in measured(capacity).items():
        median, worst = statistics.median(found), found[-1]
        late += median > (RECORD_MS if what in ("decision record", "view by model") else EVENT_MS)
        print(f"| {what} | {median:.3f} | {worst:.3f} |")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
