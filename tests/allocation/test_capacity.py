"""Capacity by events equals capacity counted from everything at once, whatever came in which order."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allocation.fleet import BACK, NOW, TRAIN, claim, counted, device, gpu_class, node, policy_set, slice_of, taint_rule
from bench import capacity as bench
from dra_gate.allocation.capacity import Capacity, Unusable

Object = dict[str, Any]
Key = tuple[str, str]
SETS = policy_set()
OTHER_SETS = policy_set(
    {
        "apiVersion": "policy.dra-gate.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "cedar"},
        "spec": {"policy": "any@1", "namespaces": ["nobody"]},
    }
)
GPU = ("", "gpu.nvidia.com")


def taking(capacity: Capacity) -> dict[str, tuple[Callable[[Key, Object], None], Callable[[Key], None]]]:
    return {
        "class": (capacity.set_class, capacity.drop_class),
        "slice": (capacity.set_slice, capacity.drop_slice),
        "node": (capacity.set_node, capacity.drop_node),
        "rule": (capacity.set_taint_rule, capacity.drop_taint_rule),
        "claim": (capacity.set_claim, capacity.drop_claim),
        "back": (lambda _, devices: capacity.hold_back(devices), lambda _: capacity.hold_back(())),
    }


def built(kinds: dict[str, dict[Key, Object]], sets: Any = SETS) -> Capacity:
    capacity = Capacity()
    capacity.use([sets])
    for kind, (upsert, _) in taking(capacity).items():
        for key, obj in kinds.get(kind, {}).items():
            upsert(key, obj)
    return capacity


def told(capacity: Capacity, sets: Any = SETS) -> dict[str, Any]:
    """What the view says, in the form of the slow count."""
    models = {
        name: {
            "published": found.published,
            "largest": capacity.largest()[name],
            "healthy": found.healthy,
            "free": found.free,
            "charged": found.charged,
            "unusable": {reason: one.devices for reason, one in found.unusable.items()},
        }
        for name, found in capacity.by_model(NOW).items()
    }
    orders = {}
    for ref in sets.policies:
        for found in capacity.candidates(ref, "maple", 2):
            kept = dataclasses.asdict(found)
            assert kept.pop("healthy") == models[found.model]["healthy"]
            assert sum(kept.pop("unusable").values()) == found.matching - found.usable
            orders[ref, kept.pop("model")] = kept
    kinds = capacity.kinds()
    for ref in sets.policies:
        for model, needs in capacity.needs(ref):
            suits = [kind for kind in kinds if kind.model == model and kind.holds & needs == needs]
            assert sum(kind.healthy for kind in suits) == orders[ref, model]["usable"]
    listed = sorted((kind.model, kind.healthy, [*kind.free.items()], [*kind.whole.items()]) for kind in kinds)
    return {"models": models, "orders": orders, "kinds": listed}


NODES = st.sampled_from(["n1", "n2", "n3"])
NAMES = st.sampled_from(["gpu-0", "gpu-1", "gpu-2"])
TAINTS = st.lists(
    st.builds(
        lambda key, effect: {"key": key, "effect": effect},
        st.sampled_from("ab"),
        st.sampled_from(["None", "NoSchedule", "NoExecute"]),
    ),
    max_size=2,
)
DEVICES = st.builds(
    lambda name, model, memory, driver, taints: device(name, model, memory, driver, taints=taints),
    NAMES,
    st.sampled_from(["h100", "a100", "l40s", "unknown"]),
    st.sampled_from(["40Gi", "80Gi"]),
    st.sampled_from(["540.0.0", "580.1.0"]),
    TAINTS,
)
SLICES = st.builds(
    slice_of,
    st.sampled_from(["n1", "n2", ""]),
    st.lists(DEVICES, min_size=1, max_size=3, unique_by=lambda one: one["name"]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from(["n1", "n2", "shared"]),
)
CLAIMS = st.builds(
    lambda devices, admin: claim(*devices, **({"adminAccess": True} if admin else {})),
    st.lists(st.tuples(st.sampled_from(["n1", "n2", "shared"]), NAMES), max_size=2, unique=True),
    st.booleans(),
)
RULES = st.builds(
    taint_rule,
    st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {},
            optional={
                "driver": st.sampled_from(["gpu.nvidia.com", "else"]),
                "pool": st.sampled_from(["n1", "shared"]),
                "device": NAMES,
            },
        ),
    ),
    st.sampled_from(["None", "NoSchedule"]),
)
CLASSES = st.sampled_from([gpu_class(), gpu_class("device.driver == 'else'"), gpu_class("no such thing(")])
EVENTS = st.one_of(
    st.tuples(st.just("slice"), st.tuples(st.just(""), st.sampled_from(["s1", "s2", "s3", "s4"])), st.none() | SLICES),
    st.tuples(
        st.just("node"),
        st.tuples(st.just(""), NODES),
        st.none()
        | st.builds(
            lambda ready, cordoned: node(ready, cordoned=cordoned), st.sampled_from(["True", "False"]), st.booleans()
        ),
    ),
    st.tuples(
        st.just("claim"),
        st.tuples(st.sampled_from(["m1", "b1", "nobody"]), st.sampled_from(["c1", "c2"])),
        st.none() | CLAIMS,
    ),
    st.tuples(st.just("rule"), st.tuples(st.just(""), st.sampled_from(["r1", "r2"])), st.none() | RULES),
    st.tuples(st.just("class"), st.just(GPU), st.none() | CLASSES),
    st.tuples(
        st.just("back"),
        st.just(BACK),
        st.none() | st.sets(st.tuples(st.just("gpu.nvidia.com"), st.sampled_from(["n1", "n2", "shared"]), NAMES)),
    ),
    st.tuples(st.just("sets"), st.just(GPU), st.sampled_from([SETS, OTHER_SETS])),
)
START: dict[str, dict[Key, Object]] = {
    "class": {GPU: gpu_class()},
    "node": {("", "n1"): node(), ("", "n2"): node()},
    "slice": {("", "s1"): slice_of("n1", [device("gpu-0", "h100"), device("gpu-1", "a100")])},
    "rule": {},
    "claim": {},
    "back": {},
}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(EVENTS, max_size=25))
def test_events_in_any_order_give_what_counting_everything_gives(events: list[tuple[str, Key, Any]]) -> None:
    kinds = {kind: dict(objects) for kind, objects in START.items()}
    capacity, sets = built(kinds), SETS
    for kind, key, obj in events:
        if kind == "sets":
            sets = obj
            capacity.use([sets])
            continue
        upsert, delete = taking(capacity)[kind]
        if obj is None:
            kinds[kind].pop(key, None)
            delete(key)
        else:
            kinds[kind][key] = obj
            upsert(key, obj)
    broken = kinds["class"].get(GPU) == gpu_class("no such thing(")
    slow = counted(sets, {**kinds, "class": {}} if broken else kinds)
    assert told(capacity, sets) == told(built(kinds, sets), sets) == slow


def fleet() -> dict[str, dict[Key, Object]]:
    kinds = {kind: dict(objects) for kind, objects in START.items()}
    devices = [device(f"gpu-{i}", "h100") for i in range(3)]
    devices += [device("gpu-3", "h100", "40Gi"), device("gpu-4", "h100", driver="540.0.0")]
    kinds["slice"] = {("", "s1"): slice_of("n1", devices)}
    return kinds


def test_a_candidate_in_numbers() -> None:
    kinds = fleet()
    kinds["claim"] = {("m1", "c"): claim(("n1", "gpu-0")), ("b1", "c"): claim(("n1", "gpu-1"))}
    h100, a100, _ = built(kinds).candidates(TRAIN, "maple", 2)
    assert (h100.published, h100.healthy, h100.matching, h100.usable, h100.free, h100.own) == (5, 5, 3, 3, 1, 1)
    assert h100.turned_away == {"memory": 1, "driverVersion": 1}
    assert h100.places == 0, "one is free, two are asked for"
    assert a100.published == 0
    assert built(kinds).nodes_with(TRAIN, "h100", 1) == ["n1"]
    assert built(kinds).nodes_with(TRAIN, "h100", 2) == []


def test_taints_tell_their_age_and_rules_are_merged() -> None:
    kinds = fleet()
    for name, since in (("gpu-5", "09:00"), ("gpu-6", "10:30")):
        taint = {"key": "x", "effect": "NoSchedule", "timeAdded": f"2026-11-30T{since}:00Z"}
        kinds["slice"]["", "s1"]["spec"]["devices"].append(device(name, "h100", taints=[taint]))
    kinds["rule"]["", "r"] = taint_rule({"device": "gpu-0"})
    found = built(kinds).by_model(1796036400.0)["h100"]  # 2026-11-30T11:00:00Z
    assert found.unusable == {"taint bad:NoSchedule": Unusable(1, 3600.0), "taint x:NoSchedule": Unusable(2, 7200.0)}
    assert (found.published, found.healthy) == (7, 4)


def test_a_device_in_two_claims_is_told_and_a_share_or_admin_access_is_not_one() -> None:
    capacity = built(fleet())
    capacity.set_claim(("m1", "a"), claim(("n1", "gpu-0")))
    capacity.set_claim(("b1", "b"), claim(("n1", "gpu-0"), adminAccess=True))
    capacity.set_claim(("b1", "c"), claim(("n1", "gpu-0"), shareID="x"))
    assert capacity.doubled() == {}
    capacity.set_claim(("b1", "d"), claim(("n1", "gpu-0")))
    assert capacity.doubled() == {("gpu.nvidia.com", "n1", "gpu-0"): (("b1", "d"), ("m1", "a"))}
    capacity.drop_claim(("m1", "a"))
    assert capacity.doubled() == {}


def test_a_slice_that_goes_to_another_pool_leaves_its_old_one_right() -> None:
    """Two slices where one was promised: none of the pool counts, until one of them belongs to another pool."""
    capacity = built(fleet())
    capacity.set_slice(("", "s2"), slice_of("n1", [device("gpu-9", "h100")]))
    assert capacity.by_model(NOW)["h100"].healthy == 0
    capacity.set_slice(("", "s2"), slice_of("n1", [device("gpu-9", "h100")], pool="other"))
    assert capacity.by_model(NOW)["h100"].healthy == 6


def test_a_driver_that_calls_the_pool_of_each_node_alike_costs_little() -> None:
    """The scheduler takes each node's part for itself, and so it works."""
    capacity = built({"class": {GPU: gpu_class()}, "node": {("", f"n{number}"): node() for number in range(500)}})
    began = time.process_time()
    for number in range(500):
        capacity.set_slice(("", f"s{number}"), slice_of(f"n{number}", [device("g0", "h100")], pool="gpus"))
    assert time.process_time() - began < 3.0
    assert capacity.by_model(NOW)["h100"].healthy == 500
    capacity.set_slice(("", "s7"), slice_of("n7", [device("g0", "h100")], generation=2, count=2, pool="gpus"))
    assert capacity.by_model(NOW)["h100"].healthy == 499


def test_turns_of_health_are_counted_by_model() -> None:
    capacity = built(fleet())
    capacity.changes.clear()
    capacity.set_node(("", "n1"), node("False"))
    capacity.set_node(("", "n1"), node())
    assert capacity.changes == {("h100", "unhealthy"): 5, ("h100", "healthy"): 5}


def test_a_taint_rule_that_is_edited_turns_nothing_healthy_in_between() -> None:
    capacity = built({"class": {GPU: gpu_class()}, "node": {("", "n1"): node()}})
    capacity.set_slice(("", "s"), slice_of("n1", [device("g0", "h100")]))
    capacity.set_taint_rule(("", "r"), taint_rule({"driver": "gpu.nvidia.com"}))
    before = dict(capacity.changes)
    capacity.set_taint_rule(("", "r"), taint_rule({"driver": "gpu.nvidia.com"}, key="worse"))
    capacity.set_taint_rule(("", "r"), taint_rule({"pool": "n1"}, key="worse"))
    assert dict(capacity.changes) == before
    capacity.drop_taint_rule(("", "r"))
    assert dict(capacity.changes) == {**before, ("h100", "healthy"): before.get(("h100", "healthy"), 0) + 1}


def test_an_expression_that_fails_on_a_device_is_counted_and_matches_nothing() -> None:
    kinds = fleet()
    del kinds["slice"]["", "s1"]["spec"]["devices"][0]["attributes"]["type"]
    capacity = built(kinds)
    assert capacity.not_evaluated() == 1
    assert capacity.by_model(NOW)["h100"].published == 4


def test_who_a_device_is() -> None:
    capacity = built(fleet())
    assert capacity.model_of(("gpu.nvidia.com", "n1", "gpu-0")) == "h100"
    assert capacity.model_of(("gpu.nvidia.com", "n1", "gpu-9")) == ""
    assert capacity.problem_of(("gpu.nvidia.com", "n1", "gpu-9")) == "not published"
    capacity.set_node(("", "n1"), node(cordoned=True))
    assert capacity.problem_of(("gpu.nvidia.com", "n1", "gpu-0")) == "node cordoned"


def test_what_is_held_back_is_not_free_until_it_is_let_go() -> None:
    capacity = built(fleet())
    (all_of_it,) = [kind for kind in capacity.kinds() if kind.healthy == 3]
    assert (all_of_it.model, all_of_it.free, all_of_it.whole) == ("h100", {3: 1}, {3: 1})
    capacity.hold_back([("gpu.nvidia.com", "n1", "gpu-0")])
    assert [kind.free for kind in capacity.kinds() if kind.healthy == 3] == [{2: 1}]
    assert capacity.by_model(NOW)["h100"].free == 4
    assert capacity.nodes_with(TRAIN, "h100", 3) == []
    capacity.hold_back([])
    assert [kind.free for kind in capacity.kinds() if kind.healthy == 3] == [{3: 1}]


def test_events_and_records_are_cheap_at_a_thousand_nodes() -> None:
    """The best median of three rounds: this machine has neighbours."""
    capacity = bench.large()
    rounds = [bench.measured(capacity, rounds=31) for _ in range(3)]
    for what in rounds[0]:
        limit = bench.RECORD_MS if what in bench.RECORDS else bench.EVENT_MS
        assert min(one[what][len(one[what]) // 2] for one in rounds) <= limit, what
