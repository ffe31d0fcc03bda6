"""Makes grants true: the claims that the ledger says, then the Pod without our gate. Undoes what no ledger says.

Each step may be done again by whoever leads next. All of it runs in threads of its own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dra_gate.admission import stamp as stamps
from dra_gate.admission.held import Key, Waiting
from dra_gate.cluster.client import JSON_PATCH, ApiError, ClusterError, Conflict, NotFound
from dra_gate.controller import arbiter_plan as plan
from dra_gate.controller.arbiter_term import PODS, Away, Desk, Open, Term
from dra_gate.controller.arbiter_view import ClaimSeen
from dra_gate.fairness.ledger import Grant, GrantedClaim
from dra_gate.kube.group import controller_of
from dra_gate.kube.pod import is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import Template

WRITERS = 12
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"

_log = logging.getLogger(__name__)


class Writer:
    """Carries out open grants, each by one thread at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._client, self._view, self._lock = desk.client, desk.view, desk.lock
        self._working = threading.Lock()  # over who works on which grant
        self._threads = ThreadPoolExecutor(WRITERS, "arbiter-writer")

    def stop(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def submit(self, do: Callable[[], None]) -> None:
        """Do it in one of the threads, unless we are stopping."""
        with contextlib.suppress(RuntimeError):
            self._threads.submit(do)

    def work_on(self, term: Term, uid: str) -> None:
        """Have a grant finished, or closed if its Pod is gone, can't be scheduled, or its lane went back."""
        one = term.open.get(uid)
        if one is None:
            return
        with self._working:
            if one.busy:
                one.again = True
                return
            one.busy = True
        self.submit(lambda: self._work(term, uid))

    def _work(self, term: Term, uid: str) -> None:
        one = term.open.get(uid)
        if one is None or one.gone or self._desk.term is not term:
            return
        wait: float | None = None
        try:
            one.again = False
            with self._lock:
                grant, there = one.grant, uid in self._view.by_uid
                pod = self._view.pods.get(self._view.by_uid[uid]) if there else None
                withdraws = pod is not None and (one.idle != "" or self._view.lanes.withdraws(pod))
            if pod is None or pod.finished or withdraws:
                wait = self._close(term, one, pod if withdraws else None)
            else:
                templates = one.templates or self._late_templates(one, pod)
                self._limit(term, grant, pod)
                for claim, template in zip(grant.claims, templates, strict=True):
                    self._write_claim(term, grant, claim, template)
                one.written = time.monotonic()
                if not one.lifted:
                    self._lift(term, grant, pod)
                    one.lifted = True
                one.retries.reset()
        except Away:
            return
        except (NotFound, Conflict):
            wait = one.retries.next()
        except ClusterError as error:
            wait = max(one.retries.next(), min(getattr(error, "retry_after", None) or 0.0, 30.0))
            _log.warning("arbiter: grant of %s/%s: %s", one.grant.namespace, one.grant.name, error)
        except Exception:  # noqa: BLE001 - a grant that nobody works on would never be finished
            _log.exception("arbiter: grant of %s/%s", one.grant.namespace, one.grant.name)
            wait = one.retries.next()
        finally:
            with self._working:
                one.busy = False
                again = one.again
        if again:
            wait = 0.0
        if wait is not None:
            self._desk.after(wait, lambda: self.work_on(term, uid))

    def _limit(self, term: Term, grant: Grant, pod: Waiting) -> None:
        """Before its claims: limit the life of a Pod that had a grant before, so that its gate is off already."""
        patch = [] if stamps.GRANT_GATE in pod.gates else plan.lease_patch(pod.uid, pod.deadline, grant.lease)
        if patch:
            path = f"{PODS.format(pod.namespace)}/{pod.name}"
            self._desk.send(term, "gate", lambda: self._client.patch(path, patch, JSON_PATCH))

    def _late_templates(self, one: Open, pod: Waiting) -> tuple[Template, ...]:
        """Of a grant that a ledger told of before its Pod was seen."""
        with self._lock:
            found = self._view.templates(pod)
        if found is None:
            raise ApiError(404, "NotFound", f"policy {pod.policy} is in no set that counts")
        one.templates = found
        return found

    def _write_claim(self, term: Term, grant: Grant, claim: GrantedClaim, template: Template) -> None:
        """Make the claim be there as the grant says. One that is another's, or says something else, is deleted."""
        with self._lock:
            seen = self._view.claims.get((grant.namespace, claim.name))
        if (
            seen is not None
            and seen.owner == grant.uid
            and (seen.model is not None or plan.matches(seen, grant, claim.digest))
        ):
            return
        path = _CLAIMS.format(grant.namespace)
        body = plan.claim_of(grant, claim, template)
        try:
            self._desk.send(term, "claim", lambda: self._client.create(path, body, timeout=10.0))
            return
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
        there = self._client.get(f"{path}/{claim.name}", timeout=5.0)
        if plan.may_stay(there, grant, claim.digest):
            return
        self._delete(term, path, there)
        self._desk.send(term, "claim", lambda: self._client.create(path, body, timeout=10.0))

    def _delete(self, term: Term, path: str, claim: Object) -> None:
        """Delete exactly that claim, as it was seen; it may be gone."""
        name, uid, version = (text(at(claim, "metadata", word)) for word in ("name", "uid", "resourceVersion"))
        with contextlib.suppress(NotFound):
            self._desk.send(term, "orphan", lambda: self._client.delete(f"{path}/{name}", uid, version))

    def _lift(self, term: Term, grant: Grant, pod: Waiting) -> None:
        """Take our gate off the Pod, nobody else's; limit its life in the same step where the grant is lent."""
        if stamps.GRANT_GATE not in pod.gates:
            return
        path = f"{PODS.format(pod.namespace)}/{pod.name}"
        try:
            patch = plan.gate_patch(pod.uid, pod.gates, pod.deadline, grant.lease)
            self._desk.send(term, "gate", lambda: self._client.patch(path, patch, JSON_PATCH))
        except (Conflict, ApiError) as error:
            if error.status not in (409, 422):
                raise
            live = self._client.get(path, timeout=5.0)
            gates = tuple(text(mapping(one).get("name")) for one in sequence(at(live, "spec", "schedulingGates")))
            if at(live, "metadata", "uid") != pod.uid or stamps.GRANT_GATE not in gates:
                return
            patch = plan.gate_patch(pod.uid, gates, at(live, "spec", "activeDeadlineSeconds"), grant.lease)
            self._desk.send(term, "gate", lambda: self._client.patch(path, patch, JSON_PATCH))

    def _close(self, term: Term, one: Open, pod: Waiting | None) -> float | None:
        """Close the grant if its Pod is really gone and no claim of it can be allocated unseen; else the wait.

        `pod`: one that is there, and from which the grant is taken back.
        """
        grant = one.grant
        if pod is not None and not grant.claims and (one.lifted or self._is_let_go(pod)):
            return 0.5  # of claims from templates; what we know of the Pod is old
        if pod is None and not self._pod_is_gone(grant.namespace, grant.name, grant.uid):
            return one.retries.next()  # our cache is behind, or ahead of what that server knows
        path = _CLAIMS.format(grant.namespace)
        for claim in grant.claims:
            try:
                there = self._client.get(f"{path}/{claim.name}", timeout=5.0)
            except NotFound:
                continue
            if controller_of(there).get("uid") != grant.uid:
                continue
            with self._lock:
                seen = self._view.claims.get((grant.namespace, claim.name))
            if at(there, "status", "allocation") is None:
                self._delete(term, path, there)
                return 0.2
            if pod is not None or seen is None or seen.model is None:
                return 0.5  # allocated, and we have not seen it yet: what it was given is not charged, and is kept
        with self._lock:
            one.gone = True
            self._desk.changed()
        if pod is not None:
            self._desk.metrics.withdrawn(one.tenant, "unscheduled" if one.idle else "lane")
        return None

    def _is_let_go(self, pod: Waiting) -> bool:
        """Our gate is off it, as the server says."""
        live = self._client.get(f"{PODS.format(pod.namespace)}/{pod.name}", timeout=5.0)
        return at(live, "metadata", "uid") != pod.uid or not stamps.is_held(live)

    def _pod_is_gone(self, namespace: str, name: str, uid: str) -> bool:
        """What a cache does not show may be there: the server says."""
        try:
            live = self._client.get(f"{PODS.format(namespace)}/{name}", timeout=5.0)
        except NotFound:
            return True
        return at(live, "metadata", "uid") != uid or is_finished(live)

    def remove_orphan(self, term: Term, key: Key, claim: ClaimSeen) -> None:
        """A late claim whose Pod is gone, or that no ledger knows."""
        path = f"{_CLAIMS.format(key[0])}/{key[1]}"
        try:
            live = self._client.get(path, timeout=5.0)
            if at(live, "metadata", "uid") != claim.uid:
                return
            owners = [mapping(one) for one in sequence(at(live, "metadata", "ownerReferences"))]
            name = next((text(one.get("name")) for one in owners if one.get("uid") == claim.owner), "")
            gone = not name or self._pod_is_gone(key[0], name, claim.owner)
            if not gone and at(live, "status", "allocation") is not None:
                return
            with self._lock:
                pod = self._view.pods.get(self._view.by_uid.get(claim.owner, ("", "")))
                if claim.owner in term.open or not (gone or (pod is not None and pod.held)):
                    return
            self._delete(term, _CLAIMS.format(key[0]), live)
            self._desk.metrics.orphan_deleted()
        except (Away, NotFound, Conflict):
            return
        except ClusterError as error:
            _log.warning("arbiter: claim %s/%s: %s", *key, error)

            def again() -> None:
                with self._lock:
                    self._view.dirty_claims.add(key)
                    self._desk.changed()

            self._desk.after(5.0, again)
