"""What the server counts, as Prometheus text. No label ever holds a name that a user chose, so series stay few.

One process, one registry of its own: prometheus-client's multi-process mode loses gauges and grows with every restart.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_gate import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)  # seconds
ROUTES = ("mutate", "validate")
MODES = ("enforce", "warn", "shadow")
_NO_MODE = "none"  # the request was not judged, or nobody's business
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_CODES = 100  # the registry of rules has fewer; whatever comes beyond counts as OTHER


class _AtScrape(Collector):
    """Values that are asked for when somebody scrapes, so that the hot path never pays for them."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


class Metrics:
    """The gate's metrics. The callables are asked at each scrape.

    `sets` gives the policy sets that count, digest to state (active or accepted), and `generation` that of the Gate
    that says so; `refusals` published sets that were refused, by code. `ages` gives seconds since each cache last heard
    from the API server; `namespaces` how many gated namespaces of tenants have templates of their policy and how many
    wait for them. `certificate` gives the serving certificate's notAfter (seconds since the epoch) and how many changed
    pairs could not be loaded; `dropped` decision lines and `unrecorded` reviews lost; `connections` how many are open
    and how many were ended for being silent or one too many.
    """

    def __init__(
        self,
        *,
        sets: Callable[[], Mapping[str, str]] = dict,
        generation: Callable[[], int] = int,
        refusals: Callable[[], Mapping[str, int]] = dict,
        ages: Callable[[], Mapping[str, float]] = dict,
        namespaces: Callable[[], tuple[int, int]] = lambda: (0, 0),
        certificate: Callable[[], tuple[float, int]] | None = None,
        dropped: Callable[[], int] = int,
        unrecorded: Callable[[], int] = int,
        connections: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._sets = sets
        self._generation = generation
        self._ages = ages
        self._refusals = refusals
        self._namespaces = namespaces
        self._certificate = certificate
        self._dropped = dropped
        self._unrecorded = unrecorded
        self._connections = connections
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each first one, which nobody asks for
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "dra_gate_admission_requests",
            "Requests answered, by route, verdict and the namespace's mode. Beside verdicts: error (our own fault), "
            "bad-request (no AdmissionReview), unready, late (the caller had gone), busy.",
            ["route", "verdict", "mode"],
            registry=self.registry,
        )
        duration = Histogram(
            "dra_gate_admission_duration_seconds",
            "From the request's arrival on this machine to the answer handed to the socket.",
            ["route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._findings = Counter(
            "dra_gate_admission_findings",
            "Reasons to refuse, by code and mode: refused in enforce, told in warn, recorded in shadow.",
            ["code", "mode"],
            registry=self.registry,
        )
        missed = Counter(
            "dra_gate_admission_deadline_misses",
            "Requests whose caller had stopped waiting before the answer, by route and whether they were judged.",
            ["route", "judged"],
            registry=self.registry,
        )
        stale = Counter(
            "dra_gate_admission_stale_verdicts",
            "Verdicts from caches that had not heard from the API server for too long.",
            ["route"],
            registry=self.registry,
        )
        build = Gauge("dra_gate_build_info", "1, labelled by version.", ["version", "python"], registry=self.registry)
        build.labels(__version__, platform.python_version()).set(1)
        ProcessCollector(registry=self.registry)
        self.registry.register(_AtScrape(self._scraped))
        # labels() costs more than inc(): the children that every request touches are looked up once. All that can be
        # named beforehand exist from the start, so that their first increase is seen as one.
        self._duration = {route: duration.labels(route) for route in ROUTES}
        self._missed = {
            (route, judged): missed.labels(route, str(judged).lower()) for route in ROUTES for judged in (True, False)
        }
        self._stale = {route: stale.labels(route) for route in ROUTES}
        self._verdicts: dict[tuple[str, str, str], Counter] = {}
        self._codes: dict[tuple[str, str], Counter] = {}
        self._exceptions = Counter(
            "dra_gate_exceptions_used",
            "Verdicts that would have had more findings without this exception of the policies.",
            ["exception"],
            registry=self.registry,
        )
        self._excepting: dict[str, Counter] = {}

    def answered(self, route: str, verdict: str, mode: str, codes: Iterable[str], seconds: float) -> None:
        """Count one answer and its reasons, whatever the mode made of them."""
        child = self._verdicts.get((route, verdict, mode))
        if child is None:
            child = self._verdicts[route, verdict, _known(mode)] = self._requests.labels(route, verdict, _known(mode))
        child.inc()
        self._duration[route].observe(seconds)
        for code in codes:
            counter = self._codes.get((code, mode))
            if counter is None:
                counter = self._code(code, mode)
            counter.inc()

    def excepted(self, names: Iterable[str]) -> None:
        """Count the exceptions that a verdict leaned on. Names are the policies': there are few."""
        for name in names:
            child = self._excepting.get(name)
            if child is None:
                child = self._excepting[name] = self._exceptions.labels(name)
            child.inc()

    def missed(self, route: str, *, judged: bool) -> None:
        """Count an answer that came after its caller had gone."""
        self._missed[route, judged].inc()

    def judged_stale(self, route: str) -> None:
        """Count a verdict from stale caches."""
        self._stale[route].inc()

    def page(self) -> bytes:
        """The text format page."""
        return generate_latest(self.registry)

    def _code(self, code: str, mode: str) -> Counter:
        if len(self._codes) >= _CODES * len(MODES) or not _CODE.fullmatch(code):
            return self._findings.labels("OTHER", _known(mode))
        counter = self._codes[code, _known(mode)] = self._findings.labels(code, _known(mode))
        return counter

    def _scraped(self) -> Iterable[Metric]:
        sets = GaugeMetricFamily(
            "dra_gate_policy_set_info", "1, labelled by digest and state.", labels=["digest", "state"]
        )
        for digest, state in self._sets().items():
            sets.add_metric([digest, state], 1)
        yield sets
        yield GaugeMetricFamily(
            "dra_gate_gate_generation",
            "metadata.generation of the Gate that this process goes by, lanes included; 0 without one.",
            value=self._generation(),
        )
        age = GaugeMetricFamily(
            "dra_gate_cache_age_seconds", "Seconds since the API server was last heard, by cache.", labels=["cache"]
        )
        for name, seconds in self._ages().items():
            age.add_metric([name], seconds)
        yield age
        refusals = CounterMetricFamily(
            "dra_gate_policy_set_refusals", "Published policy sets that can't be used, by code.", labels=["code"]
        )
        for code, count in self._refusals().items():
            refusals.add_metric([code], count)
        yield refusals
        namespaces = GaugeMetricFamily(
            "dra_gate_tenant_namespaces",
            "Gated namespaces of tenants, by whether templates of their policy are there (synced) or not (waiting).",
            labels=["templates"],
        )
        for state, count in zip(("synced", "waiting"), self._namespaces(), strict=True):
            namespaces.add_metric([state], count)
        yield namespaces
        yield CounterMetricFamily(
            "dra_gate_decision_lines_dropped", "Decision lines lost because nobody read them.", value=self._dropped()
        )
        yield CounterMetricFamily(
            "dra_gate_reviews_unrecorded",
            "Reviews that --record left out: too large, too many at once, or the disk took none.",
            value=self._unrecorded(),
        )
        open_now, turned_away = self._connections()
        yield GaugeMetricFamily("dra_gate_connections_open", "TLS connections that are open now.", value=open_now)
        yield CounterMetricFamily(
            "dra_gate_connections_turned_away",
            "Connections ended because they were silent for too long or one too many.",
            value=turned_away,
        )
        if self._certificate is not None:
            not_after, failures = self._certificate()
            yield GaugeMetricFamily(
                "dra_gate_certificate_not_after_timestamp_seconds",
                "When the serving certificate ends, in seconds since the epoch.",
                value=not_after,
            )
            yield CounterMetricFamily(
                "dra_gate_certificate_reload_failures",
                "Changed certificate pairs that could not be loaded.",
                value=failures,
            )


def _known(mode: str) -> str:
    return mode if mode in MODES else _NO_MODE
