"""What is said about a Pod, as a function of what is there."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from dra_gate.allocation.capacity import CandidateCounts
from dra_gate.allocation.inversion import Inversion, Room, inversion
from dra_gate.cluster import shapes
from dra_gate.cluster.client import decoder
from dra_gate.controller.decision_plan import CONDITION, Decision, Fleet, Heard, PodSeen, decide, read_claim, read_pod
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


def fleet(h100: CandidateCounts = IN_USE, *, ready: bool = True) -> Fleet:
    return Fleet(
        node_ready=lambda _: ready,
        candidates=lambda ref, _tenant, _count: (
            (h100, CandidateCounts("a100", 2, 2, 2, 2, 1, places=1)) if ref == PolicyRef("train", 1) else ()
        ),
        model_of=lambda device: {"gpu-0": "l40s"}.get(device[2], ""),
        inversion=lambda _pod, _ref, model, _count: Inversion("taint", f"not for {model}"),
    )


FLEET = fleet()


def decided(
    raw: Any, *claims: Any, fleet: Fleet = FLEET, seconds: float = 20, events: tuple[Any, ...] = ()
) -> Decision | None:
    """`seconds` in its stage."""
    seen = read_pod(raw)
    assert seen is not None
    heard = Heard("v1.37.2", NOW - seconds, events)
    return decide(seen, {one["metadata"]["name"]: read_claim(one) for one in claims}, "maple", fleet, NOW, heard)


def said(raw: Any, *claims: Any, **options: Any) -> Decision:
    found = decided(raw, *claims, **options)
    assert found is not None
    return found


BOUND = ("True", "", "")
UNSCHEDULABLE = "0/3 nodes are available: {}. preemption: 0/3 nodes are available: 3 Preemption is not helpful."
INVALID = "1 invalid resource pools were encountered"
CEL = "claim t/p: selector #0 on device gpu.nvidia.com/n2/g-0: CEL runtime error: no such key: slot."
FAILED = 'running "DynamicResources" filter plugin: {}'


@pytest.mark.parametrize(
    ("reason", "message", "row", "klass"),
    [
        ("Unschedulable", UNSCHEDULABLE.format("3 cannot allocate all claims"), "no-free-device", "retryable"),
        ("Unschedulable", UNSCHEDULABLE.format("3 Insufficient cpu"), "no-node-fits", "retryable"),
        ("Unschedulable", UNSCHEDULABLE.format(INVALID), "invalid-pool", "operator"),
        ("SchedulerError", FAILED.format(CEL), "one-bad-device", "operator"),  # an a100 would do
        ("SchedulerError", "the moon is in the wrong place", "scheduling-failed", "unknown"),
    ],
)
def test_why_it_waits(reason: str, message: str, row: str, klass: str) -> None:
    found = said(pod(("False", reason, message)), claim())
    assert (found.record.reason, found.record.klass) == (row, klass)
    assert (found.status, found.reason) == ("False", klass.capitalize())
    assert found.message.startswith(f"{row}: ")
    assert found.record.outcome == ("failed" if klass == "terminal" else "waiting")
    assert "h100: all 2 in use." in found.message
    assert ("the moon" in found.message) == (klass == "unknown")


@pytest.mark.parametrize(
    ("h100", "a100", "row"),
    [
        (CandidateCounts("h100", 2, 2), CandidateCounts("a100", 1, 1), "template-matches-nothing"),
        (CandidateCounts("h100"), CandidateCounts("a100"), "no-free-device"),
        (CandidateCounts("h100", 2, 1, 2, 1, unusable={"taint a/xid=7:NoExecute": 1}), IN_USE, "device-lost"),
        (CandidateCounts("h100", 2, 1, 2, 1, unusable={"taint b:NoSchedule": 1}), IN_USE, "devices-tainted"),
        (CandidateCounts("h100", 2, 0, 2, 0, unusable={"pool incomplete": 2}), IN_USE, "pool-incomplete"),
        (CandidateCounts("h100", 2, 0, 2, 0, unusable={"pool with extra slices": 2}), IN_USE, "pool-with-extra-slices"),
        (CandidateCounts("h100", 2, 0, 2, 0, unusable={"node lost": 2}), IN_USE, "no-free-device"),
    ],
)
def test_the_fleet_says_more_than_the_scheduler(h100: CandidateCounts, a100: CandidateCounts, row: str) -> None:
    counts = (h100, dataclasses.replace(a100, model="a100"))
    waits = pod(("False", "Unschedulable", UNSCHEDULABLE.format("3 cannot allocate all claims")))
    found = said(waits, claim(), fleet=dataclasses.replace(FLEET, candidates=lambda *_: counts))
    assert found.record.reason == row


def test_silence_is_explained_when_it_lasts() -> None:
    assert decided(pod(), claim()) is None
    assert said(pod(), claim(), seconds=31).record.reason == "scheduler-silent"
    assert decided(pod(), seconds=4) is None
    assert said(pod()).record.reason == "claim-gone"
    held = pod(schedulingGates=[{"name": "x"}])
    assert decided(held, claim(), seconds=4) is None
    assert said(held, claim()).record.reason == "gated"
    named = [{"name": "g", "resourceClaimName": "dra-gate-late-1"}]
    late = said(pod(schedulingGates=[{"name": "x"}], resourceClaims=named))  # nothing was asked of anybody yet
    assert late.record.reason == "gated"
    assert not late.record.candidates
    assert "Asked for" not in late.message
    assert said(pod(), claim(deletionTimestamp=CREATED)).record.reason == "claim-leaving"


def test_of_a_pod_that_waits_for_its_grant_the_arbiter_says_what_is_left() -> None:
    held = pod(schedulingGates=[{"name": "dra-gate.io/grant"}])
    held["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimName": "late"}]
    held["metadata"]["annotations"]["dra-gate.io/claims"] = "g=2"
    found = said(held)
    assert found.record.reason == "gated"
    assert "Asked for 2 devices under train@1." in found.message
    assert "a100" not in found.message
    held["metadata"]["annotations"]["dra-gate.io/claims"] = "g=many"
    assert "Asked for" not in said(held).message


def test_of_a_granted_pod_the_order_is_its_policy_s_and_not_the_claim_s() -> None:
    granted = pod(BOUND)
    granted["metadata"]["annotations"] |= {"dra-gate.io/claims": "g=1", "dra-gate.io/candidates": ",".join(ORDER)}
    only = [{"name": "gpu", "firstAvailable": [{"name": "a100", "deviceClassName": "c", "count": 1}]}]
    found = said(granted, claim("gpu/a100", requests=only))
    assert (found.reason, found.message) == ("Fallback", "a100, rank 2 of 2 of train@1: n1/gpu-0")
    assert [(one.model, one.code) for one in found.record.passed] == [("h100", "in-use")]
    free = fleet(CandidateCounts("h100", 2, 2, 2, 2, 1, places=1))
    later = said(granted, claim("gpu/a100", requests=only), fleet=free)
    assert [one.code for one in later.record.passed] == ["ungranted"]
    assert later.record.inversion is None, "nobody could give what its grant leaves out"
    del granted["metadata"]["annotations"]["dra-gate.io/claims"]
    assert said(granted, claim("gpu/a100", requests=only)).reason == "FirstChoice", (
        "a template's claim has its own order"
    )


def test_events_are_heard() -> None:
    unmade = pod()
    unmade["status"]["resourceClaimStatuses"] = []
    event = {"reason": "FailedResourceClaimCreation", "message": 'PodResourceClaim g: resource claim template "t": '
             'resourceclaimtemplate.resource.k8s.io "t" not found'}  # fmt: skip
    assert said(unmade).record.reason == "claim-not-made"
    assert said(unmade, events=(event,)).record.reason == "template-missing"


def test_what_befalls_a_pod_that_has_its_devices_stands_beside_them() -> None:
    placed = pod(BOUND, nodeName="n1")
    found = said(placed, claim("gpu/h100"), fleet=fleet(ready=False))
    assert (found.status, found.reason, found.record.outcome) == ("True", "FirstChoice", "allocated")
    assert found.message.startswith("h100, rank 1 of 2 of train@1: n1/gpu-0; infrastructure/node-not-ready: Its node")
    seen = read_pod(pod(BOUND, found.condition(CREATED), nodeName="n1"))
    assert seen is not None
    assert found.says_the_same(seen.told, closely=False)
    well = said(placed, claim("gpu/h100"))
    assert not well.says_the_same(seen.told, closely=False), "when it has passed, that is said"
    gone = pod(nodeName="n1")
    gone["metadata"]["deletionTimestamp"] = CREATED
    assert decided(gone, claim("gpu/h100")) is None
    assert said(gone, claim("gpu/h100"), seconds=121).message.startswith("stuck-terminating: ")


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


def test_why_a_pod_waits_beside_free_devices() -> None:
    waits = pod(("False", "Unschedulable", UNSCHEDULABLE.format("3 Insufficient cpu")))
    found = said(waits, claim())
    assert "a100: 1 free: not for a100." in found.message
    assert (found.inversion, found.record.inversion) == (None, None), "it got no other device"
    fits = dataclasses.replace(FLEET, inversion=lambda *_: Inversion("score", "rated higher"))
    assert "a100: 1 free: not together with what else the Pod asks for." in said(waits, claim(), fleet=fits).message


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


def test_a_pod_without_claims_is_not_looked_at() -> None:
    raw = pod()
    assert isinstance(read_pod(raw), PodSeen)
    raw["spec"]["resourceClaims"] = []
    assert read_pod(raw) is None


def test_an_entry_that_needs_no_claim_is_none() -> None:
    raw = pod()
    raw["spec"]["resourceClaims"].append({"name": "optional", "resourceClaimTemplateName": "u"})
    raw["status"]["resourceClaimStatuses"].append({"name": "optional"})
    seen = read_pod(raw)
    assert seen is not None
    assert seen.entries == (("g", "p-g"),)


@pytest.mark.parametrize(
    ("what", "spec"),
    [
        ("anti-affinity", {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}),
        ("spreading", {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}),
        ("host ports", {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
        ("volumes", {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}),
        ("", {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "ports": [{"hostPort": 0}]}]}),
    ],
)
def test_what_is_not_judged_outlasts_the_cache(what: str, spec: dict[str, Any]) -> None:
    seen = read_pod(decoder(shapes.PlacedPod)(msgspec.json.encode(pod(**spec))))
    assert seen is not None
    found = inversion(seen.spec, "here", ["there"], {"there": Room(free={"pods": 1000})}.get, 2)
    assert found.code == ("not-judged" if what else "score")
    assert what in found.text


def test_a_pod_that_waits_is_not_told_another_cause_than_what_is_not_judged() -> None:
    free = CandidateCounts("h100", 2, 2, 2, 2, 1, places=1)
    unknown = Inversion("not-judged", "perhaps for its spreading")
    waits = pod(("False", "Unschedulable", "0/2 nodes are available: 2 cannot allocate all claims."))
    found = said(waits, claim(), fleet=dataclasses.replace(fleet(free), inversion=lambda *_: unknown))
    assert found.record.passed[0].text == "1 free: perhaps for its spreading"
