"""A control plane of these tests' own, closer to a stock one: service accounts are looked at, and reads are audited."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from controlplane.control_plane import AUDIT_POLICY, GATE_CONTROLLER, GATE_WEBHOOK, ControlPlane
from deploy.kubectl import Kubectl


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The audit log also has every read of the gate's two accounts."""
    every = {"level": "Metadata", "users": [GATE_WEBHOOK.name, GATE_CONTROLLER.name]}
    policy = tmp_path_factory.mktemp("audit") / "policy.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY | {"rules": [every, *AUDIT_POLICY["rules"]]}))
    flags = [f"--audit-policy-file={policy}"]
    running = ControlPlane(disable_admission=(), api_server_flags=flags)
    running.start_all()
    try:
        running.wait_for_default_roles()
        yield running
    finally:
        running.close(keep=request.session.testsfailed > 0)


@pytest.fixture
def kubectl(plane: ControlPlane) -> Kubectl:
    """kubectl as cluster admin."""
    return Kubectl(plane.kubectl, plane.kubeconfig_for())
