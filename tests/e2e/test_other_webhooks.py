"""Beside other webhooks: what they add after us is converted too; what we make, the real API server takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from admission import pods as generated
from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from dra_gate.admission.signs import DEVICE_VARIABLES
from e2e import scene
from e2e.other_webhook import OtherWebhook

pytestmark = pytest.mark.controlplane


@pytest.fixture(params=["zzz-after-us", "aaa-before-us"])
def other(request: pytest.FixtureRequest, api: Api, gate: Gate, tmp_path: Path) -> Iterator[str]:
    namespace = scene.namespace(api, "e2e-reinvoked")
    with OtherWebhook(tmp_path) as webhook:
        api.create(webhook.configuration(request.param, namespace))

        def in_force() -> bool:
            stored = api.create(scene.pod("probe"), namespace, dry_run=True)
            return len(stored["spec"]["containers"]) == 2

        try:
            wait_for(in_force, 10, "the other webhook to be called", every=0.1)
            yield request.param
        finally:
            api.delete("mutatingwebhookconfigurations", request.param)
            # The API server calls it for a moment yet; once it is gone that would refuse the next test's Pods.
            wait_for(lambda: not in_force(), 10, "the other webhook to be left alone", every=0.1)
            scene.clear(api, namespace)


def test_a_container_that_another_webhook_adds_is_converted(
    other: str, gate: Gate, api: Api, control_plane: ControlPlane, install_fleet: InstallFleet
) -> None:
    install_fleet("demo")
    api.create(scene.pod(other), "e2e-reinvoked")
    stored = scene.bound(api, "e2e-reinvoked", other)
    injected = next(c for c in stored["spec"]["containers"] if c["name"] == "injected")
    assert injected["resources"]["claims"] == [{"name": "gate-1"}]
    assert "nvidia.com/gpu" not in json.dumps([c["resources"] for c in stored["spec"]["containers"]])
    assert [given.alternative for given in scene.given(api, stored)] == ["gpu/h100"] * 2
    assert stored["metadata"]["annotations"]["dra-gate.io/devices"] == "2"
    # Round 1 is the second call of our webhook; the API server drops audit values that differ from the first round's.
    (event,) = [
        event
        for event in control_plane.audit_events()
        if event.get("objectRef", {}).get("name") == other
        and event["objectRef"].get("namespace") == "e2e-reinvoked"
        and event["verb"] == "create"
        and "subresource" not in event["objectRef"]
    ]
    annotations = event["annotations"]
    assert annotations["mutate.dra-gate.io/policy"] == "ordered@1"
    assert annotations["validate.dra-gate.io/tenant"] == "ordered"
    rounds = [key for key in annotations if key.startswith("mutation.webhook.admission.k8s.io/round_1")]
    assert bool(rounds) == other.startswith("zzz")


def test_even_a_pod_that_asked_for_nothing(other: str, gate: Gate, api: Api) -> None:
    """Our conditions were false in our turn. Sorted last we are called all the same; never is a raw request stored."""
    if other.startswith("aaa"):
        stored = api.create(scene.pod("q", scene.container(gpus=0)), "e2e-reinvoked")
        assert stored["spec"]["resourceClaims"][0]["name"] == "gate-0"
    else:
        with pytest.raises(ApiError, match="RAW_DEVICE_REQUEST"):
            api.create(scene.pod("q", scene.container(gpus=0)), "e2e-reinvoked")


def test_the_api_server_takes_what_we_make_of_generated_pods(gate: Gate, api: Api) -> None:
    """At least 500 valid generated Pods, by dry run through both webhooks: none is refused for what we made of it."""
    namespace = scene.namespace(api, "e2e-generated")
    template = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.generated"}}]}}
    selector = {"cel": {"expression": "device.driver == 'nic.generated'"}}
    dra = "resource.k8s.io/v1"
    api.apply(
        {
            "apiVersion": dra,
            "kind": "DeviceClass",
            "metadata": {"name": "nic.generated"},
            "spec": {"selectors": [selector]},
        }
    )
    api.apply(
        {"apiVersion": dra, "kind": "ResourceClaimTemplate", "metadata": {"name": "nics"}, "spec": {"spec": template}},
        namespace,
    )
    own = [t["metadata"]["name"] for t in wait_for(lambda: templates_of(api, namespace), 30, "the tenant's templates")]
    collected: list[Object] = []

    @hypothesis.settings(
        max_examples=1200,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(generated.pods(valid=True))
    def collect(pod: Any) -> None:
        pod = json.loads(json.dumps(pod))
        without_what_is_refused(pod)
        for entry in pod["spec"].get("resourceClaims", []):
            if entry["resourceClaimTemplateName"] != "nics":
                entry["resourceClaimTemplateName"] = own[len(entry["name"]) % len(own)]
        for key in ("initContainers", "containers"):
            for container in pod["spec"].get(key, []):
                refs = container.get("resources", {}).get("claims")
                if refs == []:
                    del container["resources"]["claims"]
        if "nvidia.com/gpu" in json.dumps(pod["spec"]):
            collected.append(pod)

    collect()
    assert len(collected) >= 500
    scene_ready(api, namespace)
    answers = api.parallel(lambda pod: taken(api, pod, namespace), collected)
    refused = [answer for answer in answers if answer]
    assert refused == []


def without_what_is_refused(pod: Any) -> None:
    """By the gate, for what it asks of its host or its nodes, or by the API server, for what is not there."""
    refused = ("nodeSelector", "nodeName", "volumes", "runtimeClassName", "ephemeralContainers", "schedulingGates")
    for field in refused:
        pod["spec"].pop(field, None)
    node_affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    node_affinity.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
    for field in ("ownerReferences", "annotations"):
        pod["metadata"].pop(field, None)
    for kind in ("initContainers", "containers"):
        for container in pod["spec"].get(kind, []):
            for field in ("volumeMounts", "securityContext"):
                container.pop(field, None)
            if "env" in container:
                container["env"] = [one for one in container["env"] or [] if one["name"] not in DEVICE_VARIABLES]


def templates_of(api: Api, namespace: str) -> list[Object]:
    labelled = api.list("resourceclaimtemplates", namespace, labels="app.kubernetes.io/managed-by=dra-gate")
    return labelled if len(labelled) >= 8 else []


def scene_ready(api: Api, namespace: str) -> None:
    probe = scene.pod("probe", resourceClaims=[{"name": "n", "resourceClaimTemplateName": "nics"}])

    def known() -> bool:
        """To both replicas: so many at once go to either."""
        return not any(api.parallel(lambda _: taken(api, probe, namespace), range(64)))

    wait_for(known, 30, "the gate to know the NIC template", every=0.1)


def taken(api: Api, pod: Object, namespace: str) -> str:
    """Why the API server refuses the Pod; empty if it takes it with every device by claim."""
    try:
        stored = api.create(pod, namespace, dry_run=True)
    except ApiError as refused:
        return f"{refused}: {json.dumps(pod)}"
    for container in [*stored["spec"].get("initContainers", []), *stored["spec"]["containers"]]:
        if int(container["resources"].get("limits", {}).get("nvidia.com/gpu", 0)) > 0:
            return f"raw: {json.dumps(pod)}"
    return ""
