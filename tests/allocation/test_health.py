"""What is done about Pods on unhealthy devices: a row for each case, and that nothing goes round for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocation import fleet
from dra_gate.allocation.capacity import CORDONED, INCOMPLETE, LOST, UNPUBLISHED, Capacity
from dra_gate.allocation.health import (
    BUDGET,
    FORGET_SECONDS,
    MOST_ATTEMPTS,
    REFILL_SECONDS,
    SETTLE_SECONDS,
    Attempt,
    Budget,
    Judgement,
    PodSeen,
    attempts,
    judge,
    read_claim,
    read_pod,
    reason_of,
)
from dra_gate.policy.model import PolicyRef

GPU = ("gpu.nvidia.com", "n1", "gpu-0")
ILL = {GPU: "taint xid=79:NoSchedule"}
NOW = 1000.0
FULL = Budget(BUDGET, NOW)


def pod(**more: Any) -> PodSeen:
    return PodSeen(
        **{"uid": "u", "version": "7", "owner": "o", "claims": ("c",), "begun": False, "ended": False, **more}
    )


def judged(seen: PodSeen, **more: Any) -> Judgement:
    said: dict[str, Any] = {
        "ill": ILL, "word": "recreate", "since": NOW - SETTLE_SECONDS, "before": 0, "budget": FULL, "may_recreate": "",
        "now": NOW, **more,
    }  # fmt: skip
    return judge(seen, said.pop("ill"), **said)


CASES: list[tuple[str, PodSeen, dict[str, Any], str, str]] = [
    ("healthy", pod(), {"ill": {}}, "none", "healthy"),
    ("recreate", pod(), {}, "recreate", "recreated"),
    ("alert", pod(), {"word": "alert"}, "alert", "alerted"),
    ("keep", pod(), {"word": "keep"}, "none", "kept"),
    ("keep, runs", pod(begun=True), {"word": "keep"}, "none", "kept"),
    ("runs", pod(begun=True), {}, "alert", "running"),
    ("runs, alert", pod(begun=True), {"word": "alert"}, "alert", "running"),
    ("runs, node cordoned", pod(begun=True), {"ill": {GPU: CORDONED}}, "none", "cordoned"),
    ("node cordoned", pod(), {"ill": {GPU: CORDONED}}, "recreate", "recreated"),
    ("ends", pod(ended=True), {}, "none", "ended"),
    ("no controller", pod(owner=""), {}, "alert", "uncontrolled"),
    ("no controller, alert", pod(owner=""), {"word": "alert"}, "alert", "alerted"),
    ("not switched on", pod(), {"may_recreate": "of a reason"}, "alert", "forbidden"),
    ("a moment", pod(), {"since": NOW - SETTLE_SECONDS + 0.1}, "none", "settling"),
    ("a moment, alert", pod(), {"word": "alert", "since": NOW}, "none", "settling"),
    ("second, as soon as the first", pod(), {"before": 1}, "none", "settling"),
    ("second", pod(), {"before": 1, "since": NOW - 2 * SETTLE_SECONDS}, "recreate", "recreated"),
    ("third", pod(), {"before": 2, "since": NOW - 4 * SETTLE_SECONDS}, "recreate", "recreated"),
    ("fourth", pod(), {"before": 3, "since": NOW - 8 * SETTLE_SECONDS}, "alert", "looping"),
    ("no budget", pod(), {"budget": Budget(0.5, NOW)}, "alert", "budget"),
    ("budget again", pod(), {"budget": Budget(0.5, NOW - REFILL_SECONDS / 2)}, "recreate", "recreated"),
]


@pytest.mark.parametrize(("seen", "more", "action", "code"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_judgement(seen: PodSeen, more: dict[str, Any], action: str, code: str) -> None:
    found = judged(seen, **more)
    assert (found.action, found.code) == (action, code)
    assert bool(found.text) == (action != "none")
    if found.text:
        assert found.text.startswith("A device it was given is not healthy: gpu.nvidia.com/n1/gpu-0: ")


def test_when_to_look_again() -> None:
    assert judged(pod(), since=NOW - 1).again == NOW - 1 + SETTLE_SECONDS
    assert judged(pod(), before=2, since=NOW).again == NOW + 4 * SETTLE_SECONDS
    assert judged(pod(), budget=Budget(0.25, NOW)).again == NOW + 0.75 * REFILL_SECONDS


def test_many_devices_are_told_in_a_line() -> None:
    ill = {("d", "p", f"g{number}"): LOST for number in range(5)}
    assert judged(pod(), ill=ill).text.startswith(
        "5 devices it was given are not healthy: d/p/g0: node lost, d/p/g1: node lost, d/p/g2: node lost and 2 more. "
    )


@pytest.mark.parametrize(
    ("problem", "reason"),
    [("taint a=b:NoExecute", "taint"), (INCOMPLETE, "pool"), (LOST, "node"), (CORDONED, "node"), (UNPUBLISHED, "gone")],
)
def test_reasons_are_few(problem: str, reason: str) -> None:
    assert reason_of(problem) == reason


def test_the_longest_row_that_may_have_led_to_a_pod_counts() -> None:
    past = [Attempt(10, 1), Attempt(20, 2), Attempt(30, 1)]
    assert [attempts(past, seen, 100) for seen in (5, 10, 15, 25, 40)] == [0, 1, 1, 2, 2]
    assert attempts(past, 40, FORGET_SECONDS + 25) == 1
    assert attempts(past, 40, FORGET_SECONDS + 30) == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 400), min_size=1, max_size=80), st.floats(0, 5000))
def test_a_budget_is_never_overdrawn(waits: list[float], first: float) -> None:
    """However often one asks: in any stretch of time at most BUDGET and what comes in meanwhile."""
    budget, now = Budget(1.0, first), first
    spent: list[float] = []
    for wait in waits:
        now += wait
        if budget.by(now).left >= 1:
            budget = budget.spent(now)
            spent.append(now)
        else:
            assert budget.by(budget.refill(now) + 1e-6).left >= 1 - 1e-6
            assert budget.refill(now) <= now + REFILL_SECONDS
    for start, begin in enumerate(spent):
        for end in range(start, len(spent)):
            assert end - start + 1 <= BUDGET + (spent[end] - begin) / REFILL_SECONDS + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.floats(0, 120), st.floats(0.5, 20))
def test_what_meets_the_same_fate_ends(replicas: int, delay: float, step: float) -> None:
    """An owner of Pods on devices that stay ill, however soon replacements come: at most MOST_ATTEMPTS rounds within
    the hour, then every Pod is told of and left.
    """
    now, past, budget = 0.0, [], Budget.first(0.0)
    pods = dict.fromkeys(range(replicas), (0.0, 0.0))  # first seen, ill since
    while now < FORGET_SECONDS - 1:
        for number, (seen, since) in pods.items():
            if now < seen:
                continue
            before = attempts(past, seen, now)
            found = judged(pod(), since=since, before=before, budget=budget, now=now)
            if found.action == "recreate":
                past.append(Attempt(now, before + 1))
                budget = budget.spent(now)
                pods[number] = (now + delay, now + delay)
        now += step
    assert len(past) <= replicas * MOST_ATTEMPTS
    assert max(attempt.number for attempt in past) <= MOST_ATTEMPTS
    left = [judged(pod(), since=since, before=attempts(past, seen, now), budget=budget, now=now).action
            for seen, since in pods.values()]  # fmt: skip
    assert left == ["alert"] * replicas


# -- what is read ------------------------------------------------------------------------------------------------------


def raw_pod(**more: Any) -> dict[str, Any]:
    entries = [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "x"}]
    status = {"phase": "Pending", "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "p-a-1"}]}
    owners = [{"kind": "Other", "uid": "z"}, {"kind": "Job", "uid": "j", "controller": True}]
    metadata = {"uid": "u", "resourceVersion": "7", "ownerReferences": owners, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"resourceClaims": entries}, "status": {**status, **more}}


def test_a_pod_is_read() -> None:
    assert read_pod(raw_pod()) == pod(owner="j", claims=("p-a-1", "x"))
    assert read_pod({"metadata": {"uid": "u"}, "spec": {}}) is None


@pytest.mark.parametrize(
    ("status", "begun"),
    [
        ({}, False),
        ({"phase": None}, False),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}]}, False),
        ({"containerStatuses": [{"state": {"waiting": {}}, "restartCount": 1}]}, True),
        ({"initContainerStatuses": [{"state": {"running": {}}}]}, True),
        ({"initContainerStatuses": [{"state": {"terminated": {}}}], "containerStatuses": [{"state": None}]}, True),
        ({"phase": "Running"}, True),
        ({"phase": "Unknown"}, True),
    ],
)
def test_an_init_container_is_a_start(status: dict[str, Any], begun: bool) -> None:
    found = read_pod(raw_pod(**status))
    assert found is not None
    assert found.begun is begun


def test_a_pod_of_its_node_has_no_controller_and_one_that_goes_has_ended() -> None:
    static = read_pod(raw_pod(metadata={"ownerReferences": [{"kind": "Node", "uid": "n", "controller": True}]}))
    going = read_pod(raw_pod(metadata={"deletionTimestamp": "2026-11-30T00:00:00Z"}))
    done = read_pod(raw_pod(phase="Succeeded"))
    assert static is not None and going is not None and done is not None  # noqa: PT018
    assert (static.owner, static.ended, going.ended, done.ended) == ("", False, True, True)


def test_a_claim_is_read_without_devices_for_administration() -> None:
    claim = fleet.claim(("n1", "gpu-0"), tolerations=[{"key": "xid", "operator": "Exists"}])
    claim["status"]["allocation"]["devices"]["results"] += fleet.claim(("n1", "gpu-1"), adminAccess=True)["status"][
        "allocation"
    ]["devices"]["results"]
    claim["metadata"] = {"labels": {"dra-gate.io/policy": "train", "dra-gate.io/policy-version": "1"}}
    found = read_claim(claim)
    assert found is not None
    assert found.policy == PolicyRef("train", 1)
    assert found.devices == ((GPU, ({"key": "xid", "operator": "Exists"},)),)
    assert read_claim(fleet.claim()) is None


@pytest.mark.parametrize(
    ("tolerations", "problem"),
    [
        ([], "taint xid=79:NoSchedule"),
        ([{"key": "xid", "operator": "Exists"}], ""),
        ([{"key": "xid", "operator": "Exists", "effect": "NoExecute"}], "taint xid=79:NoSchedule"),
        ([{"key": "xid", "value": "31"}], "taint xid=79:NoSchedule"),
        ([{"key": "xid", "value": "79", "effect": "NoSchedule"}], ""),
        ([{"operator": "Exists"}], ""),
    ],
)
def test_a_tolerated_taint_is_no_illness_and_a_lost_node_is(tolerations: list[dict[str, str]], problem: str) -> None:
    capacity = Capacity()
    taint = {"key": "xid", "value": "79", "effect": "NoSchedule"}
    capacity.set_slice(("", "s"), fleet.slice_of("n1", [fleet.device("gpu-0", "h100", taints=[taint])]))
    assert capacity.problem_of(GPU, tolerations) == LOST
    capacity.set_node(("", "n1"), fleet.node())
    assert capacity.problem_of(GPU, tolerations) == problem
    capacity.set_node(("", "n1"), fleet.node(cordoned=True))
    assert capacity.problem_of(GPU, tolerations) == CORDONED
    capacity.drop_slice(("", "s"))
    assert capacity.problem_of(GPU, tolerations) == UNPUBLISHED
