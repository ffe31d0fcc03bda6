"""The Gate's loop in the controller: looks, asks `plan_gate`, writes. One thread; writes only while it leads."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_gate.admission.backstop import switch_text
from dra_gate.admission.sets import PolicySets
from dra_gate.cluster.client import Client, ClusterError, Conflict
from dra_gate.cluster.gate import GATE, GATE_PATH, Accepted, Gate
from dra_gate.cluster.policies import PolicySource
from dra_gate.cluster.reflector import Backoff
from dra_gate.controller.gate_plan import Known, activated, activator, plan_gate
from dra_gate.controller.settling import SETTLE_SECONDS, Settling
from dra_gate.controller.templates import TemplateController
from dra_gate.policy.model import PolicySet, Settings

LOOK_SECONDS = 0.5  # between looks: nobody tells us that a template came
QUIET_SECONDS = 1.0  # between writes of the status that say nothing about an activation

_log = logging.getLogger(__name__)


class GateController(Collector):
    """Keeps `spec.accepted` and the status of the Gate as `plan_gate` says, and `templates` for the published sets.

    `leading` is asked before every write, `on_sets` told which sets count. As a collector of metrics it says which do
    and what was refused.
    """

    def __init__(
        self,
        client: Client,
        templates: TemplateController,
        *,
        identity: str,
        leading: Callable[[], bool],
        on_sets: Callable[[PolicySets], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._templates = templates
        self._leading = leading

        def changed(sets: PolicySets) -> None:
            on_sets(sets)
            templates.hold(sets.switch)
            self.wake()

        self.source = PolicySource(client, changed, on_prepared=templates.use, identity=identity)
        self._held: dict[str, float] = {}  # accepted and not pinned -> time.monotonic() when first seen so
        self._counted: dict[str, tuple[PolicySet, float]] = {}  # by digest, and time.monotonic() when it last did
        self._lane = Settling()
        self._wrote_at = float("-inf")
        self._backoff = Backoff(0.2, 30.0)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    def start(self) -> None:
        """Start watching; nothing is written but while we lead."""
        self.source.start()
        self._thread.start()

    def wake(self) -> None:
        """Something changed: look now."""
        self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End the threads; waits at most about `timeout` seconds for requests under way."""
        self._stopping = True
        self._wake.set()
        self.source.stop(timeout / 2)
        if self._thread.is_alive():
            self._thread.join(timeout / 2)

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return [] if self._thread.is_alive() and self.source.alive() else ["a thread that follows the Gate has ended"]

    def settings(self) -> list[Settings] | None:
        """Those of the policy sets that count or may count next; None while there are none to go by."""
        sets = self.source.sets
        return None if sets is None else [found.settings for found in (*sets.all, *self.source.prepared)]

    def collect(self) -> Iterable[Metric]:
        """What counts and what was refused, at scrape time."""
        info = GaugeMetricFamily(
            "dra_gate_policy_set_info", "1, labelled by digest and state.", labels=["digest", "state"]
        )
        for digest, state in self.source.states().items():
            info.add_metric([digest, state], 1)
        refusals = CounterMetricFamily(
            "dra_gate_policy_set_refusals", "Published policy sets that can't be used, by code.", labels=["code"]
        )
        for code, count in self.source.refused.items():
            refusals.add_metric([code], count)
        generation = GaugeMetricFamily(
            "dra_gate_gate_generation",
            "metadata.generation of the Gate that this process goes by, lanes included; 0 without one.",
            value=self.source.sets.generation if self.source.sets is not None else 0,
        )
        return (info, generation, refusals)

    def _run(self) -> None:
        while not self._stopping:
            wait = LOOK_SECONDS
            try:
                self._look()
                self._backoff.reset()
            except Conflict:
                pass  # somebody was faster; the watch brings what they wrote
            except ClusterError as error:
                wait = self._backoff.next()
                _log.warning("Gate: %s; next attempt in %.1f s", error, wait)
            except Exception:  # noqa: BLE001 - a dead thread would honour replaced sets for ever
                wait = self._backoff.next()
                _log.exception("Gate")
            self._wake.wait(wait)
            self._wake.clear()

    def _look(self) -> None:
        gate = self.source.gate
        if gate is None or not self.source.synced:
            self._held.clear()
            return
        now = time.monotonic()
        self._lane.note(GATE, switch_text(gate.switch))
        waiting = {entry.digest for entry in gate.accepted if not entry.pinned}
        self._held = {digest: self._held.get(digest, now) for digest in waiting}
        sets = self.source.sets
        self._counted.update((found.digest, (found, now)) for found in (sets.all if sets is not None else ()))
        self._counted = {key: kept for key, kept in self._counted.items() if now - kept[1] < SETTLE_SECONDS}
        if not self._leading():
            return
        in_use = sets.active.digest if sets is not None else ""
        missing = self._templates.missing()
        known = Known(
            in_use=in_use,
            refused={refusal.digest: refusal.message for refusal in self.source.problems().values()},
            missing=missing,
            held={digest: now - since for digest, since in self._held.items()},
            sets=sets.all if sets is not None else (),
            recent=tuple(found for found, _ in self._counted.values()),
            lane=self._lane.held()[GATE],
            namespaces=None if missing is None else self._templates.lanes.held(),
        )
        new = activated(gate, in_use)
        if new and gate.claimed is None:
            # Who did it stands in the managedFields, which the watch leaves out.
            raw = self._client.get(GATE_PATH, timeout=5.0)
            known = replace(known, activator=activator(raw))
        plan = plan_gate(gate, known, dt.datetime.now(dt.UTC))
        # The spec first: once the history knows of an activation, nobody asks any more what it replaced.
        if plan.accepted is not None:
            self._write(GATE_PATH, gate, {"spec": {"accepted": [_entry(entry) for entry in plan.accepted]}})
        elif plan.status is not None and (new or now - self._wrote_at >= QUIET_SECONDS):
            self._wrote_at = now
            self._write(f"{GATE_PATH}/status", gate, {"status": plan.status})

    def _write(self, path: str, gate: Gate, change: dict[str, Any]) -> None:
        """A merge patch that holds for exactly the Gate that was looked at."""
        stored = self._client.patch(path, {"metadata": {"resourceVersion": gate.resource_version}, **change})
        self.source.take(stored)
        self._wake.set()  # there may be more to write: one patch cannot hold spec and status


def _entry(entry: Accepted) -> dict[str, object]:
    return {
        "digest": entry.digest,
        **({"pinned": True} if entry.pinned else {}),
        **({"since": entry.since} if entry.since else {}),
    }
