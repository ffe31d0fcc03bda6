"""What lane device-plugin makes of a policy, and what is told of it: at load, in a diff, in plain words."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dra_gate.policy.diff import compare
from dra_gate.policy.explain import explain
from dra_gate.policy.load import load_documents_with_warnings
from dra_gate.policy.model import PolicyRef, PolicySet
from dra_gate.policy.plugin_lane import Placement, placement
from dra_gate.policy.report import as_text

API = "policy.dra-gate.io/v1alpha1"
PRODUCT = "nvidia.com/gpu.product"


def model(name: str, *values: str, **more: Any) -> dict[str, Any]:
    labels = {"nodeLabels": {PRODUCT: list(values)}} if values else {}
    return {"name": name, "deviceClassName": "gpu.nvidia.com", "products": [name.upper()], **labels, **more}


H100 = model("h100", "H100", memory="81559Mi", architecture="Hopper")
A100 = model("a100", "A100", architecture="Ampere")
L40S = model("l40s", memory="46068Mi")


def loaded(
    *models: dict[str, Any], settings: dict[str, Any] | None = None, **spec: Any
) -> tuple[PolicySet, list[tuple[str, int]]]:
    """The set of these models under one policy, and the warnings of loading it: message and line."""
    policy = {"serves": ["nvidia.com/gpu"], "candidates": [one["name"] for one in models], **spec}
    documents = [
        {"apiVersion": API, "kind": "DeviceCatalog", "models": list(models)},
        {"apiVersion": API, "kind": "DevicePolicy", "metadata": {"name": "p", "version": 1}, "spec": policy},
        {
            "apiVersion": API,
            "kind": "Tenant",
            "metadata": {"name": "t"},
            "spec": {"namespaces": ["team"], "policy": "p@1"},
        },
    ]
    if settings is not None:
        documents.append({"apiVersion": API, "kind": "ClusterSettings", "spec": settings})
    text = yaml.safe_dump_all(documents, sort_keys=False)
    policy_set, warnings = load_documents_with_warnings({"all.yaml": text.encode()})
    return policy_set, [(str(one), one.place.line) for one in warnings]


def placed(*models: dict[str, Any], **spec: Any) -> Placement:
    policy_set, _ = loaded(*models, **spec)
    return placement(policy_set.policies[PolicyRef("p", 1)], policy_set.models)


NODES = {"devicePluginNodes": {"pool": "plugin"}}


def test_models_that_differ_in_one_label_are_one_term_and_others_are_not() -> None:
    found = placed(H100, A100, model("b200", nodeLabels={PRODUCT: ["B200"], "fast": ["yes"]}))
    one = {"key": PRODUCT, "operator": "In", "values": ["H100", "A100"]}
    two = ({"key": "fast", "operator": "In", "values": ["yes"]}, {"key": PRODUCT, "operator": "In", "values": ["B200"]})
    assert found.terms == ((one,), two)
    assert found.models == ("h100", "a100", "b200")


@pytest.mark.parametrize(
    ("constraints", "kept", "why"),
    [
        ({}, ("h100", "a100"), {"l40s": "no nodeLabels"}),
        ({"memory": {"min": "40Gi"}}, ("h100",), {"a100": "declares no memory", "l40s": "no nodeLabels"}),
        ({"memory": {"min": "100Gi"}}, (), {"h100": "above the 81559Mi", "a100": "no memory", "l40s": "nodeLabels"}),
        ({"architectures": ["Ampere"]}, ("a100",), {"h100": "does not list", "l40s": "no nodeLabels"}),
    ],
)
def test_a_model_of_which_nothing_says_that_it_meets_the_constraints_is_left_out(
    constraints: dict[str, Any], kept: tuple[str, ...], why: dict[str, str]
) -> None:
    found = placed(H100, A100, L40S, constraints=constraints)
    assert found.models == kept
    assert found.left_out.keys() == why.keys()
    assert all(part in found.left_out[name] for name, part in why.items())
    assert found.unkept == {}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"constraints": {"driverVersion": {"min": "550.54.15"}}}, ["driverVersion"]),
        ({"constraints": {"sameAttribute": ["resource.kubernetes.io/pcieRoot"]}}, ["sameAttribute"]),
        ({"constraints": {"cel": ["device.driver == 'gpu.nvidia.com'"]}}, ["cel"]),
        ({"constraints": {"nodes": {"pool": "plugin"}}}, []),
        ({"companions": [{"name": "nic", "deviceClassName": "nic.example", "driver": "nic.example"}]}, ["companions"]),
        ({"fallback": "after 10m"}, ["fallback"]),
        ({"fallback": "never"}, []),
        ({"constraints": {"wholeDevice": True}}, []),
        ({"constraints": {"wholeDevice": True}, "serves": ["nvidia.com/gpu.shared"]}, ["wholeDevice"]),
    ],
)
def test_what_no_label_can_express_is_named_and_told_where_it_stands(spec: dict[str, Any], words: list[str]) -> None:
    assert list(placed(H100, A100, **spec).unkept) == words
    _, quiet = loaded(H100, A100, **spec)
    assert not [told for told, _ in quiet if "device-plugin" in told], "a folder that says nothing of the lane"
    policy_set, warnings = loaded(H100, A100, settings=NODES, **spec)
    told = [(text, line) for text, line in warnings if "is not kept in lane device-plugin" in text]
    assert len(told) == len(words)
    assert all(f"{word} is not kept" in text for word, (text, _) in zip(words, told, strict=True))
    assert all(line > policy_set.policies[PolicyRef("p", 1)].place.line for _, line in told)
    _, strict = loaded(H100, A100, settings=NODES, devicePluginLane="strict", **spec)
    assert not [text for text, _ in strict if "is not kept" in text], "its Pods are refused instead"


@pytest.mark.parametrize("value", ["H100-MIG-1g.5gb", "H100-SHARED"])
def test_labels_of_parts_keep_no_whole_devices(value: str) -> None:
    assert list(placed(model("h100", "H100", value), constraints={"wholeDevice": True}).unkept) == ["wholeDevice"]
    other = model("h100", nodeLabels={"accelerator": ["h100"]})
    assert list(placed(other, constraints={"wholeDevice": True}).unkept) == ["wholeDevice"]


def test_loading_tells_of_candidates_that_the_lane_does_not_give() -> None:
    _, warnings = loaded(A100, L40S, settings=NODES, constraints={"memory": {"min": "40Gi"}})
    text = "\n".join(told for told, _ in warnings)
    assert "a100 declares no memory, so it is not given in lane device-plugin" in text
    assert "l40s has no nodeLabels" in text
    assert "no Pod of p@1 is let in" in text
    _, warnings = loaded(H100, settings=NODES, constraints={"nodes": {"pool": "dra"}})
    assert "its nodes with a device plugin have pool=plugin" in warnings[0][0]
    _, warnings = loaded(H100, devicePluginLane="strict")
    assert "nothing says which nodes give devices by device plugin" in warnings[0][0]


def test_a_diff_tells_what_loosens_in_the_lane_by_the_catalogue_alone() -> None:
    def loosening(before: PolicySet, after: PolicySet) -> list[tuple[str, str]]:
        return [(one.what, one.after) for one in compare(before, after) if one.effect == "loosens"]

    floor: dict[str, Any] = {"settings": NODES, "constraints": {"memory": {"min": "40Gi"}}}
    before, _ = loaded(H100, A100, **floor)
    after, _ = loaded(H100, A100 | {"memory": "81920Mi"}, **floor)
    assert loosening(before, after) == [("lane device-plugin", "a100")]
    assert loosening(after, before) == []
    relabelled, _ = loaded(model("h100", "H100", "T4", memory="81559Mi", architecture="Hopper"), A100, **floor)
    assert loosening(before, relabelled) == [("lane device-plugin, nodeLabels of h100", f"{PRODUCT}=H100|T4")]
    strict, _ = loaded(H100, A100, devicePluginLane="strict", **floor)
    assert loosening(strict, before) == [("devicePluginLane", "warn")]
    without, _ = loaded(H100, A100, constraints=floor["constraints"])
    assert loosening(before, without) == [("devicePluginNodes", "—")]


def test_plain_words_say_what_becomes_of_the_policy_there() -> None:
    constraints = {"memory": {"min": "40Gi"}, "driverVersion": {"min": "550.54.15"}}
    page = as_text(explain(loaded(H100, A100, settings=NODES, constraints=constraints)[0]))
    assert "Only machines of h100 are used there" in page
    assert "a100 is not given there: a100 declares no memory." in page
    assert "driverVersion does not hold there" in page
    strict = loaded(H100, settings=NODES, devicePluginLane="strict", constraints=constraints)[0]
    assert "No program of p@1 is let in there: driverVersion cannot be kept" in as_text(explain(strict))
    assert "Where devices still come by device plugin" not in as_text(explain(loaded(H100)[0]))
