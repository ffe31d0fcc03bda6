"""Exceptions let pass what they name, where they say, until their day; and are seen doing it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from admission import setting
from dra_gate.admission import rules
from dra_gate.admission.judge import judge
from dra_gate.admission.review import answer
from dra_gate.admission.sets import PolicySets
from dra_gate.admission.validate import validate
from dra_gate.cli.review import requests_of
from dra_gate.cluster.facts import World
from dra_gate.cluster.files import load_manifests
from dra_gate.policy.lint import lint_exceptions
from dra_gate.policy.load import PolicyErrors, load_documents
from dra_gate.policy.model import EXCEPTABLE
from dra_gate.server.metrics import Metrics

DAY = 20_787  # 2026-11-30
EXCEPTION: dict[str, Any] = {
    "apiVersion": "policy.dra-gate.io/v1alpha1",
    "kind": "PolicyException",
    "metadata": {"name": "profiler"},
    "spec": {
        "rules": ["foreign-claim"],
        "namespaces": ["fern-dev"],
        "reason": "The profiler shares the card of its neighbour.",
        "ticket": "SEC-12",
        "approver": "grace@security.example",
        "expires": "2026-12-24",
    },
}
CONTROLLERS = "system:serviceaccount:kube-system"
DAEMONS = f"{CONTROLLERS}:daemon-set-controller"
PROF = {"kind": "DaemonSet", "name": "prof"}
POD = setting.pod(resourceClaims=[{"name": "g", "resourceClaimName": "a-gpu"}])


def policies(**spec: Any) -> Any:
    written = {**EXCEPTION, "spec": {key: value for key, value in (EXCEPTION["spec"] | spec).items() if value != ""}}
    base = (setting.WORLD / "policies.yaml").read_bytes()
    return load_documents({"policies.yaml": base, "exception.yaml": yaml.safe_dump(written).encode()})


def world(day: int = DAY, **spec: Any) -> World:
    made = World(now=lambda: day * 86_400 + 3600)
    made.use(PolicySets(policies(**spec)))
    for obj in load_manifests([str(setting.WORLD / "cluster.yaml")]):
        made.apply(obj)
    return made


def owned(kind: str, name: str, **more: Any) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": True, **more}
    return {**POD, "metadata": {"name": "p", "ownerReferences": [reference]}}


@pytest.mark.parametrize(
    ("spec", "pod", "user", "day", "passes"),
    [
        ({}, POD, "ada", DAY, True),
        ({}, POD, "ada", 20_811, True),  # its last day
        ({}, POD, "ada", 20_812, False),
        ({"namespaces": ["fern-canary"]}, POD, "ada", DAY, False),
        ({"rules": ["privileged"]}, POD, "ada", DAY, False),
        ({"users": ["ada"]}, POD, "ada", DAY, True),
        ({"users": ["ada"]}, POD, "bob", DAY, False),
        ({"owner": PROF}, POD, DAEMONS, DAY, False),
        ({"owner": PROF}, owned("DaemonSet", "prof"), DAEMONS, DAY, True),
        ({"owner": PROF}, owned("DaemonSet", "profs"), DAEMONS, DAY, False),
        ({"owner": PROF}, owned("Job", "prof"), DAEMONS, DAY, False),
        ({"owner": PROF}, owned("DaemonSet", "prof", controller=False), DAEMONS, DAY, False),
        ({"owner": {"kind": "ReplicaSet", "name": "prof-*"}}, owned("ReplicaSet", "prof-7f"),
         f"{CONTROLLERS}:replicaset-controller", DAY, True),
        # An owner that somebody wrote is none: it counts by the word of that kind's controller, or of who is named.
        ({"owner": PROF}, owned("DaemonSet", "prof"), "ada", DAY, False),
        ({"owner": PROF}, owned("DaemonSet", "prof"), f"{CONTROLLERS}:job-controller", DAY, False),
        ({"owner": PROF}, owned("DaemonSet", "prof"), DAEMONS.replace("kube-system", "fern-dev"), DAY, False),
        ({"owner": PROF}, owned("DaemonSet", "prof"), "system:kube-controller-manager", DAY, True),
        ({"owner": PROF, "users": ["kruise"]}, owned("DaemonSet", "prof"), "kruise", DAY, True),
        ({"owner": PROF, "users": ["kruise"]}, owned("DaemonSet", "prof"), DAEMONS, DAY, False),
        ({"owner": {"kind": "MPIJob", "name": "p"}, "users": ["op"]}, owned("MPIJob", "p"), "op", DAY, True),
        ({"owner": {"kind": "MPIJob", "name": "p"}, "users": ["op"]}, owned("MPIJob", "p"), "ada", DAY, False),
    ],
)  # fmt: skip
def test_what_it_covers(spec: dict[str, Any], pod: dict[str, Any], user: str, day: int, passes: bool) -> None:
    verdict = validate(setting.request(pod, user=user), world(day, **spec).facts())
    assert verdict.allowed is passes
    assert verdict.exceptions == (("profiler",) if passes else ())
    if passes:
        assert verdict.audit["exceptions"] == "profiler"
        assert verdict.warnings == ("dra-gate: let pass by exception profiler (SEC-12) until 2026-12-24",)


@pytest.mark.parametrize(
    ("kind", "owner", "found"),
    [
        ("DaemonSet", PROF, []),
        ("DaemonSet", {"kind": "DaemonSet", "name": "other"}, ["foreign-claim"]),
        ("Deployment", {"kind": "ReplicaSet", "name": "prof-*"}, []),
        ("Deployment", {"kind": "ReplicaSet", "name": "prof"}, ["foreign-claim"]),
    ],
)
def test_a_workloads_pods_are_its_controllers_offline_too(kind: str, owner: dict[str, Any], found: list[str]) -> None:
    policy_set = policies(owner=owner)
    workload = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "prof", "namespace": "fern-dev"},
        "spec": {"template": {"spec": POD["spec"]}},
    }
    sender = ("ada", frozenset({"system:authenticated"}))
    facts = world(owner=owner).facts()
    ((_, request),) = requests_of(workload, sender, "default", policy_set.settings)
    assert [finding.rule for finding in judge(request, facts).deciding.findings] == found
    applied = setting.request(workload, resource=("apps", f"{kind.lower()}s"))
    assert [finding.rule for finding in judge(applied, facts).deciding.findings] == found


def test_what_it_does_not_name_still_counts() -> None:
    pod = {**POD, "metadata": {"name": "dra-gate-p"}}
    verdict = validate(setting.request(pod), world().facts())
    assert [finding.rule for finding in verdict.findings] == ["reserved-name"]
    assert verdict.exceptions == ("profiler",)


def test_a_node_by_name_that_passes_in_lane_device_plugin_gets_the_rest_of_the_policy() -> None:
    """The kubelet holds its node against selector and affinity, so it may be named; without them validate refuses."""
    pod = setting.pod(containers=[setting.asking("1")], nodeName="hopper-0")
    asked = setting.request(pod, namespace="plugin")
    assert "NODE_PINNING" in {finding.code for finding in judge(asked, world().facts()).deciding.findings}
    judged = judge(asked, world(rules=["node-pinning"], namespaces=["plugin"]).facts())
    assert judged.deciding.findings == ()
    assert judged.word == "mutate"
    assert judged.result["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert judged.deciding.exceptions == ("profiler",)


def test_a_hundred_findings_that_pass_hide_no_other() -> None:
    """No more than a hundred are told: those of a rule that is excepted must not take the place of others."""
    entries = [{"name": f"g{number}", "resourceClaimName": "a-gpu"} for number in range(100)]
    container = {"name": "c", "image": "i", "securityContext": {"privileged": True}}
    pod = setting.pod(containers=[container], resourceClaims=entries)
    verdict = validate(setting.request(pod), world().facts())
    assert [finding.rule for finding in verdict.findings] == ["privileged"]
    assert not verdict.allowed


@pytest.mark.parametrize("kind", ["pods", "deployments"])
def test_who_applies_a_workload_does_not_create_its_pods(kind: str) -> None:
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "prof", "namespace": "fern-dev"},
        "spec": {"template": {"spec": POD["spec"]}},
    }
    applied = POD if kind == "pods" else workload
    request = setting.request(applied, resource=("" if kind == "pods" else "apps", kind), user="ada")
    found = [finding.rule for finding in judge(request, world(users=["ada"]).facts()).deciding.findings]
    assert found == ([] if kind == "pods" else ["foreign-claim"])


def test_midnight_comes_without_any_event() -> None:
    day = [20_811]
    made = World(policies(), now=lambda: day[0] * 86_400)
    for obj in load_manifests([str(setting.WORLD / "cluster.yaml")]):
        made.apply(obj)
    assert validate(setting.request(POD), made.facts()).allowed
    day[0] += 1
    assert not validate(setting.request(POD), made.facts()).allowed


def test_it_is_counted_and_logged() -> None:
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "fern-dev",
            "object": POD,
        },
    }
    record = answer("validate", json.dumps(review).encode(), world().facts()).record
    metrics = Metrics()
    metrics.excepted(record.exceptions)
    assert 'dra_gate_exceptions_used_total{exception="profiler"} 1.0' in metrics.page().decode()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"rules": ["stamp"]}, "no exception can be made from stamp"),
        ({"rules": ["priviledged"]}, "write privileged"),
        ({"namespaces": ["elsewhere"]}, "belongs to no tenant"),
        ({"expires": "2026-02-30"}, "is no date"),
        ({"expires": ""}, "expires is missing"),
        ({"approver": ""}, "approver is missing"),
        ({"ticket": ""}, "ticket is missing"),
        ({"owner": {"kind": "Job"}}, "name is missing"),
        ({"owner": {"kind": "MPIJob", "name": "p"}}, "not known who creates the Pods of a MPIJob"),
        ({"owner": {"kind": "Deployment", "name": "p"}}, "Pods of a Deployment name a ReplicaSet"),
    ],
)
def test_what_the_loader_refuses(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyErrors, match=says) as refused:
        policies(**spec)
    assert "exception.yaml:" in str(refused.value)


@pytest.mark.parametrize(
    ("day", "codes"),
    [(DAY - 30, []), (DAY, ["EXCEPTION_ENDS"] * 0), (20_800, ["EXCEPTION_ENDS"]), (20_812, ["EXCEPTION_ENDED"])],
)
def test_lint_warns_before_its_end_and_refuses_after(day: int, codes: list[str]) -> None:
    found = lint_exceptions(policies(), day)
    assert [one.code for one in found] == codes
    assert all(one.place is not None and one.place.file == "exception.yaml" for one in found)


def test_rules_that_may_be_excepted_exist() -> None:
    known = {rule.id for rule in rules.ALL}
    assert set(EXCEPTABLE) <= known
    assert all(rule.as_written for rule in rules.ALL if rule.id in EXCEPTABLE)
