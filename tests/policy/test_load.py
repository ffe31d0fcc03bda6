"""The loader: digests, warnings, RELEASED, folders; what its errors say is in test_errors.py."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dra_gate.kube.quantity import Quantity
from dra_gate.policy.documents import MAX_BYTES
from dra_gate.policy.load import (
    PolicyError,
    PolicyErrors,
    load,
    load_documents,
    load_documents_with_warnings,
    load_with_warnings,
    read_folder,
)
from dra_gate.policy.model import PolicyRef, PolicySet
from dra_gate.policy.words import fallback

HERE = Path(__file__).parent
BASE = (HERE / "base.yaml").read_text()
CATALOG, POLICY, TENANT = BASE.split("---\n")
EXAMPLE = HERE.parents[1] / "policies"


def errors_of(files: dict[str, bytes], released: bytes | None = None) -> list[str]:
    with pytest.raises(PolicyErrors) as caught:
        load_documents(files, released)
    return [str(error) for error in caught.value.errors]


def one(policy: str, tenant: str = "", catalog: str = CATALOG) -> PolicySet:
    return load_documents({"p.yaml": "---\n".join([catalog, policy, tenant]).encode()})


def policy(name: str = "p", version: int = 1, **spec: Any) -> str:
    body = {"serves": ["nvidia.com/gpu"], "candidates": ["h100"], **spec}
    head = {"apiVersion": "policy.dra-gate.io/v1alpha1", "kind": "DevicePolicy"}
    return yaml.safe_dump({**head, "metadata": {"name": name, "version": version}, "spec": body})


# -- what a set is ----------------------------------------------------------------------------------------------------


def test_cases_policies_load() -> None:
    text = (HERE.parent / "cases" / "policies" / "lilac.yaml").read_bytes()
    loaded = load_documents({"lilac.yaml": text})
    for version in (6, 7):
        assert loaded.policies[PolicyRef("lilac-gpu", version)].candidates == ("h100", "a100", "h200")
    assert loaded.tenant_of("lilac-canary") is loaded.tenants["lilac"] is loaded.tenant_of("lilac-enforced")
    assert loaded.tenant_of("lilac-open") is None
    assert [str(ref) for ref in loaded.tenants["lilac"].valid_refs("lilac-canary")] == ["lilac-gpu@7", "lilac-gpu@6"]


def test_example_policies_load_without_warnings() -> None:
    loaded, warnings = load_with_warnings(EXAMPLE)
    assert warnings == ()
    assert loaded.tenants["research"].policy_for("research-canary") == PolicyRef("training", 8)
    assert loaded.tenants["research"].policy_for("research-train") == PolicyRef("training", 7)


def test_digest_ignores_layout_and_order_and_nothing_else() -> None:
    whole = load_documents({"a.yaml": BASE.encode()}).digest
    noisy = f"# other comment\n{TENANT}---\n{POLICY}# end\n"
    assert load_documents({"z.yml": noisy.encode(), "b.yaml": CATALOG.encode()}).digest == whole
    flipped = yaml.safe_dump(yaml.safe_load(POLICY), sort_keys=True)
    assert load_documents({"a.yaml": "---\n".join([CATALOG, flipped, TENANT]).encode()}).digest == whole
    for old, new in (("[h100, a100]", "[a100, h100]"), ("81559Mi", "81560Mi"), ("[base-train]", "[base-trial]")):
        assert load_documents({"a.yaml": BASE.replace(old, new).encode()}).digest != whole


def test_policy_digest_is_its_own() -> None:
    before = one(POLICY, TENANT).policies[PolicyRef("base", 1)].digest
    assert one(POLICY + "---\n" + policy(), TENANT).policies[PolicyRef("base", 1)].digest == before
    assert one(POLICY.replace("h100, a100", "h100"), TENANT).policies[PolicyRef("base", 1)].digest != before


def test_values_are_read_as_written() -> None:
    text = policy(
        constraints={
            "memory": {"min": 42949672960},
            "driverVersion": {"min": "v550.127.08"},
            "nodes": {"pool": "research"},
        }
    )
    constraints = one(text).policies[PolicyRef("p", 1)].constraints
    assert constraints.memory_min == Quantity.parse("40Gi")
    assert str(constraints.memory_min) == "42949672960"
    assert str(constraints.driver_min) == "550.127.8"
    assert constraints.nodes == {"pool": "research"}
    assert not constraints.whole_device


def test_companions_are_read_as_written() -> None:
    text = policy(
        companions=[
            {"name": "nic", "deviceClassName": "fast.example", "driver": "nic.example", "count": 2,
             "minimum": {"bandwidth": "100G", "other.example/lanes": 4}, "cel": ["true"],
             "sameAttribute": ["resource.kubernetes.io/pcieRoot"]},
            {"name": "plain", "deviceClassName": "gpu.example.com"},
        ]
    )  # fmt: skip
    found = one(text).policies[PolicyRef("p", 1)]
    nic, plain = found.companions
    assert (nic.name, nic.device_class, nic.driver, nic.count) == ("nic", "fast.example", "nic.example", 2)
    assert nic.minimum == {
        ("nic.example", "bandwidth"): Quantity.parse("100G"),
        ("other.example", "lanes"): Quantity.parse(4),
    }
    assert (nic.same_attribute, nic.cel) == (("resource.kubernetes.io/pcieRoot",), ("true",))
    assert (plain.driver, plain.count, plain.minimum, plain.same_attribute, plain.cel) == (
        "gpu.example.com", 1, {}, (), ()
    )  # fmt: skip
    assert found.max_devices == 29
    assert one(policy()).policies[PolicyRef("p", 1)].max_devices == 32


def test_what_is_done_about_an_unhealthy_device() -> None:
    assert one(policy()).policies[PolicyRef("p", 1)].on_unhealthy == "alert"
    for word in ("alert", "recreate", "keep"):
        assert one(policy(onUnhealthy=word)).policies[PolicyRef("p", 1)].on_unhealthy == word


def test_what_becomes_of_pods_that_wait_when_the_lane_goes_back() -> None:
    assert one(policy()).policies[PolicyRef("p", 1)].on_rollback == "recreate"
    for word in ("recreate", "keep", "release"):
        assert one(policy(onRollback=word)).policies[PolicyRef("p", 1)].on_rollback == word


def test_tenant_without_quota_has_no_limit_and_rejects() -> None:
    tenant = one(POLICY, TENANT).tenants["base"]
    assert tenant.quota.devices is None
    assert tenant.quota.models == {}
    assert (tenant.weight, tenant.over_quota, tenant.canary, tenant.keep_versions) == (None, "reject", None, ())


# -- others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "constraints", "expanded"),
    [
        (["h100", "others"], {}, ("h100", "a100", "l40s", "max1550", "mi300x", "custom")),
        (["others"], {"sameAttribute": ["npu.example.org/x"]}, None),
        # Declared facts leave a model out; one that declares nothing is kept.
        (["a100", "others"], {"memory": {"min": "100Gi"}}, None),
        (["a100", "h100", "others"], {"architectures": ["Hopper"]}, None),
    ],
)
def test_others(candidates: list[str], constraints: dict[str, Any], expanded: tuple[str, ...] | None) -> None:
    text = policy(candidates=candidates)
    if constraints:
        text = policy(candidates=candidates, constraints=constraints)
    if expanded is None:
        # Drivers that come in through others and cannot express a word are named.
        assert any("of candidate" in error for error in errors_of({"p.yaml": f"{CATALOG}---\n{text}".encode()}))
    else:
        assert one(text).policies[PolicyRef("p", 1)].candidates == expanded


NVIDIA = "\n".join(
    line for line in CATALOG.splitlines() if "intel" not in line and "amd" not in line and "npu" not in line
)


@pytest.mark.parametrize(
    ("constraints", "expanded"),
    [
        ({"memory": {"min": "50Gi"}}, ("a100", "h100")),
        ({"memory": {"min": "80Gi"}}, ("a100",)),
        ({"memory": {"min": "46068Mi"}}, ("a100", "h100", "l40s")),
        ({"architectures": ["Ampere", "Ada Lovelace"]}, ("a100", "l40s")),
    ],
)
def test_others_leaves_out_what_declares_otherwise(constraints: dict[str, object], expanded: tuple[str, ...]) -> None:
    loaded = one(policy(candidates=["a100", "others"], constraints=constraints), catalog=NVIDIA + "\n")
    assert loaded.policies[PolicyRef("p", 1)].candidates == expanded


def test_more_than_eight_candidates() -> None:
    lines = [f'- {{name: m{n}, deviceClassName: gpu.nvidia.com, products: ["P{n}-"]}}' for n in range(9)]
    catalog = CATALOG.split("models:\n")[0] + "models:\n" + "\n".join(lines) + "\n"
    nine = f"{catalog}---\n{policy(candidates=['others'])}"
    (error,) = errors_of({"p.yaml": nine.encode()})
    assert "9 candidates: m0, m1, m2" in error
    eight = policy(candidates=[f"m{n}" for n in range(8)])
    assert len(one(eight, catalog=catalog).policies[PolicyRef("p", 1)].candidates) == 8


def test_others_that_leaves_nobody() -> None:
    catalog = "\n".join(line for line in NVIDIA.splitlines() if "a100" not in line)
    text = f"{catalog}\n---\n{policy(candidates=['others'], constraints={'memory': {'min': '1Ti'}})}"
    (error,) = errors_of({"p.yaml": text.encode()})
    assert "no candidate is left" in error


# -- warnings ---------------------------------------------------------------------------------------------------------


def warnings_of(*documents: str) -> list[str]:
    _, warnings = load_documents_with_warnings({"p.yaml": "---\n".join(documents).encode()})
    return [str(warning) for warning in warnings if not warning.message.startswith("no Tenant")]


def test_half_a_folder_is_told() -> None:
    files = {"all.yaml": f"{CATALOG}---\n{POLICY}".encode(), "tenants.yaml": b"# to be written\n"}
    _, warnings = load_documents_with_warnings(files, None, "folder")
    assert [str(warning) for warning in warnings] == [
        "folder:1:1 no Tenant, so every Pod with devices in a gated namespace is refused; add one: kind: Tenant",
        "tenants.yaml:1:1 the file holds no document; write it to its end, or remove it",
    ]
    assert load_documents_with_warnings({"all.yaml": BASE.encode()})[1] == ()


@pytest.mark.parametrize("floor", [40, "40M"])
def test_a_floor_whose_unit_was_forgotten(floor: int | str) -> None:
    (warning,) = warnings_of(CATALOG, policy(constraints={"memory": {"min": floor}}))
    assert f"a floor of {floor} (40" in warning
    assert "turns no device away; write the unit, such as 40Gi" in warning
    assert warnings_of(CATALOG, policy(constraints={"memory": {"min": "1Gi"}})) == []


def test_floor_above_the_first_candidate() -> None:
    text = policy(candidates=["h100", "a100"], constraints={"memory": {"min": "80Gi"}})
    (warning,) = warnings_of(CATALOG, text)
    assert "the floor of 80Gi is above the 81559Mi that h100 declares" in warning
    assert "starts further down" in warning
    assert warnings_of(CATALOG, text.replace("80Gi", "80G")) == []
    (warning,) = warnings_of(CATALOG, policy(candidates=["a100", "l40s"], constraints={"memory": {"min": "80G"}}))
    assert "46068Mi that l40s declares, so it is never given" in warning


def test_architecture_that_no_candidate_declares() -> None:
    (warning,) = warnings_of(CATALOG, policy(candidates=["a100", "l40s"], constraints={"architectures": ["Ampere"]}))
    assert "l40s declares architecture Ada Lovelace" in warning


def test_mig_class_has_no_whole_devices() -> None:
    catalog = CATALOG + '- {name: mig, deviceClassName: mig.nvidia.com, products: ["NVIDIA A30*"]}\n'
    (warning,) = warnings_of(catalog, policy(candidates=["a100", "mig"], constraints={"wholeDevice": True}))
    assert "mig.nvidia.com of mig has no whole devices" in warning


def about_turns(*words: str, policy: str = "base@1") -> list[str]:
    """What is warned about in a tenant with these words, which begin in line 5."""
    head = "apiVersion: policy.dra-gate.io/v1alpha1\nkind: Tenant\nmetadata: {name: base}\nspec:\n"
    text = "".join(f"  {line}\n" for line in (*words, "namespaces: [base-train]", f"policy: {policy}"))
    return [line.removeprefix("p.yaml:") for line in warnings_of(head + text, CATALOG, POLICY, NARROW)]


NARROW = policy("one", candidates=["l40s"])


@pytest.mark.parametrize(
    "words",
    [
        ["quota: {models: {h100: 2}}", "weight: 3", "overQuota: wait", "lease: 4h", "reserve: {h100: 2}"],
        ["quota: {devices: 2}", "overQuota: wait", "reserveAfter: 1h", "maxWaiting: 5"],
        ["quota: {models: {l40s: 1}}", "canary: {policy: one@1, namespaces: [base-train]}"],
    ],
)
def test_words_about_turns_that_mean_what_they_say(words: list[str]) -> None:
    assert about_turns(*words) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["quota: {models: {h100: 1, l40s: 2}}"],
         ["5:29 no policy of the tenant gives l40s; its policies give h100 and a100: take it out, or add it to"]),
        (["weight: 1", "reserve: {l40s: 2}"], ["6:13 no policy of the tenant gives l40s; "]),
        (["reserve: {h100: 1}", "lease: 90s"],
         ["5:3 reserve is a part of the tenant's share, and no weight says how big that is; add weight: until then it "
          "has no share",
          "6:3 lease limits what is above the tenant's share, and no weight says how big that is; add weight: until "
          "then it has no share"]),
        (["lease: 90s", "quota: {models: {h100: 1}}"],
         ["5:3 lease limits what is above the tenant's share, and no weight says how big that is; add weight: until "
          "then it counts as 1"]),
        (["weight: 1", "quota: {devices: 3, models: {h100: 2}}", "reserve: {h100: 3, a100: 4}"],
         ["7:19 3 of h100 are kept for the tenant, and its quota lets it hold 2; reserve at most 2: ",
          "7:28 4 of a100 are kept for the tenant, and its quota lets it hold 3; reserve at most 3: "]),
        (["overQuota: wait"], ["5:3 there is no quota to be over; add quota, or leave overQuota out"]),
        (["reserveAfter: 1h", "maxWaiting: 5"],
         ["5:3 reserveAfter says nothing: no Pod of this tenant is held; add weight or quota",
          "6:3 maxWaiting says nothing: no Pod of this tenant is held; add weight or quota"]),
        (["kueue: exactly"],
         ["5:3 Pods that Kueue manages get h100 of base@1 or nothing: they have no fallback; leave kueue out"]),
    ],
)  # fmt: skip
def test_words_about_turns_that_say_less_than_they_seem_to(words: list[str], expected: list[str]) -> None:
    found = about_turns(*words)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found


def test_kueue_takes_nothing_from_a_single_candidate() -> None:
    assert about_turns("kueue: exactly", policy="one@1") == []


@pytest.mark.parametrize("fallback", ["never", "after 5m"])
def test_fallback_without_a_second_candidate(fallback: str) -> None:
    (warning,) = warnings_of(policy(fallback=fallback), CATALOG)
    assert warning.startswith("p.yaml:9:3 fallback has nothing to fall back to: h100 is the only candidate; ")
    assert warnings_of(CATALOG, policy(fallback=fallback, candidates=["h100", "a100"])) == []
    assert warnings_of(CATALOG, policy(fallback="now")) == []


def test_a_namespace_of_kueue_that_is_no_tenants() -> None:
    settings = "apiVersion: policy.dra-gate.io/v1alpha1\nkind: ClusterSettings\nspec: {kueueNamespaces: [%s]}\n"
    (warning,) = warnings_of(settings % "base-train, base-trian", CATALOG, POLICY, TENANT)
    assert warning.startswith("p.yaml:3:38 namespace base-trian belongs to no tenant; check its name")


def test_overlap_across_classes_and_drivers() -> None:
    catalog = CATALOG + '- {name: a100-mig, deviceClassName: mig.nvidia.com, products: ["NVIDIA A100*"]}\n'
    (warning,) = warnings_of(catalog, POLICY)
    assert "a100 and a100-mig overlap by product" in warning
    (warning,) = warnings_of(CATALOG, policy(candidates=["h100", "others"]))
    assert "others brings in devices of several drivers: gpu.nvidia.com, gpu.intel.com" in warning


# -- turns ------------------------------------------------------------------------------------------------------------


def test_what_turns_and_waiting_mean() -> None:
    words = "weight: 3, lease: 4h, reserve: {h100: 1}, reserveAfter: 90s, maxWaiting: 7, kueue: exactly"
    tenant = one(POLICY, TENANT.replace("policy: base@1", f"policy: base@1, {words}")).tenants["base"]
    assert (tenant.weight, tenant.lease, tenant.reserve) == (3, 14_400, {"h100": 1})
    assert (tenant.reserve_after, tenant.max_waiting, tenant.kueue_exactly) == (90, 7, True)
    plain = one(POLICY, TENANT).tenants["base"]
    assert (plain.lease, plain.reserve, plain.reserve_after, plain.max_waiting) == (None, {}, 1800, 1000)
    assert not plain.kueue_exactly


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [({}, 0), ({"fallback": "now"}, 0), ({"fallback": "never"}, -1), ({"fallback": "after 45s"}, 45),
     ({"fallback": "after 10m"}, 600), ({"fallback": "after 99999h"}, 359_996_400)],
)  # fmt: skip
def test_what_fallback_means(spec: dict[str, str], seconds: int) -> None:
    found = one(policy(candidates=["h100", "a100"], **spec)).policies[PolicyRef("p", 1)]
    assert found.fallback == seconds
    assert fallback(found) == spec.get("fallback", "now")


def test_who_is_held_by_what_the_files_say() -> None:
    for words, hold in {
        "": "free",
        ", maxWaiting: 5": "free",
        ", quota: {devices: 4}": "template",
        ", quota: {devices: 4, models: {h100: 1}}": "late",
        ", weight: 1": "late",
    }.items():
        found = one(POLICY, TENANT.replace("policy: base@1", f"policy: base@1{words}"))
        assert found.tenants["base"].hold(found.policies[PolicyRef("base", 1)]) == hold


# -- RELEASED ---------------------------------------------------------------------------------------------------------


def test_released_version_may_not_change() -> None:
    digest = one(POLICY).policies[PolicyRef("base", 1)].digest
    lines = f"# released\nbase@1 sha256:{digest}\nbase@3 sha256:{'0' * 64}\n".encode()
    assert load_documents({"a.yaml": BASE.encode()}, lines)
    (error,) = errors_of({"a.yaml": BASE.replace("h100, a100", "h100").encode()}, lines)
    assert error == "a.yaml:12:1 base@1 was released and has changed since; undo the change and write it as base@4"


def test_released_with_bad_lines() -> None:
    digest = "a" * 64
    bad = f"base@1\nbase@2 sha256:{digest}\n\nbase@2 sha256:{digest}\nbase@2  sha256:xyz\n\xff\n".encode("latin-1")
    places = [error.split(" ")[0] for error in errors_of({"a.yaml": BASE.encode()}, bad)]
    assert places == ["RELEASED:1:1", "RELEASED:4:1", "RELEASED:5:1", "RELEASED:6:1"]


def test_released_that_is_not_read_in_full_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BASE)
    released = tmp_path / "RELEASED"
    digest = one(POLICY).policies[PolicyRef("base", 1)].digest
    released.write_bytes(f"\ufeffbase@1 sha256:{digest}\r\n".encode())  # as some editors save it
    assert load(tmp_path)
    released.write_bytes(b"# more\n" * 200_000 + f"base@1 sha256:{'0' * 64}\n".encode())
    for read in (load, read_folder):
        with pytest.raises(PolicyErrors, match=r"RELEASED:1:1 the file has more than 1048576 bytes"):
            read(tmp_path)
    released.unlink()
    released.mkdir()
    with pytest.raises(PolicyErrors, match="RELEASED:1:1 not a regular file"):
        load(tmp_path)


# -- folders and bytes ------------------------------------------------------------------------------------------------


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CATALOG)
    (tmp_path / "b.yml").write_text(f"{POLICY}---\n{TENANT}")
    (tmp_path / ".hidden.yaml").write_text("{{")
    (tmp_path / "notes.txt").write_text("{{")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "case.yaml").write_text("{{")
    assert set(read_folder(tmp_path)) == {"a.yaml", "b.yml"}
    assert load_with_warnings(tmp_path)[1] == ()
    assert load(str(tmp_path)).digest == load_documents({"x.yaml": BASE.encode()}).digest
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\n")
    assert load_with_warnings(tmp_path)[1] == ()
    (tmp_path / "more" / "c.yaml").write_text(POLICY)
    assert [str(warning) for warning in load_with_warnings(tmp_path)[1]] == [
        "more:1:1 policies in sub-folders are not read; move them up"
    ]


def test_folder_as_a_configmap_volume(tmp_path: Path) -> None:
    data = tmp_path / "..2026_11_30"
    data.mkdir()
    (data / "a.yaml").write_text(BASE)
    (tmp_path / "..data").symlink_to(data.name)
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert load(tmp_path).digest == load_documents({"a.yaml": BASE.encode()}).digest


def test_folder_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors, match="cannot be read: No such file"):
        load(tmp_path / "nowhere")
    (tmp_path / "a.yaml").write_text(BASE)
    with pytest.raises(PolicyErrors, match="cannot be read: Not a directory"):
        load(tmp_path / "a.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "gone.yaml").symlink_to("nothing")
    (tmp_path / "bad.yaml").write_text("kind: Nothing\n")
    with pytest.raises(PolicyErrors) as caught:
        load(tmp_path)
    assert [str(error).split(";")[0] for error in caught.value.errors] == [
        "bad.yaml:1:7 kind Nothing",
        "gone.yaml:1:1 not a regular file",
        "pipe.yaml:1:1 not a regular file",
    ]


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors, match="no DeviceCatalog"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"kind: \xff\xfe\n", "a.yaml:1:7 not UTF-8"),
        (b"# x\nkind: a\x00b\n", "a.yaml:2:8 not YAML"),
        (b"a: [" * 20_000, "a.yaml:1:"),
        (b"a:\n  - " + b"- " * 40 + b"x\n", "nested more than 32 deep"),
        (b"#" * (MAX_BYTES + 1), "a.yaml:1:1 the file has"),
        (b"&a [*a, *a]: x\n", "anchor &a"),
        (b"version: " + b"9" * 5000 + b"\n", "a number to some YAML readers"),
    ],
)
def test_hostile_bytes(data: bytes, message: str) -> None:
    assert any(message in error for error in errors_of({"a.yaml": data, "b.yaml": BASE.encode()}))


def test_byte_order_mark_is_fine() -> None:
    assert load_documents({"a.yaml": b"\xef\xbb\xbf" + BASE.encode()})


def load_or_errors(files: dict[str, bytes], released: bytes | None = None) -> None:
    """Whatever the bytes: a set, or errors with places inside the files."""
    found: tuple[PolicyError, ...] = ()
    try:
        load_documents(files, released)
    except PolicyErrors as caught:
        found = caught.errors
    else:
        return
    assert found
    for error in found:
        assert error.place.line >= 1
        assert error.place.column >= 1
        assert str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=80))
@example(b'"\\ud800"', b"")
@example(b"? {}\n: {}", b"")
@example("\u2028\x85\r\u2029a: |\r\n  x: [\u2028".encode(), b"\x85")
@example(b"%YAML 1.1\n--- !!binary x", b"")
def test_any_bytes(data: bytes, released: bytes) -> None:
    load_or_errors({"a.yaml": data, "b.yaml": BASE.encode()}, released)


_WORDS = [
    "h100",
    "others",
    "base@1",
    "nvidia.com/gpu",
    "40Gi",
    "",
    "gpu.nvidia.com",
    "*",
    "a*b",
    "device.driver == 'x'",
    "\n",
]
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats(allow_nan=True)
    | st.sampled_from(_WORDS)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2), st.randoms(use_true_random=False), _JSON, st.booleans())
def test_any_value_anywhere(which: int, rng: random.Random, value: object, rename: bool) -> None:
    """Takes a sound document and puts any value at any place, or under any key."""
    documents = list(yaml.safe_load_all(BASE))
    full = {
        "memory": {"min": "1Gi"}, "driverVersion": {"min": "1.2.3"}, "architectures": ["Hopper"], "wholeDevice": True,
        "sameAttribute": ["gpu.nvidia.com/x"], "nodes": {"a": "b"}, "cel": ["true"],
    }  # fmt: skip
    documents[1]["spec"]["constraints"] = full
    documents[1]["spec"]["companions"] = [
        {"name": "nic", "deviceClassName": "c", "driver": "d", "count": 2, "minimum": {"a": "1G", "x/b": 1},
         "sameAttribute": ["gpu.nvidia.com/x"], "cel": ["true"]},
        {"name": "n", "deviceClassName": "gpu.example.com"},
    ]  # fmt: skip
    documents[2]["spec"] |= {
        "keepVersions": [1], "canary": {"policy": "base@1", "namespaces": ["base-train"]},
        "quota": {"devices": 1, "models": {"h100": 1}}, "weight": 1, "overQuota": "wait",
    }  # fmt: skip
    inner = documents[which]
    while True:
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.3:
            break
        inner = inner[key]
    if rename and isinstance(inner, dict) and isinstance(value, str):
        inner[value] = inner.pop(key)
    else:
        inner[key] = value
    load_or_errors({"a.yaml": yaml.safe_dump_all(documents, allow_unicode=True).encode("utf-8", "surrogatepass")})
