"""The metrics page: Prometheus' naming rules, and no label whose values a caller can make up."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dra_gate.server.metrics import BUCKETS, MODES, ROUTES, Metrics

VERDICTS = ("mutate", "admit", "deny", "warn", "shadow", "ignore", "bad-request", "unready", "late", "busy", "error")


def full() -> Metrics:
    """Metrics in which every family has a sample."""
    metrics = Metrics(
        sets=lambda: {"0" * 64: "active", "1" * 64: "accepted"},
        generation=lambda: 9,
        refusals=lambda: {"Invalid": 1},
        ages=lambda: {"pods": 1.5},
        namespaces=lambda: (3, 4),
        certificate=lambda: (123.0, 4),
        dropped=lambda: 5,
        connections=lambda: (6, 7),
    )
    for route in ROUTES:
        for verdict in VERDICTS:
            metrics.answered(route, verdict, "enforce", ("QUOTA",), 0.001)
    return metrics


def families(metrics: Metrics) -> list[Metric]:
    return list(text_string_to_metric_families(metrics.page().decode()))


def test_names_follow_prometheus_rules() -> None:
    """https://prometheus.io/docs/practices/naming/ and what `promtool check metrics` reports."""
    seen = families(full())
    assert len(seen) > 15
    for family in seen:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert re.match(r"(dra_gate|process)_", name), name
        assert family.documentation, name
        assert not re.search(r"_(counter|gauge|histogram|summary)(_|$)", name), f"{name} says its type"
        assert not re.search(r"(milliseconds|minutes|hours|kilobytes|megabytes|percent)", name), f"{name}: base units"
        if family.type != "counter":
            assert not family.name.endswith("_total"), name
        if family.type not in ("histogram", "summary"):
            assert not re.search(r"_(count|sum|bucket)$", name), name
        if re.search(r"(duration|age)", name):
            assert name.endswith("_seconds"), name
        if name.endswith("_info"):
            assert {sample.value for sample in family.samples} == {1.0}
        for sample in family.samples:
            for label in sample.labels:
                assert re.fullmatch(r"[a-z][a-z0-9_]*", label), label
                assert f"_by_{label}" not in name, f"{name} repeats its label {label}"


def test_what_a_scrape_asks_for() -> None:
    value = full().registry.get_sample_value
    assert value("dra_gate_policy_set_info", {"digest": "1" * 64, "state": "accepted"}) == 1
    assert value("dra_gate_gate_generation") == 9
    assert value("dra_gate_policy_set_refusals_total", {"code": "Invalid"}) == 1
    assert value("dra_gate_cache_age_seconds", {"cache": "pods"}) == 1.5
    assert value("dra_gate_tenant_namespaces", {"templates": "synced"}) == 3
    assert value("dra_gate_tenant_namespaces", {"templates": "waiting"}) == 4
    assert value("dra_gate_certificate_not_after_timestamp_seconds") == 123.0
    assert value("dra_gate_certificate_reload_failures_total") == 4
    assert value("dra_gate_decision_lines_dropped_total") == 5
    assert value("dra_gate_connections_open") == 6
    assert value("dra_gate_connections_turned_away_total") == 7


def test_buckets_go_from_1_millisecond_to_the_longest_timeout() -> None:
    assert (BUCKETS[0], BUCKETS[-1]) == (0.001, 3.0)
    metrics = Metrics()
    metrics.answered("mutate", "admit", "enforce", (), 0.0005)
    metrics.answered("mutate", "admit", "enforce", (), 2.5)
    value = metrics.registry.get_sample_value
    assert value("dra_gate_admission_duration_seconds_bucket", {"route": "mutate", "le": "0.001"}) == 1
    assert value("dra_gate_admission_duration_seconds_bucket", {"route": "mutate", "le": "3.0"}) == 2


@pytest.mark.parametrize("route", ROUTES)
def test_misses_and_stale_verdicts_exist_before_the_first(route: str) -> None:
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    assert value("dra_gate_admission_deadline_misses_total", {"route": route, "judged": "false"}) == 0
    metrics.missed(route, judged=False)
    metrics.judged_stale(route)
    assert value("dra_gate_admission_deadline_misses_total", {"route": route, "judged": "false"}) == 1
    assert value("dra_gate_admission_stale_verdicts_total", {"route": route}) == 1


def _nonsense(count: int) -> Iterable[str]:
    draw = random.Random(7)
    for _ in range(count):
        yield "".join(draw.choices(string.printable + "µ😀\u2028", k=draw.randint(0, 80)))


def _series(metrics: Metrics) -> set[tuple[str, tuple[Any, ...]]]:
    return {(s.name, tuple(sorted(s.labels.items()))) for family in families(metrics) for s in family.samples}


def test_hostile_values_make_no_series() -> None:
    metrics = full()
    before = len(_series(metrics))
    for text in _nonsense(3000):
        metrics.answered("validate", "deny", text, (text, text.upper()), 0.001)
    made_up = [f"CODE_{number}" for number in range(3000)]
    for code in made_up:
        metrics.answered("validate", "deny", "enforce", (code,), 0.001)
    after = _series(metrics)
    assert len(after) - before < 1000, "nonsense is OTHER, codes beyond any registry are OTHER, unknown modes are none"
    labels = {
        value
        for name, pairs in after
        if name == "dra_gate_admission_findings_total"
        for key, value in pairs
        if key == "mode"
    }
    assert labels <= {*MODES, "none"}
    other = metrics.registry.get_sample_value("dra_gate_admission_findings_total", {"code": "OTHER", "mode": "enforce"})
    assert other is not None
    assert other > 2000


def test_nonsense_costs_no_memory_either() -> None:
    metrics = Metrics()
    for text in _nonsense(2000):
        metrics.answered("validate", "deny", text, (text,), 0.001)
    assert len(metrics._verdicts) + len(metrics._codes) < 10
