"""Lint against a cluster: one small cluster, and what each change to it or to the policies brings up."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_gate.policy.lint import Finding, cluster_of, lint
from dra_gate.policy.load import load_documents

POLICIES = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- name: h100
  deviceClassName: gpu.nvidia.com
  products: ["NVIDIA H100*"]
  memory: 81559Mi
  architecture: Hopper
  nodeLabels: {nvidia.com/gpu.product: [NVIDIA-H100-80GB-HBM3]}
- name: a100
  deviceClassName: gpu.nvidia.com
  products: ["NVIDIA A100*"]
  nodeLabels: {nvidia.com/gpu.product: [NVIDIA-A100-SXM4-80GB]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: training, version: 1}
spec:
  serves: [nvidia.com/gpu]
  candidates: [h100, a100]
  constraints: {memory: {min: 40Gi}, nodes: {pool: research}}
"""

CLUSTER = (Path(__file__).parent / "lint-cluster.yaml").read_text()


class Cluster:
    """The objects above, to be changed."""

    def __init__(self) -> None:
        self.objects: list[dict[str, Any]] = copy.deepcopy(list(yaml.safe_load_all(CLUSTER)))

    def __getitem__(self, name: str) -> dict[str, Any]:
        return next(obj for obj in self.objects if obj["metadata"]["name"] == name)

    def device(self, slice_name: str, index: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self[slice_name]["spec"]["devices"][index]
        return found

    def drop(self, name: str) -> None:
        self.objects.remove(self[name])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def run(cluster: Cluster, *changes: tuple[str, str]) -> list[Finding]:
    text = POLICIES
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return lint(load_documents({"p.yaml": text.encode()}), cluster_of(cluster.objects))


def only(findings: list[Finding]) -> tuple[str, str, str]:
    (finding,) = findings
    return finding.severity, finding.code, finding.message


def test_nothing_to_say(cluster: Cluster) -> None:
    assert run(cluster) == []


def test_model_that_matches_nothing(cluster: Cluster) -> None:
    cluster.drop("n2-0")
    (finding,) = run(cluster)
    assert (finding.severity, finding.code) == ("warning", "MODEL_MATCHES_NOTHING")
    assert finding.message == "model a100 matches none of the 2 devices that gpu.nvidia.com publishes"
    assert finding.place is not None
    assert str(finding.place) == "p.yaml:11:3"


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda c: c["n2"]["spec"].update(unschedulable=True), "node n2 is cordoned (1)"),
        (lambda c: c["n2"]["status"]["conditions"][0].update(status="Unknown"), "node n2 is not ready (1)"),
        (lambda c: c.drop("n2"), "node n2 is gone (1)"),
        (
            lambda c: c.device("n2-0").update(taints=[{"key": "xid", "effect": "NoSchedule"}]),
            "tainted xid:NoSchedule (1)",
        ),
        (
            lambda c: c.objects.append(
                {
                    "kind": "DeviceTaintRule",
                    "metadata": {"name": "r"},
                    "spec": {"deviceSelector": {"pool": "n2"}, "taint": {"key": "k", "effect": "NoExecute"}},
                }
            ),
            "tainted k:NoExecute (1)",
        ),
        (
            lambda c: c["n2-0"]["spec"]["pool"].update(resourceSliceCount=2),
            "pool n2 is incomplete: 1 of 2 slices (1)",
        ),
        (
            lambda c: c["n2-0"]["spec"]["devices"].append(c.device("n2-0")),
            "pool n2 is invalid: a device name is there twice (2)",
        ),
    ],
)
def test_model_that_matches_only_unhealthy_devices(cluster: Cluster, break_it: Any, reason: str) -> None:
    cluster["n2"].setdefault("spec", {})
    break_it(cluster)
    findings = [f for f in run(cluster) if f.code not in ("POOL", "CANDIDATE_MATCHES_NOTHING")]
    assert only(findings) == ("warning", "MODEL_UNHEALTHY", f"model a100 matches only unhealthy devices: {reason}")


@pytest.mark.parametrize(
    "harmless",
    [
        {"deviceSelector": {"pool": "n2"}, "taint": {"key": "k", "effect": "None"}},
        {"taint": {"key": "k", "effect": "NoExecute"}},
        {"deviceSelector": {"pool": "n9"}, "taint": {"key": "k", "effect": "NoExecute"}},
    ],
)
def test_taint_rules_that_reach_no_device(cluster: Cluster, harmless: dict[str, Any]) -> None:
    cluster.objects.append({"kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": harmless})
    assert run(cluster) == []


def test_only_the_newest_generation_counts(cluster: Cluster) -> None:
    old = copy.deepcopy(cluster["n1-0"])
    old["metadata"]["name"] = "n1-old"
    old["spec"]["pool"]["generation"] = 2
    old["spec"]["devices"] = [{"name": "gpu-9", "attributes": {"type": {"string": "gpu"}}}]
    cluster.objects.append(old)
    assert run(cluster) == []


def test_devices_that_no_model_covers(cluster: Cluster) -> None:
    cluster.device("n1-0", 1)["attributes"] = {
        "type": {"string": "mig"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
    }
    cluster.device("n2-0")["attributes"]["productName"] = {"string": "NVIDIA B200"}
    messages = [f.message for f in run(cluster) if f.code == "DEVICES_UNCOVERED"]
    assert messages == [
        "no model covers 1 device of gpu.nvidia.com: NVIDIA B200 (type gpu)",
        "no model covers 1 device of gpu.nvidia.com: NVIDIA H100 80GB HBM3 (type mig)",
    ]


def test_other_drivers_are_nobodys_business(cluster: Cluster) -> None:
    nic = copy.deepcopy(cluster["n1-0"])
    nic["metadata"]["name"] = "nic"
    nic["spec"] |= {"driver": "dra.net"}
    nic["spec"]["devices"] = [{"name": "eth0"}]
    cluster.objects.append(nic)
    assert run(cluster) == []


def test_models_that_share_a_device(cluster: Cluster) -> None:
    change = ('products: ["NVIDIA A100*"]', "selector: device.driver == 'gpu.nvidia.com'")
    findings = [f for f in run(cluster, change) if f.severity == "error"]
    assert only(findings) == (
        "error",
        "MODELS_OVERLAP",
        "models h100 and a100 share 2 devices: gpu.nvidia.com/n1/gpu-0, gpu.nvidia.com/n1/gpu-1",
    )


def test_node_labels_that_miss(cluster: Cluster) -> None:
    del cluster["n1"]["metadata"]["labels"]["nvidia.com/gpu.product"]
    cluster["n2"]["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-A100-PCIe"
    assert [f.message for f in run(cluster)] == [
        "nodeLabels of model h100 miss 1 node that publish it: n1 has no label nvidia.com/gpu.product",
        "nodeLabels of model a100 miss 1 node that publish it: n2 has nvidia.com/gpu.product=NVIDIA-A100-PCIe",
    ]


def test_model_without_node_labels(cluster: Cluster) -> None:
    change = ("  nodeLabels: {nvidia.com/gpu.product: [NVIDIA-A100-SXM4-80GB]}\n", "")
    severity, code, message = only(run(cluster, change))
    assert (severity, code) == ("note", "NO_NODE_LABELS")
    assert "only softly across nodes" in message


def test_declared_facts_that_are_wrong(cluster: Cluster) -> None:
    changes = [("memory: 81559Mi", "memory: 80Gi"), ("architecture: Hopper", "architecture: Blackwell")]
    assert [f.message for f in run(cluster, *changes)] == [
        "model h100 declares memory 80Gi; devices publish 81559Mi (2)",
        "model h100 declares Blackwell; devices publish Hopper (2)",
    ]


def test_candidate_that_its_constraints_turn_away(cluster: Cluster) -> None:
    cluster["n2"]["metadata"]["labels"]["pool"] = "other"
    assert only(run(cluster)) == (
        "warning",
        "CANDIDATE_MATCHES_NOTHING",
        "candidate a100 of training@1 matches none of its 1 device: turned away by nodes (1)",
    )
    codes = {f.code: f for f in run(cluster, ("min: 40Gi", "min: 81Gi"))}
    assert "turned away by memory (1)" in codes["CANDIDATE_MATCHES_NOTHING"].message
    assert codes["POLICY_MATCHES_NOTHING"].severity == "error"


def test_candidate_with_only_unhealthy_devices_left(cluster: Cluster) -> None:
    cluster.device("n1-0", 0)["capacity"]["memory"]["value"] = "30Gi"
    cluster.device("n1-0", 1)["taints"] = [{"key": "k", "effect": "NoExecute"}]
    findings = [f for f in run(cluster) if f.code.startswith("CANDIDATE")]
    assert only(findings) == (
        "warning",
        "CANDIDATE_UNHEALTHY",
        "candidate h100 of training@1 matches only unhealthy devices: tainted k:NoExecute (1)",
    )


def test_attribute_that_devices_lack(cluster: Cluster) -> None:
    change = ("nodes: {pool: research}", "sameAttribute: [resource.kubernetes.io/pcieRoot]")
    cluster.device("n1-0", 0)["attributes"] = dict(cluster.device("n1-0", 0)["attributes"])  # not the alias's
    cluster.device("n1-0", 0)["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": "pci0000:10"}
    findings = run(cluster, change)
    assert {f.code for f in findings} == {"ATTRIBUTE_MISSING"}
    assert [f.message.split(",")[0] for f in findings] == [
        "candidate h100 of training@1: resource.kubernetes.io/pcieRoot is missing on 1 of 2 devices",
        "candidate a100 of training@1: resource.kubernetes.io/pcieRoot is missing on 1 of 1 device",
    ]


# -- companions --------------------------------------------------------------------------------------------------------

NIC = """
  companions:
  - name: nic
    deviceClassName: nic.example
    driver: nic.example
    minimum: {bandwidth: 100G}
    sameAttribute: [resource.kubernetes.io/pcieRoot]
"""
WITH_NIC = (
    "constraints: {memory: {min: 40Gi}, nodes: {pool: research}}",
    f"constraints: {{memory: {{min: 40Gi}}}}{NIC}",
)


@pytest.fixture
def paired(cluster: Cluster) -> Cluster:
    """The cluster with a NIC on n1 on the root of both GPUs, and one on n2 on that of its GPU."""
    cluster.objects.append(
        {
            "kind": "DeviceClass",
            "metadata": {"name": "nic.example"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic.example'"}}]},
        }
    )
    for node in ("n1", "n2"):
        nics = copy.deepcopy(cluster[f"{node}-0"])
        nics["metadata"]["name"] = f"{node}-nics"
        nics["spec"] |= {"driver": "nic.example", "devices": [{"name": "nic-0", "attributes": {}}]}
        nics["spec"]["devices"][0]["capacity"] = {"bandwidth": {"value": "100G"}}
        for device in (*cluster[f"{node}-0"]["spec"]["devices"], *nics["spec"]["devices"]):
            device["attributes"] = {**device["attributes"], "resource.kubernetes.io/pcieRoot": {"string": f"{node}:a"}}
        cluster.objects.append(nics)
    return cluster


def test_companions_that_are_there(paired: Cluster) -> None:
    assert run(paired, WITH_NIC) == []
    paired.objects = [one for one in paired.objects if one["kind"] != "DeviceClass"]
    assert run(paired, WITH_NIC) == [], "classes that are not known accept everything, and the driver's own alone count"


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (
            lambda c: c["nic.example"]["metadata"].update(name="nics"),
            ["CLASS_MISSING there is no DeviceClass nic.example: a claim that names it waits for ever",
             "COMPANION_MATCHES_NOTHING companion nic of training@1 matches none of the 0 devices"],
        ),
        (
            lambda c: [c.device(f"{n}-nics")["capacity"].update(bandwidth={"value": "99G"}) for n in ("n1", "n2")],
            ["COMPANION_MATCHES_NOTHING companion nic of training@1 matches none of the 2 devices of nic.example: "
             "turned away by minimum.bandwidth (2)"],
        ),
        (
            lambda c: [c[f"{n}-nics"]["spec"].update(driver="gpu.other.example") for n in ("n1", "n2")],
            ["COMPANION_MATCHES_NOTHING companion nic of training@1 matches none of the 0 devices of nic.example that "
             "nic.example publishes"],
        ),
        (
            lambda c: [
                c.device(f"{n}-nics").update(taints=[{"key": "k", "effect": "NoExecute"}]) for n in ("n1", "n2")
            ],
            ["COMPANION_UNHEALTHY companion nic of training@1 matches only unhealthy devices: tainted k:NoExecute (2)"],
        ),
        (
            lambda c: c.device("n2-nics")["attributes"].clear(),
            ["ATTRIBUTE_MISSING companion nic of training@1: resource.kubernetes.io/pcieRoot is missing on 1 of 2 "
             "devices, which are never given",
             "CANDIDATE_MATCHES_NOTHING candidate a100 of training@1 matches none of its 1 device: turned away by "
             "companion nic (1)"],
        ),
        (
            lambda c: c.device("n1-0")["attributes"].pop("resource.kubernetes.io/pcieRoot"),
            ["ATTRIBUTE_MISSING candidate h100 of training@1: resource.kubernetes.io/pcieRoot is missing on 1 of 2 "
             "devices, which never get nic"],
        ),
    ],
    ids=["no class", "below the floor", "another driver", "unhealthy", "no root on a NIC", "no root on a GPU"],
)  # fmt: skip
def test_companions_that_are_not(paired: Cluster, break_it: Any, expected: list[str]) -> None:
    break_it(paired)
    found = [f"{f.code} {f.message}" for f in run(paired, WITH_NIC)]
    for wanted in expected:
        assert any(one.startswith(wanted) for one in found), (wanted, found)
    nothing = expected[0].startswith(("CLASS_MISSING", "COMPANION_MATCHES_NOTHING"))
    assert any(one == "POLICY_MATCHES_NOTHING no published device meets training@1" for one in found) is nothing
    assert len(found) == len(expected) + (3 if nothing else 0), found  # each candidate, and the policy


def test_a_companion_on_another_node_or_too_few_of_them(paired: Cluster) -> None:
    paired["n2-nics"]["spec"]["nodeName"] = "n1"
    assert only(run(paired, WITH_NIC))[2].endswith(
        "a100 of training@1 matches none of its 1 device: turned away by companion nic (1)"
    )
    paired["n2-nics"]["spec"]["nodeName"] = "n2"
    several = (WITH_NIC[0], WITH_NIC[1].replace("    minimum", "    count: 2\n    minimum"))
    assert [f.code for f in run(paired, several)] == ["CANDIDATE_MATCHES_NOTHING"] * 2 + ["POLICY_MATCHES_NOTHING"]


def test_own_condition_of_a_companion_that_fails(paired: Cluster) -> None:
    """What is guarded in form may still not be evaluated: a value of another type than the expression takes it for."""
    own = "has(device.attributes['nic.example'].rdma) && device.attributes['nic.example'].rdma"
    paired.device("n1-nics")["attributes"]["rdma"] = {"string": "yes"}
    change = (WITH_NIC[0], WITH_NIC[1].rstrip("\n") + f'\n    cel: ["{own}"]\n')
    failures = [f for f in run(paired, change) if f.code == "SELECTOR_FAILS"]
    assert len(failures) == 1
    assert failures[0].message.startswith("companion nic: selector has(")
    assert str(failures[0].place).startswith("p.yaml:24:")


def test_class_that_is_missing(cluster: Cluster) -> None:
    cluster["gpu.nvidia.com"]["metadata"]["name"] = "gpus"
    findings = run(cluster)
    assert (findings[0].severity, findings[0].code) == ("error", "CLASS_MISSING")
    assert "there is no DeviceClass gpu.nvidia.com: a claim that names it waits for ever" in findings[0].message


def test_class_whose_selector_fails(cluster: Cluster) -> None:
    del cluster.device("n2-0")["attributes"]["type"]
    errors = [f for f in run(cluster) if f.severity == "error"]
    assert [f.code for f in errors] == ["SELECTOR_FAILS"]
    message = errors[0].message
    assert "DeviceClass gpu.nvidia.com" in message
    assert "fails on device gpu.nvidia.com/n2/gpu-0" in message
    assert "no such key: type" in message


def test_device_that_cannot_be_read(cluster: Cluster) -> None:
    cluster.device("n2-0")["capacity"]["memory"]["value"] = "80 Gi"
    assert any("gpu.nvidia.com/n2/gpu-0: capacity[memory].value" in f.message for f in run(cluster))


def test_without_nodes_and_classes(cluster: Cluster) -> None:
    cluster.objects = [obj for obj in cluster.objects if obj["kind"] == "ResourceSlice"]
    assert only(run(cluster))[:2] == ("note", "NO_NODES")


def test_empty_cluster() -> None:
    policy_set = load_documents({"p.yaml": POLICIES.encode()})
    assert {finding.code for finding in lint(policy_set, cluster_of([]))} == {"MODEL_MATCHES_NOTHING"}


def sharing(reserve: int, *others: str) -> tuple[str, str]:
    """Adds tenant fern, of weight 1 with so many H100s reserved, and others with these words."""
    head = "---\napiVersion: policy.dra-gate.io/v1alpha1\nkind: Tenant\nmetadata: {name: %s}\n"
    tenants = [("fern", f"weight: 1, reserve: {{h100: {reserve}}}"), *((f"t{n}", one) for n, one in enumerate(others))]
    specs = (head % name + f"spec: {{namespaces: [{name}], policy: training@1, {words}}}\n" for name, words in tenants)
    last = "nodes: {pool: research}}\n"
    return last, last + "".join(specs)


@pytest.mark.parametrize(
    ("others", "share"),
    [
        ([], 2),
        (["weight: 1"], 1),
        (["weight: 3"], 0),
        # Without weight it counts as 1 where it waits for models at all, and not where it is in no queue.
        (["quota: {models: {h100: 1}}"], 1),
        (["quota: {devices: 1}"], 2),
    ],
)
def test_reserve_above_the_share_that_there_is(cluster: Cluster, others: list[str], share: int) -> None:
    (finding,) = run(cluster, sharing(share + 1, *others))
    assert (finding.severity, finding.code) == ("warning", "RESERVE_ABOVE_SHARE")
    assert finding.message.startswith(
        f"tenant fern reserves {share + 1} of h100, and its share of 2 healthy devices is {share}: "
    )
    if share:
        assert run(cluster, sharing(share, *others)) == []


def test_what_is_unhealthy_is_in_no_share(cluster: Cluster) -> None:
    cluster.device("n1-0")["taints"] = [{"key": "x", "effect": "NoSchedule"}]
    assert "its share of 1 healthy device is 1: " in only(run(cluster, sharing(2)))[2]
    cluster.drop("n1-0")
    assert {finding.code for finding in run(cluster, sharing(2))} == {"MODEL_MATCHES_NOTHING"}
