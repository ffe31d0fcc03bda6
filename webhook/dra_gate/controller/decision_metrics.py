"""What is counted of decisions and of the fleet. Labels hold tenants, models, ranks, policies and reasons of ours only:
never the name of a Pod, a device or a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from dra_gate.allocation.capacity import ModelCapacity
from dra_gate.controller.decision_plan import Decision

WAITS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0)  # seconds
# Rows of the table of failures that are about what the scheduler writes once it has chosen.
_BINDING = frozenset(
    ("scheduler-refused", "claim-in-use", "bind-conflict", "binding-failed", "binding-timeout", "binding-for-long",
     "extended-claim-stuck", "claim-freed")
)  # fmt: skip
NOBODY = "none"  # stands for no tenant and no policy


@dataclass(frozen=True)
class Standing:
    """What there is at the moment of a scrape; `waiting` Pods by tenant and class, `turns` of health by model."""

    models: Mapping[str, ModelCapacity] = field(default_factory=dict)
    waiting: Mapping[tuple[str, str], int] = field(default_factory=dict)
    turns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    extended: Mapping[str, int] = field(default_factory=dict)
    doubled: int = 0
    not_evaluated: int = 0
    dropped: int = 0


class DecisionMetrics(Collector):
    """Counters of decisions, and `standing()` at each scrape."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing
        self._decisions = Counter(
            "dra_gate_decisions",
            "Decisions told on Pods, by outcome: allocated, waiting, failed (no retry will help).",
            ["tenant", "outcome"],
            registry=None,
        )
        self._hits = Counter(
            "dra_gate_policy_hits", "Decisions by the policy that they were made under.", ["policy"], registry=None
        )
        self._requests = Counter(
            "dra_gate_device_requests",
            "Devices that Pods asked for, by the model that they prefer; told of once a Pod.",
            ["tenant", "model"],
            registry=None,
        )
        self._allocations = Counter(
            "dra_gate_allocations",
            "Pods that got their devices, by model and rank of the claim that got the worst: rank 1 is the first "
            "choice, any other a fallback.",
            ["tenant", "policy", "model", "rank"],
            registry=None,
        )
        self._inversions = Counter(
            "dra_gate_inversions",
            "Pods that got a lower candidate while a higher one stayed free, by what kept them off it.",
            ["policy", "reason"],
            registry=None,
        )
        self._wait = Histogram(
            "dra_gate_allocation_wait_seconds",
            "From a Pod's creation to the allocation of its last claim.",
            ["tenant"],
            buckets=WAITS,
            registry=None,
        )
        self._failures = Counter(
            "dra_gate_allocation_failures",
            "What keeps Pods from their devices, as told on them: row of the table of failures, and class.",
            ["reason", "class"],
            registry=None,
        )
        self._unknown = Counter(
            "dra_gate_unknown_failures", "Pods that wait for a cause that is not in the table.", registry=None
        )
        self._bind = Counter(
            "dra_gate_bind_failures", "Pods that the scheduler could not bind, by cause.", ["reason"], registry=None
        )
        self._writes = Counter(
            "dra_gate_decision_writes",
            "Requests to the API server about decisions, by what was written and what came of it.",
            ["what", "outcome"],
            registry=None,
        )
        self.counters: tuple[MetricWrapperBase, ...] = (
            self._decisions, self._hits, self._requests, self._allocations, self._inversions, self._wait,
            self._failures, self._unknown, self._bind, self._writes,
        )  # fmt: skip

    def decided(self, decision: Decision, waited: float | None) -> None:
        """Count a decision that was told; `waited` seconds until it was allocated, None where that was told before."""
        record = decision.record
        tenant = record.tenant or NOBODY
        # Anybody may write the label of a policy, or a name for an alternative, on a claim of his own: only what the
        # policies know is counted by name.
        policy = record.policy if record.candidates else NOBODY
        self._decisions.labels(tenant, record.outcome).inc()
        self._hits.labels(policy).inc()
        if record.sequence == 1:
            for claim in record.claims:
                if claim.candidates and record.candidates:
                    self._requests.labels(tenant, claim.candidates[0]).inc(claim.count)
        if waited is not None:
            model = record.model if record.candidates else NOBODY
            self._allocations.labels(tenant, policy, model, str(record.rank)).inc()
            self._wait.labels(tenant).observe(max(0.0, waited))  # our clock and the API server's may differ
            if decision.inversion is not None:
                self._inversions.labels(policy, decision.inversion.code).inc()
        if record.reason:
            self._failures.labels(record.reason, record.klass).inc()
            if record.klass == "unknown":
                self._unknown.inc()
            if record.reason in _BINDING:
                self._bind.labels(record.reason).inc()

    def wrote(self, what: str, outcome: str) -> None:
        """Count one request: event, condition or annotation; done, stale or error."""
        self._writes.labels(what, outcome).inc()

    def collect(self) -> Iterable[Metric]:
        """Everything."""
        for counter in self.counters:
            yield from counter.collect()
        standing = self._standing()
        devices = GaugeMetricFamily(
            "dra_gate_devices",
            "Devices by model: published, healthy (of these), free (of the healthy).",
            labels=["model", "state"],
        )
        unusable = GaugeMetricFamily(
            "dra_gate_devices_unusable",
            "Published devices that are not healthy, by the kind of the first reason.",
            labels=["model", "reason"],
        )
        used = GaugeMetricFamily(
            "dra_gate_devices_used", "Published devices in allocations, by tenant.", labels=["tenant", "model"]
        )
        for model, found in standing.models.items():
            for state in ("published", "healthy", "free"):
                devices.add_metric([model, state], getattr(found, state))
            kinds: dict[str, int] = {}
            for reason, one in found.unusable.items():
                kind = "taint" if reason.startswith("taint ") else reason  # anybody may name a taint
                kinds[kind] = kinds.get(kind, 0) + one.devices
            for kind, count in kinds.items():
                unusable.add_metric([model, kind], count)
            for tenant, count in found.charged.items():
                used.add_metric([tenant or NOBODY, model], count)
        waiting = GaugeMetricFamily(
            "dra_gate_waiting_pods", "Pods whose condition says that they wait.", labels=["tenant", "class"]
        )
        for (tenant, klass), count in standing.waiting.items():
            waiting.add_metric([tenant or NOBODY, klass], count)
        turns = CounterMetricFamily(
            "dra_gate_device_health_changes", "Turns of devices to healthy and back.", labels=["model", "to"]
        )
        for (model, to), count in standing.turns.items():
            turns.add_metric([model, to], count)
        extended = GaugeMetricFamily(
            "dra_gate_extended_resource_claims",
            "Claims in gated namespaces that the scheduler made for extended resources: not the gate's.",
            labels=["tenant"],
        )
        for tenant, count in standing.extended.items():
            extended.add_metric([tenant or NOBODY], count)
        yield from (devices, unusable, used, waiting, turns, extended)
        yield GaugeMetricFamily(
            "dra_gate_doubly_allocated_devices", "Devices that are in more than one claim.", standing.doubled
        )
        yield GaugeMetricFamily(
            "dra_gate_devices_not_evaluated",
            "Published devices of which an expression of the policies or classes could not be evaluated.",
            standing.not_evaluated,
        )
        yield CounterMetricFamily(
            "dra_gate_decision_records_dropped", "Records that --decisions left out.", standing.dropped
        )
