"""docs/install.md, command by command, from an empty control plane to a changed certificate and away again."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator

import pytest
from cryptography import x509

from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from deploy.doc import NOT_RUN, Shell, sections
from deploy.kubectl import DEPLOY
from deploy.played_pods import PlayedPods
from e2e import scene

pytestmark = pytest.mark.controlplane
ROOT = DEPLOY.parent
DOC = ROOT / "docs" / "install.md"


@pytest.fixture(scope="module")
def shell(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in a copy of what the document uses, on a control plane with devices and nothing of the gate."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("deploy", "policies"):
        shutil.copytree(ROOT / name, folder / name)
    fleet = Fleet.load("demo")
    fleet.install(plane.api())
    with PlayedPods(plane):
        yield Shell(folder, plane)
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        plane.api().delete(kind, "zz-dra-gate", missing_ok=True)
    holding = {claim["metadata"]["namespace"] for claim in plane.api().list("resourceclaims")}
    scene.clear(plane.api(), *holding)  # the next fleet has devices of the same names
    fleet.remove(plane.api())


STEPS = sections(DOC)


def test_the_document_has_the_steps_that_follow() -> None:
    assert [title for title, commands in STEPS.items() if commands] == list(CHECKS)


@pytest.mark.parametrize("title", [title for title, commands in STEPS.items() if commands])
def test_step(title: str, shell: Shell) -> None:
    """In order, each building on the one before."""
    for command in STEPS[title]:
        if not any(command.startswith(start) for start in NOT_RUN):
            shell.run(command)
    CHECKS[title](shell)


def nothing(shell: Shell) -> None:
    assert "dra-gate, version" in shell.output


def installed(shell: Shell) -> None:
    assert {secret["metadata"]["name"] for secret in shell.api.list("secrets", "dra-gate")} >= {
        "dra-gate-ca",
        "dra-gate-tls",
    }
    hooks = shell.api.get("validatingwebhookconfigurations", "zz-dra-gate")["webhooks"]
    wait_for(lambda: all("caBundle" in h["clientConfig"] for h in hooks_now(shell.api)), 15, "the caBundle")
    assert len(hooks) == 3


def hooks_now(api: Api) -> list[dict]:  # type: ignore[type-arg]
    return api.get("validatingwebhookconfigurations", "zz-dra-gate")["webhooks"]


def published(shell: Shell) -> None:
    assert re.search(r"default +[0-9a-f]{64} +True", shell.output), shell.output


def gated(shell: Shell) -> None:
    labels = shell.api.get("namespaces", "research-train")["metadata"]["labels"]
    assert labels["dra-gate.io/lane"] == "dra"
    assert "dra-gate.io/mode" not in labels


def first_pod(shell: Shell) -> None:
    pod = shell.api.get("pods", "first", "research-train")
    assert pod["metadata"]["annotations"]["dra-gate.io/policy"] == "training"
    assert "nvidia.com/gpu" not in str(pod["spec"]["containers"])
    assert pod["spec"]["nodeName"] == "hopper"
    (claim,) = shell.api.list("resourceclaims", "research-train")
    assert claim["status"]["allocation"]["devices"]["results"][0]["request"] == "gpu/h100"
    assert "FOREIGN_CLAIM" in shell.output
    assert "research" in shell.output


def certificate_changed(shell: Shell) -> None:
    *_, how_many = STEPS["6. Change the certificate"]
    # The controller puts a CA into the configurations a moment after it has stored it.
    wait_for(lambda: shell.run(how_many).strip().endswith("2"), 15, "old and new CA", every=0.5)

    def serving() -> bool:
        data = shell.api.get("secrets", "dra-gate-tls", "dra-gate")["data"]
        new = x509.load_pem_x509_certificates(
            base64.b64decode(shell.api.get("secrets", "dra-gate-ca", "dra-gate")["data"]["ca.crt"])
        )[0]
        try:
            x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"])).verify_directly_issued_by(new)
        except Exception:  # noqa: BLE001 - signed by the old one
            return False
        return True

    wait_for(serving, 60, "a certificate of the new CA", every=0.5)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "later"},
        "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    made = shell.api.create(pod, "research-train")
    assert made["metadata"]["annotations"]["dra-gate.io/policy"] == "training"


def gone(shell: Shell) -> None:
    wait_for(lambda: shell.api.find("namespaces", "dra-gate") is None, 30, "the gate's namespace to go")
    assert shell.api.find("validatingwebhookconfigurations", "zz-dra-gate") is None
    assert shell.api.find("clusterroles", "dra-gate-controller") is None


CHECKS = {
    "1. The command and the image": nothing,
    "2. What runs in the cluster": installed,
    "3. Policies": published,
    "4. A namespace, watched first": gated,
    "5. The first gated Pod": first_pod,
    "6. Change the certificate": certificate_changed,
    "Take it away": gone,
}
