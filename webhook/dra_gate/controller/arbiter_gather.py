"""Gathers what has happened in the cluster since the last pass, as the arbiter is told it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from msgspec.structs import replace

from dra_gate.admission import stamp as stamps
from dra_gate.admission.held import Key, Waiting
from dra_gate.cluster.client import ClusterError, NotFound
from dra_gate.controller import arbiter_plan as plan
from dra_gate.controller.arbiter_term import COUNT_SECONDS, IDLE_SECONDS, Desk, Open, Term, Waits, now_ms
from dra_gate.controller.arbiter_view import ClaimSeen
from dra_gate.controller.arbiter_writer import Writer
from dra_gate.fairness.charge import NOTHING
from dra_gate.fairness.events import Event, Left, Settled, Used, Why
from dra_gate.fairness.ledger import KeptBack, Observed
from dra_gate.fairness.resting import idle_because, rest_after
from dra_gate.fairness.rules import capacity_of, config_of
from dra_gate.kube.group import size_from

LEDGER_SECONDS = 0.5  # a ledger is written no later than this after a grant has closed
GROUP_SECONDS = 30.0  # for how long a group's size counts as it was asked
ORPHAN_SECONDS = 5.0  # a claim whose Pod is gone is left to the garbage collector for so long

_log = logging.getLogger(__name__)


class Gatherer:
    """Looks at what has changed, with the lock held. `observed` gives how new the caches are.

    A grant that the scheduler could not use for `timeout` milliseconds is taken back; 0: never.
    """

    def __init__(self, desk: Desk, writer: Writer, observed: Callable[[], Observed], timeout: int) -> None:
        self._desk = desk
        self._client, self._view, self._lock, self._fleet = desk.client, desk.view, desk.lock, desk.fleet
        self._writer = writer
        self._observed = observed
        self._timeout = timeout
        self._sizes: dict[str, tuple[int, float]] = {}  # of groups, as asked, and when (time.monotonic())
        self._asking: set[str] = set()

    def gather(self, term: Term) -> list[Event]:
        """What has happened since the last pass, as the arbiter is told it. No decision falls in between."""
        view, events = self._view, list[Event]()
        now = now_ms()
        if term.sets != self._desk.sets:
            term.sets = self._desk.sets
            events.append(config_of(self._desk.sets, self._fleet.needs))
            term.touched.update(self._desk.sets[0].tenants)
        term.observed = self._observed()
        for pod in view.gone:
            waited = pod.uid in term.waiting or pod.uid in term.refused
            if pod.uid in term.waiting:
                term.wait_no_more(pod.uid)
                events.append(Left(uid=pod.uid))
            elif pod.uid in term.open:
                self._writer.work_on(term, pod.uid)
            term.ages.gone(pod, now, granted=not waited)
            term.refused.pop(pod.uid, None)
            term.reasons.pop(pod.uid, None)
            term.said.pop(pod.uid, None)
            if pod.uid in view.by_uid:
                view.dirty.add(view.by_uid[pod.uid])
        view.gone.clear()
        if time.monotonic() >= term.idle_at:
            term.idle_at = time.monotonic() + IDLE_SECONDS
            self._look_for_idle(term, now)
        view.look_anew()
        looked = set[Key]()
        while view.dirty:  # looking at a Pod may make its group's others worth a look, each once
            key = view.dirty.pop()
            found = view.pods.get(key)
            if found is not None and key not in looked:
                looked.add(key)
                try:
                    self._look_at(term, found, events)
                except Exception:  # noqa: BLE001 - what one Pod says must not keep all others waiting
                    _log.exception("arbiter: Pod %s/%s is passed over", *key)
        for uid in [uid for uid, one in term.open.items() if one.gone]:
            self._settle(term, uid, "", events)
        for key in view.dirty_claims:
            self._look_at_claim(term, key)
        view.dirty_claims.clear()
        view.holdings.expire(now)
        if time.monotonic() >= term.count_at:
            term.count_at = time.monotonic() + COUNT_SECONDS
            term.drift = self._count_anew()
        kept: dict[str, tuple[KeptBack, ...]] = {}
        held_back = view.holdings.held_back()
        for held in held_back:
            kept[held.tenant] = (*kept.get(held.tenant, ()), KeptBack.of(held))
        if kept != term.kept:
            self._fleet.hold_back(device for held in held_back for device in held.devices)
            for tenant in {*kept, *term.kept}:
                if tenant and kept.get(tenant) != term.kept.get(tenant):
                    term.unwritten.setdefault(tenant, 0.0)
            term.kept = kept
        capacity = capacity_of(self._fleet.kinds())
        if capacity != term.capacity:
            term.capacity = capacity
            events.append(capacity)
            largest = self._fleet.largest()
            if largest != term.largest:
                term.largest = largest
                term.touched.update(term.ledgers)
        for tenant in view.holdings.changed():
            charge = view.holdings.used.get(tenant, NOTHING)
            events.append(Used(tenant=tenant, devices=charge.devices, models=dict(sorted(charge.models.items()))))
            term.touched.add(tenant)
        return events

    def _count_anew(self) -> int:
        """Count every charge anew; by how many devices tenants were charged wrongly. What was wrong is right then."""
        holdings = self._view.holdings
        before = dict(holdings.used)
        holdings.recharge()
        drift = sum(
            abs(before.get(tenant, NOTHING).devices - holdings.used.get(tenant, NOTHING).devices)
            for tenant in {*before, *holdings.used}
        )
        if drift:
            _log.error("arbiter: charges were wrong by %d devices; they are counted anew", drift)
        return drift

    def _look_at(self, term: Term, pod: Waiting, events: list[Event]) -> None:
        """A Pod of ours that is new or has changed."""
        uid = pod.uid
        if uid in term.open:
            self._look_at_grant(term, pod, events)
            return
        if not self._view.waits(pod):
            if uid in term.waiting:
                term.wait_no_more(uid)
                events.append(Left(uid=uid))
                term.ages.gone(pod, now_ms(), granted=pod.finished)
            term.refused.pop(uid, None)
            self._reopen(term, pod, events)
            return
        templates = self._view.templates(pod, as_told=True)
        refusal = self._view.refusal(pod, templates)
        rest = term.rest_of(pod.tenant, uid)
        if refusal is None and rest is not None and rest.lasts(now_ms()):
            refusal = Why("NotScheduled", rest.text)
        if refusal is not None or templates is None:
            if uid in term.waiting:
                term.wait_no_more(uid)
                events.append(Left(uid=uid))
            if refusal is not None and term.refused.get(uid) != refusal:
                term.refused[uid] = refusal
                term.ask_why(uid)
            return
        term.refused.pop(uid, None)
        size = self._size(term, pod)
        if size is None:
            return  # asked for; the group is looked at again when it is known
        held = pod.request(term.ages.of(pod), self._view.template_charge, size)
        if pod.group is not None and templates:
            model = self._view.model_in(pod.group.key, term.granted_model)
            held = replace(held, only=model if model in templates[0].candidates else "")
        before = term.waiting.get(uid)
        if before is None or before.held != held:
            events.append(held)
        term.wait(Waits(held, pod, templates))

    def _size(self, term: Term, pod: Waiting) -> int | None:
        """How many Pods of its group have to wait, itself included; None while that is being asked for."""
        group = pod.group
        if group is None:
            return 1
        if group.size:
            return self._view.lacking(group.key, group.size, term.open)
        size, asked = self._sizes.get(group.key, (None, -math.inf))
        if time.monotonic() - asked > GROUP_SECONDS and group.key not in self._asking:
            self._asking.add(group.key)
            key, ask, copies = group.key, group.ask, group.copies
            self._writer.submit(lambda: self._ask(key, ask, copies))
        if size is None:
            return None
        return self._view.lacking(group.key, size, term.open)

    def _ask(self, group: str, path: str, copies: int) -> None:
        """Read the object that says how large a group is."""
        size: int | None = 0
        try:
            size = size_from(self._client.get(path, timeout=5.0), copies)
        except NotFound:
            pass  # its Pods will be gone, too
        except ClusterError as error:
            _log.warning("arbiter: how large group %s is: %s", group, error)
            size = None
        with self._lock:
            self._asking.discard(group)
            if size is not None:
                if len(self._sizes) > 100_000:
                    self._sizes.clear()
                self._sizes[group] = (size, time.monotonic())
        if size is None:
            self._desk.after(5.0, lambda: self._regard(group))
        else:
            self._regard(group)

    def _regard(self, group: str) -> None:
        with self._lock:
            self._view.group_changed(group)
            self._desk.changed()

    def _look_at_grant(self, term: Term, pod: Waiting, events: list[Event]) -> None:
        """An open grant whose Pod or claims have changed: allocated, or something is missing."""
        one = term.open[pod.uid]
        grant = one.grant
        keys = self._view.of_pod.get(pod.uid, set())
        claims = {key[1]: self._view.claims[key] for key in keys}
        model = None if pod.finished else self._view.given(pod, [claim.name for claim in grant.claims])
        if model is not None:
            self._settle(term, pod.uid, model, events)
            return
        one.idle = self._idle(pod, one)
        if one.idle or self._view.lanes.withdraws(pod):
            self._writer.work_on(term, pod.uid)
            return
        late = [claims.get(claim.name) for claim in grant.claims]
        wrong = any(
            claim is None or (claim.model is None and not plan.matches(claim, grant, wanted.digest))
            for claim, wanted in zip(late, grant.claims, strict=True)
        )
        if wrong and time.monotonic() - one.written < 1.0:  # the watch may be behind what was written just now
            self._desk.after(1.0, lambda: self._look_again(pod.uid))
        elif pod.finished or wrong or (pod.held and not one.lifted):
            self._writer.work_on(term, pod.uid)

    def _look_for_idle(self, term: Term, now: int) -> None:
        """Have those Pods looked at whose grant the scheduler may have no use for, or whose rest is over."""
        uids = [uid for uid, one in term.open.items() if self._timeout and now - one.grant.at >= self._timeout]
        for rests in term.resting.values():
            uids += [uid for uid in rests if uid in term.refused]
            for uid in [uid for uid in rests if uid not in self._view.by_uid]:
                del rests[uid]
        self._view.dirty.update(self._view.by_uid[uid] for uid in uids if uid in self._view.by_uid)

    def _idle(self, pod: Waiting, one: Open) -> str:
        """Why the scheduler has no use for the grant, if devices are kept for it in vain; empty for no reason.

        One of claims from templates keeps none, and can't be taken back. A group whose others have devices is not
        taken apart.
        """
        grant = one.grant
        if not grant.claims or pod.bound or pod.finished or pod.deleting or pod.held:
            return ""
        if any(self._view.claims[key].model is not None for key in self._view.of_pod.get(pod.uid, ())):
            return ""
        why = idle_because(pod.gates, pod.unplaced, granted=grant.at, now=now_ms(), timeout=self._timeout)
        if why and pod.group is not None and self._view.given_in(pod.group.key):
            return ""
        return why

    def _look_again(self, uid: str) -> None:
        with self._lock:
            if uid in self._view.by_uid:
                self._view.dirty.add(self._view.by_uid[uid])
                self._desk.changed()

    def _settle(self, term: Term, uid: str, model: str, events: list[Event]) -> None:
        """The grant is open no more."""
        one = term.open[uid]
        term.drop(uid)
        events.append(Settled(uid=uid, model=model))
        self._view.holdings.close(one.grant.namespace, uid)
        term.unwritten.setdefault(one.tenant, time.monotonic() + LEDGER_SECONDS)
        term.touched.add(one.tenant)
        if uid in self._view.by_uid:
            if one.idle and not model:
                rest = rest_after(term.rest_of(one.tenant, uid), uid, now_ms(), one.idle)
                term.resting.setdefault(one.tenant, {})[uid] = rest
            elif model:
                term.resting.get(one.tenant, {}).pop(uid, None)
            key = self._view.by_uid[uid]
            group = self._view.pods[key].group
            if group is not None:
                self._view.group_changed(group.key)
            if not model:
                self._view.dirty.add(key)  # of one that was withdrawn: it waits again
                self._desk.changed()

    def _reopen(self, term: Term, pod: Waiting, events: list[Event]) -> None:
        """A Pod that was let go and whose claims are there but not allocated has a grant, if no ledger says so, too:
        the ledger was lost, or the scheduler took an allocation back."""
        if pod.finished or pod.deleting or not pod.late or stamps.GRANT_GATE in pod.gates:
            return
        rest = term.rest_of(pod.tenant, pod.uid)
        if rest is not None and rest.lasts(now_ms()):
            return  # we have just taken its claims away, and the cache is behind
        claims = [self._view.claims.get((pod.namespace, one.claim)) for one in pod.late]
        if not all(claim is not None and claim.owner == pod.uid and not claim.deleting for claim in claims):
            return
        there = [claim for claim in claims if claim is not None]
        if all(claim.model is not None for claim in there):
            return
        candidates = there[0].candidates
        templates = self._view.templates(pod)
        tenant = self._view.payer(pod.namespace, pod.tenant)
        if templates is None or tenant is None or not plan.may_have(templates, candidates):
            return
        held = pod.request(pod.created, self._view.template_charge, 1)
        grant = plan.grant_of(
            held, pod, templates, candidates[0], candidates, generation=there[0].generation, at_ms=now_ms()
        )
        term.put(Open(tenant, grant, templates))
        self._view.holdings.open(pod.namespace, pod.uid)
        term.unwritten.setdefault(tenant, 0.0)
        events.append(grant.opened(tenant))
        if self._view.lanes.withdraws(pod):
            self._writer.work_on(term, pod.uid)

    def _look_at_claim(self, term: Term, key: Key) -> None:
        """A late claim that nobody waits for is taken away."""
        claim = self._view.claims.get(key)
        if claim is None or not claim.late or claim.deleting or claim.owner in term.open:
            return
        pod = self._view.pods.get(self._view.by_uid.get(claim.owner, ("", "")))
        if pod is None:  # mostly the garbage collector has taken it by then
            self._desk.after(ORPHAN_SECONDS, lambda: self._remove_later(term, key, claim))
        elif claim.model is None and pod.held:
            self._remove_later(term, key, claim)

    def _remove_later(self, term: Term, key: Key, claim: ClaimSeen) -> None:
        there = self._view.claims.get(key)
        if there is not None and there.uid == claim.uid:
            self._writer.submit(lambda: self._writer.remove_orphan(term, key, claim))
