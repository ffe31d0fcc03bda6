"""What the arbiter's loop sees: whose a Pod is, and whether it can be granted at all."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from admission.test_held import NAME, pod
from allocation import fleet as small
from dra_gate.admission.held import Waiting
from dra_gate.allocation.capacity import Capacity
from dra_gate.controller.arbiter_view import View
from fairness.test_rules import made

STAMPED = {"dra-gate.io/tenant": "maple", "dra-gate.io/policy": "train", "dra-gate.io/policy-version": "1"}


@pytest.mark.parametrize(
    ("namespace", "gated", "payer", "refused"),
    [
        ("m1", True, "maple", ""),
        ("m1", False, "maple", ""),  # it lost its label; it is the same tenant's
        ("b1", True, "maple", ""),  # it has moved to another tenant: the stamp stays
        ("b1", False, "birch", "NotGated"),  # anybody may write such a stamp there
        ("nobodys", False, None, "NotGated"),
    ],
)
def test_a_stamp_counts_where_the_gate_judges_what_is_written(
    namespace: str, gated: bool, payer: str | None, refused: str
) -> None:
    view = View(Capacity())
    view.use([made()])
    entries = [{"name": "gate-0", "resourceClaimName": NAME}]
    stamped = pod(annotations={**STAMPED, "dra-gate.io/claims": "gate-0=1"}, resourceClaims=entries)
    stamped["metadata"]["namespace"] = namespace
    view.set_pod((namespace, "p-u"), stamped, 0)
    view.set_lane(namespace, "dra" if gated else None)
    waiting = view.pods[namespace, "p-u"]
    assert view.payer(namespace, "maple") == payer
    why = view.refusal(waiting, view.templates(waiting))
    assert ("" if why is None else why.reason) == refused


def test_what_is_charged_follows_the_label() -> None:
    view = View(Capacity())
    view.use([made()])
    bare = pod(annotations=STAMPED, schedulingGates=[], resourceClaims=[])
    bare["metadata"]["namespace"] = "b1"
    bare["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    view.set_class("gpu.nvidia.com", {"extendedResourceName": "nvidia.com/gpu"})
    view.set_pod(("b1", "p-u"), bare, 0)
    assert {tenant: charge.devices for tenant, charge in view.holdings.used.items()} == {"birch": 2}
    view.set_lane("b1", "dra")
    assert {tenant: charge.devices for tenant, charge in view.holdings.used.items() if charge.devices} == {"maple": 2}


def test_whatever_has_a_late_name_is_seen_whoever_made_it() -> None:
    view = View(Capacity())
    view.use([made()])
    view.set_claim(("m1", NAME), {"metadata": {"name": NAME, "uid": "c"}, "spec": {}})
    view.set_claim(("m1", "by-hand"), {"metadata": {"name": "by-hand", "uid": "d"}, "spec": {}})
    assert view.claims.keys() == view.dirty_claims == {("m1", NAME)}
    assert (view.claims["m1", NAME].owner, view.claims["m1", NAME].generation) == ("", 0)


def held_in(view: View, annotations: dict[str, str], uid: str = "u", **spec: Any) -> Waiting:
    """A Pod of maple's in m1, as the view knows it."""
    stamped = pod(uid, annotations={**STAMPED, **annotations}, **spec)
    stamped["metadata"]["namespace"] = "m1"
    view.set_pod(("m1", f"p-{uid}"), stamped, 0)
    return view.pods["m1", f"p-{uid}"]


LATE = [{"name": "gate-0", "resourceClaimName": NAME}]


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"policy-version": "²"}, "PolicyUnknown"),
        ({"policy-version": "9" * 5000}, "StampUnreadable"),
        ({"policy-set": "a" * 65}, "StampUnreadable"),
        ({"policy": "p" * 101}, "StampUnreadable"),
        ({"claims": "gate-0=999"}, "PolicyUnknown"),
    ],
)
def test_what_anybody_may_write_refuses_that_pod_and_harms_no_other(annotations: dict[str, str], reason: str) -> None:
    view = View(Capacity())
    view.use([made()])
    written = {f"dra-gate.io/{key}": value for key, value in {"claims": "gate-0=1", **annotations}.items()}
    waiting = held_in(view, written, resourceClaims=LATE)
    why = view.refusal(waiting, view.templates(waiting, as_told=True))
    assert why is not None
    assert why.reason == reason


def test_a_pod_whose_template_no_set_knows_any_more_is_not_let_go_for_nothing() -> None:
    view = View(Capacity())
    view.use([made()])
    mine = [{"name": "mine", "resourceClaimTemplateName": "dra-gate-train-v1-x4-0123456789"}]
    waiting = held_in(view, {"dra-gate.io/claims": ""}, resourceClaims=mine)
    why = view.refusal(waiting, view.templates(waiting))
    assert why is not None
    assert why.reason == "PolicyUnknown"


def test_a_name_goes_with_the_annotation_that_it_was_read_with() -> None:
    view = View(Capacity())
    view.use([made()])
    held_in(view, {"dra-gate.io/claims": "gate-0=1"}, "one", resourceClaims=LATE)
    second = held_in(view, {"dra-gate.io/claims": "gate-0=1"}, "two", resourceClaims=LATE)
    assert not view.names.owns(second)
    view.dirty.clear()
    held_in(view, {"dra-gate.io/claims": "garbage"}, "one", resourceClaims=LATE)
    assert view.names.owns(second)
    assert ("m1", "p-two") in view.dirty
    first = held_in(view, {"dra-gate.io/claims": "gate-0=1"}, "one", resourceClaims=LATE)
    assert view.names.owns(first)
    for uid in ("one", "two"):
        view.drop_pod(("m1", f"p-{uid}"), 0)
    assert view.names.namers(("m1", NAME)) == []


def test_late_claims_are_of_a_set_that_has_the_candidates_that_the_arbiter_knows() -> None:
    """A model more in the catalogue makes the same version of a policy with `others` another one."""
    before, after = small.policy_set(), small.policy_set()
    ref = next(iter(before.policies))
    fewer = dataclasses.replace(before.policies[ref], candidates=before.policies[ref].candidates[:1])
    before = dataclasses.replace(before, digest="before", policies={**before.policies, ref: fewer})
    tenant = next(one.name for one in after.tenants.values() if one.policy == ref)
    view = View(Capacity())
    view.use([after, before])
    stamp = {"tenant": tenant, "policy": ref.name, "policy-version": str(ref.version), "policy-set": "before"}
    written = {f"dra-gate.io/{key}": value for key, value in {**stamp, "claims": "gate-0=1"}.items()}
    waiting = held_in(view, written, resourceClaims=LATE)
    for as_told, policy_set in ((False, before), (True, after)):
        (template,) = view.templates(waiting, as_told=as_told) or ()
        assert template.candidates == policy_set.policies[ref].candidates


def test_a_class_that_only_published_devices_make_a_gated_one_stays_one() -> None:
    """Slices and classes come in any order and are told again, and policies change: quota counts what it gives."""
    product = "device.attributes['gpu.nvidia.com'].productName"
    selector = {"cel": {"expression": f"has({product}) && {product}.startsWith('NVIDIA H')"}}
    spec = {"extendedResourceName": "big.example/gpu", "selectors": [selector]}
    device = {"name": "gpu-0", "attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}}}
    published = small.slice_of("n1", [device])
    capacity = Capacity()
    view = View(capacity)
    bare = pod(annotations=STAMPED, schedulingGates=[], resourceClaims=[])
    bare["metadata"]["namespace"] = "b1"
    bare["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"big.example/gpu": "2"}}}]

    def charged() -> bool:
        view.set_pod(("b1", "p-u"), bare, 0)
        return any(charge.devices for charge in view.holdings.used.values())

    capacity.set_slice(("", "s"), published)
    view.set_slice(published["spec"])
    view.use([made()])
    assert not charged()
    view.set_class("big.example", spec)
    assert charged()
    view.set_class("big.example", dict(spec))
    assert charged()
    view.use([made()])
    assert charged()
    view.set_class("big.example", {**spec, "selectors": [{"cel": {"expression": "device.driver == 'nic.example'"}}]})
    assert not charged()
