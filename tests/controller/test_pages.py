"""The controller's page: what it shows, that it escapes, and that a fault in it is told to nobody but the log."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import pytest

from dra_gate.allocation.capacity import CandidateCounts, ModelCapacity, Unusable
from dra_gate.allocation.record import ClaimDecision, DecisionRecord, passed_over
from dra_gate.controller.http import HEADERS, StatusServer
from dra_gate.controller.pages import Pages, Seen

EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


def record(outcome: str = "allocated", **change: str) -> DecisionRecord:
    counts = (CandidateCounts("h100", 4, 4, 4, 4, own=1),)
    claims = (ClaimDecision("gate-0", "x", 1, ("h100", "a100"), "a100", 2, ("ampere/gpu-0",)),)
    return DecisionRecord(
        "m1", "pod", "u", 1, outcome, "train@1", "", "maple", "dra", claims, counts, "a100", 2,  # type: ignore[arg-type]
        passed_over(counts, 2, 1, ""), at=1_796_036_400.0, **change,  # type: ignore[arg-type]
    )  # fmt: skip


SEEN = Seen(
    ready=True,
    models={
        "h100": ModelCapacity(8, 6, 2, {"maple": 3, "": 1}, {"taint bad:NoSchedule": Unusable(2, 7200.0)}),
        "l40s": ModelCapacity(),
    },
    doubled={("gpu.nvidia.com", "hopper", "gpu-7"): (("a", "x"), ("b", "y"))},
    recent=[record(), record("waiting", klass="waiting", reason="no-device", text=EVIL)],
)


@contextmanager
def serving(seen: Seen | None) -> Iterator[str]:
    def look() -> Seen:
        if seen is None:
            raise RuntimeError("secret")
        return seen

    server = StatusServer("127.0.0.1", 0, metrics=bytes, problems=list, pages=Pages(look).paths())
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.close()


def get(url: str) -> tuple[str, dict[str, str]]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode(), dict(answer.headers)


class _Tags(HTMLParser):
    """Text by tag; nothing runs, nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "iframe", "form", "style")
        assert not any(name.startswith("on") or name == "style" for name, _ in attributes)
        assert all((value or "").startswith("/") for name, value in attributes if name in ("href", "src"))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_fleet_and_the_decisions() -> None:
    with serving(SEEN) as url:
        page, headers = get(url + "/fleet")
        style, _ = get(url + "/style.css")
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    for shown in (
        "maple: 3", "no tenant: 1", "taint bad:NoSchedule: 2, for 2 h at most", "gpu.nvidia.com/hopper/gpu-7",
        "a100, rank 2 of 2", "h100: all 4 in use, 1 by this tenant.", "2026-11-30 11:00:00", "waiting: &lt;img",
    ):  # fmt: skip
        assert shown in page, shown
    assert page.index("waiting: &lt;img") < page.index("a100: given"), "newest first"
    assert EVIL not in page
    assert set(HEADERS) <= set(headers.items())
    assert ".scroll" in style


def test_nothing_yet() -> None:
    with serving(Seen(ready=False, models={}, doubled={}, recent=[])) as url:
        page, _ = get(url + "/fleet")
    assert "Not all is known yet" in page
    assert "No model is known." in page
    assert "None since this controller leads." in page


def test_a_fault_is_told_to_the_log_only() -> None:
    with serving(None) as url:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(url + "/fleet")
        assert caught.value.code == 500
        assert "secret" not in caught.value.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url + "/else")
