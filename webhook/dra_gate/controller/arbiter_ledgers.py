"""Writes the tenants' ledgers: decisions before anything else is done about them, and what replicas read."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from dra_gate.cluster.client import ClusterError, Conflict, NotFound
from dra_gate.cluster.ledger import Ledger
from dra_gate.controller import arbiter_plan as plan
from dra_gate.controller.arbiter_term import Away, Desk, Open, Overtaken, Term, Waits, now_ms
from dra_gate.controller.arbiter_writer import Writer
from dra_gate.fairness.events import Decision, Granted, Settled
from dra_gate.fairness.ledger import LedgerSpec, Tag
from dra_gate.fairness.resting import kept
from dra_gate.kube.times import rfc3339

STATUS_SECONDS = 0.2  # between two writings of a tenant's status
LEDGER_WRITERS = 4

_log = logging.getLogger(__name__)


class Ledgers:
    """The loop calls `carry_out` and `keep_ledgers`; the ledgers of several tenants are written at once."""

    def __init__(self, desk: Desk, writer: Writer) -> None:
        self._desk = desk
        self._client, self._view, self._lock = desk.client, desk.view, desk.lock
        self._writer = writer
        self._threads = ThreadPoolExecutor(LEDGER_WRITERS, "arbiter-ledger")

    def stop(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def carry_out(self, term: Term, decisions: list[Decision], now: int) -> bool:
        """Write the ledgers of the tenants concerned; what was written is then made true by the writer.

        False where a ledger could not be written: nothing is granted to that tenant. Raises ClusterError, Overtaken.
        """
        new: dict[str, dict[str, tuple[Waits, Granted, tuple[str, ...]]]] = {}
        revised: dict[str, dict[str, tuple[str, ...]]] = {}
        with self._lock:
            for one in decisions:
                if isinstance(one, Granted):
                    waits = term.wait_no_more(one.uid)
                    # Nothing is narrowed for a tenant that has left the fair queues: its policy says what it may get.
                    candidates = one.candidates or (waits.templates[0].candidates if waits.templates else ())
                    new.setdefault(waits.held.tenant, {})[one.uid] = (waits, one, candidates)
                    self._view.holdings.open(waits.pod.namespace, one.uid)
                    continue
                tenant = next((name for name, found in new.items() if one.uid in found), "")
                if tenant:
                    waits, granted, _ = new[tenant][one.uid]
                    new[tenant][one.uid] = (waits, granted, one.candidates)
                else:
                    revised.setdefault(term.open[one.uid].tenant, {})[one.uid] = one.candidates
                self._desk.metrics.revised(one.reason)
        tenants = sorted({*new, *revised})
        written = self._threads.map(
            lambda tenant: self._commit(term, tenant, new.get(tenant, {}), revised.get(tenant, {})), tenants
        )
        failed, lost = False, None
        for tenant, error in zip(tenants, list(written), strict=True):
            if error is None:
                for waits, granted, _ in new.get(tenant, {}).values():
                    self._desk.metrics.granted(granted, (now - waits.held.queued) / 1000)
                    if waits.pod.told is not None or waits.held.uid in term.said:
                        term.to_say.append(waits.held.uid)
                continue
            self._undo(term, new.get(tenant, {}))
            if isinstance(error, Overtaken | Away):
                lost = error
            elif tenant in revised and lost is None:  # the arbiter has it done
                lost = Overtaken(f"a grant of {tenant} could not be revised: {error}")
            failed = True
        if lost is not None:
            raise lost
        return not failed

    def _commit(
        self,
        term: Term,
        tenant: str,
        new: Mapping[str, tuple[Waits, Granted, tuple[str, ...]]],
        revised: Mapping[str, tuple[str, ...]],
    ) -> Exception | None:
        """Write one tenant's ledger with these grants, then have them carried out. In a ledger writer's thread."""
        try:
            generation = self._generation(term, tenant) + 1
            grants = {
                uid: Open(
                    tenant,
                    plan.grant_of(
                        waits.held,
                        waits.pod,
                        waits.templates,
                        granted.model,
                        candidates,
                        generation=generation,
                        at_ms=granted.at,
                        borrowed=granted.tier > 0,
                        lease=granted.lease,
                    ),
                    waits.templates,
                )
                for uid, (waits, granted, candidates) in new.items()
            }
            for uid, candidates in revised.items():
                before = term.open[uid]
                templates = before.templates
                if not plan.may_have(templates, candidates):  # they were another set's, which knew other models
                    with self._lock:
                        pod = self._view.pods.get(self._view.by_uid.get(uid, ("", "")))
                        templates = (None if pod is None else self._view.templates(pod, as_told=True)) or ()
                if len(templates) < len(before.grant.claims):
                    continue  # its Pod has not been seen again: it is about to be closed
                revision = plan.revised(before.grant, templates, candidates, generation)
                grants[uid] = Open(tenant, revision, templates)
            self._write_ledger(term, tenant, {**term.of_tenant.get(tenant, {}), **grants})
        except (ClusterError, Overtaken) as error:
            return error
        except ValueError as error:  # other tenants' Pods go on
            _log.exception("arbiter: the ledger of %s", tenant)
            return error
        with self._lock:
            if self._desk.term is not term:
                return None
            for uid, one in grants.items():
                if uid in revised:
                    there = term.open[uid]
                    there.grant, there.templates, there.written = one.grant, one.templates, 0.0
                else:
                    term.put(one)
                self._writer.work_on(term, uid)
        return None

    def _undo(self, term: Term, new: Mapping[str, tuple[Waits, Granted, tuple[str, ...]]]) -> None:
        """The ledger was not written: nothing of it happened."""
        for uid, (waits, _, _) in new.items():
            term.recorder.take(Settled(uid=uid))
            term.recorder.take(waits.held)
            with self._lock:
                term.wait(waits)
                self._view.holdings.close(waits.pod.namespace, uid)
                if uid in self._view.by_uid:
                    self._view.dirty.add(self._view.by_uid[uid])
                else:
                    self._view.gone.append(waits.pod)

    def _generation(self, term: Term, tenant: str) -> int:
        """Of what is stored, reading it where that is not known. Raises ClusterError, Overtaken."""
        ledger = term.ledgers.get(tenant)
        if ledger is None:
            ledger = term.ledgers[tenant] = Ledger(self._client, tenant)
        if tenant in term.unread:
            before = ledger.spec.generation
            try:
                ledger.read()
            except NotFound:
                ledger.version = ""
            if ledger.spec.generation > before + 1:  # one more may be what we wrote and got no answer to
                raise Overtaken(f"the ledger of {tenant} is at {ledger.spec.generation}, we had {before}")
            term.unread.discard(tenant)
        return ledger.spec.generation

    def _write_ledger(self, term: Term, tenant: str, grants: Mapping[str, Open]) -> None:
        """Raises ClusterError; then nothing is known of what is stored."""
        generation = self._generation(term, tenant) + 1
        ledger = term.ledgers[tenant]
        tags = {model: Tag(*found) for model, found in term.arbiter.tags(tenant).items()}
        spec = LedgerSpec(
            generation=generation,
            grants=tuple(one.grant for _, one in sorted(grants.items())),
            tags=tags,
            held_back=term.kept.get(tenant, ()),
            resting=kept(term.resting.get(tenant, {}).values()),
            observed=term.observed,
        )
        try:
            self._desk.send(term, "ledger", lambda: ledger.write(spec))
        except ClusterError as error:
            if not isinstance(error, Away):
                self._desk.metrics.ledger_failed(conflict=isinstance(error, Conflict))
                _log.warning("arbiter: ledger of %s: %s", tenant, error)
            term.unread.add(tenant)
            raise
        term.unwritten.pop(tenant, None)
        term.touched.add(tenant)

    def keep_ledgers(self, term: Term) -> None:
        """Write ledgers whose grants have closed, and what replicas of the webhook read."""
        now = time.monotonic()
        due = [tenant for tenant, at_time in term.unwritten.items() if at_time <= now]
        due += [tenant for tenant in term.touched if tenant not in term.ledgers and tenant not in due]
        told = [
            tenant
            for tenant in term.touched
            if now - term.told_at.get(tenant, 0.0) >= STATUS_SECONDS and tenant not in due
        ]
        for _ in self._threads.map(lambda tenant: self._keep_ledger(term, tenant, spec=True), due):
            pass
        for _ in self._threads.map(lambda tenant: self._keep_ledger(term, tenant, spec=False), told):
            pass

    def _keep_ledger(self, term: Term, tenant: str, *, spec: bool) -> None:
        now = time.monotonic()
        try:
            if spec:
                self._write_ledger(term, tenant, term.of_tenant.get(tenant, {}))
            else:
                self._tell_status(term, tenant)
        except Away:
            raise
        except ClusterError as error:
            if spec:
                term.unwritten[tenant] = now + 2.0
            else:
                term.told_at[tenant] = now + 2.0
                term.touched.add(tenant)
                term.unread.add(tenant)
                _log.warning("arbiter: status of the ledger of %s: %s", tenant, error)

    def _tell_status(self, term: Term, tenant: str) -> None:
        if tenant in term.unread:
            self._generation(term, tenant)
        ledger = term.ledgers[tenant]
        account = term.arbiter.account(tenant)
        status = {
            "observedGeneration": ledger.spec.generation,
            "devices": account.devices,
            "models": dict(account.models),
            "waiting": term.waits[tenant],
            "largest": dict(term.largest),
        }
        term.touched.discard(tenant)
        if {key: value for key, value in ledger.status.items() if key != "at"} == status:
            return
        term.told_at[tenant] = time.monotonic()
        self._desk.send(term, "status", lambda: ledger.tell({**status, "at": rfc3339(now_ms())}))
