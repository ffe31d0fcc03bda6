"""Looks every few seconds whether what the gate stands on in the API server is there and unchanged, and tells.

It puts nothing right: who took it away may have meant to (docs/operations/break-glass.md), and the rights to write it
are worth more to a thief than to us. One GET an object, by name: so few rights are enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_gate.admission.footing import MISSING, Wanted, wanted
from dra_gate.cluster.client import Client, ClusterError, NotFound
from dra_gate.cluster.events import event, write_event
from dra_gate.controller.rounds import Rounds
from dra_gate.policy.model import Settings

LOOK_SECONDS = 10.0
_API = "admissionregistration.k8s.io/v1"
_PLURALS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_TOLD_FIELDS = 5

_log = logging.getLogger(__name__)


class FootingController(Rounds):
    """Tells of what is missing or altered: once in the log and by an Event, and in the metrics for as long as it is so.

    `settings` gives those of the policy sets that count, None while they are not known: then nothing is looked at.
    `called` are the hosts that the webhooks may call, empty where that is not known. Works only while `leading()`.
    """

    def __init__(
        self,
        client: Client,
        settings: Callable[[], Collection[Settings] | None],
        *,
        with_backstop: bool,
        called: Collection[str],
        identity: str,
        leading: Callable[[], bool],
    ) -> None:
        super().__init__("footing", LOOK_SECONDS)
        self.failures = 0
        self._client = client
        self._settings = settings
        self._with_backstop = with_backstop
        self._called = called
        self._identity = identity
        self._leading = leading
        # By kind and name: how it differs. As it was last seen, and as people were told; that outlives a failed look.
        self._found: dict[tuple[str, str], tuple[str, ...]] = {}
        self._told: dict[tuple[str, str], tuple[str, ...]] = {}

    def collect(self) -> Iterable[Metric]:
        """What was last seen, from the replica that leads; looks that failed."""
        intact = GaugeMetricFamily(
            "dra_gate_footing_intact",
            "1 where an object that the gate stands on is as it has to be, 0 where it is missing or altered; only the "
            "replica that leads says so.",
            labels=["kind", "name"],
        )
        for (kind, name), differences in sorted(self._found.items()) if self._leading() else ():
            intact.add_metric([kind, name], float(not differences))
        yield from (
            intact,
            CounterMetricFamily(
                "dra_gate_footing_failures", "Looks at what the gate stands on that failed.", value=self.failures
            ),
        )

    def turn(self) -> None:
        """Look while we lead; forget what was seen while another does."""
        if self._leading():
            self.look()
        else:
            self._found, self._told = {}, {}

    def look(self) -> None:
        """One look at everything. What can't be read counts as not known and is left out of the metrics."""
        try:
            settings = self._settings()
            if settings is None:
                return
            for one in wanted(settings, with_backstop=self._with_backstop):
                self._look_at(one)
        except Exception:  # noqa: BLE001 - a dead loop would say that all is well
            self.failures += 1
            self._found = {}
            _log.exception("footing")

    def _look_at(self, one: Wanted) -> None:
        key = (one.kind, one.name)
        try:
            found = self._client.get(f"/apis/{_API}/{_PLURALS[one.kind]}/{one.name}", timeout=5.0)
        except NotFound:
            found = None
        except ClusterError as error:
            self.failures += 1
            self._found = {other: differences for other, differences in self._found.items() if other != key}
            _log.warning("footing: %s %s: %s", *key, error)
            return
        differences = one.differences(found, self._called)
        before = self._told.get(key, ())
        self._told[key] = differences
        self._found = {**self._found, key: differences}
        if differences and differences != before:
            more = f" and {len(differences) - _TOLD_FIELDS} more" if len(differences) > _TOLD_FIELDS else ""
            said = (
                "is missing"
                if differences == (MISSING,)
                else f"is not as this version writes it: {', '.join(differences[:_TOLD_FIELDS])}{more}"
            )
            _log.error("%s %s %s", *key, said)
            self._tell(one, said)
        elif before and not differences:
            _log.info("%s %s is as it has to be again", *key)

    def _tell(self, one: Wanted, said: str) -> None:
        note = f"{one.kind} {one.name} {said}. The gate stands on it: see docs/operations/troubleshooting.md."
        about = {"apiVersion": _API, "kind": one.kind, "name": one.name}
        try:
            write_event(self._client, event(about, "FootingLost", "Look", note, identity=self._identity))
        except ClusterError as error:
            _log.warning("footing: no Event: %s", error)
