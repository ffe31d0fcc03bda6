"""What is said about a Pod, as a function of what is there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dra_gate.allocation.capacity import CandidateCounts
from dra_gate.allocation.inversion import Inversion
from dra_gate.controller.decision_plan import CONDITION, Decision, Fleet, PodSeen, decide, read_claim, read_pod
from dra_gate.policy.model import PolicyRef

ORDER = ("h100", "a100")
NOW = 1_796_036_400.0
CREATED = "2026-11-30T10:59:00Z"  # a minute before


def pod(scheduled: tuple[str, str, str] | None = None, told: dict[str, Any] | None = None, **spec: Any) -> Any:
    conditions = [] if told is None else [{"type": CONDITION, **told}]
    if scheduled is not None:
        status, reason, message = scheduled
        conditions.append({"type": "PodScheduled", "status": status, "reason": reason, "message": message})
    annotations = {"dra-gate.io/policy": "train", "dra-gate.io/policy-version": "1", "dra-gate.io/lane": "dra"}
    metadata = {"namespace": "m1", "name": "p", "uid": "u", "creationTimestamp": CREATED}
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}], **spec},
        "status": {"conditions": conditions, "resourceClaimStatuses": [{"name": "g", "resourceClaimName": "p-g"}]},
    }  # fmt: skip


def claim(*results: str, labels: bool = True, requests: list[Any] | None = None, **metadata: Any) -> Any:
    order = [{"name": name, "deviceClassName": "c", "count": 1} for name in ORDER]
    policy = {"dra-gate.io/policy": "train", "dra-gate.io/policy-version": "1"}
    made: dict[str, Any] = {
        "metadata": {"name": "p-g", "uid": "c", "labels": policy if labels else {}, **metadata},
        "spec": {"devices": {"requests": requests or [{"name": "gpu", "firstAvailable": order}]}},
    }
    if results:
        given = [{"request": one, "driver": "d", "pool": "n1", "device": f"gpu-{i}"} for i, one in enumerate(results)]
        made["status"] = {"allocation": {"devices": {"results": given}}}
    return made


IN_USE = CandidateCounts("h100", 2, 2, 2, 2)


def fleet(h100: CandidateCounts = IN_USE) -> Fleet:
    return Fleet(
        candidates=lambda ref, _tenant, _count: (
            (h100, CandidateCounts("a100", 2, 2, 2, 2, 1, places=1)) if ref == PolicyRef("train", 1) else ()
        ),
        model_of=lambda device: {"gpu-0": "l40s"}.get(device[2], ""),
        inversion=lambda _pod, _ref, model, _count: Inversion("taint", f"not for {model}"),
    )


FLEET = fleet()


def decided(raw: Any, *claims: Any, fleet: Fleet = FLEET, now: float = NOW) -> Decision | None:
    seen = read_pod(raw)
    assert seen is not None
    return decide(seen, {one["metadata"]["name"]: read_claim(one) for one in claims}, "maple", fleet, now)


def said(raw: Any, *claims: Any, **options: Any) -> Decision:
    found = decided(raw, *claims, **options)
    assert found is not None
    return found


BOUND = ("True", "", "")
UNSCHEDULABLE = "0/3 nodes are available: {}. preemption: 0/3 nodes are available: 3 Preemption is not helpful."
INVALID = "1 invalid resource pools were encountered"
CEL = "claim t/p: CEL runtime error: no such key: slot."
LIMIT = "adding 33 devices exceeds the claim limit of 32"
FAILED = 'running "DynamicResources" filter plugin: {}'


@pytest.mark.parametrize(
    ("reason", "message", "row", "klass"),
    [
        ("Unschedulable", UNSCHEDULABLE.format("3 cannot allocate all claims"), "no-device", "waiting"),
        ("Unschedulable", UNSCHEDULABLE.format("3 Insufficient cpu"), "no-node", "waiting"),
        ("Unschedulable", "request gpu: device class nope.example does not exist.", "class-missing", "operator"),
        ("Unschedulable", UNSCHEDULABLE.format(INVALID), "pool-invalid", "operator"),
        ("Unschedulable", "the moon is in the wrong place", "unknown-text", "unknown"),
        ("SchedulerError", FAILED.format(CEL), "selector-error", "terminal"),
        ("SchedulerError", FAILED.format(LIMIT), "selector-error", "terminal"),
        ("SchedulerError", FAILED.format("request gpu: asks for all devices, but resource pool a/b is currently being "
                                         "updated"), "pool-updating", "retryable"),
        ("SchedulerError", 'running PreBind plugin "DynamicResources": add finalizer to claim: admission webhook "x" '
                           "denied the request", "bind-refused", "retryable"),
        ("SchedulerError", "the moon again", "unknown-text", "unknown"),
    ],
)  # fmt: skip
def test_why_it_waits(reason: str, message: str, row: str, klass: str) -> None:
    found = said(pod(("False", reason, message)), claim())
    assert (found.record.reason, found.record.klass) == (row, klass)
    assert (found.status, found.reason) == ("False", klass.capitalize())
    assert found.message.startswith(f"{row}: ")
    assert found.record.outcome == ("failed" if klass == "terminal" else "waiting")
    assert "h100: all 2 in use." in found.message


def test_silence_is_explained_when_it_lasts() -> None:
    unseen = pod()
    assert decided(unseen, claim()) is None
    assert said(unseen, claim(), now=NOW + 61).record.reason == "no-scheduler"
    assert decided(unseen, now=NOW - 56) is None
    assert said(unseen).record.reason == "claim-missing"
    stale = pod(("False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"))
    assert said(stale).record.reason == "claim-missing", "the condition stays when the gates have gone"
    assert decided(pod(schedulingGates=[{"name": "x"}])) is None
    assert said(pod(), claim(deletionTimestamp=CREATED)).record.reason == "claim-deleting"


def test_the_first_choice_and_a_fallback() -> None:
    first = said(pod(BOUND), claim("gpu/h100"))
    assert (first.status, first.reason) == ("True", "FirstChoice")
    assert first.message == "h100, rank 1 of 2 of train@1: n1/gpu-0"
    assert first.record.passed == ()
    second = said(pod(BOUND), claim("gpu/a100"))
    assert (second.reason, second.record.rank, second.record.of) == ("Fallback", 2, 2)
    assert [one.code for one in second.record.passed] == ["in-use"]
    assert second.inversion is None


def test_a_better_candidate_that_stayed_free_is_asked_about() -> None:
    free = CandidateCounts("h100", 2, 2, 2, 2, 1, places=1)
    found = said(pod(BOUND), claim("gpu/a100"), fleet=fleet(free))
    assert found.inversion == Inversion("taint", "not for h100")
    assert found.record.inversion == "taint"
    assert found.record.passed[0].text == "1 free: not for h100"


def test_companions_stand_beside_and_claims_of_no_policy_have_no_order() -> None:
    nic = {"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}}
    order = claim()["spec"]["devices"]["requests"]
    found = said(pod(BOUND), claim("nic", "gpu/a100", requests=[nic, *order]))
    assert found.message == "a100, rank 2 of 2 of train@1: n1/gpu-0, n1/gpu-1"
    plain = said(pod(BOUND), claim("r", labels=False, requests=[{**nic, "name": "r"}]))
    assert plain.message == "l40s, rank 1 of 1: n1/gpu-0"
    assert (plain.record.policy, plain.record.candidates) == ("", ())
    unknown = said(pod(BOUND), claim("x", "r", labels=False, requests=[{**nic, "name": "r"}]))
    assert unknown.message == "g: n1/gpu-0, n1/gpu-1"


def test_what_stands_on_the_pod_is_read_back() -> None:
    found = said(pod(BOUND), claim("gpu/a100"))
    numbered = dataclasses.replace(found, record=dataclasses.replace(found.record, sequence=3))
    seen = read_pod(pod(BOUND, numbered.condition(CREATED)))
    assert seen is not None
    assert seen.told is not None
    assert seen.told.sequence == 3
    assert found.says_the_same(seen.told, closely=True)
    assert not found.says_the_same(None, closely=False)
    assert not said(pod(BOUND), claim("gpu/a100", "gpu/a100")).says_the_same(seen.told, closely=False)


def test_the_same_cause_in_other_words_is_news_only_when_looked_at_closely() -> None:
    waits = pod(("False", "Unschedulable", UNSCHEDULABLE.format("3 cannot allocate all claims")))
    before = said(waits, claim())
    seen = read_pod(pod(None, before.condition(CREATED)))
    assert seen is not None
    after = said(waits, claim(), fleet=fleet(CandidateCounts("h100", 3, 3, 3, 3)))
    assert after.message != before.message
    assert after.says_the_same(seen.told, closely=False)
    assert not after.says_the_same(seen.told, closely=True)
    other = said(pod(("False", "Unschedulable", UNSCHEDULABLE.format("3 Insufficient cpu"))), claim())
    assert not other.says_the_same(seen.told, closely=False)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": CREATED}},
        {"status": {"phase": "Succeeded"}},
        {"spec": {"resourceClaims": []}},
    ],
)
def test_pods_about_which_nothing_is_said(change: dict[str, dict[str, Any]]) -> None:
    raw = pod()
    assert isinstance(read_pod(raw), PodSeen)
    for part, fields in change.items():
        raw[part].update(fields)
    assert read_pod(raw) is None


def test_an_entry_that_needs_no_claim_is_none() -> None:
    raw = pod()
    raw["spec"]["resourceClaims"].append({"name": "optional", "resourceClaimTemplateName": "u"})
    raw["status"]["resourceClaimStatuses"].append({"name": "optional"})
    seen = read_pod(raw)
    assert seen is not None
    assert seen.entries == (("g", "p-g"),)
