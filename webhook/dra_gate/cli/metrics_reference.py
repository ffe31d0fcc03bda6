"""The reference page of metrics, made from what server and controller register.

`python -m dra_gate.cli.metrics_reference > docs/reference/metrics.md`
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import urllib3
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from dra_gate.allocation.capacity import Capacity
from dra_gate.cluster.client import Client
from dra_gate.controller.arbiter import ArbiterController
from dra_gate.controller.arbiter_metrics import ArbiterMetrics
from dra_gate.controller.arbiter_metrics import Standing as ArbiterStanding
from dra_gate.controller.arbiter_term import Desk
from dra_gate.controller.certificate_plan import Settings
from dra_gate.controller.certificates import CertificateController
from dra_gate.controller.counter import CounterController
from dra_gate.controller.decision_metrics import DecisionMetrics, Standing
from dra_gate.controller.decisions import DecisionController
from dra_gate.controller.footing import FootingController
from dra_gate.controller.gate import GateController
from dra_gate.controller.health import HealthController
from dra_gate.controller.metrics import Metrics as ControllerMetrics
from dra_gate.controller.returning import ReturnController
from dra_gate.controller.stops import StopController
from dra_gate.controller.templates import TemplateController
from dra_gate.server.metrics import Metrics as ServerMetrics

_HEAD = """# Metrics

<!-- Made by `python -m dra_gate.cli.metrics_reference` from what server and controller register. Do not edit. -->

Prometheus text on `/metrics` of the second port. Labels hold tenants, models and policies as the policy files name
them, and words of the gate's own: never the name of a Pod, a node or a device. The [alert
rules](../../deploy/monitoring/alerts.yaml) stand on them.
"""


@dataclass(frozen=True, slots=True)
class Described:
    """One metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


@dataclass
class _Nowhere:
    """Nothing is sent: the loops are made only to say what they count."""

    host: str = ""
    pool_manager: urllib3.PoolManager = field(default_factory=urllib3.PoolManager)

    def headers(self) -> dict[str, str]:
        return {}


def server_metrics() -> list[Described]:
    """What a replica of `dra-gate serve` counts."""
    return sorted(_described(ServerMetrics(certificate=lambda: (0.0, 0)).registry), key=lambda one: one.name)


def controller_metrics() -> list[Described]:
    """What `dra-gate controller` counts, with all of its options."""
    client = Client(lambda: _Nowhere())  # noqa: PLW0108 - the type is that of a function
    templates = TemplateController(client, identity="", leading=bool)
    day = dt.timedelta(days=1)
    settings = Settings(frozenset(["x"]), 9 * day, day, day)
    registry = ControllerMetrics([], bool).registry
    registry.register(GateController(client, templates, identity="", leading=bool))
    registry.register(FootingController(client, list, with_backstop=True, called=(), identity="", leading=lambda: True))
    registry.register(CertificateController(client, "", settings, identity="", leading=bool))
    registry.register(HealthController(client, list, list, recreate=True, identity="", leading=bool))
    caches = DecisionController(client, identity="", leading=bool)
    arbiting = ArbiterController(client, caches, leading=bool)
    registry.register(CounterController(client, caches, arbiting, leading=bool))
    registry.register(StopController(client, lambda *_: None, leading=bool))
    decisions, arbiter = DecisionMetrics(Standing), ArbiterMetrics(ArbiterStanding)
    desk = Desk(client, Capacity(), threading.Lock(), bool, arbiter)
    registry.register(ReturnController(client, desk, recreate=True, rate=1.0, identity="", leading=bool))
    registry.register(decisions)
    registry.register(arbiter)
    told = {one.name: one for one in _described(registry)}
    # A collector's own counters lose their labels on the way through it.
    told |= {one.name: one for counter in (*decisions.counters, *arbiter.counters) for one in _wrapped(counter)}
    return sorted(told.values(), key=lambda one: one.name)


def page() -> str:
    """The page as Markdown."""
    lines = [_HEAD]
    for title, metrics in (("Webhook replicas", server_metrics()), ("Controller", controller_metrics())):
        lines += [f"## {title}\n", "| metric | kind | labels | what |", "|---|---|---|---|"]
        for one in metrics:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.text} |")
        lines.append("")
    return "\n".join(lines)


def _described(registry: CollectorRegistry) -> Iterator[Described]:
    # prometheus-client says of which labels a metric has nowhere else than in these attributes.
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            yield from _wrapped(collector)
            continue
        for family in collector.collect():
            labels = getattr(family, "_labelnames", ())
            yield Described(_name(family.name, family.type), family.type, tuple(labels), family.documentation)


def _wrapped(metric: MetricWrapperBase) -> Iterator[Described]:
    family = next(iter(metric.collect()))
    yield Described(_name(family.name, family.type), family.type, tuple(metric._labelnames), family.documentation)


def _name(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


if __name__ == "__main__":
    sys.stdout.write(page())
