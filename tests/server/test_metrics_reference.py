"""The reference page of metrics is what the code registers."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dra_gate.cli.metrics_reference import controller_metrics, page, server_metrics
from server.test_metrics import full

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m dra_gate.cli.metrics_reference > docs/reference/metrics.md"


def test_it_knows_the_labels_that_a_scrape_shows() -> None:
    known = {one.name: set(one.labels) for one in server_metrics()}
    for family in text_string_to_metric_families(full().page().decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        shown = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert shown <= known[name], name


def test_nothing_is_labelled_by_what_users_name() -> None:
    allowed = {
        "action", "cache", "certificate", "class", "code", "digest", "exception", "judged", "mode", "model", "outcome",
        "policy", "python", "rank", "reason", "route", "rule", "running", "state", "templates", "tenant", "tier", "to",
        "verb", "verdict", "version", "what",
    }  # fmt: skip
    ours = {"kind", "name"}  # of the gate's own objects
    for one in (*server_metrics(), *controller_metrics()):
        assert set(one.labels) <= (ours if one.name == "dra_gate_footing_intact" else allowed), one
        assert one.text.rstrip("."), one
        assert "|" not in one.text, one
