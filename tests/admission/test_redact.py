"""A recorded review says nothing secret, and gets the verdict and the patch that the original got."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from admission import pods, setting
from closed.disabled import rows_of
from dra_gate.admission import rules
from dra_gate.admission.judge import judge
from dra_gate.admission.redact import recorded, redact
from dra_gate.admission.request import read
from dra_gate.admission.validate import validate

SECRET = "hunter2"
NAMESPACES = ["fern-dev", "moss", "nobodys", "open"]


def review(obj: Any, old: Any = None, *, operation: str = "CREATE", namespace: str = "fern-dev") -> dict[str, Any]:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": operation,
        "namespace": namespace,
        "userInfo": {"username": "ada@fern.example", "groups": ["system:authenticated"], "extra": {"x": [SECRET]}},
        "object": obj,
        "options": {"secret": SECRET},
    }
    if old is not None:
        request["oldObject"] = old
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def with_secrets(pod: dict[str, Any]) -> dict[str, Any]:
    """The Pod with something secret wherever people put such things."""
    pod = json.loads(json.dumps(pod))
    metadata, spec = pod.setdefault("metadata", {}), pod.get("spec")
    if isinstance(metadata, dict):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), "vault.example/token": SECRET}
        metadata["managedFields"] = [{"manager": SECRET}]
    if not isinstance(spec, dict):
        return pod
    spec["imagePullSecrets"] = [{"name": SECRET}]
    listed = spec.get("volumes") if isinstance(spec.get("volumes"), list) else []
    spec["volumes"] = [*listed, {"name": "v", "csi": {"driver": "x", "volumeAttributes": {"p": SECRET}}}]
    for container in spec["containers"] if isinstance(spec.get("containers"), list) else []:
        if isinstance(container, dict):
            listed = container.get("env") if isinstance(container.get("env"), list) else []
            container["env"] = [*listed, {"name": "PASSWORD", "value": SECRET}]
            container["args"], container["command"] = [f"--token={SECRET}"], [SECRET]
            container["livenessProbe"] = {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]}}
    return pod


@hypothesis.settings(max_examples=500, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    pod=st.one_of(pods.pods(), pods.pods(valid=True)),
    old=st.one_of(st.none(), pods.pods(valid=True)),
    namespace=st.sampled_from(NAMESPACES),
)
def test_the_same_verdict_and_nothing_secret(pod: dict[str, Any], old: Any, namespace: str) -> None:
    pod = setting.resolved(pod)
    operation = "CREATE" if old is None else "UPDATE"
    whole = review(with_secrets(pod), old, operation=operation, namespace=namespace)
    kept = redact(whole)
    assert SECRET not in json.dumps(kept)
    assert redact(kept) == kept
    facts = setting.facts()
    first, again = judge(read(whole), facts), judge(read(kept), facts)
    for part in ("word", "deciding", "patch", "warnings", "charge"):
        assert getattr(again, part) == getattr(first, part), part


@pytest.mark.parametrize(("route", "kept"), [("mutate", True), ("validate", False)])
def test_of_the_two_reviews_about_a_pod_the_first_is_kept(route: Any, kept: bool) -> None:
    body = msgspec.json.encode(review(setting.pod(containers=[setting.asking(1)])))
    assert (recorded(route, body) is not None) is kept


def test_a_pod_that_only_validate_is_asked_about_is_kept() -> None:
    assert recorded("validate", msgspec.json.encode(review(setting.pod()))) is not None


def test_workloads_keep_their_templates_and_no_more() -> None:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": with_secrets(setting.pod(containers=[setting.asking(1)]))["spec"],
    }
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"parallelism": 3, "template": template, "x": SECRET}}
    asked = review(job)
    asked["request"]["resource"] = {"group": "batch", "version": "v1", "resource": "jobs"}
    kept = redact(asked)["request"]["object"]
    assert SECRET not in json.dumps(kept)
    assert kept["spec"]["template"]["spec"]["containers"][0]["resources"] == setting.asking(1)["resources"]


@pytest.mark.parametrize("rule", list(rules.ALL), ids=lambda rule: rule.id)
def test_what_each_rule_finds_is_found_again(rule: rules.Rule) -> None:
    """Over the rows of its table: redaction takes away nothing that a rule reads."""
    for request, facts in rows_of(rule):
        group, resource, _ = rule.on[0]
        asked = {
            "uid": "u",
            "resource": {"group": group, "version": "v1", "resource": request.resource},
            "operation": request.operation,
            "namespace": request.namespace,
            "userInfo": {"username": request.username, "groups": sorted(request.groups)},
            "object": request.object,
            "oldObject": request.old_object,
        }
        if request.subresource:
            asked["subResource"] = request.subresource
        whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        found = [one for one in validate(read(whole), facts).findings if one.rule == rule.id]
        again = [one for one in validate(read(redact(whole)), facts).findings if one.rule == rule.id]
        assert again == found, resource
