"""Saved states: the same bytes for the same objects, nothing personal in them, and the same answers from them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocation import parts
from allocation.parts import asking, gpu, node, pod, resource_slice, state
from dra_gate.allocation.explain import Explainer
from dra_gate.allocation.explanation import as_json
from dra_gate.allocation.snapshot import Snapshot, SnapshotError
from dra_gate.allocation.state import State, digest_of, dumps, loads, state_of
from dra_gate.allocation.what_if import forecasts
from dra_gate.kube.raw import Object

SECRETS = ("s3cr3t", "hunter2", "secret-project", "person@example.com", "jane.doe")
TAINT = {"key": "example.com/unhealthy", "effect": "NoSchedule"}


def test_nothing_personal_or_secret_is_in_it() -> None:
    raw = [node("n1"), *asking("p"), pod("plain", entries={}, on="n1")]
    assert all(secret in json.dumps(raw) for secret in SECRETS)
    kept = dumps(state(raw)).decode()
    assert not [secret for secret in SECRETS if secret in kept]


def test_what_takes_nothing_up_is_left_out_and_load_is_kept_bare() -> None:
    ended = pod("ended", entries={}, on="n1")
    ended["status"]["phase"] = "Succeeded"
    bare = pod("plain", entries={}, on="n1", nodeSelector={"team": "blue"})
    bare["metadata"]["labels"] = {"person": "somebody"}
    kept = state(node("n1"), ended, pod("pending", entries={}), bare)
    assert [one["metadata"]["name"] for one in kept.snapshot.pods] == ["plain"]
    assert b"somebody" not in dumps(kept)
    assert b"blue" not in dumps(kept)


def test_one_namespace_keeps_what_others_take_up() -> None:
    raw = [
        node("n1"),
        resource_slice("n1", gpu("g0")),
        *asking("a", namespace="lilac", on="n1", given=[("gpu/h100", "n1", "g0")]),
        *asking("waiting", namespace="lilac"),
        *asking("p"),
    ]
    whole, part = state(raw), state(raw, namespace="research")
    assert {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in part.snapshot.pods} == {
        ("lilac", "a"),
        ("research", "p"),
    }
    assert (
        b"training"
        not in json.dumps([c for c in part.snapshot.claims if c["metadata"]["namespace"] == "lilac"]).encode()
    )
    assert answers(part, [("research", "p")]) == answers(whole, [("research", "p")])


def test_it_reads_what_it_wrote_and_knows_when_it_was_changed() -> None:
    written = dumps(state(node("n1"), resource_slice("n1", gpu("g0")), *asking("p")))
    assert dumps(loads(written)) == written
    assert json.loads(written)["digest"] == digest_of(loads(written))
    assert dumps(loads(json.dumps(json.loads(written), indent=1).encode())) == written
    with pytest.raises(SnapshotError, match="changed"):
        loads(written.replace(b'"g0"', b'"g1"'))
    with pytest.raises(SnapshotError):
        loads(b"[]")


def test_the_order_of_objects_does_not_change_a_byte() -> None:
    raw = [node("n1"), node("n2"), resource_slice("n1", gpu("g0")), *asking("p"), *asking("q")]
    assert dumps(state(raw)) == dumps(state(list(reversed(raw))))


def answers(of: State, names: Iterable[tuple[str, str]]) -> list[Any]:
    explainer = Explainer(of, used={"research": 3})
    return [as_json(explainer.pod(*name, devices=True)) for name in names]


def untouched(raw: list[Object]) -> State:
    """The state with every object as it is."""

    def of(kind: str) -> tuple[Object, ...]:
        found = [one for one in raw if one["kind"] == kind]
        return tuple(sorted(found, key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"])))

    kinds = ("Node", "ResourceSlice", "DeviceClass", "DeviceTaintRule", "ResourceClaim", "Pod")
    snapshot = Snapshot("v1.37.2", {}, *map(of, kinds))
    files = {parts.POLICY_SET.digest: {"policies.yaml": parts.POLICIES}}
    return State(snapshot, templates=of("ResourceClaimTemplate"), policies=files, active=parts.POLICY_SET.digest)


def world(rng: random.Random) -> list[Object]:
    """A few nodes with devices of all sorts, Pods that have some and Pods that wait."""
    objects: list[Object] = [parts.device_class()]
    free: list[tuple[str, str, str]] = []
    for name in ("n1", "n2", "n3"):
        spec = rng.choice([{}, {}, {"unschedulable": True}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}])
        objects.append(node(name, cpu=rng.choice(["2", "64"]), labels={"pool": rng.choice(["a", "b"])}, **spec))
        devices = []
        for number in range(rng.randint(0, 3)):
            model = rng.choice(list(parts.PRODUCTS))
            more = rng.choice([{}, {}, {"memory": "8Gi"}, {"taints": [TAINT]}, {"driver": "470.1.0"}])
            devices.append(gpu(f"g{number}", model, root=rng.choice("xy"), **more))
            free.append((f"gpu/{model}", name, f"g{number}"))
        objects.append(resource_slice(name, *devices, count=rng.choice([1, 1, 1, 2])))
    rng.shuffle(free)
    for number in range(rng.randint(1, 5)):
        given = [free.pop()] if free and rng.random() < 0.5 else []
        more: dict[str, Any] = {"on": given[0][1]} if given else {}
        if rng.random() < 0.3:
            more["nodeSelector"] = {"pool": "a"}
        made = asking(
            f"p{number}",
            1 if given else rng.randint(1, 2),
            given=given,
            namespace=rng.choice(["research", "lilac"]),
            cpu=rng.choice(["1", "4"]),
            at=f"2026-11-30T10:00:0{number}Z",
            **more,
        )
        objects += made[: rng.choice([2, 2, 2, 1])]
    objects.append(pod("load", entries={}, on="n1", cpu="1"))
    return objects


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_left_out_changes_no_answer(rng: random.Random) -> None:
    raw = world(rng)
    names = [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in raw if one["kind"] == "Pod"]
    asked = [name for name in names if name[1] != "load"]
    files = {parts.POLICY_SET.digest: {"policies.yaml": parts.POLICIES}}
    kept = loads(dumps(state_of(raw, version="v1.37.2", policies=files, active=parts.POLICY_SET.digest)))
    assert answers(kept, asked) == answers(untouched(raw), asked)
    assert forecasts(kept) == forecasts(untouched(raw))


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_waits_and_could_be_placed_is_what_the_forecast_places_first(rng: random.Random) -> None:
    """Explanation and forecast agree: a candidate is possible for the first Pod exactly when it gets something."""
    found = state(world(rng))
    explainer = Explainer(found)
    for pod_ in explainer.waiting()[:1]:
        explanation = explainer.of(pod_)
        (forecast,) = forecasts(found, [(explanation.namespace, explanation.pod)])
        possible = any(
            one.possible for claim in explanation.claims for request in claim.requests for one in request.candidates
        )
        assert possible == bool(forecast.node)
