"""The controller notices on the real API server what happens to the webhook configurations and the policies."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from controlplane.api import JSON_PATCH, Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.gate import Gate
from controlplane.processes import free_port
from deploy.kubectl import DEPLOY
from dra_gate.admission import backstop, guards
from dra_gate.admission.footing import MISSING, Wanted, wanted
from dra_gate.controller.footing import LOOK_SECONDS
from dra_gate.policy.model import Settings

pytestmark = pytest.mark.controlplane
POLICIES = DEPLOY.parent / "tests" / "controlplane_test" / "policies"
SECONDS = LOOK_SECONDS + 15
OURS = "zz-dra-gate"


class Watched:
    """A gate whose controller is asked for its metrics, with all that it stands on in place."""

    def __init__(self, gate: Gate, port: int) -> None:
        self.gate = gate
        self.api: Api = gate.plane.api()
        self._port = port

    def lost(self) -> set[tuple[str, str]]:
        """Kind and name of what is missing or altered, as the metrics say."""
        found = self._samples()
        return {key for key, value in found.items() if not value}

    def seen(self) -> int:
        return len(self._samples())

    def _samples(self) -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        rows = [line for line in lines if line.startswith("dra_gate_footing_intact{")]
        return {
            (row.split('kind="')[1].split('"')[0], row.split('name="')[1].split('"')[0]): float(row.split()[-1])
            for row in rows
        }

    def notices(self, *lost: tuple[str, str]) -> None:
        began = time.monotonic()
        wait_for(lambda: self.lost() == set(lost), SECONDS, f"{lost} to be noticed; log: {self.gate.log()}", every=0.1)
        print(f"noticed after {time.monotonic() - began:.1f} s")

    def told(self, kind: str, name: str, words: str) -> bool:
        """An Event says so of that object, and the log does."""
        events = self.api.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events").body["items"]
        ours = [one for one in events if one["reason"] == "FootingLost" and one["regarding"]["name"] == name]
        said = any(one["regarding"]["kind"] == kind and words in one["note"] for one in ours)
        return said and any(kind in line and words in line for line in self.gate.log().read_text().splitlines())


@pytest.fixture(scope="module")
def watched(control_plane: ControlPlane) -> Iterator[Watched]:
    api, port = control_plane.api(), free_port()
    flags = ("--backstop", "--metrics-listen", f"127.0.0.1:{port}")
    with Gate(control_plane, POLICIES, published=True, controller_flags=flags) as gate:
        policies = [*guards.manifests(), *backstop.manifests()]
        for manifest in policies:
            api.apply(manifest)
        made = Watched(gate, port)
        wait_for(lambda: made.seen() == 2 + len(policies), SECONDS, "everything to be looked at")
        made.notices()
        yield made
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        api.delete_all(kind, labels="app.kubernetes.io/part-of=dra-gate")
    api.delete_all("gates")
    api.delete_all("configmaps", "dra-gate", labels="dra-gate.io/policy-set=true")


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_a_configuration_is_deleted(kind: str, watched: Watched) -> None:
    watched.api.delete(f"{kind.lower()}s", OURS)
    watched.notices((kind, OURS))
    wait_for(lambda: watched.told(kind, OURS, "is missing"), 5, "the Event and the log")
    watched.gate.register()
    watched.notices()


def test_a_failure_policy_is_changed(watched: Watched) -> None:
    kind = "ValidatingWebhookConfiguration"
    patch = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
    watched.api.patch("validatingwebhookconfigurations", OURS, patch, content_type=JSON_PATCH)
    watched.notices((kind, OURS))
    wait_for(lambda: watched.told(kind, OURS, "webhooks[validate.dra-gate.io].failurePolicy"), 5, "the Event")
    patch[0]["value"] = "Fail"
    watched.api.patch("validatingwebhookconfigurations", OURS, patch, content_type=JSON_PATCH)
    watched.notices()


@pytest.mark.parametrize("name", [f"{OURS}-guard-labels", backstop.BACKSTOP])
def test_a_policy_is_deleted_or_only_audits(name: str, watched: Watched) -> None:
    manifests = {
        one["kind"]: one for one in (*guards.manifests(), *backstop.manifests()) if one["metadata"]["name"] == name
    }
    watched.api.delete("validatingadmissionpolicies", name)
    watched.api.patch("validatingadmissionpolicybindings", name, {"spec": {"validationActions": ["Audit"]}})
    watched.notices(("ValidatingAdmissionPolicy", name), ("ValidatingAdmissionPolicyBinding", name))
    wait_for(lambda: watched.told("ValidatingAdmissionPolicy", name, "is missing"), 5, "the Event")
    wait_for(lambda: watched.told("ValidatingAdmissionPolicyBinding", name, "validationActions"), 5, "the Event")
    for manifest in manifests.values():
        watched.api.apply(manifest)
    watched.notices()


def test_what_the_manifests_make_is_as_it_has_to_be(watched: Watched) -> None:
    """The committed configurations, by Service, with what the API server adds to them."""
    expected: dict[tuple[str, str], Wanted] = {
        (one.kind, one.name): one for one in wanted([Settings()], with_backstop=True)
    }
    for document in yaml.safe_load_all((DEPLOY / "base" / "webhook-configurations.yaml").read_text()):
        one = expected[document["kind"], document["metadata"]["name"]]
        stored: dict[str, Any] = watched.api.create(document | {"metadata": {"name": "as-committed"}}, dry_run=True)
        assert one.differences(stored, {"dra-gate-webhook.dra-gate.svc"}) == ()
        assert one.differences(stored, {"other.svc"}) != (MISSING,)
        assert one.differences(stored, {"other.svc"})
