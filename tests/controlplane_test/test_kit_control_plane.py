"""The control plane is a real one: TLS, RBAC, audit, tokens; components can be taken away and come back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from controlplane.api import Api, ApiError, wait_for
from controlplane.authority import Authority
from controlplane.build import Versions
from controlplane.control_plane import (
    ADMIN,
    API_SERVER,
    COMPONENTS,
    CONTROLLER_MANAGER,
    GATE_CONTROLLER,
    SCHEDULER,
    TENANT,
    ControlPlane,
)  # fmt: skip
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.rate import plain_template, template_pod

pytestmark = pytest.mark.controlplane


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_it_is_the_version_it_says(control_plane: ControlPlane, api: Api) -> None:
    assert api.request("GET", "/version").body["gitVersion"] == f"v{Versions.wanted().kubernetes}"
    assert set(COMPONENTS) <= {name for name, code in control_plane.processes.codes().items() if code is None}


def test_who_may_do_what(control_plane: ControlPlane, api: Api, namespace: str, tmp_path: Path) -> None:
    with pytest.raises(ApiError) as refused:
        control_plane.api(TENANT).list("pods", namespace)
    assert refused.value.status == 403
    assert f'User "{TENANT.name}" cannot list resource "pods"' in refused.value.message
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    stored = control_plane.api(GATE_CONTROLLER).create(review)
    assert stored["status"]["userInfo"]["username"] == "system:serviceaccount:dra-gate:dra-gate-controller"
    assert "system:serviceaccounts:dra-gate" in stored["status"]["userInfo"]["groups"]
    stranger = Api(control_plane.url, control_plane.ca_file, "a-token-nobody-has")
    with pytest.raises(ApiError) as unknown:
        stranger.list("namespaces")
    assert unknown.value.status == 401
    impostor = Authority(tmp_path)
    with pytest.raises(ApiError) as unverified:
        Api(control_plane.url, impostor.certificate, "x").request("GET", "/version")
    assert unverified.value.status == 0
    assert "CERTIFICATE_VERIFY_FAILED" in unverified.value.message


def test_kubectl_works_with_the_kubeconfigs(control_plane: ControlPlane) -> None:
    def kubectl(user: str) -> subprocess.CompletedProcess[str]:
        command = [str(control_plane.kubectl), "--kubeconfig", str(control_plane.kubeconfig_for(user)), "get", "nodes"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert kubectl(ADMIN.name).returncode == 0
    assert "Forbidden" in kubectl(TENANT.name).stderr
    assert control_plane.kubeconfig_for().stat().st_mode & 0o077 == 0


def test_writes_are_audited_with_their_bodies(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    api.create(config_map("seen", colour="lilac"), namespace)
    api.get("configmaps", "seen", namespace)
    events = [e for e in control_plane.audit_events() if e["objectRef"].get("namespace") == namespace]
    ours = [e for e in events if e["objectRef"]["resource"] == "configmaps" and e["user"]["username"] == ADMIN.name]
    assert [event["verb"] for event in ours] == ["create"]
    assert ours[0]["requestObject"]["data"] == {"colour": "lilac"}
    assert ours[0]["responseObject"]["metadata"]["uid"]


def test_the_client_says_what_the_server_said(api: Api, namespace: str) -> None:
    with pytest.raises(ApiError) as invalid:
        api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": []}}, namespace
        )
    assert (invalid.value.status, invalid.value.reason) == (422, "Invalid")
    assert [cause["field"] for cause in invalid.value.causes] == ["spec.containers"]
    assert api.find("pods", "x", namespace) is None
    with pytest.raises(KeyError, match="serves no unicorns"):
        api.list("unicorns")
    warned = api.create_answer(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [
            {"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}},
        namespace, dry_run=True,
    )  # fmt: skip
    assert any("hides previous definition" in warning for warning in warned.warnings)
    assert api.find("pods", "x", namespace) is None  # a dry run
    applied = api.apply(config_map("c", a="1"), namespace)
    assert api.apply(config_map("c", b="2"), namespace)["metadata"]["uid"] == applied["metadata"]["uid"]
    assert api.get("configmaps", "c", namespace)["data"] == {"b": "2"}  # apply owns what it wrote before
    with pytest.raises(TimeoutError, match="configmaps nope; status: it doesn't exist"):
        api.wait("configmaps", "nope", namespace, bool, timeout=0.1)


def test_an_api_server_that_was_killed_comes_back(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    api.create(config_map("kept", a="1"), namespace)
    control_plane.stop(API_SERVER)
    with pytest.raises(ApiError) as away:
        api.list("namespaces")
    assert away.value.status == 0
    control_plane.start(API_SERVER)
    assert api.get("configmaps", "kept", namespace)["data"] == {"a": "1"}


def test_scheduler_and_controller_manager_can_be_away(
    control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, make_namespace: MakeNamespace
) -> None:
    install_fleet("demo")
    namespace = make_namespace()
    api.create(plain_template("plain"), namespace)
    control_plane.stop(CONTROLLER_MANAGER)
    control_plane.stop(SCHEDULER, kill=False)
    api.create(template_pod("p", "plain"), namespace)
    with pytest.raises(TimeoutError):
        wait_for(lambda: api.list("resourceclaims", namespace), 1, "a claim that nobody makes")
    control_plane.start(CONTROLLER_MANAGER)
    wait_for(lambda: api.list("resourceclaims", namespace), 30, "the claim")
    assert "nodeName" not in api.get("pods", "p", namespace)["spec"]
    control_plane.start(SCHEDULER)
    api.wait("pods", "p", namespace, lambda pod: "nodeName" in pod["spec"], 30)


def test_the_scheduler_takes_its_configuration(control_plane: ControlPlane) -> None:
    def running() -> dict[str, object]:
        client = control_plane.component(SCHEDULER)
        try:
            found: dict[str, object] = client.request("GET", "/configz").body["componentconfig"]
            return found
        finally:
            client.close()

    assert running()["percentageOfNodesToScore"] == 0
    try:
        control_plane.configure_scheduler(percentageOfNodesToScore=100)
        assert running()["percentageOfNodesToScore"] == 100
        assert running()["clientConnection"]["qps"] == 1000  # type: ignore[index]
    finally:
        control_plane.configure_scheduler(percentageOfNodesToScore=None)
    assert running()["percentageOfNodesToScore"] == 0
