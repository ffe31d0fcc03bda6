"""The webhook configurations: what they select, and that offline review reaches the same requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional
from click.testing import CliRunner
from hypothesis import strategies as st

from admission import pods, setting
from closed.disabled import rows_of
from dra_gate.admission import hostpath
from dra_gate.admission.configurations import GATE_WRITERS, configurations, reaches
from dra_gate.admission.mutate import mutate
from dra_gate.admission.rules import ALL, Context, Rule
from dra_gate.admission.scope import scope_of
from dra_gate.admission.validate import validate
from dra_gate.cli import webhooks
from dra_gate.policy.model import Settings, Workload

CUSTOM = Workload("kubeflow.org", "pytorchjobs", (("spec", "pytorchReplicaSpecs", "*", "template"),))
WITHOUT_CLAIM = configurations(
    url="https://gate.example",
    ca_bundle=b"pem",
    writers=GATE_WRITERS,
    settings=setting.facts_where_void_is_set("withoutClaim").policy_set.settings,
)
CONFIGURATIONS = configurations(url="https://gate.example", ca_bundle=b"pem", writers=GATE_WRITERS)
MUTATING, VALIDATING = (configuration["webhooks"] for configuration in CONFIGURATIONS)


def hooks() -> list[dict[str, Any]]:
    return [*MUTATING, *VALIDATING]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["name"])
def test_what_every_webhook_promises(hook: dict[str, Any]) -> None:
    expressions = {e["key"]: e for e in hook["namespaceSelector"]["matchExpressions"]}
    assert expressions["dra-gate.io/lane"]["operator"] == "Exists"
    assert {"kube-system", "dra-gate"} <= set(expressions["kubernetes.io/metadata.name"]["values"])
    assert "objectSelector" not in hook, "people set objects' labels: they would be a way around"
    assert hook["sideEffects"] == "None"
    assert hook["timeoutSeconds"] <= 3
    assert hook["matchPolicy"] == "Equivalent"
    for rule in hook["rules"]:
        assert not {"*", "leases", "nodes", "pods/binding", "pods/status"} & set(rule["resources"])
        assert not {"*", "DELETE", "CONNECT"} & set(rule["operations"])


def test_failure_policies() -> None:
    assert [hook["failurePolicy"] for hook in hooks()] == ["Ignore", "Fail", "Fail", "Ignore"]
    assert MUTATING[0]["rules"][0]["operations"] == ["CREATE"]
    assert MUTATING[0]["reinvocationPolicy"] == "IfNeeded"
    assert all(configuration["metadata"]["name"].startswith("zz-") for configuration in CONFIGURATIONS)


def test_by_service() -> None:
    (hook,) = configurations(service=("dra-gate", "webhook", 443), ca_bundle=b"pem", writers=[])[0]["webhooks"]
    assert hook["clientConfig"] == {
        "service": {"namespace": "dra-gate", "name": "webhook", "port": 443, "path": "/mutate"},
        "caBundle": "cGVt",
    }


ENVIRONMENT = cel.NewEnv(
    variables={"object": cel.Type.DYN, "oldObject": cel.Type.DYN, "request": cel.Type.DYN},
    extensions=[ext_optional.ExtOptional()],
)
PROGRAMS = {
    hook["name"]: [ENVIRONMENT.compile(condition["expression"]) for condition in hook["matchConditions"]]
    for hook in hooks()
}

WITH_CUSTOM: dict[str, Any] = {
    **configurations(
        url="https://gate.example", ca_bundle=b"pem", writers=GATE_WRITERS, settings=Settings(workloads=(CUSTOM,))
    )[1]["webhooks"][2],
    "name": "workloads, with custom kinds",
}
PROGRAMS[WITH_CUSTOM["name"]] = [
    ENVIRONMENT.compile(condition["expression"]) for condition in WITH_CUSTOM["matchConditions"]
]


HOST_PATH = ENVIRONMENT.compile(hostpath.condition("object"))


def selected(hook: dict[str, Any], obj: dict[str, Any], old: dict[str, Any], request: dict[str, Any]) -> bool:
    data = {"object": obj, "oldObject": old, "request": request}
    return all(program.eval(data=data).value() is True for program in PROGRAMS[hook["name"]])


USERS = st.sampled_from(
    ["ada", "system:serviceaccount:dra-gate:dra-gate-controller", "system:kube-scheduler", "system:node:n0"]
)


@hypothesis.settings(max_examples=800, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    pod=pods.pods(valid=True),
    namespace=st.sampled_from(["fern-dev", "moss", "nobody", "typo", "plugin"]),
    operation=st.sampled_from(["CREATE", "UPDATE"]),
    void=st.sampled_from(["envFrom", "off"]),
)
def test_what_is_denied_or_changed_shows_a_sign(pod: dict[str, Any], namespace: str, operation: str, void: str) -> None:
    facts = setting.facts_where_void_is_set(void)
    asked = setting.request(pod, operation=operation, old=setting.pod(), namespace=namespace)
    raw = {"operation": operation, "userInfo": {"username": "ada", "groups": []}}
    if validate(asked, facts).findings:
        assert selected(VALIDATING[0], pod, setting.pod(), raw)
    verdict = mutate(asked, facts)
    if verdict.patch or verdict.findings:
        assert selected(MUTATING[0], pod, {}, raw)


@pytest.mark.parametrize("rule", list(ALL), ids=lambda rule: rule.id)
def test_what_each_rule_denies_in_its_table_is_asked_about(rule: Rule) -> None:
    """Every row offline, and some by the webhooks' conditions: CEL gives up on types that no API server sends."""
    by_conditions = 0
    for request, facts in rows_of(rule):
        if not any(finding.rule == rule.id for finding in validate(request, facts).findings):
            continue
        assert reaches(request, facts), request
        raw: dict[str, Any] = {
            "operation": request.operation,
            "resource": {"group": request.group, "version": "v1", "resource": request.resource},
            "userInfo": {"username": request.username, "groups": sorted(request.groups)},
        }
        if request.subresource:
            raw["subResource"] = request.subresource
        hook = VALIDATING[0 if request.resource == "pods" else 1]
        by_conditions += selected(hook, dict(request.object), dict(request.old_object), raw)
    assert by_conditions


def test_every_new_pod_is_asked_about_where_the_variable_goes_on_every_container() -> None:
    facts = setting.facts_where_void_is_set("withoutClaim")
    assert reaches(setting.request(setting.pod()), facts)
    assert mutate(setting.request(setting.pod()), facts).patch
    conditions = [one["webhooks"][0]["matchConditions"][-1]["expression"] for one in WITHOUT_CLAIM]
    for condition, asked_on_update in zip(conditions, (True, False), strict=True):
        program = ENVIRONMENT.compile(condition)
        for operation, wanted in (("CREATE", True), ("UPDATE", asked_on_update)):
            data = {"object": setting.pod(), "oldObject": setting.pod(), "request": {"operation": operation}}
            assert program.eval(data=data).value() is wanted


def test_the_command_reads_that_setting_from_the_policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_bytes((setting.WORLD / "policies.yaml").read_bytes())
    (tmp_path / "cluster.yaml").write_text(
        "{apiVersion: policy.dra-gate.io/v1alpha1, kind: ClusterSettings, spec: {visibleDevicesVoid: withoutClaim}}"
    )
    asked = ["--url", "https://gate.example", "--policies", str(tmp_path), "-o", "json"]
    done = CliRunner().invoke(webhooks.command, asked, catch_exceptions=False)
    mutating = json.loads(done.stdout)["items"][0]["webhooks"][0]
    assert mutating["matchConditions"] == WITHOUT_CLAIM[0]["webhooks"][0]["matchConditions"]


@hypothesis.settings(max_examples=1500, deadline=None)
@hypothesis.given(path=pods.HOST_PATHS)
def test_paths_of_the_node_are_read_alike_by_both(path: str) -> None:
    assert HOST_PATH.eval(data={"object": path, "oldObject": {}, "request": {}}).value() is bool(hostpath.reached(path))
    assert hostpath.reached(path) != "leads to devices", "both readings in Python agree too"


USERS = st.sampled_from(
    [
        "ada",
        "system:serviceaccount:dra-gate:dra-gate-controller",
        "system:kube-scheduler",
        "system:kube-controller-manager",
        "system:serviceaccount:kube-system:daemon-set-controller",
    ]
)


@hypothesis.settings(max_examples=800, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    pod=pods.pods(valid=True),
    old=pods.pods(valid=True),
    kind=st.sampled_from(
        [("pods", "CREATE"), ("pods", "UPDATE"), ("pods/ephemeralcontainers", "UPDATE"), ("pods/resize", "UPDATE")]
    ),
    name=st.sampled_from(["p", "dra-gate-p"]),
    user=USERS,
    groups=st.sampled_from([("system:authenticated",), ("system:nodes",)]),
    mirror=st.booleans(),
)
def test_offline_reaches_what_the_conditions_select(
    pod: dict[str, Any],
    old: dict[str, Any],
    kind: tuple[str, str],
    name: str,
    user: str,
    groups: tuple[str, ...],
    mirror: bool,
) -> None:
    pod["metadata"]["name"] = name
    if mirror:
        pod["metadata"].setdefault("annotations", {})["kubernetes.io/config.mirror"] = "x"
    facts = setting.facts()
    target, operation = kind
    asked = setting.request(pod, operation=operation, old=old, user=user, groups=groups, resource=("", target))
    raw: dict[str, Any] = {
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": user, "groups": list(groups)},
    }
    if asked.subresource:  # AdmissionRequest leaves it out where there is none
        raw["subResource"] = asked.subresource
    assert reaches(asked, facts) == selected(VALIDATING[0], pod, old, raw)
    scope = scope_of("fern-dev", facts)
    assert scope is not None
    if ALL.findings(Context.of(asked, pod, scope, facts)):
        assert any(sign.shown(asked) for sign in ALL.signs("", target, operation)), "no rule denies what shows no sign"


@pytest.mark.parametrize(
    "user", ["ada", "system:kube-scheduler", "system:serviceaccount:kube-system:resource-claim-controller"]
)
@pytest.mark.parametrize(
    ("resource", "spec", "asked_about"),
    [
        (("resource.k8s.io", "resourceclaims"), {"devices": {}}, True),
        (("resource.k8s.io", "resourceclaimtemplates"), {"spec": {"devices": {}}}, True),
        (("scheduling.k8s.io", "podgroups"), {"schedulingPolicy": {}}, False),
        (("scheduling.k8s.io", "podgroups"), {"resourceClaims": [{"name": "g", "resourceClaimName": "x"}]}, True),
    ],
)
def test_claims_are_asked_about_when_people_make_them_and_never_when_the_cluster_does(
    user: str, resource: tuple[str, str], spec: dict[str, Any], asked_about: bool
) -> None:
    obj = {"metadata": {"name": "train"}, "spec": spec}
    asked = setting.request(obj, resource=resource, user=user)
    raw = {
        "resource": {"group": resource[0], "version": "v1", "resource": resource[1]},
        "userInfo": {"username": user, "groups": []},
    }
    wanted = user == "ada" and asked_about
    assert reaches(asked, setting.facts()) is wanted
    assert selected(VALIDATING[1], obj, {}, raw) is wanted


CONTROLLERS = ["system:serviceaccount:kube-system:deployment-controller", "system:kube-controller-manager"]
OTHERS = ["ada", "system:serviceaccount:kube-system:default", "system:serviceaccount:fern-dev:my-controller"]


def workload(resource: str, pod: dict[str, Any]) -> dict[str, Any]:
    """A workload of such Pods. Its template has no metadata where the Pod has nothing of note in its own."""
    template = {"spec": pod["spec"]}
    if "annotations" in pod["metadata"]:
        template["metadata"] = {"annotations": pod["metadata"]["annotations"]}
    spec: dict[str, Any] = {"template": template}
    if resource == "cronjobs":
        spec = {"jobTemplate": {"spec": spec}}
    return {"metadata": {"name": pod["metadata"].get("name", "w")}, "spec": spec}


@hypothesis.settings(max_examples=300, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    pod=pods.pods(valid=True),
    other=pods.pods(valid=True),
    same=st.booleans(),
    kind=st.sampled_from([("apps", "deployments"), ("batch", "jobs"), ("batch", "cronjobs")]),
    operation=st.sampled_from(["CREATE", "UPDATE"]),
    name=st.sampled_from(["w", "dra-gate-w"]),
    user=st.sampled_from([*CONTROLLERS, *OTHERS, GATE_WRITERS[0]]),
    custom=st.booleans(),
)
def test_offline_reaches_the_workloads_that_the_conditions_select(
    pod: dict[str, Any],
    other: dict[str, Any],
    same: bool,
    kind: tuple[str, str],
    operation: str,
    name: str,
    user: str,
    custom: bool,
) -> None:
    obj = workload(kind[1], pod)
    old = workload(kind[1], pod if same else other) if operation == "UPDATE" else {}
    obj["metadata"]["name"] = name
    obj["spec"]["replicas"] = 7
    asked = setting.request(obj, operation=operation, old=old, user=user, resource=kind)
    raw = {"operation": operation, "resource": {"group": kind[0]}, "userInfo": {"username": user}}
    hook = WITH_CUSTOM if custom else VALIDATING[2]
    assert reaches(asked, setting.facts()) == selected(hook, obj, old, raw)


def test_custom_kinds_are_asked_about_where_the_settings_name_them() -> None:
    rules = {rule["apiGroups"][0]: rule for rule in WITH_CUSTOM["rules"]}
    assert (rules["kubeflow.org"]["apiVersions"], rules["kubeflow.org"]["resources"]) == (["*"], ["pytorchjobs"])
    assert "kubeflow.org" not in {group for rule in VALIDATING[2]["rules"] for group in rule["apiGroups"]}
    facts = setting.with_settings(setting.facts(), Settings(workloads=(CUSTOM,)))
    obj = {"metadata": {"name": "w"}, "spec": {"pytorchReplicaSpecs": {"Worker": {"template": {}}}}}
    for user, wanted in (("ada", True), (CONTROLLERS[0], False), (GATE_WRITERS[0], False)):
        asked = setting.request(obj, resource=("kubeflow.org", "pytorchjobs"), user=user)
        raw = {"operation": "CREATE", "resource": {"group": "kubeflow.org"}, "userInfo": {"username": user}}
        assert reaches(asked, facts) is wanted
        assert selected(WITH_CUSTOM, obj, {}, raw) is wanted
