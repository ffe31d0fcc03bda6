"""What the controller counts, as Prometheus text. No label holds a name that a user chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_gate import __version__
from dra_gate.cluster.reflector import Reflector


class Metrics(Collector):
    """The controller's metrics in a registry of their own; what is cheap to ask is asked when somebody scrapes."""

    def __init__(self, reflectors: Iterable[Reflector], leading: Callable[[], bool]) -> None:
        self._reflectors = tuple(reflectors)
        self._leading = leading
        self.registry = CollectorRegistry()
        self._writes = Counter(
            "dra_gate_controller_writes",
            "Writes by what was done and what came of it (done, stale: the cluster was ahead of us, error).",
            ["verb", "outcome"],
            registry=self.registry,
        )
        self._foreign = Gauge(
            "dra_gate_controller_foreign_templates",
            "Names of needed templates that are taken by somebody else's object.",
            registry=self.registry,
        )
        info = Gauge("dra_gate_controller_info", "Always 1.", ["version"], registry=self.registry)
        info.labels(__version__).set(1)
        self.registry.register(self)

    def watch(self, reflectors: Iterable[Reflector]) -> None:
        """Tell of these caches, too."""
        self._reflectors += tuple(reflectors)

    def wrote(self, verb: str, outcome: str) -> None:
        """Count one write."""
        self._writes.labels(verb, outcome).inc()

    def foreign(self, count: int) -> None:
        """How many needed names are taken by somebody else's object."""
        self._foreign.set(count)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Leadership and the caches, at scrape time."""
        yield GaugeMetricFamily("dra_gate_controller_leader", "1 while this replica leads.", float(self._leading()))
        age = GaugeMetricFamily(
            "dra_gate_cache_age_seconds", "Since the API server was last heard, by cache.", labels=["cache"]
        )
        synced = GaugeMetricFamily("dra_gate_cache_synced", "1 after the first complete list.", labels=["cache"])
        failures = CounterMetricFamily("dra_gate_cache_failures", "Failed lists and watches.", labels=["cache"])
        sink = CounterMetricFamily("dra_gate_cache_sink_failures", "Objects that could not be taken.", labels=["cache"])
        for reflector in self._reflectors:
            age.add_metric([reflector.name], reflector.age())
            synced.add_metric([reflector.name], float(reflector.synced.is_set()))
            failures.add_metric([reflector.name], reflector.failures)
            sink.add_metric([reflector.name], reflector.sink_failures)
        yield from (age, synced, failures, sink)
