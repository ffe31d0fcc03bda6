"""What the operators' pages point to is there: files, headings, reason codes, metrics, options."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from dra_gate.admission.rules import ALL
from dra_gate.fairness.events import Reason

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "certs" / "README.md",
    ROOT / "docs" / "design.md",
    ROOT / "docs" / "install.md",
    ROOT / "docs" / "migration.md",
    ROOT / "docs" / "support.md",
    *sorted((ROOT / "docs" / "operations").glob("*.md")),
]
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "webhook").rglob("*.py")))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST = re.compile(r"\[`(test_\w+)`\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found), target


def test_the_design_names_tests_that_are_where_it_says() -> None:
    page = ROOT / "docs" / "design.md"
    named = _TEST.findall(page.read_text())
    assert len(named) == page.read_text().count("`test_"), "a name that is written in another way is not checked"
    assert [name for name, file in named if f"\ndef {name}(" not in (page.parent / file).read_text()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_and_options_exist(page: Path) -> None:
    for metric in re.findall(r"`(dra_gate_\w+)", page.read_text()):
        assert re.sub(r"_total$", "", metric) in SOURCE, metric
    ours = re.findall(r"`dra-gate [^`]*`|^    dra-gate .*$|^dra-gate .*$", page.read_text(), re.MULTILINE)
    for option in {option for command in ours for option in re.findall(r" (--[a-z-]+)", command.split("|")[0])} - {
        "--version"
    }:
        assert f'"{option}"' in SOURCE, option


def test_every_reason_code_has_a_line_among_the_symptoms() -> None:
    text = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
    for rule in ALL:
        assert f"`{rule.code}`" in text, rule.code


def test_every_reason_to_wait_has_a_row() -> None:
    rows = [
        row for row in (ROOT / "docs" / "operations" / "fair-sharing.md").read_text().splitlines() if row[:3] == "| `"
    ]
    for reason in get_args(Reason):
        assert any(f"`{reason}`" in row for row in rows), reason


def test_keys_that_the_documents_tell_people_to_make_are_not_committed() -> None:
    made = ["certs/local/ca.key", "certs/local/tls.key", "certs/local/tls.crt", "emergency/tls.key", "anywhere/tls.key"]
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == made
