"""What the arbiter is told of policy sets and capacity."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from allocation.fleet import TRAIN, claim, device, gpu_class, node, slice_of
from dra_gate.allocation.capacity import Capacity
from dra_gate.fairness import events
from dra_gate.fairness.rules import capacity_of, config_of, payer_of
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, PolicySet

CATALOGUE = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- {name: h100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA H100*"]}
- {name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"]}
- {name: l40s, deviceClassName: gpu.nvidia.com, products: ["NVIDIA L40S*"]}
"""
TENANTS = {
    "maple": "{namespaces: [m1], policy: train@1, weight: 3, quota: {devices: 8, models: {h100: 4}}}",
    "birch": "{namespaces: [b1], policy: any@1}",
    "cedar": "{namespaces: [c1], policy: any@1, quota: {devices: 3}}",
    "fern": "{namespaces: [f1], policy: any@2, keepVersions: [1]}",
    "moss": "{namespaces: [s1, s2], policy: any@1, weight: 2, canary: {policy: train@1, namespaces: [s2]}}",
}


def made(tenants: dict[str, str] = TENANTS, train: str = "50Gi") -> PolicySet:
    def policy(name: str, version: int, candidates: str, more: str = "constraints: {}") -> str:
        return f"""---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {{name: {name}, version: {version}}}
spec: {{serves: [nvidia.com/gpu], candidates: [{candidates}], {more}}}
"""

    text = CATALOGUE + policy("train", 1, "h100, a100", f"constraints: {{memory: {{min: {train}}}}}")
    text += policy("any", 1, "a100, h100") + policy("any", 2, "l40s, a100")
    for name, spec in tenants.items():
        head = "apiVersion: policy.dra-gate.io/v1alpha1\nkind: Tenant"
        text += f"---\n{head}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    found = load_documents({"all.yaml": text.encode()})
    waits = PolicyRef("any", 2)
    policies = {**found.policies, waits: replace(found.policies[waits], fallback=60)}
    lent = {
        name: replace(tenant, lease=3600, reserve={"h100": 1}, reserve_after=600)
        for name, tenant in found.tenants.items()
        if name == "maple"
    }
    return replace(found, policies=policies, tenants={**found.tenants, **lent})


def test_the_rules_of_a_set() -> None:
    active = made()
    capacity = Capacity()
    capacity.use([active])
    config = config_of([active], capacity.needs)
    assert (config.digest, config.models) == (active.digest, ("h100", "a100", "l40s"))
    train, now, after = (config.policies[ref] for ref in ("train@1", "any@1", "any@2"))
    assert [one.model for one in train.candidates] == ["h100", "a100"]
    assert all(one.needs for one in train.candidates)
    assert not any(one.needs for one in now.candidates)
    assert (train.fallback, now.fallback, after.fallback) == (events.NOW, events.NOW, 60_000)
    assert config.tenants["maple"] == events.TenantRules(
        weight=3,
        devices=8,
        models={"h100": 4},
        wants=("h100", "a100"),
        lease=3600,
        reserve={"h100": 1},
        reserve_after=600_000,
    )
    assert config.tenants["birch"] == events.TenantRules(weight=0)
    assert config.tenants["cedar"] == events.TenantRules(weight=0, devices=3)
    assert config.tenants["fern"] == events.TenantRules(wants=("a100", "l40s")), "any@1 alone is not late"
    assert config.tenants["moss"] == events.TenantRules(weight=2, wants=("h100", "a100"))
    assert msgspec.json.decode(msgspec.json.encode(config), type=events.Config) == config


def test_of_several_sets_the_active_one_counts_and_the_policies_of_all() -> None:
    active = made({"birch": "{namespaces: [b1, m1], policy: any@1}"}, train="60Gi")
    before = made()
    capacity = Capacity()
    capacity.use([active, before])
    config = config_of([active, before], capacity.needs)
    assert set(config.tenants) == {"birch"}
    assert config.policies["train@1"].candidates == tuple(
        events.Candidate(model, bits) for model, bits in capacity.needs(TRAIN)
    )
    pays = payer_of([active, before])
    assert [pays("m1", ""), pays("m1", "maple"), pays("m1", "nobody"), pays("x", "")] == [
        "birch",
        "maple",
        "birch",
        None,
    ]


def test_what_there_is() -> None:
    capacity = Capacity()
    capacity.use([made()])
    capacity.set_class(("", "gpu.nvidia.com"), gpu_class())
    for name, memory in (("n1", "80Gi"), ("n2", "80Gi"), ("n3", "40Gi")):
        capacity.set_node(("", name), node())
        capacity.set_slice(("", name), slice_of(name, [device(f"gpu-{n}", "h100", memory) for n in range(4)]))
    capacity.set_claim(("m1", "c"), claim(("n1", "gpu-0")))
    told = capacity_of(capacity.kinds())
    (needs,) = {needs for model, needs in capacity.needs(TRAIN) if model == "h100"}
    assert told.kinds == (
        events.Kind("h100", 0, 4, ((4, 1),), ((4, 1),)),
        events.Kind("h100", needs, 8, ((3, 1), (4, 1)), ((4, 2),)),
    )
    assert msgspec.json.decode(msgspec.json.encode(told), type=events.Capacity) == told
    assert capacity.largest() == {"h100": 4, "a100": 0, "l40s": 0}
