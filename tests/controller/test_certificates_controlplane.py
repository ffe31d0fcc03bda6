"""The gate's own certificates on the real API server: short lives under continuous creates, damage, failed renewal."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.background import Background
from controlplane.control_plane import GATE_CONTROLLER, ControlPlane
from controlplane.gate import Gate
from dra_gate.cluster.client import Client
from dra_gate.controller.certificate_plan import Settings
from dra_gate.controller.certificates import CertificateController

pytestmark = pytest.mark.controlplane
ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "tests" / "controlplane_test" / "policies"
GATED = "kit-gate"  # the namespace that those policies name
RIGHTS = ROOT / "deploy" / "components" / "own-certificates" / "rbac.yaml"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "p-"},
    "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


def secret(api: Api, name: str) -> dict[str, bytes]:
    data = api.get("secrets", name, "dra-gate").get("data", {})
    return {key: base64.b64decode(value) for key, value in data.items()}


def bundles(api: Api) -> list[bytes]:
    """The caBundle of every webhook of ours."""
    found = [api.get(kind, "zz-dra-gate") for kind in KINDS]
    return [base64.b64decode(hook["clientConfig"].get("caBundle", "")) for one in found for hook in one["webhooks"]]


class SecretVolume(Background):
    """Plays kubelet: brings Secret dra-gate-tls into the folder that the replicas read, some time after it changed."""

    def __init__(self, api: Api, folder: Path) -> None:
        super().__init__(self._bring, 1.0)
        self._api = api
        self._folder = folder

    def _bring(self) -> None:
        data = secret(self._api, "dra-gate-tls")  # deleted: what was mounted stays
        for name in ("tls.key", "tls.crt"):
            if (self._folder / name).read_bytes() != data[name]:
                beside = self._folder / f".{name}"
                beside.write_bytes(data[name])
                beside.replace(self._folder / name)


class Calls:
    """Creates device Pods and opens TLS connections as API servers would, all the time; counts what fails."""

    def __init__(self, api: Api, ports: list[int]) -> None:
        self._api = api
        self._ports = ports
        self._stop = threading.Event()
        self.created = self.handshakes = 0
        self.failed: list[str] = []
        self.leaves: set[bytes] = set()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._create, self._connect)]

    def __enter__(self) -> Calls:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _create(self) -> None:
        while not self._stop.wait(0.1):
            try:
                pod = self._api.create(POD, GATED)
            except ApiError as error:
                self.failed.append(f"create: {error}")
                continue
            self.created += 1
            if "dra-gate.io/policy" not in pod["metadata"].get("annotations", {}):
                self.failed.append(f"no stamp: {pod['metadata']}")

    def _connect(self) -> None:
        """A new connection every time: kube-apiserver's live for minutes and hardly ever look at a certificate."""
        lagging = bundles(self._api)
        while not self._stop.wait(0.1):
            now = bundles(self._api)
            for bundle in {*lagging, *now}:
                context = ssl.create_default_context(cadata=bundle.decode())
                for port in self._ports:
                    try:
                        with (
                            socket.create_connection(("127.0.0.1", port), 5) as raw,
                            context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
                        ):
                            self.leaves.add(tls.getpeercert(binary_form=True) or b"")
                            self.handshakes += 1
                    except OSError as error:
                        self.failed.append(f"handshake: {error}")
            lagging = now


@pytest.fixture
def gate(control_plane: ControlPlane, api: Api, make_namespace: Callable[..., str]) -> Iterator[Gate]:
    """Two replicas that serve a certificate which somebody else brought, and no controller yet."""
    make_namespace(name=GATED, labels={"dra-gate.io/lane": "dra"})
    lives = ("--ca-life", "45s", "--certificate-life", "15s")
    flags = ("--own-certificates", "--url-host", "127.0.0.1", *lives)
    with Gate(control_plane, POLICIES, replicas=2, controllers=0, controller_flags=flags) as installed:
        api.apply_yaml(RIGHTS.read_text())
        brought = {key: (installed.folder / key).read_bytes() for key in ("tls.crt", "tls.key", "ca.crt")}
        api.apply(tls_secret(brought))
        yield installed
    for name in ("dra-gate-ca", "dra-gate-tls"):
        api.delete("secrets", name, "dra-gate", missing_ok=True)


def tls_secret(data: dict[str, bytes]) -> Object:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata = {"name": "dra-gate-tls", "namespace": "dra-gate"}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": encoded}


def test_no_create_fails_while_certificates_and_cas_come_and_go(gate: Gate, api: Api) -> None:
    """From a brought certificate to ours, then a life of 45 s for CAs and 15 s for certificates; two CA changes."""
    ports = [int(gate.replica_url(name).rpartition(":")[2]) for name in gate.replicas]
    authorities: set[bytes] = set()
    with SecretVolume(api, gate.folder), Calls(api, ports) as calls:
        time.sleep(1)
        gate.start_controller()
        ends = time.monotonic() + 72
        while time.monotonic() < ends:
            time.sleep(0.5)
            with contextlib.suppress(ApiError):
                authorities.add(secret(api, "dra-gate-ca")["ca.key"])
            assert not calls.failed, calls.failed[:3]
    print(f"\n{calls.created} creates, {calls.handshakes} handshakes, {len(calls.leaves)} certificates")
    assert not calls.failed, calls.failed[:3]
    assert calls.created > 200
    assert len(authorities) == 3  # at 0, 30 and 60 s
    assert len(calls.leaves) >= 6  # the brought one, and one every 10 s
    trusted = x509.load_pem_x509_certificates(bundles(api)[0])
    (brought,) = x509.load_pem_x509_certificates(gate.ca_file.read_bytes())
    assert trusted[-1] == brought, "its certificate lives for a year, so it may be served"
    assert len(trusted) <= 3, "our own CAs go when what they signed has ended"


# -- in this process: damage, and a renewal that fails ----------------------------------------------------------------


@pytest.fixture
def client(control_plane: ControlPlane, api: Api) -> Iterator[Client]:
    """The controller's account with the shipped rights; configurations as `dra-gate webhooks` prints them, no CA."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-gate"}})
    api.apply_yaml((ROOT / "deploy" / "base" / "rbac.yaml").read_text())
    api.apply_yaml(RIGHTS.read_text())
    api.apply_yaml((ROOT / "deploy" / "base" / "webhook-configurations.yaml").read_text())
    yield Client.connect(str(control_plane.kubeconfig_for(GATE_CONTROLLER)))
    for kind in KINDS:
        api.delete(kind, "zz-dra-gate", missing_ok=True)
    for name in ("dra-gate-ca", "dra-gate-tls"):
        api.delete("secrets", name, "dra-gate", missing_ok=True)


def controller(client: Client, life: float = 3600, name: str = "gate.example") -> CertificateController:
    lives = dt.timedelta(seconds=3 * life), dt.timedelta(seconds=life)
    settings = Settings(frozenset({name}), *lives, settle=dt.timedelta(seconds=0))
    return CertificateController(client, "dra-gate", settings, identity="test", leading=lambda: True)


def test_from_nothing_to_a_certificate_that_the_configurations_trust(client: Client, api: Api) -> None:
    loop = controller(client)
    loop.look()
    assert loop.failures == 0
    tls = secret(api, "dra-gate-tls")
    leaf = x509.load_pem_x509_certificate(tls["tls.crt"])
    (authority,) = x509.load_pem_x509_certificates(tls["ca.crt"])
    leaf.verify_directly_issued_by(authority)
    assert set(bundles(api)) == {tls["ca.crt"]} == {secret(api, "dra-gate-ca")["ca.crt"]}
    before = [api.get(kind, "zz-dra-gate")["metadata"]["resourceVersion"] for kind in KINDS]
    loop.look()
    after = [api.get(kind, "zz-dra-gate")["metadata"]["resourceVersion"] for kind in KINDS]
    assert before == after, "nothing is written when nothing has to be"
    text = {metric.name: metric.samples for metric in loop.collect()}
    ends = {s.labels["certificate"]: s.value for s in text["dra_gate_own_certificate_not_after_timestamp_seconds"]}
    assert ends == {
        "authority": authority.not_valid_after_utc.timestamp(),
        "serving": leaf.not_valid_after_utc.timestamp(),
    }


def test_what_people_damage_comes_right(client: Client, api: Api) -> None:
    loop = controller(client)
    loop.look()
    good = secret(api, "dra-gate-tls")
    for patch in (
        [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}],
        [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": foreign_ca()}],
    ):
        api.patch(KINDS[1], "zz-dra-gate", patch, content_type="application/json-patch+json")
        loop.look()
        assert set(bundles(api)) == {good["ca.crt"]}
    # Applying the manifests again, as a pipeline does all day, leaves the caBundle alone.
    api.apply_yaml((ROOT / "deploy" / "base" / "webhook-configurations.yaml").read_text())
    assert set(bundles(api)) == {good["ca.crt"]}
    # A half-deleted pair is made anew, by the same CA.
    api.patch("secrets", "dra-gate-tls", {"data": {"tls.key": base64.b64encode(b"x").decode()}}, "dra-gate")
    loop.look()
    assert secret(api, "dra-gate-tls")["tls.crt"] != good["tls.crt"]
    assert secret(api, "dra-gate-tls")["ca.crt"] == good["ca.crt"]
    # Without the CA's Secret there is a new one, and what is served stays trusted.
    api.delete("secrets", "dra-gate-ca", "dra-gate")
    loop.look()
    new, old = x509.load_pem_x509_certificates(bundles(api)[0])
    assert [old] == x509.load_pem_x509_certificates(good["ca.crt"])
    x509.load_pem_x509_certificate(secret(api, "dra-gate-tls")["tls.crt"]).verify_directly_issued_by(new)
    assert loop.failures == 0


def foreign_ca() -> str:
    from dra_gate.controller.x509 import new_authority  # noqa: PLC0415

    made = new_authority(dt.datetime.now(dt.UTC), dt.timedelta(days=1))
    return base64.b64encode(made.certificate_pem).decode()


def test_other_names_are_taken_up(client: Client, api: Api) -> None:
    controller(client).look()
    controller(client, name="127.0.0.1").look()
    leaf = x509.load_pem_x509_certificate(secret(api, "dra-gate-tls")["tls.crt"])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_two_at_once_agree(client: Client, api: Api) -> None:
    pair = [controller(client), controller(client)]
    for _ in range(3):
        threads = [threading.Thread(target=loop.look) for loop in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tls = secret(api, "dra-gate-tls")
    authority = x509.load_pem_x509_certificates(tls["ca.crt"])[0]
    x509.load_pem_x509_certificate(tls["tls.crt"]).verify_directly_issued_by(authority)
    assert set(bundles(api)) == {tls["ca.crt"]} == {secret(api, "dra-gate-ca")["ca.crt"]}


def test_a_renewal_that_fails_is_told_before_the_end(client: Client, api: Api) -> None:
    loop = controller(client, life=18)  # told 3 s before the end by a clock of whole seconds: a pause is no failure
    loop.look()
    api.patch("secrets", "dra-gate-tls", {"immutable": True}, "dra-gate")  # nobody can write it any more
    events = "/apis/events.k8s.io/v1/namespaces/dra-gate/events"
    earlier = {event["metadata"]["name"] for event in api.request("GET", events).body["items"]}

    def told() -> list[Object]:
        loop.look()
        found = [e for e in api.request("GET", events).body["items"] if e["metadata"]["name"] not in earlier]
        return [event for event in found if event["reason"] == "CertificateNotRenewed"]

    (event,) = wait_for(told, 25, "the Event", every=0.3)
    leaf = x509.load_pem_x509_certificate(secret(api, "dra-gate-tls")["tls.crt"])
    assert dt.datetime.now(dt.UTC) < leaf.not_valid_after_utc, "there is time left to do something"
    assert event["regarding"]["name"] == "dra-gate-tls"
    assert loop.failures > 0
    loop.look()
    assert len(told()) == 1, "once an hour is enough"
    # What had failed goes on by itself when the cause is gone.
    api.delete("secrets", "dra-gate-tls", "dra-gate")
    loop.look()
    assert secret(api, "dra-gate-tls")["tls.crt"]
