"""A Pod as large as the API server takes costs little more than reading its JSON: verdicts wait for each other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from admission import setting
from dra_gate.admission.request import parse
from dra_gate.admission.review import answer

GPU = setting.asking("1")
PODS: dict[str, Callable[[], dict[str, Any]]] = {
    "60,000 containers": lambda: _containers(60_000, {"image": "a", "resources": {}}),
    "50,000 containers that ask for no device": lambda: _containers(
        50_000, {"resources": {"limits": {"nvidia.com/gpu": "0"}}}
    ),
    "50,000 paths of the node": lambda: setting.pod(
        containers=[GPU], volumes=[{"name": "v", "hostPath": {"path": f"/data/{number}"}} for number in range(50_000)]
    ),
    "60,000 annotations about devices": lambda: {
        **setting.pod(containers=[GPU]),
        "metadata": {"name": "p", "annotations": {f"cdi.k8s.io/{number}": "a.b/c=d" for number in range(60_000)}},
    },
    "100,000 variables": lambda: setting.pod(containers=[{**GPU, "env": [{"name": "A", "value": "b"}] * 100_000}]),
}
TIMES = 4  # what a verdict may cost, in times of what reading the body costs; 1.0 to 2.0 were measured


def _containers(count: int, what: dict[str, Any]) -> dict[str, Any]:
    return setting.pod(containers=[GPU, *({"name": f"c{number}", **what} for number in range(count))])


@pytest.mark.parametrize("name", PODS)
def test_a_verdict_costs_a_few_times_what_reading_costs(name: str) -> None:
    request = {
        "uid": "u-1",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "fern-dev",
        "object": PODS[name](),
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    body = json.dumps(review, separators=(",", ":")).encode()
    facts = setting.facts()
    reading = _seconds(lambda: parse(body))
    assert answer("mutate", body, facts).record.verdict == "mutate"
    assert answer("validate", body, facts).record.reasons[0] == "RAW_DEVICE_REQUEST"
    assert _seconds(lambda: answer("mutate", body, facts)) < TIMES * reading
    assert _seconds(lambda: answer("validate", body, facts)) < TIMES * reading


def _seconds(what: Callable[[], object]) -> float:
    """Processor time of this thread, the least of four: neighbours only ever add to it."""
    return min(_once(what) for _ in range(4))


def _once(what: Callable[[], object]) -> float:
    began = time.thread_time()
    what()
    return time.thread_time() - began
