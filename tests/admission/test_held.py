"""Who waits, as the stamp says it; whose a late name is; since when a Pod waits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.admission.held import Ages, Names, Waiting, read
from dra_gate.admission.late import late_name
from dra_gate.fairness.charge import Charge
from dra_gate.kube.times import milliseconds, rfc3339

NAME = late_name("review", "gate-0")
OTHER = late_name("review", "gate-1")
STAMP = {
    "dra-gate.io/tenant": "oak",
    "dra-gate.io/policy": "train",
    "dra-gate.io/policy-version": "3",
    "dra-gate.io/policy-set": "abc",
    "dra-gate.io/claims": "gate-0=2,gate-1=1",
}


def pod(uid: str = "u", created: str = "2026-11-30T10:00:00Z", owner: str = "", **more: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "namespace": "n", "name": f"p-{uid}", "uid": uid, "creationTimestamp": created,
        "annotations": {**STAMP, **more.pop("annotations", {})},
    }  # fmt: skip
    if owner:
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "uid": owner, "controller": True}]
    spec = {
        "schedulingGates": [{"name": "other/gate"}, {"name": "dra-gate.io/grant"}],
        "priority": 7,
        "resourceClaims": [
            {"name": "gate-0", "resourceClaimName": NAME},
            {"name": "mine", "resourceClaimTemplateName": "dra-gate-train-v3-x4-0123456789"},
            {"name": "gate-1", "resourceClaimName": OTHER},
        ],
        **more,
    }
    return {"metadata": metadata, "spec": spec}


def seen(*args: Any, **more: Any) -> Waiting:
    found = read(pod(*args, **more))
    assert found is not None
    return found


def test_a_held_pod_asks_for_its_late_claims_and_the_worst_case_of_its_templates() -> None:
    found = seen()
    assert found.held
    assert [(one.entry, one.claim, one.count) for one in found.late] == [("gate-0", NAME, 2), ("gate-1", OTHER, 1)]
    held = found.request(5, lambda _, template: Charge(4, {"h100": 4, "a100": 4}) if "x4" in template else Charge(), 1)
    assert (held.uid, held.tenant, held.policy, held.claims) == ("u", "oak", "train@3", (2, 1))
    assert (held.fixed, held.fixed_models, held.priority, held.queued) == (4, {"h100": 4, "a100": 4}, 7, 5)
    assert (held.group, held.members, held.pod) == ("", 1, "n/p-u")


@pytest.mark.parametrize(
    "claims", ["", "gate-0=2", "gate-0=2,gate-1=1,gate-2=1", "gate-0=0,gate-1=1", "gate-0=2,gate-0=2", "nonsense"]
)
def test_a_stamp_of_claims_that_does_not_say_each_late_entry_is_trouble(claims: str) -> None:
    found = seen(annotations={"dra-gate.io/claims": claims})
    assert found.trouble
    assert found.late == ()


def test_without_a_stamp_or_claims_nothing_is_known() -> None:
    bare = pod()
    del bare["metadata"]["annotations"]["dra-gate.io/tenant"]
    assert read(bare) is None
    assert read(pod(resourceClaims=[])) is None


def test_what_is_not_held() -> None:
    assert not seen(schedulingGates=[{"name": "other/gate"}]).held
    ended = pod()
    ended["status"] = {"phase": "Failed"}
    found = read(ended)
    assert found is not None
    assert not found.held


def test_what_the_condition_says_of_when_it_began_to_wait() -> None:
    told = pod()
    condition = {"type": "dra-gate.io/Granted", "status": "False", "reason": "Quota", "message": "m"}
    told["status"] = {"conditions": [{**condition, "lastTransitionTime": "2026-11-30T09:00:00Z"}]}
    found = read(told)
    assert found is not None
    assert found.since == milliseconds("2026-11-30T09:00:00Z")
    assert found.told == ("False", "Quota", "m")
    assert Ages().of(found) == found.since


def test_a_name_is_the_first_pods() -> None:
    names = Names()
    late, early, twin = seen("b", "2026-11-30T10:00:01Z"), seen("c"), seen("a", "2026-11-30T10:00:01Z")
    names.add(late)
    assert names.owns(late)
    names.add(early)
    names.add(twin)
    assert [names.owns(one) for one in (late, early, twin)] == [False, True, False]
    assert names.namers(("n", NAME)) == ["c", "a", "b"]
    names.drop(early)
    assert [names.owns(one) for one in (late, twin)] == [False, True]


def test_age_survives_a_pod_that_is_made_again() -> None:
    ages = Ages()
    first = seen("one", "2026-11-30T10:00:00Z", "owner")
    assert ages.of(first) == first.created
    ages.gone(first, first.created + 60_000, granted=False)
    second = seen("two", "2026-11-30T10:01:00Z", "owner")
    third = seen("three", "2026-11-30T10:01:00Z", "owner")
    assert [ages.of(second), ages.of(third), ages.of(second)] == [first.created, third.created, first.created]
    ages.gone(second, second.created, granted=False)
    assert ages.of(seen("four", "2026-11-30T10:02:00Z", "owner")) == first.created


@pytest.mark.parametrize("written", [None, "", "yesterday", "0001-01-01T00:00:00+23:59", "1969-12-31T23:59:59Z"])
def test_a_condition_without_a_true_time_makes_no_pod_old(written: str | None) -> None:
    condition = {"type": "dra-gate.io/Granted", "status": "False", "lastTransitionTime": written}
    found = read({**pod(), "status": {"conditions": [condition]}})
    assert found is not None
    assert (found.since, Ages().of(found)) == (None, found.created)


def test_an_owner_of_another_namespace_leaves_nothing() -> None:
    ages = Ages()
    first = seen("one", "2026-11-30T10:00:00Z", "owner")
    ages.of(first)
    ages.gone(first, first.created + 60_000, granted=False)
    thief = dataclasses.replace(seen("two", "2026-11-30T10:01:00Z", "owner"), namespace="elsewhere")
    assert ages.of(thief) == thief.created
    assert ages.of(seen("three", "2026-11-30T10:01:00Z", "owner")) == first.created


def test_more_late_claims_than_a_ledger_keeps_of_a_grant_are_trouble() -> None:
    names = {f"gate-{i}": late_name("review", f"gate-{i}") for i in range(33)}
    entries = [{"name": entry, "resourceClaimName": name} for entry, name in names.items()]
    counts = ",".join(f"{entry}=1" for entry in names)
    found = seen(annotations={"dra-gate.io/claims": counts}, resourceClaims=entries)
    assert (found.late, "33 late claims" in found.trouble) == ((), True)


def test_no_age_is_left_by_a_granted_pod_one_without_owner_or_too_long_ago() -> None:
    for owner, granted, until in (("o", True, "10:01"), ("", False, "10:01"), ("o", False, "11:01")):
        ages = Ages()
        first = seen("one", "2026-11-30T10:00:00Z", owner)
        ages.of(first)
        ages.gone(first, first.created, granted=granted)
        heir = seen("two", f"2026-11-30T{until}:00Z", owner)
        assert ages.of(heir) == heir.created


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), max_size=40))
def test_ages_are_neither_multiplied_nor_made_up(steps: list[tuple[str, bool, bool]]) -> None:
    """Of one owner the Pods that wait never have more old ages than Pods of it went away ungranted, and none is older
    than the oldest Pod."""
    ages, waiting, count = Ages(), dict[str, list[Waiting]](), 0
    for owner, make, granted in steps:
        now = f"2026-11-30T10:{count // 60:02}:{count % 60:02}Z"
        mine = waiting.setdefault(owner, [])
        if make or not mine:
            count += 1
            mine.append(seen(f"{owner}{count}", now, owner))
            ages.of(mine[-1])
        else:
            ages.gone(mine.pop(0), milliseconds(now), granted=granted)
        assert len({ages.of(one) for one in mine}) == len(mine), "no age is given twice"
        assert all(ages.of(one) <= one.created for one in mine)


def test_times() -> None:
    assert rfc3339(1_796_061_305_293) == "2026-11-30T17:55:05.293Z"
    assert rfc3339(1_796_061_305_293, whole=True) == "2026-11-30T17:55:05Z"
    assert milliseconds(rfc3339(1_796_061_305_293)) == 1_796_061_305_293
    assert [milliseconds(one) for one in ("", "2026-11-30T17:55:05", "x")] == [0, 0, 0]
