"""Why a Pod got what it got, or waits: each kind of cause by itself, on states of a few objects."""

from __future__ import annotations

from typing import Any

import pytest

from allocation import parts
from allocation.parts import asking, claim, gpu, node, pod, resource_slice, state, template
from dra_gate.allocation.chain import text_of
from dra_gate.allocation.explain import Explainer, NoSuchPodError
from dra_gate.allocation.explanation import Candidate, Explanation
from dra_gate.kube.raw import Object

N1, N2 = node("n1"), node("n2")
TAINT = {"key": "example.com/unhealthy", "effect": "NoSchedule"}


def explained(*objects: Any, name: str = "p", **more: Any) -> Explanation:
    return Explainer(state(*objects), **more).pod("research", name)


def first(explanation: Explanation) -> Candidate:
    return explanation.claims[0].requests[0].candidates[0]


def codes(candidate: Candidate) -> list[tuple[str, int]]:
    return [(reason.code, reason.devices) for reason in candidate.reasons]


def counts(candidate: Candidate) -> tuple[int, int, int, int]:
    return candidate.published, candidate.healthy, candidate.matching, candidate.free


def held(*devices: str, by: str = "a", at: str = "2026-11-30T09:00:00Z") -> list[Object]:
    given = [("gpu/h100", "n1", device) for device in devices]
    return asking(by, len(devices), namespace="lilac", on="n1", given=given, at=at)


# Each row: objects, what the Pod says more, (published, healthy, matching, free), codes with devices
SITUATIONS: dict[str, tuple[list[Any], dict[str, Any], tuple[int, int, int, int], list[tuple[str, int]]]] = {
    "in use": ([N1, resource_slice("n1", gpu("g0"), gpu("g1")), held("g0", "g1")], {}, (2, 2, 2, 0), [("in-use", 2)]),
    "tainted": ([N1, resource_slice("n1", gpu("g0", taints=[TAINT]))], {}, (1, 0, 1, 0), [("taint", 1)]),
    "a taint without effect on anybody": (
        [N1, resource_slice("n1", gpu("g0", taints=[{**TAINT, "effect": "None"}]))],
        {},
        (1, 1, 1, 1),
        [],
    ),
    "too little memory": ([N1, resource_slice("n1", gpu("g0", memory="20Gi"))], {}, (1, 1, 0, 0), [("memory", 1)]),
    "an old driver": (
        [N1, resource_slice("n1", gpu("g0", driver="535.1.0"))],
        {},
        (1, 1, 0, 0),
        [("driverVersion", 1)],
    ),
    "a node of another pool": (
        [N1, node("n2", labels={"pool": "research"}), resource_slice("n1", gpu("g0"))],
        {"nodeSelector": {"pool": "research"}},
        (1, 1, 1, 1),
        [("node-selector", 1)],
    ),
    "a node left out by affinity": (
        [N1, resource_slice("n1", gpu("g0"))],
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
                                ]
                            }
                        ]
                    }
                }
            }
        },
        (1, 1, 1, 1),
        [("node-affinity", 1)],
    ),
    "a node's taint": (
        [node("n1", taints=[{"key": "maintenance", "effect": "NoSchedule"}]), resource_slice("n1", gpu("g0"))],
        {},
        (1, 1, 1, 1),
        [("node-taint", 1)],
    ),
    "a cordoned node": (
        [node("n1", unschedulable=True), resource_slice("n1", gpu("g0"))],
        {},
        (1, 0, 1, 0),
        [("cordoned", 1)],
    ),
    "too little CPU": (
        [node("n1", cpu="2"), resource_slice("n1", gpu("g0"))],
        {"cpu": "4"},
        (1, 1, 1, 1),
        [("node-resources", 1)],
    ),
    "CPU is not the cause where the device is in use": (
        [node("n1", cpu="2"), resource_slice("n1", gpu("g0")), held("g0")],
        {"cpu": "4"},
        (1, 1, 1, 0),
        [("in-use", 1)],
    ),
    "a node that is gone": ([resource_slice("n1", gpu("g0"))], {}, (1, 0, 1, 0), [("node-gone", 1)]),
    "an incomplete pool": ([N1, resource_slice("n1", gpu("g0"), count=2)], {}, (1, 0, 1, 0), [("incomplete-pool", 1)]),
    "an invalid pool": (
        [N1, *(resource_slice("n1", gpu("g0"), name=name, count=2) for name in "ab")],
        {},
        (2, 0, 2, 0),
        [("invalid-pool", 2)],
    ),
    "an old generation": (
        [N1, resource_slice("n1", gpu("g0")), resource_slice("n1", gpu("g1", "a100", memory="1Gi"), generation=2)],
        {},
        (1, 0, 1, 0),
        [("old-generation", 1)],
    ),
    "none": ([N1], {}, (0, 0, 0, 0), [("none-published", 0)]),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_one_device_and_what_keeps_it_away(situation: str) -> None:
    objects, more, wanted, reasons = SITUATIONS[situation]
    found = first(explained(*objects, asking("p", **more)))
    assert (counts(found), codes(found)) == (wanted, reasons)
    assert (found.fate == "possible") == (not reasons)


def test_two_devices_on_two_roots_are_free_and_do_not_agree() -> None:
    roots = resource_slice("n1", gpu("g0", root="one"), gpu("g1", root="two"))
    found = first(explained(N1, roots, asking("p", 2)))
    assert codes(found) == [("topology", 2)]
    assert "resource.kubernetes.io/pcieRoot" in found.reasons[0].text


def test_two_devices_on_two_nodes_are_not_two_on_one() -> None:
    found = first(explained(N1, N2, resource_slice("n1", gpu("g0")), resource_slice("n2", gpu("g0")), asking("p", 2)))
    assert codes(found) == [("count", 2)]


def alternatives(*models: str) -> dict[str, Any]:
    name = "device.attributes['gpu.nvidia.com'].productName"
    return {
        "firstAvailable": [
            {
                "name": model,
                "deviceClassName": parts.GPU,
                "allocationMode": "ExactCount",
                "count": 1,
                "selectors": [{"cel": {"expression": f"{name}.contains('{model.upper()}')"}}],
            }
            for model in models
        ]
    }


def exactly(expression: str = "", device_class: str = parts.GPU) -> dict[str, Any]:
    asked: dict[str, Any] = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    if expression:
        asked["selectors"] = [{"cel": {"expression": expression}}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}


def test_a_later_request_of_the_claim_forces_an_earlier_one() -> None:
    spec = {
        "devices": {"requests": [{"name": "x", **alternatives("h100", "a100")}, {"name": "y", **alternatives("h100")}]}
    }
    given = [("x/a100", "n1", "g1"), ("y/h100", "n1", "g0")]
    made = claim("c", owner="p", entry="e", spec=spec, given=given)
    found = explained(
        N1,
        resource_slice("n1", gpu("g0"), gpu("g1", "a100")),
        pod("p", entries={"e": {"resourceClaimName": "c"}}, on="n1"),
        made,
    )
    assert [request.rank for request in found.claims[0].requests] == [2, 1]
    assert codes(first(found))[0] == ("backtracking", 1)
    assert "request y of the claim" in first(found).reasons[0].text


def test_another_claim_of_the_pod_forces_the_first() -> None:
    specs = {
        "c": {"devices": {"requests": [{"name": "one", **alternatives("h100", "a100")}]}},
        "d": {"devices": {"requests": [{"name": "one", **alternatives("h100")}]}},
    }
    entries = {name: {"resourceClaimName": name} for name in specs}
    found = explained(
        N1,
        resource_slice("n1", gpu("g0")),
        pod("p", entries=entries),
        [claim(name, spec=specs[name]) for name in specs],
    )
    assert codes(first(found)) == [("backtracking", 1)]
    assert "claim d of the Pod" in first(found).reasons[0].text


def test_a_companion_that_is_not_there() -> None:
    nic = {"name": "nic", "exactly": {"deviceClassName": "nic.example", "allocationMode": "ExactCount", "count": 1}}
    spec = {"devices": {"requests": [{"name": "gpu", **alternatives("h100")}, nic]}}
    found = explained(
        N1,
        parts.device_class("nic.example", "nic.example"),
        resource_slice("n1", gpu("g0")),
        pod("p", entries={"e": {"resourceClaimName": "c"}}),
        claim("c", spec=spec),
    )
    assert codes(first(found)) == [("companion", 1)]


def test_a_missing_key_stops_the_scheduler_everywhere() -> None:
    expression = "device.attributes['gpu.nvidia.com'].slot == 3"
    whole = gpu("g0")
    good = {**whole, "attributes": {**whole["attributes"], "slot": {"int": 3}}}
    found = explained(
        N1,
        N2,
        resource_slice("n1", good),
        resource_slice("n2", gpu("g0")),
        pod("p", entries={"e": {"resourceClaimName": "c"}}),
        claim("c", spec=exactly(expression)),
    )
    assert [cause.code for cause in found.causes] == ["cel-error"]
    assert "because of n2" in found.causes[0].text
    assert "no such key: slot" in found.causes[0].text
    assert codes(first(found)) == [("cel-error", 1)]


CAUSES: dict[str, tuple[list[Any], list[str]]] = {
    "class missing": (
        [pod("p", entries={"e": {"resourceClaimName": "c"}}), claim("c", spec=exactly(device_class="nope"))],
        ["class-missing"],
    ),
    "claim missing": ([pod("p", entries={"e": {"resourceClaimName": "c"}})], ["claim-missing"]),
    "claim being deleted": (
        [
            pod("p", entries={"e": {"resourceClaimName": "c"}}),
            {
                **claim("c", spec=exactly()),
                "metadata": {"name": "c", "namespace": "research", "deletionTimestamp": "now"},
            },
        ],
        ["claim-deleting"],
    ),
    "claim of another Pod": (
        [pod("p", entries={"e": {"resourceClaimName": "c"}}), claim("c", owner="other", spec=exactly())],
        ["claim-foreign"],
    ),
    "template missing": ([pod("p")], ["template-missing"]),
    "somebody's template missing": (
        [pod("p", entries={"e": {"resourceClaimTemplateName": "mine"}})],
        ["template-missing"],
    ),
    "template that no set compiles to": (
        [pod("p", entries={"e": {"resourceClaimTemplateName": "dra-gate-training-v5-x1-0123456789"}})],
        ["template-version"],
    ),
    "claim not made": (
        [pod("p"), {"kind": "ResourceClaimTemplate", **template().manifest("research")}],
        ["claim-not-made"],
    ),
    "claim not made for quota": (
        [
            pod("p"),
            {"kind": "ResourceClaimTemplate", **template().manifest("research")},
            {
                "kind": "ResourceQuota",
                "metadata": {"name": "few", "namespace": "research"},
                "spec": {"hard": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2"}},
                "status": {"used": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2"}},
            },
        ],
        ["quota"],
    ),
    "held": ([asking("p", schedulingGates=[{"name": "dra-gate.io/grant"}])], ["held", "quota"]),
    "gates of others": ([asking("p", schedulingGates=[{"name": "example.com/later"}])], ["scheduling-gates"]),
    "another scheduler": ([asking("p", schedulerName="batch")], ["other-scheduler"]),
    "nothing": ([asking("p")], []),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_keeps_the_scheduler_from_looking(cause: str) -> None:
    objects, wanted = CAUSES[cause]
    found = explained(N1, resource_slice("n1", gpu("g0")), *objects, used={"research": 5})
    assert [reason.code for reason in found.causes] == wanted


def test_a_pod_that_waits_for_its_grant_lacks_no_claim_and_says_what_the_arbiter_said() -> None:
    late = pod("p", entries={"gate-0": {"resourceClaimName": "dra-gate-late-" + "0" * 32}})
    said = {"type": "dra-gate.io/Granted", "status": "False", "reason": "Quota", "message": "2 h100 are held"}
    late["spec"]["schedulingGates"] = [{"name": "dra-gate.io/grant"}]
    late["status"]["conditions"] = [said]
    found = explained(N1, resource_slice("n1", gpu("g0")), late)
    assert [one.text for one in found.causes] == [
        "the gate holds it until its devices are granted: Quota: 2 h100 are held"
    ]
    del late["spec"]["schedulingGates"]  # granted, and somebody took the claim away
    assert [one.code for one in explained(N1, resource_slice("n1", gpu("g0")), late).causes] == ["claim-missing"]


def test_a_pod_of_an_older_version_is_told_what_it_lacks() -> None:
    found = explained(N1, resource_slice("n1", gpu("g0")), asking("p", version=6))
    candidates = found.claims[0].requests[0].candidates
    assert [(one.model, one.rank, one.fate) for one in candidates] == [
        ("a100", 1, "no"),
        ("l40s", 2, "no"),
        ("h100", 0, "not asked for"),
    ]
    assert "training@7" in candidates[2].reasons[0].text


def bound(*objects: Any, at: str = "2026-11-30T10:00:00Z") -> Explanation:
    slices = [resource_slice("n1", gpu("g0"), gpu("g1", "a100")), resource_slice("n2", gpu("g0", memory="1Gi"))]
    return explained(N1, N2, *slices, *objects, asking("p", on="n1", given=[("gpu/a100", "n1", "g1")], at=at))


def test_a_fallback_is_told_by_what_was_in_use_before() -> None:
    found = bound(held("g0"))
    request = found.claims[0].requests[0]
    assert (request.rank, request.given) == (2, ("n1/g1",))
    assert codes(request.candidates[0]) == [("in-use", 1), ("memory", 1)]
    assert request.candidates[0].reasons[0].holders == (("lilac/a", 1),)
    assert [one.fate for one in request.candidates] == ["no", "given", "no"]


def test_what_was_given_later_was_free_before() -> None:
    found = first(bound(held("g0", at="2026-11-30T11:00:00Z")))
    assert found.fate == "possible"
    assert codes(found)[0] == ("inversion", 0)


def test_a_tenant_reads_no_name_of_others() -> None:
    objects = (
        N1,
        resource_slice("n1", gpu("g0"), gpu("g1")),
        held("g0"),
        asking("b", on="n1", given=[("gpu/h100", "n1", "g1")]),
    )
    found = explained(*objects, asking("p"), as_tenant="research")
    assert first(found).reasons[0].holders == (("others", 1), ("research/b", 1))
    assert "lilac" not in text_of(found)
    assert "lilac/a" in text_of(explained(*objects, asking("p")))
    with pytest.raises(NoSuchPodError):
        Explainer(state(*objects), as_tenant="research").pod("lilac", "a")


def test_a_pod_that_the_gate_refused_is_told_from_its_owners_event() -> None:
    event = {
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "research"},
        "involvedObject": {"kind": "Job", "name": "train", "namespace": "research"},
        "reason": "FailedCreate",
        "message": "denied the request: it asks for 2 devices and the tenant has 0 left",
    }
    with pytest.raises(NoSuchPodError, match="Job train could not make it: denied the request: it asks for 2 devices"):
        explained(event, name="train-x7x2k")


def test_every_device_by_name() -> None:
    found = Explainer(state(N1, resource_slice("n1", gpu("g0"), gpu("g1")), held("g0"), asking("p")))
    lines = first(found.pod("research", "p", devices=True)).devices
    assert [(line.device, line.code) for line in lines] == [("n1/g0", "in-use"), ("n1/g1", "")]
    assert not first(found.pod("research", "p")).devices


def test_the_text_says_it_in_a_few_lines() -> None:
    found = explained(N1, resource_slice("n1", gpu("g0"), gpu("g1", memory="20Gi")), held("g0"), asking("p"))
    assert text_of(found).splitlines() == [
        "Pod research/p waits: none of its candidates can be had now  (tenant research, policy training@7)",
        f"  asked for main: 1 device of h100 > a100 > l40s  (template {template().name}, request gpu, training@7)",
        "    1  h100    2 published   2 healthy   1 matching   0 free",
        "             1 in use by lilac/a",
        "             1 on n1: memory 20Gi, at least 40Gi wanted",
        "    2  a100    0 published   0 healthy   0 matching   0 free",
        "             no such device is published",
        "    3  l40s    0 published   0 healthy   0 matching   0 free",
        "             no such device is published",
    ]


def test_notes_say_what_is_possible_and_what_the_scheduler_says() -> None:
    asks, made = asking("p")
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    asks = {**asks, "status": {**asks["status"], "conditions": [said]}}
    notes = explained(N1, resource_slice("n1", gpu("g0")), asks, made).notes
    assert notes[0].startswith("n1 could take it now")
    assert notes[-1] == "the scheduler says: 0/1 nodes are available"
    assert explained(N1, held("g0"), resource_slice("n1", gpu("g0")), asks, made).notes == notes[-1:]


def test_the_version_that_new_pods_get_is_told() -> None:
    assert explained(N1, asking("p", version=6)).notes == (
        "its claims are of training@6; new Pods here get training@7",
    )


@pytest.mark.parametrize(("root", "code"), [("other", "topology"), ("pci0000:00", "")])
def test_a_companion_on_another_root(root: str, code: str) -> None:
    nic = {"name": "nic", "exactly": {"deviceClassName": "nic.example", "allocationMode": "ExactCount", "count": 1}}
    agree = {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    spec = {"devices": {"requests": [{"name": "gpu", **alternatives("h100")}, nic], "constraints": [agree]}}
    found = explained(
        N1,
        parts.device_class("nic.example", "nic.example"),
        resource_slice("n1", gpu("g0")),
        resource_slice("n1", gpu("card", root=root), driver="nic.example"),
        pod("p", entries={"e": {"resourceClaimName": "c"}}),
        claim("c", spec=spec),
    )
    assert codes(first(found)) == ([(code, 1)] if code else [])


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_JUDGED: dict[str, dict[str, Any]] = {
    "affinity to other Pods": {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}},
    "anti-affinity to other Pods": {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}},
    "spreading": {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    "host ports": {"initContainers": [{"name": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    "volumes": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
}
JUDGED: dict[str, dict[str, Any]] = {
    "preferred": {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    "spread if possible": {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    "volumes had anywhere": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "projected": {}}]},
    "ports of its own": {"initContainers": [{"name": "i", "ports": [{"containerPort": 80}]}]},
}


def inverted(*objects: Any, **spec: Any) -> Explanation:
    slices = [resource_slice("n1", gpu("g1", "a100")), resource_slice("n2", gpu("g0"))]
    asks = asking("p", on="n1", given=[("gpu/a100", "n1", "g1")], **spec)
    return explained(N1, *(objects or (N2,)), *slices, asks)


@pytest.mark.parametrize("what", NOT_JUDGED)
def test_what_is_not_judged_is_said_and_nothing_is_told_against_it(what: str) -> None:
    found = inverted(**NOT_JUDGED[what])
    assert (first(found).fate, codes(first(found))) == ("not judged", [("not-judged", 0)])
    assert f"the Pod's {what} may" in first(found).reasons[0].text
    told = text_of(found)
    assert f"note: not judged here, and perhaps the reason: the Pod's {what}" in told
    assert "could have been had" not in told
    assert "possible on" not in told


@pytest.mark.parametrize("what", JUDGED)
def test_what_keeps_a_pod_off_no_node_needs_no_word(what: str) -> None:
    found = inverted(**JUDGED[what])
    assert (first(found).fate, codes(first(found))) == ("possible", [("inversion", 0)])
    assert "not judged" not in text_of(found)


def test_a_pod_that_waits_is_told_what_is_not_judged() -> None:
    found = explained(N1, resource_slice("n1", gpu("g0")), asking("p", **NOT_JUDGED["spreading"]))
    assert first(found).fate == "not judged"
    assert found.notes == ("not judged here, and perhaps the reason: the Pod's spreading",)


def test_a_taint_that_the_scheduler_avoids_is_named() -> None:
    avoided = node("n2", taints=[{"key": "flaky", "effect": "PreferNoSchedule"}])
    assert "n2 has node taint flaky:PreferNoSchedule" in first(inverted(avoided)).reasons[0].text
    tolerant = inverted(avoided, tolerations=[{"key": "flaky", "operator": "Exists"}])
    assert "flaky" not in text_of(tolerant)


def test_an_attribute_to_agree_on_that_is_not_published() -> None:
    bare = [gpu(name) for name in ("g0", "g1")]
    for device in bare:
        device["attributes"].pop("resource.kubernetes.io/pcieRoot")  # type: ignore[attr-defined]
    found = first(explained(N1, resource_slice("n1", *bare), asking("p", 2)))
    assert codes(found) == [("topology", 2)]
    assert found.reasons[0].text.endswith("and resource.kubernetes.io/pcieRoot is not published")


def test_more_slices_than_the_pool_declares() -> None:
    slices = [resource_slice("n1", gpu(name), name=name) for name in ("g0", "g1")]
    found = first(explained(N1, *slices, asking("p")))
    assert codes(found) == [("incomplete-pool", 2)]
    assert found.reasons[0].text == (
        "pool n1 has more slices than it declares: generation 1 has 2 slices and says that it has 1"
    )


def test_a_container_that_needs_the_device_is_named_with_what_it_asks_for() -> None:
    specs = {
        "c": {"devices": {"requests": [{"name": "one", **alternatives("h100", "a100")}]}},
        "d": {"devices": {"requests": [{"name": "one", **alternatives("h100")}]}},
    }
    asks = pod("p", entries={name: {"resourceClaimName": name} for name in specs})
    asks["spec"]["containers"] = [
        {"name": name, "resources": {"claims": [{"name": entry}]}}
        for name, entry in (("scorer", "c"), ("trainer", "d"))
    ]
    found = explained(N1, resource_slice("n1", gpu("g0")), asks, [claim(name, spec=specs[name]) for name in specs])
    assert first(found).reasons[0].text == (
        "container trainer (claim d of the Pod) asks for 1 device of h100 and can only have that if this device is "
        "left to it: with 1 h100 for scorer it gets nothing"
    )


def test_what_the_scheduler_said_before_the_claim_went_is_left_out() -> None:
    asks, made = asking("p")
    said = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    asks = {**asks, "status": {**asks["status"], "conditions": [said]}}
    there = {"kind": "ResourceClaimTemplate", **template().manifest("research")}
    gone = explained(N1, resource_slice("n1", gpu("g0")), there, asks)
    assert [cause.code for cause in gone.causes] == ["claim-not-made"]
    assert "0/1 nodes" not in text_of(gone)
    assert "0/1 nodes" in text_of(explained(N1, resource_slice("n1", gpu("g0")), there, asks, made))


@pytest.mark.parametrize("where", ["claim research/c", "template mine", "DeviceClass slots"])
def test_a_missing_key_is_mended_where_the_expression_stands(where: str) -> None:
    expression = "device.attributes['gpu.nvidia.com'].slot == 3"
    slots = parts.device_class("slots", parts.GPU)
    if where.startswith("DeviceClass"):
        slots["spec"]["selectors"] = [{"cel": {"expression": expression}}]
        spec = exactly(device_class="slots")
    else:
        spec = exactly(expression)
    source = {"resourceClaimTemplateName": "mine"} if where == "template mine" else {"resourceClaimName": "c"}
    asks, made = pod("p", entries={"e": source}), claim("c", owner="p", entry="e", spec=spec)
    told = explained(N1, slots, resource_slice("n1", gpu("g0")), asks, made).causes[0].text
    assert f"The expression stands in {where}: write has(x) && … before" in told
    assert told.endswith("or have the driver on n1 publish it")
    assert "orValue" not in told


def test_devices_in_use_on_a_node_that_is_not_for_the_pod() -> None:
    found = first(explained(node("n1", unschedulable=True), resource_slice("n1", gpu("g0")), held("g0"), asking("p")))
    assert (counts(found), codes(found)) == ((1, 0, 1, 0), [("cordoned", 1)])
    assert found.reasons[0].text == "cordoned (1 of them in use)"
    apart = {"nodeSelector": {"pool": "research"}}
    found = first(explained(N1, resource_slice("n1", gpu("g0"), gpu("g1")), held("g0"), asking("p", **apart)))
    assert (counts(found), codes(found)) == ((2, 2, 2, 1), [("node-selector", 2)])
    assert found.reasons[0].text.endswith("(1 of them in use)")


def test_a_choice_of_an_older_version_says_what_it_does_not_have() -> None:
    slices = resource_slice("n1", gpu("g0"), gpu("g1", "a100"))
    found = explained(N1, slices, asking("p", version=6, on="n1", given=[("gpu/a100", "n1", "g1")]))
    assert "a100 (choice 1 of 2 in training@6, which does not have h100)" in text_of(found)


def test_a_choice_that_a_grant_left_is_told_beside_what_it_left_out() -> None:
    late = pod("p", entries={"gate-0": {"resourceClaimName": "late"}}, on="n1")
    late["metadata"]["annotations"]["dra-gate.io/claims"] = "gate-0=1"
    spec = {"devices": {"requests": [{"name": "gpu", **alternatives("a100")}]}}
    given = claim("late", owner="p", given=[("gpu/a100", "n1", "g1")], spec=spec)
    given["metadata"] |= {"labels": template().manifest("research")["spec"]["metadata"]["labels"]}
    slices = resource_slice("n1", gpu("g0"), gpu("g1", "a100"))
    told = text_of(explained(N1, slices, late, given))
    assert "a100 (choice 1 of 1 in its grant, which leaves out h100 and l40s)" in told
    assert "-  h100  its grant leaves it out" in told
    del late["metadata"]["annotations"]["dra-gate.io/claims"]
    assert "its grant" not in text_of(explained(N1, slices, late, given))
