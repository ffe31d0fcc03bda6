"""A certificate authority of the kit's own, so that every connection on loopback is verified TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = dt.timedelta(days=7)  # longer than any run of `up`, short enough to be worthless afterwards


class Authority:
    """Makes a CA in `folder` (`ca.crt`) and issues certificates beside it. The CA's key stays in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dra-gate control-plane kit")])
        self._certificate = (
            self._draft(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def certificate(self) -> Path:
        """The CA's certificate, PEM."""
        return self.folder / "ca.crt"

    def issue(self, name: str) -> tuple[Path, Path]:
        """Issues `<name>.crt` and `<name>.key` for localhost, 127.0.0.1 and the API server's Service names.

        Good for servers and for clients; the common name is `name`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.DNSName(dns) for dns in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        ]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._draft(subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        at = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        at[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(key, at[1])
        return at

    def _draft(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + _LIFE)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def write_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    """Writes a private key that only its owner may read, as SEC 1 PEM: kube-apiserver takes token keys in no other."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
