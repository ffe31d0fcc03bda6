"""Rows of the failure table that only a kubelet, a driver or a race would show: written by hand on a real API server.

CONSTRUCTED: nobody but this test wrote what is classified here. Each text is put together as the source that is cited
does it (Kubernetes 1.37.2 unless another is named); the API server has checked the shape.
"""

from __future__ import annotations

import datetime as dt

import pytest

from allocation.failures.evidence import Hold, rows
from controlplane.api import STRATEGIC, Api, Object
from dra_gate.allocation.failures import Facts

pytestmark = pytest.mark.controlplane
HOW = "constructed"


@pytest.fixture
def pod(api: Api, namespace: str) -> str:
    """A Pod with a claim, which no scheduler looks at."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    api.create(claim | {"spec": {"devices": {"requests": [request]}}}, namespace)
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    entries = [{"name": "gpu", "resourceClaimName": "c"}]
    spec = {"schedulerName": "nobody", "containers": [container], "resourceClaims": entries}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, namespace)
    return "p"


@pytest.fixture
def bound_pod(api: Api, pod: str, namespace: str) -> str:
    """The same, bound to a node that there is not."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    api.request("POST", api.path("pods", namespace, pod, "binding"), binding)
    return pod


def write_status(api: Api, namespace: str, name: str, status: Object) -> None:
    api.patch("pods", name, {"status": status}, namespace, subresource="status", content_type=STRATEGIC)


def write_scheduled(api: Api, namespace: str, name: str, reason: str, message: str) -> None:
    """As pkg/scheduler/schedule_one.go, handleSchedulingFailure."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    write_status(api, namespace, name, {"conditions": [condition]})


def write_prepare_event(api: Api, namespace: str, name: str, error: str) -> None:
    """As pkg/kubelet/kuberuntime/kuberuntime_manager.go, SyncPod: the error of PrepareDynamicResources in an event.

    pkg/kubelet/cm/dra/manager.go, PrepareResources, puts `prepare dynamic resources: ` before what failed.
    """
    pod = api.get("pods", name, namespace)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "p."},
        "involvedObject": {"kind": "Pod", "name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": f"Failed to prepare dynamic resources: prepare dynamic resources: {error}",
        "source": {"component": "kubelet", "host": "nowhere"},
        "firstTimestamp": now,
        "lastTimestamp": now,
    }  # fmt: skip
    api.create(event, namespace)


def container(**more: Object | list[Object]) -> Object:
    """A container's status."""
    fields = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    return {"containerStatuses": [fields | more]}


@rows("driver-unregistered", "driver-unregistered-for-long")
def test_the_driver_is_not_registered(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go, GetPlugin."""
    write_prepare_event(api, namespace, bound_pod, "DRA driver gpu.nvidia.com is not registered")
    hold("driver-unregistered", "retryable", "wait", namespace, bound_pod)
    late = Facts(seconds=61)
    hold("driver-unregistered-for-long", "operator", "recreate-pod", namespace, bound_pod, late)


@rows("prepare-failing", "prepare-failing-for-long")
def test_the_driver_cannot_prepare(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """pkg/kubelet/cm/dra/manager.go, prepareResources: the driver's error for one claim; this one is the example
    driver's, and free text.
    """
    error = "NodePrepareResources failed for ResourceClaim p-gpu-x7k2p: unable to prepare devices: no such device gpu-9"
    write_prepare_event(api, namespace, bound_pod, error)
    hold("prepare-failing", "retryable", "wait", namespace, bound_pod)
    late = Facts(seconds=301)
    hold("prepare-failing-for-long", "operator", "recreate-pod", namespace, bound_pod, late)


@rows("prepare-deadline")
def test_the_driver_takes_too_long(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """pkg/kubelet/cm/dra/manager.go, prepareResources: a gRPC error for all claims of a driver."""
    error = "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    write_prepare_event(api, namespace, bound_pod, error)
    hold("prepare-deadline", "infrastructure", "wait", namespace, bound_pod)


@rows("old-claim-prepared")
def test_the_claim_of_a_pod_that_was_deleted_by_force(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """pkg/kubelet/cm/dra/manager.go, prepareResources."""
    error = (
        "old ResourceClaim with same name c and different UID 3d0a3b3e-5a5e-4b9e-8d5e-5d1f4f6f7a11 still exists "
        "(previous pod force-deleted?!)"
    )
    write_prepare_event(api, namespace, bound_pod, error)
    hold("old-claim-prepared", "operator", "alert", namespace, bound_pod)


@rows("prepare-unknown")
def test_a_prepare_error_that_no_row_knows(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """Nobody's text."""
    write_prepare_event(api, namespace, bound_pod, "the flux capacitor is cold")
    hold("prepare-unknown", "unknown", "alert", namespace, bound_pod)


@rows("cdi-unresolvable")
def test_cdi_devices_are_gone(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """Text of containerd by kubernetes-sigs/dra-driver-nvidia-gpu issue 736; the reason is ErrCreateContainer of
    pkg/kubelet/kuberuntime/kuberuntime_container.go.
    """
    message = (
        "failed to create containerd container: CDI device injection failed: "
        "unresolvable CDI devices k8s.gpu.nvidia.com/device=gpu-1"
    )
    waiting = {"waiting": {"reason": "CreateContainerError", "message": message}}
    write_status(api, namespace, bound_pod, container(state=waiting))
    hold("cdi-unresolvable", "terminal", "recreate-pod", namespace, bound_pod)


@rows("cdi-unknown")
def test_a_cdi_error_that_no_row_knows(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """Nobody's text."""
    waiting = {"waiting": {"reason": "CreateContainerError", "message": "failed to load the CDI registry"}}
    write_status(api, namespace, bound_pod, container(state=waiting))
    hold("cdi-unknown", "unknown", "alert", namespace, bound_pod)


@rows("device-unhealthy", "device-health-unknown")
def test_health_of_devices(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """pkg/kubelet/cm/dra/manager.go, UpdateAllocatedResourcesStatus: named `claim:` and the claim entry, with the
    request if there are several; the resource id is the device's CDI id.
    """

    def report(health: str) -> None:
        resources = [{"resourceID": "k8s.gpu.nvidia.com/claim=1-gpu-0", "health": health}]
        status = [{"name": "claim:gpu", "resources": resources}]
        running = {"running": {"startedAt": "2026-11-30T12:00:00Z"}}
        write_status(
            api, namespace, bound_pod,
            {"phase": "Running"} | container(state=running, allocatedResourcesStatus=status),
        )  # fmt: skip

    report("Unknown")
    hold("device-health-unknown", "waiting", "wait", namespace, bound_pod)
    report("Unhealthy")
    hold("device-unhealthy", "infrastructure", "alert", namespace, bound_pod)


@rows("plugin-admission-error")
def test_the_device_plugin_has_no_device_after_all(api: Api, namespace: str, bound_pod: str, hold: Hold) -> None:
    """pkg/kubelet/cm/admission/errors.go around pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate."""
    message = (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 1, Available: 0, which is unexpected"
    )
    write_status(
        api, namespace, bound_pod, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    )
    failure = hold("plugin-admission-error", "terminal", "stop", namespace, bound_pod)
    assert failure.text == message


@rows("bind-conflict")
@pytest.mark.parametrize(
    "error",
    [
        "claim t/c got allocated elsewhere in the meantime",
        "claim t/c got deallocated elsewhere in the meantime",
        "claim t/c got deleted in the meantime",
        'add allocation and reservation to claim t/c: resourceclaims.resource.k8s.io "c" not found',
        'get updated claim t/c after conflict: resourceclaims.resource.k8s.io "c" not found',
    ],
)
def test_the_claim_changes_while_the_pod_is_bound(api: Api, namespace: str, pod: str, hold: Hold, error: str) -> None:
    """pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go, bindClaim; a race of milliseconds."""
    write_scheduled(api, namespace, pod, "SchedulerError", f'running PreBind plugin "DynamicResources": {error}')
    hold("bind-conflict", "retryable", "wait", namespace, pod)


@rows("claim-freed")
def test_the_scheduler_frees_a_claim(api: Api, namespace: str, pod: str, hold: Hold) -> None:
    """The text that test_provoked.py sees after a failed binding: it stands for milliseconds, since the claim that was
    freed wakes the Pod.
    """
    message = (
        "0/2 nodes are available: 2 resourceclaim not available on the node. deallocation of ResourceClaim completed, "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    write_scheduled(api, namespace, pod, "Unschedulable", message)
    hold("claim-freed", "retryable", "wait", namespace, pod)


@rows("score-bug")
def test_the_scheduler_miscounts(api: Api, namespace: str, pod: str, hold: Hold) -> None:
    """pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go, computeScore, of 1.35.0 and newer; mended
    before 1.37.2, where it cannot be provoked any more. The prefix is pkg/scheduler/framework/runtime/framework.go's.
    """
    error = "number of allocations 1 is smaller than number of claims needing allocation"
    message = f'running Score plugins: plugin "DynamicResources" failed with: {error}'
    write_scheduled(api, namespace, pod, "SchedulerError", message)
    hold("score-bug", "operator", "alert", namespace, pod)
