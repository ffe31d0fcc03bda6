"""The decision writer against the real control plane, as its service account with the rights of deploy/base."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from allocation import fleet as small
from controller.test_templates_controlplane import RBAC
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, ControlPlane
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.fleet import cordon
from dra_gate.allocation.record import loads
from dra_gate.cluster.client import Client
from dra_gate.cluster.line_log import LineLog
from dra_gate.controller.decision_plan import CONDITION
from dra_gate.controller.decisions import DecisionController
from dra_gate.policy.compile import templates_of
from dra_gate.policy.model import PolicyRef, PolicySet

pytestmark = pytest.mark.controlplane
API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
LANE = {"dra-gate.io/lane": "dra"}
REF = PolicyRef("train", 1)


@pytest.fixture(scope="module")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """Of the controller's service account, with exactly the rights that we ship."""
    api = control_plane.api()
    with contextlib.suppress(ApiError):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-gate"}})
    api.apply_yaml(RBAC.read_text())
    return control_plane.kubeconfig_for(GATE_CONTROLLER)


class World:
    """One gated namespace of a tenant, and a fleet of two H100, two A100, two L40S."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        # A second tenant of that policy, whose namespace is this test's.
        oak = {"policy": "train@1", "namespaces": [namespace]}
        self.set: PolicySet = small.policy_set({**API, "kind": "Tenant", "metadata": {"name": "oak"}, "spec": oak})
        for count in (1, 2):
            api.create(templates_of(self.set).for_count("oak", REF, count).manifest(namespace))

    def pod(self, name: str, *claims: dict[str, str], count: int = 1, **spec: Any) -> None:
        template = templates_of(self.set).for_count("oak", REF, count).name
        entries = [{"name": f"e{i}", **claim} for i, claim in enumerate(claims)] or [
            {"name": "gpu", "resourceClaimTemplateName": template}
        ]
        container = {"name": "c", "image": "x", "resources": {"claims": [{"name": one["name"]} for one in entries]}}
        self.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": {"dra-gate.io/lane": "dra"}},
             "spec": {"containers": [container], "resourceClaims": entries, **spec}},
            self.namespace,
        )  # fmt: skip

    def claim(self, name: str) -> None:
        """One like the tenant's, made by hand."""
        spec = templates_of(self.set).for_count("oak", REF, 1).spec
        metadata = {"name": name, "namespace": self.namespace, **spec["metadata"]}
        self.api.create(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec["spec"]}
        )

    def condition(self, name: str) -> dict[str, Any]:
        found = self.api.get("pods", name, self.namespace).get("status", {}).get("conditions", [])
        return next((one for one in found if one["type"] == CONDITION), {})

    def told(self, name: str, reason: str) -> str:
        """The message, once the condition has that reason."""
        wait_for(lambda: self.condition(name).get("reason") == reason, 30, f"{name}: {reason}")
        return str(self.condition(name)["message"])

    def events(self, name: str = "") -> list[dict[str, Any]]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = self.api.request("GET", path).body["items"]
        ours = [one for one in found if one.get("reportingController") == "dra-gate.io/controller"]
        return [one for one in ours if name in ("", one["regarding"]["name"])]

    def quiet(self, name: str) -> str:
        """Waits until the annotation has come, the last thing that is written; says the model."""
        wait_for(lambda: self.annotation(name), 20, f"the model on {name}")
        return self.annotation(name)

    def annotation(self, name: str) -> str:
        found = self.api.get("pods", name, self.namespace)["metadata"].get("annotations", {})
        return str(found.get("dra-gate.io/model", ""))


class Counting(Client):
    """A client that counts what it sends."""

    sent: Counter[str]

    def _send(self, method: str, path: str, *more: Any, **options: Any) -> Any:
        self.__dict__.setdefault("sent", Counter())[method] += 1
        return super()._send(method, path, *more, **options)


@pytest.fixture
def world(api: Api, install_fleet: InstallFleet, make_namespace: MakeNamespace) -> World:
    install_fleet("demo")
    return World(api, make_namespace(labels=LANE))


@contextmanager
def controlling(
    world: World, kubeconfig: Path, log: LineLog | None = None
) -> Iterator[tuple[DecisionController, Counting]]:
    client = Counting.connect(str(kubeconfig))
    assert isinstance(client, Counting)
    controller = DecisionController(client, identity="test", leading=lambda: True, log=log)
    controller.use([world.set])
    controller.start()
    controller.activate()
    try:
        yield controller, client
        assert controller.problems() == []
    finally:
        controller.stop()
        client.close()


def metric(controller: DecisionController, name: str, **labels: str) -> float:
    registry = CollectorRegistry()
    registry.register(controller)
    return registry.get_sample_value(name, labels) or 0.0


def test_first_choice_then_fallback_then_waiting_then_allocated(world: World, kubeconfig: Path, tmp_path: Path) -> None:
    log = LineLog(tmp_path, 1 << 22)
    with controlling(world, kubeconfig, log) as (controller, _):
        for number in range(2):
            world.pod(f"first-{number}")
            assert f"h100, rank 1 of 3 of train@1: hopper/gpu-{number} [decision " in world.told(
                f"first-{number}", "FirstChoice"
            )
            assert world.quiet(f"first-{number}") == "h100"
        for number in range(2):
            world.pod(f"second-{number}")
            assert "a100, rank 2 of 3 of train@1: ampere/gpu-" in world.told(f"second-{number}", "Fallback")
        assert world.quiet("second-1") == "a100"
        world.pod("third")
        message = world.told("third", "Retryable")
        assert message.startswith("no-free-device: No node on which the Pod fits has free devices for all its claims.")
        assert "Asked for 1 device under train@1." in message
        assert "h100: all 2 in use, 2 by this tenant." in message
        assert "l40s: none of 2 meets memory (2)." in message
        (event,) = world.events("third")
        assert (event["type"], event["reason"]) == ("Warning", "DevicesRetryable")
        world.api.delete("pods", "first-1", world.namespace, grace=0)
        assert "h100, rank 1 of 3" in world.told("third", "FirstChoice")
        wait_for(lambda: len(world.events("third")) == 2, 10, "the second Event")
        wait_for(lambda: len(world.events("second-0")) == 1, 10, "one Event about second-0")
        note = world.events("second-0")[0]["note"]
        assert note == (
            "Asked for 1 device under train@1. h100: all 2 in use, 2 by this tenant. a100: given, rank 2 of 3. "
            "gpu: a100 ampere/gpu-0."
        )
        wait_for(lambda: metric(controller, "dra_gate_allocation_wait_seconds_count", tenant="oak") == 5, 10, "waits")
        counted = {"tenant": "oak", "policy": "train@1"}
        assert metric(controller, "dra_gate_allocations_total", model="h100", rank="1", **counted) == 3
        assert metric(controller, "dra_gate_allocations_total", model="a100", rank="2", **counted) == 2
        assert metric(controller, "dra_gate_device_requests_total", tenant="oak", model="h100") == 5
        assert metric(controller, "dra_gate_devices_used", tenant="oak", model="h100") == 2
        assert metric(controller, "dra_gate_devices", model="l40s", state="free") == 2
        assert metric(controller, "dra_gate_inversions_total", policy="train@1", reason="score") == 0
    lines = [line for file in tmp_path.iterdir() for line in file.read_bytes().splitlines()]
    records = [loads(line) for line in lines]
    assert Counter(record.outcome for record in records) == {"allocated": 5, "waiting": len(records) - 5}
    assert {(record.pod, record.sequence) for record in records} >= {("third", 1), ("third", 2)}
    assert len({(record.uid, record.sequence) for record in records}) == len(records), "each decision is told once"


def test_named_and_shared_claims_and_claims_of_no_policy(world: World, kubeconfig: Path) -> None:
    world.claim("shared")
    world.api.create({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "plain", "namespace": world.namespace},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "selectors": [
            {"cel": {"expression": "device.attributes['gpu.nvidia.com'].architecture == 'Ampere'"}}]}}]}},
    })  # fmt: skip
    with controlling(world, kubeconfig):
        for number in range(2):
            world.pod(f"sharing-{number}", {"resourceClaimName": "shared"})
            told = world.told(f"sharing-{number}", "FirstChoice")
            assert told.startswith("h100, rank 1 of 3 of train@1: hopper/gpu-0 ")
        world.pod("plain", {"resourceClaimName": "plain"})
        assert world.told("plain", "FirstChoice").startswith("a100, rank 1 of 1: ampere/gpu-0 ")
        assert world.quiet("plain") == "a100"


def test_a_pod_of_two_claims_is_told_of_both(world: World, kubeconfig: Path) -> None:
    """Two H100 on one node: the second claim for two devices has to go to another node, so that it can't be had."""
    world.claim("one")
    template = templates_of(world.set).for_count("oak", REF, 1).name
    world.pod("both", {"resourceClaimName": "one"}, {"resourceClaimTemplateName": template})
    with controlling(world, kubeconfig):
        told = world.told("both", "FirstChoice")
    assert told.startswith("h100, rank 1 of 3 of train@1: hopper/gpu-0; h100, rank 1 of 3: hopper/gpu-1 ")


def test_a_better_device_that_stayed_free_is_explained(world: World, kubeconfig: Path) -> None:
    world.pod("elsewhere", nodeSelector={"kubernetes.io/hostname": "ampere"})
    with controlling(world, kubeconfig) as (controller, _):
        world.told("elsewhere", "Fallback")
        wait_for(lambda: world.events("elsewhere"), 10, "the Event")
        assert (
            "h100: 2 free: on nodes that its own nodeSelector or affinity excludes."
            in world.events("elsewhere")[0]["note"]
        )
        counted = {"policy": "train@1", "reason": "affinity"}
        wait_for(lambda: metric(controller, "dra_gate_inversions_total", **counted) == 1, 10, "it to be counted")


def test_a_cordoned_node_is_told_and_counts_as_unhealthy(world: World, kubeconfig: Path) -> None:
    cordon(world.api, "hopper")
    world.pod("cordoned")
    with controlling(world, kubeconfig) as (controller, _):
        world.told("cordoned", "Fallback")
        wait_for(lambda: world.events("cordoned"), 10, "the Event")
        assert "h100: none of 2 healthy: node cordoned (2)." in world.events("cordoned")[0]["note"]
        assert metric(controller, "dra_gate_devices_unusable", model="h100", reason="node cordoned") == 2
        cordon(world.api, "hopper", on=False)
        wait_for(
            lambda: metric(controller, "dra_gate_device_health_changes_total", model="h100", to="healthy") == 2,
            10,
            "the change of health",
        )


def test_claims_that_the_scheduler_made_are_reported(world: World, kubeconfig: Path) -> None:
    world.api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "raw"}, "spec": {"containers": [
            {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}},
        world.namespace,
    )  # fmt: skip
    world.api.wait("pods", "raw", world.namespace, lambda found: "nodeName" in found["spec"], 30, "raw to be bound")
    with controlling(world, kubeconfig) as (controller, _):
        wait_for(world.events, 20, "the Event")
        (event,) = world.events()
        assert event["reason"] == "NotOurClaim"
        assert metric(controller, "dra_gate_extended_resource_claims", tenant="oak") == 1
        assert not world.condition("raw")
    with controlling(world, kubeconfig) as (controller, _):  # as after a restart
        wait_for(lambda: metric(controller, "dra_gate_decision_writes_total", what="event", outcome="done"), 20, "it")
        assert len(world.events()) == 1, "said again, it is stored once"


def test_a_device_in_two_claims_is_reported(world: World, kubeconfig: Path) -> None:
    """Constructed: the scheduler does not do that. The second allocation is written by hand, as a broken one would."""
    world.claim("a")
    world.claim("b")
    world.pod("holder", {"resourceClaimName": "a"})
    world.api.wait("pods", "holder", world.namespace, lambda found: "nodeName" in found["spec"], 30, "it to be bound")
    allocation = world.api.get("resourceclaims", "a", world.namespace)["status"]["allocation"]
    with controlling(world, kubeconfig) as (controller, _):
        world.told("holder", "FirstChoice")
        assert metric(controller, "dra_gate_doubly_allocated_devices") == 0
        world.api.patch(
            "resourceclaims", "b", {"status": {"allocation": allocation}}, world.namespace, subresource="status"
        )
        wait_for(lambda: metric(controller, "dra_gate_doubly_allocated_devices") == 1, 10, "the metric")
        wait_for(
            lambda: (
                sorted(e["regarding"]["name"] for e in world.events() if e["reason"] == "DoubleAllocation")
                == ["a", "b"]
            ),
            10,
            "an Event about each claim",
        )
    world.api.patch("resourceclaims", "b", {"status": {"allocation": None}}, world.namespace, subresource="status")


def test_fifty_pods_that_wait_cost_nothing_while_nothing_changes(world: World, kubeconfig: Path) -> None:
    for number in range(50):
        world.pod(f"w{number}", count=2, nodeSelector={"kubernetes.io/hostname": "ada"})
    with controlling(world, kubeconfig) as (_, client):
        wait_for(
            lambda: all(world.condition(f"w{number}").get("reason") == "Retryable" for number in range(50)),
            60,
            "all to be told",
            every=1.0,
        )
        time.sleep(5)  # the last echoes
        before = Counter(client.sent)
        assert before["POST"] + before["PATCH"] <= 2 * 50 + 10, "an Event and a condition each"
        time.sleep(60)
        after = client.sent - before
        print(f"\n50 waiting Pods, 60 s: {dict(after)} requests; to tell them at first: {dict(before)}")
        assert after["POST"] + after["PATCH"] == 0
    with controlling(world, kubeconfig) as (_, client):  # as after a restart: what has been said stands on the Pods
        time.sleep(8)
        assert client.sent["POST"] + client.sent["PATCH"] == 0
