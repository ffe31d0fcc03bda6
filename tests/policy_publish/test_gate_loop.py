"""The controller's loop over the Gate, on a small API server that can be made ill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.cluster.client import Client
from dra_gate.cluster.gate import GATE_PATH, GATES_PATH
from dra_gate.cluster.policy_map import MAPS_PATH, name_of
from dra_gate.controller import gate_plan, settling
from dra_gate.controller.gate import GateController
from dra_gate.controller.templates import TemplateController
from policy_publish.sets import gate, made, published
from policy_publish.test_source import eventually

A, B = made(1), made(2)
OWN = "/apis/resource.k8s.io/v1/namespaces/maple-a/resourceclaimtemplates"


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    api = FakeApi()
    api.put("/api/v1/namespaces", {"metadata": {"name": "maple-a"}, "status": {"phase": "Active"}})
    for version in (1, 2):
        api.put(MAPS_PATH, published(version))
    api.put(GATES_PATH, gate(A.digest, generation=1))
    yield api
    api.stop()


@contextmanager
def controlling(fake: FakeApi, tmp_path: Path, lead: list[bool] | None = None) -> Iterator[GateController]:
    leading = lead or [True]
    client = Client.connect(str(kubeconfig(tmp_path / f"config-{time.monotonic_ns()}", fake.url)))
    templates = TemplateController(client, identity="t", leading=lambda: leading[0])
    controller = GateController(client, templates, identity="t", leading=lambda: leading[0])
    templates.start()
    templates.activate()
    controller.start()
    try:
        yield controller
        assert controller.problems() == templates.problems() == []
    finally:
        controller.stop()
        templates.stop()
        client.close()
    assert controller.problems() != []


def stored(fake: FakeApi) -> dict[str, Any]:
    return fake.objects[GATE_PATH]


def activate(fake: FakeApi, digest: str) -> None:
    """By manifest: only what is active is said."""
    with fake.lock:
        old = stored(fake)
        metadata = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
        fake.put(GATES_PATH, {**old, "metadata": metadata, "spec": {**old["spec"], "active": digest}})


def history(fake: FakeApi) -> list[str]:
    return [entry["digest"] for entry in stored(fake).get("status", {}).get("history", [])]


def writes(fake: FakeApi) -> list[Request]:
    return [r for r in fake.requests if r.method == "PATCH"]


def ready(fake: FakeApi) -> str:
    conditions = stored(fake).get("status", {}).get("conditions", [])
    return next((c["reason"] for c in conditions if c["type"] == "Ready"), "")


def templates(fake: FakeApi, version: int) -> int:
    return sum(path.startswith(f"{OWN}/dra-gate-train-v{version}-") for path in list(fake.objects))  # it is written to


def test_activation_is_noted_and_then_all_is_quiet(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 1000.0)  # else the settled lane is written ten seconds from now
    with controlling(fake, tmp_path) as controller:
        eventually(lambda: history(fake) == [A.digest] and ready(fake) == "InUse")
        assert templates(fake, 1) == 8
        eventually(lambda: templates(fake, 2) == 8)  # published, not active: its templates are there before it is
        activate(fake, B.digest)
        eventually(lambda: history(fake) == [B.digest, A.digest])
        eventually(lambda: [entry["digest"] for entry in stored(fake)["spec"]["accepted"]] == [A.digest])
        assert stored(fake)["spec"]["accepted"][0]["since"]
        eventually(lambda: stored(fake)["status"]["observedGeneration"] == stored(fake)["metadata"]["generation"])
        time.sleep(2.5)  # what is still to be written may wait a second, and half one more for the next look
        before = len(writes(fake))
        time.sleep(1.5)
        assert len(writes(fake)) == before
        text = generate_latest(controller_registry(controller)).decode()
        assert f'dra_gate_policy_set_info{{digest="{B.digest}",state="active"}} 1.0' in text
        assert f'dra_gate_policy_set_info{{digest="{A.digest}",state="accepted"}} 1.0' in text


def controller_registry(controller: GateController) -> Any:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(controller)
    return registry


def test_accepted_ends_unless_pinned(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_plan, "ACCEPTED_SECONDS", 1.0)
    with controlling(fake, tmp_path):
        eventually(lambda: history(fake) == [A.digest])
        began = time.monotonic()  # before: it may be accepted for a while before that is seen here
        activate(fake, B.digest)
        eventually(lambda: stored(fake)["spec"]["accepted"] != [])
        eventually(lambda: stored(fake)["spec"]["accepted"] == [])
        assert time.monotonic() - began >= 1.0
        assert f"{MAPS_PATH}/{name_of(A.digest)}" in fake.objects  # a rollback needs it
        assert templates(fake, 1) == 8


def test_who_does_not_lead_writes_nothing(fake: FakeApi, tmp_path: Path) -> None:
    lead = [False]
    with controlling(fake, tmp_path, lead) as controller:
        eventually(lambda: controller.source.synced)
        time.sleep(1.0)
        assert writes(fake) == []
        lead[0] = True
        controller.wake()
        eventually(lambda: history(fake) == [A.digest])


def test_two_at_once_agree(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path), controlling(fake, tmp_path):
        for digest in (B.digest, A.digest, B.digest):
            activate(fake, digest)
            eventually(lambda d=digest: history(fake)[:1] == [d])
        assert [a for a, b in zip(history(fake), history(fake)[1:], strict=False) if a == b] == []


def test_somebody_writes_in_between(fake: FakeApi, tmp_path: Path) -> None:
    raced: list[str] = []

    def fault(request: Request) -> Answer | None:
        if request.method == "PATCH" and not raced:
            raced.append(request.path)
            activate(fake, B.digest)  # what the controller is about to write was decided on an older Gate
        return None

    fake.fault = fault
    with controlling(fake, tmp_path):
        eventually(lambda: history(fake) == [B.digest])  # A was never seen to be in use after that
        assert raced


def test_api_server_ill(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path):
        eventually(lambda: history(fake) == [A.digest])
        fake.fault = lambda r: (503, status(503, "ServiceUnavailable"), {}) if r.method == "PATCH" else None
        fake.requests.clear()
        activate(fake, B.digest)
        time.sleep(2.0)
        assert len(writes(fake)) < 8  # each failure waits longer
        fake.fault = None
        eventually(lambda: history(fake) == [B.digest, A.digest])


def test_unusable_then_mended(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path) as controller:
        eventually(lambda: history(fake) == [A.digest] and B in controller.source.prepared)
        fake.remove(f"{MAPS_PATH}/{name_of(B.digest)}")
        eventually(lambda: B not in controller.source.prepared)  # else it would be active for a moment
        activate(fake, B.digest)
        eventually(lambda: ready(fake) == "SetUnusable")
        assert history(fake) == [A.digest]
        fake.put(MAPS_PATH, published(2))
        eventually(lambda: history(fake) == [B.digest, A.digest])
        eventually(lambda: ready(fake) == "InUse")


def test_no_gate_collects_nothing(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path):
        eventually(lambda: templates(fake, 1) == 8)
    fake.remove(GATE_PATH)
    with controlling(fake, tmp_path) as controller:
        eventually(lambda: controller.source.synced)
        controller._templates._grace = 0.1
        time.sleep(1.0)
        assert templates(fake, 1) == 8
        assert [r for r in fake.requests if r.method == "DELETE"] == []


def test_the_backstop_is_told_of_labels_that_are_settled(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 1.5)

    def label(**labels: str) -> None:
        metadata = {"name": "maple-a", "labels": {f"dra-gate.io/{key}": value for key, value in labels.items()}}
        fake.put("/api/v1/namespaces", {"metadata": metadata, "status": {"phase": "Active"}})

    def told() -> list[str]:
        found: list[str] = stored(fake).get("status", {}).get("backstop", {}).get("namespaces", [])
        return found

    label(lane="dra")
    with controlling(fake, tmp_path):
        eventually(lambda: told() == ["maple-a/dra/enforce/dra"])
        label(lane="dra", mode="warn")
        eventually(lambda: told() == [])
        began = time.monotonic()
        label(lane="dra")
        eventually(lambda: told() == ["maple-a/dra/enforce/dra"])
        assert time.monotonic() - began >= 1.5
        fake.remove("/api/v1/namespaces/maple-a")
        eventually(lambda: told() == [])
    label(lane="dra")
    with controlling(fake, tmp_path):
        eventually(lambda: told() == ["maple-a/dra/enforce/dra"])
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 1000.0)

    def late(request: Request) -> Answer | None:
        if request.path == "/api/v1/namespaces":
            time.sleep(1.5)
        return None

    fake.fault = late
    with controlling(fake, tmp_path):  # the next one goes on from what was told, also before it knows any namespace
        time.sleep(4.0)
        assert told() == ["maple-a/dra/enforce/dra"]
