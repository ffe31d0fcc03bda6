"""What mutate does to particular Pods: which claims, for whom, and what else goes on."""

from __future__ import annotations

from typing import Any

import pytest

from admission import setting
from admission.setting import asking, labelled, pod, request
from dra_gate.admission.mutate import mutate
from dra_gate.admission.validate import validate
from dra_gate.admission.verdict import Verdict
from dra_gate.kube.patch import apply
from dra_gate.policy.model import PolicyRef


def mutated(obj: dict[str, Any], namespace: str = "fern-dev") -> dict[str, Any]:
    verdict = mutate(request(obj, namespace=namespace), setting.facts())
    assert verdict.allowed, verdict.findings
    result: dict[str, Any] = apply(obj, list(verdict.patch))
    return result


def seen(obj: dict[str, Any]) -> dict[str, list[str]]:
    spec = obj["spec"]
    return {
        container["name"]: [claim["name"] for claim in container.get("resources", {}).get("claims", [])]
        for container in [*spec.get("initContainers", []), *spec["containers"]]
    }


def named(name: str, count: int, **more: Any) -> dict[str, Any]:
    return {**asking(count), "name": name, **more}


def test_a_plain_pod() -> None:
    result = mutated(pod(containers=[asking("2")]))
    assert result["spec"]["resourceClaims"] == [
        {"name": "gate-0", "resourceClaimTemplateName": setting.template_name("fern", "train", 2, 2)}
    ]
    assert result["spec"]["containers"][0]["resources"] == {
        "limits": {},
        "requests": {},
        "claims": [{"name": "gate-0"}],
    }
    assert result["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    terms = result["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    # l40s, the third, says no node labels and gets no term.
    assert [(term["weight"], term["preference"]["matchExpressions"][0]["values"]) for term in terms] == [
        (100, ["NVIDIA-H100-80GB-HBM3"]),
        (10, ["NVIDIA-A100-SXM4-80GB"]),
    ]
    assert result["metadata"]["annotations"] == {
        "dra-gate.io/policy": "train",
        "dra-gate.io/policy-version": "2",
        "dra-gate.io/policy-set": setting.policy_set().digest,
        "dra-gate.io/gate-generation": "0",
        "dra-gate.io/tenant": "fern",
        "dra-gate.io/lane": "dra",
        "dra-gate.io/candidates": "h100,a100,l40s",
        "dra-gate.io/devices": "2",
    }


def test_companions_come_with_the_claim() -> None:
    obj = pod(containers=[asking(1)])
    result = mutated(obj, "sedge")
    (entry,) = result["spec"]["resourceClaims"]
    assert entry["resourceClaimTemplateName"] == setting.template_name("sedge", "paired", 1, 1)
    assert result["metadata"]["annotations"]["dra-gate.io/devices"] == "1", "companions are no devices"
    (found,) = (
        setting.facts().index.for_count("sedge", PolicyRef("paired", 1), 1).spec["spec"]["devices"]["requests"][1:]
    )
    assert (found["name"], found["exactly"]["count"]) == ("nic", 2)
    assert validate(request(result, namespace="sedge"), setting.facts()).allowed


@pytest.mark.parametrize(
    ("init", "apps", "claims", "expected"),
    [
        pytest.param([], [("a", 1), ("b", 1)], [1, 1], {"a": ["gate-0"], "b": ["gate-1"]}, id="apps share nothing"),
        pytest.param([("i", 1, "")], [("a", 1)], [1], {"i": ["gate-0"], "a": ["gate-0"]}, id="init reuses the app's"),
        pytest.param(
            [("i", 2, ""), ("j", 2, "")], [("a", 1)], [2, 1],
            {"i": ["gate-0"], "j": ["gate-0"], "a": ["gate-1"]}, id="serial inits reuse each other's",
        ),
        pytest.param(
            [("i", 1, ""), ("s", 1, "Always")], [("a", 2)], [2, 1],
            {"i": ["gate-0"], "s": ["gate-1"], "a": ["gate-0"]}, id="a sidecar never shares",
        ),
        pytest.param(
            [("i", 1, "")], [("a", 4), ("b", 2)], [2, 4],
            {"i": ["gate-0"], "a": ["gate-1"], "b": ["gate-0"]}, id="init uses the smallest that is enough",
        ),
        pytest.param([("i", 4, "")], [("a", 2)], [4, 2], {"i": ["gate-0"], "a": ["gate-1"]}, id="init wants more"),
    ],
)  # fmt: skip
def test_which_claims(init: Any, apps: Any, claims: list[int], expected: dict[str, list[str]]) -> None:
    obj = pod(
        initContainers=[
            named(name, count, **({"restartPolicy": policy} if policy else {})) for name, count, policy in init
        ],
        containers=[named(name, count) for name, count in apps],
    )
    result = mutated(obj)
    assert seen(result) == expected
    assert [entry["resourceClaimTemplateName"] for entry in result["spec"]["resourceClaims"]] == [
        setting.template_name("fern", "train", 2, count) for count in claims
    ]


def test_an_injected_container_is_converted_in_the_second_round() -> None:
    """Another webhook adds device containers after us: only they change, and nothing is numbered anew."""
    first = mutated(pod(containers=[asking(1)]))
    first["spec"]["containers"].append(named("added", 1))
    first["spec"]["initContainers"] = [named("check", 1)]
    second = mutated(first)
    assert seen(second) == {"check": ["gate-0"], "c": ["gate-0"], "added": ["gate-1"]}
    assert second["metadata"]["annotations"]["dra-gate.io/devices"] == "2"
    assert second["spec"]["affinity"] == first["spec"]["affinity"]
    assert second["spec"]["tolerations"] == first["spec"]["tolerations"]
    assert mutated(second) == second


def test_free_entry_names() -> None:
    nic = {"name": "gate-0", "resourceClaimTemplateName": "nics"}
    result = mutated(pod(containers=[asking(1)], resourceClaims=[nic]))
    assert [entry["name"] for entry in result["spec"]["resourceClaims"]] == ["gate-0", "gate-1"]


def test_the_node_pool_goes_on_and_a_conflict_is_refused() -> None:
    result = mutated(pod(containers=[asking(1)], nodeSelector={"disk": "ssd"}), "moss")
    assert result["spec"]["nodeSelector"] == {"disk": "ssd", "pool.example/name": "render"}
    verdict = mutate(
        request(pod(containers=[asking(1)], nodeSelector={"pool.example/name": "x"}), namespace="moss"), setting.facts()
    )
    assert codes(verdict) == ["NODE_POOL"]
    assert not verdict.allowed


def codes(verdict: Verdict) -> list[str]:
    return [finding.code for finding in verdict.findings]


def test_over_quota_is_refused_before_anything_is_changed() -> None:
    verdict = mutate(request(pod(containers=[asking(5)]), namespace="moss"), setting.facts())
    assert (verdict.allowed, codes(verdict), verdict.patch) == (False, ["QUOTA"], ())


@pytest.mark.parametrize(
    ("labels", "word", "patched"),
    [
        ({"lane": "dra"}, "mutate", True),
        ({"lane": "dra", "mode": "enforce"}, "mutate", True),
        ({"lane": "dra", "mode": "no-such-mode"}, "mutate", True),
        ({"lane": "dra", "mode": "warn"}, "mutate", True),
        ({"lane": "dra", "mode": "shadow"}, "admit", False),
        ({"lane": "device-plugin"}, "mutate", True),
        ({"lane": "device-plugin", "mode": "warn"}, "mutate", True),
        ({"lane": "device-plugin", "mode": "shadow"}, "admit", False),
        ({}, "ignore", False),
    ],
)
def test_lanes_and_modes(labels: dict[str, str], word: str, patched: bool) -> None:
    facts = setting.world(labelled("fern-dev", **labels)).facts()
    verdict = mutate(request(pod(containers=[asking(1)])), facts)
    assert (verdict.word, bool(verdict.patch)) == (word, patched)


def test_warn_says_what_it_would_refuse_and_lets_through() -> None:
    facts = setting.world(labelled("moss", lane="dra", mode="warn")).facts()
    verdict = mutate(request(pod(containers=[asking(5)]), namespace="moss"), facts)
    assert (verdict.word, verdict.allowed, verdict.patch) == ("warn", True, ())
    assert "QUOTA" in verdict.warnings[0]
    assert verdict.audit["reasons"] == "QUOTA"


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_only_create_is_ever_changed(operation: str) -> None:
    assert mutate(request(pod(containers=[asking(1)]), operation=operation), setting.facts()).ignored


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize", "binding", "status"])
def test_subresources_are_left_alone(subresource: str) -> None:
    asked = request(pod(containers=[asking(1)]), resource=("", f"pods/{subresource}"))
    assert mutate(asked, setting.facts()).ignored


@pytest.mark.parametrize(
    ("user", "groups", "annotation", "node", "true"),
    [
        ("system:node:n0", ("system:nodes",), "kubernetes.io/config.mirror", "n0", True),
        ("system:node:n1", ("system:nodes",), "kubernetes.io/config.mirror", "n0", False),  # another node's
        ("system:node:n0", ("system:nodes",), "kubernetes.io/config.mirror", None, False),  # it runs nowhere yet
        ("system:node:", ("system:nodes",), "kubernetes.io/config.mirror", "", False),
        ("system:node:n0", ("system:nodes",), "kubernetes.io/config.source", "n0", False),
        ("system:node:n0", ("system:authenticated",), "kubernetes.io/config.mirror", "n0", False),
        ("ada@fern.example", ("system:nodes",), "kubernetes.io/config.mirror", "n0", False),
        ("ada@fern.example", ("system:authenticated",), "kubernetes.io/config.mirror", "n0", False),
    ],
)
def test_a_mirror_pod_is_its_own_nodes_to_write(
    user: str, groups: tuple[str, ...], annotation: str, node: str | None, true: bool
) -> None:
    obj = pod(containers=[asking(1)], **({} if node is None else {"nodeName": node}))
    obj["metadata"]["annotations"] = {annotation: "x"}
    asked = request(obj, user=user, groups=groups)
    assert mutate(asked, setting.facts()).ignored is true
    assert validate(asked, setting.facts()).ignored is true


def test_a_namespace_made_just_now_is_gated() -> None:
    """The API server calls for labelled namespaces only: one that no cache knows yet is no way around."""
    world = setting.world()
    world.sinks()["/api/v1/namespaces"].replace([])
    assert mutate(request(pod(containers=[asking(1)])), world.facts()).word == "mutate"


@pytest.mark.parametrize(
    "written", ["9" * 4000 + "e4000", "1e4000", 16**9000, "9" * 10_000, -(16**9000)], ids=["a", "b", "c", "d", "e"]
)
def test_a_count_beyond_all_counting_is_refused_in_few_words(written: Any) -> None:
    finding = mutate(request(pod(containers=[asking(written)])), setting.facts()).findings[0]
    assert (finding.code, len(finding.message) < 200) == ("MALFORMED", True)


def test_more_requests_than_a_pod_can_mean_are_refused_at_once() -> None:
    verdict = mutate(request(pod(containers=[named(f"c{number}", 1) for number in range(257)])), setting.facts())
    assert [(finding.code, finding.field) for finding in verdict.findings] == [("MALFORMED", "spec")]


def test_a_container_that_names_an_entry_that_is_not_there_gets_no_other_containers_claim() -> None:
    dangling = {"name": "d", "image": "a", "resources": {"claims": [{"name": "gate-0"}]}}
    assert seen(mutated(pod(containers=[asking(1), dangling]))) == {"c": ["gate-1"], "d": ["gate-0"]}


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_second_source_hides_no_claim(empty: Any) -> None:
    entry = {"name": "g", "resourceClaimTemplateName": setting.template_name("fern", "train", 2, 1)}
    stamped = mutated(pod(resourceClaims=[{**entry, "resourceClaimName": empty}]))
    assert stamped["metadata"]["annotations"]["dra-gate.io/devices"] == "1"


FROM = {"configMapRef": {"name": "m"}}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


@pytest.mark.parametrize(
    ("on", "wanted"), [("envFrom", ["i", "from", "old"]), ("withoutClaim", ["i", "from", "plain", "old"]), ("off", [])]
)
def test_where_the_variable_goes_on(on: str, wanted: list[str]) -> None:
    obj = pod(
        initContainers=[{"name": "i", "image": "a", "envFrom": [FROM]}],
        containers=[
            {"name": "from", "image": "a", "envFrom": [FROM], "env": [{"name": "A", "value": "b"}]},
            {"name": "plain", "image": "a"},
            {"name": "old", "image": "a", "env": [{"name": "CUDA_VERSION", "value": "9.0"}]},
            named("asks", 1, envFrom=[FROM]),
            {"name": "says", "image": "a", "envFrom": [FROM], "env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]},
        ],
    )
    facts = setting.facts_where_void_is_set(on)
    result = apply(obj, list(mutate(request(obj), facts).patch))
    every = [*result["spec"]["initContainers"], *result["spec"]["containers"]]
    assert [container["name"] for container in every if VOID in container.get("env", [])] == wanted
    assert all(container["env"][-1] == VOID for container in every if container["name"] in wanted)
    assert mutate(request(result), facts).patch == ()
    assert validate(request(result), facts).allowed


def test_a_pod_that_only_gets_the_variable_gets_no_stamp() -> None:
    obj = pod(containers=[{"name": "c", "image": "a", "envFrom": [FROM]}])
    result = mutated(obj)
    assert result["spec"]["containers"][0].pop("env") == [VOID]
    assert result == obj


@pytest.mark.parametrize("namespace", ["nobody", "typo", "open"])
def test_the_variable_goes_on_only_where_mutate_changes_pods(namespace: str) -> None:
    obj = pod(containers=[{"name": "c", "image": "a", "envFrom": [FROM]}])
    assert mutated(obj, namespace) == obj
    assert validate(request(obj, namespace=namespace), setting.facts()).allowed


def test_without_mutate_a_pod_with_an_environment_from_elsewhere_is_refused() -> None:
    obj = pod(containers=[{"name": "c", "image": "a", "envFrom": [FROM]}])
    (finding,) = validate(request(obj), setting.facts()).findings
    assert (finding.rule, finding.code) == ("visible-devices-void", "VISIBLE_DEVICES")
    shadow = setting.world(labelled("moss", lane="dra", mode="shadow")).facts()
    assert validate(request(obj, namespace="moss"), shadow).findings == ()


@pytest.mark.parametrize(("count", "code"), [(256, None), (257, "MALFORMED")])
def test_a_patch_has_an_end(count: int, code: str | None) -> None:
    obj = pod(containers=[{"name": f"c{number}", "image": "a", "envFrom": [FROM]} for number in range(count)])
    assert [finding.code for finding in mutate(request(obj), setting.facts()).findings] == ([code] if code else [])


def test_a_pod_that_names_its_node_is_not_converted_and_hears_all_of_it_once() -> None:
    obj = pod(
        containers=[asking("1")],
        nodeName="n0",
        nodeSelector={"nvidia.com/gpu.product": "x"},
        resourceClaims=[{"name": "g", "resourceClaimName": "a-gpu"}],
    )
    verdict = mutate(request(obj), setting.facts())
    assert [finding.code for finding in verdict.findings] == ["NODE_PINNING", "FOREIGN_CLAIM", "NODE_PINNING"]
    assert [finding.field for finding in verdict.findings][::2] == [
        "spec.nodeName",
        "spec.nodeSelector[nvidia.com/gpu.product]",
    ]
    assert verdict.patch == ()
