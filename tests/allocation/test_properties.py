"""What holds whatever the cluster and the claims: random questions, without the scheduler's own answer."""

from __future__ import annotations

import copy
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocation.generate import question
from allocation.oracle import Question
from dra_gate.allocation import Allocator, Outcome, dumps, loads, snapshot_of
from dra_gate.kube.raw import at, sequence

VERSION = "v1.37.2"
seeds = st.integers(0, 2**32)


def answers(asked: Question, objects: list[Any] | None = None) -> dict[str, Outcome]:
    """The outcome on each node."""
    allocator = Allocator(snapshot_of(objects or asked.objects, version=VERSION))
    return {
        node["metadata"]["name"]: allocator.allocate(node["metadata"]["name"], asked.claims)
        for node in asked.of("Node")
    }


def results(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(one.driver, one.pool, one.device) for claim in outcome.claims for one in claim.results]


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_nothing_is_given_twice_or_to_two(seed: int) -> None:
    asked = question(seed)
    held = {
        (one["driver"], one["pool"], one["device"])
        for claim in asked.of("ResourceClaim")
        for one in sequence(at(claim, "status", "allocation", "devices", "results"))
        if not one.get("adminAccess") and not one.get("shareID")
    }
    for outcome in answers(asked).values():
        exclusive = [
            (one.driver, one.pool, one.device)
            for claim in outcome.claims
            for one in claim.results
            if not one.admin_access and not one.consumed_capacity
        ]
        shared = {
            (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"])
            for one in asked.of("ResourceSlice")
            for device in one["spec"].get("devices", ())
            if device.get("allowMultipleAllocations")
        }
        counted = Counter(place for place in exclusive if place not in shared)
        assert set(counted.values()) <= {1}
        assert not held & set(counted)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_counts_and_alternatives_are_respected(seed: int) -> None:
    asked = question(seed)
    for outcome in answers(asked).values():
        score = 0
        for claim, allocated in zip(asked.claims, outcome.claims, strict=False):
            got = Counter(one.request for one in allocated.results)
            for request in claim["spec"]["devices"]["requests"]:
                listed = request.get("firstAvailable")
                ways = [(f"{request['name']}/{sub['name']}", sub) for sub in listed] if listed else []
                ways = ways or [(request["name"], request["exactly"])]
                chosen = [(index, name, way) for index, (name, way) in enumerate(ways) if got[name]]
                assert len(chosen) == 1
                index, name, way = chosen[0]
                score += (8 - index) if listed else 0
                if way.get("allocationMode") != "All":
                    assert got.pop(name) == way.get("count", 1)
                else:
                    got.pop(name)
            assert not +got
        assert outcome.score == score


@settings(max_examples=100, deadline=None)
@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_objects_says_nothing(seed: int, rng: Random) -> None:
    asked = question(seed)
    shuffled = list(asked.objects)
    rng.shuffle(shuffled)
    assert answers(asked, shuffled) == answers(asked)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_saved_snapshot_answers_the_same_and_nothing_is_changed(seed: int) -> None:
    asked = question(seed)
    before = copy.deepcopy(asked.objects)
    snapshot = snapshot_of(asked.objects, version=VERSION)
    saved = dumps(snapshot)
    loaded = loads(saved)
    assert loaded == snapshot
    assert dumps(loaded) == saved
    for node in asked.of("Node"):
        name = node["metadata"]["name"]
        assert Allocator(loaded).examine(name, asked.claims) == Allocator(snapshot).examine(name, asked.claims)
    assert asked.objects == before


@settings(max_examples=100, deadline=None)
@given(seeds, st.randoms(use_true_random=False))
def test_a_device_that_is_not_taken_does_not_matter(seed: int, rng: Random) -> None:
    asked = question(seed)
    if "All" in str(asked.claims):  # a tainted device keeps All from what it gets without it
        return
    allocator = Allocator(snapshot_of(asked.objects, version=VERSION))
    holders = {
        (one["driver"], one["pool"], one["device"])
        for claim in asked.of("ResourceClaim")
        for one in sequence(at(claim, "status", "allocation", "devices", "results"))
    }
    for node in asked.of("Node"):
        name = node["metadata"]["name"]
        examination = allocator.examine(name, asked.claims)
        if examination.outcome.kind != "allocated":
            continue
        used = {(one.driver, one.pool) for one in examination.pools if one.state == "used"}
        needed = holders.union(results(examination.outcome))
        objects = copy.deepcopy(list(asked.objects))
        spare = [
            (devices, device)
            for one in objects
            if one["kind"] == "ResourceSlice" and (one["spec"]["driver"], one["spec"]["pool"]["name"]) in used
            for devices in [one["spec"].get("devices", [])]
            for device in devices
            if (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]) not in needed
            and "bindingConditions" not in device
        ]
        if spare:
            devices, device = rng.choice(spare)
            devices.remove(device)
            assert answers(asked, objects)[name] == examination.outcome


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_what_is_given_fits(seed: int) -> None:
    """Every device that is given passes every check of the alternative that it is given to, by itself."""
    asked = question(seed)
    allocator = Allocator(snapshot_of(asked.objects, version=VERSION))
    for node in asked.of("Node"):
        examination = allocator.examine(node["metadata"]["name"], asked.claims)
        checks = {
            (
                one.claim,
                f"{one.request}/{one.alternative}".rstrip("/"),
                device.driver,
                device.pool,
                device.device,
            ): device
            for one in examination.requests
            for device in one.devices
        }
        for index, claim in enumerate(examination.outcome.claims):
            for one in claim.results:
                device = checks[index, one.request, one.driver, one.pool, one.device]
                assert (device.check, device.matches) == ("", True)
                assert device.given
