"""The Pod's service account as a way to the API server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import urllib3
import yaml

from controlplane.control_plane import GATE_WEBHOOK, ControlPlane
from dra_gate.cluster.client import ApiError, Client
from dra_gate.cluster.service_account import ServiceAccount, given

ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_text("a certificate")
    return tmp_path


def test_a_token_that_is_replaced_is_sent(folder: Path) -> None:
    account = ServiceAccount(folder=folder, environ=ENVIRON)
    assert account.headers() == {"authorization": "Bearer one"}
    (folder / "token").write_text("two")
    assert account.headers() == {"authorization": "Bearer two"}


def test_hosts(folder: Path) -> None:
    assert ServiceAccount(folder=folder, environ=ENVIRON).host == "https://10.0.0.1:443"
    six = {**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert ServiceAccount(folder=folder, environ=six).host == "https://[fd00::1]:443"


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_file_that_is_missing_or_empty(folder: Path, name: str) -> None:
    (folder / name).write_text(" \n")
    with pytest.raises(ValueError, match=f"{name} is empty"):
        ServiceAccount(folder=folder, environ=ENVIRON)
    (folder / name).unlink()
    with pytest.raises(OSError, match=name):
        ServiceAccount(folder=folder, environ=ENVIRON)


def test_given() -> None:
    assert given(ENVIRON)
    assert not given({})
    assert not given({**ENVIRON, "HTTPS_PROXY": "http://proxy:3128"})


def test_the_package_is_not_imported() -> None:
    code = "import sys, dra_gate.cluster.service_account; sys.exit('kubernetes' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.controlplane
def test_a_client_in_a_pod_without_the_package(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a Pod: no kubeconfig, a token, a CA and two variables. The token is replaced as the kubelet does it."""
    config = yaml.safe_load(control_plane.kubeconfig_for(GATE_WEBHOOK).read_text())
    (tmp_path / "token").write_text("no token")
    (tmp_path / "ca.crt").write_bytes(control_plane.ca_file.read_bytes())
    url = urllib3.util.parse_url(control_plane.url)
    monkeypatch.setattr("dra_gate.cluster.service_account.FOLDER", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(url.host))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))
    client = Client.connect()
    with pytest.raises(ApiError) as stranger:
        client.get("/api/v1/namespaces")
    assert stranger.value.status == 401
    (tmp_path / "token").write_text(config["users"][0]["user"]["token"])
    who = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", who)
    assert answer["status"]["userInfo"]["username"] == GATE_WEBHOOK.name
