"""What people see of the arbiter: numbers that add up, reasons, estimates only where there is something to go by."""

from __future__ import annotations

import dataclasses
import json

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import NEVER, SCALE, Capacity, Granted, Kind, Settled, Tags, TenantRules, Used
from dra_gate.fairness.flow import WINDOW, Flow
from dra_gate.fairness.view import NOTHING_KNOWN, OTHERS, Lender, Loan, ModelUse, QueueView, WaitingPod, as_tenant, view
from fairness.scene import capacity, config, models_of, pod, policy

WANTS = ("h100",)
POLICY = {"p@1": policy("h100")}
MINUTE = 60_000


def _world(tenants: dict[str, TenantRules], h100: list[int]) -> Arbiter:
    arbiter = Arbiter()
    arbiter.take(config(tenants, POLICY, "h100"))
    arbiter.take(capacity(h100=h100))
    return arbiter


def _allocate(arbiter: Arbiter, flow: Flow, tenant: str, granted: list[str], now: int) -> None:
    """The grants become what the tenant holds."""
    for uid in granted:
        arbiter.take(Settled(uid=uid, model="h100"))
    line = Used(tenant=tenant, devices=len(granted), models={"h100": len(granted)})
    arbiter.take(line)
    flow.used(line, now)


def _borrowing() -> tuple[Arbiter, Flow]:
    """Eight H100, all with maple, whose share is four; then birch comes."""
    arbiter = _world({"maple": TenantRules(wants=WANTS), "birch": TenantRules(wants=WANTS)}, [8])
    flow = Flow(0)
    for number in range(12):
        arbiter.take(pod(f"m{number:02}", "maple", at=number, pod=f"maple/m{number}"))
    decisions = arbiter.decide(100)
    for line in decisions:
        if isinstance(line, Granted):
            flow.granted(line)
    _allocate(arbiter, flow, "maple", list(models_of(decisions)), 100)
    arbiter.take(Capacity(kinds=(Kind("h100", 0, 8, (), ((8, 1),)),)))  # all in use
    arbiter.take(pod("b0", "birch", 2, at=50_000, pod="birch/b0"))
    assert arbiter.decide(50_000) == []
    return arbiter, flow


def _pods(seen: QueueView, tenant: str) -> dict[str, WaitingPod]:
    return {one.uid: one for own in seen.tenants if own.name == tenant for one in own.waiting}


def test_who_borrows_from_whom() -> None:
    seen = view(*_of(_borrowing(), 60_000))
    (h100,) = seen.models
    assert (h100.healthy, h100.free, h100.open, h100.waiting, h100.oldest) == (8, 0, 0, 6, 60_000 - 8)
    assert h100.borrowers == (Loan("maple", 4),)
    assert h100.lenders == (Lender("birch", 4, 2),)
    maple = next(one for one in seen.tenants if one.name == "maple")
    assert maple.models == (ModelUse("h100", held=8, open=0, share=4, quota=None, reserve=0, borrowed=4),)
    assert (maple.held, maple.pods, maple.devices_waiting, maple.weight) == (8, 4, 4, 1)


def _of(world: tuple[Arbiter, Flow], now: int) -> tuple[Arbiter, int, Flow]:
    return world[0], now, world[1]


def test_the_queue_counts_who_goes_before() -> None:
    """Birch is below its share: its two go before the four of maple, who came long before."""
    seen = view(*_of(_borrowing(), 60_000))
    assert _pods(seen, "birch")["b0"].estimate.basis.startswith(
        "no estimate: 0 devices ahead of it in the queue of h100"
    )
    maple = _pods(seen, "maple")
    assert [(one.uid, one.position) for one in maple.values()] == [(f"m{n:02}", n - 7) for n in range(8, 12)]
    assert "2 devices ahead of it in the queue of h100" in maple["m08"].estimate.basis
    assert "5 devices ahead of it in the queue of h100" in maple["m11"].estimate.basis
    assert {one.reason for one in maple.values()} == {"NoDevices"}


def test_age_gives_no_earlier_turn() -> None:
    rules = TenantRules(weight=1, wants=("h100",), reserve_after=10)
    arbiter = _world({"old": rules, "young": rules, "full": rules}, [1])
    arbiter.take(pod("f", "full"))
    assert len(list(arbiter.decide(0))) == 1
    arbiter.take(Tags(tenant="old", tags={"h100": (0, SCALE)}))
    arbiter.take(pod("o", "old", at=0))
    arbiter.take(pod("y", "young", at=99))
    arbiter.decide(100)
    seen = view(arbiter, 100, Flow(0))
    assert _pods(seen, "old")["o"].aged
    assert "1 device ahead of it" in _pods(seen, "old")["o"].estimate.basis
    assert "0 devices ahead of it" in _pods(seen, "young")["y"].estimate.basis


def test_an_estimate_says_what_it_is_made_from() -> None:
    arbiter, flow = _borrowing()
    assert _pods(view(arbiter, WINDOW, flow), "birch")["b0"].estimate.minutes is None
    line = Used(tenant="maple", devices=4, models={"h100": 4})
    flow.used(line, WINDOW)  # four came free
    found = _pods(view(arbiter, WINDOW, flow), "maple")["m09"].estimate
    assert found.minutes == 60  # it is the fourth
    assert (
        found.basis == "3 devices ahead of it in the queue of h100 and 1 its own; 4 of h100 came free in the last hour"
    )
    later = _pods(view(arbiter, 3 * WINDOW, flow), "maple")["m09"].estimate
    assert later.minutes is None
    assert later.basis.endswith("nothing of h100 came free in the last hour")


def test_a_short_history_is_said() -> None:
    arbiter, flow = _borrowing()
    flow.used(Used(tenant="maple", devices=6, models={"h100": 6}), 10 * MINUTE)
    found = _pods(view(arbiter, 10 * MINUTE, flow), "birch")["b0"].estimate
    assert found.minutes == 10
    assert found.basis.endswith("2 of h100 came free in the 10 min that are known")
    assert "nothing is known yet" in _pods(view(arbiter, 10 * MINUTE), "birch")["b0"].estimate.basis


def test_a_worst_case_that_gives_way_to_the_truth_frees_nothing() -> None:
    flow = Flow(0)
    flow.used(Used(tenant="t", devices=2, models={"h100": 2, "a100": 2}), 0)
    flow.used(Used(tenant="t", devices=2, models={"a100": 2}), 1)
    assert flow.freed(2, model="h100") == 0
    flow.used(Used(tenant="t", devices=1, models={"a100": 1}), 2)
    assert (flow.freed(3, model="a100"), flow.freed(3, tenant="t"), flow.freed(3, tenant="t", model="a100")) == (
        1,
        1,
        1,
    )


def test_what_the_own_quota_holds_up_is_told_from_the_own_tenant() -> None:
    arbiter = _world({"t": TenantRules(wants=WANTS, models={"h100": 2}), "u": TenantRules(wants=WANTS)}, [8, 8])
    flow = Flow(0)
    for line in (Used(tenant="t", devices=3, models={"h100": 3}), Used(tenant="t", devices=2, models={"h100": 2})):
        arbiter.take(line)
        flow.used(line, WINDOW)
    for number in range(3):
        arbiter.take(pod(f"p{number}", "t", at=number))
    assert arbiter.decide(WINDOW) == []
    last = _pods(view(arbiter, WINDOW, flow), "t")["p2"]
    assert last.reason == "Quota"
    assert (last.estimate.minutes, last.estimate.basis) == (
        180,
        "2 devices ahead of it in its tenant's queue and 1 its own; 1 of its tenant's h100 came free in the last hour",
    )


def test_overtakes_are_counted() -> None:
    arbiter = _world({"t": TenantRules(wants=WANTS), "u": TenantRules(wants=WANTS)}, [4, 4, 4])
    flow = Flow(0)
    arbiter.take(pod("big", "t", 8, at=0))
    for number in range(3):
        arbiter.take(pod(f"s{number}", "u", at=number + 1))
    for line in arbiter.decide(100):
        assert isinstance(line, Granted)
        flow.granted(line)
    arbiter.take(capacity(h100=[8]))
    seen = view(arbiter, 200, flow)
    assert _pods(seen, "t")["big"].overtaken == 3
    assert [one.most_overtaken for one in seen.tenants] == [3, 0]


def test_groups_have_one_position_and_later_candidates_are_said() -> None:
    arbiter = Arbiter()
    policies = {"p@1": policy("h100 a100", 600_000), "q@1": policy("h100 a100", NEVER)}
    arbiter.take(config({"t": TenantRules(wants=("h100", "a100"))}, policies, "h100 a100"))
    arbiter.take(capacity(h100=[], a100=[8]))
    for uid in ("g1", "g0"):
        arbiter.take(pod(uid, "t", at=5, group="g", members=2))
    arbiter.take(pod("i0", "t", at=7, group="i", members=3))
    arbiter.take(pod("z", "t", at=9, policy="q@1"))
    arbiter.decide(10)
    seen = _pods(view(arbiter, 10), "t")
    assert [(one.uid, one.position, one.reason) for one in seen.values()] == [
        ("g0", 1, "Unsatisfiable"),
        ("g1", 1, "Unsatisfiable"),
        ("i0", 2, "GroupIncomplete"),
        ("z", 3, "Unsatisfiable"),
    ]
    assert (seen["g0"].candidates, seen["g0"].later, seen["g0"].fallback) == (("h100",), ("a100",), 600)
    assert (seen["z"].candidates, seen["z"].later) == (("h100",), ())


def test_one_tenant_sees_no_other_by_name() -> None:
    seen = as_tenant(view(*_of(_borrowing(), 60_000)), "birch")
    assert seen.models[0].borrowers == (Loan(OTHERS, 4),)
    assert seen.models[0].lenders == (Lender("birch", 4, 2),)
    assert [one.name for one in seen.tenants] == ["birch"]
    assert "maple" not in json.dumps(dataclasses.asdict(seen))


def test_so_many_are_shown_and_all_counted() -> None:
    arbiter, flow = _borrowing()
    maple = view(arbiter, 60_000, flow, tenant="maple", most=3).tenants
    assert [(one.name, len(one.waiting), one.pods) for one in maple] == [("maple", 3, 4)]


def test_nothing_is_known_yet() -> None:
    assert view(Arbiter(), 0) == NOTHING_KNOWN
