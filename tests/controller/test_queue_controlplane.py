"""Who waits, as the controller shows it, as `dra-gate queue` reads it from the cluster, and as the log tells it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocation import fleet as small
from controller.held_pods import held_pod, looping, tenant_set, until
from controller.test_arbiter_controlplane import kubeconfig, namespace  # noqa: F401 - fixtures
from controlplane.api import Api
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from dra_gate.cli.main import root
from dra_gate.cluster.line_log import LineLog

pytestmark = pytest.mark.controlplane


def _told(*args: object) -> tuple[dict[str, Any], list[str]]:
    done = CliRunner().invoke(root, ["queue", "t-queue", *map(str, args), "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (tenant,) = found["tenants"]
    for pod in tenant["waiting"]:
        for name in ("waited", "estimate"):  # the one who asks later is told more, and not all have a history
            del pod[name]
    del tenant["oldest"]
    return tenant, found["notes"]


def test_all_three_tell_the_same(
    control_plane: ControlPlane,
    api: Api,
    namespace: str,  # noqa: F811
    kubeconfig: Path,  # noqa: F811
    install_fleet: InstallFleet,
    tmp_path: Path,
) -> None:
    install_fleet("demo")
    spec = {"weight": 1, "quota": {"devices": 3}}
    policies = tenant_set("t-queue", namespace, **spec)
    for name in ("a", "b", "d"):
        api.create(held_pod(name, policies, "t-queue"), namespace)
    time.sleep(1.1)  # creationTimestamps have whole seconds: the last one is the youngest
    api.create(held_pod("c", policies, "t-queue", 1, 1), namespace)
    folder = tmp_path / "policies"
    folder.mkdir()
    tenant = {"policy": "train@1", "namespaces": [namespace], **spec}
    documents = [*small.documents(), {"apiVersion": "policy.dra-gate.io/v1alpha1", "kind": "Tenant",
                                      "metadata": {"name": "t-queue"}, "spec": tenant}]  # fmt: skip
    for number, document in enumerate(documents):
        (folder / f"{number}.yaml").write_text(json.dumps(document))
    log = LineLog(tmp_path / "log", 1 << 24, "arbiter", by_hand=True)
    with looping(kubeconfig, policies, log) as loop:
        assert not loop.arbiter.queue().known or loop.arbiter.queue().models
        until(lambda: [pod for pod in api.list("pods", namespace) if "nodeName" in pod["spec"]][2:], "three to go", 30)
        until(lambda: not any(one.grants for one in loop.arbiter.queue().tenants), "all to be allocated", 20)
        shown = next(one for one in loop.arbiter.queue().tenants if one.name == "t-queue")
        live, notes = _told("--kubeconfig", control_plane.kubeconfig_for(), "--policies", folder)
    assert (shown.held, shown.pods, shown.devices_waiting, shown.quota) == (3, 1, 2, 3)
    (waits,) = shown.waiting
    assert (waits.pod, waits.reason, waits.devices) == (f"{namespace}/c", "Quota", 2)
    assert notes == []
    logged, _ = _told("--log", tmp_path / "log")
    assert live["waiting"][0] == logged["waiting"][0]
    assert live["waiting"][0]["uid"] == waits.uid
    assert live == logged
    done = CliRunner().invoke(root, ["replay", str(tmp_path / "log"), "--check"])
    assert done.exit_code == 0, done.output
