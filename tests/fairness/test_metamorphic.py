"""What may be changed about the question without changing the answer, and what cheats gain: nothing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.checker import Checker, Violation
from dra_gate.fairness.events import Capacity, Granted, Held, Kind, Left, Settled, TenantRules, Used
from dra_gate.fairness.log import Recorder, replay
from fairness import scenes
from fairness.scene import config, models_of, pod, policy
from fairness.simulate import HOUR, simulate

MODELS = ("h100", "a100", "l40s")
ORDERS = {"".join(name[0] for name in order): order for order in permutations(MODELS)}  # "hal" -> h100, a100, l40s
REQUESTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([1, 1, 2, 4]), st.sampled_from(sorted(ORDERS))),
    min_size=2,
    max_size=24,
)
WEIGHTS = st.fixed_dictionaries({name: st.integers(1, 4) for name in "abcd"})
LONG = 1_000 * HOUR


def _free(**free: int) -> Capacity:
    """Each model has one home of sixteen, so much of it free."""
    homes = {model: free.get(model, 0) for model in MODELS}
    return Capacity(kinds=tuple(Kind(name, 0, 16, ((n, 1),) if n else (), ((16, 1),)) for name, n in homes.items()))


class Stage:
    """An arbiter to which devices come one at a time; what is granted is held for ever. The checker reads along."""

    def __init__(self, tenants: dict[str, TenantRules], waiting: list[Held], orders: dict[str, str] | None = None):
        self.went: list[Granted] = []
        self.violations: list[Violation] = []
        self.got: dict[str, Counter[str]] = {}
        checker = Checker()
        self.recorder = Recorder(Arbiter(), lambda line: self.violations.extend(checker.feed(line)))
        self.recorder.state()
        rules = {f"{name}@1": policy(" ".join(order)) for name, order in ORDERS.items()}
        self.recorder.take(config(tenants, rules | {"h@1": policy("h100")}))
        for held in waiting:
            self.recorder.take(held)

    def step(self, now: int, **free: int) -> None:
        """So much is free now."""
        self.recorder.take(_free(**free))
        decisions = self.recorder.decide(now)
        self.went += [one for one in decisions if isinstance(one, Granted)]
        self.recorder.take(_free())
        for one in decisions:
            if isinstance(one, Granted):
                held = self.got.setdefault(one.tenant, Counter())
                held[one.model] += one.devices
                self.recorder.take(Settled(uid=one.uid, model=one.model))
                self.recorder.take(Used(tenant=one.tenant, devices=sum(held.values()), models=dict(held)))

    @property
    def order(self) -> list[str]:
        """Pods in the order of their grants."""
        return [one.uid for one in self.went]


def _tenants(weights: dict[str, int]) -> dict[str, TenantRules]:
    return {name: TenantRules(weight=weight, wants=MODELS, reserve_after=LONG) for name, weight in weights.items()}


def _held(requests: list[tuple[str, int, str]]) -> list[Held]:
    return [pod(f"p{n:02}", who, size, at=n, policy=f"{ref}@1") for n, (who, size, ref) in enumerate(requests)]


@given(REQUESTS, WEIGHTS, st.randoms())
@settings(deadline=None, max_examples=40)
def test_the_order_of_candidates_is_no_sort_key(requests, weights, chance) -> None:  # type: ignore[no-untyped-def]
    """With one model free, everybody's candidates in another order change nothing."""
    other = [(who, size, chance.choice(sorted(ORDERS))) for who, size, _ in requests]
    stages = [Stage(_tenants(weights), _held(one)) for one in (requests, other)]
    for now in range(100, 140):
        for stage in stages:
            stage.step(now, a100=4)
    assert stages[0].order == stages[1].order
    assert len(stages[0].order) == len(requests)
    assert stages[0].violations == stages[1].violations == []


@given(REQUESTS, WEIGHTS, st.data())
@settings(deadline=None, max_examples=40)
def test_a_lower_candidate_delays_nothing(requests, weights, data) -> None:  # type: ignore[no-untyped-def]
    """One request has only H100 as a candidate, or others below it too."""
    chosen = data.draw(st.integers(0, len(requests) - 1))
    went = []
    for ref in ("h", "hal"):
        stage = Stage(
            _tenants(weights), _held([(w, s, ref if n == chosen else r) for n, (w, s, r) in enumerate(requests)])
        )
        steps = {}
        for now in range(100, 150):
            stage.step(now, h100=4, a100=4 if now % 3 else 0, l40s=4 if now % 5 == 0 else 0)
            steps |= {uid: now for uid in stage.order if uid not in steps}
        assert stage.violations == []
        went.append(steps[f"p{chosen:02}"])
    assert went[1] <= went[0]


@given(REQUESTS, WEIGHTS, st.permutations("abcd"))
@settings(deadline=None, max_examples=40)
def test_names_of_tenants_decide_nothing(requests, weights, names) -> None:  # type: ignore[no-untyped-def]
    other = dict(zip("abcd", names, strict=True))
    renamed = [(other[who], size, ref) for who, size, ref in requests]
    stages = [
        Stage(_tenants(weights), _held(requests)),
        Stage(_tenants({other[name]: weight for name, weight in weights.items()}), _held(renamed)),
    ]
    for now in range(100, 120):
        for stage in stages:
            stage.step(now, h100=3, a100=4)
    assert stages[0].order == stages[1].order


@given(WEIGHTS, st.integers(4, 10))
@settings(deadline=None, max_examples=15)
def test_splitting_requests_gains_no_more_than_one_of_each(weights, pairs) -> None:  # type: ignore[no-untyped-def]
    """Tenant a asks for twos, or for twice as many ones: it never has more by it than the bound allows a single time,
    its own largest request and one of the others by weight."""
    others = [(who, 1, "hal") for _ in range(40) for who in "bcd"]
    served = []
    for mine in ([("a", 2, "hal")] * pairs, [("a", 1, "hal")] * (2 * pairs)):
        stage, history = Stage(_tenants(weights), _held([*others, *mine])), []
        for now in range(1000, 1008):  # sixteen at a time: whether a two finds room is another question
            stage.step(now, h100=16)
            history.append(stage.got.get("a", Counter())["h100"])
        served.append(history)
        assert stage.violations == []
    most = 2 + weights["a"] / min(weights[name] for name in "bcd")
    assert max(ones - twos for twos, ones in zip(*served, strict=True)) <= most


@pytest.mark.parametrize("scene", [scenes.flood(3, 150), scenes.chaos(4, pods=150, hours=1)])
def test_a_replay_decides_the_same(scene) -> None:  # type: ignore[no-untyped-def]
    run = simulate(scene, keep=True)
    assert run.fair is not None
    starts = [n for n, line in enumerate(run.fair.lines) if b'"kind":"state"' in line] + [len(run.fair.lines)]
    for begin, end in pairwise(starts):  # an arbiter that was restarted knows less
        assert list(replay(run.fair.lines[begin:end])) == []


# -- who tries to get more --------------------------------------------------------------------------------------------


def test_a_burst_is_not_before_those_who_come_after_it() -> None:
    requests = [("a", 1, "hal")] * 200
    stage = Stage(_tenants({"a": 1, "b": 1}), _held(requests))
    stage.step(1000, h100=2)
    for number in range(6):
        stage.recorder.take(pod(f"late{number}", "b", 1, at=2000 + number, policy="hal@1"))
    for now in range(3000, 3012):
        stage.step(now, h100=1)
    assert [one.tenant for one in stage.went[2:]].count("b") == 6
    assert stage.violations == []


def test_who_makes_its_pods_anew_gains_nothing() -> None:
    """Neither by being younger nor by saying that it is older: the place in the queue is the tenant's."""
    results = []
    for again in (False, True):
        stage = Stage(_tenants({"a": 1, "b": 1}), _held([("a", 1, "hal"), ("b", 1, "hal")] * 20))
        for now in range(1000, 1030):
            if again:
                waiting = [
                    held for held in _held([("a", 1, "hal"), ("b", 1, "hal")] * 20) if held.uid not in stage.order
                ]
                for held in [one for one in waiting if one.tenant == "a"]:
                    stage.recorder.take(Left(uid=held.uid))
                    stage.recorder.take(replace(held, queued=0 if now % 2 else now))
            stage.step(now, h100=1)
        assert stage.violations == []
        results.append(Counter(one.tenant for one in stage.went))
    assert abs(results[0]["a"] - results[1]["a"]) <= 1


def test_many_namespaces_are_one_tenant() -> None:
    requests = [("a", 1, "hal"), ("b", 1, "hal")] * 12
    one = Stage(_tenants({"a": 1, "b": 1}), _held(requests))
    many = Stage(
        _tenants({"a": 1, "b": 1}), [replace(held, pod=f"ns{n}/{held.uid}") for n, held in enumerate(_held(requests))]
    )
    for now in range(100, 112):
        one.step(now, h100=2)
        many.step(now, h100=2)
    assert one.order == many.order


def test_more_than_the_share_waits_for_all_below_theirs_and_then_for_its_age() -> None:
    tenants = {
        "big": TenantRules(wants=MODELS, reserve_after=500),
        "a": TenantRules(weight=3, wants=MODELS, reserve_after=LONG),
    }
    stage = Stage(tenants, [pod("want12", "big", 12, at=0, policy="h@1"), *_held([("a", 1, "hal")] * 40)])
    stage.step(100, h100=4)
    assert {one.tenant for one in stage.went} == {"a"}
    stage.step(600, h100=8)  # old enough to be kept room above the share, not below
    assert stage.got["a"]["h100"] == 12
    stage.step(700, h100=11)
    assert "want12" not in stage.order
    assert stage.got["a"]["h100"] == 12  # what is left is kept
    stage.step(800, h100=12)
    assert "want12" in stage.order
    assert stage.violations == []


def test_a_weight_that_is_edited_back_and_forth_breaks_no_promise() -> None:
    stage = Stage(_tenants({"a": 1, "b": 1, "c": 2}), _held([(who, 1, "hal") for _ in range(60) for who in "abc"]))
    for now in range(1000, 1080):
        if now % 7 == 0:
            rules = {f"{name}@1": policy(" ".join(order)) for name, order in ORDERS.items()}
            stage.recorder.take(config(_tenants({"a": 16 if now % 2 else 1, "b": 1, "c": 2}), rules))
        stage.step(now, h100=1, a100=1)
    assert stage.violations == []
    got = Counter(one.tenant for one in stage.went)
    assert got["b"] >= 160 // 24  # at least what its weight gives beside the largest of the others


def test_a_cap_lowered_below_what_is_held_stops_grants_and_nothing_else() -> None:
    stage = Stage(_tenants({"a": 1, "b": 1}), _held([("a", 1, "hal"), ("b", 1, "hal")] * 20))
    stage.step(100, h100=8)
    rules = {f"{name}@1": policy(" ".join(order)) for name, order in ORDERS.items()}
    lowered = _tenants({"a": 1, "b": 1}) | {"a": TenantRules(devices=2, wants=MODELS, reserve_after=LONG)}
    stage.recorder.take(config(lowered, rules))
    stage.step(200, h100=4)
    assert {one.tenant for one in stage.went[8:]} == {"b"}
    stage.recorder.take(Used(tenant="a", devices=1, models={"h100": 1}))
    stage.step(300, h100=4)
    assert Counter(one.tenant for one in stage.went[12:])["a"] == 1
    assert models_of(list(stage.went))["p00"] == "h100"
    assert stage.violations == []
