"""`python -m bench.explanations`: what one explanation costs at 1,000 nodes, 8,000 devices and 5,300 Pods with some.

CPU time of this process, so that neighbours on the machine are not in it. Nothing is asked of a cluster.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from allocation.parts import PRODUCTS, asking, gpu, node, resource_slice, state
from dra_gate.allocation.explain import Explainer
from dra_gate.allocation.state import State, dumps, loads
from dra_gate.kube.raw import Object

NODES, DEVICES = 1000, 8
LIMIT = 1.0  # seconds, for all that an explanation of one Pod takes once the state is read
T = TypeVar("T")


def large() -> State:
    """Every H100 is held, and half of the others; one Pod waits for two devices."""
    objects: list[Object] = []
    for number in range(NODES):
        name, model = f"n{number:04}", tuple(PRODUCTS)[number % 3]
        devices = [gpu(f"g{n}", model, root=f"r{n // 2}", uuid=f"{name}-{n}") for n in range(DEVICES)]
        objects += [node(name), resource_slice(name, *devices)]
        for n in range(DEVICES if model == "h100" else DEVICES // 2):
            objects += asking(f"{name}-{n}", namespace="lilac", on=name, given=[(f"gpu/{model}", name, f"g{n}")])
    return state(objects, asking("waits", 2))


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, and what was made."""
    began = time.thread_time()
    made = call()
    return time.thread_time() - began, made


def main() -> int:
    """Prints the figures; 1 if the limit is exceeded."""
    written = dumps(large())
    gc.disable()  # as the commands do while they read
    reading, found = timed(lambda: loads(written))
    gc.freeze()
    gc.enable()
    rounds = []
    for _ in range(5):
        first, explainer = timed(lambda: Explainer(found))
        rounds.append((first, timed(lambda explainer=explainer: explainer.pod("research", "waits"))[0]))
    prepared, explained = min(rounds, key=sum)
    print(f"{len(written) / 2**20:.1f} MiB read in {reading:.2f} s")
    print(f"explained in {prepared + explained:.2f} s ({prepared:.2f} s to take in the state), best of {len(rounds)}")
    return int(prepared + explained > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
