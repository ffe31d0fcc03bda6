"""`dra-gate certs`: an own certificate authority and a serving certificate, for clusters without cert-manager."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gate.cli.failure import Failure

if TYPE_CHECKING:  # 50 ms that `--help` of every verb would pay
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_SKEW = dt.timedelta(minutes=5)  # valid a little before now: clocks of other machines may be behind ours


@click.command(name="certs")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the files.")
@click.option("--dns", multiple=True, metavar="NAME", help="DNS name the API server calls; may be repeated.")
@click.option("--ip", multiple=True, metavar="ADDRESS", help="IP address the API server calls; may be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Life of the certificate.")
@click.option("--ca-days", type=click.IntRange(1, 36500), default=3650, show_default=True, help="Life of a new CA.")
@click.option("--force", is_flag=True, help="Replace a tls.crt that this folder's CA did not sign.")
def command(out: Path, dns: Sequence[str], ip: Sequence[str], days: int, ca_days: int, force: bool) -> None:
    """Issue an own CA and a serving certificate (ECDSA P-256).

    Writes ca.crt, ca.key, tls.crt and tls.key; keys are readable by their owner only and never printed. A CA that is
    already in the folder is kept, so running the same command again renews the certificate and the caBundle of the
    webhook configurations stays as it is. A running server takes the new pair within a second.

    \b
    Examples:
      dra-gate certs --out certs/local --ip 127.0.0.1 --dns localhost
      dra-gate certs --out certs/local --dns dra-gate-webhook.dra-gate.svc --days 90
    """
    if not dns and not ip:
        raise click.UsageError("name at least one --dns or --ip: the API server checks it on every call")
    try:
        addresses = [ipaddress.ip_address(address) for address in ip]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ip") from None
    for name in dns:
        if not name.isascii():
            raise click.BadParameter(f"{name!r} is not ASCII; write it in punycode", param_hint="--dns")
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        made_ca, authority, ca_key = _authority(out, ca_days)
        if not force:
            _refuse_foreign(out / "tls.crt", authority)
        leaf, key = _issue(authority, ca_key, dns, addresses, days)
        _write_pair(out, "tls", leaf, key)
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None
    click.echo(f"{'new' if made_ca else 'kept'} CA   {out / 'ca.crt'}   valid until {_day(authority)}")
    click.echo(f"new cert {out / 'tls.crt'}  valid until {_day(leaf)}, for {', '.join([*dns, *map(str, addresses)])}")
    if made_ca:
        click.echo(f"{out / 'ca.key'} signs whatever the API server will trust here: the server does not need it.")


def _authority(out: Path, days: int) -> tuple[bool, x509.Certificate, EllipticCurvePrivateKey]:
    """The folder's CA, made if there is none; True if it was made now."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    certificate_file, key_file = out / "ca.crt", out / "ca.key"
    there = [file.exists() for file in (certificate_file, key_file)]
    if not any(there):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign_authority(key, days)
        _write_pair(out, "ca", certificate, key)
        return True, certificate, key
    if not all(there):
        missing, other = (key_file, certificate_file) if there[0] else (certificate_file, key_file)
        raise Failure(f"{missing} is missing beside {other}: put it back, or choose an empty folder for a new CA")
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
        raise Failure(f"{certificate_file} and {key_file} can't be read as a CA: {error}") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise Failure(f"{key_file} is not the ECDSA key of {certificate_file}")
    if certificate.not_valid_after_utc <= dt.datetime.now(dt.UTC):
        raise Failure(f"{certificate_file} ended on {_day(certificate)}: choose an empty folder for a new CA")
    return False, certificate, loaded


def _sign_authority(key: EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    now = dt.datetime.now(dt.UTC)
    # The time in the name keeps two CAs apart when both stand in one bundle while they change.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"dra-gate CA {now:%Y-%m-%d %H:%M:%S}")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _issue(
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
    dns: Sequence[str],
    addresses: Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address],
    days: int,
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """A serving certificate and its new key; it never outlives the CA."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    now = dt.datetime.now(dt.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    names += [x509.IPAddress(address) for address in addresses]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dra-gate webhook")]))  # clients read the SAN
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(min(now + dt.timedelta(days=days), authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return certificate, key


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415

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


def _refuse_foreign(file: Path, authority: x509.Certificate) -> None:
    """A certificate of another authority was put there by somebody: renewing ours must not destroy it."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    if not file.exists():
        return
    try:
        x509.load_pem_x509_certificate(file.read_bytes()).verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise Failure(f"{file} was not signed by this folder's CA: move it away, or add --force") from None


def _write_pair(out: Path, stem: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _replace(out / f"{stem}.key", pem, 0o600)
    _replace(out / f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _replace(file: Path, content: bytes, mode: int) -> None:
    """Write beside and rename: readers see the old file or the new one, and a key never has a wider mode."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _day(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"
