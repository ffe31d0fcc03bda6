"""Counts what becomes of Pods in both lanes, and keeps the counts in ConfigMaps while it leads.

Every replica hears of the same Pods, and remembers of each what there is to count. Who leads writes it down every half
minute, and when it stops; who leads next reads that and adds what it saw itself. So a Pod is lost only if it came and
went, unseen by any other replica, after the last write of a controller that crashed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_gate.admission.sets import PolicySets
from dra_gate.cluster.client import Client, ClusterError, Conflict
from dra_gate.controller import threads
from dra_gate.controller.arbiter import ArbiterController
from dra_gate.controller.arbiter_term import now_ms
from dra_gate.controller.counter_inbox import Batch, Inbox
from dra_gate.controller.counter_marks import Caps, Marks
from dra_gate.controller.counter_store import Store
from dra_gate.controller.decisions import DecisionController
from dra_gate.controller.rounds import Rounds
from dra_gate.fairness.holdings import named_model
from dra_gate.kube.workload import BUILT_IN, pod_of
from dra_gate.migration.cohort import Key
from dra_gate.migration.compare import Stop, compare
from dra_gate.migration.counting import (
    PREPARE_FAILED,
    Around,
    ClaimSeen,
    Denial,
    Facts,
    PodSeen,
    asked_of,
    key_of,
    key_of_request,
)
from dra_gate.migration.report import Report, report, window
from dra_gate.migration.tally import Tally, nowhere
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import DRA, PLUGIN

TURN_SECONDS = 1.0
LOOK_SECONDS = 5.0  # between two looks at caps, devices in two claims, and what is marked
SAVE_SECONDS = 30.0  # a ConfigMap: many Pods take several, and are written as much less often
RETRY_SECONDS = 5.0
EARLY_SECONDS = 60.0  # a claim may be heard of before its Pod
HOURS_OF_STOPS = 24
OWNERS = 20  # asked in one turn what their Pods want

_log = logging.getLogger(__name__)


class CounterController(Rounds):
    """Counts, while it leads; in between it remembers.

    It lives by the caches of `decisions`: it is made before these start. `leading` is asked before every write. `use`
    names the policy sets; before that nothing is counted.
    """

    def __init__(
        self,
        client: Client,
        decisions: DecisionController,
        arbiter: ArbiterController,
        *,
        leading: Callable[[], bool],
    ) -> None:
        super().__init__("counter", TURN_SECONDS)
        self._client = client
        self._decisions = decisions
        self._arbiter = arbiter
        self._leading = leading
        self._inbox = Inbox(client, self._now)
        self._store = Store(client, leading)
        self._sets: PolicySets | None = None
        self._born = time.monotonic()
        self._models: dict[str, str] = {}  # node -> the model that its labels name
        self._modelled: PolicySet | None = None  # by which set
        self._early: dict[int, tuple[float, ClaimSeen]] = {}
        self._marks, self._caps = Marks(), Caps()
        self._failing = 0  # since when nothing can be written
        self._look_at = self._save_at = self._load_at = 0.0  # time.monotonic()
        # Those who look at the page ask these, too.
        self._lock = threading.Lock()
        self._tally = Tally()
        self._loaded = False
        self._term = 0
        self._dirty = False
        decisions.listen(self._inbox)
        self.reflectors = self._inbox.reflectors

    def _now(self) -> int:
        """Milliseconds since 1970 as the API server has it, which writes when Pods are created: by a clock that is ten
        minutes ahead every Pod that is being started has failed."""
        return now_ms() - round(1000 * self._client.ahead())

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; nothing is written but while we lead."""
        for reflector in self.reflectors:
            reflector.start()
        super().start()

    def use(self, sets: PolicySets) -> None:
        """Count by these sets from now on."""
        self._sets = sets

    def deactivate(self) -> None:
        """We lead no more: whoever does goes on from what is written."""
        with self._lock:
            self._term += 1
            self._loaded = False

    def stop(self, timeout: float = 5.0) -> None:
        """Write what is not written yet, if we still lead, and end the threads."""
        ends = time.monotonic() + timeout
        super().stop(timeout / 2)
        sets = self._sets
        if sets is not None and self._loaded and self._leading() and not self._thread.is_alive():
            try:
                self._drain(sets)
                self._save()
            except (ClusterError, ValueError) as error:
                _log.warning("counts: not written at the end: %s", error)
        threads.join([], self.reflectors, ends - time.monotonic())

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return threads.ended([self._thread], self.reflectors)

    def collect(self) -> Iterable[Metric]:
        """What is kept, and how writing goes."""
        with self._lock:
            tally = self._tally
            cells, pods = (tally.cells, tally.pods) if self._loaded and self._leading() else (0, 0)
        yield GaugeMetricFamily(
            "dra_gate_cohort_cells", "Cells of counts that are kept; 0 where another replica leads.", cells
        )
        yield GaugeMetricFamily(
            "dra_gate_cohort_pods",
            "Pods of both lanes that are there and are counted; 0 where another replica leads.",
            pods,
        )
        yield CounterMetricFamily(
            "dra_gate_cohort_uncounted",
            "Pods and denials that were not counted: too many at once, or of the future.",
            tally.uncounted,
        )
        writes = CounterMetricFamily(
            "dra_gate_cohort_writes",
            "Writes of all counts, by what came of it (done, stale: another replica had written, error).",
            labels=["outcome"],
        )
        for outcome in ("done", "stale", "error"):
            writes.add_metric([outcome], self._store.outcomes[outcome])
        yield writes

    def report(self, hours: int, failures: float) -> Report | None:
        """The newest `hours` hours compared, as of now; None where another replica counts, or nothing is counted yet.
        `failures` is the rate above which DRA must stop.
        """
        with self._lock:
            if not self._loaded or not self._leading():
                return None
            cohorts = self._tally.cohorts(self._now())
        newest = window(cohorts, hours)
        return None if newest is None else report(cohorts, *newest, failures)

    def stops(self, failures: float, since: int) -> tuple[Stop, ...] | None:
        """The hard stops that stand now, of Pods created in the newest day and after `since` (seconds since 1970); None
        where another replica counts.
        """
        with self._lock:
            if not self._loaded or not self._leading():
                return None
            cohorts = self._tally.after(1000 * (since + 1) if since else 0, self._now())
        newest = window(cohorts, HOURS_OF_STOPS)
        return () if newest is None else compare(cohorts, *newest, failures=failures).stops

    # -- the loop -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Take in what was heard of; while we lead look, and write."""
        sets = self._sets
        synced = self._decisions.settled() and all(one.synced.is_set() for one in self.reflectors)
        if sets is None or not synced or self._stopping.is_set():
            return
        try:
            self._drain(sets)
            now = time.monotonic()
            if not self._leading():
                return
            if not self._loaded and now >= self._load_at:
                self._load_at = now + RETRY_SECONDS
                self._load()
            if self._loaded:
                self._take_denials(sets)
                if now >= self._look_at and self._decisions.whole():
                    self._look_at = now + LOOK_SECONDS
                    self._look(sets)
                if self._dirty and now >= self._save_at:
                    self._save_at = now + RETRY_SECONDS
                    self._save()
        except ClusterError as error:
            _log.warning("counts: %s; next attempt in %.0f s", error, RETRY_SECONDS)
        except Exception:  # noqa: BLE001 - a dead thread would count nothing any more
            self._load_at = self._save_at = time.monotonic() + SAVE_SECONDS
            _log.exception("counts")

    def _drain(self, sets: PolicySets) -> None:
        batch = self._inbox.take()
        self._know_nodes(sets.active)
        if not batch and not self._early:
            return
        around, now = self._around(sets), self._now()
        with self._lock:
            self._dirty = self._dirty or bool(batch)
            for uid, pod in batch.pods.items():
                key = self._tally.key(uid) or key_of(pod, around)
                if key is not None:
                    self._tally.see(uid, key, self._placed(pod, key), now)
            self._take_claims(batch)
            for uid in batch.unprepared:
                self._tally.note(uid, Facts(0, flags=PREPARE_FAILED))
            for uid, at in batch.gone.items():
                self._tally.gone(uid, at)

    def _around(self, sets: PolicySets) -> Around:
        spaces = self._inbox.spaces

        def lane(namespace: str) -> str:
            space = spaces.get(namespace)
            owner = sets.active.tenant_by_namespace.get(namespace, "")
            return sets.switch.lane_of(owner, space.lane) if space is not None and space.lane else ""

        return Around(sets.all, lane)

    def _know_nodes(self, active: PolicySet) -> None:
        """The models of nodes that changed are to be found anew."""
        for name in self._inbox.take_nodes():
            self._models.pop(name, None)
        if self._modelled is not active:
            self._models, self._modelled = {}, active

    def _placed(self, pod: PodSeen, key: Key) -> Facts:
        """What was seen of the Pod; of one that no claim tells of, also whether its node is of the first choice."""
        labels = self._inbox.labels.get(pod.node)
        if key.lane == DRA or labels is None or self._modelled is None:
            return pod.facts
        model = self._models.get(pod.node)
        if model is None:
            model = self._models[pod.node] = named_model(labels, self._modelled.models.values())
        return pod.facts.merge(Facts(0, got=((0, pod.facts.version, model == key.first),))) if model else pod.facts

    def _take_claims(self, batch: Batch) -> None:
        now = time.monotonic()
        early, self._early = self._early, {}
        claims = {**early, **{number: (now + EARLY_SECONDS, claim) for number, claim in batch.claims.items()}}
        for number, (until, claim) in claims.items():
            keys = {uid: self._tally.key(uid) for uid in claim.pods}
            for uid, key in keys.items():
                if key is not None:
                    self._tally.note(uid, claim.facts(key.first))
            if None in keys.values() and until > now:
                self._early[number] = until, claim

    # -- while we lead ------------------------------------------------------------------------------------------------

    def _take_denials(self, sets: PolicySets) -> None:
        around = self._around(sets)
        for denial in self._inbox.take_denials(OWNERS):
            if self._tally.knows_denial(denial.owner, denial.hour):
                continue
            lane = around.lane(denial.namespace) or PLUGIN
            key = key_of_request(denial.namespace, dict(self._wanted(denial)), around, lane)
            tenant = sets.active.tenant_by_namespace.get(denial.namespace, "")
            with self._lock:
                self._tally.denied(denial.owner, denial.at, key or nowhere(lane, tenant), self._now())
                self._dirty = True

    def _wanted(self, denial: Denial) -> tuple[tuple[str, int], ...]:
        """The extended resources that a Pod of this owner asks for; nothing where that can't be read."""
        kind = next((one for one in BUILT_IN if one.kind == denial.kind), None)
        if kind is None:
            return ()
        base = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"
        path = f"{base}/namespaces/{denial.namespace}/{kind.resource}/{denial.name}"
        try:
            owner = self._client.get(path, timeout=5.0)
        except ClusterError as error:
            _log.info("counts: what was refused is counted without its size: %s", error)
            return ()
        return asked_of(pod_of({**owner, "kind": denial.kind}) or {})

    def _look(self, sets: PolicySets) -> None:
        """At what is wrong, and at what is worth a mark."""
        doubled, used, turns = self._decisions.in_two(), self._arbiter.used(), self._decisions.turns()
        spaces, owners, now = dict(self._inbox.spaces), sets.active.tenant_by_namespace, self._now()
        in_two = {"/".join(device): nowhere(DRA, owners.get(found[0][0], "")) for device, found in doubled.items()}
        with self._lock:
            tally = self._tally
            above = self._caps.look(sets.active, used, tally.held(), spaces, now)
            tally.stands("over_cap", above, now)
            tally.stands("doubled", in_two, now)
            marks = self._marks.look(tally.known, sets, spaces, turns, now)
            for when, said in marks:
                tally.mark(when, said)
            tally.settle(now)
            self._dirty = self._dirty or bool(above or in_two or marks)

    def _load(self) -> None:
        """Take over: what is written, and what was seen here. Raises ClusterError, and ValueError for what can't be
        read: that is not written over.
        """
        term = self._term
        there, data = self._store.load()
        stored = None if data is None else Tally.loads(data)
        alive, now = self._inbox.alive(), self._now()
        with self._lock:
            if stored is None:
                began = now - round(1000 * (time.monotonic() - self._born))
                self._tally.begin(began - began % 1000)
                if there:
                    self._tally.mark(now, "no counts were whole: counting begins anew")
            else:
                self._tally = self._tally.adopt(*stored, alive)
                away = now - stored[1]
                if away > 4000 * SAVE_SECONDS:
                    self._tally.mark(stored[1], f"nothing was counted for {round(away / 60_000)} min: nobody led")
            self._marks, self._caps = Marks(), Caps()
            self._loaded, self._dirty = self._term == term, True
            _log.info("counts: taken over, %d Pods and %d cells", self._tally.pods, self._tally.cells)

    def _save(self) -> None:
        """Write all counts. Raises ClusterError and TooLargeError."""
        now, version = self._now(), self._decisions.version("Pod")
        with self._lock:
            data = self._tally.dumps(now, int(version) if version.isdecimal() else 0)
            self._dirty = False
        try:
            maps = self._store.save(data)
        except Conflict as error:
            _log.info("counts: %s", error)
            self._loaded = False  # go on from what the other wrote
            return
        except (ClusterError, ValueError):
            self._dirty, self._failing = True, self._failing or now
            raise
        self._save_at = time.monotonic() + SAVE_SECONDS * maps
        if self._failing and now - self._failing > 1000 * SAVE_SECONDS:
            with self._lock:
                away = (now - self._failing) // 1000
                self._tally.mark(self._failing, f"the API server took no writes of the controller for {away} s")
        self._failing = 0
