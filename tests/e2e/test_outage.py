"""With the gate stopped: what is refused, what goes on, and that nothing needs help afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from controlplane import kubelet
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from e2e import scene

pytestmark = pytest.mark.controlplane
NAMESPACE = "e2e-outage"


@pytest.fixture
def stopped(gate: Gate) -> Iterator[Gate]:
    """The gate, which the test stops; started again whatever happens."""
    yield gate
    gate.start()


def test_an_outage(
    stopped: Gate,
    api: Api,
    control_plane: ControlPlane,
    install_fleet: InstallFleet,
    clean: Callable[[str], str],
) -> None:
    install_fleet("demo")
    clean(NAMESPACE)
    scene.namespace(api, "e2e-open", {"team": "nobody"})
    job = {"template": {"spec": {"restartPolicy": "Never", "containers": [scene.container()]}}}
    api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "before"}, "spec": job}, NAMESPACE)
    (running,) = wait_for(lambda: bound(api, "before"), 60, "the Job's Pod")
    stopped.stop()

    # Exactly the Pods that match the conditions are refused, and the text says who did not answer.
    with pytest.raises(
        ApiError, match=r'failed calling webhook "validate\.dra-gate\.io".*connection refused'
    ) as refused:
        api.create(scene.pod("device"), NAMESPACE)
    assert refused.value.status == 500
    for name, spec in (
        ("plain", scene.pod("plain", scene.container(gpus=0, cpu="1"))),
        (
            "host-path",
            scene.pod("host-path", scene.container(gpus=0), volumes=[{"name": "v", "hostPath": {"path": "/srv"}}]),
        ),
    ):
        assert api.create(spec, NAMESPACE)["metadata"]["name"] == name
    for namespace in ("e2e-open", "kube-system", "dra-gate"):
        api.create(scene.pod("device"), namespace)
        api.delete("pods", "device", namespace, grace=0)
    assert stopped_controller_writes(control_plane), "the gate's own controller is not judged by the gate"

    # Jobs end and are deleted; a Pod that holds devices may change and go.
    name = running["metadata"]["name"]
    api.patch("pods", name, {"metadata": {"labels": {"touched": "yes"}}}, NAMESPACE)
    kubelet.mark_succeeded(api, NAMESPACE, name)
    api.wait("jobs", "before", NAMESPACE, lambda found: found["status"].get("succeeded") == 1, 20, "the Job to end")
    api.delete("jobs", "before", NAMESPACE)
    wait_for(lambda: api.find("jobs", "before", NAMESPACE) is None, 20, "the Job to go")

    # A Job made meanwhile waits, and goes on by itself once the gate is back.
    api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "during"}, "spec": job}, NAMESPACE)
    wait_for(lambda: [e for e in api.list("events", NAMESPACE) if e["reason"] == "FailedCreate"], 15, "the Job's event")
    stopped.start()
    (recovered,) = wait_for(lambda: bound(api, "during"), 60, "the Job's Pod after the outage")
    assert [given.alternative for given in scene.given(api, recovered)] == ["gpu/h100"]


def bound(api: Api, job: str) -> list[dict[str, object]]:
    labelled = api.list("pods", NAMESPACE, labels=f"batch.kubernetes.io/job-name={job}")
    return [pod for pod in labelled if "nodeName" in pod["spec"]]


def stopped_controller_writes(control_plane: ControlPlane) -> bool:
    """A template with the reserved prefix, as the gate's controller would write it while no webhook answers."""
    controller = control_plane.api(GATE_CONTROLLER)
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "dra-gate-outage"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    with pytest.raises(ApiError, match=r"claims\.dra-gate\.io"):
        control_plane.api().create(template, NAMESPACE)
    stored = controller.create(template, NAMESPACE)
    controller.delete("resourceclaimtemplates", "dra-gate-outage", NAMESPACE)
    return bool(stored)


def test_a_cold_start_needs_nothing_but_the_api_server(stopped: Gate, api: Api, install_fleet: InstallFleet) -> None:
    """No tenant namespace, no template, no gate: then all of it at once, and the first Pod is served."""
    install_fleet("demo")
    stopped.stop(kill=True)
    namespace = scene.namespace(api, "e2e-fresh")
    try:
        assert not api.list("resourceclaimtemplates", namespace)
        stopped.start()
        api.create(scene.pod("first"), namespace)
        # The claim controller may look before the template is there, and then waits ever longer before it looks again.
        first = scene.bound(api, namespace, "first")
        assert [given.alternative for given in scene.given(api, first)] == ["gpu/h100"]
    finally:
        scene.clear(api, namespace)
