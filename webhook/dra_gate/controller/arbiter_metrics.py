"""What the arbiter's loop counts. Labels are tenants, models and words of the gate's own: bounded all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_gate.fairness.checker import RULES
from dra_gate.fairness.events import Granted

_WAITS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand when somebody asks; all of it is empty where another replica leads."""

    leads: bool = False
    waiting: Mapping[tuple[str, str], int] = field(default_factory=dict)  # tenant and reason
    oldest: Mapping[str, float] = field(default_factory=dict)  # tenant -> seconds
    open: Mapping[str, int] = field(default_factory=dict)
    drift: int = 0
    dropped: int = 0


class ArbiterMetrics(Collector):
    """Counters of what was decided and written, and how things stand at scrape time."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing
        self._granted = Counter(
            "dra_gate_grants",
            "Pods granted, by the model that they were granted in (none: claims from templates) and tier: 0 within "
            "the tenant's share, 1 above.",
            ["tenant", "model", "tier"],
            registry=None,
        )
        self._wait = Histogram(
            "dra_gate_grant_wait_seconds",
            "From when a Pod began to wait to its grant.",
            ["tenant"],
            buckets=_WAITS,
            registry=None,
        )
        self._revised = Counter(
            "dra_gate_grants_revised",
            "Open grants that got other candidates, by why (leftover, fallback, impossible).",
            ["reason"],
            registry=None,
        )
        self._overtakes = Counter(
            "dra_gate_overtakes",
            "Older requests of the same queue that waited on when one of this tenant was granted.",
            ["tenant"],
            registry=None,
        )
        self._failed = Counter(
            "dra_gate_ledger_failures",
            "Ledgers that could not be written (conflict: somebody else had, error: anything else).",
            ["outcome"],
            registry=None,
        )
        self._orphans = Counter(
            "dra_gate_orphaned_claims_deleted",
            "Late claims taken away because their Pod was gone or no ledger knew them.",
            registry=None,
        )
        self._withdrawn = Counter(
            "dra_gate_grants_withdrawn",
            "Open grants taken back before anything was allocated, since the lane of their namespace went back (lane) "
            "or their Pod could not be scheduled (unscheduled).",
            ["tenant", "reason"],
            registry=None,
        )
        self._writes = Counter(
            "dra_gate_arbiter_writes",
            "Requests by what was written (ledger, status, claim, gate, condition, orphan) and what came of it (done, "
            "stale: the cluster was ahead of us, error).",
            ["what", "outcome"],
            registry=None,
        )
        self._pass = Gauge(
            "dra_gate_arbiter_last_pass_timestamp_seconds",
            "When the arbiter last looked what it may grant, since 1970: at least once a second while it leads.",
            registry=None,
        )
        self._violations = Counter(
            "dra_gate_arbiter_violations",
            "Promises that decisions broke, by rule, as the checker finds them that reads the arbiter's lines.",
            ["rule"],
            registry=None,
        )
        for rule in RULES:
            self._violations.labels(rule)
        self._unchecked = Counter(
            "dra_gate_arbiter_unchecked_lines",
            "Lines of the arbiter that the checker left out, as it was behind or too many Pods waited.",
            registry=None,
        )
        self.counters = (
            self._granted,
            self._wait,
            self._revised,
            self._overtakes,
            self._failed,
            self._orphans,
            self._withdrawn,
            self._writes,
            self._pass,
            self._violations,
            self._unchecked,
        )

    def granted(self, grant: Granted, waited: float) -> None:
        """Count one grant; `waited` in seconds."""
        self._granted.labels(grant.tenant, grant.model or "none", str(grant.tier)).inc()
        self._wait.labels(grant.tenant).observe(max(0.0, waited))
        if grant.overtakes:
            self._overtakes.labels(grant.tenant).inc(grant.overtakes)

    def revised(self, reason: str) -> None:
        """Count one revision."""
        self._revised.labels(reason).inc()

    def ledger_failed(self, *, conflict: bool) -> None:
        """A ledger could not be written."""
        self._failed.labels("conflict" if conflict else "error").inc()

    def orphan_deleted(self) -> None:
        """A late claim was taken away."""
        self._orphans.inc()

    def withdrawn(self, tenant: str, reason: Literal["lane", "unscheduled"]) -> None:
        """A grant was taken back."""
        self._withdrawn.labels(tenant, reason).inc()

    def wrote(self, what: str, outcome: str) -> None:
        """Count one request."""
        self._writes.labels(what, outcome).inc()

    def passed(self, at: float) -> None:
        """The arbiter has looked what it may grant, at `at` (seconds since 1970)."""
        self._pass.set(at)

    def violated(self, rule: str) -> None:
        """A decision broke a rule."""
        self._violations.labels(rule).inc()

    def unchecked(self, lines: int) -> None:
        """The checker left out so many lines."""
        self._unchecked.inc(lines)

    def collect(self) -> Iterable[Metric]:
        """Everything."""
        for counter in self.counters:
            yield from counter.collect()
        standing = self._standing()
        yield GaugeMetricFamily("dra_gate_arbiter_leads", "1 while this replica decides.", float(standing.leads))
        waiting = GaugeMetricFamily(
            "dra_gate_held_pods",
            "Pods that wait for a grant, by why (as their condition dra-gate.io/Granted says).",
            labels=["tenant", "reason"],
        )
        for (tenant, reason), count in standing.waiting.items():
            waiting.add_metric([tenant, reason], count)
        oldest = GaugeMetricFamily(
            "dra_gate_oldest_wait_seconds", "How long the oldest Pod that can be granted has waited.", labels=["tenant"]
        )
        for tenant, seconds in standing.oldest.items():
            oldest.add_metric([tenant], seconds)
        opened = GaugeMetricFamily(
            "dra_gate_open_grants", "Pods granted whose claims have not all been seen allocated.", labels=["tenant"]
        )
        for tenant, count in standing.open.items():
            opened.add_metric([tenant], count)
        yield from (waiting, oldest, opened)
        yield GaugeMetricFamily(
            "dra_gate_ledger_drift_devices",
            "By how many devices charges were wrong, over all tenants, when last counted anew (every 5 minutes).",
            standing.drift,
        )
        yield CounterMetricFamily(
            "dra_gate_arbiter_lines_dropped", "Lines that --arbiter-log left out.", standing.dropped
        )
