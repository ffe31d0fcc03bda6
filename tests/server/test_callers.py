"""`--client-ca` and `--client-name`: who may call is settled in the handshake. The second port asks nobody."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.api import wait_for
from controlplane.authority import Authority
from dra_gate.server.tls import names_in
from server.process import HOST, Served, ask, review, served


class Callers:
    """A CA for clients in a folder of its own, and a server that asks for its certificates."""

    def __init__(self, one: Served, authority: Authority) -> None:
        self.one = one
        self.authority = authority

    def call(
        self, pair: tuple[Path, Path] | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> tuple[int, bytes]:
        """A review sent by the holder of `pair`. Raises OSError when the server won't have it."""
        context = self.one.tls()
        context.maximum_version = version
        if pair is not None:
            context.load_cert_chain(*pair)
        with contextlib.closing(http.client.HTTPSConnection(HOST, self.one.port, context=context, timeout=5)) as client:
            return ask(client, "POST", "/mutate", review())[:2]


def write(file: Path, content: bytes) -> None:
    """At once: the server must not find the file empty meanwhile, which it would count."""
    file.with_suffix(".new").write_bytes(content)
    file.with_suffix(".new").replace(file)


def authority_in(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder)


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    folder = tmp_path_factory.mktemp("callers")
    authority = authority_in(folder / "clients")
    flags = ("--client-ca", str(authority.certificate), "--client-name", "kube-apiserver", "--client-name", "other")
    with served(folder, *flags) as one:
        yield Callers(one, authority)


REFUSED = (OSError, http.client.HTTPException)  # TLS 1.3: the client hears of it with its first read


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["kube-apiserver", "other"])
def test_a_good_certificate_is_served(callers: Callers, name: str, version: ssl.TLSVersion) -> None:
    status, body = callers.call(callers.authority.issue(name), version)
    assert (status, json.loads(body)["response"]["allowed"]) == (200, True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("case", ["no certificate", "another CA", "another name"])
def test_any_other_caller_is_refused(callers: Callers, tmp_path: Path, case: str, version: ssl.TLSVersion) -> None:
    pair = {
        "no certificate": lambda: None,
        "another CA": lambda: authority_in(tmp_path / "stranger").issue("kube-apiserver"),
        "another name": lambda: callers.authority.issue("kube-apiserver.example"),
    }[case]()
    with pytest.raises(REFUSED):
        callers.call(pair, version)
    assert callers.call(callers.authority.issue("other"))[0] == 200


def test_probes_of_the_second_port_need_no_certificate(callers: Callers) -> None:
    assert callers.one.page("/readyz") == (200, "ok\n")


def test_any_holder_of_a_certificate_may_call_without_names_and_a_new_ca_is_taken_within_a_second(
    tmp_path: Path,
) -> None:
    old, new = authority_in(tmp_path / "old"), authority_in(tmp_path / "new")
    trusted = tmp_path / "trusted.crt"
    shutil.copy(old.certificate, trusted)
    with served(tmp_path, "--client-ca", str(trusted)) as one:
        holder, successor = Callers(one, old), Callers(one, new)
        pairs = old.issue("anybody"), new.issue("anybody")
        assert holder.call(pairs[0])[0] == 200
        with pytest.raises(REFUSED):
            successor.call(pairs[1])
        write(trusted, old.certificate.read_bytes() + new.certificate.read_bytes())
        deadline = time.monotonic() + 2  # twice what is promised: a machine may pause for a second
        while True:
            with contextlib.suppress(*REFUSED):
                if successor.call(pairs[1])[0] == 200:
                    break
            assert time.monotonic() < deadline
        assert holder.call(pairs[0])[0] == 200
        write(trusted, b"nonsense")
        failures = "dra_gate_certificate_reload_failures_total"
        wait_for(lambda: one.metrics()[failures], 10, "the CA file to be looked at")
        assert holder.call(pairs[0])[0] == 200, "a CA file that can't be read does not replace one that could"
        write(trusted, new.certificate.read_bytes())
        deadline = time.monotonic() + 2
        with contextlib.suppress(*REFUSED):
            while time.monotonic() < deadline:
                holder.call(pairs[0])
        with pytest.raises(REFUSED):
            holder.call(pairs[0])
        assert successor.call(pairs[1])[0] == 200
        assert one.metrics()[failures] == 1


def test_names_are_the_common_name_and_the_dns_names() -> None:
    shown = {
        "subject": ((("organizationName", "system:masters"),), (("commonName", "kube-apiserver"),)),
        "subjectAltName": (("DNS", "apiserver.example"), ("IP Address", "10.0.0.1"), ("email", "a@b")),
    }
    assert names_in(shown) == {"kube-apiserver", "apiserver.example"}
    assert names_in({}) == frozenset()
