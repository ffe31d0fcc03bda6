"""What the arbiter promises, rule by rule (docs/decisions/0033-arbiter.md)."""

from __future__ import annotations

import gc

from dra_gate.fairness.arbiter import WIDEN_AFTER, Arbiter
from dra_gate.fairness.checker import check
from dra_gate.fairness.events import (
    NEVER,
    SCALE,
    Account,
    Capacity,
    Granted,
    Kind,
    Left,
    Opened,
    Revised,
    Settled,
    Tags,
    TenantRules,
    Used,
)
from dra_gate.fairness.log import Recorder
from fairness.scene import capacity, config, give, models_of, pod, policy

ONE = {"t": TenantRules(wants=("h100", "a100", "l40s"))}


def _world(tenants: dict[str, TenantRules] | None = None, **homes: list[int]) -> Arbiter:
    arbiter = Arbiter()
    arbiter.take(config(tenants or ONE))
    arbiter.take(capacity(**homes))
    return arbiter


def _weighted(**weights: int) -> dict[str, TenantRules]:
    return {name: TenantRules(weight=weight, wants=("h100", "a100", "l40s")) for name, weight in weights.items()}


def test_nothing_is_decided_before_there_are_rules_and_devices() -> None:
    arbiter = Arbiter()
    arbiter.take(pod("a", "t"))
    assert arbiter.decide(0) == []
    arbiter.take(config(ONE))
    assert arbiter.decide(0) == []


def test_a_job_of_twenty_with_four_h100_in_its_quota() -> None:
    """Issue 7, Shown by 2: four get an H100, sixteen an A100, at once."""
    arbiter = _world({"t": TenantRules(models={"h100": 4}, wants=("h100", "a100"))}, h100=[8], a100=[8, 8, 8])
    for number in range(20):
        arbiter.take(pod(f"p{number:02}", "t", at=number))
    got = models_of(arbiter.decide(100))
    assert [got[f"p{number:02}"] for number in range(20)] == ["h100"] * 4 + ["a100"] * 16


def test_the_cap_in_devices_counts_what_is_used() -> None:
    arbiter = _world({"t": TenantRules(devices=16, wants=("a100",))}, a100=[8] * 4)
    arbiter.take(Used(tenant="t", devices=8, models={"a100": 8}))
    for number in range(200):
        arbiter.take(pod(f"p{number:03}", "t", at=number))
    assert len(models_of(arbiter.decide(1000))) == 8
    assert arbiter.account("t").devices == 16
    assert arbiter.decide(2000) == []
    why = arbiter.why("p100", 2000)
    assert why is not None
    assert why.reason == "Quota"


def test_a_tenant_without_a_queue_waits_only_for_its_cap() -> None:
    arbiter = _world({"t": TenantRules(weight=0, devices=3)}, h100=[8])
    for number in range(5):
        arbiter.take(pod(f"p{number}", "t", claims=(), fixed=1, fixed_models={"h100": 1, "a100": 1}, at=number))
    granted = [one for one in arbiter.decide(10) if isinstance(one, Granted)]
    assert [(one.uid, one.model, one.candidates) for one in granted] == [(f"p{n}", "", ()) for n in range(3)]
    assert granted[-1].after == Account(3, {"a100": 3, "h100": 3})


def test_no_more_open_grants_than_free_devices() -> None:
    arbiter = _world(h100=[4], a100=[])
    for number in range(10):
        arbiter.take(pod(f"p{number}", "t", at=number))
    assert len(models_of(arbiter.decide(100))) == 4
    assert arbiter.decide(200) == []
    arbiter.take(capacity(h100=[3], a100=[]))
    give(arbiter, "p0", "t", "h100", 1, {"h100": 1})
    assert arbiter.decide(300) == []  # one is allocated: one less is free, and one less is spoken for
    arbiter.take(Settled(uid="p1"))
    assert list(models_of(arbiter.decide(400))) == ["p4"]


def test_a_request_for_many_waits_for_a_node_that_has_them_whatever_others_take() -> None:
    arbiter = _world(h100=[8, 8])
    arbiter.take(pod("small", "t", 1))
    assert list(models_of(arbiter.decide(1))) == ["small"]
    arbiter.take(pod("big1", "t", 8, at=2))
    arbiter.take(pod("big2", "t", 8, at=3))
    assert list(models_of(arbiter.decide(4))) == ["big1"]  # the small one may land on either


def test_a_pod_of_two_claims_goes_when_one_model_has_enough_for_both() -> None:
    arbiter = _world(h100=[1], a100=[1, 2])
    arbiter.take(pod("p", "t", (1, 1)))
    assert models_of(arbiter.decide(1)) == {"p": "a100"}
    mixed = _world(h100=[1], a100=[1])
    mixed.take(pod("p", "t", (1, 1)))
    assert mixed.decide(1) == []


def test_below_its_share_before_above() -> None:
    arbiter = _world(_weighted(a=1, b=1), h100=[8])
    for number in range(8):
        arbiter.take(pod(f"a{number}", "a", at=number))
    arbiter.take(Used(tenant="a", devices=4, models={"h100": 4}))
    for number in range(4):
        arbiter.take(pod(f"b{number}", "b", at=100 + number))
    granted = [one for one in arbiter.decide(200, limit=6) if isinstance(one, Granted)]
    assert [(one.tenant, one.tier) for one in granted] == [("b", 0)] * 4 + [("a", 1)] * 2


def test_by_weight_among_equals() -> None:
    arbiter = _world(_weighted(a=1, b=3), h100=[8] * 5)
    for number in range(40):
        arbiter.take(pod(f"a{number:02}", "a", at=number))
        arbiter.take(pod(f"b{number:02}", "b", at=number))
    granted = [one for one in arbiter.decide(100, limit=20) if isinstance(one, Granted)]
    assert [one.tenant for one in granted].count("b") == 15
    assert granted[-1].finish % (SCALE // 3) == 0


def test_an_old_request_is_kept_room() -> None:
    rules = {name: TenantRules(wants=("h100",), reserve_after=1000) for name in ("big", "small")}
    arbiter = _world(rules)
    arbiter.take(Capacity(kinds=(Kind("h100", 0, 16, ((4, 2),), ((8, 2),)),)))
    arbiter.take(pod("want8", "big", 8, at=0))
    arbiter.take(pod("s1", "small", 1, at=500))
    assert list(models_of(arbiter.decide(900))) == ["s1"]  # it is young: others may go before it
    arbiter.take(pod("s2", "small", 1, at=600))
    assert arbiter.decide(1001) == []  # now what there is is kept for it
    why = arbiter.why("s2", 1001)
    assert why is not None
    assert why.reason == "Reserved"
    arbiter.take(Settled(uid="s1"))
    arbiter.take(Capacity(kinds=(Kind("h100", 0, 16, ((4, 1), (8, 1)), ((8, 2),)),)))
    got = models_of(arbiter.decide(1100))
    assert list(got) == ["want8", "s2"]


def test_more_than_any_node_has_is_told_as_that() -> None:
    arbiter = _world(h100=[4, 4], a100=[2])
    arbiter.take(pod("p", "t", 8))
    assert arbiter.decide(10) == []
    why = arbiter.why("p", 10)
    assert why is not None
    assert why.reason == "Unsatisfiable"


def test_fallback_after_a_while_and_never() -> None:
    for fallback, at_first, later in ((0, {"p": "a100"}, {}), (60_000, {}, {"p": "a100"}), (NEVER, {}, {})):
        arbiter = Arbiter()
        arbiter.take(config(ONE, {"p@1": policy("h100 a100", fallback)}))
        arbiter.take(capacity(h100=[], a100=[8]))
        arbiter.take(pod("p", "t", at=1_000))
        assert models_of(arbiter.decide(2_000)) == at_first
        if fallback > 0:
            assert arbiter.next_time() == 61_000
        assert models_of(arbiter.decide(61_000)) == later


def test_what_is_left_over_is_added_and_costs_nothing_unless_taken() -> None:
    arbiter = _world(h100=[8], a100=[8], l40s=[])
    arbiter.take(pod("p", "t"))
    granted, revised = arbiter.decide(1)
    assert isinstance(granted, Granted)
    assert granted.candidates == ("h100",)
    assert revised == Revised(at=1, uid="p", candidates=("h100", "a100"), reason="leftover")
    assert arbiter.account("t") == Account(1, {"a100": 1, "h100": 1})
    assert set(arbiter.tags("t")) == {"h100"}
    give(arbiter, "p", "t", "a100", 1, {"a100": 1})
    assert arbiter.tags("t") == {"a100": (0, SCALE), "h100": (0, 0)}
    assert arbiter.account("t") == Account(1, {"a100": 1})


def test_a_claim_whose_device_fell_ill_gets_another_candidate() -> None:
    arbiter = _world(h100=[1], a100=[])
    arbiter.take(pod("p", "t"))
    assert models_of(arbiter.decide(1)) == {"p": "h100"}
    arbiter.take(capacity(h100=[], a100=[1]))
    assert arbiter.decide(2) == [Revised(at=2, uid="p", candidates=("a100",), reason="impossible")]
    assert arbiter.decide(3) == []


def test_an_open_grant_gets_more_when_it_has_waited() -> None:
    arbiter = _world(h100=[1], a100=[])
    arbiter.take(pod("p", "t"))
    arbiter.decide(1)
    arbiter.take(capacity(h100=[1], a100=[1]))
    assert arbiter.decide(1000) == []
    assert arbiter.next_time() == 1 + WIDEN_AFTER
    assert arbiter.decide(1 + WIDEN_AFTER) == [
        Revised(at=1 + WIDEN_AFTER, uid="p", candidates=("h100", "a100"), reason="fallback")
    ]


def test_a_group_goes_whole_with_one_model_or_not_at_all() -> None:
    arbiter = _world(h100=[2], a100=[2, 2])
    for number in range(2):
        arbiter.take(pod(f"g{number}", "t", group="g", members=3))
    assert arbiter.decide(1) == []
    why = arbiter.why("g0", 1)
    assert why is not None
    assert why.reason == "GroupIncomplete"
    arbiter.take(pod("g2", "t", group="g", members=3))
    decisions = arbiter.decide(2)
    assert models_of(decisions) == {"g0": "a100", "g1": "a100", "g2": "a100"}
    assert not any(isinstance(one, Revised) for one in decisions)


def test_a_member_that_leaves_breaks_the_group() -> None:
    arbiter = _world(h100=[8])
    for number in range(2):
        arbiter.take(pod(f"g{number}", "t", group="g", members=2))
    arbiter.take(Left(uid="g0"))
    assert arbiter.decide(1) == []
    arbiter.take(pod("g9", "t", group="g", members=2))
    assert set(models_of(arbiter.decide(2))) == {"g1", "g9"}


def test_one_that_joins_a_group_gets_its_model_or_waits() -> None:
    """At once, whatever its fallback; and its claims never get more."""
    arbiter = Arbiter()
    arbiter.take(config(ONE, {"p@1": policy("h100 a100 l40s", NEVER)}))
    arbiter.take(capacity(h100=[4], a100=[1], l40s=[4]))
    for number in range(2):
        arbiter.take(pod(f"g{number}", "t", only="a100", at=number))
    arbiter.take(pod("other", "t", at=5))
    decisions = arbiter.decide(10)
    assert models_of(decisions) == {"g0": "a100", "other": "h100"}
    why = arbiter.why("g1", 10)
    assert why is not None
    assert (why.reason, why.text) == ("NoDevices", "a100: it asks for 1, 1 are free and 1 of them granted")
    assert arbiter.decide(20 + WIDEN_AFTER) == []
    arbiter.take(capacity(h100=[4], a100=[0], l40s=[4]))
    assert arbiter.decide(30 + WIDEN_AFTER) == []  # what g0 was granted is gone, and it may have nothing else
    arbiter.take(pod("g1", "t", only="tpu", at=1))
    why = arbiter.why("g1", 10)
    assert why is not None
    assert (why.reason, why.text) == ("Unsatisfiable", "policy p@1 has no candidate tpu, which its group has")
    arbiter.take(pod("g1", "t", at=1))  # the others are gone
    assert models_of(arbiter.decide(40 + WIDEN_AFTER)) == {"g1": "h100"}


def test_a_group_that_joins_others_gets_their_model() -> None:
    arbiter = _world(h100=[2], a100=[2])
    for number in range(2):
        arbiter.take(pod(f"g{number}", "t", group="g", members=2, only="a100"))
    assert models_of(arbiter.decide(1)) == {"g0": "a100", "g1": "a100"}


def test_a_reserve_is_never_lent() -> None:
    rules = {
        "a": TenantRules(wants=("h100",)),
        "b": TenantRules(wants=("h100",), reserve={"h100": 2}),
    }
    arbiter = _world(rules, h100=[8])
    for number in range(8):
        arbiter.take(pod(f"a{number}", "a", at=number))
    assert len(models_of(arbiter.decide(10))) == 6
    why = arbiter.why("a7", 10)
    assert why is not None
    assert why.reason == "Share"
    arbiter.take(pod("b0", "b", at=20))
    assert list(models_of(arbiter.decide(30))) == ["b0"]


def test_a_borrower_with_a_lease_is_told() -> None:
    rules = {"a": TenantRules(wants=("h100",), lease=3600), "b": TenantRules(wants=("h100",))}
    arbiter = _world(rules, h100=[2])
    for number in range(2):
        arbiter.take(pod(f"a{number}", "a", at=number))
    granted = [one for one in arbiter.decide(10) if isinstance(one, Granted)]
    assert [(one.tier, one.lease) for one in granted] == [(0, 0), (1, 3600)]


def test_within_its_share_elsewhere_it_goes_before_who_borrows() -> None:
    """x borrows an H100 or, where it gets none, has its share of A100; z would borrow an A100 and has to wait for x."""
    rules = {name: TenantRules(wants=("h100", "a100")) for name in ("w", "x", "z")}
    arbiter = Arbiter()
    arbiter.take(config(rules, {"p@1": policy("h100 a100"), "q@1": policy("a100")}))
    arbiter.take(capacity(h100=[1], a100=[3]))
    arbiter.take(Used(tenant="z", devices=1, models={"a100": 1}))
    arbiter.take(pod("w", "w", at=0))
    arbiter.take(pod("x", "x", at=1))
    for number in range(3):
        arbiter.take(pod(f"z{number}", "z", at=2, policy="q@1"))
    granted = [(one.uid, one.model, one.tier) for one in arbiter.decide(10) if isinstance(one, Granted)]
    assert granted == [("w", "h100", 1), ("x", "a100", 0), ("z0", "a100", 1), ("z1", "a100", 1)]


def test_who_comes_back_goes_on_where_it_stood() -> None:
    arbiter = _world(_weighted(a=1, b=1), h100=[8, 8])
    arbiter.take(Tags(tenant="a", tags={"h100": (4 * SCALE, 5 * SCALE)}))
    arbiter.take(Opened(request=pod("old", "a", at=0), model="h100", candidates=("h100",), at=5))
    assert arbiter.account("a") == Account(1, {"h100": 1})
    for number in range(3):
        arbiter.take(pod(f"a{number}", "a", at=10))
        arbiter.take(pod(f"b{number}", "b", at=20))
    granted = [one for one in arbiter.decide(30) if isinstance(one, Granted)]
    assert [one.tenant for one in granted[:3]] == ["b", "a", "b"]
    assert granted[0].start == 4 * SCALE


def test_a_tenants_small_requests_do_not_use_up_its_quota_before_an_old_large_one() -> None:
    for weight in (0, 1):
        arbiter = _world({"t": TenantRules(weight=weight, devices=8, wants=("h100",), reserve_after=100)}, h100=[8, 8])
        arbiter.take(Used(tenant="t", devices=4, models={"h100": 4}))
        claims = {"claims": (), "fixed_models": {"h100": 8}} if not weight else {}
        arbiter.take(pod("big", "t", at=0, **({"fixed": 8} | claims if not weight else {"claims": 8})))
        small = {"claims": (), "fixed": 1, "fixed_models": {"h100": 1}} if not weight else {}
        arbiter.take(pod("s0", "t", at=50, **small))
        assert list(models_of(arbiter.decide(60))) == ["s0"]
        arbiter.take(pod("s1", "t", at=70, **small))
        assert arbiter.decide(150) == []
        why = arbiter.why("s1", 150)
        assert why is not None
        assert why.reason == "Reserved"
        arbiter.take(Settled(uid="s0"))
        arbiter.take(Used(tenant="t", devices=0))
        assert list(models_of(arbiter.decide(200))) == ["big"]


def test_there_may_be_more_than_the_limit() -> None:
    arbiter = _world(h100=[8])
    for number in range(4):
        arbiter.take(pod(f"p{number}", "t", at=number))
    assert len(models_of(arbiter.decide(10, limit=3))) == 3
    assert arbiter.next_time() == 10


def test_the_last_device_of_a_model_goes_between_grant_and_allocation() -> None:
    """No kind of that model is left; the grant gets what there is instead, at once."""
    arbiter = _world(h100=[1], a100=[1])
    for uid in ("first", "second"):
        arbiter.take(pod(uid, "t"))
    assert models_of(arbiter.decide(0)) == {"first": "h100", "second": "a100"}
    arbiter.take(capacity(a100=[1]))
    assert arbiter.decide(1) == []
    arbiter.take(Settled(uid="second"))
    (revised,) = arbiter.decide(2)
    assert isinstance(revised, Revised)
    assert (revised.uid, revised.candidates, revised.reason) == ("first", ("a100",), "impossible")


def test_an_old_request_whose_second_choice_goes_is_kept_its_first() -> None:
    arbiter = Arbiter()
    tenants = {
        "old": TenantRules(wants=(), reserve_after=1000),
        "young": TenantRules(wants=(), reserve_after=10**9),
        "below": TenantRules(wants=("a100",)),
    }
    policies = {"p@1": policy("h100 a100"), "a@1": policy("a100"), "h@1": policy("h100")}
    arbiter.take(config(tenants, policies))
    kinds = (Kind("h100", 0, 8, ((2, 1),), ((8, 1),)), Kind("a100", 0, 4, ((4, 1),), ((4, 1),)))
    arbiter.take(Capacity(kinds=kinds))
    arbiter.take(pod("r", "old", 4, at=0))
    arbiter.take(pod("x", "below", 1, at=1900, policy="a@1"))
    arbiter.take(pod("y", "young", 1, at=1800, policy="h@1"))
    assert models_of(arbiter.decide(2000)) == {"x": "a100"}
    why = arbiter.why("y", 2000)
    assert why is not None
    assert why.reason == "Reserved"


def test_priority_counts_inside_a_tenant_whatever_is_asked_for_and_never_between_two() -> None:
    arbiter = _world(_weighted(a=1, b=1), h100=[4])
    arbiter.take(pod("a-small", "a", 1, at=0))
    arbiter.take(pod("a-urgent", "a", 2, at=10, priority=1000))
    arbiter.take(pod("b", "b", 1, at=5))
    granted = [one.uid for one in arbiter.decide(20, limit=1) if isinstance(one, Granted)]
    assert granted == ["a-urgent"]
    arbiter.take(pod("a-more", "a", 1, at=30, priority=2000))
    assert list(models_of(arbiter.decide(40, limit=1))) == ["b"]


def test_ones_do_not_keep_a_two_from_a_node_that_has_room_for_all() -> None:
    arbiter = _world(_weighted(a=1, b=1), h100=[16])
    for number in range(12):
        arbiter.take(pod(f"b{number:02}", "b", 1, at=number))
    for number in range(4):
        arbiter.take(pod(f"a{number}", "a", 2, at=100 + number))
    granted = [one for one in arbiter.decide(200) if isinstance(one, Granted)]
    assert sum(one.devices for one in granted if one.tenant == "a") == 8
    assert sum(one.devices for one in granted) == 16


def test_a_pod_that_costs_nothing_takes_no_room_and_ends_no_pass() -> None:
    """Its template is of a set that is gone: nobody knows what it weighs."""
    lines: list[bytes] = []
    recorder = Recorder(Arbiter(), lines.append)
    recorder.state()
    for event in (config(ONE), capacity(h100=[1]), pod("nothing", "t", ()), pod("one", "t")):
        recorder.take(event)
    assert models_of(recorder.decide(0)) == {"nothing": "h100", "one": "h100"}
    assert list(check(lines)) == []


def test_a_group_under_several_policies_waits_for_one() -> None:
    """Half of it may have been made before another version became active: no model need suit all."""
    arbiter = Arbiter()
    arbiter.take(config(ONE, {"p@1": policy("h100 a100"), "p@2": policy("a100")}))
    arbiter.take(capacity(h100=[2], a100=[2]))
    arbiter.take(pod("a", "t", group="g", members=2))
    arbiter.take(pod("b", "t", group="g", members=2, policy="p@2"))
    assert arbiter.decide(0) == []
    why = arbiter.why("a", 0)
    assert why is not None
    assert (why.reason, why.text) == (
        "GroupIncomplete",
        "Pods of group g are of policies p@1, p@2; create them again under one",
    )
    arbiter.take(Left(uid="a"))
    arbiter.take(pod("c", "t", group="g", members=2, policy="p@2"))
    assert models_of(arbiter.decide(0)) == {"b": "a100", "c": "a100"}


def test_of_equal_priority_the_older_goes_whichever_was_told_first() -> None:
    """A replay from a State line knows the shapes of requests in another order."""
    said = pod("young", "t", 3, at=5, priority=1), pod("older", "t", 2, at=4, priority=1), pod("first", "t", 1)
    for told in (said, said[::-1]):
        arbiter = _world(h100=[8])
        for one in told:
            arbiter.take(one)
        assert next(iter(models_of(arbiter.decide(10)))) == "older"


def test_what_an_old_claim_may_still_get_is_charged_until_the_grant_settles() -> None:
    """The scheduler may have allocated the claim before it is replaced."""
    lines: list[bytes] = []
    recorder = Recorder(Arbiter(), lines.append)
    recorder.state()
    recorder.take(config({"t": TenantRules(wants=("h100", "a100"), models={"h100": 1})}, {"p@1": policy("h100 a100")}))
    for event in (capacity(h100=[1]), pod("first", "t")):
        recorder.take(event)
    recorder.decide(0)
    recorder.take(capacity(a100=[1]))
    (revised,) = recorder.decide(1)
    assert isinstance(revised, Revised)
    assert revised.candidates == ("a100",)
    recorder.take(capacity(h100=[1], a100=[1]))
    recorder.take(pod("second", "t"))
    again = Arbiter()
    again.take(recorder.arbiter.state())
    for arbiter in (recorder, again):
        assert arbiter.decide(2) == [], "the only h100 that the quota allows may be the first one's"
    for event in (Settled(uid="first", model="a100"), Used(tenant="t", devices=1, models={"a100": 1})):
        recorder.take(event)
    assert models_of(recorder.decide(3)) == {"second": "h100"}
    assert list(check(lines)) == []


def test_what_is_charged_of_an_old_claim_does_not_keep_its_grant_from_it() -> None:
    arbiter = Arbiter()
    arbiter.take(config({"t": TenantRules(wants=("h100", "a100"), models={"h100": 1})}, {"p@1": policy("h100 a100")}))
    arbiter.take(capacity(h100=[1]))
    arbiter.take(pod("p", "t"))
    arbiter.decide(0)
    for now, there, candidates in ((1, capacity(a100=[1]), ("a100",)), (2, capacity(h100=[1]), ("h100",))):
        arbiter.take(there)
        assert arbiter.decide(now) == [Revised(at=now, uid="p", candidates=candidates, reason="impossible")]
    assert arbiter.account("t") == Account(1, {"a100": 1, "h100": 1})


def test_claims_of_one_pod_stay_at_one_model() -> None:
    arbiter = _world(h100=[2], a100=[2], l40s=[2])
    arbiter.take(pod("p", "t", (1, 1)))
    decisions = arbiter.decide(1)
    assert models_of(decisions) == {"p": "h100"}
    assert not any(isinstance(one, Revised) for one in decisions)
    assert arbiter.decide(1 + WIDEN_AFTER) == []
    arbiter.take(capacity(h100=[], a100=[2], l40s=[2]))
    assert arbiter.decide(2 + WIDEN_AFTER) == [
        Revised(at=2 + WIDEN_AFTER, uid="p", candidates=("a100",), reason="impossible")
    ]


def test_the_collector_visits_none_that_waits_and_nothing_stays_of_who_left() -> None:
    arbiter = Arbiter()
    arbiter.take(config({"a": TenantRules(wants=("h100",))}))
    arbiter.take(capacity(h100=[0]))
    arbiter.take(pod("last", "a"))
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1_000):
        arbiter.take(pod(f"same-{number}", "a"))
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    for number in range(1_000):
        arbiter.take(pod(f"each-{number}", "a", 2 + number))
    for number in range(1_000):
        arbiter.take(Left(uid=f"same-{number}"))
        arbiter.take(Left(uid=f"each-{number}"))
    assert arbiter.decide(0) == []
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_of_equal_requests_the_same_is_told() -> None:
    arbiter = _world({"t": TenantRules(wants=("h100",), models={"h100": 1, "a100": 1})}, h100=[8], a100=[8])
    arbiter.take(pod("x", "t", (), fixed=2, fixed_models={"h100": 2, "a100": 2}))
    arbiter.take(pod("y", "t", (), fixed=2, fixed_models={"a100": 2, "h100": 2}))
    assert arbiter.decide(0) == []
    assert arbiter.why("x", 0) == arbiter.why("y", 0)
