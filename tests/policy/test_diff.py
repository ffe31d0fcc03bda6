"""`dra-gate policy diff`: prepared pairs, each word by itself, and the recorded Pods that a change moves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dra_gate.cli.policy import command
from dra_gate.policy.diff import compare, covers, loosens
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicySet

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAIRS = sorted((HERE / "diff").iterdir())


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_each_difference_is_named_and_nothing_else(pair: Path) -> None:
    expected = yaml.safe_load((pair / "differences.yaml").read_text())
    result = run("diff", pair / "old", pair / "new", "-o", "json")
    told = json.loads(result.stdout)
    found: dict[str, list[str]] = {}
    for one in told["differences"]:
        found.setdefault(one["effect"], []).append(f"{one['where']} · {one['what']}: {one['why']}")
    assert {effect: sorted(named) for effect, named in found.items()} == {
        effect: sorted(named) for effect, named in expected.items()
    }
    assert result.exit_code == (3 if "loosens" in expected else 0)
    assert told["loosens"] == ("loosens" in expected)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_text_and_markdown_name_the_same(pair: Path) -> None:
    told = json.loads(run("diff", pair / "old", pair / "new", "-o", "json").stdout)["differences"]
    expected = [(one["effect"], one["where"], one["what"]) for one in told]
    rows = [
        tuple(re.sub(r"\\(.)", r"\1", cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:4])
        for line in run("diff", pair / "old", pair / "new", "-o", "markdown").stdout.splitlines()
        if line.startswith(("| loosens", "| tightens", "| changes"))
    ]
    assert rows == expected
    # A line of text may be folded; what stands first in each row does not go missing by that.
    lines = run("diff", pair / "old", pair / "new").stdout.splitlines()
    rows_of_text = [line for line in lines if line.startswith(("loosens", "tightens", "changes"))]
    assert [line.split()[0] for line in rows_of_text] == [effect for effect, _, _ in expected]
    assert all(
        where.split()[0] in line and where.split()[1] in line
        for line, (_, where, _) in zip(rows_of_text, expected, strict=True)
        if " " in where
    )


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_nothing_differs_from_itself_and_what_loosens_one_way_tightens_the_other(pair: Path) -> None:
    assert run("diff", pair / "old", pair / "old").exit_code == 0
    assert "no difference in meaning" in run("diff", pair / "new", pair / "new").stdout
    there, back = (
        json.loads(run("diff", *sides, "-o", "json").stdout)["differences"]
        for sides in ((pair / "old", pair / "new"), (pair / "new", pair / "old"))
    )
    ways = {(one["where"], one["what"], one["before"], one["after"]): one["effect"] for one in back}
    for one in there:
        if one["effect"] == "tightens" and one["what"] not in ("keepVersions", "canary", "tenant"):
            assert ways[one["where"], one["what"], one["after"], one["before"]] == "loosens", one


BASE = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- name: h100
  deviceClassName: gpu.nvidia.com
  products: ["NVIDIA H100*"]
  memory: 81559Mi
  architecture: Hopper
  nodeLabels: {own.example/gpu: [h100]}
- {name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"], memory: 81920Mi, architecture: Ampere}
- {name: mi300, deviceClassName: gpu.amd.com, products: ["AMD MI300*"]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: train, version: 1}
spec:
  serves: [nvidia.com/gpu]
  candidates: [h100, a100]
  constraints: {memory: {min: 40Gi}, driverVersion: {min: 550.54.15}, architectures: [Hopper, Ampere], cel: ["true"]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: amd, version: 1}
spec: {serves: [amd.com/gpu], candidates: [mi300]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: fern}
spec: {namespaces: [a, b], policy: train@1}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: ClusterSettings
spec: {visibleDevicesVoid: envFrom, deviceNodeLabels: ["nvidia.com/*"]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: PolicyException
metadata: {name: profiler}
spec: {rules: [privileged], users: [grace], namespaces: [a], reason: r, ticket: T-1, approver: x, expires: "2027-01-31"}
"""


def a_set(text: str) -> PolicySet:
    return load_documents({"policies.yaml": text.encode()})


def edited(*edits: str) -> PolicySet:
    return a_set(changed(BASE, *edits))


def changed(text: str, *edits: str) -> str:
    for edit in edits:
        old, _, new = edit.partition(" => ")
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # One word at a time: what it says, and what its opposite would.
        (["min: 40Gi => min: 39Gi"], ["loosens tenant fern memory"]),
        (["min: 40Gi => min: 40960Mi"], []),
        (["memory: {min: 40Gi}, => "], ["loosens tenant fern memory"]),
        (["min: 550.54.15 => min: 550.54.15-rc.1"], ["loosens tenant fern driverVersion"]),
        (["min: 550.54.15 => min: 550.127.08"], ["tightens tenant fern driverVersion"]),
        (["architectures: [Hopper, Ampere], => "], ["loosens tenant fern architectures"]),
        (["[Hopper, Ampere] => [Ampere, Hopper]"], []),
        (
            ["[Hopper, Ampere] => [Hopper, Blackwell]"],
            ["loosens tenant fern architectures", "tightens tenant fern architectures"],
        ),
        (['cel: ["true"] => cel: ["true && true"]'], ["loosens tenant fern cel"]),
        (['cel: ["true"] => cel: ["true", "1 == 1"]'], ["tightens tenant fern cel"]),
        ([', cel: ["true"] => '], ["loosens tenant fern cel"]),
        (["[h100, a100] => [a100, h100]"], ["changes tenant fern candidates"]),
        (["[h100, a100] => [h100]"], ["tightens tenant fern candidates"]),
        (["serves: [nvidia.com/gpu] => serves: [nvidia.com/gpu, nvidia.com/big]"], ["loosens tenant fern serves"]),
        (
            ["[h100, a100] => [h100]", "architecture: Ampere => architecture: Hopper"],
            ["changes model a100 architecture", "tightens tenant fern candidates"],
        ),
        (['"NVIDIA H100*" => "NVIDIA H100*", "NVIDIA GH200"'], ["loosens model h100 products"]),
        (['"NVIDIA H100*" => "NVIDIA H100 PCIe"'], ["tightens model h100 products"]),
        (['products: ["NVIDIA H100*"] => selector: "true"'], ["loosens model h100 selector"]),
        # What no file names any more is nobody's business, for the gate.
        (["nodeLabels: {own.example/gpu: [h100]} => nodeLabels: {own.example/other: [h100]}"],
         ["changes model h100 nodeLabels", "loosens cluster settings deviceNodeLabels",
          "tightens cluster settings deviceNodeLabels"]),
        (["serves: [amd.com/gpu] => serves: [nvidia.com/gpu]"],
         ["changes policy amd@1 serves", "changes policy amd@1 serves", "loosens whole cluster serves"]),
        (['deviceNodeLabels: ["nvidia.com/*"] => deviceNodeLabels: ["nvidia.com/gpu*"]'],
         ["loosens cluster settings deviceNodeLabels"]),
        (['deviceNodeLabels: ["nvidia.com/*"] => deviceNodeLabels: ["nvidia.com/gpu*", "nvidia*"]'],
         ["tightens cluster settings deviceNodeLabels"]),
        (['visibleDevicesVoid: envFrom => visibleDevicesVoid: "off"'],
         ["loosens cluster settings visibleDevicesVoid"]),
        (["visibleDevicesVoid: envFrom => visibleDevicesVoid: withoutClaim"],
         ["tightens cluster settings visibleDevicesVoid"]),
        (["spec: {visibleDevicesVoid => spec: {workloads: [{group: x.io, resource: xs, podTemplates: [spec.t]}], "
          "visibleDevicesVoid"], ["changes cluster settings workloads"]),
        (["spec: {visibleDevicesVoid => spec: {workloads: [{group: x.io, resource: xs, podTemplates: [spec.t]}], "
          "workloadVerdict: deny, visibleDevicesVoid"],
         ["tightens cluster settings workloadVerdict", "tightens cluster settings workloads"]),
        (["expires: \"2027-01-31\" => expires: \"2027-02-01\""], ["loosens exception profiler expires"]),
        (["expires: \"2027-01-31\" => expires: \"2027-01-30\""], ["tightens exception profiler expires"]),
        (["rules: [privileged] => rules: [privileged, host-device]"], ["loosens exception profiler rules"]),
        (["rules: [privileged] => rules: [host-device]"],
         ["loosens exception profiler rules", "tightens exception profiler rules"]),
        (["[a], reason => [a, b], reason"], ["loosens exception profiler namespaces"]),
        (["users: [grace], => "], ["loosens exception profiler users"]),
        (["users: [grace], => users: [grace, eve],"], ["loosens exception profiler users"]),
        (["users: [grace], => users: [grace], owner: {kind: Job, name: p},"], ["tightens exception profiler owner"]),
        # With an owner and no users, its controller is who creates the Pods.
        (["users: [grace], => owner: {kind: Job, name: p},"],
         ["loosens exception profiler users", "loosens exception profiler users",
          "tightens exception profiler owner", "tightens exception profiler users"]),
        (["ticket: T-1 => ticket: T-2"], ["changes exception profiler ticket"]),
        (["name: profiler => name: tracer"],
         ["loosens exception tracer exception", "tightens exception profiler exception"]),
        # An empty allowance is not the same as none.
        (["policy: train@1 => policy: train@1, quota: {devices: 0}"], ["tightens tenant fern quota.devices"]),
        (["policy: train@1 => policy: train@1, weight: 3"], ["changes tenant fern weight"]),
        # Pods that wait may get other devices only where a fallback comes or goes.
        (["candidates: [h100, a100] => candidates: [h100, a100]\n  fallback: never"],
         ["tightens tenant fern fallback"]),
        (["candidates: [h100, a100] => candidates: [h100, a100]\n  fallback: after 5m"],
         ["changes tenant fern fallback"]),
        (["candidates: [h100, a100] => candidates: [h100, a100]\n  fallback: now"], []),
        (["policy: train@1 => policy: train@1, lease: 1h"], ["tightens tenant fern lease"]),
        (["policy: train@1 => policy: train@1, reserve: {h100: 1}"], ["changes tenant fern reserve.h100"]),
        (["policy: train@1 => policy: train@1, reserveAfter: 1800s, maxWaiting: 1000"], []),
        (["policy: train@1 => policy: train@1, reserveAfter: 1h"], ["changes tenant fern reserveAfter"]),
        (["policy: train@1 => policy: train@1, maxWaiting: 1001"], ["loosens tenant fern maxWaiting"]),
        (["policy: train@1 => policy: train@1, kueue: exactly"], ["tightens tenant fern kueue"]),
        (["spec: {visibleDevicesVoid => spec: {kueueNamespaces: [a], visibleDevicesVoid"],
         ["loosens cluster settings kueueNamespaces"]),
    ],
)  # fmt: skip
def test_one_word(edit: list[str], expected: list[str]) -> None:
    found = compare(edited(), edited(*edit))
    assert sorted(f"{one.effect} {one.where} {one.what}" for one in found) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("{kind: Job, name: p-*}", "{kind: Job, name: p-1}", ["tightens owner"]),
        ("{kind: Job, name: p-1}", "{kind: Job, name: p-*}", ["loosens owner"]),
        ("{kind: Job, name: p-*}", "{kind: Job, name: q-1}", ["loosens owner"]),
        ("{kind: Job, name: p-*}", "{kind: DaemonSet, name: p-1}", ["loosens owner"]),
    ],
)
def test_whose_pods_an_exception_is_for(old: str, new: str, expected: list[str]) -> None:
    before, after = (edited(f"users: [grace], => owner: {owner},") for owner in (old, new))
    assert [f"{one.effect} {one.what}" for one in compare(before, after)] == expected


def test_a_policy_that_nobody_uses_comes_and_goes() -> None:
    document = BASE.split("---")[1].replace("name: train", "name: spare")
    there = (edited(), a_set(f"{BASE}\n---{document}"))
    for pair, words in ((there, ("—", "there")), (there[::-1], ("there", "—"))):
        (found,) = compare(*pair)
        assert (found.where, found.effect, found.before, found.after) == ("policy spare@1", "changes", *words)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("memory: {min: 40Gi}, ", "", "no floor any more"),
        ("", "memory: {min: 40Gi}, ", "a new floor"),
        ("memory: {min: 40Gi}, ", "memory: {min: 41Gi}, ", "a higher floor"),
        ("memory: {min: 41Gi}, ", "memory: {min: 40Gi}, ", "a lower floor"),
    ],
)
def test_floors(old: str, new: str, why: str) -> None:
    before, after = (edited(f"{{memory: {{min: 40Gi}}, => {{{floor}") for floor in (old, new))
    assert [one.why for one in compare(before, after)] == [why]


def test_a_weight_is_shown_or_none() -> None:
    (found,) = compare(edited(), edited("policy: train@1 => policy: train@1, weight: 3"))
    assert (found.before, found.after) == ("—", "3")


@pytest.mark.parametrize(
    ("old", "new", "effect", "why"),
    [
        ("", "nodes: {pool: a}, ", "tightens", "only nodes of that pool are used"),
        ("nodes: {pool: a}, ", "", "loosens", "nodes outside that pool may be used now"),
        ("nodes: {pool: a}, ", "nodes: {pool: b}, ", "loosens", "may loosen: another pool of nodes"),
    ],
)
def test_pools_of_nodes(old: str, new: str, effect: str, why: str) -> None:
    before, after = (edited(f"memory: {{min: 40Gi}}, => memory: {{min: 40Gi}}, {nodes}") for nodes in (old, new))
    (found,) = compare(before, after)
    assert (found.what, found.effect, found.why) == ("nodes", effect, why)


def test_the_order_of_the_catalogue_and_the_nodes_of_a_model_are_shown() -> None:
    h100, a100 = BASE[BASE.index("- name: h100") : BASE.index("- {name: a100")], BASE[BASE.index("- {name: a100") :]
    a100 = a100[: a100.index("\n") + 1]
    moved = BASE.replace(h100 + a100, a100 + h100)
    (found,) = compare(edited(), a_set(moved))
    assert (found.where, found.effect, found.before, found.after) == (
        "catalogue",
        "changes",
        "h100, a100, mi300",
        "a100, h100, mi300",
    )
    after = edited("{own.example/gpu: [h100]} => {own.example/gpu: [h100, big], disk: [x]}")
    found = next(one for one in compare(edited(), after) if one.what == "nodeLabels")
    assert (found.before, found.after) == ("own.example/gpu=h100", "own.example/gpu=h100|big; disk=x")
    without = edited("  nodeLabels: {own.example/gpu: [h100]}\n => ")
    assert next(one for one in compare(edited(), without) if one.what == "nodeLabels").after == "—"


def test_why_a_model_is_reachable_that_no_policy_was_changed_for() -> None:
    others = BASE.replace("[h100, a100]", "[h100, others]").replace("driverVersion: {min: 550.54.15}, ", "")
    others = others.replace(
        "- {name: mi300", '- {name: l4, deviceClassName: gpu.nvidia.com, products: ["L4"], memory: 4Gi}\n- {name: mi300'
    )
    others = others.replace(
        'deviceClassName: gpu.amd.com, products: ["AMD MI300*"]',
        'deviceClassName: gpu.nvidia.com, products: ["X"], memory: 9Gi',
    )
    named = BASE.replace("[h100, a100]", "[h100]")
    edits = {
        "because the catalogue declares other facts of it": (others, others.replace("memory: 4Gi", "memory: 90Gi")),
        "because the catalogue has it now": (
            others,
            others.replace(
                "- {name: l4,", '- {name: l3, deviceClassName: gpu.nvidia.com, products: ["L3"]}\n- {name: l4,'
            ),
        ),
        "reachable now": (named, BASE),
    }
    for why, (old, new) in edits.items():
        (found,) = (one for one in compare(a_set(old), a_set(new)) if one.what == "candidates")
        assert found.why.endswith(why)
        assert ("the policy is the same" in found.why) is (why != "reachable now")


COMPANIONS = (
    "companions: [{name: nic, deviceClassName: nic.example, driver: nic.example, count: 2, "
    "minimum: {bandwidth: 100G}, sameAttribute: [resource.kubernetes.io/pcieRoot]}]"
)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ([f"{COMPANIONS} => "],
         ["loosens companions.nic"]),
        (["{name: nic, => {name: eth, deviceClassName: eth.example, driver: eth.example}, {name: nic,"],
         ["tightens companions.eth"]),
        (["{name: nic, => {name: card,"], ["loosens companions.nic", "tightens companions.card"]),
        (["bandwidth: 100G => bandwidth: 99G"], ["loosens minimum.bandwidth"]),
        (["bandwidth: 100G => bandwidth: 101G"], ["tightens minimum.bandwidth"]),
        (["bandwidth: 100G => bandwidth: 100000M"], []),
        (["bandwidth: 100G => nic.example/bandwidth: 100G"], []),
        (["bandwidth: 100G => lanes: 100G"],
         ["loosens minimum.bandwidth", "tightens minimum.lanes"]),
        (["minimum: {bandwidth: 100G}, => "], ["loosens minimum.bandwidth"]),
        ([", sameAttribute: [resource.kubernetes.io/pcieRoot]}] => }]"],
         ["loosens sameAttribute"]),
        (["[resource.kubernetes.io/pcieRoot] => [resource.kubernetes.io/pcieRoot, resource.kubernetes.io/pciBusID]"],
         ["tightens sameAttribute"]),
        (["count: 2 => count: 1"], ["loosens count"]),
        (["count: 2 => count: 3"], ["tightens count"]),
        (["deviceClassName: nic.example => deviceClassName: any.example"],
         ["loosens deviceClassName"]),
        (["driver: nic.example => driver: any.example"],
         ["loosens driver",
          "loosens minimum.nic.example/bandwidth",
          "tightens minimum.any.example/bandwidth"]),
        (["count: 2 => count: 2, cel: [\"true\"]"], ["tightens cel"]),
    ],
)  # fmt: skip
def test_one_word_of_a_companion(edit: list[str], expected: list[str]) -> None:
    """More that a companion must be tightens: an accelerator is not given without it."""
    text = BASE.replace("candidates: [h100, a100]", f"candidates: [h100, a100]\n  {COMPANIONS}")
    found = compare(a_set(text), a_set(changed(text, *edit)))
    assert sorted(f"{one.effect} {one.what.removeprefix('companions.nic.')}" for one in found) == expected
    assert {one.where for one in found} <= {"tenant fern"}


def test_the_last_model_of_a_driver_taken_out_opens_its_devices() -> None:
    amd = BASE.index("---", BASE.index("version: 1}\nspec:\n")), BASE.index("---\n", BASE.index("name: amd"))
    without = BASE[: amd[0]] + BASE[amd[1] :]
    without = "\n".join(line for line in without.splitlines() if "mi300" not in line)
    found = {(one.where, one.what) for one in compare(edited(), a_set(without)) if one.effect == "loosens"}
    assert found == {("whole cluster", "driver"), ("whole cluster", "serves")}


def test_an_older_version_stays_nameable_after_an_upgrade_that_tightens() -> None:
    newer = BASE.replace("version: 1}\nspec:\n", "version: 2}\nspec:\n").replace("40Gi", "60Gi")
    newer = newer.replace("[h100, a100]", "[a100, h100]")  # neither looser nor tighter
    document = BASE.split("---")[1]
    after = a_set(f"{newer}\n---{document}".replace("policy: train@1", "policy: train@2, keepVersions: [1]"))
    found = compare(edited(), after)
    assert not loosens(found)
    kept = next(one for one in found if one.what == "keepVersions")
    assert "what is tighter in train@2 (memory) can be avoided" in kept.why
    no_more = a_set(f"{newer}\n---{document}".replace("policy: train@1", "policy: train@2"))
    (found_then,) = compare(after, no_more)
    assert (found_then.effect, found_then.what, found_then.before) == ("tightens", "keepVersions", "train@1")


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("*", "*a*", True), ("a*", "ab*", True), ("a*", "ab", True), ("a*", "*a", False), ("a*", "*", False),
        ("*a", "ba", True), ("*a", "*ba", True), ("*a", "a*", False), ("*a*", "bab", True), ("*a*", "ba*", True),
        ("*a*", "b*", False), ("a", "a", True), ("a", "a*", False), ("ab*", "a*", False), ("a*", "*a*", False),
    ],
)  # fmt: skip
def test_covers(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


# -- what is printed --------------------------------------------------------------------------------------------------


def test_markdown_fits_a_comment_and_names_are_no_markup(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (old / "p.yaml").write_text(BASE)
    tenants = "".join(
        f"---\napiVersion: policy.dra-gate.io/v1alpha1\nkind: Tenant\nmetadata: {{name: t{n}}}\n"
        f"spec: {{namespaces: [{', '.join(f'{k}-{n}' + 'x' * 40 for k in 'nmop')}], policy: train@1}}\n"
        for n in range(400)
    )
    hostile = BASE.replace("Ampere]", r'Ampere, "<img src=x> | [a](http://x) @all `b` \u202e"]')
    (new / "p.yaml").write_text(hostile + tenants)
    said = run("diff", old, new, "-o", "markdown").stdout
    assert len(said) <= 60_000
    assert "more that have no room here, " in said
    row = next(line for line in said.splitlines() if "architectures" in line)
    assert row.count(" | ") == 5
    assert r"\<img src=x\> \| \[a\](http://x) &#64;all \`b\` " in row
    assert "\u202e" not in said


def test_text_of_a_difference() -> None:
    pair = HERE / "diff" / "06-quotas"
    said = run("diff", pair / "old", pair / "new").stdout
    assert said.startswith("Policy: 3 differences loosen, 2 tighten, 1 changes\n")
    assert "loosens   tenant fern  quota.devices      8         16        more at once\n" in said
    assert max(map(len, said.splitlines())) <= 110


# -- recorded reviews -------------------------------------------------------------------------------------------------


def recorded(tmp_path: Path) -> Path:
    def pod(name: str, namespace: str, **resources: Any) -> dict[str, Any]:
        container = {"name": "c", "image": "i", "resources": {"limits": resources}}
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}

    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1",
            "operation": "CREATE",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "moss",
            "name": "recorded",
            "object": pod("recorded", "moss", **{"nvidia.com/gpu": "5"}),
        },
    }
    file = tmp_path / "reviews.yaml"
    documents = [
        pod("few", "fern-a", **{"nvidia.com/gpu": "2"}),
        pod("many", "fern-a", **{"nvidia.com/gpu": "9"}),
        review,
        pod("plain", "fern-a", cpu="1"),
    ]
    file.write_text(yaml.safe_dump_all(documents))
    return file


def test_reviews_tell_which_pods_move(tmp_path: Path) -> None:
    pair = HERE / "diff" / "06-quotas"
    arguments = ("diff", pair / "old", pair / "new", "--reviews", recorded(tmp_path))
    told = json.loads(run(*arguments, "-o", "json").stdout)
    assert told["judged"] == 4
    assert [
        (one["pod"], one["differs"], one["before"]["verdict"], one["after"]["verdict"]) for one in told["pods"]
    ] == [
        ("fern-a/many", ["verdict", "reasons", "claims", "candidates", "templates"], "deny", "mutate"),
        ("moss/recorded", ["verdict", "reasons", "claims", "candidates", "templates"], "mutate", "deny"),
    ]
    said = run(*arguments).stdout
    assert "2 of 4 recorded requests differ" in said
    assert "deny (QUOTA)" in said
    assert "2 of 4 recorded requests differ" in run(*arguments, "-o", "markdown").stdout


def test_pods_that_a_policy_set_has_decided_before_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text("{kind: Pod, metadata: {name: p, namespace: moss, annotations: {dra-gate.io/policy-set: x}}}")
    pair = HERE / "diff" / "06-quotas"
    result = run("diff", pair / "old", pair / "new", "--reviews", file)
    assert "0 of 0 recorded requests differ" in result.stdout
    assert "#0: skipped, a policy set has decided it before" in result.stderr


def test_a_floor_moves_templates_only(tmp_path: Path) -> None:
    pair = HERE / "diff" / "02-constraints-removed"
    pods = json.loads(run("diff", pair / "old", pair / "new", "--reviews", recorded(tmp_path), "-o", "json").stdout)[
        "pods"
    ]
    assert [(one["pod"], one["differs"]) for one in pods] == [("fern-a/few", ["templates"])]


def test_reviews_with_a_cluster(tmp_path: Path) -> None:
    """Without namespaces in it nothing is gated, so that nothing moves."""
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("{apiVersion: v1, kind: Namespace, metadata: {name: fern-a}}")
    pair = HERE / "diff" / "06-quotas"
    result = run("diff", pair / "old", pair / "new", "--reviews", recorded(tmp_path), "--cluster", cluster)
    assert "0 of 4 recorded requests differ" in result.stdout
    missing = run("diff", pair / "old", pair / "new", "--reviews", tmp_path / "nowhere.yaml")
    assert missing.exit_code == 2


def test_example_policies_have_no_difference() -> None:
    assert run("diff", ROOT / "policies", ROOT / "policies").stdout.startswith("Policy: no difference in meaning\n")
