"""The report says the same in each form, whatever names it meets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from dra_gate.cli.canary import command
from dra_gate.migration.cohort import HOUR, Cohorts, Key, Mark
from dra_gate.migration.compare import ERROR, compare
from dra_gate.migration.plot import WIDTH
from dra_gate.migration.report import as_html, as_json, as_text, report
from migration.simulated import HOURS, START, USUAL, simulate

END = START + HOURS * HOUR


@pytest.fixture
def worse() -> Cohorts:
    cohorts = simulate(replace(USUAL, success=0.8), USUAL, (600, 600), 5)
    cohorts.mark(Mark(START + HOUR, "wave 2: <6> namespaces & more"))
    cohorts.mark(Mark(END + HOUR, "after the window"))
    return cohorts


def test_all_forms_say_it(worse: Cohorts) -> None:
    found = report(worse, START, END, 0.05)
    text, html, told = as_text(found), as_html(found), as_json(found)
    assert text.startswith("DRA beside device plugins: worse")
    assert "STOP Failures" in text
    assert told["whole"]["verdict"] == "worse"
    assert json.loads(json.dumps(told, allow_nan=False)) == json.loads(json.dumps(told))
    assert "wave 2: &lt;6&gt; namespaces &amp; more" in html
    for name in ("team-0", "team-1", "team-2", "a100", "h100"):
        assert name in text
        assert name in html
    assert "after the window" not in text + html + json.dumps(told)


def test_every_plot_is_one_and_nothing_is_fetched(worse: Cohorts) -> None:
    worse.cell(START, Key("dra", "<script>", 1, "<b>")).submitted += 3
    html = as_html(report(worse, START, END, 0.05))
    plots = [part.partition("</svg>")[0] + "</svg>" for part in html.split("<svg")[1:]]
    assert len(plots) == 8
    for plot in plots:
        ET.fromstring("<svg" + plot)
    assert "<script" not in html
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, attributes))  # type: ignore[method-assign]
    parser.feed(html)
    assert not [one for one in tags if one[0] in ("script", "link", "img") or dict(one[1]).keys() & {"src", "href"}]


def test_parts_share_the_error_and_are_not_more_certain_than_the_whole(worse: Cohorts) -> None:
    found = report(worse, START, END, 0.05)
    assert list(found.tenants) == sorted(found.tenants, key=lambda name: -found.tenants[name].pods["dra"])
    assert len(found.tenants) == 3
    for name, part in found.tenants.items():
        assert part == compare(worse, START, END, error=ERROR / 3, tenant=name)
    assert found.models["a100"] == compare(worse, START, END, error=ERROR / 2, first="a100")


def test_worse_is_to_the_left(worse: Cohorts) -> None:
    slow = simulate(replace(USUAL, median=80), USUAL, (600, 600), 5)
    for cohorts, name in ((worse, "success"), (slow, "bound-p50")):
        html = as_html(report(cohorts, START, END, 0.05))
        row = html.partition(f">{name}: worse</text>")[2]
        found = re.match(r'\s*<line x1="([\d.]+)" x2="([\d.]+)".*?<circle cx="([\d.]+)"', row)
        assert found
        low, high, value = map(float, found.groups())
        assert low <= value <= high < 0.62 * WIDTH


def test_one_lane_alone_is_reported_too() -> None:
    found = report(simulate(USUAL, USUAL, (20, 0), 0), START, END, 0.05)
    assert "too few" in as_text(found)
    assert "</html>" in as_html(found)


def test_what_is_longer_than_anything_that_is_counted_is_said_without_digits() -> None:
    text = as_text(report(simulate(replace(USUAL, median=1e7), USUAL, (300, 300), 5), START, END, 0.05))
    (row,) = [line for line in text.splitlines() if line.startswith("bound-p50")]
    assert "over 29 h, or not bound (n " in row
    assert "×over 1,000 (" in row


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["report", *words])
    return result.exit_code, result.output


def test_the_command(worse: Cohorts, tmp_path: Path) -> None:
    file = tmp_path / "cohorts.json"
    file.write_bytes(worse.dumps())
    code, text = run("--cohorts", str(file))
    assert (code, "success" in text, "STOP" in text) == (1, True, True)
    code, text = run("--cohorts", str(file), "-o", "json", "--last", "2")
    told = json.loads(text)
    assert told["whole"]["since"] == END - 2 * HOUR
    code, text = run("--cohorts", str(file), "-o", "html")
    assert text.startswith("<!doctype html>")
    file.write_bytes(simulate(USUAL, USUAL, (400, 400), 1).dumps())
    assert run("--cohorts", str(file))[0] == 0
    code, text = run("--cohorts", str(file), "--failures", "0.01")
    assert (code, "STOP" in text) == (1, True)
    file.write_text("{}")
    assert run("--cohorts", str(file))[0] == 2
    assert run("--cohorts", str(tmp_path / "none"))[0] == 2
