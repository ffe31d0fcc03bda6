"""What the failure table holds of a Pod is told on it: condition, Event and metric, for every row that a Pod can show.

The Pods are those that tests/allocation/failures recorded from a real control plane.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from allocation.failures.evidence import RECORDED
from dra_gate.allocation.capacity import EXTRA, INCOMPLETE, TAINTED, CandidateCounts
from dra_gate.allocation.failures import ROWS
from dra_gate.allocation.inversion import Inversion
from dra_gate.allocation.record import chain
from dra_gate.controller.decision_metrics import DecisionMetrics, Standing
from dra_gate.controller.decision_plan import Decision, Fleet, Heard, decide, read_claim, read_pod

NOW = 1_796_036_400.0
NO_POD = {"refused", "refused-by-gate", "refused-by-quota", "gate-unreachable"}  # there is nothing to tell it on
NO_CLAIM = {"class-mapping-lost", "resource-not-served", "resource-exhausted", "extended-claim-stuck"}  # raw requests
NOT_ASKED = {"claim-late-after-quota"}  # the controller does not look at quotas: told as claim-over-quota
TOLD = sorted({row.id for row in ROWS} - NO_POD - NO_CLAIM - NOT_ASKED)


def recorded(row: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / f"{row}.json").read_text())
    return content


def decided(seen: Mapping[str, Any], seconds: float | None = None) -> Decision | None:
    """The decision about the recorded Pod. Its claims are taken for those of a policy, so that facts are known."""
    facts = seen["facts"]
    unusable = {f"{TAINTED}{key}=v:NoSchedule": 1 for key in facts.get("taints", ())}
    unusable |= {INCOMPLETE: 1} if facts.get("pool_incomplete") else {}
    unusable |= {EXTRA: 1} if facts.get("pool_with_extra_slices") else {}
    counts = CandidateCounts(
        "h100",
        published=1,
        matching=int(facts.get("fleet_can_match", True)),
        places=int(facts.get("fits_without_bad_device", False)),
        unusable=unusable,
    )
    fleet = Fleet(lambda *_: [counts], lambda _: "h100", _inverted, lambda _: bool(facts.get("node_ready", True)))
    pod = read_pod(seen["pod"])
    if pod is None:
        return None
    alternative = {"name": "h100", "deviceClassName": "gpu.nvidia.com"}
    labels = {"dra-gate.io/policy": "train", "dra-gate.io/policy-version": "1"}
    spec = {"devices": {"requests": [{"name": "gpu", "firstAvailable": [alternative]}]}}
    claims = {
        claim["metadata"]["name"]: read_claim(
            {"metadata": claim["metadata"] | {"labels": labels}, "spec": spec, "status": claim["status"]}
        )
        for claim in seen["claims"]
    }
    waited = facts.get("seconds", 10.0) if seconds is None else seconds
    return decide(pod, claims, "lilac", fleet, NOW, Heard(seen["version"], NOW - waited, seen["events"]))


def _inverted(*_: object) -> Inversion:
    return Inversion("taint", "for a reason that is not of interest here")


def sample(metrics: DecisionMetrics, name: str, **labels: str) -> float:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("row", TOLD)
def test_every_row_is_told_in_condition_event_and_metric(row: str) -> None:
    seen = recorded(row)
    decision = decided(seen)
    assert decision is not None
    condition = decision.condition("2026-11-30T12:00:00Z")
    title = next(one.title for one in ROWS if one.id == row)
    allocated = bool(seen["claims"]) and all("allocation" in claim["status"] for claim in seen["claims"])
    if condition["status"] == "False":
        assert condition["reason"] == seen["class"].capitalize()
        assert str(condition["message"]).startswith(f"{row}: {title}. ")
        assert decision.record.outcome == ("failed" if seen["class"] == "terminal" else "waiting")
    else:
        assert allocated
        assert condition["reason"] == "FirstChoice"
        assert f"; {seen['class']}/{row}: {title}. " in str(condition["message"])
        assert decision.record.outcome == "allocated"
    note = chain(decision.record)
    assert f"{seen['class']}: {title}. " in note
    assert len(note.encode()) <= 1024
    metrics = DecisionMetrics(Standing)
    metrics.decided(decision, None)
    assert sample(metrics, "dra_gate_allocation_failures_total", reason=row, **{"class": seen["class"]}) == 1
    assert sample(metrics, "dra_gate_unknown_failures_total") == (seen["class"] == "unknown")
    if seen["class"] == "unknown":
        assert seen["text"][:200] in str(condition["message"])


def test_every_row_is_told_or_left_out_for_a_reason() -> None:
    for row in NO_POD:
        assert recorded(row)["pod"] is None
    for row in NO_CLAIM:
        assert read_pod(recorded(row)["pod"]) is None
    for row in NOT_ASKED:
        decision = decided(recorded(row))
        assert decision is not None
        assert decision.record.reason == "claim-over-quota"


@pytest.mark.parametrize("row", ["gated", "claim-gone", "claim-missing"])
def test_silence_is_told_only_when_it_lasts(row: str) -> None:
    assert decided(recorded(row), seconds=1.0) is None


def test_what_comes_after_the_allocation_is_told_once_and_taken_back() -> None:
    seen = recorded("binding-failed")
    troubled = decided(seen)
    assert troubled is not None
    recovered = decided(seen | {"pod": seen["pod"] | {"status": {k: v for k, v in seen["pod"]["status"].items()
                                                               if k != "conditions"}}})  # fmt: skip
    assert recovered is not None
    told = read_pod(seen["pod"] | {"status": {"conditions": [troubled.condition("2026-11-30T12:00:00Z")]}})
    assert told is not None
    assert troubled.says_the_same(told.told, closely=False)
    assert not recovered.says_the_same(told.told, closely=False)
    metrics = DecisionMetrics(Standing)
    metrics.decided(troubled, None)
    metrics.decided(recovered, None)
    assert sample(metrics, "dra_gate_bind_failures_total", reason="binding-failed") == 1
    labels = {"tenant": "lilac", "policy": "train@1", "model": "h100", "rank": "1"}
    assert sample(metrics, "dra_gate_allocations_total", **labels) == 0


def test_a_pod_that_has_ended_is_kept_only_if_there_is_something_to_tell() -> None:
    seen = recorded("plugin-admission-error")
    assert read_pod(seen["pod"]) is not None
    for ended in ({"phase": "Succeeded"}, {"phase": "Failed", "reason": "Evicted"}):
        assert read_pod(seen["pod"] | {"status": ended}) is None
