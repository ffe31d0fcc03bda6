"""The gate beside a real Kueue: who holds a Pod, who lets it go, what Kueue charges. Facts of Kueue 0.17 say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import mark_succeeded
from controlplane.kueue import ACCOUNT, GATE, QUEUE_LABEL, Kueue
from e2e import scene

pytestmark = pytest.mark.controlplane

OURS = "dra-gate.io/grant"
GATED, BY_DEFAULT, LISTED, EXACTLY = "e2e-kueue", "e2e-kueue-default", "e2e-kueue-listed", "e2e-kueue-exactly"
PLAIN = "kueue-plain"
# On the Pods of a Job that Kueue manages: neither the queue's label nor Kueue's gate is.
PODSET_LABEL = "kueue.x-k8s.io/podset"
CHARGED = "kit.example/gpu"
STOCK: dict[str, Any] = {}
DRA = {
    "feature_gates": {"DynamicResourceAllocation": True, "DRAExtendedResources": True},
    "mappings": {CHARGED: ["gpu.nvidia.com"]},
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of its own: Kueue's kinds and webhooks go with it."""
    with ControlPlane(users=[ACCOUNT]) as plane:
        plane.wait_for_default_roles()
        Fleet.load("demo").install(plane.api())
        for name in (GATED, BY_DEFAULT, LISTED, EXACTLY):
            scene.namespace(plane.api(), name)
        scene.namespace(plane.api(), PLAIN, {"plain": "true"})
        with Gate(plane, Path(__file__).parent / "kueue_policies"):
            yield plane


@pytest.fixture(scope="module")
def kueue(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Kueue]:
    with Kueue(plane, **request.param) as kueue:
        yield kueue


@pytest.fixture
def api(plane: ControlPlane, kueue: Kueue) -> Iterator[Api]:
    api = plane.api()
    yield api
    for pod in api.list("pods"):  # one that is deleted by force while it runs has its devices held back
        if "nodeName" in pod["spec"]:
            mark_succeeded(api, pod["metadata"]["namespace"], pod["metadata"]["name"])
    scene.clear(api, GATED, BY_DEFAULT, LISTED, EXACTLY, PLAIN)


def queued(name: str, queue: str, **spec: Any) -> Object:
    pod = scene.pod(name, **spec)
    pod["metadata"]["labels"] = {QUEUE_LABEL: queue}
    return pod


def job(name: str, queue: str, pods: int) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {QUEUE_LABEL: queue}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", "containers": [scene.container()]}},
        },
    }


def pods_of(api: Api, job_name: str, count: int) -> list[Object]:
    """The Job's Pods, once so many are bound."""

    def bound() -> list[Object] | None:
        found = api.list("pods", GATED, labels=f"batch.kubernetes.io/job-name={job_name}")
        return found if len([pod for pod in found if "nodeName" in pod["spec"]]) == count else None

    return wait_for(bound, 30, f"{count} Pods of Job {job_name} to be bound")


def condition(found: Object, kind: str) -> Object:
    conditions = found.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


def is_told(api: Api, namespace: str, name: str, text: str) -> None:
    """Wait until Kueue says so of the Workload; before it has taken in the queue it says that instead."""

    def told(workload: Object) -> bool:
        return text in condition(workload, "QuotaReserved").get("message", "")

    api.wait("workloads", name, namespace, told, 20, f"Workload {name} to be told: {text}")


def gates(pod: Object) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]


def who_took_gates_off(plane: ControlPlane, name: str, namespace: str = GATED) -> set[str]:
    """Users whose writes changed the Pod's scheduling gates, by the audit log; and our gate was never on it."""
    before: list[str] | None = None
    users = set()
    for event in plane.audit_events():
        target = event.get("objectRef", {})
        stored = event.get("responseObject", {})
        stored_as = stored.get("metadata", {})
        if target.get("resource") != "pods" or (stored_as.get("namespace"), stored_as.get("name")) != (namespace, name):
            continue
        now = gates(stored) if "spec" in stored else before
        assert OURS not in (now or [])
        if before is not None and now != before:
            users.add(event["user"]["username"])
        before = now
    assert before is not None, f"the audit log has nothing about {name}"
    return users


@pytest.mark.parametrize("kueue", [STOCK], indirect=True, ids=["stock"])
class TestStock:
    """Kueue without its DRA gates."""

    def test_a_job_is_charged_by_what_its_template_asks_for(self, api: Api, kueue: Kueue, plane: ControlPlane) -> None:
        kueue.queue(GATED, "jobs", {"nvidia.com/gpu": 2})
        first = api.create(job("first", "jobs", 2), GATED)
        pods = pods_of(api, "first", 2)
        assert [gates(pod) for pod in pods] == [[], []]
        assert all(PODSET_LABEL in pod["metadata"]["labels"] for pod in pods)
        assert not any(QUEUE_LABEL in pod["metadata"]["labels"] for pod in pods)
        assert [scene.given(api, pod)[0].alternative for pod in pods] == ["gpu/h100"] * 2
        for pod in pods:
            assert who_took_gates_off(plane, pod["metadata"]["name"]) == set()
        second = api.create(job("second", "jobs", 1), GATED)
        workload = kueue.workload(second)
        assert kueue.charge(first) == {"nvidia.com/gpu": "2"}
        api.wait("workloads", workload["metadata"]["name"], GATED, lambda one: condition(one, "QuotaReserved"), 10)
        assert api.get("jobs", "second", GATED)["spec"]["suspend"]
        for pod in pods:
            mark_succeeded(api, GATED, pod["metadata"]["name"])
        (pod,) = pods_of(api, "second", 1)
        assert gates(pod) == []

    def test_a_pod_waits_for_kueue_alone(self, api: Api, kueue: Kueue, plane: ControlPlane) -> None:
        """And nobody charges its devices: the request has become a claim before Kueue looks, and it reads no claims."""
        kueue.queue(GATED, "pods", {"nvidia.com/gpu": 1})
        api.patch("clusterqueues", "pods", {"spec": {"stopPolicy": "Hold"}})
        stored = api.create(queued("one", "pods"), GATED)
        assert gates(stored) == [GATE]
        assert stored["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].startswith("dra-gate-batch-v1-x1-")
        kueue.workload(stored)
        api.patch("clusterqueues", "pods", {"spec": {"stopPolicy": "None"}})
        pod = scene.bound(api, GATED, "one")
        assert [given.alternative for given in scene.given(api, pod)] == ["gpu/h100"]
        assert who_took_gates_off(plane, "one") == {ACCOUNT.name}
        assert kueue.charge(stored) == {}

    def test_a_queue_called_default_takes_every_pod(self, api: Api, kueue: Kueue, plane: ControlPlane) -> None:
        """Kueue's webhook is called before ours and labels Pods that name no queue."""
        kueue.queue(BY_DEFAULT, "default", {"nvidia.com/gpu": 1})

        def labelled() -> bool:
            made = api.create(scene.pod("probe"), BY_DEFAULT, dry_run=True)
            return QUEUE_LABEL in made["metadata"].get("labels", {})

        wait_for(labelled, 10, "Kueue to know the queue")
        assert gates(api.create(scene.pod("unlabelled"), BY_DEFAULT)) == [GATE]
        scene.bound(api, BY_DEFAULT, "unlabelled")
        assert who_took_gates_off(plane, "unlabelled", BY_DEFAULT) == {ACCOUNT.name}

    def test_pods_without_a_mark_wait_for_the_gate_and_the_ledger_counts_both(self, api: Api, kueue: Kueue) -> None:
        """Of the two H100s one is left for them."""
        kueue.queue(GATED, "beside", {"nvidia.com/gpu": 1})
        api.create(queued("kueue", "beside"), GATED)
        scene.bound(api, GATED, "kueue")
        for name in ("ours", "other"):
            assert gates(api.create(scene.pod(name), GATED)) == [OURS]
        models = [scene.given(api, scene.bound(api, GATED, name))[0].alternative for name in ("ours", "other")]
        assert sorted(models) == ["gpu/a100", "gpu/h100"]

        def counted() -> bool:
            status = api.get("tenantledgers", "batch").get("status", {})
            return status.get("models") == {"h100": 2, "a100": 1} and status.get("devices") == 3

        wait_for(counted, 10, "the ledger to count three devices")

    def test_in_a_namespace_that_the_settings_list_nobody_does(self, api: Api, kueue: Kueue) -> None:
        assert gates(api.create(scene.pod("listed"), LISTED)) == []
        assert [given.alternative for given in scene.given(api, scene.bound(api, LISTED, "listed"))] == ["gpu/h100"]

    def test_exactly_gives_the_first_candidate_or_nothing(self, api: Api, kueue: Kueue, plane: ControlPlane) -> None:
        kueue.queue(EXACTLY, "exactly", {"nvidia.com/gpu": 1})
        for name in ("one", "two"):
            assert gates(api.create(queued(name, "exactly"), EXACTLY)) == [GATE]
            pod = scene.bound(api, EXACTLY, name)
            assert [(given.alternative, given.pool) for given in scene.given(api, pod)] == [("gpu", "hopper")]
            assert who_took_gates_off(plane, name, EXACTLY) == {ACCOUNT.name}
        api.create(queued("three", "exactly"), EXACTLY)
        scene.is_waiting(api, EXACTLY, "three")

    def test_a_flavor_that_names_nodes_of_a_model_takes_the_choice_from_the_policy(
        self, api: Api, kueue: Kueue
    ) -> None:
        """Kueue writes the flavor's labels into the Job's Pods, and the gate refuses Pods that choose device nodes."""
        labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
        kueue.queue(GATED, "a100", {"nvidia.com/gpu": 4}, labels)
        made = api.create(job("pinned", "a100", 1), GATED)

        def refusals() -> list[Object]:
            return [
                event
                for event in api.list("events", GATED)
                if event["involvedObject"].get("uid") == made["metadata"]["uid"] and event["reason"] == "FailedCreate"
            ]

        found = wait_for(refusals, 20, "the Job's Pod to be refused")
        assert "NODE_PINNING" in scene.messages(found)
        assert kueue.charge(made) == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize("kueue", [DRA], indirect=True, ids=["dra"])
class TestDynamicResourceAllocation:
    """Kueue with its DRA gates: it charges what claim templates and extended resources ask for, by DeviceClass."""

    def test_a_job_is_charged_to_the_class_of_its_extended_resource(self, api: Api, kueue: Kueue) -> None:
        """Where its template has it among `requests`: from `limits` alone Kueue 0.17 does not see the class."""
        kueue.queue(GATED, "mapped", {CHARGED: 2})
        asking = job("asking", "mapped", 2)
        resources = asking["spec"]["template"]["spec"]["containers"][0]["resources"]
        resources["requests"] = dict(resources["limits"])
        made = api.create(asking, GATED)
        pods = pods_of(api, "asking", 2)
        assert [scene.given(api, pod)[0].alternative for pod in pods] == ["gpu/h100"] * 2
        assert kueue.charge(made) == {CHARGED: "2"}
        name = kueue.workload(api.create(job("limited", "mapped", 1), GATED))["metadata"]["name"]
        is_told(api, GATED, name, "resource nvidia.com/gpu unavailable")

    def test_the_ordinary_template_is_inadmissible(self, api: Api, kueue: Kueue, plane: ControlPlane) -> None:
        kueue.queue(GATED, "ordinary", {CHARGED: 4})
        stored = api.create(queued("listed", "ordinary"), GATED)
        name = kueue.workload(stored)["metadata"]["name"]
        is_told(api, GATED, name, "FirstAvailable device selection is not supported")
        assert gates(api.get("pods", "listed", GATED)) == [GATE]
        assert who_took_gates_off(plane, "listed") == set()

    def test_so_is_an_exact_request_with_selectors(self, api: Api, kueue: Kueue) -> None:
        """Which `kueue: exactly` gives, as a model is a selector within its class. Kueue takes them since 0.18."""
        kueue.queue(EXACTLY, "selected", {CHARGED: 4})
        stored = api.create(queued("selected", "selected"), EXACTLY)
        name = kueue.workload(stored)["metadata"]["name"]
        is_told(api, EXACTLY, name, "CEL selectors are not supported")

    def test_an_exact_request_without_selectors_is_charged(self, api: Api, kueue: Kueue) -> None:
        """By hand, in a namespace without a gate."""
        template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "exact"}}
        devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
        api.create(template | {"spec": {"spec": {"devices": devices}}}, PLAIN)
        kueue.queue(PLAIN, "exact", {CHARGED: 4})
        pod = queued("exact", "exact", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "exact"}])
        pod["spec"]["containers"] = [scene.container(gpus=0) | {"resources": {"claims": [{"name": "gpu"}]}}]
        stored = api.create(pod, PLAIN)
        scene.bound(api, PLAIN, "exact")
        assert kueue.charge(stored) == {CHARGED: "1"}
