"""A term of leadership: what the arbiter's loop knows and has begun, and what its parts share."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_gate.admission.held import Ages, Waiting
from dra_gate.allocation.capacity import Capacity as Fleet
from dra_gate.cluster.client import Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.ledger import Ledger
from dra_gate.cluster.reflector import Backoff
from dra_gate.controller.arbiter_metrics import ArbiterMetrics
from dra_gate.controller.arbiter_view import View
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import Capacity, Held, Why
from dra_gate.fairness.flow import Flow
from dra_gate.fairness.ledger import Grant, KeptBack, Observed
from dra_gate.fairness.log import Recorder
from dra_gate.fairness.resting import Rest
from dra_gate.policy.compile import Template
from dra_gate.policy.model import PolicySet

PODS = "/api/v1/namespaces/{}/pods"
COUNT_SECONDS = 300.0  # charges are counted anew this often
IDLE_SECONDS = 5.0  # between two looks at grants that the scheduler may have no use for, and at rests


class Away(ClusterError):
    """Another replica leads, or this term is over: nothing is written."""


class Overtaken(Exception):
    """Somebody else has written a ledger: what we know is old."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A Pod that the arbiter was told of, and what its late claims are made of."""

    held: Held
    pod: Waiting
    templates: tuple[Template, ...]


@dataclass(slots=True)
class Open:
    """An open grant, and how far its writing has come."""

    tenant: str
    grant: Grant
    templates: tuple[Template, ...]
    retries: Backoff = field(default_factory=lambda: Backoff(0.2, 30.0))
    busy: bool = False
    again: bool = False  # changed while somebody was writing
    lifted: bool = False  # our gate is off: it can't be put on again
    written: float = 0.0  # time.monotonic() when all its claims were there
    idle: str = ""  # why the scheduler has no use for it, if it is to be taken back for that
    gone: bool = False  # its Pod is gone, or it was withdrawn: nothing of it is left that could be allocated


class Term:
    """Everything of one term of leadership. The loop's thread changes it, under the lock where others read it."""

    def __init__(self, recorder: Recorder, found: dict[str, Ledger]) -> None:
        self.recorder = recorder
        self.flow = Flow(now_ms())
        self.ledgers = found
        self.open: dict[str, Open] = {}  # Pod UID
        self.of_tenant: dict[str, dict[str, Open]] = {}
        self.waiting: dict[str, Waits] = {}
        self.refused: dict[str, Why] = {}
        self.waits = Counter[str]()  # by tenant
        self.ages = Ages()
        self.sets: tuple[PolicySet, ...] = ()
        self.capacity: Capacity | None = None
        self.largest: Mapping[str, int] = {}
        self.resting: dict[str, dict[str, Rest]] = {}  # tenant -> Pod UID -> after its last grant was taken back
        self.idle_at = 0.0  # time.monotonic()
        self.kept: Mapping[str, tuple[KeptBack, ...]] = {}
        self.observed = Observed()
        self.unwritten: dict[str, float] = {}  # tenant -> time.monotonic() when its ledger is due
        self.unread: set[str] = set()  # ledgers of which it is not known what is stored
        self.touched: set[str] = set()  # tenants whose status may be another
        self.told_at: dict[str, float] = {}  # tenant -> time.monotonic() of its last status
        self.decide_at: int | None = None
        self.drift = 0  # devices, when charges were last counted anew
        self.count_at = time.monotonic() + COUNT_SECONDS
        self.more = True  # the last pass left something to do
        self.reasons: dict[str, str] = {}  # Pod UID -> why it waits
        self.round: deque[str] = deque()  # Pods to look at for why they wait, each once
        self.in_round: set[str] = set()
        self.said: dict[str, tuple[str, str, float]] = {}  # Pod UID -> reason, text, when: what was written
        self.to_say: deque[str] = deque()  # Pods that were granted and still say that they wait

    @property
    def arbiter(self) -> Arbiter:
        return self.recorder.arbiter

    def granted_model(self, uid: str) -> str:
        """The model that the Pod's open grant is in; empty for none."""
        return self.open[uid].grant.model if uid in self.open else ""

    def rest_of(self, tenant: str, uid: str) -> Rest | None:
        """What is known of grants of the Pod that were taken back."""
        return self.resting.get(tenant, {}).get(uid)

    def put(self, one: Open) -> None:
        self.open[one.grant.uid] = one
        self.of_tenant.setdefault(one.tenant, {})[one.grant.uid] = one

    def drop(self, uid: str) -> None:
        one = self.open.pop(uid)
        del self.of_tenant[one.tenant][uid]

    def wait(self, one: Waits) -> None:
        if one.held.uid not in self.waiting:
            self.waits[one.held.tenant] += 1
            self.ask_why(one.held.uid)
        self.waiting[one.held.uid] = one
        self.touched.add(one.held.tenant)

    def ask_why(self, uid: str) -> None:
        if uid not in self.in_round:
            self.in_round.add(uid)
            self.round.append(uid)

    def wait_no_more(self, uid: str) -> Waits:
        one = self.waiting.pop(uid)
        self.waits[one.held.tenant] -= 1
        self.touched.add(one.held.tenant)
        self.reasons.pop(uid, None)
        return one


class Desk:
    """What the parts of the loop share. `fleet` is what the caches show of devices.

    `lock` is over `fleet`, `view`, `term`, `active` and `sets`, and over what of a term others read.
    """

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        lock: threading.Lock,
        leading: Callable[[], bool],
        metrics: ArbiterMetrics,
    ) -> None:
        self.client = client
        self.fleet = fleet
        self.view = View(fleet)
        self.lock = lock
        self.leading = leading
        self.metrics = metrics
        self.sets: tuple[PolicySet, ...] = ()
        self.term: Term | None = None
        self.active = False
        self.waking = threading.Event()
        self._working = threading.Lock()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def changed(self) -> None:
        """Something is to be looked at; with the lock held."""
        if self.term is not None:
            self.waking.set()
        else:  # a term begins with all that is there
            for unread in (self.view.gone, self.view.dirty, self.view.dirty_claims):
                unread.clear()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Have the loop do it then, unless the term ends before."""
        with self._working:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._number), do))
        self.waking.set()

    def due_at(self) -> float:
        """When the next thing is due (time.monotonic())."""
        with self._working:
            return self._later[0][0] if self._later else math.inf

    def forget_later(self) -> None:
        """Nothing is due any more."""
        with self._working:
            self._later.clear()

    def do_what_is_due(self) -> None:
        """Do what `after` was told, as far as its time has come."""
        now = time.monotonic()
        while True:
            with self._working:
                if not self._later or self._later[0][0] > now:
                    return
                do = heapq.heappop(self._later)[2]
            do()

    def send(self, term: Term, what: str, send: Callable[[], Any]) -> None:
        """Send it if we still lead. Raises ClusterError."""
        if self.term is not term or not self.active or not self.leading():
            raise Away("another replica leads")
        try:
            send()
        except ClusterError as error:
            self.metrics.wrote(what, "stale" if isinstance(error, NotFound | Conflict) else "error")
            raise
        self.metrics.wrote(what, "done")


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
