"""Rules of docs/security/admission-rules.md that no other test shows. Pure: no process, no socket, no cluster."""

from __future__ import annotations

import copy
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import jsonpatch
import pytest
import yaml
from hypothesis import strategies as st

from admission import pods as generated
from admission import setting
from admission.setting import asking, labelled, pod, request
from dra_gate.admission import stamp
from dra_gate.admission.configurations import GATE_WRITERS, configurations
from dra_gate.admission.mutate import mutate
from dra_gate.admission.request import respond
from dra_gate.admission.review import Route, answer
from dra_gate.admission.validate import validate
from dra_gate.cli import serve
from dra_gate.kube.patch import Patch, apply
from dra_gate.kube.workload import BUILT_IN
from dra_gate.policy.model import PolicyRef
from dra_gate.server.run import Process
from dra_gate.server.worker import KEEP_ALIVE

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACES = ["fern-dev", "fern-canary", "moss", "nobody", "typo", "plugin", "open", "kube-system"]
some = hypothesis.settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
any_pod = st.one_of(generated.pods(), generated.pods(valid=True))
any_namespace = st.sampled_from(NAMESPACES)
ROUTES: tuple[Route, Route] = ("mutate", "validate")


def review(obj: dict[str, Any], namespace: str, *, dry_run: bool = False) -> bytes:
    asked = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": namespace,
        "userInfo": {"username": "ada@fern.example", "groups": ["system:authenticated"]},
        "object": obj,
        "dryRun": dry_run,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


def response(route: Route, obj: dict[str, Any], namespace: str = "fern-dev", **flags: bool) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(route, review(obj, namespace, **flags), setting.facts()).body)["response"]
    return found


# -- which requests are asked about -----------------------------------------------------------------------------------


def test_rules_name_few_resources_and_nothing_by_pattern() -> None:
    """Two subresources that can add to a Pod; no webhook configuration, no review of users or their rights."""
    mutating, validating = configurations(url="https://gate.example", ca_bundle=b"pem", writers=GATE_WRITERS)
    asked = {
        (group, version, resource, operation)
        for hook in [*mutating["webhooks"], *validating["webhooks"]]
        for rule in hook["rules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }
    assert asked == {
        ("", "v1", "pods", "CREATE"),
        ("", "v1", "pods", "UPDATE"),
        *(("scheduling.k8s.io", version, "podgroups", "CREATE") for version in ("v1alpha2", "v1alpha3", "v1beta1")),
        ("", "v1", "pods/ephemeralcontainers", "UPDATE"),
        ("", "v1", "pods/resize", "UPDATE"),
        ("resource.k8s.io", "v1", "resourceclaims", "CREATE"),
        ("resource.k8s.io", "v1", "resourceclaimtemplates", "CREATE"),
        *((kind.group, "v1", kind.resource, operation) for kind in BUILT_IN for operation in ("CREATE", "UPDATE")),
    }
    for hook in [*mutating["webhooks"], *validating["webhooks"]]:
        assert 1 <= len(hook["matchConditions"]) <= 64, "the API takes no more"


@pytest.mark.parametrize("namespace", ["dra-gate", "kube-node-lease", "kube-public", "kube-system"])
def test_what_the_cluster_stands_on_is_never_gated(namespace: str) -> None:
    for configuration in configurations(url="https://gate.example", ca_bundle=b"pem", writers=GATE_WRITERS):
        for hook in configuration["webhooks"]:
            terms = {term["key"]: term for term in hook["namespaceSelector"]["matchExpressions"]}
            assert terms["kubernetes.io/metadata.name"]["operator"] == "NotIn"
            assert namespace in terms["kubernetes.io/metadata.name"]["values"]
    # Should the API server ask all the same:
    facts = setting.world(labelled(namespace, lane="dra")).facts()
    asked = request(pod(containers=[asking(1)]), namespace=namespace)
    assert mutate(asked, facts).ignored
    assert validate(asked, facts).ignored


def test_a_new_version_reaches_the_canary_namespaces_and_no_others() -> None:
    for namespace, version in (("fern-canary", "3"), ("fern-dev", "2")):
        obj = pod(containers=[asking(1)])
        made = apply(obj, list(mutate(request(obj, namespace=namespace), setting.facts()).patch))
        assert made["metadata"]["annotations"]["dra-gate.io/policy-version"] == version
        template = setting.facts().index.for_count("fern", PolicyRef("train", int(version)), 1)
        assert made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template.name


@some
@hypothesis.given(obj=any_pod, namespace=any_namespace)
def test_a_dry_run_gets_the_same_answer(obj: dict[str, Any], namespace: str) -> None:
    for route in ROUTES:
        assert response(route, obj, namespace, dry_run=True) == response(route, obj, namespace, dry_run=False)


# -- patches ----------------------------------------------------------------------------------------------------------


def at(document: Any, parts: list[str]) -> Any:
    """What stands there; None where nothing does."""
    for part in parts:
        if isinstance(document, list):
            document = document[int(part)] if part != "-" and int(part) < len(document) else None
        elif isinstance(document, dict):
            document = document.get(part)
        else:
            return None
    return document


@some
@hypothesis.given(obj=any_pod, namespace=any_namespace)
def test_a_patch_replaces_no_object_no_array_and_no_value_of_the_users(obj: dict[str, Any], namespace: str) -> None:
    now = copy.deepcopy(obj)
    for step in mutate(request(obj, namespace=namespace), setting.facts()).patch:
        parts = jsonpatch.JsonPointer(step["path"]).parts
        there = at(now, parts)
        ours = parts[:2] == ["metadata", "annotations"] and parts[-1] in stamp.KEYS
        if step["op"] == "add":
            assert there is None or ours, f"{step['path']} had {there!r}"
        else:
            assert step["op"] == "remove"
            device = parts[-3:-1] in (["resources", "limits"], ["resources", "requests"]) and "/" in parts[-1]
            assert ours or device, step["path"]
        now = jsonpatch.JsonPatch([step]).apply(now)


KEYS = st.text(st.sampled_from('ab~/01.-é" '), min_size=1, max_size=6)


@hypothesis.settings(max_examples=500, deadline=None, derandomize=True)
@hypothesis.given(
    document=st.dictionaries(KEYS, st.dictionaries(KEYS, st.just("was"), max_size=2), max_size=2),
    members=st.lists(st.tuples(KEYS, KEYS), unique=True, min_size=1, max_size=4),
)
def test_any_key_is_escaped_and_each_parent_is_made_once(document: dict[str, Any], members: list[Any]) -> None:
    patch = Patch(document)
    for outer, inner in members:
        patch.set((outer, inner), "new")
    wanted = copy.deepcopy(document)
    for outer, inner in members:
        wanted.setdefault(outer, {})[inner] = "new"
    assert jsonpatch.JsonPatch(patch.operations).apply(document) == apply(document, patch.operations) == wanted
    made = [step["path"] for step in patch.operations if step["value"] == {}]
    assert len(made) == len({outer for outer, _ in members if outer not in document})
    back = Patch(wanted)
    for outer, inner in members:
        back.remove((outer, inner))
    left = jsonpatch.JsonPatch(back.operations).apply(wanted)
    assert not any(inner in left[outer] for outer, inner in members)


# -- answers ----------------------------------------------------------------------------------------------------------


@some
@hypothesis.given(obj=any_pod, namespace=any_namespace)
def test_every_answer_is_one_that_the_api_server_takes(obj: dict[str, Any], namespace: str) -> None:
    """admission/v1 AdmissionResponse, as the API server's webhook client checks it."""
    for route in ROUTES:
        got = response(route, obj, namespace)
        assert got["uid"] == "u-1"
        assert ("patch" in got) == ("patchType" in got)
        if route == "validate" or not got["allowed"]:
            assert "patch" not in got
        assert got["allowed"] == ("status" not in got)
        for key, value in got.get("auditAnnotations", {}).items():
            # It is stored as <webhook name>/<key>, which must be a qualified name: the key has no slash of its own.
            assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", key), key
            assert isinstance(value, str)
            assert len(value) < 10 * 1024


@some
@hypothesis.given(obj=any_pod, namespace=any_namespace)
def test_a_denial_is_403_with_a_cause_for_each_finding(obj: dict[str, Any], namespace: str) -> None:
    """Malformed ones too: with 422 kubectl drops the message."""
    for route in ROUTES:
        got = response(route, obj, namespace)
        if got["allowed"]:
            continue
        status = got["status"]
        assert (status["status"], status["code"], status["reason"]) == ("Failure", 403, "Forbidden")
        assert status["details"]["causes"]
        for cause in status["details"]["causes"]:
            assert cause["reason"] in status["message"]
            assert cause["message"] in status["message"], "kubectl shows the message alone"


def test_warnings_stay_where_the_api_server_cuts_none_of_them() -> None:
    """All of one answer may have 4,096 runes, the one about stale caches among them; above that each is cut to 256."""
    claims = [{"name": f"x{number}", "resourceClaimName": f"a-gpu-{'n' * 200}"} for number in range(1000)]
    facts = setting.world(labelled("fern-dev", lane="dra", mode="warn")).facts()
    asked = request(pod(resourceClaims=claims))
    verdict = validate(asked, facts)
    assert len(verdict.warnings) == 100
    warnings = json.loads(respond(asked, verdict))["response"]["warnings"]
    assert 0 < len(warnings) <= 12
    assert max(map(len, warnings)) <= 256
    assert sum(map(len, warnings)) + 256 <= 4096
    assert len(set(warnings)) == len(warnings), "the API server drops those that it has had"
    assert warnings[0].startswith("dra-gate would refuse: FOREIGN_CLAIM spec.resourceClaims[0]")


# -- the process ------------------------------------------------------------------------------------------------------


def test_idle_connections_are_ended_by_the_client_first() -> None:
    """Go's http.Transport, which the API server calls with, ends its own after 90 s (net/http DefaultTransport)."""
    assert KEEP_ALIVE > 90


@pytest.mark.parametrize(("ends_in", "reasons"), [(60, []), (-1, ["the serving certificate has ended"])])
def test_a_replica_whose_certificate_has_ended_is_not_ready(ends_in: float, reasons: list[str], tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    shutil.copy(setting.WORLD / "policies.yaml", policies)
    certificate: Any = SimpleNamespace(not_after=time.time() + ends_in, failures=0)
    process = Process(certificate, stopping=lambda: False, connections=lambda: (0, 0))
    cluster = (str(setting.WORLD / "cluster.yaml"),)
    app = serve._build(str(policies), GATE_WRITERS, None, 300, None, None, cluster, None, process)
    assert app.reasons_against() == reasons


# -- what is installed ------------------------------------------------------------------------------------------------


def installed(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "base" / file).read_text()))


def the(kind: str, file: str) -> dict[str, Any]:
    (found,) = [document for document in installed(file) if document["kind"] == kind]
    return found


def test_an_update_or_a_drain_leaves_replicas_that_serve() -> None:
    deployment = the("Deployment", "webhook.yaml")["spec"]
    assert deployment["replicas"] >= 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert the("PodDisruptionBudget", "webhook.yaml")["spec"]["maxUnavailable"] == 1
    template = deployment["template"]["spec"]
    spread = {constraint["topologyKey"] for constraint in template["topologySpreadConstraints"]}
    assert spread == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    # The class is limited by quota outside kube-system where the API server is told to: ours lets the Pods in.
    quota = the("ResourceQuota", "namespace.yaml")["spec"]
    assert template["priorityClassName"] in quota["scopeSelector"]["matchExpressions"][0]["values"]
    assert int(quota["hard"]["pods"]) >= 2 * deployment["replicas"]
    # Draining outlasts the probe that takes the replica out of the Service, and what the API server waits for.
    (container,) = template["containers"]
    probe = container["readinessProbe"]
    drain = next(option.default for option in serve.command.params if option.name == "drain_seconds")
    assert isinstance(drain, float)
    assert probe["httpGet"]["path"] == "/readyz"
    assert probe["periodSeconds"] * probe["failureThreshold"] < drain
    hooks = [hook for one in installed("webhook-configurations.yaml") for hook in one["webhooks"]]
    assert template["terminationGracePeriodSeconds"] > drain + max(hook["timeoutSeconds"] for hook in hooks)


def test_the_network_is_closed_but_for_the_api_server_and_a_scrape() -> None:
    policies = {document["metadata"]["name"]: document["spec"] for document in installed("networkpolicy.yaml")}
    assert set(policies) == {"dra-gate-webhook", "dra-gate-controller"}
    for name, policy in policies.items():
        assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
        assert policy["egress"] == [{"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]}]
        opened = [(rule.get("from"), [port["port"] for port in rule["ports"]]) for rule in policy["ingress"]]
        scrape = ([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}], ["http"])
        assert opened == ([(None, ["https"])] if name == "dra-gate-webhook" else []) + [scrape]
