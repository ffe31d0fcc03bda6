"""The loop that keeps the gate's own certificates, where Secrets and bundles hold what nobody expects."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509 as theirs
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.cluster.client import Client
from dra_gate.controller import x509
from dra_gate.controller.certificate_plan import Settings
from dra_gate.controller.certificates import CertificateController

NOW = dt.datetime(2026, 11, 30, 10, 0, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
SECRETS = "/api/v1/namespaces/dra-gate/secrets"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = theirs.Name([theirs.NameAttribute(theirs.NameOID.COMMON_NAME, "somebody else's")])
ED25519, NO_SUCH_KIND = bytes.fromhex("06032b6570"), bytes.fromhex("06032b6563")  # object identifiers


def _begun(key: Any) -> theirs.CertificateBuilder:
    made = theirs.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(key.public_key())
    return made.serial_number(1).not_valid_before(NOW - DAY).not_valid_after(NOW + 90 * DAY)


def named_oddly() -> theirs.Certificate:
    """Its alternative name is of a kind that hardly anybody uses, ediPartyName."""
    key = ec.generate_private_key(ec.SECP256R1())
    odd = theirs.UnrecognizedExtension(theirs.OID_SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3002a500"))
    return _begun(key).add_extension(odd, critical=False).sign(key, hashes.SHA256())


def keyed_oddly() -> theirs.Certificate:
    """Its key is of a kind that is not known here."""
    key = ed25519.Ed25519PrivateKey.generate()
    before, first, second, last = _begun(key).sign(key, None).public_bytes(serialization.Encoding.DER).split(ED25519)
    return theirs.load_der_x509_certificate(before + ED25519 + first + NO_SUCH_KIND + second + ED25519 + last)


def odd_key() -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    plain = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    body = base64.encodebytes(plain.replace(ED25519, NO_SUCH_KIND))
    return b"-----BEGIN PRIVATE KEY-----\n" + body + b"-----END PRIVATE KEY-----\n"


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()}
    return {"metadata": {"name": name, "namespace": "dra-gate"}, "type": "Opaque", "data": encoded}


def bundle(*certificates: theirs.Certificate) -> dict[str, Any]:
    encoded = base64.b64encode(x509.pem(certificates)).decode()
    return {
        "metadata": {"name": "zz-dra-gate"},
        "webhooks": [{"name": "validate.dra-gate.io", "clientConfig": {"caBundle": encoded}}],
    }


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    api = FakeApi()

    def fault(request: Request) -> Answer | None:
        if request.path.endswith("/selfsubjectreviews"):
            return 201, {"metadata": {"creationTimestamp": f"{NOW:%Y-%m-%dT%H:%M:%SZ}"}}, {}
        if request.method == "GET" and request.path not in api.objects:
            return 404, status(404, "NotFound"), {}
        return (200, {}, {}) if request.method == "PATCH" else None

    api.fault = fault
    yield api
    api.stop()


def looked(fake: FakeApi, tmp_path: Path) -> CertificateController:
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    settings = Settings(frozenset({"gate.dra-gate.svc"}), 365 * DAY, 90 * DAY, dt.timedelta(seconds=30))
    controller = CertificateController(client, "dra-gate", settings, identity="t", leading=lambda: True)
    controller.look()
    client.close()
    return controller


@pytest.mark.parametrize(
    "what", ["nothing", "a CA key", "a serving certificate", "a CA in a bundle", "a key in a bundle"]
)
def test_what_nobody_expects_keeps_no_certificate_from_being_made(what: str, fake: FakeApi, tmp_path: Path) -> None:
    if what == "a CA key":
        fake.put(SECRETS, secret("dra-gate-ca", ca_crt=x509.pem([named_oddly()]), ca_key=odd_key()))
    elif what == "a serving certificate":
        fake.put(SECRETS, secret("dra-gate-tls", tls_crt=x509.pem([keyed_oddly()]), tls_key=odd_key()))
    elif what == "a CA in a bundle":
        fake.put(CONFIGURATIONS, bundle(named_oddly()))
    elif what == "a key in a bundle":
        fake.put(CONFIGURATIONS, bundle(keyed_oddly()))
    controller = looked(fake, tmp_path)
    assert controller.failures == 0
    assert controller.issued == {"authority": 1, "serving": 1}


def test_of_a_certificate_that_cannot_be_judged_nothing_is_said() -> None:
    plain, odd = named_oddly(), keyed_oddly()
    key = x509.new_authority(NOW, DAY).key_pem
    assert x509.names_of(plain) == frozenset()
    assert not x509.is_authority(odd)
    assert not x509.issued(plain, odd)
    assert not x509.belongs(key, odd)
    with pytest.raises(ValueError, match="key"):
        x509.read_pair(x509.pem([odd]), key)
