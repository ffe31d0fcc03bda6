"""The controller's pages: what they show, that they escape, and that a fault in them is told to nobody but the log."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dra_gate.allocation.capacity import CandidateCounts, ModelCapacity, Unusable
from dra_gate.allocation.record import ClaimDecision, DecisionRecord, passed_over
from dra_gate.controller.http import HEADERS, StatusServer
from dra_gate.controller.pages import Pages, Seen
from dra_gate.fairness.view import (
    NOTHING_KNOWN,
    Estimate,
    Lender,
    Loan,
    ModelUse,
    ModelView,
    QueueView,
    Refused,
    TenantView,
    WaitingPod,
)
from dra_gate.migration.cohort import HOUR, Mark
from dra_gate.migration.cohort import Key as Cohort
from dra_gate.migration.report import Report, report, window
from migration.simulated import START, USUAL, simulate

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


def waiting(number: int, **change: object) -> WaitingPod:
    return WaitingPod(
        number, f"u{number}", f"research-train/{'very-long-' * 9}{number}", "train@1", 2, ("h100",), ("a100",), 600,
        "h100", "", 0, 0, 3_600_000, aged=True, reason="Share", text="h100: 2 free, kept", overtaken=3,
        estimate=Estimate(12, "5 devices ahead"), **change,  # type: ignore[arg-type]
    )  # fmt: skip


QUEUE = QueueView(
    at=3_600_000,
    known=True,
    models=(
        ModelView("h100", 8, 2, 1, 400, 7_200_000, 5, 3_600_000, (Loan("maple", 4),), (Lender("birch", 4, 2),)),
        ModelView("l40s", 0, 0, 0, 0, None, 0, 0, (), ()),
    ),
    tenants=(
        TenantView("birch", None, 0, 0, None, (), 0, (), 0, 0, None, 0),
        TenantView(
            EVIL, 3, 8, 1, 16, (ModelUse("h100", 8, 1, 4, 8, 2, 4),), 1,
            tuple(waiting(number) for number in range(1, 201)), 201, 402, 3_600_000, 3,
        ),
    ),
    refused=(Refused("a/thief", "maple", "NameTaken", "another Pod was first"),),
)  # fmt: skip


@contextmanager
def serving(
    seen: Seen | None, queue: QueueView = QUEUE, found: Report | None = None, stops: tuple[str, ...] = ()
) -> Iterator[str]:
    def compared(_hours: int, _failures: float) -> Report | None:
        return found

    def look() -> Seen:
        if seen is None:
            raise RuntimeError("secret")
        return seen

    pages = Pages(look, lambda: queue, compared, lambda: stops).paths()
    server = StatusServer("127.0.0.1", 0, metrics=bytes, problems=list, pages=pages)
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
        if tag not in ("meta", "link", "br"):
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


def test_how_the_lanes_compare() -> None:
    cohorts = simulate(replace(USUAL, success=0.8), USUAL, (300, 300), 5)
    cohorts.cell(START, Cohort("dra", EVIL, 1, EVIL)).submitted += 3
    cohorts.mark(Mark(START + HOUR, EVIL))
    hours = window(cohorts, 24)
    assert hours is not None
    with serving(SEEN, found=report(cohorts, *hours, 0.05)) as url:
        page, _ = get(url + "/canary")
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert page.count("<svg") == 8
    for shown in ("Stop: Failures", "By tenant", "team-1", "device-hours held", "&lt;img"):
        assert shown in page, shown
    assert EVIL not in page
    with serving(SEEN, stops=(f"the controller paused the plan: {EVIL}",)) as url:
        page, _ = get(url + "/canary")
    assert "another replica leads" in page
    assert "the controller paused the plan" in page
    assert EVIL not in page


def test_nothing_yet() -> None:
    with serving(Seen(ready=False, models={}, doubled={}, recent=[])) as url:
        page, _ = get(url + "/fleet")
    assert "Not all is known yet" in page
    assert "No model is known." in page
    assert "None since this controller leads." in page


def test_who_waits() -> None:
    with serving(SEEN) as url:
        page, _ = get(url + "/queue")
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert EVIL not in page
    shown = " ".join(page.split())
    for text in (
        'maple <strong>+4</strong> from birch (4 unused, <span class="warn">2 wanted</span>)',
        "8, share 4, quota 8, reserve 2, 1 of it granted",
        'aria-label="8 held, share 4, quota 8"', '<rect class="above" x="50.0" width="50.0"', "8 of 16",
        "201 Pods, 402 devices", "the first 200 of 201", "after 10 min also a100", "overtaken 3 times",
        "in its turn kept for it",
        "about 12 min: 5 devices ahead", "h100: 2 free, kept", "200</td>",
        "NameTaken</span> another Pod was first",
    ):  # fmt: skip
        assert text in shown, text


def test_the_page_stays_readable_where_thousands_wait() -> None:
    own = TenantView("t", 1, 0, 0, None, (), 0, tuple(waiting(n) for n in range(1, 51)), 50, 50, 1000, 0)
    many = replace(QUEUE, tenants=tuple(replace(own, name=f"t{number:02}") for number in range(20)))
    with serving(SEEN, many) as url:
        page, _ = get(url + "/queue")
    assert page.count("about 12 min") == 500
    assert "500 more Pods of other tenants wait" in page


def test_nobody_waits_and_nothing_is_known() -> None:
    with serving(SEEN, replace(QUEUE, tenants=())) as url:
        assert "Nobody waits." in get(url + "/queue")[0]
    with serving(SEEN, NOTHING_KNOWN) as url:
        page, _ = get(url + "/queue")
    assert "another replica leads" in page
    assert "Nobody waits." not in page


def test_a_fault_is_told_to_the_log_only() -> None:
    with serving(None) as url:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(url + "/fleet")
        assert caught.value.code == 500
        assert "secret" not in caught.value.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url + "/else")
