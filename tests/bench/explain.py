"""`python -m bench.explain`: one Pod explained on 1,000 nodes with 8,000 devices, beside the scheduler's allocator."""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

from allocation.oracle import Oracle, Question
from dra_gate.allocation import Allocator, snapshot_of

DRIVER = "gpu.nvidia.com"
MODELS = (
    ("NVIDIA H100 80GB HBM3", "Hopper", "81559Mi"),
    ("NVIDIA A100-SXM4-80GB", "Ampere", "81920Mi"),
    ("NVIDIA L40S", "Ada Lovelace", "46068Mi"),
)
Object = dict[str, Any]


def main() -> None:
    """Prints CPU seconds of each step, the median of the runs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    asked = question(options.nodes)
    names = [node["metadata"]["name"] for node in asked.of("Node")]
    runs = sorted(timed(asked, names) for _ in range(options.runs))
    total, steps = runs[len(runs) // 2]
    print(f"{options.nodes} nodes, {8 * options.nodes} devices: {total:.2f} s CPU: " + ", ".join(steps))
    with Oracle() as oracle:
        answers = oracle.ask(asked)
    print(f"the scheduler's allocator, search alone: {sum(answer.microseconds for answer in answers) / 1e6:.2f} s")


def timed(asked: Question, names: list[str]) -> tuple[float, list[str]]:
    """CPU seconds in all, and by step in words."""
    gc.collect()
    claims = asked.claims
    marks, steps = [time.process_time()], []

    def done(what: str) -> None:
        marks.append(time.process_time())
        steps.append(f"{what} {marks[-1] - marks[-2]:.2f}")

    snapshot = snapshot_of(asked.objects, version="v1.37.2")
    done("snapshot")
    allocator = Allocator(snapshot)
    done("read")
    kinds = {allocator.allocate(name, claims).kind for name in names}
    done("allocate")
    checks = sum(len(one.devices) for name in names for one in allocator.examine(name, claims).requests)
    done("examine")
    assert kinds == {"allocated", "impossible"}
    assert checks == 24 * len(names)
    return marks[-1] - marks[0], steps


def question(nodes: int) -> Question:
    """Nodes of three models, half of their devices in use, or all."""
    objects: list[Object] = [_class()]
    for number in range(nodes):
        name = f"n{number:04}"
        objects += [{"kind": "Node", "metadata": {"name": name}}, _slice(name, number % 3)]
        used = 8 if number % 6 == 0 or number % 7 == 1 else 4
        objects += [_claim(f"{name}-{index}", _held(name, index)) for index in range(used)]
    words = ("NVIDIA H100", "NVIDIA A100", "NVIDIA L40S")
    subs = [_alternative(word.split()[1].lower(), word) for word in words]
    mine = _claim("mine", {}) | {"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": subs}]}}}
    return Question((*objects, mine), ("t/mine",))


def _class() -> Object:
    kind = f"device.attributes['{DRIVER}'].type"
    expression = f"device.driver == '{DRIVER}' && has({kind}) && {kind} == 'gpu'"
    return {
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def _slice(node: str, model: int) -> Object:
    product, architecture, memory = MODELS[model]
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{node}-{index}"},
                "productName": {"string": product},
                "architecture": {"string": architecture},
                "driverVersion": {"version": "560.35.3"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index}0"},
            },
            "capacity": {"memory": {"value": memory}},
        }
        for index in range(8)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-gpu"}, "spec": spec}


def _alternative(name: str, product: str) -> Object:
    of = f"device.attributes['{DRIVER}']"
    memory = f"device.capacity['{DRIVER}'].memory"
    expressions = (
        f"has({of}.productName) && {of}.productName.startsWith('{product}')",
        f"has({memory}) && {memory}.compareTo(quantity('40Gi')) >= 0",
        f"has({of}.driverVersion) && {of}.driverVersion.compareTo(semver('550.54.15')) >= 0",
    )
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": name, "deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1, "selectors": selectors}


def _held(pool: str, index: int) -> Object:
    return {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": f"gpu-{index}"}]}
        }
    }


def _claim(name: str, status: Object) -> Object:
    metadata = {"name": name, "namespace": "t", "uid": name}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": []}}, "status": status}


if __name__ == "__main__":
    main()
