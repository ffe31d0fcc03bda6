"""The loop that looks at what the gate stands on, on a small API server that can be made ill."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cluster.conftest import kubeconfig
from cluster.fake_api import FakeApi, status
from dra_gate.admission.footing import wanted
from dra_gate.cluster.client import Client
from dra_gate.controller.footing import _PLURALS, FootingController
from dra_gate.policy.model import Settings

API = "/apis/admissionregistration.k8s.io/v1"
OURS = f"{API}/validatingwebhookconfigurations"
GATE = "zz-dra-gate-guard-gate"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


class Watched:
    """The loop's one round, by hand."""

    def __init__(self, api: FakeApi, client: Client) -> None:
        self.api = api
        self.leading = True
        self.settings: list[Settings] | None = [Settings()]
        self.footing = FootingController(
            client, lambda: self.settings, with_backstop=True, called=(), identity="t", leading=lambda: self.leading
        )
        self.registry = CollectorRegistry()
        self.registry.register(self.footing)

    def look(self) -> dict[str, float]:
        """Looks, and gives the samples as they are served then."""
        self.footing.look()
        lines = generate_latest(self.registry).decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def events(self) -> list[str]:
        return [event["note"] for path, event in self.api.objects.items() if path.startswith(f"{EVENTS}/")]


def intact(kind: str, name: str) -> str:
    return f'dra_gate_footing_intact{{kind="{kind}",name="{name}"}}'


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    api = FakeApi()
    for one in wanted([Settings()], with_backstop=True):
        api.put(f"{API}/{_PLURALS[one.kind]}", copy.deepcopy(one.forms[0]))
    client = Client.connect(str(kubeconfig(tmp_path / "config", api.url)))
    yield Watched(api, client)
    client.close()
    api.stop()


def edit(watched: Watched, **fields: Any) -> None:
    stored = copy.deepcopy(watched.api.objects[f"{OURS}/zz-dra-gate"])
    stored["webhooks"][0] |= fields
    watched.api.put(OURS, stored)


def test_all_is_well(watched: Watched) -> None:
    seen = watched.look()
    assert len([name for name, value in seen.items() if name.startswith("dra_gate_footing_intact") and value]) == 16
    assert watched.events() == []


def test_what_is_missing_and_what_is_altered_is_told_once_and_shown_until_it_is_right(watched: Watched) -> None:
    stored = watched.api.objects[f"{API}/validatingadmissionpolicies/{GATE}"]
    watched.api.remove(f"{API}/validatingadmissionpolicies/{GATE}")
    edit(watched, failurePolicy="Ignore")
    for _ in range(3):
        seen = watched.look()
        assert seen[intact("ValidatingAdmissionPolicy", GATE)] == 0
        assert seen[intact("ValidatingAdmissionPolicyBinding", GATE)] == 1
        assert seen[intact("ValidatingWebhookConfiguration", "zz-dra-gate")] == 0
    said = watched.events()
    assert len(said) == 2
    assert "webhooks[validate.dra-gate.io].failurePolicy" in said[0]
    assert f"ValidatingAdmissionPolicy {GATE} is missing" in said[1]
    edit(watched, failurePolicy="Ignore", timeoutSeconds=9)
    watched.look()
    assert "timeoutSeconds" in watched.events()[2], "another difference is told as well"
    edit(watched, failurePolicy="Fail", timeoutSeconds=3)
    watched.api.put(f"{API}/validatingadmissionpolicies", stored)
    seen = watched.look()
    assert all(value for name, value in seen.items() if name.startswith("dra_gate_footing_intact"))
    assert len(watched.events()) == 3


def test_what_cannot_be_read_is_neither_right_nor_wrong(watched: Watched) -> None:
    watched.look()
    watched.api.fault = lambda r: (403, status(403, "Forbidden"), {}) if r.path.endswith(GATE) else None
    seen = watched.look()
    assert intact("ValidatingAdmissionPolicy", GATE) not in seen
    assert seen[intact("ValidatingWebhookConfiguration", "zz-dra-gate")] == 1
    assert seen["dra_gate_footing_failures_total"] == 2
    assert watched.events() == []


def test_what_was_told_is_not_told_again_after_a_look_that_failed(watched: Watched) -> None:
    watched.api.remove(f"{OURS}/zz-dra-gate")
    watched.look()
    for _ in range(3):
        watched.api.fault = lambda r: (500, status(500, "InternalError"), {}) if r.path.startswith(OURS) else None
        watched.look()
        watched.api.fault = None
        assert watched.look()[intact("ValidatingWebhookConfiguration", "zz-dra-gate")] == 0
    assert len(watched.events()) == 1


def test_who_does_not_lead_says_nothing(watched: Watched) -> None:
    watched.look()
    watched.leading = False
    assert not [name for name in watched.look() if name.startswith("dra_gate_footing_intact")]


def test_before_the_policy_sets_are_known_nothing_is_looked_at(watched: Watched) -> None:
    watched.settings = None
    watched.api.remove(f"{OURS}/zz-dra-gate")
    assert not [name for name in watched.look() if name.startswith("dra_gate_footing_intact")]
    assert watched.events() == []
