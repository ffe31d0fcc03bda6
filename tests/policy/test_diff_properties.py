"""No loosening goes unseen: whatever two sets are made of, a device that only the newer one gives is told of."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_gate.policy.diff import compare, loosens
from dra_gate.policy.lint import Cluster, offered
from dra_gate.policy.load import PolicyErrors, load_documents
from dra_gate.policy.model import PolicySet

API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
PRODUCTS = ("NVIDIA A", "NVIDIA AB", "NVIDIA B", "NVIDIA BC")
NAMESPACES = ("n1", "n2", "n3")


ROOT = "resource.kubernetes.io/pcieRoot"


def _device(number: int, product: str, memory: int, driver: str, architecture: str, kind: str) -> dict[str, Any]:
    return {
        "name": f"d{number}",
        "attributes": {
            "productName": {"string": product},
            "architecture": {"string": architecture},
            "driverVersion": {"version": driver},
            "type": {"string": kind},
            ROOT: {"string": "abc"[number % 3]},
        },
        "capacity": {"memory": {"value": f"{memory}Gi"}},
    }


FLEET = Cluster(
    (
        {
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": "n",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    _device(number, product, memory, driver, architecture, kind)
                    for number, (product, memory, driver, architecture, kind) in enumerate(
                        (product, memory, driver, architecture, kind)
                        for product in PRODUCTS
                        for memory, driver in ((30, "1.0.0"), (50, "2.0.0"), (50, "1.0.0"), (30, "2.0.0"))
                        for architecture, kind in (("X", "gpu"), ("Y", "mig"), ("Y", "gpu"))
                    )
                ],
            }
        },
        {
            "spec": {
                "driver": "nic.example",
                "nodeName": "n",
                "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {
                        "name": f"nic{number}",
                        "attributes": {ROOT: {"string": root}},
                        "capacity": {"bandwidth": {"value": bandwidth}},
                    }
                    for number, (root, bandwidth) in enumerate((("a", "100G"), ("a", "50G"), ("b", "50G")))
                ],
            }
        },
    )
)


CONSTRAINTS: dict[str, st.SearchStrategy[Any]] = {
    "memory": st.sampled_from([{"min": "20Gi"}, {"min": "40Gi"}, {"min": "40960Mi"}, {"min": "50Gi"}]),
    "driverVersion": st.sampled_from([{"min": "1.0.0"}, {"min": "1.5.0"}, {"min": "2.0.0"}]),
    "architectures": st.sampled_from([["X"], ["Y"], ["Y", "X"]]),
    "wholeDevice": st.just(True),
    "cel": st.sampled_from([["true"], ["1 == 1"], ["true", "1 == 1"]]),
}
COMPANION: dict[str, st.SearchStrategy[Any]] = {
    "count": st.sampled_from([1, 2, 3]),
    "minimum": st.sampled_from([{"bandwidth": "50G"}, {"bandwidth": "0.1T"}, {"nic.example/bandwidth": "100G"}]),
    "sameAttribute": st.just([ROOT]),
    "cel": st.sampled_from([["true"], ["device.driver == 'nic.example'"]]),
}
nic = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["nic", "nic", "card"]),
        "driver": st.sampled_from(["nic.example"] * 3 + ["none.example"]),
    },
    optional=COMPANION,
).map(lambda one: {**one, "deviceClassName": "nic.example"})
candidates = st.sampled_from([["a"], ["b"], ["b", "a"], ["a", "others"], ["others"]])
policy = st.fixed_dictionaries(
    {
        "serves": st.just(["nvidia.com/gpu"]),
        "candidates": candidates,
        "constraints": st.fixed_dictionaries({}, optional=CONSTRAINTS),
    },
    optional={"companions": st.lists(nic, min_size=1, max_size=2, unique_by=lambda one: one["name"])},
)
products = st.sampled_from([("NVIDIA A*", "NVIDIA B*"), ("NVIDIA A", "NVIDIA B"), ("NVIDIA A*", "*BC"), ("*B", "*C")])


@st.composite
def tenants(draw: st.DrawFn) -> list[dict[str, Any]]:
    owners = {namespace: draw(st.sampled_from(["t1", "t1", "t2", ""])) for namespace in NAMESPACES}
    made = []
    for name in ("t1", "t2"):
        namespaces = [namespace for namespace, owner in owners.items() if owner == name]
        if not namespaces:
            continue
        spec: dict[str, Any] = {"namespaces": namespaces, "policy": f"p@{draw(st.sampled_from([1, 1, 2]))}"}
        if draw(st.integers(0, 3)) == 3:
            spec["keepVersions"] = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True))
        if draw(st.integers(0, 3)) == 3:
            spec["canary"] = {"policy": f"p@{draw(st.integers(1, 3))}", "namespaces": namespaces[:1]}
        made.append({**API, "kind": "Tenant", "metadata": {"name": name}, "spec": spec})
    return made


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, Any], ...]:
    globs = draw(products)
    memory = draw(st.sampled_from([{}, {"memory": "30Gi"}]))
    models = [
        {"name": "a", "deviceClassName": "gpu.nvidia.com", "products": [globs[0]]},
        {"name": "b", "deviceClassName": "gpu.nvidia.com", "products": [globs[1]], **memory},
    ]
    policies = [
        {**API, "kind": "DevicePolicy", "metadata": {"name": "p", "version": version}, "spec": draw(policy)}
        for version in (1, 2, 3)
    ]
    return {**API, "kind": "DeviceCatalog", "models": models}, *policies, *draw(tenants())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two sets that differ in little, so that no difference hides another: a word of a policy, models, or tenants."""
    old, other = list(draw(documents())), list(draw(documents()))
    new = list(old)
    what = draw(st.sampled_from([0, 1, 1, 1, 1, 4]))  # policy 1 is the one that most tenants have
    if what == 4:
        new[4:] = other[4:]
    elif what == 0:
        new[0] = other[0]
    else:
        spec = old[what]["spec"]
        word = draw(
            st.sampled_from(["candidates", "memory", "architectures", *CONSTRAINTS, "companions", "a companion"])
        )
        if word == "candidates":
            changed = {**spec, "candidates": other[what]["spec"]["candidates"]}
        elif word == "a companion" and "companions" in spec:
            first, *rest = spec["companions"]
            part = draw(st.sampled_from(sorted(COMPANION)))
            drawn = draw(st.one_of(st.none(), COMPANION[part]))
            kept = {name: value for name, value in first.items() if name != part}
            changed = {**spec, "companions": [kept if drawn is None else {**kept, part: drawn}, *rest]}
        elif word in ("a companion", "companions"):
            changed = {name: value for name, value in spec.items() if name != "companions"}
            changed |= {name: value for name, value in other[what]["spec"].items() if name == "companions"}
        else:
            kept = {name: value for name, value in spec["constraints"].items() if name != word}
            drawn = draw(st.one_of(st.none(), CONSTRAINTS[word]))
            changed = {**spec, "constraints": kept if drawn is None else {**kept, word: drawn}}
        new[what] = {**old[what], "spec": changed}
    return written(old), written(new)


def written(made: list[dict[str, Any]]) -> str:
    """As JSON, which is YAML without anchors, and with every word in quotes: the loader refuses a plain Y."""
    return "\n---\n".join(map(json.dumps, made))


@cache
def loaded(text: str) -> PolicySet | None:
    try:
        return load_documents({"p.yaml": text.encode()})
    except PolicyErrors:  # others may leave no candidate
        return None


@cache
def given_in(text: str, namespace: str) -> frozenset[str]:
    """The devices that a Pod in the namespace may get, by any policy that it may name."""
    policy_set = loaded(text)
    assert policy_set is not None
    tenant = policy_set.tenant_of(namespace)
    refs = () if tenant is None else tenant.valid_refs(namespace)
    return frozenset(
        str(device)
        for ref in refs
        for _, device, word in offered(policy_set, policy_set.policies[ref], FLEET)
        if not word
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pairs())
def test_properties_of_every_pair(pair: tuple[str, str]) -> None:
    before, after = map(loaded, pair)
    if before is None or after is None:
        return
    assert compare(before, before) == ()
    told = compare(before, after)
    more = {n: found for n in NAMESPACES if (found := given_in(pair[1], n) - given_in(pair[0], n))}
    assert not more or loosens(told), (more, told)
