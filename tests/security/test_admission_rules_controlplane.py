"""Rules of docs/security/admission-rules.md that stand on what the real API server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.api import STRATEGIC, Api, ApiError
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import MakeNamespace
from controlplane.gate import Gate, policy_namespaces
from e2e import scene

pytestmark = pytest.mark.controlplane
POLICIES = Path(__file__).parents[1] / "controlplane_test" / "policies"
(GATED,) = policy_namespaces(POLICIES)
GPU = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize("resources", [GPU, {"claims": [{"name": "mine"}]}], ids=["request", "claim"])
def test_no_device_comes_into_a_pod_by_a_subresource_or_an_update(
    resources: dict[str, Any], api: Api, namespace: str
) -> None:
    """So the rules need not name them. No gate runs here: it is core validation that refuses."""
    claims = [{"name": "mine", "resourceClaimTemplateName": "nobody-has-made-it"}]
    api.create(scene.pod("p", scene.container(gpus=0, cpu="1"), resourceClaims=claims), namespace)
    debugger = {"name": "debug", "image": "registry.example/none:1"}

    def patched(container: dict[str, Any], subresource: str | None = None) -> None:
        kind = "ephemeralContainers" if subresource == "ephemeralcontainers" else "containers"
        change = {"spec": {kind: [container]}}
        api.patch("pods", "p", change, namespace, subresource=subresource, content_type=STRATEGIC)

    with pytest.raises(ApiError, match=r"resources: Forbidden: cannot be set for an Ephemeral Container"):
        patched({**debugger, "resources": resources}, "ephemeralcontainers")
    with pytest.raises(ApiError, match=r"only cpu and memory resources are mutable"):
        patched({"name": "main", "resources": resources}, "resize")
    with pytest.raises(ApiError, match=r"pod updates may not change fields"):
        patched({"name": "main", "resources": resources})
    with pytest.raises(ApiError, match=r"pod updates may not change fields"):
        api.patch("pods", "p", {"spec": {"resourceClaims": [*claims, {**claims[0], "name": "more"}]}}, namespace)
    # Without devices the same is taken.
    patched({"name": "main", "resources": {"requests": {"cpu": "2"}}}, "resize")
    patched(debugger, "ephemeralcontainers")
    (container,) = api.get("pods", "p", namespace)["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "2"}}


def count(api: Api, metric: str, **labels: str) -> float:
    """What this API server counts of ours."""
    text = api.request("GET", "/metrics", accept="text/plain").body
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in (metric, f"{metric}_total") and labels.items() <= sample.labels.items()
    )


def test_the_api_server_counts_what_it_let_through_without_us(
    control_plane: ControlPlane, api: Api, make_namespace: MakeNamespace
) -> None:
    """What alerts are made of: its own counters, by the names of our webhooks."""
    make_namespace(name=GATED, labels=scene.LANE)

    def counted() -> tuple[float, float]:
        let_through = count(api, "apiserver_admission_webhook_fail_open_count", name="mutate.dra-gate.io")
        error = {"name": "validate.dra-gate.io", "error_type": "calling_webhook_error"}
        return let_through, count(api, "apiserver_admission_webhook_rejection_count", **error)

    with Gate(control_plane, POLICIES, controllers=0) as gate:
        before = counted()
        api.create(scene.pod("served"), GATED)
        assert counted() == before
        gate.stop()
        with pytest.raises(ApiError, match=r"failed calling webhook"):
            api.create(scene.pod("refused"), GATED)
        assert counted() == (before[0] + 1, before[1] + 1)
