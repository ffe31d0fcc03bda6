"""The second port: what it shows, that it escapes and never changes anything, and that it stands bad clients."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from werkzeug.test import Client, TestResponse

from dra_gate.admission.review import Record
from dra_gate.cluster.facts import World
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import load
from dra_gate.policy.model import PolicySet
from dra_gate.server import console
from dra_gate.server.app import Decision
from dra_gate.server.console import HEADERS, Console, View, namespaces_with_templates
from server.process import CLUSTER, HOST, POLICIES

PAGES = ["/", "/tenants", "/tenants/lilac", "/policies", "/verdicts", "/tenants/nobody", "/nope"]
EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


@pytest.fixture
def policy_set(tmp_path: Path) -> PolicySet:
    (tmp_path / "policies.yaml").write_text(POLICIES)
    return load(tmp_path)


@pytest.fixture
def world(policy_set: PolicySet) -> World:
    known = World(policy_set)
    for document in yaml.safe_load_all(CLUSTER):
        known.apply(document)
    return known


@pytest.fixture
def view(world: World) -> View:
    record = Record("validate", "u", "CREATE", "lilac-train", EVIL, "deny", ("QUOTA",), "training@1", "lilac")
    return View(
        facts=world.facts,
        reasons=list,
        metrics=lambda: b"metrics\n",
        recent=lambda: [Decision(0.0, record, "enforce", 1.25)],
        turned=time.monotonic,
        stale_seconds=300,
        ages=lambda: {"pods": 301.0, "namespaces": 3.0},
        not_after=lambda: time.time() + 3 * 86400,
    )


def get(view: View, path: str, method: str = "GET") -> TestResponse:
    return Client(Console(view)).open(path, method=method)


class _Check(HTMLParser):
    """Tags are closed in order; nothing runs, nothing is loaded from elsewhere."""

    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "iframe", "form", "style")
        for name, value in attributes:
            assert not name.startswith("on")
            assert name != "style"
            assert name not in ("href", "src") or (value or "").startswith("/")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_long_names_do_not_push_columns_out_of_sight(view: View) -> None:
    cells = re.findall(r"<td data-name=\"(?:Tenant|Policy|Namespaces)\"[^>]*>(.*?)</td>", get(view, "/tenants").text)
    assert cells
    assert all('class="long"' in cell for cell in cells)


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_well_formed_and_carry_the_security_headers(view: View, path: str) -> None:
    answer = get(view, path)
    assert answer.status_code == (404 if path in ("/tenants/nobody", "/nope") else 200)
    for name, value in HEADERS:
        assert answer.headers.getlist(name) == [value]
    check = _Check()
    check.feed(answer.text)
    assert check.open == []


@pytest.mark.parametrize("path", [*PAGES, "/metrics", "/healthz", "/readyz", "/style.css"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"])
def test_nothing_but_get(view: View, path: str, method: str) -> None:
    answer = get(view, path, method)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")


def test_names_that_somebody_made_up_are_escaped(view: View) -> None:
    page = get(view, "/verdicts").text
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "{{7*7}}" in page
    assert "<img" not in get(view, f"/tenants/{EVIL}").text


def test_the_overview_says_what_counts(view: View, policy_set: PolicySet) -> None:
    page = get(view, "/").text
    assert policy_set.digest in page
    assert re.search(r"pods</td>\s*<td.*stale", page)
    assert re.search(r"namespaces</td>\s*<td.*current", page)
    assert 'class="bad">for 3 d' in page
    assert ">ready<" in page
    refusing = dataclasses.replace(view, reasons=lambda: [EVIL], refused=lambda: {"policy-set-x": EVIL})
    page = get(refusing, "/").text
    assert "not ready" in page
    assert "policy-set-x" in page
    assert "<img" not in page


def test_before_there_are_policies_pages_say_so(view: View) -> None:
    empty = dataclasses.replace(view, facts=lambda: None)
    assert get(empty, "/").status_code == 200
    for path in ("/tenants", "/tenants/lilac", "/policies"):
        answer = get(empty, path)
        assert (answer.status_code, "no policy set yet" in answer.text) == (503, True)


def test_a_tenant_shows_quota_use_and_templates(view: View, world: World, policy_set: PolicySet) -> None:
    assert namespaces_with_templates(world.facts()) == (0, 1)
    template = templates_of(policy_set).for_count("lilac", policy_set.tenants["lilac"].policy, 1)
    metadata = {"name": template.name, "namespace": "lilac-train"}
    world.apply({"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": template.spec})
    claim: dict[str, Any] = {"name": "gpu", "resourceClaimTemplateName": template.name}
    spec = {"resourceClaims": [claim], "containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]}
    world.apply({"kind": "Pod", "metadata": {"name": "p", "namespace": "lilac-train", "uid": "u"}, "spec": spec})
    assert "1 of 16" in get(view, "/tenants").text
    page = get(view, "/tenants/lilac").text
    assert template.name in page
    assert "h100, a100" in page
    assert namespaces_with_templates(world.facts()) == (1, 0)
    assert namespaces_with_templates(None) == (0, 0)


def test_a_page_that_fails_is_500_without_details(view: View) -> None:
    def broken() -> Any:
        raise ValueError("hunter2")

    answer = get(dataclasses.replace(view, recent=broken), "/verdicts")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text


def test_probes(view: View) -> None:
    assert get(view, "/healthz").text == "ok\n"
    unready = dataclasses.replace(view, reasons=lambda: ["a", "b"])
    assert get(unready, "/healthz").status_code == 200
    assert (get(unready, "/readyz").status_code, get(unready, "/readyz").text) == (503, "a\nb\n")
    stalled = dataclasses.replace(view, turned=lambda: time.monotonic() - 60)
    assert get(stalled, "/healthz").status_code == 503
    assert "has not turned for 60 s" in get(stalled, "/readyz").text
    assert get(view, "/metrics").text == "metrics\n"


@pytest.fixture
def port(view: View, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The real server, impatient."""
    monkeypatch.setattr(console, "IDLE_SECONDS", 3)
    with console.listen(HOST, 0) as listening:
        console.serve_console(Console(view), listening)
        yield listening.getsockname()[1]


def test_clients_that_drip_hang_or_send_nonsense_are_cut_off_and_others_served(port: int) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HOST, port), 5)) for _ in range(50)]
        dripping = stack.enter_context(socket.create_connection((HOST, port), 5))
        dripping.sendall(b"GET /readyz HTTP/1.1\r\n")
        big = stack.enter_context(socket.create_connection((HOST, port), 5))
        big.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 10000)
        assert b" 413 " in big.recv(100)
        long = stack.enter_context(socket.create_connection((HOST, port), 5))
        long.sendall(b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n")
        assert b" 431 " in long.recv(100)
        began = time.monotonic()
        with socket.create_connection((HOST, port), 5) as honest:
            honest.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert b" 200 OK" in honest.recv(100)
        assert time.monotonic() - began < 2.5, "who waits for the others waits until they are cut off"
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 20:
                dripping.sendall(b"X: y\r\n")  # from the second on the cut shows
                time.sleep(0.3)
        assert time.monotonic() - began < 20
        for one in silent:
            assert one.recv(1) == b""
