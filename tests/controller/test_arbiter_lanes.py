"""Which namespaces are back, and what that makes of the Pods in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admission.test_held import NAME, pod
from controller.test_arbiter_view import STAMPED
from dra_gate.allocation.capacity import Capacity
from dra_gate.controller.arbiter_view import View
from dra_gate.policy.model import Constraints, PolicySet
from dra_gate.policy.switch import NO_SWITCH, PLUGIN, Switch
from fairness.test_rules import made

KEY = ("m1", "p-u")
OWNER = [{"kind": "ReplicaSet", "name": "web", "uid": "o", "controller": True}]


def labelled() -> PolicySet:
    """A set under which lane device-plugin lets Pods in: models' nodes have a label, and no memory is asked for."""
    found = made()
    models = {name: replace(one, node_labels={"nvidia.com/gpu.product": ("x",)}) for name, one in found.models.items()}
    policies = {ref: replace(one, constraints=Constraints()) for ref, one in found.policies.items()}
    return replace(found, models=models, policies=policies)


def seen(label: str | None = "dra", *, sets: PolicySet | None = None, owner: bool = True, **spec: Any) -> View:
    """A view of one Pod of maple's in m1, which waits for a late claim."""
    view = View(Capacity())
    view.use([sets or labelled()])
    entries = [{"name": "gate-0", "resourceClaimName": NAME}]
    stamp = {**STAMPED, "dra-gate.io/claims": "gate-0=1", "dra-gate.io/lane": "dra"}
    stamped = pod(annotations=stamp, resourceClaims=entries, **spec)
    stamped["metadata"] |= {"namespace": "m1", "ownerReferences": OWNER if owner else []}
    view.set_lane("m1", label)
    view.set_pod(KEY, stamped, 0)
    view.dirty.clear()
    return view


def claim(view: View, **status: Any) -> None:
    owner = {"kind": "Pod", "name": "p-u", "uid": "u", "controller": True}
    metadata = {"name": NAME, "namespace": "m1", "uid": "c", "ownerReferences": [owner]}
    view.set_claim(("m1", NAME), {"metadata": metadata, "spec": {}, "status": status})


@pytest.mark.parametrize(
    ("label", "switch", "back"),
    [
        ("dra", NO_SWITCH, False),
        (PLUGIN, NO_SWITCH, True),
        ("dra", Switch(PLUGIN), True),
        (PLUGIN, Switch("dra"), False),
        ("dra", Switch(tenants={"maple": PLUGIN}), True),
        ("dra", Switch(tenants={"birch": PLUGIN}), False),
        ("dra", Switch(PLUGIN, {"maple": ""}), False),
        (None, Switch(PLUGIN), False),  # not gated
    ],
)
def test_switch_and_label_say_who_is_back(label: str | None, switch: Switch, back: bool) -> None:
    view = seen(label)
    view.lanes.switch(switch)
    assert (KEY in view.dirty) == (back != (label == PLUGIN)), "it is looked at where that has changed"
    one = view.pods[KEY]
    assert (view.lanes.fate(one) is not None) == back
    why = view.refusal(one, view.templates(one))
    assert (why is not None and why.reason == "LaneWentBack") == back
    view.dirty.clear()
    view.lanes.switch(NO_SWITCH)
    view.set_lane("m1", "dra")
    assert view.lanes.fate(one) is None
    assert KEY in view.dirty or not back, "and again"


def test_phases_and_whether_a_grant_is_taken_back() -> None:
    view = seen(schedulingGates=[])
    one = view.pods[KEY]
    assert (view.lanes.phase(one), view.waits(one)) == ("held", True), "let go, and its claim is gone"
    claim(view)
    assert (view.lanes.phase(one), view.waits(one), view.lanes.withdraws(one)) == ("granted", False, False)
    view.lanes.switch(Switch(PLUGIN))
    assert view.lanes.withdraws(one)
    claim(view, allocation={"devices": {"results": []}})
    assert not view.lanes.withdraws(one)
    view.drop_claim(("m1", NAME))
    bound = seen(schedulingGates=[], nodeName="n")
    assert not bound.waits(bound.pods[KEY]), "what is on a node waits for nothing, whatever became of its claim"


def test_who_is_spared_says_why_and_a_pod_that_is_about_to_go_is_granted_nothing() -> None:
    view = seen(PLUGIN)
    one = view.pods[KEY]

    def why() -> str:
        found = view.refusal(one, view.templates(one))
        return "" if found is None else found.text

    assert "ReplicaSet/web makes another" in why()
    view.lanes.spare("u", "its Job would fail")
    assert (KEY in view.dirty, "held until the lane is dra again, since its Job would fail" in why()) == (True, True)
    view.lanes.spare("u", "")
    view.lanes.evict_nobody("nobody may")
    assert "since nobody may" in why()
    view.lanes.evict_nobody("")
    view.lanes.leave("u", leaving=True)
    view.set_lane("m1", "dra")
    assert "is about to be evicted" in why()
    view.lanes.leave("u", leaving=False)
    assert why() == ""
    view.lanes.leave("u", leaving=True)
    view.drop_pod(KEY, 0)
    view.set_pod(KEY, {**pod(annotations=STAMPED), "metadata": {"namespace": "m1", "name": "p-u", "uid": "v"}}, 0)
    assert view.lanes.gone_back(0) == []


@pytest.mark.parametrize("written", ["2026-12-01T10:00:00+24:00", "tomorrow", "0001-01-01T00:00:00Z", ""])
def test_a_time_that_cannot_be_read_drains_nobody(written: str) -> None:
    """What the API server takes for a time is more than can be read: +24:00 is no zone."""
    view = seen(schedulingGates=[], nodeName="n")
    view.lanes.switch(Switch(PLUGIN, drain_by=written))
    found = view.lanes.fate(view.pods[KEY], 1_800_000_000)
    assert found is not None
    assert (found.step, found.then) == ("finish", None)


def test_a_time_may_be_written_in_small_letters() -> None:
    view = seen(schedulingGates=[], nodeName="n")
    view.lanes.switch(Switch(PLUGIN, drain_by="2026-12-01t10:00:00z"))
    assert view.lanes.drain_by("m1") == 1_796_119_200


def test_where_the_next_pod_would_be_refused_nobody_is_evicted() -> None:
    view = seen(PLUGIN, sets=made())
    one = view.pods[KEY]
    found = view.lanes.fate(one)
    assert found is not None
    assert found.step == "keep"
    assert "since the next one would be refused: lane device-plugin can place on no candidate" in found.why
    view.use([labelled()])
    assert KEY in view.dirty
    again = view.lanes.fate(one)
    assert again is not None
    assert again.step == "recreate"


def test_the_time_of_a_drain_is_that_of_the_tenant() -> None:
    view = seen()
    until = "2027-01-15T08:00:00Z"
    for switch, found in (
        (Switch(PLUGIN), None),
        (Switch(PLUGIN, drain_by=until), 1_800_000_000),
        (Switch(tenants={"maple": PLUGIN}, drains={"maple": until}), 1_800_000_000),
        (Switch(PLUGIN, {"birch": PLUGIN}, drains={"birch": until}), None),
    ):
        view.lanes.switch(switch)
        assert view.lanes.drain_by("m1") == found
