"""The arbiter's loop: feeds the arbiter with what the cluster shows, and carries its decisions out while it leads.

A pass takes what has changed, decides, and writes: each tenant's ledger, then the claims, then the gates of the Pods.
What a ledger says is finished by whoever leads next; what no ledger says is undone. Nothing of that is remembered
between two terms of leadership: each begins with the ledgers.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import msgspec
from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dra_gate.admission.held import Key
from dra_gate.cluster import ledger as ledgers
from dra_gate.cluster.client import Client, ClusterError
from dra_gate.cluster.line_log import LineLog
from dra_gate.cluster.reflector import Backoff
from dra_gate.controller.arbiter_gather import Gatherer
from dra_gate.controller.arbiter_ledgers import STATUS_SECONDS, Ledgers
from dra_gate.controller.arbiter_metrics import ArbiterMetrics, Standing
from dra_gate.controller.arbiter_tail import Tail
from dra_gate.controller.arbiter_teller import Teller
from dra_gate.controller.arbiter_term import Away, Desk, Open, Overtaken, Term, now_ms
from dra_gate.controller.arbiter_writer import Writer
from dra_gate.controller.decisions import DecisionController
from dra_gate.fairness import log as lines
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.charge import Charge
from dra_gate.fairness.events import Decision, Granted, Tags, Used
from dra_gate.fairness.ledger import Observed
from dra_gate.fairness.log import Recorder
from dra_gate.fairness.view import NOTHING_KNOWN, QueueView, Refused, view
from dra_gate.kube.raw import Object, at, mapping
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import Switch

GRANT_TIMEOUT = 300.0  # seconds
SETTLE_SECONDS = 0.05  # between two passes: one change makes several events
OBSERVE_SECONDS = 2.0  # a cache that is older than a ledger for this long is listed anew
SHOWN_SECONDS = 5.0  # for so long a view of the queue is shown again,
SHOWN_RATIO = 20  # and so many times as long as it took: with 100,000 Pods that wait about a second
SHOWN_PODS = 50  # of a tenant
ANSWER_SECONDS = 8.0

_log = logging.getLogger(__name__)


class ArbiterController(Collector):
    """Grants Pods that our gate holds, while it leads.

    It lives by the caches of `decisions`: it has to be made before they start. `leading` is asked before every write;
    `log` gets the arbiter's lines. A grant that the scheduler could not use for `grant_timeout` seconds is taken back;
    0: never. `use`, `wake` and `deactivate` as there.
    """

    def __init__(
        self,
        client: Client,
        decisions: DecisionController,
        *,
        leading: Callable[[], bool],
        log: LineLog | None = None,
        grant_timeout: float = GRANT_TIMEOUT,
    ) -> None:
        self._client = client
        self._lines = log
        self._decisions = decisions
        self._lock, fleet = decisions.follow(self)
        self.metrics = ArbiterMetrics(self._standing)
        self._desk = Desk(client, fleet, self._lock, leading, self.metrics)
        self._view = self._desk.view
        self._writer = Writer(self._desk)
        self._gatherer = Gatherer(self._desk, self._writer, self._observed, round(grant_timeout * 1000))
        self._ledgers = Ledgers(self._desk, self._writer)
        self._teller = Teller(self._desk)
        self._tail = Tail(self.metrics)
        self._stopping = threading.Event()
        self._sequence = _last_sequence(log)
        self._recorder: Recorder | None = None
        self._shown = NOTHING_KNOWN
        self._show_again = 0.0  # time.monotonic(): not before this
        self._asked: list[Future[QueueView]] = []  # who looks at the queue and has no answer yet
        self._failures = Backoff(0.5, 10.0)
        self._refusals = Backoff(0.2, 1.0)  # of ledgers: other tenants wait meanwhile
        self._behind: float | None = None  # since when a cache has been older than a ledger
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop; nothing is written before `wake`."""
        self._tail.start()
        self._thread.start()

    def use(self, sets: Iterable[PolicySet]) -> None:
        """Decide by `sets` from now on, the active one first. After the caches' owner has been told of them."""
        known = tuple(sets)
        with self._lock:
            if [one.digest for one in known] != [one.digest for one in self._desk.sets]:
                self._desk.sets = known
                self._view.use(known)
        self._desk.waking.set()

    def switch(self, switch: Switch) -> None:
        """The switch between lanes says this now: who goes back is granted nothing, and loses what nobody allocated."""
        with self._lock:
            self._view.lanes.switch(switch)
            self._desk.changed()

    @property
    def desk(self) -> Desk:
        """What is known here: for those who look after Pods whose lane went back."""
        return self._desk

    def wake(self) -> None:
        """We lead."""
        with self._lock:
            self._desk.active = True
        self._desk.waking.set()

    def deactivate(self) -> None:
        """We lead no more: what is being sent ends, and what is known of grants is forgotten."""
        with self._lock:
            self._desk.active = False
            self._end()
        self._desk.waking.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End all threads; waits at most about `timeout` seconds for the loop."""
        self.deactivate()
        self._stopping.set()
        self._desk.waking.set()
        for part in (self._tail, self._writer, self._ledgers, self._teller):
            part.stop()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return [] if self._thread.is_alive() else ["thread arbiter has ended"]

    def collect(self) -> Iterable[Metric]:
        """What was decided, who waits."""
        return self.metrics.collect()

    def queue(self) -> QueueView:
        """Who holds what and who waits, of a few seconds ago; nothing is known while another replica leads."""
        answer: Future[QueueView] = Future()
        with self._lock:
            if self._desk.term is None or time.monotonic() < self._show_again:
                return self._shown
            self._asked.append(answer)
        self._desk.waking.set()
        try:
            return answer.result(ANSWER_SECONDS)
        except TimeoutError:
            return NOTHING_KNOWN

    def used(self) -> dict[str, Charge]:
        """What each tenant holds, open grants aside."""
        with self._lock:
            return dict(self._view.holdings.used)

    # -- what the caches tell, each with the lock held ----------------------------------------------------------------

    def set_pod(self, key: Key, obj: Object) -> None:
        """A Pod was made or changed."""
        self._view.set_pod(key, obj, now_ms())
        self._desk.changed()

    def drop_pod(self, key: Key) -> None:
        """A Pod is gone."""
        self._view.drop_pod(key, now_ms())
        self._desk.changed()

    def set_claim(self, key: Key, obj: Object) -> None:
        """A claim was made or changed."""
        self._view.set_claim(key, obj)
        self._desk.changed()

    def drop_claim(self, key: Key) -> None:
        """A claim is gone."""
        self._view.drop_claim(key)
        self._desk.changed()

    def set_node(self, key: Key, obj: Object) -> None:
        """A Node was made or changed."""
        self._view.set_node(key[1], mapping(at(obj, "metadata", "labels")))
        self._desk.changed()

    def drop_node(self, key: Key) -> None:
        """A Node is gone."""
        self._view.drop_node(key[1])
        self._desk.changed()

    def set_class(self, key: Key, obj: Object) -> None:
        """A DeviceClass was made or changed."""
        self._view.set_class(key[1], mapping(obj.get("spec")))
        self.devices_changed()

    def drop_class(self, key: Key) -> None:
        """A DeviceClass is gone."""
        self._view.drop_class(key[1])
        self.devices_changed()

    def set_slice(self, _key: Key, obj: Object) -> None:
        """A ResourceSlice was made or changed."""
        self._view.set_slice(mapping(obj.get("spec")))
        self.devices_changed()

    def devices_changed(self) -> None:
        """What is published has changed."""
        self._view.holdings.devices_changed()
        self._desk.changed()

    def lane_changed(self, namespace: str, label: str | None) -> None:
        """What a namespace's lane label says now; None: it has none, and is not gated."""
        self._view.set_lane(namespace, label)
        self._desk.changed()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = 0.2
        while True:
            self._desk.waking.wait(wait)
            self._desk.waking.clear()
            if self._stopping.is_set():
                return
            began = time.monotonic()
            try:
                wait = self._turn()
            except (Away, Overtaken) as error:
                _log.info("arbiter: begins anew: %s", error)
                self._finish_term()
                wait = 0.2
            except ClusterError as error:
                wait = self._failures.next()
                _log.warning("arbiter: %s; next attempt in %.1f s", error, wait)
                self._stopping.wait(wait)
            except Exception:  # noqa: BLE001 - a dead loop would leave every held Pod waiting for ever
                _log.exception("arbiter: begins anew")
                self._finish_term()
                wait = self._failures.next()
                self._stopping.wait(wait)
            # What comes in soon after a pass is taken together.
            rest = SETTLE_SECONDS - (time.monotonic() - began)
            if rest > 0:
                time.sleep(rest)

    def _finish_term(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        """With the lock held."""
        if self._desk.term is not None:
            self._tail.end()
        self._desk.term = None
        self._shown, self._show_again = NOTHING_KNOWN, 0.0
        self._answer(self._shown)
        self._desk.forget_later()
        self._view.gone.clear()

    def _turn(self) -> float:
        """One pass; for how many seconds there is nothing to do unless something changes."""
        with self._lock:
            if not self._desk.active:
                return 3600.0
            term = self._desk.term
        if term is None:
            term = self._begin()
            if term is None:
                return 0.2
        if self._lines is not None and self._lines.full():
            self._lines.turn()
            term.recorder.state()
        if self._tail.wants_state(len(term.waiting) + len(term.open)):
            self._check_from_here(term)
        self._desk.do_what_is_due()
        with self._lock:
            if self._desk.term is not term:
                return 0.0
            events = self._gatherer.gather(term)
        now = now_ms()
        for event in events:
            term.recorder.take(event)
            if isinstance(event, Used):
                term.flow.used(event, now)
        decisions: list[Decision] = []
        if events or term.more or (term.decide_at is not None and now >= term.decide_at):
            decisions = term.recorder.decide(now)
            for decision in decisions:
                if isinstance(decision, Granted):
                    term.flow.granted(decision)
            term.more = bool(decisions)
            term.decide_at = term.arbiter.next_time()
        if decisions:
            if self._ledgers.carry_out(term, decisions, now):
                self._refusals.reset()
                self._failures.reset()
            else:
                term.more = True
                self._stopping.wait(self._refusals.next())
        self._ledgers.keep_ledgers(term)
        self._teller.tell(term)
        self._show(term)
        self.metrics.passed(time.time())
        return self._until(term)

    def _show(self, term: Term) -> None:
        """The view for those who have asked: by this thread, since the arbiter is its own."""
        if self._asked:
            began = time.monotonic()
            shown = view(term.arbiter, now_ms(), term.flow, most=SHOWN_PODS)
            with self._lock:
                shown = dataclasses.replace(shown, refused=tuple(self._refused(term)))
                if self._desk.term is term:
                    self._shown, ended = shown, time.monotonic()
                    self._show_again = ended + max(SHOWN_SECONDS, SHOWN_RATIO * (ended - began))
                    self._answer(shown)

    def _refused(self, term: Term) -> Iterator[Refused]:
        for uid, why in itertools.islice(term.refused.items(), SHOWN_PODS):
            key = self._view.by_uid.get(uid)
            if key is not None:
                yield Refused("/".join(key), self._view.pods[key].tenant, why.reason, why.text)

    def _answer(self, shown: QueueView) -> None:
        """With the lock held."""
        asked, self._asked = self._asked, []
        for one in asked:
            one.set_result(shown)

    def _until(self, term: Term) -> float:
        if term.more:
            return 0.0
        now = time.monotonic()
        waits = [1.0, self._desk.due_at() - now]
        if term.decide_at is not None:
            waits.append((term.decide_at - now_ms()) / 1000)
        waits += [due - now for due in term.unwritten.values()]
        if term.touched:
            waits.append(STATUS_SECONDS)
        if term.to_say or term.round:
            waits.append(0.25)
        return max(0.0, min(waits))

    # -- a term begins ------------------------------------------------------------------------------------------------

    def _begin(self) -> Term | None:
        """Read the ledgers and wait until what we see is as new as what they were written by; None: not yet."""
        with self._lock:
            if not self._desk.sets or not self._decisions.settled() or not self._desk.leading():
                return None
        found = ledgers.ledgers(self._client)
        with self._lock:
            seen = self._observed()
            if not all(seen.reached(one.spec.observed) for one in found.values()):
                self._catch_up()
                return None
            self._behind = None
            if self._recorder is not None:  # the last term's may have written on after it was over
                self._sequence = self._recorder.sequence
            term = Term(Recorder(Arbiter(), self._write_line, self._sequence), found)
            self._recorder = term.recorder
            view = self._view
            view.gone.clear()
            view.holdings.close_all()  # a term may end between a decision and its ledger
            view.dirty.update(view.pods)
            view.dirty_claims.update(view.claims)
            for tenant, ledger in found.items():
                for grant in ledger.spec.grants:
                    pod = view.pods.get((grant.namespace, grant.name))
                    templates = self._view.templates(pod) if pod is not None and pod.uid == grant.uid else None
                    term.put(Open(tenant, grant, templates or ()))
                    view.holdings.open(grant.namespace, grant.uid)
                term.resting[tenant] = {rest.uid: rest for rest in ledger.spec.resting}
                for kept in ledger.spec.held_back:
                    if kept.until > now_ms():
                        view.holdings.hold_back(kept.held(tenant))
            term.touched.update(found)
            term.touched.update(self._desk.sets[0].tenants)
            view.holdings.changed()
            used = dict(view.holdings.used)
            self._desk.term = term
        if self._lines is not None:
            self._lines.turn()
        _log.info("arbiter: begins with %d ledgers and %d open grants", len(found), len(term.open))
        self._check_from_here(term)
        term.recorder.state()
        for tenant, ledger in found.items():
            tags = {model: (tag.start, tag.finish) for model, tag in ledger.spec.tags.items()}
            term.recorder.take(Tags(tenant=tenant, tags=tags))
        for one in term.open.values():
            term.recorder.take(one.grant.opened(one.tenant))
        for tenant, charge in used.items():
            line = Used(tenant=tenant, devices=charge.devices, models=dict(charge.models))
            term.recorder.take(line)
            term.flow.used(line, term.flow.since)
        for uid in list(term.open):
            self._writer.work_on(term, uid)
        return term

    def _observed(self) -> Observed:
        versions = {one.name.rpartition("/")[2]: one.version for one in self._decisions.reflectors}
        return Observed(versions["Pod"], versions["ResourceClaim"])

    def _catch_up(self) -> None:
        """A quiet watch says nothing of what was listed elsewhere: list anew after a while."""
        now = time.monotonic()
        if self._behind is None:
            self._behind = now
        elif now - self._behind > OBSERVE_SECONDS:
            self._behind = now
            for reflector in self._decisions.reflectors:
                if reflector.name.endswith(("/Pod", "/ResourceClaim")):
                    reflector.relist()

    def _check_from_here(self, term: Term) -> None:
        self._tail.begin(lines.dumps(replace(term.arbiter.state(), sequence=term.recorder.sequence)))

    def _write_line(self, line: bytes) -> None:
        self._tail.write(line)
        if self._lines is not None:
            self._lines.write(line)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def _standing(self) -> Standing:
        with self._lock:
            term = self._desk.term
            if term is None:
                return Standing()
            now = now_ms()
            oldest: dict[str, float] = {}
            waiting = Counter[tuple[str, str]]()
            for uid, one in list(term.waiting.items()):
                tenant = one.held.tenant
                waiting[tenant, term.reasons.get(uid, "Queued")] += 1
                oldest[tenant] = max(oldest.get(tenant, 0.0), (now - one.held.queued) / 1000)
            for uid, why in term.refused.items():
                key = self._view.by_uid.get(uid)
                if key is not None:  # anybody may have written the stamp
                    pod = self._view.pods[key]
                    waiting[self._view.payer(pod.namespace, pod.tenant) or "none", why.reason] += 1
            return Standing(
                leads=True,
                waiting=waiting,
                oldest=oldest,
                open={tenant: len(found) for tenant, found in term.of_tenant.items()},
                drift=term.drift,
                dropped=0 if self._lines is None else self._lines.dropped,
            )


def _last_sequence(log: LineLog | None) -> int:
    """The number of the last line that is there."""
    line = None if log is None else log.last()
    try:
        return 0 if not line else lines.loads(line).sequence
    except msgspec.MsgspecError:
        return 0
