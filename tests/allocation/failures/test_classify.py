"""How a row is chosen, what counts as said, and the table's own soundness; each row's own test is elsewhere."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_gate.allocation.failures import CLASSES, ROWS, Facts, Failure, classify, evidence, look_again
from dra_gate.allocation.failures.table import Fact, load, parse_version, patterns

V = "v1.37.2"
CANNOT = "0/3 nodes are available: 3 cannot allocate all claims. preemption: 0/3 nodes are available"


def pod(reason: str = "", message: str = "", **fields: Any) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}] if reason else []
    status = {"conditions": conditions} | fields.pop("status", {})
    return {"metadata": {"uid": "u"} | fields.pop("metadata", {}), "spec": fields, "status": status}


def event(reason: str, message: str, at: str = "", **more: Any) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at} | more


def row(pod: Any, *events: Any, claims: Any = (), version: str = V, **facts: Any) -> str | None:
    failure = classify(pod, claims, events, version, Facts(**facts))
    return failure.row if failure else None


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_the_row_that_asks_for_most_wins() -> None:
    stuck = pod("Unschedulable", CANNOT)
    assert row(stuck) == "no-free-device"
    assert row(stuck, pool_incomplete=True) == "pool-incomplete"
    assert row(stuck, pool_incomplete=True, seconds=300) == "pool-incomplete-for-long"


def test_of_equals_the_first_in_the_table_wins() -> None:
    stuck = pod("Unschedulable", CANNOT)
    ids = [one.id for one in ROWS]
    assert ids.index("template-matches-nothing") < ids.index("pool-incomplete")
    assert row(stuck, pool_incomplete=True, fleet_can_match=False) == "template-matches-nothing"
    assert row(stuck, taints=frozenset({"gpu.nvidia.com/gpu-lost", "a"})) == "device-lost"


def test_a_fact_that_is_not_known_is_no_fact() -> None:
    missing = pod("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert row(missing) == "resource-exhausted"
    assert row(missing, class_serves=True) == "resource-exhausted"
    assert row(missing, class_serves=True, plugin_serves=False) == "class-mapping-lost"


def test_a_mixed_text_is_about_devices_if_any_node_was_asked_for_them() -> None:
    mixed = "0/3 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims, 1 node(s) were unschedulable."
    assert row(pod("Unschedulable", mixed)) == "no-free-device"
    assert row(pod("Unschedulable", "0/1 nodes are available: 1 node(s) were unschedulable.")) == "no-node-fits"


@pytest.mark.parametrize(
    ("version", "reason", "wanted"),
    [
        ("v1.34.2", "Unschedulable", "allocation-timeout"),
        ("v1.35.9", "SchedulerError", "scheduling-failed"),
        ("v1.36.0-gke.100", "SchedulerError", "allocation-timeout"),
        ("v1.37.2", "Unschedulable", "scheduling-failed"),
    ],
)
def test_texts_belong_to_versions(version: str, reason: str, wanted: str) -> None:
    """1.34.2 and 1.35.0 say so as Unschedulable, 1.36.2 and 1.37.2 as an error, with the node's name before it."""
    text = "0/1 nodes are available: 1 timed out trying to allocate devices."
    assert row(pod(reason, text), version=version) == wanted


@pytest.mark.parametrize("version", ["v1.34.2", "v1.36.2"])
def test_the_claim_limit_as_older_versions_put_it(version: str) -> None:
    error = "claim t/c: number of requested devices 33 exceeds the claim limit of 32"
    text = f'running "DynamicResources" filter plugin: {error}'
    assert row(pod("SchedulerError", text), version=version) == "claim-too-large"


@pytest.mark.parametrize("version", ["", "latest", "1", "v1.x"])
def test_a_version_that_is_none_is_an_error(version: str) -> None:
    with pytest.raises(ValueError, match="no Kubernetes version"):
        row(pod(), version=version)
    assert parse_version("v1.37+") == (1, 37)


PREPARE = "FailedPrepareDynamicResources"
ALL_INVALID = "claim t/c, request r: asks for all devices, but resource pool d/p is currently invalid"
BIND = 'running PreBind plugin "DynamicResources": '


@pytest.mark.parametrize(
    ("wanted", "pod", "events", "seconds"),
    [
        ("class-missing", pod("SchedulerError", 'could not retrieve device class c: deviceclass "c" not found'), (), 0),
        ("invalid-pool", pod("SchedulerError", ALL_INVALID), (), 0),
        ("bind-conflict", pod("SchedulerError", f"{BIND}claim t/c got deallocated elsewhere in the meantime"), (), 0),
        ("bind-conflict", pod("SchedulerError", f"{BIND}claim t/c got allocated elsewhere in the meantime"), (), 0),
        ("bind-conflict", pod("SchedulerError", f"{BIND}claim t/c got deleted in the meantime"), (), 0),
        ("bind-conflict", pod("SchedulerError", f"{BIND}add reservation to claim t/c: not found"), (), 0),
        ("claim-in-use", pod("Unschedulable", "0/1 nodes are available: resourceclaim in use."), (), 0),
        ("claim-in-use", pod("Unschedulable", "resource claim t/c is in the process of being allocated"), (), 0),
        ("selector-fails", pod("SchedulerError", "claim t/c: selector #0: CEL compile error: x"), (), 0),
        ("claim-too-large", pod("SchedulerError", "claim t/c, request r: exact count 99 is too large"), (), 0),
        ("prepare-failing-for-long", pod(nodeName="n"), [event(PREPARE, "NodePrepareResources: rpc error")], 300),
        ("refused-by-gate", None, [event("FailedCreate", "ValidatingAdmissionPolicy 'zz-dra-gate-guard-x' denied")], 0),
        ("node-gone", pod(status={"phase": "Failed", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}), (), 0),
        ("cdi-unresolvable", pod(nodeName="n", status={"phase": "Running", "initContainerStatuses": [
            {"lastState": {"terminated": {"reason": "CreateContainerError", "message": "unresolvable CDI devices"}}}]}),
         (), 0),
        ("device-unhealthy", pod(nodeName="n", status={"containerStatuses": [{}, {"allocatedResourcesStatus": [
            {"resources": [{"health": "Healthy"}, {"health": "Unhealthy"}]}]}]}), (), 0),
    ],
)  # fmt: skip
def test_other_ways_to_say_the_same(wanted: str, pod: Any, events: Any, seconds: float) -> None:
    assert row(pod, *events, seconds=seconds) == wanted


def test_what_is_none_of_ours() -> None:
    waiting = {"waiting": {"reason": "CreateContainerError", "message": "no such image"}}
    assert row(pod(nodeName="n", status={"containerStatuses": [{"state": waiting}]})) is None
    crashed = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting CDI"}}
    assert row(pod(nodeName="n", status={"containerStatuses": [{"state": crashed}]})) is None
    preempted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    assert row(pod(nodeName="n", status={"conditions": [preempted]})) is None
    over = {"type": "DisruptionTarget", "status": "False", "reason": "DeletionByPodGC"}
    assert row(pod(nodeName="n", status={"conditions": [over]})) is None
    passed = {"type": "PodScheduled", "status": "True", "reason": "Unschedulable", "message": CANNOT}
    assert row(pod(status={"conditions": [passed]})) is None
    assert row(pod("Unschedulable", "no idea"), seconds=31) == "scheduling-failed"
    assert row(pod("Unschedulable", "no idea"), version="v1.34.2") == "scheduling-failed"


def test_a_claim_that_stays_allocated_and_unbound() -> None:
    mine = {"metadata": {"name": "c"}, "status": {"allocation": {}, "reservedFor": [{"uid": "u"}]}}
    waiting = pod("Unschedulable", CANNOT, resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    assert row(waiting, claims=[mine]) is None
    assert row(waiting, claims=[mine], seconds=900) == "binding-for-long"


# -- stages -----------------------------------------------------------------------------------------------------------


def test_what_was_said_before_does_not_count_any_more() -> None:
    """A text stays on the Pod after its cause is gone: every stage hears only what belongs to it."""
    failed = event("FailedPrepareDynamicResources", "DRA driver d is not registered", "2026-11-30T12:00:00Z")
    assert row(pod("Unschedulable", CANNOT, nodeName="n")) is None
    assert row(pod(nodeName="n"), failed) == "driver-unregistered"
    assert row(pod(nodeName="n", status={"phase": "Running"}), failed) is None
    assert row(pod("Unschedulable", CANNOT, status={"phase": "Failed"})) is None


def test_a_pod_that_nothing_stands_against() -> None:
    assert row(pod()) is None  # just created
    assert row(pod(nodeName="n", status={"phase": "Running"})) is None
    assert row(pod(nodeName="n", status={"phase": "Succeeded"})) is None
    assert row(pod(metadata={"deletionTimestamp": "2026-11-30T12:00:00Z"})) is None
    assert row(None) is None


def test_a_claim_that_the_controller_found_unneeded_is_not_missing() -> None:
    entry = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    status = {"resourceClaimStatuses": [{"name": "gpu"}]}
    assert row(pod(resourceClaims=entry)) == "claim-not-made"
    assert row(pod(resourceClaims=entry, status=status)) is None


def test_a_claim_of_the_same_name_that_is_not_reserved_for_the_pod_is_not_its_own() -> None:
    entries = [{"name": "gpu", "resourceClaimName": "c"}]
    waiting = pod("SchedulerError", "device binding timeout: claim=c", resourceClaims=entries)
    theirs = {"metadata": {"name": "c"}, "status": {"allocation": {}, "reservedFor": [{"uid": "other"}]}}
    mine = {"metadata": {"name": "c"}, "status": {"allocation": {}, "reservedFor": [{"uid": "other"}, {"uid": "u"}]}}
    pending = event("BindingConditionsPending", "waiting for binding conditions", "2026-11-30T12:00:00Z")
    assert row(waiting, pending, claims=[theirs]) == "binding-timeout"
    assert row(waiting, pending, claims=[mine]) == "device-being-readied"


def test_claims_and_events_may_be_read_only_once() -> None:
    entries = [{"name": "gpu", "resourceClaimName": "c"}]
    claims = iter([{"metadata": {"name": "c"}}])
    failure = classify(pod("Unschedulable", CANNOT, resourceClaims=entries), claims, iter([]), V, Facts())
    assert failure is not None
    assert failure.row == "no-free-device"


def test_only_the_newest_event_of_a_reason_counts() -> None:
    """Whatever the order of the list, and in both API groups' shapes."""
    entry = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    reason = "FailedResourceClaimCreation"
    missing = 'PodResourceClaim gpu: resource claim template "t": resourceclaimtemplate.resource.k8s.io "t" not found'
    quota = "PodResourceClaim gpu: create ResourceClaim : forbidden: exceeded quota: q, requested: a=1"
    early = event(reason, missing, "2026-11-30T12:00:00Z")
    late = {"reason": reason, "note": quota, "eventTime": "2026-11-30T12:00:00.500000Z"}
    again = event(reason, missing, "2026-11-30T11:00:00Z", series={"lastObservedTime": "2026-11-30T12:00:01.000000Z"})
    waiting = pod(resourceClaims=entry)
    assert row(waiting, late, early) == row(waiting, early, late) == "claim-over-quota"
    assert row(waiting, again, late, early) == "template-missing"


def test_what_is_only_a_time_away() -> None:
    assert look_again(0) == 30.0
    assert look_again(30) == 30.0
    assert look_again(10_000) is None


# -- robustness -------------------------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "u", "False", "Unschedulable", "PodScheduled"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["metadata", "spec", "status", "conditions", "type", "reason", "message", "name", "uid", "resourceClaims",
         "resourceClaimStatuses", "resourceClaimName", "reservedFor", "containerStatuses", "state", "waiting", "series",
         "allocatedResourcesStatus", "resources", "health", "lastTimestamp", "schedulingGates", "nodeName"]), inner),
    max_leaves=30,
)  # fmt: skip
_objects = st.dictionaries(st.sampled_from(["metadata", "spec", "status", "reason", "series"]), _json)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_objects, st.lists(_objects, max_size=3), st.lists(_objects, max_size=3))
def test_any_json_is_classified_the_same_twice(pod: Any, claims: Any, events: Any) -> None:
    first = classify(pod, claims, events, V, Facts())
    assert classify(pod, list(claims), list(events), V, Facts()) == first
    assert first is None or isinstance(first, Failure)
    assert classify(evidence(pod) if pod else pod, claims, events, V, Facts()) == first


@given(st.sampled_from(["Unschedulable", "SchedulerError"]), st.text(max_size=200))
def test_whatever_the_scheduler_says_has_a_row(reason: str, message: str) -> None:
    assert row(pod(reason, message)) is not None


def test_a_text_as_long_as_the_server_takes_costs_milliseconds() -> None:
    long = pod("SchedulerError", "claim t/c: selector #0 on device " * 1200)
    events = [event("FailedScheduling", "x" * 1000, f"2026-11-30T12:00:{n:02}Z") for n in range(60)]
    began = time.process_time()
    for _ in range(20):
        assert row(long, *events) == "scheduling-failed"
    assert (time.process_time() - began) / 20 < 0.02


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_facts_of_the_table_are_those_that_can_be_given() -> None:
    known = {field.name for field in dataclasses.fields(Facts)} - {"seconds", "taints"}
    assert known == set(get_args(Fact))
    assert known == {name for one in ROWS for when in one.when for name in when.facts}


def test_terminal_is_never_tried_again_and_everything_else_is() -> None:
    assert {name for name, plan in CLASSES.items() if not plan.cap} == {"terminal"}
    for one in ROWS:
        assert (one.klass == "terminal") <= (one.action in ("stop", "recreate-pod")), one.id
        assert ("operator" in one.told) >= (one.action == "alert" or one.klass in ("operator", "unknown")), one.id
    assert {one.klass for one in ROWS} == set(CLASSES)


def test_no_pattern_matches_everything() -> None:
    taken = [pattern for one in ROWS for when in one.when for pattern in patterns(when) if pattern != "."]
    assert len(taken) > 40
    assert not [pattern for pattern in taken if row_text(pattern)]


def row_text(pattern: str) -> bool:
    """Whether the pattern finds something in a text about nothing."""
    import re2  # noqa: PLC0415

    return re2.search(pattern, "The quick brown fox jumps over the lazy dog.") is not None


SOUND = """
classes: [{name: waiting, means: m, first: 1, cap: 1}]
rows:
- {id: a, title: t, when: [{stages: [bound], event: {reason: R, message: m}}], class: waiting, action: wait,
   told: [submitter], advice: a, source: s}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("stages: [bound]", "stages: []", "row a: no stages"),
        ("stages: [bound]", "stages: [born]", "Invalid enum value 'born'"),
        ("action: wait", "action: hope", "Invalid enum value 'hope'"),
        ("message: m", "message: '('", "no regular expression"),
        ("message: m", "mesage: m", "unknown field `mesage`"),
        ("stages: [bound]", "stages: [bound], since: soon", "'soon' is no Kubernetes version"),
        ("stages: [bound]", "stages: [bound], facts: {moon_is_full: true}", "Invalid enum value 'moon_is_full'"),
        ("rows:", "rows:\n- {id: a, title: t, when: [], class: waiting, action: wait, told: [], advice: a, source: s}",
         "stand twice: .'a'"),
    ],
)  # fmt: skip
def test_a_table_that_is_not_sound_is_refused(old: str, new: str, message: str) -> None:
    load(SOUND)
    assert old in SOUND
    with pytest.raises(ValueError, match=message):
        load(SOUND.replace(old, new, 1))
