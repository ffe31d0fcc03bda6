"""ResourceQuotas around what the arbiter grants: their size, who gets none, and that they do not bite first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.fleet import Fleet
from dra_gate.fairness.charge import claim_charge
from dra_gate.policy.compile import compile_template, late_claim
from dra_gate.policy.fence import HEADROOM, NAME, Fence, fence
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, PolicySet

API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
CLASSES = {"h100": "gpu.nvidia.com", "a100": "gpu.nvidia.com", "mi300": "gpu.amd.com", "max": "gpu.intel.com"}
KEY = ".deviceclass.resource.k8s.io/devices"


def a_set(
    tenant: Mapping[str, Any], policies: Mapping[int, Mapping[str, Any]], kueue: tuple[str, ...] = ()
) -> PolicySet:
    """A set with the models of CLASSES, versions of policy `p`, and tenant fern, whose namespaces are a and b."""
    models = [{"name": name, "deviceClassName": one, "products": [name]} for name, one in CLASSES.items()]
    documents = [{**API, "kind": "DeviceCatalog", "models": models}]
    for version, spec in policies.items():
        head = {**API, "kind": "DevicePolicy", "metadata": {"name": "p", "version": version}}
        documents.append({**head, "spec": {"serves": ["nvidia.com/gpu"], **spec}})
    body = {"namespaces": ["a", "b"], "policy": "p@1", **tenant}
    documents.append({**API, "kind": "Tenant", "metadata": {"name": "fern"}, "spec": body})
    if kueue:
        documents.append({**API, "kind": "ClusterSettings", "spec": {"kueueNamespaces": list(kueue)}})
    return load_documents({"p.yaml": yaml.safe_dump_all(documents).encode()})


def fern(policy_set: PolicySet, namespace: str = "a") -> Fence:
    return fence(policy_set, policy_set.tenants["fern"], namespace)


def sizes(tenant: Mapping[str, Any], *candidates: list[str]) -> dict[str, int]:
    """What fern is fenced to by class, headroom apart; the versions of its policy have these candidates."""
    policies = {version: {"candidates": names} for version, names in enumerate(candidates, 1)}
    keep = {"keepVersions": list(policies)} if len(policies) > 1 else {}
    found = fern(a_set({**tenant, **keep}, policies))
    return {name.removesuffix(KEY): devices // HEADROOM for name, devices in found.hard.items()}


@pytest.mark.parametrize(
    ("quota", "candidates", "expected"),
    [
        # A class of several models: their limits add up, as far as all devices together allow.
        ({"models": {"h100": 2, "a100": 3}}, [["h100", "a100"]], {"gpu.nvidia.com": 5}),
        ({"models": {"h100": 2, "a100": 3}, "devices": 4}, [["h100", "a100"]], {"gpu.nvidia.com": 4}),
        ({"models": {"h100": 2}, "devices": 9}, [["h100", "a100"]], {"gpu.nvidia.com": 9}),
        ({"models": {"h100": 0}}, [["h100"]], {"gpu.nvidia.com": 0}),
        # A model without limit leaves its class without one.
        ({"models": {"h100": 2}}, [["h100", "a100"]], {}),
        # A claim that got an MI300 counts for the NVIDIA class all the same, if it might have got that.
        ({"models": {"h100": 2, "mi300": 3}}, [["h100", "mi300"]], {"gpu.nvidia.com": 5, "gpu.amd.com": 5}),
        ({"models": {"h100": 2, "mi300": 3}}, [["h100"], ["mi300"]], {"gpu.nvidia.com": 2, "gpu.amd.com": 3}),
        ({"models": {"h100": 2}}, [["h100"], ["mi300"]], {"gpu.nvidia.com": 2}),
        # What nobody of the tenant gets is no part of it.
        ({"models": {"h100": 2, "max": 5}}, [["h100"]], {"gpu.nvidia.com": 2}),
    ],
)
def test_sizes(quota: dict[str, Any], candidates: list[list[str]], expected: dict[str, int]) -> None:
    assert sizes({"quota": quota}, *candidates) == expected


def test_each_namespace_has_the_whole() -> None:
    policy_set = a_set({"quota": {"devices": 8, "models": {"h100": 3}}}, {1: {"candidates": ["h100", "a100"]}})
    for namespace in ("a", "b"):
        assert fern(policy_set, namespace).manifest() == {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": NAME, "namespace": namespace, "labels": {"dra-gate.io/tenant": "fern"}},
            "spec": {"hard": {f"gpu.nvidia.com{KEY}": "16"}},
        }


@pytest.mark.parametrize(
    ("tenant", "why_not"),
    [
        ({}, "it has no quota"),
        ({"weight": 2}, "it has no quota"),
        ({"quota": {"devices": 4}}, "under p@1 and p@2 claims come from templates"),
        ({"quota": {"models": {"h100": 4}}}, "nothing limits class gpu.nvidia.com, or what claims may get instead"),
    ],
)
def test_who_cannot_be_fenced(tenant: dict[str, Any], why_not: str) -> None:
    policies = {1: {"candidates": ["h100", "a100"]}, 2: {"candidates": ["h100"]}}
    found = fern(a_set({**tenant, "keepVersions": [2]}, policies))
    assert found.hard == {}
    assert found.why_not.startswith(why_not)


def test_one_kept_version_with_claims_from_templates_is_enough() -> None:
    policies = {1: {"candidates": ["h100", "a100"], "fallback": "after 5m"}, 2: {"candidates": ["h100"]}}
    assert fern(a_set({"quota": {"devices": 4}}, policies)).hard
    found = fern(a_set({"quota": {"devices": 4}, "keepVersions": [2]}, policies))
    assert (found.hard, found.why_not.startswith("under p@2 claims come from templates")) == ({}, True)


def test_a_namespace_of_kueue_is_left_out() -> None:
    policy_set = a_set({"quota": {"devices": 4}, "weight": 1}, {1: {"candidates": ["h100"]}}, kueue=("b",))
    assert fern(policy_set, "a").hard == {f"gpu.nvidia.com{KEY}": 8}
    found = fern(policy_set, "b")
    assert (found.hard, found.why_not.startswith("Kueue's claims")) == ({}, True)


def core_charge(spec: Object) -> Counter[str]:
    """What a core quota counts for a claim (resource.k8s.io/v1, evaluator of resourceclaims)."""
    found: Counter[str] = Counter()
    for request in spec["devices"]["requests"]:
        most: Counter[str] = Counter()
        for one in request["firstAvailable"]:
            most[one["deviceClassName"]] = max(most[one["deviceClassName"]], one["count"])
        found += most
    return found


lists = st.lists(st.sampled_from(list(CLASSES)), min_size=1, max_size=4, unique=True)


@settings(max_examples=150, deadline=None)
@given(
    quota=st.fixed_dictionaries(
        {"models": st.dictionaries(st.sampled_from(list(CLASSES)), st.integers(0, 6), min_size=1)},
        optional={"devices": st.integers(0, 10)},
    ),
    candidates=st.lists(lists, min_size=1, max_size=3),
    data=st.data(),
)
def test_whatever_fits_the_tenants_caps_fits_half_the_fence(
    quota: dict[str, Any], candidates: list[list[str]], data: st.DataObject
) -> None:
    policies = {version: {"candidates": names} for version, names in enumerate(candidates, 1)}
    policy_set = a_set({"quota": quota, "keepVersions": list(policies)}, policies)
    hard = fern(policy_set).hard
    devices, models, core = 0, Counter[str](), Counter[str]()
    for _ in range(data.draw(st.integers(1, 12))):
        policy = policy_set.policies[PolicyRef("p", data.draw(st.sampled_from(list(policies))))]
        template = compile_template(policy_set.tenants["fern"], policy, policy_set.models, data.draw(st.integers(1, 4)))
        may = data.draw(st.lists(st.sampled_from(policy.candidates), min_size=1, unique=True))
        spec = late_claim(template, may).spec
        got = data.draw(st.sampled_from(["", *may]))  # the model that it was given, or nothing yet
        charge = claim_charge(spec)
        if devices + charge.devices > quota.get("devices", 99):
            continue
        if any(models[name] + count > quota["models"].get(name, 99) for name, count in charge.models.items()):
            continue
        devices += charge.devices
        models += Counter({got: template.count} if got else charge.models)
        core += core_charge(spec)
    for name, count in core.items():
        assert f"{name}{KEY}" not in hard or count * HEADROOM <= hard[f"{name}{KEY}"]


# -- on the real control plane ----------------------------------------------------------------------------------------


@pytest.mark.controlplane
def test_a_tenant_that_is_full_is_not_bitten(
    api: Api, install_fleet: Callable[[str], Fleet], make_namespace: Callable[..., str]
) -> None:
    """All that it may hold, given back and taken again at once: no claim is refused. Far above it one is."""
    install_fleet("four-and-four")
    namespace = make_namespace()
    models = [
        {"name": name, "deviceClassName": "gpu.nvidia.com", "products": [f"NVIDIA {name.upper()}*"]}
        for name in ("h100", "a100")
    ]
    documents = [
        {**API, "kind": "DeviceCatalog", "models": models},
        {**API, "kind": "DevicePolicy", "metadata": {"name": "p", "version": 1},
         "spec": {"serves": ["nvidia.com/gpu"], "candidates": ["h100", "a100"]}},
        {**API, "kind": "Tenant", "metadata": {"name": "fern"},
         "spec": {"namespaces": [namespace], "policy": "p@1", "quota": {"models": {"h100": 2, "a100": 2}}}},
    ]  # fmt: skip
    policy_set = load_documents({"p.yaml": yaml.safe_dump_all(documents).encode()})
    tenant = policy_set.tenants["fern"]
    claim = late_claim(
        compile_template(tenant, policy_set.policies[tenant.policy], policy_set.models, 1), ("h100", "a100")
    )
    api.create(fence(policy_set, tenant, namespace).manifest())
    wait_for(lambda: "used" in api.get("resourcequotas", NAME, namespace).get("status", {}), 30, "the quota to count")

    def run(name: str) -> None:
        """A Pod with its claim, as the gate's controller would write it at the grant."""
        made = api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                    "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
                },
            },
            namespace,
        )
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made["metadata"]["uid"], "controller": True}
        write(name, ownerReferences=[owner])

    def write(name: str, **metadata: Any) -> None:
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, **claim.metadata, **metadata},
                "spec": claim.spec,
            },
            namespace,
        )

    def held() -> int:
        claims = api.list("resourceclaims", namespace)
        return sum("allocation" in one.get("status", {}) for one in claims)

    def counted() -> int:
        """By the quota: what is gone counts until its controller has heard of it, for which the headroom is."""
        used = api.get("resourcequotas", NAME, namespace)["status"]["used"]
        return int(used.get(f"gpu.nvidia.com{KEY}", "0"))

    for turn in range(3):
        # What the last turn gave back may still count; the headroom is not for two turns.
        wait_for(lambda: counted() <= 4, 60, "the turn before the last to count no more")
        for number in range(4):
            run(f"turn-{turn}-{number}")
        wait_for(lambda: held() == 4 or None, 60, "four devices to be held")
        api.delete_all("pods", namespace, grace=0)
        wait_for(lambda: held() == 0 or None, 60, "four devices to be given back")
    wait_for(lambda: counted() == 0, 60, "the turns to count no more")
    for number in range(4):
        write(f"anew-{number}")
    for number in range(4):  # as when an open grant gets other candidates
        api.delete("resourceclaims", f"anew-{number}", namespace)
        write(f"anew-{number}")
    # Its controller counts what it has heard of, and may set the count back: a few more may pass.
    with pytest.raises(ApiError, match="exceeded quota: dra-gate-fence") as refused:
        list(map(write, (f"above-{number}" for number in range(4, 10 * 4 * HEADROOM))))
    assert refused.value.status == 403
