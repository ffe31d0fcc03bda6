"""What becomes of a Pod when its lane goes back: each phase under each rule, and what is read of Pods and Jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dra_gate.migration.returning import PodState, failures_of, fate, harm_of, read
from dra_gate.policy.model import ON_ROLLBACK

NOW = 1_800_000_000
ONE = PodState("u", "lilac-dev", "p", "lilac", "train@1", "dra", "held", "ReplicaSet/web")
LATE = "dra-gate-late-" + "0" * 32


@pytest.mark.parametrize(
    ("phase", "rule", "step", "then"),
    [
        ("held", "recreate", "recreate", None),
        ("held", "keep", "keep", None),
        ("held", "release", "release", None),
        ("granted", "recreate", "withdraw", "recreate"),
        ("granted", "keep", "withdraw", "keep"),
        ("granted", "release", "release", None),
        ("waiting", "recreate", "recreate", None),
        ("waiting", "keep", "release", None),
        ("waiting", "release", "release", None),
        *(("bound", rule, "finish", None) for rule in ON_ROLLBACK),
        *(("ended", rule, "nothing", None) for rule in ON_ROLLBACK),
        *(("leaving", rule, "nothing", None) for rule in ON_ROLLBACK),
    ],
)
def test_each_phase_under_each_rule(phase: Any, rule: str, step: str, then: str | None) -> None:
    found = fate(replace(ONE, phase=phase), rule, None, NOW)
    assert (found.step, found.then) == (step, then)
    assert found.why


@pytest.mark.parametrize("rule", ON_ROLLBACK)
@pytest.mark.parametrize("phase", ["held", "granted", "waiting", "bound", "ended", "leaving"])
@pytest.mark.parametrize("drain_by", [None, NOW - 1, NOW + 1])
def test_who_nobody_makes_again_is_never_evicted(phase: Any, rule: str, drain_by: int | None) -> None:
    for pod in (replace(ONE, phase=phase, owner=""), replace(ONE, phase=phase, harm="its Job would fail")):
        found = fate(pod, rule, drain_by, NOW)
        assert not {found.step, found.then} & {"recreate", "drain"}
        if phase == "held" and rule == "recreate":
            assert (pod.harm or "no controller would make it again") in found.why


@pytest.mark.parametrize("rule", ON_ROLLBACK)
@pytest.mark.parametrize("phase", ["granted", "waiting", "bound"])
def test_what_was_given_devices_finishes_or_is_drained_when_its_time_is_over(phase: Any, rule: str) -> None:
    pod = replace(ONE, phase=phase, allocated=True)
    assert (fate(pod, rule, None, NOW).step, fate(pod, rule, None, NOW).then) == ("finish", None)
    assert (fate(pod, rule, NOW + 1, NOW).step, fate(pod, rule, NOW + 1, NOW).then) == ("finish", "drain")
    assert fate(pod, rule, NOW, NOW).step == "drain"


@pytest.mark.parametrize("phase", ["held", "granted", "waiting"])
def test_who_has_no_devices_is_not_drained(phase: Any) -> None:
    for rule in ON_ROLLBACK:
        assert fate(replace(ONE, phase=phase), rule, NOW - 1, NOW) == fate(replace(ONE, phase=phase), rule, None, NOW)


@pytest.mark.parametrize("phase", ["held", "waiting", "bound"])
def test_a_pod_of_the_lane_device_plugin_is_left_alone(phase: Any) -> None:
    assert fate(replace(ONE, phase=phase, lane="device-plugin"), "recreate", NOW - 1, NOW).step == "nothing"


def pod(*, gates: tuple[str, ...] = (), late: bool = True, owner: str = "ReplicaSet", **more: Any) -> dict[str, Any]:
    stamp = {"tenant": "lilac", "policy": "train", "policy-version": "1", "lane": "dra"}
    entry = {"resourceClaimName": LATE} if late else {"resourceClaimTemplateName": "dra-gate-train-1-1-abc"}
    made = [] if late else [{"name": "gate-0", "resourceClaimName": "p-gate-0-x1"}]
    owners = [{"kind": owner, "name": "web", "uid": "o", "controller": True}] if owner else []
    return {
        "metadata": {
            "uid": "u",
            "namespace": "lilac-dev",
            "name": "p",
            "annotations": {f"dra-gate.io/{key}": value for key, value in stamp.items()},
            "ownerReferences": owners,
            **more.pop("metadata", {}),
        },
        "spec": {
            "resourceClaims": [{"name": "gate-0", **entry}],
            "schedulingGates": [{"name": name} for name in gates],
            **more.pop("spec", {}),
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": made, **more.pop("status", {})},
    }


GATED, THERE = ("dra-gate.io/grant",), {LATE: {}}
GIVEN = {"status": {"allocation": {"devices": {"results": []}}}}


@pytest.mark.parametrize(
    ("obj", "claims", "phase", "allocated"),
    [
        (pod(gates=GATED), {}, "held", False),
        (pod(gates=GATED, late=False), {}, "held", False),
        (pod(), {}, "held", False),  # its grant was withdrawn
        (pod(), THERE, "granted", False),
        (pod(gates=("example.com/other",)), THERE, "granted", False),
        (pod(), {LATE: GIVEN}, "granted", True),
        (pod(late=False), {}, "waiting", False),
        (pod(late=False), {"p-gate-0-x1": {}}, "waiting", False),
        (pod(late=False), {"p-gate-0-x1": GIVEN}, "waiting", True),
        (pod(spec={"nodeName": "n"}), THERE, "bound", False),
        (pod(spec={"nodeName": "n"}, status={"phase": "Succeeded"}), THERE, "ended", False),
        (pod(spec={"nodeName": "n"}, metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"}), {}, "leaving", False),
    ],
)
def test_phases_as_objects_show_them(obj: Any, claims: Any, phase: str, allocated: bool) -> None:
    found = read(obj, claims)
    assert found is not None
    assert (found.phase, found.allocated, found.owner, found.policy) == (
        phase, allocated, "ReplicaSet/web", "train@1"
    )  # fmt: skip


def test_who_would_make_another() -> None:
    for kind, said in (("ReplicaSet", "ReplicaSet/web"), ("Node", ""), ("", "")):
        found = read(pod(owner=kind), {})
        assert found is not None and found.owner == said  # noqa: PT018
    assert read({"metadata": {"annotations": {"dra-gate.io/tenant": "lilac"}}}, {}) is None


def job(rules: Any = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {**({"podFailurePolicy": {"rules": rules}} if rules else {}), **spec}}


def rule(action: str, kind: str = "DisruptionTarget", **more: str) -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": kind, **more}]}


EXIT = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize(
    ("obj", "failures", "harm"),
    [
        (job(), 5, ""),
        (job(), 6, "would use up backoffLimit 6"),
        (job(backoffLimit=0), 0, "would use up backoffLimit 0"),
        (job([rule("Ignore")], backoffLimit=0), 0, ""),
        (job([EXIT, rule("Ignore")], backoffLimit=0), 0, ""),
        (job([rule("Count"), rule("Ignore")], backoffLimit=0), 0, "would use up backoffLimit 0"),
        (job([rule("Ignore", status="False")], backoffLimit=0), 0, "would use up backoffLimit 0"),
        (job([rule("Ignore", kind="ConfigIssue")], backoffLimit=0), 0, "would use up backoffLimit 0"),
        (job([rule("FailJob")]), 0, "podFailurePolicy of its Job says FailJob"),
        (job([rule("FailIndex")], backoffLimitPerIndex=3), 0, "podFailurePolicy of its Job says FailIndex"),
        (job(backoffLimit=2**31 - 1, backoffLimitPerIndex=2), 100, ""),
        (job(backoffLimit=2**31 - 1, backoffLimitPerIndex=1), 0, "would use up backoffLimitPerIndex 1"),
    ],
)
def test_what_a_job_would_lose(obj: Any, failures: int, harm: str) -> None:
    annotations = {"batch.kubernetes.io/job-index-failure-count": "1"}
    found = harm_of(obj, {"metadata": {"annotations": annotations}}, failures)
    assert harm in found
    assert bool(harm) == bool(found)


def test_failures_that_a_job_is_about_to_count_are_failures() -> None:
    assert failures_of({}) == 0
    assert failures_of({"status": {"failed": 2, "uncountedTerminatedPods": {"failed": ["a", "b"]}}}) == 4
