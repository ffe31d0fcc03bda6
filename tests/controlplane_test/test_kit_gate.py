"""The gate, installed as an operator would, out of cluster: it is called, can be taken away, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.gate import Gate, policy_namespaces

pytestmark = pytest.mark.controlplane
POLICIES = Path(__file__).with_name("policies")
(NAMESPACE,) = policy_namespaces(POLICIES)


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    with Gate(control_plane, POLICIES, replicas=2) as running:
        yield running


@pytest.fixture
def gated(gate: Gate, install_fleet: InstallFleet, make_namespace: MakeNamespace) -> str:
    install_fleet("four-and-four")
    return make_namespace(name=NAMESPACE, labels={"dra-gate.io/lane": "dra"})


def pod(name: str, devices: int = 0) -> dict[str, Any]:
    amounts = {"cpu": "1"} | ({"nvidia.com/gpu": str(devices)} if devices else {})
    container = {"name": "main", "image": "none", "resources": {"limits": amounts}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def test_leaving_takes_the_gate_out_of_the_cluster(control_plane: ControlPlane, api: Api) -> None:
    """Stands first: the others share a gate that stays until the module's end."""
    with Gate(control_plane, POLICIES, controllers=0) as second:
        hooks = api.list("validatingwebhookconfigurations")
        assert any(second.forwarder.url in hook["clientConfig"]["url"] for one in hooks for hook in one["webhooks"])
        assert control_plane.processes.codes()["gate-0"] is None
    assert api.list("validatingwebhookconfigurations") == api.list("mutatingwebhookconfigurations") == []
    assert "gate-0" not in control_plane.processes.codes()


def test_an_ordinary_pod_gets_its_device_through_the_gate(gate: Gate, api: Api, gated: str) -> None:
    stored = api.create(pod("p", 2), gated)
    assert "nvidia.com/gpu" not in stored["spec"]["containers"][0]["resources"]["limits"]
    # Its namespace is new: where the Pod was there before the template, the claim is tried again after 5 s, then 10 s.
    bound = api.wait("pods", "p", gated, lambda found: "nodeName" in found["spec"], 30)
    claim = api.get("resourceclaims", bound["status"]["resourceClaimStatuses"][0]["resourceClaimName"], gated)
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [(r["request"], r["pool"], r["device"]) for r in results] == [
        ("gpu/h100", "hopper", "gpu-0"),
        ("gpu/h100", "hopper", "gpu-1"),
    ]


def test_a_replica_that_is_killed_is_left_out_until_it_is_back(gate: Gate, api: Api, gated: str) -> None:
    first = gate.replicas[0]
    gate.stop_replica(first, kill=True)
    gate.forwarder.wait_ready(1)
    # Connections that were open to it are gone; the API server makes new ones to the other.
    wait_for(lambda: _admitted(api, pod("one", 1), gated), 10, "the other replica to answer")
    gate.start_replica(first)
    assert len(gate.forwarder.ready) == 2
    assert _admitted(api, pod("two", 1), gated)


def test_while_the_gate_is_away_only_device_pods_are_refused(gate: Gate, api: Api, gated: str) -> None:
    gate.stop()
    try:
        with pytest.raises(ApiError) as refused:
            api.create(pod("gpu", 1), gated)
        assert "failed calling webhook" in refused.value.message
        assert "connection refused" in refused.value.message
        assert api.create(pod("cpu"), gated)["metadata"]["name"] == "cpu"
    finally:
        gate.start()
    assert _admitted(api, pod("gpu", 1), gated)


def _admitted(api: Api, wanted: dict[str, Any], namespace: str) -> bool:
    """Whether the Pod was stored, and converted. Mutate may fail open in the same moment as validate answers."""
    try:
        stored = api.create(wanted, namespace)
    except ApiError:
        return False
    return bool(stored["spec"].get("resourceClaims"))
