"""Everything that makes Pods goes through: bound, with devices, and with every field that was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from e2e import scene

pytestmark = [pytest.mark.controlplane, pytest.mark.cluster]
NAMESPACE = "e2e-workloads"
DEVICE = "nvidia.com/gpu"


def holds(stored: Any, sent: Any, path: str = "") -> None:
    """Everything in `sent` is in `stored`, device requests aside; lists begin with the items that were sent."""
    if isinstance(sent, dict):
        assert isinstance(stored, dict), path
        for key, value in sent.items():
            if key != DEVICE and not (isinstance(value, dict) and set(value) == {DEVICE}):
                assert key in stored, f"{path}.{key} is gone"
                holds(stored[key], value, f"{path}.{key}")
    elif isinstance(sent, list):
        assert len(stored) >= len(sent), path
        for index, value in enumerate(sent):
            holds(stored[index], value, f"{path}[{index}]")
    else:
        assert stored == sent, path


TEMPLATE: Object = {
    "metadata": {
        "labels": {"app": "w", "team.example/a_b": "c"},
        "annotations": {"team.example/note": "kept / as ~ it is"},
    },
    "spec": {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 7,
        "tolerations": [{"key": "other.example", "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        "containers": [
            {
                "name": "main",
                "image": "registry.example/none:1",
                "command": ["run", "--fast"],
                "env": [{"name": "A", "value": "b"}],
                "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
                "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}, "requests": {"cpu": "100m"}},
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
    },
}
WORKLOADS = {
    "Job": ("batch/v1", {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}),
    "Deployment": ("apps/v1", {"replicas": 1, "selector": {"matchLabels": {"app": "w"}}, "template": TEMPLATE}),
    "StatefulSet": (
        "apps/v1",
        {"replicas": 1, "serviceName": "w", "selector": {"matchLabels": {"app": "w"}}, "template": TEMPLATE},
    ),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_pods_of_controllers(
    kind: str, gate: Gate, api: Api, install_fleet: InstallFleet, clean: Callable[[str], str]
) -> None:
    install_fleet("demo")
    clean(NAMESPACE)
    api_version, spec = WORKLOADS[kind]
    api.create({"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}, NAMESPACE)
    stored = wait_for(lambda: bound_pods(api), 60, f"the {kind}'s Pod to be bound")[0]
    assert [given.alternative for given in scene.given(api, stored)] == ["gpu/h100"]
    holds(stored, {"metadata": spec["template"]["metadata"], "spec": spec["template"]["spec"]})
    assert stored["metadata"]["annotations"]["dra-gate.io/policy-version"] == "1"
    tolerations = [t for t in stored["spec"]["tolerations"] if t.get("key") == "nvidia.com/gpu"]
    assert tolerations == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def bound_pods(api: Api) -> list[Object]:
    return [pod for pod in api.list("pods", NAMESPACE) if "nodeName" in pod["spec"]]


def test_sidecars_and_init_containers(
    gate: Gate, api: Api, install_fleet: InstallFleet, clean: Callable[[str], str]
) -> None:
    install_fleet("four-and-four")
    clean(NAMESPACE)
    sent = scene.pod(
        "mixed",
        scene.container("main", gpus="2"),
        scene.container("beside", gpus=0),
        initContainers=[
            scene.container("warm", gpus=1),
            scene.container("watch", gpus=1, restartPolicy="Always"),
            scene.container("quiet", gpus=0, restartPolicy="Always"),
        ],
    )
    api.create(sent, NAMESPACE)
    stored = scene.bound(api, NAMESPACE, "mixed")
    holds(stored, sent)
    seen = {
        c["name"]: c["resources"].get("claims", [])
        for c in stored["spec"]["containers"] + stored["spec"]["initContainers"]
    }
    assert seen["warm"] == seen["main"], "the init container hands its devices on"
    assert seen["watch"] not in ([], seen["main"]), "the sidecar has its own"
    assert seen["quiet"] == seen["beside"] == []
    assert [given.alternative for given in scene.given(api, stored)] == ["gpu/h100"] * 3


def test_a_pod_that_holds_a_nic_claim(
    gate: Gate, api: Api, install_fleet: InstallFleet, clean: Callable[[str], str]
) -> None:
    fleet = install_fleet("demo")
    clean(NAMESPACE)
    node = fleet.nodes[0]["metadata"]["name"]
    dra = "resource.k8s.io/v1"
    selector = {"cel": {"expression": "device.driver == 'nic.example'"}}
    api.apply(
        {
            "apiVersion": dra,
            "kind": "DeviceClass",
            "metadata": {"name": "nic.example"},
            "spec": {"selectors": [selector]},
        }
    )
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": "nic.example", "nodeName": node, "pool": pool, "devices": [{"name": "nic-0"}]}
    api.apply({"apiVersion": dra, "kind": "ResourceSlice", "metadata": {"name": f"{node}-nic"}, "spec": slice_spec})
    request = {"name": "nic", "exactly": {"deviceClassName": "nic.example"}}
    template = {"metadata": {"name": "nic"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    api.apply({"apiVersion": dra, "kind": "ResourceClaimTemplate", **template}, NAMESPACE)
    try:
        main = scene.container()
        main["resources"]["claims"] = [{"name": "fast", "request": "nic"}]
        sent = scene.pod("with-nic", main, resourceClaims=[{"name": "fast", "resourceClaimTemplateName": "nic"}])
        wait_for(lambda: accepted(api, sent), 10, "the gate to know the class and the template")
        stored = scene.bound(api, NAMESPACE, "with-nic")
        holds(stored, sent)
        assert [given.alternative for given in scene.given(api, stored)] == ["nic", "gpu/h100"]
    finally:
        api.delete("resourceslices", f"{node}-nic")


def accepted(api: Api, pod: Object) -> bool:
    """The class is new to the gate's caches for a moment, and what it does not know may give any device."""
    try:
        api.create(pod, NAMESPACE)
    except ApiError as refused:
        if "FOREIGN_CLAIM" in refused.message:
            return False
        raise
    return True
