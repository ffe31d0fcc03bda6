"""Looks after Pods whose devices fall ill between allocation and start: tells, and recreates where policy says so.

Pods that run are left to their controllers. Recreating is evicting: like a delete it takes UID and resourceVersion as
preconditions, so that a Pod which has changed since it was looked at is left; unlike one it marks the Pod as disrupted,
which Jobs may be told not to count (podFailurePolicy), and needs no right to delete Pods.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_gate.allocation.capacity import Capacity, DeviceId
from dra_gate.allocation.health import (
    FORGET_SECONDS,
    Attempt,
    Budget,
    ClaimSeen,
    Judgement,
    PodSeen,
    attempts,
    judge,
    read_claim,
    read_pod,
    reason_of,
)
from dra_gate.cluster import shapes
from dra_gate.cluster.client import ApiError, Client, ClusterError, Conflict, NotFound, Unreachable
from dra_gate.cluster.events import write_event
from dra_gate.cluster.facts import PATHS, TAINT_RULES, Key, KindSink
from dra_gate.cluster.reflector import Backoff, Reflector
from dra_gate.controller import threads
from dra_gate.controller.evicting import evict, pod_event
from dra_gate.kube.raw import Object, mapping
from dra_gate.policy.model import ON_UNHEALTHY, PolicySet

LOOK_SECONDS = 1.0  # a burst of events is looked at once
IDLE_SECONDS = 30.0  # without events and with nothing due
STALE_SECONDS = 200.0  # a bookmark comes every minute or two: a cache that was silent for longer may be wrong
TOLD = 8  # Events about one Pod: whoever reads them knows by then that its device comes and goes
BUSY = (429, 502, 503, 504)  # whatever was asked for
WRITES = 5  # at most in one look, so that a rack that falls ill makes a queue and no storm
NOT_SWITCHED_ON = "the controller may not evict Pods (deploy/components/recreate)"
NOT_ENFORCED = "its namespace does not enforce the policy"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pod:
    """A Pod, when it was first seen, and since when some device of it is ill."""

    seen: PodSeen
    first: float
    ill_since: float | None = None
    told: set[str] = field(default_factory=set)  # names of the Events about it
    outdated: str = ""  # the version in which the API server no longer had it
    evicted: bool = False
    refused: Backoff | None = None  # what is written about it
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class _Case:
    """A Pod of a tenant with ill devices, and what its policy says of that."""

    key: Key
    pod: _Pod
    tenant: str
    word: str
    ill: dict[DeviceId, str]


class HealthController(Collector):
    """Judges every Pod that holds an unhealthy device, and does what that says, while `leading()`.

    `sets` gives the policy sets that count, the active one first, None while they are not known. `enforcing` gives the
    namespaces where the gate enforces. `recreate`: Pods may be evicted; else they are told of only. As a collector it
    says how many Pods are concerned and what was done.
    """

    def __init__(
        self,
        client: Client,
        sets: Callable[[], Collection[PolicySet] | None],
        enforcing: Callable[[], Collection[str]],
        *,
        recreate: bool,
        identity: str,
        leading: Callable[[], bool],
    ) -> None:
        self._client = client
        self._sets = sets
        self._enforcing = enforcing
        self._recreate = recreate
        self._identity = identity
        self._leading = leading
        self._lock = threading.Lock()
        # What the cluster looks like; written by reflector threads, under the lock.
        self._capacity = Capacity()
        self._pods: dict[Key, _Pod] = {}
        self._claims: dict[Key, ClaimSeen] = {}
        # The loop's own; metrics read what they need of it under the lock.
        self._past: dict[str, list[Attempt]] = {}  # by owner
        self._budgets: dict[str, Budget] = {}  # by tenant
        self._concerned: Counter[tuple[str, str, str]] = Counter()  # tenant, reason, whether it runs
        self._done: Counter[tuple[str, str, str]] = Counter()  # tenant, action, code
        self._began: float | None = None  # to lead
        self._failures = 0
        self._backoff = Backoff(1.0, 60.0)
        self._not_before = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        capacity = self._capacity
        self._slices = self._reflector(
            "ResourceSlice", PATHS["ResourceSlice"], capacity.set_slice, capacity.drop_slice, shapes.Spec
        )
        self.reflectors = [
            self._reflector("Node", PATHS["Node"], capacity.set_node, capacity.drop_node, shapes.FullNode),
            self._slices,
            self._reflector(
                "ResourceClaim", PATHS["ResourceClaim"], self._set_claim, self._drop_claim, shapes.LabelledClaim
            ),
            self._reflector("Pod", PATHS["Pod"], self._set_pod, self._drop_pod, shapes.BegunPod),
            self._reflector(
                "DeviceTaintRule", TAINT_RULES, capacity.set_taint_rule, capacity.drop_taint_rule, shapes.Spec
            ),
        ]
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; nothing is written but while we lead."""
        for reflector in self.reflectors:
            reflector.start()
        self._thread.start()

    def wake(self) -> None:
        """Look now: something changed, or we have begun to lead."""
        self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End all threads; waits at most about `timeout` seconds for requests under way."""
        self._stopping.set()
        self._wake.set()
        threads.join([self._thread], self.reflectors, timeout)

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return threads.ended([self._thread], self.reflectors)

    def collect(self) -> Iterable[Metric]:
        """Who is concerned, from the replica that leads, and what this one has done."""
        concerned = GaugeMetricFamily(
            "dra_gate_pods_on_unhealthy_devices",
            "Pods that hold a device which is not healthy, by tenant, what is wrong with it (taint, pool, node, gone), "
            "and whether they run (yes, no); only the replica that leads says so.",
            labels=["tenant", "reason", "running"],
        )
        left = GaugeMetricFamily(
            "dra_gate_recreation_budget",
            "How many Pods of a tenant may be recreated at once; tenants of which none was are left out.",
            labels=["tenant"],
        )
        done = CounterMetricFamily(
            "dra_gate_health_actions",
            "What was done about Pods on unhealthy devices (alert, recreate), and why.",
            labels=["tenant", "action", "reason"],
        )
        failures = CounterMetricFamily(
            "dra_gate_health_failures", "Looks and writes about unhealthy devices that failed.", value=self._failures
        )
        now = time.monotonic()
        with self._lock:
            for labels, pods in sorted(self._concerned.items()) if self._leading() else ():
                concerned.add_metric(labels, pods)
            for tenant, budget in sorted(self._budgets.items()):
                left.add_metric([tenant], budget.by(now).left)
            for labels, times in sorted(self._done.items()):
                done.add_metric(labels, times)
        return (concerned, left, done, failures)

    # -- the cluster as seen: each runs with the lock held, in a reflector's thread ------------------------------------

    def _reflector(
        self, name: str, path: str, upsert: Callable[[Key, Object], None], delete: Callable[[Key], None], shape: type
    ) -> Reflector:
        def changed(key: Key, obj: Object) -> None:
            upsert(key, obj)
            self._wake.set()

        def gone(key: Key) -> None:
            delete(key)
            self._wake.set()

        sink = KindSink(changed, gone, self._lock, shape)
        return Reflector(self._client, path, sink, f"health-{name}", optional=path == TAINT_RULES)

    def _set_claim(self, key: Key, obj: Object) -> None:
        found = read_claim(obj)
        if found is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = found

    def _drop_claim(self, key: Key) -> None:
        self._claims.pop(key, None)

    def _set_pod(self, key: Key, obj: Object) -> None:
        seen = read_pod(obj)
        if seen is None or seen.ended:
            self._pods.pop(key, None)
            return
        known = self._pods.get(key)
        if known is None or known.seen.uid != seen.uid:
            self._pods[key] = _Pod(seen, time.monotonic())
        else:
            known.seen = seen

    def _drop_pod(self, key: Key) -> None:
        self._pods.pop(key, None)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            wait = IDLE_SECONDS
            try:
                if self._leading():
                    wait = min(wait, self.look())
                else:
                    self._retire()
            except ClusterError as error:
                self._failures += 1
                wait = self._backoff.next()
                _log.warning("health: %s; next attempt in %.1f s", error, wait)
            except Exception:  # noqa: BLE001 - a dead loop would say that all are well
                self._failures += 1
                wait = self._backoff.next()
                _log.exception("health")
            self._wake.wait(wait)
            self._wake.clear()
            self._stopping.wait(LOOK_SECONDS)

    def _retire(self) -> None:
        """Who leads no more forgets what it knew of the past: it does not see what others do."""
        self._began = None
        self._past.clear()
        with self._lock:
            self._budgets.clear()
            self._concerned.clear()
            for pod in self._pods.values():
                pod.ill_since, pod.told, pod.outdated, pod.evicted = None, set(), "", False
                pod.refused, pod.not_before = None, 0.0

    def look(self) -> float:
        """One look at every Pod: do what is due, and say in how many seconds there may be more."""
        sets = self._sets()
        if sets is None or not all(one.synced.is_set() for one in self.reflectors):
            return LOOK_SECONDS
        if any(one.age() > STALE_SECONDS for one in self.reflectors):
            return LOOK_SECONDS
        # While slices are listed anew, those that are gone stand beside those that took their place, and a pool of both
        # looks ill: a list may take longer than what settles an illness.
        if not self._slices.version:
            return LOOK_SECONDS
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        self._forget(now)
        judged = []
        again = now + IDLE_SECONDS
        cases = self._cases(list(sets), now)
        enforcing = self._enforcing() if cases else ()
        for case in cases:
            judgement = self._judge(case, enforcing, now)
            again = min(again, again if judgement.again is None else judgement.again)
            if judgement.action != "none":
                judged.append((case, judgement))
        # Evictions first: an Event can wait, and what is evicted makes its own.
        judged.sort(key=lambda found: found[1].action != "recreate")
        writes = 0
        for case, judgement in judged:
            if writes >= WRITES or now < self._not_before:
                again = min(again, max(now + LOOK_SECONDS, self._not_before))
                break
            if now < case.pod.not_before:
                again = min(again, case.pod.not_before)
                continue
            if judgement.action == "recreate":  # those before it may have used the budget up
                judgement = self._judge(case, enforcing, now)  # noqa: PLW2901
                again = min(again, again if judgement.again is None else judgement.again)
            writes += self._act(case, judgement, now)
        return max(0.0, again - time.monotonic())

    def _cases(self, sets: list[PolicySet], now: float) -> list[_Case]:
        """Pods of tenants with ill devices; since when they are is kept."""
        cases = []
        concerned: Counter[tuple[str, str, str]] = Counter()
        with self._lock:
            for key, pod in self._pods.items():
                namespace = key[0]
                claims = [found for name in pod.seen.claims if (found := self._claims.get((namespace, name)))]
                ill = {
                    device: problem
                    for claim in claims
                    for device, tolerations in claim.devices
                    if (problem := self._capacity.problem_of(device, tolerations))
                }
                owner = next((one for one in sets if one.tenant_of(namespace) is not None), None)
                if not ill or owner is None or pod.evicted:
                    pod.ill_since = None
                    continue
                pod.ill_since = now if pod.ill_since is None else pod.ill_since
                tenant = owner.tenant_by_namespace[namespace]
                concerned[tenant, reason_of(next(iter(ill.values()))), "yes" if pod.seen.begun else "no"] += 1
                cases.append(_Case(key, pod, tenant, _word(claims, sets), ill))
            self._concerned = concerned
        return cases

    def _judge(self, case: _Case, enforcing: Collection[str], now: float) -> Judgement:
        forbidden = NOT_SWITCHED_ON if not self._recreate else ""
        if not forbidden and case.key[0] not in enforcing:
            forbidden = NOT_ENFORCED
        return judge(
            case.pod.seen,
            case.ill,
            word=case.word,
            since=now if case.pod.ill_since is None else case.pod.ill_since,
            before=self._before(case.pod, now),
            budget=self._budget(case.tenant),
            may_recreate=forbidden,
            now=now,
        )

    def _before(self, pod: _Pod, now: float) -> int:
        return attempts(self._past.get(pod.seen.owner, ()), pod.first, now)

    def _budget(self, tenant: str) -> Budget:
        return self._budgets.get(tenant, Budget.first(time.monotonic() if self._began is None else self._began))

    def _act(self, case: _Case, judgement: Judgement, now: float) -> int:
        """Do it, unless it is done; how many writes that took."""
        writes = 0
        if judgement.action == "recreate":
            if case.pod.outdated == case.pod.seen.version:
                return 0  # how it has changed is on its way to us
            writes += 1
            if not self._evict(case, now):
                return writes
        event = self._event(case, judgement)
        name = str(mapping(event["metadata"]).get("name"))
        if name in case.pod.told or (judgement.action == "alert" and len(case.pod.told) >= TOLD):
            return writes
        case.pod.told.add(name)
        if self._tell(case, event, now) or judgement.action == "recreate":
            _log.warning("%s/%s: %s: %s", *case.key, judgement.code, judgement.text)
            with self._lock:
                self._done[case.tenant, judgement.action, judgement.code] += 1
        else:
            case.pod.told.discard(name)
        return writes + 1

    def _evict(self, case: _Case, now: float) -> bool:
        """Evict exactly the Pod that was looked at; False where that did not happen, or nobody knows."""
        seen = case.pod.seen
        # Counted before it is asked for: an answer that is lost may have been a yes.
        attempt = Attempt(now, self._before(case.pod, now) + 1)
        before = self._budget(case.tenant)
        self._past.setdefault(seen.owner, []).append(attempt)
        with self._lock:
            self._budgets[case.tenant] = before.spent(now)
        try:
            evict(self._client, case.key, seen.uid, seen.version)
        except Unreachable as error:
            self._failed(case, error, now)
            return False
        except ClusterError as error:
            self._past[seen.owner].remove(attempt)
            with self._lock:
                self._budgets[case.tenant] = before
            if isinstance(error, Conflict | NotFound):
                case.pod.outdated = seen.version
                _log.info("health: %s/%s has changed since it was looked at: %s", *case.key, error)
            else:
                self._failed(case, error, now)
            return False
        self._backoff.reset()
        case.pod.evicted = True
        return True

    def _tell(self, case: _Case, event: Object, now: float) -> bool:
        """Create the Event, if it is not there: its name says what it is about."""
        try:
            write_event(self._client, event)
        except Conflict:
            return True  # told before, by us or by who led before us
        except ClusterError as error:
            self._failed(case, error, now)
            return False
        self._backoff.reset()
        return True

    def _failed(self, case: _Case, error: ClusterError, now: float) -> None:
        """Leave the Pod alone for a while; all of them where the API server is in trouble, and not with this one."""
        self._failures += 1
        if isinstance(error, ApiError) and error.status not in BUSY:
            case.pod.refused = case.pod.refused or Backoff(1.0, 60.0)
            wait = case.pod.refused.next()
            case.pod.not_before = now + wait
        else:
            wait = self._backoff.next()
            self._not_before = now + wait
        _log.warning("health: %s/%s: %s; next attempt in %.1f s", *case.key, error, wait)

    def _event(self, case: _Case, judgement: Judgement) -> Object:
        ill = (f"{'/'.join(device)} {problem}" for device, problem in case.ill.items())
        about = "\0".join([case.pod.seen.uid, judgement.code, *sorted(ill)])
        action = "Recreate" if judgement.action == "recreate" else "Alert"
        return pod_event(
            case.key,
            case.pod.seen.uid,
            name=f"dra-gate-health-{hashlib.sha256(about.encode()).hexdigest()[:20]}",
            kind="Warning",
            reason="UnhealthyDevice",
            action=action,
            note=judgement.text,
            identity=self._identity,
        )

    def _forget(self, now: float) -> None:
        for owner, past in list(self._past.items()):
            kept = [attempt for attempt in past if now - attempt.at < FORGET_SECONDS]
            if kept:
                self._past[owner] = kept
            else:
                del self._past[owner]


def _word(claims: Iterable[ClaimSeen], sets: Sequence[PolicySet]) -> str:
    """What the Pod's policy says; `alert` where that is not known, or its claims are of policies that differ."""
    words = {
        next((one.policies[ref].on_unhealthy for one in sets if ref in one.policies), ON_UNHEALTHY[0])
        for ref in (claim.policy for claim in claims)
        if ref is not None
    }
    return words.pop() if len(words) == 1 else ON_UNHEALTHY[0]
