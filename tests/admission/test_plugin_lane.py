"""Lane device-plugin: requests stay, and the policy becomes node selector and node affinity."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import hypothesis
import jsonpatch
import pytest
from hypothesis import strategies as st

from admission import pods, setting
from admission.setting import asking, labelled, pod, request
from admission.test_mutate_properties import EXAMPLES
from cases.invariants import DOMAIN, VOID
from dra_gate.admission import convert, rules
from dra_gate.admission.facts import Facts
from dra_gate.admission.mutate import mutate
from dra_gate.admission.nodes import Nodes
from dra_gate.admission.plugin_pod import MAX_TERMS, TERMS
from dra_gate.admission.rules.rule import Context
from dra_gate.admission.scope import scope_of
from dra_gate.admission.validate import validate
from dra_gate.admission.verdict import Verdict
from dra_gate.fairness.charge import Charge
from dra_gate.kube.patch import apply
from dra_gate.kube.raw import at
from dra_gate.policy.model import PolicyRef

PRODUCTS = ["NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"]
MODELS = {"key": "nvidia.com/gpu.product", "operator": "In", "values": PRODUCTS}
SELECTOR = {"pool.example/devices": "plugin", "pool.example/name": "render"}


def mutated(obj: dict[str, Any], facts: Facts | None = None, namespace: str = "plugin") -> dict[str, Any]:
    verdict = mutate(request(obj, namespace=namespace), facts or setting.facts())
    assert verdict.findings == ()
    result: dict[str, Any] = apply(obj, list(verdict.patch))
    return result


def judged(obj: dict[str, Any], facts: Facts | None = None, namespace: str = "plugin") -> Verdict:
    return validate(request(obj, namespace=namespace), facts or setting.facts())


def terms(obj: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = at(obj, *TERMS)
    return found


def requiring(*wanted: dict[str, Any]) -> dict[str, Any]:
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(wanted)}},
    }


def with_model_labels(**labels: dict[str, tuple[str, ...]]) -> Facts:
    """The same facts where these models' nodes are told by other labels."""
    facts = setting.facts()
    models = dict(facts.policy_set.models)
    models |= {name: replace(models[name], node_labels=own) for name, own in labels.items()}
    return replace(facts, policy_set=replace(facts.policy_set, models=models))


def test_requests_stay_and_the_policy_becomes_node_affinity() -> None:
    obj = pod(containers=[asking("2")])
    result = mutated(obj)
    assert result["spec"]["containers"] == obj["spec"]["containers"]
    assert result["spec"]["nodeSelector"] == SELECTOR
    node = result["spec"]["affinity"]["nodeAffinity"]
    assert terms(result) == [{"matchExpressions": [MODELS]}]
    preferred = node["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(one["weight"], one["preference"]["matchExpressions"][0]["values"]) for one in preferred] == [
        (100, PRODUCTS[:1]),
        (10, PRODUCTS[1:]),
    ]
    assert set(result["spec"]) - set(obj["spec"]) == {"nodeSelector", "affinity"}, "no toleration, claim or gate"
    stamp = result["metadata"]["annotations"]
    assert (stamp["dra-gate.io/policy"], stamp["dra-gate.io/lane"]) == ("old", "device-plugin")
    assert (stamp["dra-gate.io/candidates"], stamp["dra-gate.io/devices"]) == ("a100,h100", "2")
    verdict = judged(result)
    assert verdict.findings == ()
    assert verdict.charge == Charge(2, {"a100": 2, "h100": 2})
    assert verdict.audit["lane"] == "device-plugin"
    (told,) = verdict.warnings
    assert "does not keep driverVersion of policy old@1" in told


def test_what_the_pod_wants_itself_is_kept_in_every_alternative() -> None:
    ssd = {"key": "disk", "operator": "In", "values": ["ssd"]}
    name = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n7"]}]}
    result = mutated(pod(containers=[asking(1)], affinity=requiring({"matchExpressions": [ssd]}, name, {})))
    assert terms(result) == [{"matchExpressions": [ssd, MODELS]}, {**name, "matchExpressions": [MODELS]}, {}]
    assert judged(result).findings == ()


def test_models_that_need_several_labels_multiply_the_alternatives() -> None:
    facts = with_model_labels(a100={"pool": ("a",)}, h100={"pool": ("h",), "fast": ("yes", "very")})
    a100 = [{"key": "pool", "operator": "In", "values": ["a"]}]
    h100 = [
        {"key": "fast", "operator": "In", "values": ["yes", "very"]},
        {"key": "pool", "operator": "In", "values": ["h"]},
    ]
    assert terms(mutated(pod(containers=[asking(1)]), facts)) == [
        {"matchExpressions": a100},
        {"matchExpressions": h100},
    ]
    own = [[{"key": key, "operator": "Exists"}] for key in ("disk", "zone")]
    result = mutated(
        pod(containers=[asking(1)], affinity=requiring(*({"matchExpressions": one} for one in own))), facts
    )
    assert terms(result) == [{"matchExpressions": one + model} for model in (a100, h100) for one in own]
    assert judged(result, facts).findings == ()
    assert mutate(request(result, namespace="plugin"), facts).patch == ()


def test_alternatives_have_an_end() -> None:
    facts = with_model_labels(a100={"pool": ("a",)}, h100={"fast": ("yes",)})
    own = [{"matchExpressions": [{"key": f"k{number}", "operator": "Exists"}]} for number in range(MAX_TERMS // 2 + 1)]
    assert mutate(request(pod(containers=[asking(1)], affinity=requiring(*own[1:])), namespace="plugin"), facts).allowed
    asked = request(pod(containers=[asking(1)], affinity=requiring(*own)), namespace="plugin")
    found = [one for one in mutate(asked, facts).findings if one.rule == "model-affinity"]
    assert [(one.code, one.field) for one in found] == [("MALFORMED", ".".join(TERMS))]


def test_of_a_policy_that_never_falls_back_only_the_first_candidate_counts() -> None:
    facts = setting.facts()
    ref = PolicyRef("old", 1)
    policies = {**facts.policy_set.policies, ref: replace(facts.policy_set.policies[ref], fallback=-1)}
    facts = replace(facts, policy_set=replace(facts.policy_set, policies=policies))
    assert terms(mutated(pod(containers=[asking(1)]), facts)) == [
        {"matchExpressions": [MODELS | {"values": PRODUCTS[:1]}]}
    ]


@pytest.mark.parametrize(
    ("label", "says"), [("pool.example/devices", "devicePluginNodes"), ("pool.example/name", "policy old@1")]
)
def test_a_pod_that_wants_other_nodes_is_refused(label: str, says: str) -> None:
    verdict = mutate(
        request(pod(containers=[asking(1)], nodeSelector={label: "x"}), namespace="plugin"), setting.facts()
    )
    (finding,) = verdict.findings
    assert (finding.code, finding.field, verdict.patch) == ("NODE_POOL", f"spec.nodeSelector[{label}]", ())
    assert says in finding.message


def test_without_mutate_it_is_refused_with_all_that_is_missing() -> None:
    codes = {finding.code for finding in judged(pod(containers=[asking(1)])).findings}
    assert codes == {"MODEL_AFFINITY", "NODE_POOL", "FORGED_ANNOTATION"}


def test_without_device_plugin_nodes_each_is_told() -> None:
    settings = replace(setting.facts().policy_set.settings, device_plugin_nodes={})
    facts = setting.with_settings(setting.facts(), settings)
    result = mutated(pod(containers=[asking(1)]), facts)
    assert result["spec"]["nodeSelector"] == {"pool.example/name": "render"}
    assert any("may land on nodes where DRA gives devices" in told for told in judged(result, facts).warnings)


@pytest.mark.parametrize(("mode", "word"), [("enforce", "deny"), ("warn", "warn"), ("shadow", "shadow")])
def test_modes(mode: str, word: str) -> None:
    facts = setting.world(labelled("plugin", lane="device-plugin", mode=mode)).facts()
    verdict = judged(pod(containers=[asking("9")]), facts)
    assert verdict.word == word
    assert "QUOTA" in [finding.code for finding in verdict.findings]
    assert bool(verdict.warnings) is (mode == "warn")


def test_nothing_waits_whatever_over_quota_says() -> None:
    assert setting.policy_set().tenants["heath"].over_quota == "wait"
    asked = request(pod(containers=[asking("5")]), namespace="plugin")
    assert [finding.code for finding in mutate(asked, setting.facts()).findings] == ["QUOTA"]
    gated = pod(containers=[asking("1")], schedulingGates=[{"name": "dra-gate.io/grant"}])
    assert "FORGED_GATE" in [finding.code for finding in judged(mutated(gated)).findings]


def test_a_daemon_set_names_each_pods_node_itself() -> None:
    name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
    obj = pod(containers=[asking(1)], affinity=requiring(name))
    daemons = "system:serviceaccount:kube-system:daemon-set-controller"
    result = mutated(obj)
    assert "NODE_PINNING" in [finding.code for finding in judged(result).findings]
    assert validate(request(result, namespace="plugin", user=daemons), setting.facts()).findings == ()


def test_a_copy_of_a_pod_is_as_good_as_the_first() -> None:
    first = mutated(pod(containers=[asking(1)]))
    copied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}, "spec": copy.deepcopy(first["spec"])}
    assert mutated(copied)["spec"] == first["spec"]


def test_the_affinity_keeps_the_pod_off_other_nodes() -> None:
    result = mutated(pod(containers=[asking(1)]))
    nodes = Nodes()
    good = {"nvidia.com/gpu.product": PRODUCTS[1], **SELECTOR}
    nodes.set("good", good, devices=True)
    required = at(result, *TERMS[:-1])
    assert nodes.choices(result["spec"]["nodeSelector"], required).device
    for change in ({"pool.example/devices": "dra"}, {"nvidia.com/gpu.product": "NVIDIA-L40S"}):
        nodes.set("good", good | change, devices=True)
        assert not nodes.choices(result["spec"]["nodeSelector"], required).device


LABELS = [
    {},
    {"a100": {"pool": ("a",)}},
    {"a100": {"pool": ("a",)}, "h100": {"pool": ("h",), "fast": ("yes",)}, "l40s": {"disk": ("ssd",)}},
]


@hypothesis.settings(
    max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True
)
@hypothesis.given(
    obj=st.one_of(pods.pods(), pods.pods(valid=True)), labels=st.sampled_from(LABELS), switched=st.booleans()
)
def test_every_patch_in_this_lane(obj: dict[str, Any], labels: dict[str, Any], switched: bool) -> None:
    """It applies, a second pass is empty, nothing else changes, and every node that is left was left before."""
    facts, before = with_model_labels(**labels), copy.deepcopy(obj)
    namespace = "reed" if switched else "plugin"
    facts = replace(facts, namespaces={**facts.namespaces, "reed": {"dra-gate.io/lane": "device-plugin"}})
    verdict = mutate(request(obj, namespace=namespace), facts)
    assert obj == before
    assert verdict.allowed or not verdict.patch
    after = jsonpatch.JsonPatch(list(verdict.patch)).apply(copy.deepcopy(obj))
    if not verdict.patch:
        return
    for operation in verdict.patch:
        was = (
            jsonpatch.JsonPointer(operation["path"]).resolve(before, None)
            if not operation["path"].endswith("/-")
            else None
        )
        assert operation["op"] == "remove" or was is None or "dra-gate.io" in operation["path"], "nothing is replaced"
    again = mutate(request(after, namespace=namespace, uid="another"), facts)
    assert (again.allowed, again.patch) == (True, ())
    assert stripped(after, before, facts) == stripped(before, before, facts)
    check_terms(before, after)
    scope = scope_of(namespace, facts)
    assert scope is not None
    written = rules.ALL.findings(
        Context.of(request(before, namespace=namespace), before, scope, facts), as_written=True
    )
    final = validate(request(after, namespace=namespace), facts)
    assert {finding.rule for finding in final.findings} <= {finding.rule for finding in written}, final.findings


def stripped(obj: dict[str, Any], original: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """The Pod without what the gate may add in this lane."""
    made = copy.deepcopy(obj)
    metadata, spec = made["metadata"], made["spec"]
    annotations = metadata.pop("annotations", None) or {}
    metadata["annotations"] = {key: value for key, value in annotations.items() if not key.startswith(DOMAIN)}
    selector = spec.pop("nodeSelector", None) or {}
    added = {"pool.example/name", "pool.example/devices"} - set(original["spec"].get("nodeSelector") or {})
    spec["nodeSelector"] = {key: value for key, value in selector.items() if key not in added}
    affinity = spec.pop("affinity", None) or {}
    node = affinity.pop("nodeAffinity", None) or {}
    node.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
    preferred = node.pop("preferredDuringSchedulingIgnoredDuringExecution", None) or []
    was = at(original, "spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution") or []
    assert preferred[: len(was)] == was
    spec["affinity"] = {**affinity, "nodeAffinity": node, "preferred": was}
    asking = {one.container.path for one in convert.device_requests(original, facts)}
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or []):
            earlier = original["spec"][kind][index].get("env")
            if container.get("env") != earlier:
                assert ("spec", kind, index) not in asking
                assert container["env"] == [*(earlier or []), VOID]
                container["env"] = earlier
            if container.get("env") is None:
                container.pop("env", None)
    return made


def check_terms(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Each alternative is one of before, and more; one that matches no node still matches none."""
    old, new = at(before, *TERMS) or [], at(after, *TERMS) or []
    for term in new:
        assert not old or any(within(one, term) for one in old)
    for term in old:
        assert any(within(term, one) for one in new)


def within(less: dict[str, Any], more: dict[str, Any]) -> bool:
    if not less.get("matchExpressions") and not less.get("matchFields"):
        return less == more
    return less.get("matchFields") == more.get("matchFields") and all(
        one in (more.get("matchExpressions") or []) for one in less.get("matchExpressions") or []
    )
