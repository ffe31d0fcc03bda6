"""Workloads, when they are applied: the table beside this file, and what holds for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from admission import setting
from dra_gate.admission.facts import Facts
from dra_gate.admission.judge import judge
from dra_gate.admission.request import respond
from dra_gate.admission.review import answer
from dra_gate.admission.workloads import MAX_TEMPLATES, judge_workload, pod_requests, workload_in
from dra_gate.cli.review import command
from dra_gate.policy.model import Settings, Workload

ROWS = setting.load_table(Path(__file__).parent / "workloads.yaml")


def with_written(facts: Facts, written: dict[str, Any]) -> Facts:
    workloads = tuple(
        Workload(one["group"], one["resource"], tuple(tuple(path.split(".")) for path in one["pod_templates"]))
        for one in written.get("workloads", ())
    )
    return setting.with_settings(facts, Settings(**{**written, "workloads": workloads}))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_row(row: dict[str, Any]) -> None:
    facts = with_written(setting.world(*row.get("present", ())).facts(), row.get("settings", {}))
    request = setting.request(
        row["object"],
        old=row.get("old"),
        namespace=row.get("namespace", "fern-dev"),
        operation=row.get("operation", "CREATE"),
        resource=tuple(row["resource"]),
        user=row.get("user", "ada@fern.example"),
    )
    workload = workload_in(request, facts.policy_set.settings)
    if row["word"] == "none":
        assert workload is None
        return
    assert workload is not None
    verdict = judge_workload(request, workload, facts)
    assert verdict.word == row["word"]
    assert verdict.allowed == (row["word"] != "deny")
    assert [(finding.code, finding.field) for finding in verdict.findings] == [
        (wanted["code"], wanted["field"]) for wanted in row.get("findings", ())
    ]
    told = json.loads(respond(request, verdict))["response"].get("warnings", [])
    assert len(told) == len(row.get("says", ()))
    assert all(wanted in warning for wanted, warning in zip(row.get("says", ()), told, strict=True))
    assert all(len(warning) <= 256 for warning in told)
    judged = judge(request, facts)
    assert judged.patch == ()
    if verdict.findings:  # offline review is asked about all that could be told
        assert (judged.word == "deny", judged.deciding) == (row["word"] == "deny", verdict)


def deployment(**spec: Any) -> dict[str, Any]:
    """A Deployment of such Pods."""
    template = {"metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}}, "spec": setting.pod(**spec)["spec"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}


def test_a_pod_is_judged_as_its_controller_would_send_it() -> None:
    request = setting.request(deployment(), resource=("apps", "deployments"))
    workload = workload_in(request, Settings())
    assert workload is not None
    ((where, asked),) = pod_requests(request, workload)
    assert where == "spec.template"
    assert asked.is_about("", "pods", "CREATE")
    assert asked.username == "system:serviceaccount:kube-system:replicaset-controller"
    assert asked.object["metadata"] == {
        "generateName": "web-",
        "namespace": "fern-dev",
        "labels": {"app": "web"},
        "annotations": {"a": "b"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-", "controller": True}],
    }
    assert asked.object["spec"] == setting.pod()["spec"]


def test_nobody_waits_for_ten_thousand_templates() -> None:
    facts = with_written(
        setting.facts(), {"workloads": [{"group": "x.example", "resource": "xs", "pod_templates": ["spec.*.template"]}]}
    )
    obj = {"spec": {str(n): {"template": {"spec": setting.pod()["spec"]}} for n in range(10_000)}}
    request = setting.request(obj, resource=("x.example", "xs"))
    workload = workload_in(request, facts.policy_set.settings)
    assert workload is not None
    assert len(list(pod_requests(request, workload))) == MAX_TEMPLATES


@pytest.mark.parametrize("route", ["mutate", "validate"])
def test_over_the_wire(route: Any) -> None:
    """kubectl apply shows the warning; the mutating route has nothing to say of a workload."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "namespace": "fern-dev",
            "userInfo": {"username": "ada"},
            "object": deployment(containers=[setting.asking("all")]),
        },
    }
    given = answer(route, json.dumps(review).encode(), setting.facts())
    response = json.loads(given.body)["response"]
    assert response["allowed"] is True
    assert ("warnings" in response) == (route == "validate")
    assert given.record.verdict == ("warn" if route == "validate" else "ignore")


def test_review_of_a_workload_tells_what_becomes_of_its_pods(tmp_path: Path) -> None:
    """One entry a Pod template, whatever the cluster says at apply; a recorded review has its answer."""
    settings = {
        "apiVersion": "policy.dra-gate.io/v1alpha1",
        "kind": "ClusterSettings",
        "spec": {
            "workloads": [
                {
                    "group": "ray.io",
                    "resource": "rayclusters",
                    "podTemplates": ["spec.headGroupSpec.template", "spec.workerGroupSpecs.*.template"],
                }
            ]
        },
    }
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "settings.yaml").write_text(json.dumps(settings))
    (tmp_path / "policies" / "world.yaml").write_text((setting.WORLD / "policies.yaml").read_text())
    head, worker = ({"template": {"spec": {"containers": [setting.asking(count)]}}} for count in ("1", "all"))
    ray = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "r", "namespace": "fern-dev"},
        "spec": {"headGroupSpec": head, "workerGroupSpecs": [head, worker]},
    }
    recorded = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "resource": {"group": "ray.io", "version": "v1", "resource": "rayclusters"},
            "namespace": "fern-dev",
            "userInfo": {"username": "ada"},
            "object": ray,
        },
    }
    made = deployment(containers=[setting.asking("all")])
    made["metadata"]["namespace"] = "fern-dev"
    (tmp_path / "in.json").write_text(json.dumps({"kind": "List", "items": [ray, recorded, made]}))
    arguments = ["--policies", str(tmp_path / "policies"), "--cluster", str(setting.WORLD / "cluster.yaml")]
    done = CliRunner().invoke(command, [*arguments, "-o", "json", str(tmp_path / "in.json")])
    assert done.exit_code == 1, done.output
    assert [(entry["kind"], entry.get("template"), entry["verdict"]) for entry in json.loads(done.stdout)] == [
        ("RayCluster", "spec.headGroupSpec.template", "mutate"),
        ("RayCluster", "spec.workerGroupSpecs[0].template", "mutate"),
        ("RayCluster", "spec.workerGroupSpecs[1].template", "deny"),
        ("RayCluster", None, "admit"),
        ("Deployment", "spec.template", "deny"),
    ]
    told = json.loads(done.stdout)[3]["warnings"]
    assert len(told) == 1
    assert "spec.workerGroupSpecs[1].template.spec.containers[0].resources.limits[nvidia.com/gpu]" in told[0]
    read = CliRunner().invoke(command, [*arguments, str(tmp_path / "in.json")]).output
    assert "RayCluster fern-dev/r- spec.workerGroupSpecs[1].template  (" in read
    assert "Deployment fern-dev/web-  (" in read
