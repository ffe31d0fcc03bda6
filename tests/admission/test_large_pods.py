"""A Pod as large as the API server takes costs little more than reading its JSON: verdicts wait for each other."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from admission import setting
from bench import big
from dra_gate.admission.review import answer
from dra_gate.admission.validate import validate

TIMES = 30  # what a verdict may cost, in times of what reading costs; 0.9 to 14 were measured, a square is far more
READING = 20.0  # milliseconds at least: short strings that repeat are read faster than anybody looks at them


@pytest.mark.parametrize("name", big.PODS)
def test_a_verdict_costs_a_few_times_what_reading_costs(name: str) -> None:
    facts, body = setting.facts(), big.review(big.PODS[name]())
    assert answer("mutate", body, facts).record.verdict in ("mutate", "deny")
    assert answer("validate", body, facts).record.reasons[0] in ("RAW_DEVICE_REQUEST", "NODE_PINNING")
    row = big.measured(big.Shape(name, body), facts, rounds=3)
    assert row.slowest < TIMES * max(row.read, READING), row


@pytest.mark.parametrize("name", big.PODS)
def test_so_does_one_in_lane_device_plugin(name: str) -> None:
    moved = setting.world(setting.labelled("fern-dev", lane="device-plugin")).facts()
    facts, body = replace(moved, previous_labels={}), big.review(big.PODS[name]())  # it moved long ago
    assert answer("mutate", body, facts).record.verdict in ("mutate", "deny")
    row = big.measured(big.Shape(name, body), facts, rounds=3)
    assert row.slowest < TIMES * max(row.read, READING), row


def _by(**term: Any) -> dict[str, Any]:
    return _requiring([term])


def _requiring(terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return setting.pod(affinity={"nodeAffinity": required})


def _wanting(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


CHOICES = {
    "labels": lambda: setting.pod(nodeSelector={f"l{number}": "x" for number in range(50_000)}),
    "terms": lambda: _requiring([{"matchExpressions": [_wanting("rack", "r")]}] * 30_000),
    "requirements": lambda: _by(matchExpressions=[{"key": "rack", "operator": "Exists"}] * 30_000),
    "values": lambda: _by(matchExpressions=[_wanting("rack", *map(str, range(100_000)))]),
    "as much as is looked at": lambda: _requiring(
        [{"matchExpressions": [_wanting("rack", *(f"{term}-{n}" for n in range(30)))]} for term in range(32)]
    ),
    "the most nodes by the most requirements": lambda: _by(
        matchExpressions=[{"key": "n", "operator": "NotIn", "values": [str(n)]} for n in range(63)]
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_long_choice_among_many_nodes_stalls_nobody(name: str) -> None:
    nodes = [
        {"kind": "Node", "metadata": {"name": f"w{number}", "labels": {"rack": f"r{number % 50}", "n": str(number)}}}
        for number in range(5000)
    ]
    facts = setting.world(*nodes).facts()
    request = setting.request(CHOICES[name]())
    began = time.thread_time()
    verdict = validate(request, facts)
    # At most 0.05 s were measured; a look for garbage in a large process comes on top. All by all takes many seconds.
    assert time.thread_time() - began < 1
    assert verdict.allowed == name.startswith(("as", "the"))
