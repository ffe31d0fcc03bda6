"""Evicts Pods under DRA whose lane went back: those that wait, where policy says so, and others when they are drained.

What becomes of a Pod says `migration.returning`; grants are taken back by the arbiter, which alone writes ledgers. Here
a Pod is evicted: so that its owner makes another under device plugins, or since its time is over. Each is looked at
live right before, and evicted as it was then, once. Nothing is remembered that whoever leads next has to know.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_gate.admission.held import DRAINING, Key, Waiting
from dra_gate.allocation.health import MOST_ATTEMPTS, Attempt, attempts
from dra_gate.cluster.client import STRATEGIC_PATCH, ApiError, Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.events import write_event
from dra_gate.controller.arbiter_plan import condition
from dra_gate.controller.arbiter_term import Desk
from dra_gate.controller.evicting import evict, pod_event
from dra_gate.controller.rounds import Rounds
from dra_gate.kube import pod as pods
from dra_gate.kube.group import controller_of
from dra_gate.kube.raw import Object, at, text
from dra_gate.kube.times import rfc3339
from dra_gate.migration.returning import Fate, PodState, failures_of, fate, harm_of, read

LOOK_SECONDS = 1.0
LOOK_RATIO = 20  # between two looks so many times as long as one took: with 100,000 Pods it takes a second
# Before the first eviction in a namespace: replicas of the webhook hear of the switch within a second, and whoever puts
# it back at once has lost nothing. Who leads anew waits as long. A Pod that came of an evicted one waits for longer.
SETTLE_SECONDS = 5.0
AGAIN_SECONDS = 10.0  # after a PodDisruptionBudget did not allow it
ASK_SECONDS = 60.0  # after which the owner of a Pod that is spared is asked again, and whether we may evict
TOLD = 20  # conditions and Events a look
NOT_SWITCHED_ON = "the controller may not evict Pods (deploy/components/recreate)"
_PODS = "/api/v1/namespaces/{}/pods"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
_JOB = "/apis/batch/v1/namespaces/{}/jobs/{}"

_log = logging.getLogger(__name__)


class ReturnController(Rounds):
    """Works by what the arbiter knows (`desk`), while `leading()`.

    `recreate`: Pods may be evicted; else they are kept, and told why. `rate`: at most so many evictions a second. As a
    collector it says how many Pods are still under DRA where the lane went back, by what becomes of them, and what was
    done.
    """

    def __init__(
        self,
        client: Client,
        desk: Desk,
        *,
        recreate: bool,
        rate: float,
        identity: str,
        leading: Callable[[], bool],
    ) -> None:
        super().__init__("returning", LOOK_SECONDS)
        self._client = client
        self._desk = desk
        self._lanes = desk.view.lanes
        self._recreate = recreate
        self._rate = rate
        self._identity = identity
        self._leading = leading
        self._broken = 0
        self._not_before = 0.0  # time.monotonic(): the next look
        self._tokens, self._tokens_at = 0.0, time.monotonic()
        self._since: dict[str, float] = {}  # namespace -> time.monotonic() when it was first seen to be back
        self._first: dict[str, float] = {}  # Pod UID -> the same
        self._past: dict[tuple[str, str], list[Attempt]] = {}  # namespace and owner
        self._failed: dict[str, int] = {}  # UID of a Job -> its failures, with those that our evictions will be
        self._later: dict[str, float] = {}  # Pod UID -> time.monotonic(): not before this
        self._spared: dict[str, float] = {}  # Pod UID -> time.monotonic(): its owner is asked again
        self._evicted: set[str] = set()
        self._told: set[str] = set()  # names of Events
        self._asked: float | None = None  # time.monotonic(), whether we may evict
        self._standing: Counter[tuple[str, str]] = Counter()  # tenant, step
        self._done: Counter[tuple[str, str, str]] = Counter()  # tenant, step, outcome
        with desk.lock:
            self._lanes.evict_nobody("" if recreate else NOT_SWITCHED_ON)

    def collect(self) -> list[Metric]:
        """How many Pods are left by what becomes of them, from the replica that leads, and what this one has done."""
        left = GaugeMetricFamily(
            "dra_gate_returning_pods",
            "Pods under DRA whose lane went back, by what becomes of them (recreate, withdraw, keep, release, finish, "
            "drain); only the replica that leads says so.",
            labels=["tenant", "action"],
        )
        done = CounterMetricFamily(
            "dra_gate_return_evictions",
            "Evictions of Pods whose lane went back, by why (recreate, drain) and what came of it (done; stale: the "
            "Pod has changed or got devices; budget: its PodDisruptionBudget did not allow it; spared: its owner would "
            "lose by it; forbidden; error).",
            labels=["tenant", "action", "outcome"],
        )
        for labels, count in sorted(self._standing.items()) if self._leading() else ():
            left.add_metric(labels, count)
        for (tenant, step, outcome), count in sorted(self._done.copy().items()):
            done.add_metric([tenant, step, outcome], count)
        failures = CounterMetricFamily(
            "dra_gate_return_failures",
            "Looks at Pods whose lane went back, and evictions of them, that failed, and times that the controller "
            "found, once a minute at most, that it may not evict though it was told to.",
            value=self._broken,
        )
        return [left, done, failures]

    # -- the loop -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One look, if we lead and it is time for one."""
        began = time.monotonic()
        if not self._leading():
            self._forget()
            return
        if began < self._not_before:
            return
        try:
            self._look(began)
        except Exception:  # noqa: BLE001 - a dead loop would leave Pods waiting for ever
            self._broken += 1
            _log.exception("returning")

    def _forget(self) -> None:
        """Who leads no more does not see what others do."""
        for known in (self._since, self._first, self._past, self._failed, self._later, self._spared):
            known.clear()
        self._standing = Counter()
        self._evicted.clear()
        self._told.clear()
        self._asked = None

    def _look(self, now: float) -> None:
        seconds = self._seconds()
        with self._desk.lock:
            if self._desk.term is None:  # what is granted is not known yet
                return
            found = self._lanes.gone_back(seconds)
            marked = self._lanes.marked()
            drains = {name: self._lanes.drain_by(name) for name in {pod.namespace for pod, _ in found}}
        self._not_before = now + LOOK_RATIO * (time.monotonic() - now)
        self._note(found, now)
        self._tokens = min(max(1.0, self._rate), self._tokens + (now - self._tokens_at) * self._rate)
        self._tokens_at = now
        if self._recreate and found:
            self._ask_rights(now)
        # Who was refused comes after those who were not: what one budget forbids must not use up the turns of all.
        for pod, one in sorted(found, key=lambda it: self._later.get(it[0].uid, 0.0)):
            if self._tokens < 1:
                break
            if one.step in ("recreate", "drain") and self._is_due(one, now):
                self._evict(pod, one, now)
        spared = ((pod, one) for pod, one in found if self._spared.get(pod.uid, now) < now)
        for pod, one in sorted(spared, key=lambda it: self._spared[it[0].uid]):
            if self._tokens < 1:
                break
            self._ask_again(pod, one.pod, now)
        self._say(found, marked, drains)

    def _seconds(self) -> int:
        """Unix time as the API server has it: by a clock that is ahead whoever runs would be drained before drainBy."""
        return int(time.time() - self._client.ahead())

    def _note(self, found: list[tuple[Waiting, Fate]], now: float) -> None:
        """Keep since when namespaces are back and Pods are seen, and how many there are."""
        namespaces, uids = {pod.namespace for pod, _ in found}, {pod.uid for pod, _ in found}
        self._since = {name: self._since.get(name, now) for name in namespaces}
        self._first = {uid: self._first.get(uid, now) for uid in uids}
        self._later = {uid: when for uid, when in self._later.items() if uid in uids}
        self._spared = {uid: when for uid, when in self._spared.items() if uid in uids}
        self._evicted &= uids
        if not found:
            for known in (self._past, self._failed, self._told):
                known.clear()
        self._standing = Counter((one.pod.tenant or "none", one.step) for _, one in found)

    def _is_due(self, one: Fate, now: float) -> bool:
        pod = one.pod
        if pod.uid in self._evicted or now < self._later.get(pod.uid, 0.0):
            return False
        if one.step == "drain":
            return now >= self._since[pod.namespace] + SETTLE_SECONDS
        before = self._before(pod, now)
        since = max(self._since[pod.namespace], self._first[pod.uid] if before else 0.0)
        return now >= since + SETTLE_SECONDS * (1 << before)

    def _before(self, pod: PodState, now: float) -> int:
        """How many Pods were evicted one after the other to bring this one about, as far as this term knows."""
        return attempts(self._past.get((pod.namespace, pod.owner), ()), self._first[pod.uid], now)

    # -- who is not evicted -------------------------------------------------------------------------------------------

    def _ask_rights(self, now: float) -> None:
        """Ask whether we may evict, now and then: before Pods are told what becomes of them."""
        if self._asked is not None and now < self._asked + ASK_SECONDS:
            return
        self._asked = now
        wanted = {"verb": "create", "resource": "pods", "subresource": "eviction"}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        try:
            answer = self._client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        except ClusterError as error:
            _log.warning("returning: whether Pods may be evicted is not known: %s", error)
            return
        why = "" if at(answer, "status", "allowed") is True else NOT_SWITCHED_ON
        if why:
            self._broken += 1
            _log.warning("returning: %s", why)
        with self._desk.lock:
            self._lanes.evict_nobody(why)
            self._desk.changed()

    def _why_spared(self, pod: PodState, live: Object, now: float) -> str:
        """Why the Pod is not evicted, though its policy says so; empty where it is. Raises ClusterError."""
        before = self._before(pod, now)
        if before >= MOST_ATTEMPTS:
            return f"{before} Pods before it were evicted, and made again under DRA"
        job = self._job_of(live)
        return "" if job is None else harm_of(job, live, self._failures(job))

    def _ask_again(self, pod: Waiting, state: PodState, now: float) -> None:
        """Whether the reason for which the Pod is spared still holds."""
        self._tokens -= 1
        try:
            live = self._client.get(f"{_PODS.format(pod.namespace)}/{pod.name}", timeout=5.0)
            self._spare(state, self._why_spared(state, live, now), now)
        except ClusterError as error:
            _log.warning("returning: %s/%s: %s", pod.namespace, pod.name, error)

    def _spare(self, pod: PodState, why: str, now: float) -> None:
        self._spared.pop(pod.uid, None)
        if why:
            self._spared[pod.uid] = now + ASK_SECONDS
        with self._desk.lock:
            self._lanes.spare(pod.uid, why)
            self._desk.changed()

    # -- evicting -----------------------------------------------------------------------------------------------------

    def _evict(self, pod: Waiting, one: Fate, now: float) -> None:
        """Evict the Pod, if it still is as it was seen, and count what came of it."""
        if one.step == "recreate":
            with self._desk.lock:
                if not self._take(one.pod):
                    return
        self._tokens -= 1
        outcome = "error"
        try:
            outcome = self._evict_live(pod, one, now)
        except (Conflict, NotFound):
            outcome = "stale"
        except ApiError as error:
            outcome = self._refused(one, error, now)
        except ClusterError as error:
            self._broken += 1
            self._later[pod.uid] = now + AGAIN_SECONDS
            _log.warning("returning: %s/%s: %s", pod.namespace, pod.name, error)
        finally:
            self._done[one.pod.tenant or "none", one.step, outcome] += 1
            if outcome == "done":
                self._evicted.add(pod.uid)
            else:
                self._later[pod.uid] = max(self._later.get(pod.uid, 0.0), now + LOOK_SECONDS)
            if outcome != "done" and one.step == "recreate":
                with self._desk.lock:
                    self._lanes.leave(pod.uid, leaving=False)
                    self._desk.changed()

    def _take(self, pod: PodState) -> bool:
        """Have the Pod granted nothing any more; False where it may have been granted. With the lock held."""
        term = self._desk.term
        if term is None or (pod.phase != "waiting" and pod.uid not in term.refused):
            return False
        self._lanes.leave(pod.uid, leaving=True)
        return True

    def _evict_live(self, pod: Waiting, one: Fate, now: float) -> str:
        """Raises ClusterError."""
        if not self._leading():
            return "stale"
        live = self._client.get(f"{_PODS.format(pod.namespace)}/{pod.name}", timeout=5.0)
        claims = self._claims_of(pod.namespace, live)
        state = read(live, claims)
        with self._desk.lock:
            rule, drain_by = self._lanes.on_rollback(pod), self._lanes.drain_by(pod.namespace)
            back = self._lanes.fate(pod) is not None
        if state is None or state.uid != pod.uid or not back:
            return "stale"
        if fate(state, rule, drain_by, self._seconds()).step != one.step:
            return "stale"
        if one.step == "recreate":
            if why := self._why_spared(one.pod, live, now):
                self._spare(one.pod, why, now)
                return "spared"
            if state.phase == "waiting":
                self._take_claims(pod, claims)
            self._count(one.pod, live, now)
        if not self._leading():
            return "stale"
        evict(self._client, pod.key, pod.uid, text(at(live, "metadata", "resourceVersion")))
        _log.info("returning: %s/%s is evicted: %s", pod.namespace, pod.name, one.why)
        self._tell(one.pod, f"The lane of its namespace went back: {one.why}.", "Normal", "Evict")
        return "done"

    def _claims_of(self, namespace: str, live: Object) -> dict[str, Object]:
        found: dict[str, Object] = {}
        for name in pods.claim_names(live):
            try:
                found[name] = self._client.get(f"{_CLAIMS.format(namespace)}/{name}", timeout=5.0)
            except NotFound:
                continue
        return found

    def _take_claims(self, pod: Waiting, claims: Mapping[str, Object]) -> None:
        """Delete the Pod's claims from templates, as they were seen: then nothing is allocated any more.

        What is made in their place gets another name, which has to be written on the Pod before it can be allocated:
        then the Pod is no longer as it was seen, and is not evicted.
        """
        for name, claim in claims.items():
            if controller_of(claim).get("uid") == pod.uid:
                version = text(at(claim, "metadata", "resourceVersion"))
                self._client.delete(
                    f"{_CLAIMS.format(pod.namespace)}/{name}", text(at(claim, "metadata", "uid")), version
                )

    def _job_of(self, live: Object) -> Object | None:
        owner = controller_of(live)
        if owner.get("kind") != "Job":
            return None
        path = _JOB.format(text(at(live, "metadata", "namespace")), text(owner.get("name")))
        try:
            return self._client.get(path, timeout=5.0)
        except NotFound:
            return None

    def _failures(self, job: Object) -> int:
        return max(failures_of(job), self._failed.get(text(at(job, "metadata", "uid")), 0))

    def _count(self, pod: PodState, live: Object, now: float) -> None:
        """Before it is asked for: an answer that is lost may have been a yes. Raises ClusterError."""
        past = self._past.setdefault((pod.namespace, pod.owner), [])
        past.append(Attempt(now, self._before(pod, now) + 1))
        job = self._job_of(live)
        if job is not None:
            self._failed[text(at(job, "metadata", "uid"))] = self._failures(job) + 1

    def _refused(self, one: Fate, error: ApiError, now: float) -> str:
        pod = one.pod
        if error.status == 429:
            self._later[pod.uid] = now + max(AGAIN_SECONDS, min(error.retry_after or 0.0, 300.0))
            over = "drainBy is over" if one.step == "drain" else "it is to be recreated"
            note = f"{over}, but it can't be evicted yet: {error.message}"
            self._tell(pod, f"The lane of its namespace went back: {note}", "Warning", "Evict")
            return "budget"
        self._broken += 1
        if error.status == 403:
            self._asked = None
        self._later[pod.uid] = now + AGAIN_SECONDS
        _log.warning("returning: %s/%s: %s", pod.namespace, pod.name, error)
        return "forbidden" if error.status == 403 else "error"

    # -- telling ------------------------------------------------------------------------------------------------------

    def _say(self, found: list[tuple[Waiting, Fate]], marked: list[Waiting], drains: Mapping[str, int | None]) -> None:
        """What is to be said of Pods that are left as they are, so much a look.

        Of one that is held its condition Granted says it.
        """
        left = TOLD
        for pod, one in found:
            is_left = one.step == "finish" and one.then is None and drains[pod.namespace] is not None
            if left > 0 and (is_left or (one.step == "release" and one.pod.phase == "waiting")):
                left -= self._tell(one.pod, f"The lane of its namespace went back: {one.why}.", "Normal", "Keep")
        wanted = {pod.uid: _mark(drains[pod.namespace] or 0) for pod, one in found if one.then == "drain"}
        for pod in {pod.uid: pod for pod in (*marked, *(pod for pod, _ in found if pod.uid in wanted))}.values():
            said = wanted.get(pod.uid, "")
            if left > 0 and pod.draining != said:
                left -= 1 + self._write_mark(pod, said)

    def _tell(self, pod: PodState | Waiting, note: str, kind: str, action: str) -> int:
        """Create the Event, unless that was done: its name says what it is about. How many requests that took."""
        about = hashlib.sha256(f"{pod.uid}\0{action}\0{note}".encode()).hexdigest()[:20]
        name = f"dra-gate-lane-{about}"
        if name in self._told:
            return 0
        key: Key = pod.namespace, pod.name
        event = pod_event(
            key, pod.uid, name=name, kind=kind, reason="LaneWentBack", action=action, note=note, identity=self._identity
        )
        try:
            write_event(self._client, event)
        except Conflict:
            pass  # told before, by us or by who led before us
        except ClusterError as error:
            _log.warning("returning: Event about %s/%s: %s", pod.namespace, pod.name, error)
            return 1
        self._told.add(name)
        return 1

    def _write_mark(self, pod: Waiting, wanted: str) -> int:
        """Say on the Pod until when it may run, or that it may again; how many Events that took."""
        status, reason = ("True", "LaneWentBack") if wanted else ("False", "NotDrained")
        since = rfc3339(time.time_ns() // 1_000_000, whole=True)
        said: dict[str, Any] = condition(status, reason, wanted or "it runs until it ends", since)
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [{**said, "type": DRAINING}]}}
        try:
            self._client.patch(f"{_PODS.format(pod.namespace)}/{pod.name}/status", patch, STRATEGIC_PATCH)
        except ClusterError as error:
            if not isinstance(error, Conflict | NotFound):
                _log.warning("returning: condition of %s/%s: %s", pod.namespace, pod.name, error)
            return 0
        return self._tell(pod, f"The lane of its namespace went back: {wanted}.", "Warning", "Drain") if wanted else 0


def _mark(until: int) -> str:
    """What stands on a Pod that runs until then (Unix seconds), and no longer."""
    return f"it is evicted after {rfc3339(until * 1000, whole=True)}, and its owner makes another under device plugins"
