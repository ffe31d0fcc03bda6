"""Says on Pods why they wait, and that they do no more."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dra_gate.cluster.client import STRATEGIC_PATCH, ClusterError, Conflict, NotFound
from dra_gate.controller import arbiter_plan as plan
from dra_gate.controller.arbiter_term import PODS, Away, Desk, Term, now_ms
from dra_gate.fairness.events import Why
from dra_gate.kube.times import rfc3339

TELL_SECONDS = 1.0  # a Pod that waits no longer than this is not worth a word
REFRESH_SECONDS = 60.0  # between two texts of the same reason about one Pod
TOLD_A_SECOND = 20  # conditions
LOOKED_AT = 200  # Pods a round, for why they wait
_REFUSED = ("LaneWentBack", "NotScheduled")  # the arbiter is not told of such Pods, and they keep their age

_log = logging.getLogger(__name__)


class Teller:
    """Writes the condition dra-gate.io/Granted, so many a second, in a thread of its own."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._client, self._view, self._lock = desk.client, desk.view, desk.lock
        self._tokens = float(TOLD_A_SECOND)
        self._tokens_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "arbiter-teller")

    def stop(self) -> None:
        """Say nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def tell(self, term: Term) -> None:
        """Say on Pods that wait why they do, when it has changed, and on those that said so that they are granted."""
        now = time.monotonic()
        self._tokens = min(float(TOLD_A_SECOND), self._tokens + (now - self._tokens_at) * TOLD_A_SECOND)
        self._tokens_at = now
        while term.to_say and self._tokens >= 1:
            self._say(term, term.to_say.popleft(), None)
        for _ in range(min(LOOKED_AT, len(term.round))):
            if self._tokens < 1:
                return
            uid = term.round.popleft()
            waits = term.waiting.get(uid)
            why = term.refused.get(uid) or (None if waits is None else term.arbiter.why(uid, now_ms()))
            if why is None:  # it waits no more
                term.in_round.discard(uid)
                continue
            term.round.append(uid)
            term.reasons[uid] = why.reason
            if waits is not None and now_ms() - waits.pod.created < TELL_SECONDS * 1000:
                continue
            said = term.said.get(uid)
            if said is None:
                with self._lock:
                    pod = self._view.pods.get(self._view.by_uid.get(uid, ("", "")))
                if pod is None:
                    continue
                told = pod.told
                said = ("", "", 0.0) if told is None or told[0] != "False" else (told[1], told[2], now)
                term.said[uid] = said
            # Numbers change all the time, and what becomes of a Pod whose lane went back only when it matters.
            refresh = 0.0 if why.reason in _REFUSED else REFRESH_SECONDS
            if said[0] != why.reason or (said[1] != why.text and now - said[2] >= refresh):
                self._say(term, uid, why)

    def _say(self, term: Term, uid: str, why: Why | None) -> None:
        with self._lock:
            key = self._view.by_uid.get(uid)
            pod = None if key is None else self._view.pods[key]
        if pod is None or (why is None and pod.told is None and uid not in term.said):
            return
        self._tokens -= 1
        now = time.monotonic()
        if why is None:
            term.said.pop(uid, None)
            with self._lock:
                one = term.open.get(uid)
            candidates = "" if one is None else ", ".join(one.grant.candidates)
            message = f"its claims may get {candidates}" if candidates else "it may go"
            condition = plan.condition("True", "Granted", message, rfc3339(now_ms(), whole=True))
        else:
            term.said[uid] = (why.reason, why.text, now)
            waits = term.waiting.get(uid)
            # Since when it waits stands on the Pod: whoever leads next goes on from there.
            queued = (
                term.ages.of(pod) if why.reason in _REFUSED else pod.created if waits is None else waits.held.queued
            )
            condition = plan.condition("False", why.reason, why.text, rfc3339(queued, whole=True))
        path = f"{PODS.format(pod.namespace)}/{pod.name}/status"
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        with contextlib.suppress(RuntimeError):  # we are stopping
            self._thread.submit(lambda: self._write_condition(term, uid, path, patch))

    def _write_condition(self, term: Term, uid: str, path: str, patch: Mapping[str, Any]) -> None:
        try:
            self._desk.send(term, "condition", lambda: self._client.patch(path, patch, STRATEGIC_PATCH))
        except (Away, NotFound, Conflict):
            return
        except ClusterError as error:
            _log.warning("arbiter: condition of a Pod: %s", error)
            with self._lock:
                term.said.pop(uid, None)  # what it says is what the cache shows
