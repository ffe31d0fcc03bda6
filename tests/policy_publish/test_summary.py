"""What changed between two sets, in one line."""

from __future__ import annotations

import pytest

from dra_gate.policy.load import load_documents
from dra_gate.policy.summary import WIDTH, summary
from policy_publish.sets import made

H100 = '- {name: h100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA H100*"], memory: 81559Mi}'
A100 = '- {name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"]}'
B200 = '- {name: b200, deviceClassName: gpu.nvidia.com, products: ["NVIDIA B200*"]}'
V1 = "train@1: {candidates: [h100]}"
V2 = "train@2: {candidates: [h100, a100]}"
MAPLE = "maple: {namespaces: [maple-a], policy: train@1}"
QUOTA = "maple: {namespaces: [maple-a], policy: train@1, quota: {devices: 8, models: {h100: 2}}}"
API = "apiVersion: policy.dra-gate.io/v1alpha1"


def policy(line: str) -> str:
    ref, _, rest = line.partition(": ")
    name, _, version = ref.partition("@")
    spec = "{serves: [nvidia.com/gpu], " + rest.removeprefix("{")
    return f"{API}\nkind: DevicePolicy\nmetadata: {{name: {name}, version: {version}}}\nspec: {spec}"


def tenant(line: str) -> str:
    name, _, spec = line.partition(": ")
    return f"{API}\nkind: Tenant\nmetadata: {{name: {name}}}\nspec: {spec}"


def a_set(models: list[str], policies: list[str], tenants: list[str]) -> bytes:
    catalogue = "\n".join([API, "kind: DeviceCatalog", "models:", *models])
    return "\n---\n".join([catalogue, *map(policy, policies), *map(tenant, tenants)]).encode()


BASE = ([H100, A100], [V1], [MAPLE])


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (BASE, "no change"),
        (([H100, A100], [V1, V2], ["maple: {namespaces: [maple-a], policy: train@2}"]),
         "maple: train@1→train@2; policies +train@2"),
        (([H100, A100], [V1], [MAPLE, "oak: {namespaces: [oak], policy: train@1}"]), "tenants +oak"),
        (([H100, A100], [V1], ["oak: {namespaces: [oak], policy: train@1}"]), "tenants +oak -maple"),
        (([H100, A100], [V1], ["maple: {namespaces: [maple-b], policy: train@1}"]),
         "maple: namespaces +maple-b -maple-a"),
        (([H100, A100], [V1], [QUOTA]),
         "maple: quota none→8, quota h100 none→2"),
        (([H100, A100], [V1], ["maple: {namespaces: [maple-a], policy: train@1, weight: 3, overQuota: wait}"]),
         "maple: weight none→3, overQuota reject→wait"),
        (([H100, A100], [V1], ["maple: {namespaces: [maple-a], policy: train@1, lease: 60m, reserve: {h100: 1}, "
          "reserveAfter: 90s, maxWaiting: 5, kueue: exactly}"]),
         "maple: lease none→1h, reserve h100 none→1, reserveAfter 30m→90s, maxWaiting 1000→5, kueue none→exactly"),
        (([H100, A100], [V1, V2], ["maple: {namespaces: [maple-a], policy: train@1, keepVersions: [2]}"]),
         "maple: keepVersions +2; policies +train@2"),
        (([H100, A100], [V1, V2],
          ["maple: {namespaces: [maple-a], policy: train@1, canary: {policy: train@2, namespaces: [maple-a]}}"]),
         "maple: canary none→train@2 in maple-a; policies +train@2"),
        (([H100, A100], ["train@1: {candidates: [a100]}"], [MAPLE]), "train@1 edited"),
        (([H100, A100, B200], [V1], [MAPLE]), "models +b200"),
        (([H100.replace("81559Mi", "80Gi"), A100], [V1], [MAPLE]), "models h100 edited"),
        (([A100, H100], [V1], [MAPLE]), "order of models"),
    ],
)  # fmt: skip
def test_one_line(after: tuple[list[str], list[str], list[str]], line: str) -> None:
    # Other files, other places: neither is a change.
    assert summary(load_documents({"a.yaml": a_set(*BASE)}), load_documents({"z.yaml": b"\n" + a_set(*after)})) == line


def test_first_set() -> None:
    assert summary(None, made(1)) == "first set: 1 tenant, 1 policy, 2 models"


def test_much_is_counted() -> None:
    names = [f"team-with-a-long-name-{number}" for number in range(9)]
    tenants = [f"{name}: {{namespaces: [{name}], policy: train@1}}" for name in names]
    grown = [f"{name}: {{namespaces: [{name}], policy: train@1, quota: {{devices: 99}}}}" for name in names]
    line = summary(
        load_documents({"a.yaml": a_set([H100, A100], [V1], tenants)}),
        load_documents({"a.yaml": a_set([H100, A100], [V1], grown)}),
    )
    assert len(line) <= WIDTH + len("; and 9 more")
    assert line.endswith("; and 3 more")
    assert "\n" not in line


def test_one_long_change_is_cut() -> None:
    many = [f"team-with-a-long-name-{n}: {{namespaces: [n-{n}], policy: train@1}}" for n in range(30)]
    line = summary(
        load_documents({"a.yaml": a_set(*BASE)}), load_documents({"a.yaml": a_set([H100, A100], [V1], [MAPLE, *many])})
    )
    assert len(line) == WIDTH
    assert line.endswith("…")
