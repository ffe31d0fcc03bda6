"""Hard stops: told, and where the plan of waves says so the plan is paused and namespaces are moved back.

What is decided is `migration/stopping.py`. The plan holds what was done: it is read before each handful of namespaces,
so that who ends the pause ends this, too, and a controller that takes over goes on where the last one was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_gate.admission.configurations import CONTROLLER
from dra_gate.admission.facts import LANE_LABEL
from dra_gate.admission.guards import CANARY_PLAN
from dra_gate.cluster import lanes
from dra_gate.cluster.client import Client, ClusterError, Conflict
from dra_gate.cluster.policy_map import NAMESPACE
from dra_gate.controller.rounds import Rounds
from dra_gate.kube.raw import Object, at, text
from dra_gate.migration.compare import Stop
from dra_gate.migration.stopping import act, finished, is_under_way, rest, stopped_text, told
from dra_gate.migration.waves import Move, Moves, Plan, PlanError, Stopped
from dra_gate.policy.switch import DRA, PLUGIN

TURN_SECONDS = 1.0
LOOK_SECONDS = 5.0  # between two looks at the counts
SPARE = 20  # a look takes no more than this part of the time, however much there is to count
HANDFUL = 20  # namespaces that are moved in a turn
RETRY_SECONDS = 30.0  # after something was refused
BLIND_SECONDS = 300.0  # a leader that cannot count for so long says so: it would see no hard stop
NEWS_SECONDS = 600  # what was done longer ago was told by who did it
AGAIN_SECONDS = 3600.0  # what stands is told again

# The stops of Pods created after the time (seconds), for this rate of failures; None where another replica counts.
Counted = Callable[[float, int], tuple[Stop, ...] | None]

_log = logging.getLogger(__name__)


class StopController(Rounds):
    """Looks for hard stops while it leads, and acts once on each. `leading` is asked before every write."""

    def __init__(self, client: Client, counted: Counted, *, leading: Callable[[], bool]) -> None:
        super().__init__("stops", TURN_SECONDS)
        self._client = client
        self._counted = counted
        self._leading = leading
        self._look_at = 0.0  # time.monotonic(), as the others
        self._told: dict[str, float] = {}  # what was told -> when it may be told again
        self._acted: tuple[str, int] | None = None  # what was done, and when, that was told
        self._refused: dict[str, float] = {}  # namespace -> when to try again
        self._stops: tuple[Stop, ...] = ()
        self._blind_since: float | None = None  # time.monotonic()
        self._plan: Plan | None = None
        self._left = 0  # namespaces that are still to be moved back
        self.moved = 0
        self.failures = 0

    def collect(self) -> Iterable[Metric]:
        """What stands, what was done about it, and what went wrong."""
        leads = self._leading()
        stops = GaugeMetricFamily(
            "dra_gate_canary_stops",
            "1 for a hard stop that stands, by reason; only the replica that leads says so.",
            labels=["reason"],
        )
        for reason in sorted({one.reason for one in self._stops}) if leads else ():
            stops.add_metric([reason], 1)
        stopped = self._plan.stopped if leads and self._plan is not None else None
        acted = GaugeMetricFamily(
            "dra_gate_canary_stopped",
            "1 from when the controller acted on a hard stop until somebody ends the pause; by what it did (pause, "
            "rollback).",
            labels=["action"],
        )
        if stopped is not None:
            acted.add_metric([stopped.act], 1)
        yield from (
            stops,
            acted,
            GaugeMetricFamily(
                "dra_gate_canary_rollback_left",
                "Namespaces that are still to be moved back after a hard stop.",
                self._left if leads else 0,
            ),
            CounterMetricFamily(
                "dra_gate_canary_rolled_back", "Namespaces that were moved back after hard stops.", value=self.moved
            ),
            CounterMetricFamily(
                "dra_gate_canary_stop_failures",
                "What could not be read or written for hard stops, and looks that would have seen none.",
                value=self.failures,
            ),
        )

    def shown(self) -> Iterator[str]:
        """For the page of the comparison: what was done about a hard stop, and that waves are paused."""
        plan = self._plan
        if plan is None or not self._leading():
            return
        if plan.stopped is not None:
            yield f"{stopped_text(plan.stopped.act, done=bool(plan.stopped.done))}: {plan.stopped.why}"
        elif plan.paused is not None:
            yield f"the plan is paused, by {plan.paused.by or 'somebody'}: {plan.paused.why}"

    # -- the loop -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Look now and then; go on moving back while there is somebody to move."""
        began = time.monotonic()
        if not self._leading():
            self._blind_since = None
            return
        if began < self._look_at or self._stopping.is_set():
            return
        wait = LOOK_SECONDS
        try:
            more = self._look()
            wait = TURN_SECONDS / 2 if more else max(LOOK_SECONDS, SPARE * (time.monotonic() - began))
        except Conflict as error:
            _log.info("stops: %s", error)
            wait = TURN_SECONDS / 2
        except (ClusterError, PlanError) as error:
            self._failed("the plan of waves can't be read or written", error)
        except Exception:  # noqa: BLE001 - a dead thread would stop nothing any more
            self.failures += 1
            _log.exception("stops")
        self._look_at = time.monotonic() + wait

    def _look(self) -> bool:
        """One look; whether there is more to do at once. Raises ClusterError, PlanError."""
        stored, plan = lanes.read_stored(self._client)
        self._plan = plan = plan if plan is not None else Plan("")
        stops = self._counted(plan.on_stop.failures, plan.on_stop.since)
        self._stops = () if stops is None else stops
        self._see(stored, blind=stops is None)
        if stored is not None:
            stored, plan = self._write(stored, plan, act(plan, self._stops, CONTROLLER, _now()))
        if plan.stopped is not None:
            self._tell_acted(stored, plan.stopped)
        elif self._stops:
            self._say(stored, "HardStop", f"hard stop: {told(self._stops)}", by_reason(self._stops))
        if stored is None or not is_under_way(plan):
            self._left = 0
            return False
        left, more = self._move_back(stored, plan)
        self._write(stored, plan, finished(plan, left, _now()))
        return more

    def _see(self, stored: Object | None, *, blind: bool) -> None:
        """Tell where a plan goes on and nobody would see a hard stop: the counts can't be read, or not written."""
        now = time.monotonic()
        self._blind_since = (now if self._blind_since is None else self._blind_since) if blind else None
        if self._blind_since is not None and now - self._blind_since >= BLIND_SECONDS and stored is not None:
            self.failures += 1
            self._say(
                stored, "HardStopsUnseen", "nothing is counted: no hard stop would be seen (log: counts)", "blind"
            )

    def _write(self, stored: Object, plan: Plan, after: Plan) -> tuple[Object, Plan]:
        """Conflict when somebody else wrote meanwhile, or leads: it is decided anew then."""
        if after == plan:
            return stored, plan
        if not self._leading():
            raise Conflict(409, "Conflict", "another replica leads")
        stored = lanes.write_plan(self._client, stored, after)
        self._plan = after
        return stored, after

    def _move_back(self, stored: Object, plan: Plan) -> tuple[Moves, bool]:
        """Move a handful; who was left when it began, and whether more can be moved at once."""
        selector = {"labelSelector": f"{LANE_LABEL}={DRA}"}
        listed = self._client.list(lanes.NAMESPACES_PATH, params=selector)
        found = {text(at(obj, "metadata", "name")): obj for obj in listed}
        left = rest(map(lanes.space_of, found.values()))
        self._left = len(left.moves)
        now = time.monotonic()
        due = [space for space in left.moves if self._refused.get(space.name, 0) <= now]
        for space in due[:HANDFUL]:
            if not self._leading() or self._stopping.is_set():
                break
            why = plan.stopped.why if plan.stopped is not None else ""
            change = Move(space.lane, PLUGIN, _now(), CONTROLLER, why)
            try:
                lanes.move(self._client, found[space.name], change, attempts=1)
            except lanes.NotMovedError as error:
                _log.info("stops: %s: %s", space.name, error)  # looked at again in the next turn
                continue
            except ClusterError as error:
                self._refused[space.name] = now + RETRY_SECONDS
                self._failed(f"namespace {space.name} can't be moved back", error)
                self._say(stored, "RollbackRefused", f"{space.name} can't be moved back: {error}", "refused")
                continue
            self._refused.pop(space.name, None)
            self.moved += 1
            self._left -= 1
            try:
                lanes.tell(self._client, found[space.name], change)
            except ClusterError as error:
                _log.warning("stops: %s: no Event: %s", space.name, error)
        return left, len(due) > 0

    # -- telling ------------------------------------------------------------------------------------------------------

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        _log.warning("stops: %s: %s", what, error)

    def _tell_acted(self, stored: Object | None, stopped: Stopped) -> None:
        """Once; once more after a change of leaders a moment ago: the other may not have come to it."""
        if (stopped.act, stopped.at) == self._acted:
            return
        self._acted = stopped.act, stopped.at
        if _now() - stopped.at < NEWS_SECONDS:
            said = stopped_text(stopped.act, done=bool(stopped.done))
            self._say(stored, "HardStop", f"{stopped.why}. Done: {said}", f"acted {stopped.at}")

    def _say(self, stored: Object | None, reason: str, note: str, about: str) -> None:
        """In the log and as an Event on the plan; each matter again only after an hour."""
        now = time.monotonic()
        if self._told.get(about, 0) > now:
            return
        self._told = {one: until for one, until in self._told.items() if until > now} | {about: now + AGAIN_SECONDS}
        _log.error("stops: %s", note)
        regarding = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": NAMESPACE, "name": CANARY_PLAN}
        uid = text(at(stored, "metadata", "uid"))
        try:
            lanes.canary_event(self._client, regarding | ({"uid": uid} if uid else {}), reason, note)
        except ClusterError as error:
            self._failed("no Event", error)


def by_reason(stops: Iterable[Stop]) -> str:
    """Which stops they are, without figures."""
    return ", ".join(sorted({one.reason for one in stops}))


def _now() -> int:
    return int(time.time())
