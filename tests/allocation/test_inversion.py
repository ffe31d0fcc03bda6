"""What kept a Pod off the nodes where a better device is free."""

from __future__ import annotations

from typing import Any

import pytest

from dra_gate.allocation.inversion import Room, allocatable, holds_room, inversion, requested, taints_of

FREE = {"cpu": 4000, "memory": 8 * 2**30 * 1000, "pods": 1000}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(cpu: str = "1", **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}], **spec}}


def affinity(*expressions: dict[str, Any], word: str = "matchExpressions") -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{word: list(expressions)}]}}}


def named(name: str) -> dict[str, Any]:
    return affinity({"key": "metadata.name", "operator": "In", "values": [name]}, word="matchFields")


def why(pod: dict[str, Any], nodes: int = 3, **room: Any) -> str:
    there = Room(**{"labels": {"zone": "a", "size": "7"}, "free": FREE, **room})
    return inversion(pod, "here", ["there"], {"there": there}.get, nodes).code


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("score", pod()),
        ("resources", pod("5")),
        ("affinity", pod(nodeSelector={"zone": "b"})),
        ("score", pod(nodeSelector={"zone": "a"})),
        ("affinity", pod(affinity=affinity())),
        ("affinity", pod(affinity=affinity({"key": "zone", "operator": "In", "values": ["b"]}))),
        ("score", pod(affinity=affinity({"key": "zone", "operator": "NotIn", "values": ["b"]}))),
        ("score", pod(affinity=affinity({"key": "none", "operator": "NotIn", "values": ["b"]}))),
        ("affinity", pod(affinity=affinity({"key": "none", "operator": "Exists"}))),
        ("affinity", pod(affinity=affinity({"key": "zone", "operator": "DoesNotExist"}))),
        ("score", pod(affinity=affinity({"key": "size", "operator": "Gt", "values": ["6"]}))),
        ("affinity", pod(affinity=affinity({"key": "size", "operator": "Lt", "values": ["6"]}))),
        ("affinity", pod(affinity=affinity({"key": "none", "operator": "Gt", "values": ["6"]}))),
        ("affinity", pod(affinity=affinity({"key": "size", "operator": "Gt", "values": ["many"]}))),
        ("affinity", pod(affinity=affinity({"key": "zone", "operator": "Later", "values": ["a"]}))),
        ("score", pod(affinity=named("there"))),
        ("affinity", pod(affinity=named("x"))),
    ],
)  # fmt: skip
def test_the_first_filter_that_keeps_it_off(expected: str, given: dict[str, Any]) -> None:
    assert why(given) == expected


@pytest.mark.parametrize(
    ("expected", "toleration"),
    [
        ("taint", {}),
        ("taint", {"key": "k", "value": "w", "effect": "NoSchedule"}),
        ("taint", {"key": "k", "value": "v", "effect": "NoExecute"}),
        ("taint", {"key": "other", "operator": "Exists"}),
        ("score", {"key": "k", "value": "v"}),
        ("score", {"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
        ("score", {"operator": "Exists"}),
    ],
)
def test_taints(expected: str, toleration: dict[str, Any]) -> None:
    assert why(pod(tolerations=[toleration]), taints=(("k", "v", "NoSchedule"),)) == expected


def test_a_taint_that_only_prefers_keeps_nobody_off() -> None:
    assert why(pod(), taints=(("k", "v", "PreferNoSchedule"),)) == "score"


def test_a_taint_that_only_prefers_is_named() -> None:
    there = Room(taints=(("flaky", "", "PreferNoSchedule"),), free=FREE)
    found = inversion(pod(), "here", ["there"], {"there": there}.get, 3)
    assert found.text.endswith("one has taint flaky:PreferNoSchedule")
    tolerant = pod(tolerations=[{"operator": "Exists"}])
    assert "flaky" not in inversion(tolerant, "here", ["there"], {"there": there}.get, 3).text


def test_what_is_not_judged_may_be_why() -> None:
    apart = pod(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}})
    assert why(apart) == "not-judged"
    assert why(apart, nodes=101) == "not-judged"
    assert why(apart, free={}) == "resources"
    text = inversion(apart, "here", ["there"], {"there": Room(free=FREE)}.get, 3).text
    assert text == "perhaps for its anti-affinity to other Pods, which the gate does not judge"


def test_above_a_hundred_nodes_sampling_may_be_why() -> None:
    assert why(pod(), nodes=100) == "score"
    assert why(pod(), nodes=101) == "sampling"


def test_of_several_nodes_one_that_fits_decides_else_the_most_frequent_cause() -> None:
    rooms = {
        "full": Room(),
        "full2": Room(),
        "fits": Room(free=FREE),
        "tainted": Room(taints=(("k", "", "NoExecute"),)),
    }
    assert inversion(pod(), "here", ["full", "fits"], rooms.get, 4).code == "score"
    assert inversion(pod(), "here", ["tainted", "full", "full2"], rooms.get, 4).code == "resources"
    assert inversion(pod(), "here", ["gone"], rooms.get, 4).code == "unknown-node"
    assert inversion(pod(), "here", ["here"], rooms.get, 4).code == "same-node"
    assert inversion(pod(), "here", [], rooms.get, 4).code == "unknown-node"


def test_of_many_nodes_some_are_looked_at() -> None:
    names = [f"n{number}" for number in range(5000)]
    looked: list[str] = []
    inversion(pod("5"), "here", names, lambda name: looked.append(name) or Room(free=FREE), 5000)  # type: ignore[func-returns-value]
    assert looked == names[:100]


def test_what_a_pod_takes() -> None:
    def asking(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    made = {"spec": {
        "initContainers": [asking("9"), asking("1", restartPolicy="Always"), asking("8500m")],
        "containers": [asking("2"), asking("bad")],
    }}  # fmt: skip
    assert requested(made) == {"cpu": 9500, "pods": 1000}
    made["spec"]["containers"].append(asking("20"))
    assert requested(made)["cpu"] == 23000
    assert not holds_room(made)
    made["spec"]["nodeName"] = "n"  # type: ignore[assignment]
    assert holds_room(made)
    assert not holds_room({**made, "status": {"phase": "Failed"}})


def test_what_a_node_has() -> None:
    found = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"allocatable": {"cpu": "64"}}}
    assert allocatable(found) == {"cpu": 64000}
    assert taints_of(found) == (("k", "", "NoSchedule"),)


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{"key": "a"}]}] * 20_000}}}},
        {"affinity": affinity(*[{"key": "zone", "operator": "Exists"}] * 20_000)},
        {"affinity": affinity({"key": "zone", "operator": "In", "values": ["b"] * 20_000})},
        {"affinity": affinity(*[{"key": "metadata.name", "operator": "Exists"}] * 20_000, word="matchFields")},
        {"tolerations": [{"key": "other"}] * 20_000},
    ],
)  # fmt: skip
def test_a_pod_of_many_clauses_is_held_against_few_nodes(spec: dict[str, Any]) -> None:
    """Whoever writes a Pod says how long it takes to hold it against a node; all others wait meanwhile."""
    asked: list[str] = []

    def room(name: str) -> Room:
        asked.append(name)
        return Room({"zone": "a"}, (("k", "v", "NoSchedule"),), FREE)

    assert inversion(pod(**spec), "here", [str(number) for number in range(100)], room, 5000).code in (
        "affinity",
        "taint",
    )
    assert len(asked) == 1
