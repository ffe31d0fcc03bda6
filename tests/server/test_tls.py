"""The serving certificate follows its files, and a bad pair never touches what serves."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dra_gate.cli.certs import command
from dra_gate.server.tls import CertificateError, ServingCertificate


def issue(out: Path) -> int:
    """A new pair in `out`; its serial number."""
    done = CliRunner().invoke(command, ["--out", str(out), "--dns", "localhost"])
    assert done.exit_code == 0, done.output
    return x509.load_pem_x509_certificate((out / "tls.crt").read_bytes()).serial_number


def serial(
    serving: ServingCertificate,
    *,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    name: str | None = "localhost",
    authority: Path | None = None,
) -> int:
    """The serial number that a new client of `version` is shown."""
    left, right = socket.socketpair()
    thread = threading.Thread(target=lambda: serving.context.wrap_socket(left, server_side=True).close())
    thread.start()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    if authority is not None:
        client.load_verify_locations(authority)
        client.verify_mode = ssl.CERT_REQUIRED
    client.minimum_version = client.maximum_version = version
    with client.wrap_socket(right, server_hostname=name) as connection:
        shown = connection.getpeercert(binary_form=True)
        assert connection.version() == version.name.replace("_", ".")
    thread.join()
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", [None, "localhost"])
def test_a_new_pair_is_shown_to_new_clients(tmp_path: Path, version: ssl.TLSVersion, name: str | None) -> None:
    first = issue(tmp_path)
    serving = ServingCertificate(tmp_path)
    assert serial(serving, version=version, name=name, authority=tmp_path / "ca.crt") == first
    assert not serving.check()
    second = issue(tmp_path)
    assert serial(serving, version=version, name=name) == first
    assert serving.check()
    assert serial(serving, version=version, name=name) == second
    assert serving.failures == 0


def test_old_versions_are_refused(tmp_path: Path) -> None:
    issue(tmp_path)
    assert ServingCertificate(tmp_path).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_bad_pair_is_counted_and_told_once_and_never_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = issue(tmp_path)
    serving = ServingCertificate(tmp_path)
    key = (tmp_path / "tls.key").read_bytes()
    second = issue(tmp_path)
    good = (tmp_path / "tls.key").read_bytes()
    (tmp_path / "tls.key").write_bytes(key)  # does not match any more
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert not serving.check()
    assert serving.failures == 1
    assert len(caplog.records) == 1
    assert "PRIVATE" not in caplog.text
    assert serial(serving) == first
    (tmp_path / "tls.key").unlink()
    assert not serving.check()
    assert serving.failures == 2
    (tmp_path / "tls.key").write_bytes(good)
    assert serving.check()
    assert serial(serving) == second


def test_a_certificate_of_a_version_that_there_is_not_is_a_bad_pair_too(tmp_path: Path) -> None:
    """OpenSSL serves it, who reads its end does not know it: the watch must live to see the next one."""
    first = issue(tmp_path)
    serving = ServingCertificate(tmp_path)
    issue(tmp_path)
    good = (tmp_path / "tls.crt").read_text()
    der = ssl.PEM_cert_to_DER_cert(good[: good.index("-----END") + len("-----END CERTIFICATE-----\n")])
    (tmp_path / "tls.crt").write_text(
        ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x04"))
    )
    assert not serving.check()
    assert serving.failures == 1
    assert serial(serving) == first
    with pytest.raises(CertificateError, match="not a usable pair"):
        ServingCertificate(tmp_path)
    (tmp_path / "tls.crt").write_text(good)
    assert serving.check()
    assert serial(serving) != first


def test_a_secret_volume_swaps_a_symbolic_link(tmp_path: Path) -> None:
    first = issue(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = issue(tmp_path / "two")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "mount").mkdir()
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "mount" / name).symlink_to(f"../..data/{name}")
    serving = ServingCertificate(tmp_path / "mount")
    assert serial(serving) == first
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert serving.check()
    assert serial(serving) == second


def test_the_watch_sees_a_change_within_a_second(tmp_path: Path) -> None:
    issue(tmp_path)
    serving = ServingCertificate(tmp_path)
    stop = threading.Event()
    thread = serving.watch(stop)
    try:
        took = []
        for _ in range(3):  # the best of them counts: a machine may pause for a second
            second, began = issue(tmp_path), time.monotonic()
            while serial(serving) != second:
                assert time.monotonic() - began < 5
                time.sleep(0.02)
            took.append(time.monotonic() - began)
        assert min(took) < 1
    finally:
        stop.set()
        thread.join(2)
    assert not thread.is_alive()


def test_not_after_is_the_leafs(tmp_path: Path) -> None:
    issue(tmp_path)
    leaf = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    assert ServingCertificate(tmp_path).not_after == leaf.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("damage", ["missing", "garbage", "encrypted"])
def test_no_usable_pair_to_begin_with_is_an_error_without_secrets(tmp_path: Path, damage: str) -> None:
    issue(tmp_path)
    key = tmp_path / "tls.key"
    if damage == "missing":
        key.unlink()
    elif damage == "garbage":
        key.write_text("hunter2")
    else:
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        key.write_bytes(
            loaded.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"hunter2"),
            )
        )
    with pytest.raises(CertificateError) as error:
        ServingCertificate(tmp_path)
    assert "tls.key" in str(error.value)
    assert "hunter2" not in str(error.value)
