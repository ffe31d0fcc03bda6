"""What is written for a grant: the ledger's entry, the claims, the patch that takes the gate off."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest

from allocation import fleet as small
from controller.held_pods import held_pod, tenant_set
from dra_gate.admission.held import Waiting, read
from dra_gate.allocation.capacity import Capacity
from dra_gate.controller.arbiter_plan import claim_of, gate_patch, grant_of, lease_patch, matches, may_stay, revised
from dra_gate.controller.arbiter_view import View, read_claim
from dra_gate.fairness.charge import Charge
from dra_gate.fairness.ledger import Grant
from dra_gate.policy.compile import Template, templates_of
from dra_gate.policy.model import PolicyRef

POLICIES = tenant_set("oak", "n", weight=1)
GATE = "dra-gate.io/grant"


def granted(*candidates: str) -> tuple[Waiting, Grant, tuple[Template, ...]]:
    """A Pod of two late claims, its grant and what its claims are made of."""
    pod = held_pod("p", POLICIES, "oak", 2, 1)
    pod["metadata"] |= {"namespace": "n", "uid": "pod-uid", "creationTimestamp": "2026-11-30T10:00:00Z"}
    waiting = read(pod)
    assert waiting is not None
    index = templates_of(POLICIES)
    templates = tuple(index.for_count("oak", PolicyRef("train", 1), count) for count in (2, 1))
    held = waiting.request(1, lambda *_: Charge(), 1)
    return waiting, grant_of(held, waiting, templates, candidates[0], candidates, generation=4, at_ms=9), templates


def stored(grant: Grant, templates: tuple[Template, ...], number: int = 0) -> dict[str, Any]:
    claim = copy.deepcopy(dict(claim_of(grant, grant.claims[number], templates[number])))
    claim["metadata"] |= {"uid": "claim-uid", "resourceVersion": "1"}
    return claim


def test_a_claim_has_only_the_candidates_granted_and_matches_its_grant() -> None:
    waiting, grant, templates = granted("h100", "a100")
    assert [(one.entry, one.name, one.count) for one in grant.claims] == [
        (one.entry, one.claim, one.count) for one in waiting.late
    ]
    for number, count in enumerate((2, 1)):
        claim = stored(grant, templates, number)
        (request,) = claim["spec"]["devices"]["requests"]
        assert [(one["name"], one["count"]) for one in request["firstAvailable"]] == [("h100", count), ("a100", count)]
        seen = read_claim(claim)
        assert seen is not None
        assert (seen.owner, seen.candidates, seen.model) == ("pod-uid", ("h100", "a100"), None)
        assert matches(seen, grant, grant.claims[number].digest)
        assert may_stay(claim, grant, grant.claims[number].digest)


@pytest.mark.parametrize("change", ["owner", "generation", "spec", "deleting", "no controller"])
def test_what_is_not_the_grants_neither_matches_nor_may_stay(change: str) -> None:
    _, grant, templates = granted("h100")
    claim = stored(grant, templates)
    if change == "owner":
        claim["metadata"]["ownerReferences"][0]["uid"] = "another"
    elif change == "generation":
        claim["metadata"]["annotations"]["dra-gate.io/ledger-generation"] = "3"
    elif change == "spec":
        claim["spec"]["devices"]["requests"][0]["firstAvailable"][0]["count"] = 1
    elif change == "deleting":
        claim["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
    else:
        claim["metadata"]["ownerReferences"][0]["controller"] = False
    assert not may_stay(claim, grant, grant.claims[0].digest)
    seen = read_claim(claim)
    assert seen is not None
    assert not matches(seen, grant, grant.claims[0].digest)


def test_what_the_pod_was_given_already_stays() -> None:
    _, grant, templates = granted("h100")
    claim = stored(grant, templates)
    claim["metadata"]["annotations"]["dra-gate.io/ledger-generation"] = "3"
    claim["status"] = {"allocation": {"devices": {"results": []}}}
    assert may_stay(claim, grant, grant.claims[0].digest)


def test_a_revised_grant_wants_other_claims() -> None:
    _, grant, templates = granted("h100")
    wider = revised(grant, templates, ("h100", "a100"), 5)
    assert (wider.candidates, wider.generation, wider.model, wider.uid) == (("h100", "a100"), 5, "h100", "pod-uid")
    old, new = read_claim(stored(grant, templates)), read_claim(stored(wider, templates))
    assert old is not None
    assert new is not None
    assert not matches(old, wider, wider.claims[0].digest)
    assert matches(new, wider, wider.claims[0].digest)


@pytest.mark.parametrize(
    ("lease", "deadline", "after"), [(0, None, None), (60, None, 60), (60, 90, 60), (60, 30, 30), (0, 30, 30)]
)
def test_only_our_gate_goes_and_a_deadline_only_comes_nearer(
    lease: int, deadline: int | None, after: int | None
) -> None:
    spec: dict[str, Any] = {"schedulingGates": [{"name": "a"}, {"name": GATE}, {"name": "b"}]}
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    pod = {"metadata": {"uid": "u"}, "spec": spec}
    patched = jsonpatch.apply_patch(pod, gate_patch("u", ("a", GATE, "b"), deadline, lease))
    assert patched["spec"]["schedulingGates"] == [{"name": "a"}, {"name": "b"}]
    assert patched["spec"].get("activeDeadlineSeconds") == after
    again = jsonpatch.apply_patch(pod, lease_patch("u", deadline, lease))
    assert again["spec"].get("activeDeadlineSeconds") == after, "where the gate is off already"
    assert again["spec"]["schedulingGates"] == spec["schedulingGates"]


@pytest.mark.parametrize(("uid", "gates"), [("other", ("a", GATE)), ("u", (GATE, "a"))])
def test_another_pod_and_another_gate_are_left_alone(uid: str, gates: tuple[str, ...]) -> None:
    pod = {"metadata": {"uid": "u"}, "spec": {"schedulingGates": [{"name": "a"}, {"name": GATE}]}}
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(pod, gate_patch(uid, gates, None, 0))


def test_the_view_keeps_who_is_in_a_group_and_which_claims_are_whose() -> None:
    view = View(Capacity())
    view.set_lane("n", "dra")
    view.use([POLICIES])
    _, grant, templates = granted("h100")
    group = {"dra-gate.io/group": "g", "dra-gate.io/group-size": "3"}
    for name in "pqr":
        pod = held_pod(name, POLICIES, "oak", annotations=group)
        pod["metadata"] |= {"namespace": "n", "uid": f"uid-{name}", "creationTimestamp": "2026-11-30T10:00:00Z"}
        if name == "r":  # a leader without devices: nothing holds it
            pod = {"metadata": {**pod["metadata"], "annotations": group}, "spec": {}}
        view.set_pod(("n", name), pod, 0)
    assert sorted(view.members("n/g/3", ("n", "p"))) == [("n", "q"), ("n", "r")]
    assert view.dirty == {("n", "p"), ("n", "q")}
    view.dirty.clear()
    view.drop_pod(("n", "r"), 0)
    assert view.dirty == {("n", "p"), ("n", "q")}, "who is left has to wait for one more"
    claim = stored(grant, templates)
    claim["metadata"]["ownerReferences"][0]["uid"] = "uid-p"
    view.dirty.clear()
    key = ("n", claim["metadata"]["name"])
    view.set_claim(key, claim)
    assert (view.dirty, view.dirty_claims, view.of_pod) == ({("n", "p")}, {key}, {"uid-p": {key}})
    assert view.model_in("n/g/3", lambda _: "") == ""
    view.look_anew()
    assert view.model_in("n/g/3", lambda uid: "a100" if uid == "uid-p" else "") == "a100"
    assert view.given_in("n/g/3") == ""
    view.drop_pod(("n", "p"), 0)
    assert [pod.name for pod in view.gone] == ["p"]
    view.drop_claim(key)
    assert (view.claims, view.of_pod) == ({}, {})


def test_hand_made_claims_are_charged_while_classes_change() -> None:
    """Thousands of claims share a spec: what it weighs is kept once, and judged anew when a class says otherwise."""
    view = View(Capacity())
    view.set_lane("m1", "dra")
    view.use([small.policy_set()])
    request = {"name": "r", "exactly": {"deviceClassName": "broad", "count": 3}}
    for name in ("one", "two"):
        claim = {"metadata": {"namespace": "m1", "name": name}, "spec": {"devices": {"requests": [request]}}}
        view.set_claim(("m1", name), claim)
    assert view.holdings.used["maple"].devices == 6, "an unknown class may give anything"
    other = {"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]}
    view.set_class("broad", other)
    assert view.holdings.used["maple"].devices == 0
    view.set_class("broad", {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]})
    assert view.holdings.used["maple"].devices == 6
    view.drop_claim(("m1", "one"))
    assert view.holdings.used["maple"].devices == 3
