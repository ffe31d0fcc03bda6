"""What the server counts, as Prometheus text. No label ever holds a name that a user chose, so series stay few.

One process, one registry of its own: prometheus-client's multi-process mode loses gauges and grows with every restart.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_gate import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)  # seconds
ROUTES = ("mutate", "validate")


class _AtScrape(Collector):
    """Values that are asked for when somebody scrapes, so that the hot path never pays for them."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


class Metrics:
    """The gate's metrics. `policy_set` is the digest that is served; the callables are asked at each scrape.

    `ages` gives seconds since each reflector last heard from the API server; `certificate` gives the serving
    certificate's notAfter (seconds since the epoch) and how many changed pairs could not be loaded; `dropped` gives
    decision lines lost.
    """

    def __init__(
        self,
        *,
        policy_set: str,
        ages: Callable[[], Mapping[str, float]] = dict,
        certificate: Callable[[], tuple[float, int]] | None = None,
        dropped: Callable[[], int] = int,
    ) -> None:
        self._ages = ages
        self._certificate = certificate
        self._dropped = dropped
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "dra_gate_admission_requests",
            "Requests answered, by route and verdict (error: our own fault; bad-request: not an AdmissionReview).",
            ["route", "verdict"],
            registry=self.registry,
        )
        duration = Histogram(
            "dra_gate_admission_duration_seconds",
            "From the request's headers to the answer handed to the socket.",
            ["route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._denials = Counter(
            "dra_gate_admission_denials", "Reasons of refused requests, by code.", ["code"], registry=self.registry
        )
        build = Gauge("dra_gate_build_info", "1, labelled by version.", ["version", "python"], registry=self.registry)
        build.labels(__version__, platform.python_version()).set(1)
        served = Gauge("dra_gate_policy_set_info", "1, labelled by digest.", ["digest"], registry=self.registry)
        served.labels(policy_set).set(1)
        ProcessCollector(registry=self.registry)
        self.registry.register(_AtScrape(self._scraped))
        # labels() costs more than inc(): the children that every request touches are looked up once.
        self._duration = {route: duration.labels(route) for route in ROUTES}
        self._verdicts: dict[tuple[str, str], Counter] = {}
        self._codes: dict[str, Counter] = {}

    def answered(self, route: str, verdict: str, reasons: Iterable[str], seconds: float) -> None:
        """Count one answer. Codes are counted for denials only."""
        child = self._verdicts.get((route, verdict))
        if child is None:
            child = self._verdicts[route, verdict] = self._requests.labels(route, verdict)
        child.inc()
        self._duration[route].observe(seconds)
        if verdict == "deny":
            for code in reasons:
                counter = self._codes.get(code)
                if counter is None:
                    counter = self._codes[code] = self._denials.labels(code)
                counter.inc()

    def page(self) -> bytes:
        """The text format page."""
        return generate_latest(self.registry)

    def _scraped(self) -> Iterable[Metric]:
        age = GaugeMetricFamily(
            "dra_gate_cache_age_seconds",
            "Seconds since a reflector last heard from the API server.",
            labels=["reflector"],
        )
        for name, seconds in self._ages().items():
            age.add_metric([name], seconds)
        yield age
        yield CounterMetricFamily(
            "dra_gate_decision_lines_dropped", "Decision lines lost because nobody read them.", value=self._dropped()
        )
        if self._certificate is not None:
            not_after, failures = self._certificate()
            yield GaugeMetricFamily(
                "dra_gate_certificate_not_after_seconds",
                "When the serving certificate ends, in seconds since the epoch.",
                value=not_after,
            )
            yield CounterMetricFamily(
                "dra_gate_certificate_reload_failures",
                "Changed certificate pairs that could not be loaded.",
                value=failures,
            )
