"""`dra-gate certs`: what it writes verifies, renews, and destroys nothing that it did not make."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from dra_gate.cli.certs import command


def run(out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--out", str(out), *arguments])


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def handshake(out: Path, name: str, authority: Path) -> None:
    """A verified handshake for `name` with the pair in `out`; raises ssl.SSLError where a client would refuse."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(out / "tls.crt", out / "tls.key")
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def accept() -> None:
        try:
            server.wrap_socket(left, server_side=True)
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        client.wrap_socket(right, server_hostname=name)
    finally:
        right.close()
        thread.join()


def test_a_client_that_trusts_the_ca_accepts_every_name_and_no_other(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "certs"
    done = run(out, "--ip", "127.0.0.1", "--ip", "::1", "--dns", "localhost", "--dns", "gate.dra-gate.svc")
    assert done.exit_code == 0, done.output
    for name in ("127.0.0.1", "::1", "localhost", "gate.dra-gate.svc"):
        handshake(out, name, out / "ca.crt")
    with pytest.raises(ssl.SSLError):
        handshake(out, "127.0.0.2", out / "ca.crt")
    assert run(tmp_path / "other", "--dns", "localhost").exit_code == 0
    with pytest.raises(ssl.SSLError):
        handshake(out, "localhost", tmp_path / "other" / "ca.crt")


def test_profile(tmp_path: Path) -> None:
    assert run(tmp_path, "--ip", "127.0.0.1", "--days", "90").exit_code == 0
    leaf, authority = certificate(tmp_path / "tls.crt"), certificate(tmp_path / "ca.crt")
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    for one in (leaf, authority):
        key = one.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    now = dt.datetime.now(dt.UTC)
    assert leaf.not_valid_before_utc < now - dt.timedelta(minutes=4)
    assert dt.timedelta(days=89) < leaf.not_valid_after_utc - now < dt.timedelta(days=90, seconds=1)


def test_keys_are_for_their_owner_and_never_printed(tmp_path: Path) -> None:
    done = run(tmp_path, "--dns", "localhost")
    for file in ("ca.key", "tls.key"):
        assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
        assert (tmp_path / file).read_text().splitlines()[1] not in done.output
    assert "PRIVATE" not in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]


def test_the_same_command_renews_under_the_same_ca(tmp_path: Path) -> None:
    run(tmp_path, "--dns", "localhost")
    authority, first = (tmp_path / "ca.crt").read_bytes(), certificate(tmp_path / "tls.crt")
    done = run(tmp_path, "--dns", "localhost")
    assert done.exit_code == 0
    assert "kept CA" in done.output
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert certificate(tmp_path / "tls.crt").serial_number != first.serial_number
    handshake(tmp_path, "localhost", tmp_path / "ca.crt")


def test_a_certificate_never_outlives_its_ca(tmp_path: Path) -> None:
    run(tmp_path, "--dns", "localhost", "--ca-days", "10", "--days", "365")
    assert certificate(tmp_path / "tls.crt").not_valid_after_utc == certificate(tmp_path / "ca.crt").not_valid_after_utc


def test_a_foreign_certificate_is_replaced_only_by_force(tmp_path: Path) -> None:
    run(tmp_path / "theirs", "--dns", "localhost")
    run(tmp_path / "ours", "--dns", "localhost")
    theirs = (tmp_path / "theirs" / "tls.crt").read_bytes()
    (tmp_path / "ours" / "tls.crt").write_bytes(theirs)
    done = run(tmp_path / "ours", "--dns", "localhost")
    assert done.exit_code == 2
    assert "--force" in done.output
    assert (tmp_path / "ours" / "tls.crt").read_bytes() == theirs
    assert run(tmp_path / "ours", "--dns", "localhost", "--force").exit_code == 0
    handshake(tmp_path / "ours", "localhost", tmp_path / "ours" / "ca.crt")


@pytest.mark.parametrize("damage", ["ca.key gone", "ca.crt gone", "ca.key other", "ca.key garbage"])
def test_a_broken_ca_is_an_error_and_touches_nothing(tmp_path: Path, damage: str) -> None:
    run(tmp_path / "a", "--dns", "localhost")
    name, what = damage.split()
    file = tmp_path / "a" / name
    if what == "gone":
        file.unlink()
    elif what == "other":
        run(tmp_path / "b", "--dns", "localhost")
        file.write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    else:
        file.write_text("garbage")
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    done = run(tmp_path / "a", "--dns", "localhost")
    assert done.exit_code == 2
    assert name in done.output
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.parametrize(
    "arguments", [[], ["--ip", "localhost"], ["--dns", "tür.example"], ["--dns", "x", "--days", "0"]]
)
def test_wrong_calls_exit_2_and_write_nothing(tmp_path: Path, arguments: list[str]) -> None:
    assert run(tmp_path / "out", *arguments).exit_code == 2
    assert not (tmp_path / "out").exists()
