"""Templates: their exact form, their names, and what their selectors accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dra_gate import cel
from dra_gate.policy.compile import (
    compile_template,
    content_digest,
    late_claim,
    model_selector,
    quoted,
    selectors,
    templates_of,
)
from dra_gate.policy.load import load, load_documents
from dra_gate.policy.meaning import globs_meet
from dra_gate.policy.model import MAX_DEVICES, Constraints, Model, Place, PolicyRef, PolicySet
from policy.floors import Table, compiled, policy_files, tables

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "policies"
ROOT = "resource.kubernetes.io/pcieRoot"


def expressions(spec: object) -> list[list[str]]:
    """The CEL of each alternative of a template's spec."""
    (request,) = spec["spec"]["devices"]["requests"]  # type: ignore[index]
    return [[s["cel"]["expression"] for s in one["selectors"]] for one in request["firstAvailable"]]


def accepts(expression: str, product: str) -> bool:
    device = cel.Device("gpu.nvidia.com", {"gpu.nvidia.com": {"productName": product}}, {})
    return cel.compile(expression).evaluate(device)


def model(*products: str, driver: str = "gpu.nvidia.com") -> Model:
    return Model("m", driver, driver, products, None, None, None, {}, Place("f", 1, 1))


# -- form -------------------------------------------------------------------------------------------------------------


def test_example_is_what_the_golden_file_says() -> None:
    """Change golden.yaml only when templates are meant to change: all that exist are then made anew."""
    examples = load(EXAMPLE)
    index = templates_of(examples)
    made = [
        index.for_count("research", PolicyRef("training", 7), 1).manifest("research-train"),
        index.for_count("research", PolicyRef("training", 8), 2).manifest("research-canary"),
    ]
    assert made == list(yaml.safe_load_all((HERE / "golden.yaml").read_text()))


LATE = (("training", 7, 1, ("a100", "h100")), ("training", 8, 2, ("a100",)))  # policy, version, devices, candidates


def test_late_claims_are_what_the_golden_file_says() -> None:
    """Change it only when late claims are meant to change: open grants keep the digest of what was written."""
    index = templates_of(load(EXAMPLE))
    made = []
    for name, version, count, candidates in LATE:
        late = late_claim(index.for_count("research", PolicyRef(name, version), count), candidates)
        made.append({"metadata": late.metadata, "spec": late.spec, "digest": late.digest})
    assert made == list(yaml.safe_load_all((HERE / "golden-late.yaml").read_text()))


def test_a_late_claim_says_what_its_template_says_but_for_candidates_left_out() -> None:
    template = templates_of(load(EXAMPLE)).for_count("research", PolicyRef("training", 8), 2)
    whole = template.spec["spec"]
    assert late_claim(template, template.candidates).spec == whole
    for left_out in template.candidates:
        kept = tuple(name for name in template.candidates if name != left_out)
        late = late_claim(template, kept[::-1])
        assert late.candidates == kept  # in the policy's order, however they are given
        assert late.metadata["annotations"]["dra-gate.io/candidates"] == ",".join(kept)
        assert late.metadata["annotations"]["dra-gate.io/devices"] == "2"
        assert late.spec["devices"]["constraints"] == whole["devices"]["constraints"]
        alternatives = whole["devices"]["requests"][0]["firstAvailable"]
        (request,) = late.spec["devices"]["requests"]
        assert request["firstAvailable"] == [one for one in alternatives if one["name"] != left_out]


@pytest.mark.parametrize("candidates", [[], ["l40s"], ["h100", "l40s"]])
def test_a_late_claim_has_candidates_of_its_template(candidates: list[str]) -> None:
    template = templates_of(load(EXAMPLE)).for_count("research", PolicyRef("training", 7), 1)
    with pytest.raises(ValueError, match="is not among h100, a100, h200"):
        late_claim(template, candidates)


def test_every_default_is_written_out() -> None:
    alternative = compiled(policy_files(["A"], {})).spec["spec"]["devices"]["requests"][0]["firstAvailable"][0]
    assert set(alternative) == {"name", "deviceClassName", "allocationMode", "count", "selectors"}
    assert (alternative["allocationMode"], alternative["count"]) == ("ExactCount", 1)


def test_same_attribute_only_matters_for_several_devices() -> None:
    files = policy_files(["A"], {"sameAttribute": [ROOT]})
    assert "constraints" not in compiled(files, 1).spec["spec"]["devices"]
    assert compiled(files, 2).spec["spec"]["devices"]["constraints"] == [{"requests": ["gpu"], "matchAttribute": ROOT}]


NIC = {
    "name": "nic",
    "deviceClassName": "fast.example",
    "driver": "nic.example",
    "count": 2,
    "minimum": {"bandwidth": "100G", "other.example/lanes": 4},
    "cel": ["device.driver != ''"],
    "sameAttribute": [ROOT, "resource.kubernetes.io/numaNode"],
}


def test_a_companion_is_one_more_request_with_every_default_written_out() -> None:
    files = policy_files(
        ["A"], {"sameAttribute": [ROOT]}, companions=[NIC, {"name": "p", "deviceClassName": "gpu.amd.com"}]
    )
    one, two = (compiled(files, count).spec["spec"]["devices"] for count in (1, 2))
    (accelerators, *beside) = one["requests"]
    assert (accelerators["name"], set(accelerators)) == ("gpu", {"name", "firstAvailable"})
    bandwidth, lanes = "device.capacity['nic.example'].bandwidth", "device.capacity['other.example'].lanes"
    assert beside == [
        {
            "name": "nic",
            "exactly": {
                "deviceClassName": "fast.example",
                "allocationMode": "ExactCount",
                "count": 2,
                "selectors": [
                    {"cel": {"expression": text}}
                    for text in (
                        "device.driver == 'nic.example'",
                        f"has({bandwidth}) && {bandwidth}.compareTo(quantity('100G')) >= 0",
                        f"has({lanes}) && {lanes}.compareTo(quantity('4')) >= 0",
                        "device.driver != ''",
                    )
                ],
            },
        },
        {
            "name": "p",
            "exactly": {
                "deviceClassName": "gpu.amd.com",
                "allocationMode": "ExactCount",
                "count": 1,
                "selectors": [{"cel": {"expression": "device.driver == 'gpu.amd.com'"}}],
            },
        },
    ]
    together = [{"requests": ["gpu", "nic"], "matchAttribute": attribute} for attribute in NIC["sameAttribute"]]
    assert one["constraints"] == together, "one accelerator and its companion have something to agree on too"
    assert two["constraints"] == [{"requests": ["gpu"], "matchAttribute": ROOT}, *together]


def test_companions_leave_room_for_fewer_accelerators() -> None:
    policy_set = load_documents(policy_files(["A"], {}, companions=[{**NIC, "count": 30}]))
    tenant, (policy,) = policy_set.tenants["floors"], policy_set.policies.values()
    assert policy.max_devices == 2
    assert [template.count for template in templates_of(policy_set).of("floors", policy.ref)] == [1, 2]
    with pytest.raises(ValueError, match="1 to 2"):
        compile_template(tenant, policy, policy_set.models, 3)


def test_templates_without_companions_are_what_they_were_before_there_were_any() -> None:
    """The names hold the digests of the content: all that are in clusters stay as they are."""
    index = templates_of(load(EXAMPLE))
    released = (("research", PolicyRef("training", 7)), ("serving", PolicyRef("inference", 2)))
    names = [template.name for tenant, ref in released for template in index.of(tenant, ref)]
    assert len(names) == 2 * MAX_DEVICES
    assert content_digest(names) == "0fb89501af355bfd3b4ef73fab8d10c51b2b2c0501da991f5cfa3843b1b34a25"


def test_words_come_in_a_fixed_order() -> None:
    constraints = {
        "cel": ["true"], "wholeDevice": True, "architectures": ["Hopper"], "driverVersion": {"min": "550.127.08"},
        "memory": {"min": "40Gi"},
    }  # fmt: skip
    (texts,) = expressions(compiled(policy_files(["NVIDIA H100*"], constraints)).spec)
    at = "device.attributes['gpu.nvidia.com']"
    memory = "device.capacity['gpu.nvidia.com'].memory"
    assert texts == [
        f"has({at}.productName) && {at}.productName.startsWith('NVIDIA H100')",
        f"has({memory}) && {memory}.compareTo(quantity('40Gi')) >= 0",
        f"has({at}.driverVersion) && {at}.driverVersion.compareTo(semver('550.127.8')) >= 0",
        f"has({at}.architecture) && {at}.architecture in ['Hopper']",
        f"has({at}.type) && {at}.type == 'gpu' && !device.allowMultipleAllocations",
        "true",
    ]


def test_names_follow_content() -> None:
    files = policy_files(["A"], {"memory": {"min": "40Gi"}})
    first = compiled(files)
    assert first.name == compiled(files).name
    assert first.name.startswith("dra-gate-floors-v1-x1-")
    names = {compiled(files, count).name for count in range(1, MAX_DEVICES + 1)}
    assert len(names) == MAX_DEVICES
    assert compiled(policy_files(["A"], {"memory": {"min": "41Gi"}})).name != first.name
    assert compiled(policy_files(["A"], {"memory": {"min": "40Gi"}}, namespace="other")).name == first.name


def check_all(policy_set: PolicySet) -> None:
    """Whatever way an index takes to them, its names are the digests of what is sent, as of a template by itself."""
    index = templates_of(policy_set)
    for tenant in policy_set.tenants.values():
        for ref in dict.fromkeys(ref for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace)):
            for count in range(1, policy_set.policies[ref].max_devices + 1):
                found = index.for_count(tenant.name, ref, count)
                alone = compile_template(tenant, policy_set.policies[ref], policy_set.models, count)
                assert (found.tenant, found.policy, found.count) == (tenant.name, ref, count)
                assert (found.name, found.spec, found.candidates) == (alone.name, alone.spec, alone.candidates)
                assert found.name == f"dra-gate-{ref.name}-v{ref.version}-x{count}-{content_digest(found.spec)[:10]}"
                assert index.by_name(tenant.name, found.name) is index.named(found.name) is found


def test_names_are_digests_of_content() -> None:
    check_all(load(EXAMPLE))


# Digits, which also stand where the count does, and text that is longer or escaped in JSON.
@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["2", "A23", "B 3", 'C"2"', "D\\2", "é3", "𝛀2*"]), min_size=1, max_size=3, unique=True),
    st.sampled_from([{}, {"memory": {"min": "23Gi"}}, {"sameAttribute": [ROOT]}]),
    st.sampled_from(["true", "'2' == '3' || 2 == 3", "'é𝛀' == '\"'"]),
    st.lists(st.sampled_from([2, 3, 9, 23]).map(lambda n: {**NIC, "name": f"n{n}", "count": n}), max_size=1)
    | st.just([{**NIC, "name": "2"}, {"name": "3", "deviceClassName": "gpu.amd.com"}]),
)
def test_names_are_digests_of_content_whatever_it_is(
    products: list[str], constraints: dict[str, object], own: str, companions: list[dict[str, object]]
) -> None:
    check_all(load_documents(policy_files(products, {**constraints, "cel": [own]}, companions=companions)))


def test_counts_out_of_range() -> None:
    examples = load(EXAMPLE)
    tenant = examples.tenants["research"]
    for count in (0, -1, MAX_DEVICES + 1):
        with pytest.raises(ValueError, match="1 to 32"):
            compile_template(tenant, examples.policies[tenant.policy], examples.models, count)


def test_index_holds_what_each_tenant_may_use_and_no_more() -> None:
    index = templates_of(load(EXAMPLE))
    own = index.for_count("research", PolicyRef("training", 8), MAX_DEVICES)
    assert index.by_name("research", own.name) is own
    assert index.by_name("vision", own.name) is None  # its stamp names research
    assert index.by_name("research", own.name[:-1]) is None
    with pytest.raises(KeyError):
        index.for_count("vision", PolicyRef("training", 8), 1)
    shared = index.for_count("vision", PolicyRef("training", 7), 1)
    assert shared.name != index.for_count("research", PolicyRef("training", 7), 1).name


def test_manifest_is_json_and_carries_the_stamp_twice() -> None:
    template = templates_of(load(EXAMPLE)).for_count("serving", PolicyRef("inference", 2), 3)
    manifest = json.loads(json.dumps(template.manifest("serving-prod")))
    stamp = manifest["spec"]["metadata"]
    assert manifest["metadata"]["labels"] == stamp["labels"]
    assert manifest["metadata"]["annotations"] == stamp["annotations"]
    assert stamp["annotations"]["dra-gate.io/candidates"] == "l40s,a100"
    assert stamp["annotations"]["dra-gate.io/devices"] == "3"
    assert all(isinstance(value, str) for part in stamp.values() for value in part.values())


# -- meaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", tables(), ids=lambda row: row.name)
def test_floors(row: Table) -> None:
    """Our own evaluation of the compiled selectors gives what the real scheduler gives (see the control-plane test)."""
    (texts,) = expressions(row.template.spec)
    programs = [cel.compile(text) for text in texts]
    for device, wanted in row.devices:
        seen = cel.device_of(row.driver, device)
        assert all(program.evaluate(seen) for program in programs) is wanted, device["name"]


@pytest.mark.parametrize(
    ("bandwidth", "driver", "accepted"),
    [("100G", "nic.example", True), ("99999M", "nic.example", False), (None, "nic.example", False),
     ("200G", "gpu.nvidia.com", False)],
)  # fmt: skip
def test_a_floor_of_a_companion(bandwidth: str | None, driver: str, accepted: bool) -> None:
    companion = {"name": "nic", "deviceClassName": "c", "driver": "nic.example", "minimum": {"bandwidth": "100G"}}
    (_, request) = compiled(policy_files(["A"], {}, companions=[companion])).spec["spec"]["devices"]["requests"]
    texts = [selector["cel"]["expression"] for selector in request["exactly"]["selectors"]]
    assert [cel.check(text) for text in texts] == [[], []]
    capacity = {} if bandwidth is None else {"nic.example/bandwidth": {"value": bandwidth}}
    device = cel.device_of(driver, {"name": "d", "capacity": capacity})
    assert all(cel.compile(text).evaluate(device) for text in texts) is accepted


@pytest.mark.parametrize("row", tables(), ids=lambda row: row.name)
def test_what_is_compiled_passes_the_check_of_own_cel(row: Table) -> None:
    for texts in expressions(row.template.spec):
        for text in texts:
            assert cel.check(text) == [], text


def test_constraints_hold_for_every_candidate() -> None:
    template = templates_of(load(EXAMPLE)).for_count("research", PolicyRef("training", 7), 1)
    by_candidate = expressions(template.spec)
    assert len(by_candidate) == 3
    assert len({tuple(texts[1:]) for texts in by_candidate}) == 1
    assert len({texts[0] for texts in by_candidate}) == 3


def test_unknown_driver_has_no_words() -> None:
    own = Model("m", "c", "npu.example.org", (), "device.driver == 'npu.example.org'", None, None, {}, Place("f", 1, 1))
    assert selectors(own, Constraints(cel=("true",))) == ["device.driver == 'npu.example.org'", "true"]
    with pytest.raises(ValueError, match="publishes nothing for whole"):
        selectors(own, Constraints(whole_device=True))


# -- text that might break out ----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("'\"\\ab\n\u2028{}()", max_size=12)


@given(TEXT)
@example("\\")
@example("'")
@example("\\'")
@example("x' || true || 'y")
@example("\u0000\x7f\x85\u2028\U0001f600")
def test_quoted_text_is_the_text(text: str) -> None:
    assert accepts(f"device.attributes['gpu.nvidia.com'].productName == {quoted(text)}", text)
    assert not accepts(f"device.attributes['gpu.nvidia.com'].productName == {quoted(text)}", text + "x")


GLOB = st.builds(
    lambda a, text, b: f"{a}{text}{b}",
    st.sampled_from(["", "*"]),
    st.text("ab'", max_size=3),
    st.sampled_from(["", "*"]),
)


def fits(text: str, glob: str) -> bool:
    """What a glob means, said another way than the compiler and the loader say it."""
    if "*" not in glob:
        return text == glob
    start, _, rest = glob.partition("*")
    middle, _, end = rest.rpartition("*") if "*" in rest else ("", "", rest)
    return len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end) and middle in text


@given(st.lists(GLOB.filter(bool), min_size=1, max_size=3), st.text("ab'", max_size=5))
@example(["*"], "")
@example(["*a*", "b"], "ba")
def test_product_globs(globs: list[str], product: str) -> None:
    assert accepts(model_selector(model(*globs)), product) is any(fits(product, glob) for glob in globs)
    nameless = cel.Device("gpu.nvidia.com", {}, {})
    assert cel.compile(model_selector(model(*globs))).evaluate(nameless) is False


@given(GLOB.filter(bool), GLOB.filter(bool), st.text("ab'", max_size=6))
def test_models_that_share_a_product_are_never_called_disjoint(one: str, other: str, product: str) -> None:
    assert globs_meet(one, other) == globs_meet(other, one)
    if fits(product, one) and fits(product, other):
        assert globs_meet(one, other)


@given(GLOB.filter(bool), GLOB.filter(bool))
def test_globs_that_meet_have_a_common_product(one: str, other: str) -> None:
    if globs_meet(one, other):
        a, b = one.strip("*"), other.strip("*")
        candidates = [a, b, a + b, b + a]
        assert any(fits(text, one) and fits(text, other) for text in candidates)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a*", "*b", True), ("a*", "ab*", True), ("a*", "b*", False), ("*a", "*ba", True), ("*a", "*b", False),
        ("*a*", "b*", True), ("*a*", "*b*", True), ("a", "a*", True), ("a", "*b", False), ("ab", "*b*", True),
    ],
)  # fmt: skip
def test_which_globs_meet(one: str, other: str, expected: bool) -> None:
    assert globs_meet(one, other) is globs_meet(other, one) is expected
