"""Own certificates: authorities and serving certificates (ECDSA P-256), made, read and compared.

The profile is in `certs/README.md`. Times are inputs; keys and serial numbers are random.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Certificate = x509.Certificate
# What reading an extension raises for one that is not there, stands twice or holds what is not known here. Whatever
# somebody has put into a bundle or a Secret: it must not keep a certificate from being renewed.
_UNREAD = (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError)
# Valid a little before now: clocks of other machines may be behind ours. Short lives get a tenth of themselves.
SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return pem([self.certificate])

    @property
    def key_pem(self) -> bytes:
        """The key as unencrypted PKCS #8 PEM: never log it."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def new_authority(now: dt.datetime, life: dt.timedelta) -> Pair:
    """A self-signed CA, valid until `now` + `life`, that may sign serving certificates only (path length 0)."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The time in the name keeps two CAs apart when both stand in one bundle while they change.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"dra-gate CA {now:%Y-%m-%d %H:%M:%S}")])
    certificate = (
        _builder(name, name, key, now, life, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def new_serving(authority: Pair, names: Iterable[str], now: dt.datetime, life: dt.timedelta) -> Pair:
    """A serving certificate for `names` (DNS names and IP addresses), valid until `now` + `life` or the CA's end."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dra-gate webhook")])  # clients read the SAN
    signer = authority.key.public_key()
    ends = min(now + life, authority.certificate.not_valid_after_utc)
    certificate = (
        _builder(subject, authority.certificate.subject, key, now, life, ends)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Pair(certificate, key)


def read_pair(certificates: bytes, key: bytes) -> Pair:
    """The ECDSA key and, of the PEM `certificates`, the one that it belongs to.

    Raises ValueError when either can't be read or none belongs to the key.
    """
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # it is encrypted, or of a kind that is not known
        raise ValueError(str(error)) from None
    if isinstance(loaded, ec.EllipticCurvePrivateKey):
        for certificate in read_certificates(certificates):
            if belongs(key, certificate):
                return Pair(certificate, loaded)
    raise ValueError("the key is not the ECDSA key of the certificate")


def belongs(key: bytes, certificate: Certificate) -> bool:
    """Whether the PEM `key`, of whatever kind, is in the clear and that of `certificate`."""
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
        return loaded.public_key() == certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def is_authority(certificate: Certificate) -> bool:
    """Whether it may sign certificates (BasicConstraints)."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _UNREAD:
        return False


def read_certificates(content: bytes) -> list[Certificate]:
    """The certificates of a PEM text, in order. Raises ValueError for anything else, and for none."""
    return x509.load_pem_x509_certificates(content)


def pem(certificates: Iterable[Certificate]) -> bytes:
    """The certificates as one PEM text, in order."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def fingerprint(certificate: Certificate) -> str:
    """SHA-256 of the certificate, in hexadecimal."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def issued(certificate: Certificate, authority: Certificate) -> bool:
    """Whether `authority` signed `certificate`."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):  # a kind of key that can't be checked
        return False
    return True


def names_of(certificate: Certificate) -> frozenset[str]:
    """The DNS names and IP addresses that the certificate is good for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _UNREAD:
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset([*names.get_values_for_type(x509.DNSName), *map(str, addresses)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    life: dt.timedelta,
    ends: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - min(SKEW, life / 10))
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
