"""What Pods would get, as things are and with changes."""

from __future__ import annotations

from typing import Any

import pytest

from allocation import parts
from allocation.parts import asking, claim, gpu, node, pod, resource_slice, state, template
from dra_gate.allocation.changes import ChangeError, with_healthy, with_node_like, with_policies, without
from dra_gate.allocation.state import State
from dra_gate.allocation.what_if import forecasts
from dra_gate.policy.load import load_documents

N1, N2 = node("n1"), node("n2")
TAINT = {"key": "example.com/unhealthy", "effect": "NoSchedule"}


def got(of: State, *names: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    asked = [("research", name) for name in names] if names else None
    return {one.pod: (one.node, one.got) for one in forecasts(of, asked)}


def test_pods_are_placed_one_after_another_in_the_schedulers_order() -> None:
    now = state(
        N1,
        resource_slice("n1", gpu("g0"), gpu("g1", "a100")),
        asking("young", created="2026-11-30T09:00:02Z"),
        asking("urgent", created="2026-11-30T09:00:03Z", priority=5),
        asking("old", created="2026-11-30T09:00:01Z"),
    )
    found = forecasts(now)
    assert [(one.pod, one.got) for one in found] == [
        ("urgent", ("gate-0 gpu/h100: n1/g0",)),
        ("old", ("gate-0 gpu/a100: n1/g1",)),
        ("young", ()),
    ]
    assert found[2].why.startswith("h100: 1 in use by research/urgent; a100: 1 in use by research/old")


def test_a_pod_takes_up_cpu_for_the_next_one() -> None:
    now = state(
        node("n1", cpu="3"), resource_slice("n1", gpu("g0"), gpu("g1")), asking("a", cpu="2"), asking("b", cpu="2")
    )
    first, second = forecasts(now)
    assert (first.node, second.node) == ("n1", "")
    assert "cpu: asks 2, 1 of 3 left" in second.why


def test_what_is_not_judged_of_a_pod_is_said() -> None:
    spread = [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    now = state(N1, resource_slice("n1", gpu("g0"), gpu("g1")), asking("a", topologySpreadConstraints=spread))
    assert forecasts(now)[0].chance == ("not judged here: the Pod's spreading",)


def test_a_claim_still_to_be_made_is_placed_too() -> None:
    now = state(N1, resource_slice("n1", gpu("g0")), pod("p"), template().manifest("research"), pod("q"))
    assert got(now) == {"p": ("n1", ("gate-0 gpu/h100: n1/g0",)), "q": ("", ())}


def test_a_placed_pod_is_asked_about_as_if_it_were_not() -> None:
    later = asking("a", namespace="lilac", on="n1", given=[("gpu/a100", "n1", "g1")])
    now = state(
        N1,
        resource_slice("n1", gpu("g0"), gpu("g1", "a100")),
        asking("p", on="n1", given=[("gpu/h100", "n1", "g0")]),
        later,
    )
    assert got(now, "p") == {"p": ("n1", ("gate-0 gpu/h100: n1/g0",))}
    assert got(now) == {}


def test_an_allocated_claim_keeps_the_pod_to_its_nodes() -> None:
    local = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}
    shared = claim("shared", spec=template().spec["spec"], given=[("gpu/h100", "n2", "g0")])
    shared["status"]["allocation"]["nodeSelector"] = local
    entries = {"s": {"resourceClaimName": "shared"}, "gate-0": {"resourceClaimTemplateName": template().name}}
    slices = [resource_slice("n1", gpu("g0"), gpu("g1")), resource_slice("n2", gpu("g0"), gpu("g1", "a100"))]
    now = state(N1, N2, slices, shared, pod("p", entries=entries), template().manifest("research"))
    assert got(now) == {"p": ("n2", ("gate-0 gpu/a100: n2/g1",))}


def test_one_more_node_like_another() -> None:
    now = state(
        node("n1", unschedulable=True),
        resource_slice("n1", gpu("g0")),
        asking("a", on="n1", given=[("gpu/h100", "n1", "g0")]),
        asking("p"),
    )
    assert got(now) == {"p": ("", ())}
    assert got(with_node_like(now, "n1")) == {"p": ("n1-2", ("gate-0 gpu/h100: n1-2/g0",))}
    with pytest.raises(ChangeError, match="no node n9"):
        with_node_like(now, "n9")


def rule(name: str, **selector: str) -> dict[str, Any]:
    spec = {"deviceSelector": selector, "taint": TAINT}
    return {"kind": "DeviceTaintRule", "metadata": {"name": name, "uid": name}, "spec": spec}


@pytest.mark.parametrize("selector", [{"driver": parts.GPU}, {"pool": "n1"}, {"pool": "n1", "device": "g1"}])
def test_a_device_healthy_again_and_no_other(selector: dict[str, str]) -> None:
    devices = [gpu("g0", taints=[TAINT]), gpu("g1", taints=[TAINT])]
    waiting = state(
        N1,
        N2,
        resource_slice("n1", *devices),
        resource_slice("n2", gpu("g0")),
        rule("r", **selector),
        rule("s", pool="n2"),
        asking("p"),
        asking("q", created="2026-11-30T09:30:00Z"),
    )
    assert got(waiting) == {"p": ("", ()), "q": ("", ())}
    assert got(with_healthy(waiting, "n1/g1")) == {"p": ("n1", ("gate-0 gpu/h100: n1/g1",)), "q": ("", ())}
    with pytest.raises(ChangeError, match="no device n1/g7"):
        with_healthy(waiting, "n1/g7")


def test_something_gone() -> None:
    now = state(
        N1,
        N2,
        resource_slice("n1", gpu("g0")),
        resource_slice("n2", gpu("g0", "a100")),
        asking("a", on="n1", given=[("gpu/h100", "n1", "g0")]),
        asking("p"),
    )
    assert got(now) == {"p": ("n2", ("gate-0 gpu/a100: n2/g0",))}
    assert got(without(now, "pod/research/a")) == {"p": ("n1", ("gate-0 gpu/h100: n1/g0",))}
    assert got(without(now, "node/n2")) == {"p": ("", ())}
    assert got(without(now, "device/n2/g0")) == {"p": ("", ())}
    for what in ("node/n9", "pod/research/b", "device/n1/g9", "nonsense"):
        with pytest.raises(ChangeError):
            without(now, what)


def test_other_policies() -> None:
    files = {"policies.yaml": parts.POLICIES.replace("candidates: [h100, a100, l40s]", "candidates: [l40s, h100]")}
    digest = load_documents({name: content.encode() for name, content in files.items()}).digest
    now = state(N1, resource_slice("n1", gpu("g0"), gpu("g1", "l40s")), asking("p"), asking("q", version=6))
    assert got(now) == {"p": ("n1", ("gate-0 gpu/h100: n1/g0",)), "q": ("n1", ("gate-0 gpu/l40s: n1/g1",))}
    then = with_policies(now, {digest: files}, digest)
    assert got(then) == {"p": ("n1", ("gate-0 gpu/l40s: n1/g1",)), "q": ("n1", ("gate-0 gpu/h100: n1/g0",))}


def test_the_nodes_of_other_policies() -> None:
    text = parts.POLICIES.replace("constraints: {memory", "constraints: {nodes: {pool: other}, memory")
    files = {"policies.yaml": text}
    digest = load_documents({"policies.yaml": text.encode()}).digest
    now = state(N1, node("n2", labels={"pool": "other"}), resource_slice("n1", gpu("g0")), asking("p"))
    slices = state(N1, node("n2", labels={"pool": "other"}), resource_slice("n2", gpu("g0")), asking("p"))
    assert got(with_policies(now, {digest: files}, digest)) == {"p": ("", ())}
    assert got(with_policies(slices, {digest: files}, digest))["p"][0] == "n2"


def test_a_pod_that_is_not_there() -> None:
    with pytest.raises(ChangeError, match="research/nobody"):
        forecasts(state(N1), [("research", "nobody")])


def test_of_a_held_pod_the_gate_s_reason_is_told() -> None:
    late = pod("p", entries={"gate-0": {"resourceClaimName": "dra-gate-late-1"}})
    late["spec"]["schedulingGates"] = [{"name": "dra-gate.io/grant"}]
    (found,) = forecasts(state(N1, resource_slice("n1", gpu("g0")), late), [("research", "p")])
    assert found.why.startswith("the gate holds it until its devices are granted")
    assert found.why.endswith("what it would be granted then is not told here")
