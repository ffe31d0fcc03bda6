"""The alert rules stand on metrics that exist, with labels that they have and names that the API server uses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.api import ApiError, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from dra_gate.cli.metrics_reference import controller_metrics
from dra_gate.cluster.client import Client, NotFound
from dra_gate.controller.footing import FootingController
from dra_gate.controller.metrics import Metrics as ControllerMetrics
from dra_gate.policy.model import Settings
from e2e import scene
from server.test_metrics import full

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
WORDS = {"absent", "by", "count", "histogram_quantile", "increase", "le", "max", "min", "rate", "sum", "time"}
API_SERVER = {
    "apiserver_admission_webhook_fail_open_count",
    "apiserver_admission_webhook_rejection_count",
    "apiserver_admission_webhook_admission_duration_seconds_bucket",
}
WEBHOOKS = [
    hook["name"]
    for document in yaml.safe_load_all((ROOT / "deploy" / "base" / "webhook-configurations.yaml").read_text())
    for hook in document["webhooks"]
]


def labels_of(pages: list[bytes]) -> dict[str, set[str]]:
    """Labels by sample name."""
    found: dict[str, set[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def footing_page() -> bytes:
    """What a controller says that finds nothing where it looks."""
    client = create_autospec(Client, instance=True)
    client.get.side_effect = NotFound(404, "NotFound", "")
    footing = FootingController(
        client, lambda: [Settings()], with_backstop=False, called=(), identity="t", leading=lambda: True
    )
    footing.look()
    registry = CollectorRegistry()
    registry.register(footing)
    return generate_latest(registry)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_a_rule_stands_on_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    known = labels_of([full().page(), ControllerMetrics([], lambda: True).text(), footing_page()])
    known |= {one.name: set(one.labels) for one in controller_metrics()}
    expression: str = rule["expr"]
    selected = re.findall(r"\b((?:dra_gate|apiserver)_\w+)\s*(?:\{([^}]*)\})?", expression)
    assert selected
    for name, matchers in selected:
        assert name in known or name in API_SERVER, name
        if name in known:
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= known[name], name
        else:
            pattern = re.search(r'name=~"([^"]*)"', matchers)
            assert pattern is not None
            assert all(re.fullmatch(pattern[1], hook) for hook in WEBHOOKS), "it must be about our webhooks"
            assert not re.fullmatch(pattern[1], "mutate.example.io"), "and about no others"
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        for label in grouped.split(", "):
            assert label in {"le", "name"} or any(label in known.get(name, ()) for name, _ in selected), label
    shown = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
    kept = {label for grouped in re.findall(r"by \(([^)]*)\)", expression) for label in grouped.split(", ")}
    assert set(shown) <= kept, "a label that is shown must survive the expression"
    assert expression.count("(") == expression.count(")")
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")


@pytest.mark.controlplane
def test_the_api_server_counts_what_the_rules_ask_for(control_plane: ControlPlane, install_fleet: InstallFleet) -> None:
    install_fleet("demo")
    api = control_plane.api()
    namespace = scene.namespace(api, "alerts", {"dra-gate.io/lane": "dra"})
    with Gate(control_plane, ROOT / "policies") as gate:
        gate.stop(kill=True)
        with pytest.raises(ApiError):
            api.create(scene.pod("device"), namespace)

        def counted() -> bool:
            page = api.request("GET", "/metrics").body
            names = {
                name for name in API_SERVER if re.search(rf'^{name}\{{.*name="\w+\.dra-gate\.io"', page, re.MULTILINE)
            }
            return names == API_SERVER

        wait_for(counted, 10, "the API server's metrics")
        page = api.request("GET", "/metrics").body
        assert re.search(r'fail_open_count\{name="mutate\.dra-gate\.io".*\} [1-9]', page)
        assert re.search(r'rejection_count\{error_type="calling_webhook_error",name="validate\.dra-gate\.io"', page)
