"""The decision writer: says on each Pod with claims which devices it got, or why it waits.

What has been said stands on the Pod, so that whoever leads next goes on from there. An Event's name is made of the
Pod's UID and the number of the decision: said twice, it is stored once.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import heapq
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dra_gate.admission import stamp as stamps
from dra_gate.admission.facts import LANE_LABEL
from dra_gate.allocation import failures
from dra_gate.allocation import inversion as inversions
from dra_gate.allocation.capacity import Capacity, DeviceId
from dra_gate.allocation.inversion import Inversion, Room
from dra_gate.allocation.record import DecisionRecord, chain, dumps
from dra_gate.cluster import shapes
from dra_gate.cluster.client import STRATEGIC_PATCH, ApiError, Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.events import event, write_event
from dra_gate.cluster.facts import PATHS, TAINT_RULES, Key, KindSink
from dra_gate.cluster.line_log import LineLog
from dra_gate.cluster.reflector import Backoff, Reflector
from dra_gate.controller import threads
from dra_gate.controller.decision_metrics import DecisionMetrics, Standing
from dra_gate.controller.decision_plan import (
    BOUND_SECONDS,
    SILENT_SECONDS,
    ClaimSeen,
    Decision,
    Fleet,
    Heard,
    PodSeen,
    Stage,
    Told,
    decide,
    read_claim,
    read_pod,
)
from dra_gate.controller.pages import Seen
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import PolicyRef, PolicySet

WORKERS = 2
SWEEP_SECONDS = 60.0  # Pods that wait are looked at this often, without asking anybody
# Between two texts about one Pod that waits for the same cause, and until the API server's version is asked for again.
REFRESH_SECONDS = 3600.0
SETTLE_SECONDS = 0.05  # one allocation makes several events
LISTING_SECONDS = 5.0  # while claims are listed anew, before what is in two of them is looked at again
RECENT = 100
FEW_AMOUNTS = 1000  # not worth a look whether some can be forgotten
_CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}

_log = logging.getLogger(__name__)


class Follower(Protocol):
    """Who else lives by these caches. Told with the lock held, after the fleet's view has taken it."""

    def set_pod(self, key: Key, obj: Object) -> None:
        """A Pod was made or changed."""

    def drop_pod(self, key: Key) -> None:
        """A Pod is gone."""

    def set_claim(self, key: Key, obj: Object) -> None:
        """A claim was made or changed."""

    def drop_claim(self, key: Key) -> None:
        """A claim is gone."""

    def set_node(self, key: Key, obj: Object) -> None:
        """A Node was made or changed."""

    def drop_node(self, key: Key) -> None:
        """A Node is gone."""

    def set_class(self, key: Key, obj: Object) -> None:
        """A DeviceClass was made or changed."""

    def drop_class(self, key: Key) -> None:
        """A DeviceClass is gone."""

    def set_slice(self, key: Key, obj: Object) -> None:
        """A ResourceSlice was made or changed."""

    def devices_changed(self) -> None:
        """A slice or a taint rule is gone, or a rule is new."""

    def lane_changed(self, namespace: str, label: str | None) -> None:
        """What a namespace's lane label says now; None: it has none, and is not gated."""


class Listener(Protocol):
    """Who counts what passes by. Told with the lock held: it keeps what it needs, and works on it elsewhere."""

    def saw_namespace(self, key: Key, obj: Object | None) -> None:
        """A namespace was made or changed; None: it is gone."""

    def saw_node(self, key: Key, obj: Object | None) -> None:
        """A Node was made or changed; None: it is gone."""

    def saw_claim(self, key: Key, obj: Object) -> None:
        """A claim was made or changed."""

    def saw_pod(self, key: Key, obj: Object | None) -> None:
        """A Pod was made or changed; None: it is gone."""


Kept = TypeVar("Kept")
Item = tuple[str, Key]  # what to look at: pod, extended or doubled (a claim)


@dataclass
class _Progress:
    """What we remember about one item: what we said last, before its echo comes, and how it went."""

    uid: str
    told: Told | None = None
    refresh_at: float = 0.0  # time.monotonic(): not before this the same cause in other words
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 300.0))
    waiting: tuple[str, str] | None = None  # tenant and class while it is said to wait
    stage: Stage | None = None
    since: float = 0.0  # since 1970: when it was first seen in that stage
    events: Sequence[Object] = ()
    ask_at: float = 0.0  # time.monotonic(): not before this for its Events again
    recorded: tuple[int, str, str] | None = None  # sequence, reason and message of the last record


class DecisionController(Collector):
    """Keeps conditions, annotations and Events of Pods with claims true, in gated namespaces, while it leads.

    `use` names the policy sets, the active one first; before that nothing is written. `leading` is asked before every
    write, `activate` and `deactivate` follow the Lease. `log` keeps the records: each before it is told on the Pod, so
    one is there twice rather than not at all where the leader dies in between.
    """

    def __init__(
        self, client: Client, *, identity: str, leading: Callable[[], bool], log: LineLog | None = None
    ) -> None:
        self._client = client
        self._identity = identity
        self._leading = leading
        self._records = log
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # The cluster as seen; under the lock.
        self._capacity = Capacity()
        self._sets: tuple[PolicySet, ...] = ()
        self._gated: dict[str, str] = {}  # namespace -> what its lane label says
        self._pods: dict[str, dict[str, PodSeen]] = {}  # namespace -> name
        self._claims: dict[str, dict[str, ClaimSeen]] = {}
        self._namers: dict[Key, set[str]] = {}  # claim -> Pods of its namespace that name it
        self._rooms: dict[str, Room] = {}
        self._taken: dict[Key, tuple[str, tuple[tuple[str, int], ...]]] = {}  # Pod -> its node, what it takes there
        self._taken_on: dict[str, Counter[str]] = {}
        self._amounts: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}  # one of each
        # What is to be done; under the lock.
        self._due: list[tuple[float, Item]] = []
        self._due_at: dict[Item, float] = {}
        self._busy: set[Item] = set()
        self._again: set[Item] = set()  # fell due while busy
        self._progress: dict[Item, _Progress] = {}
        self._active = False
        self._settled = False
        self._stopping = False
        self._version = ""  # of the API server
        self._version_until = 0.0  # time.monotonic()
        self._sweep_at = 0.0
        self._recent: deque[DecisionRecord] = deque(maxlen=RECENT)
        self._follower: Follower | None = None
        self._listener: Listener | None = None
        self.metrics = DecisionMetrics(self._standing)
        self._fleet = Fleet(
            self._capacity.candidates, self._capacity.model_of, self._inversion, self._capacity.node_ready
        )
        self.reflectors = [
            Reflector(
                client,
                path,
                KindSink(upsert, delete, self._lock, shape),
                f"decisions/{kind}",
                optional=path == TAINT_RULES,  # served since Kubernetes 1.37
            )
            for kind, path, upsert, delete, shape in (
                ("Namespace", PATHS["Namespace"], self._set_namespace, self._drop_namespace, shapes.Namespace),
                ("Node", PATHS["Node"], self._set_node, self._drop_node, shapes.FullNode),
                ("DeviceClass", PATHS["DeviceClass"], self._set_class, self._drop_class, shapes.Spec),
                ("DeviceTaintRule", TAINT_RULES, self._set_taint_rule, self._drop_taint_rule, shapes.Spec),
                ("ResourceSlice", PATHS["ResourceSlice"], self._set_slice, self._drop_slice, shapes.Spec),
                ("ResourceClaim", PATHS["ResourceClaim"], self._set_claim, self._drop_claim, shapes.LabelledClaim),
                ("Pod", PATHS["Pod"], self._set_pod, self._drop_pod, shapes.PlacedPod),
            )
        ]
        self._threads = [
            threading.Thread(target=self._run, name=f"decisions-{number}", daemon=True) for number in range(WORKERS)
        ]

    # -- for who lives by these caches, too ----------------------------------------------------------------------------

    def follow(self, follower: Follower) -> tuple[threading.Lock, Capacity]:
        """Tell `follower` of everything from now on: before `start`. The lock, and the fleet's view under it."""
        self._follower = follower
        return self._lock, self._capacity

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of what passes by from now on: before `start`."""
        self._listener = listener

    def settled(self) -> bool:
        """Whether the first lists have come; with the lock held."""
        return self._ready()

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; nothing is written before `activate`."""
        for reflector in self.reflectors:
            reflector.start()
        for thread in self._threads:
            thread.start()

    def use(self, sets: Iterable[PolicySet]) -> None:
        """Decide by `sets` from now on, the active one first."""
        known = tuple(sets)
        with self._changed:
            if [one.digest for one in known] != [one.digest for one in self._sets]:
                self._sets = known
                self._capacity.use(known)
                self._everything()

    def activate(self) -> None:
        """We lead: look at everything."""
        with self._changed:
            self._active = True
            self._everything()

    def deactivate(self) -> None:
        """We lead no more: what is being sent ends."""
        with self._changed:
            self._active = False
            self._progress.clear()  # whoever leads now writes on the Pods; what we remember grows old

    def wake(self) -> None:
        """We lead: for those who call every loop alike."""
        self.activate()

    def stop(self, timeout: float = 5.0) -> None:
        """End all threads; waits at most about `timeout` seconds for requests under way."""
        with self._changed:
            self._active = False
            self._stopping = True
            self._changed.notify_all()
        threads.join(self._threads, self.reflectors, timeout)

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return threads.ended(self._threads, self.reflectors)

    def collect(self) -> Iterable[Metric]:
        """The metrics of decisions and of the fleet."""
        return self.metrics.collect()

    def seen(self) -> Seen:
        """What the page shows, now."""
        with self._lock:
            return Seen(
                ready=bool(self._sets) and all(cache.synced.is_set() for cache in self.reflectors),
                models=self._capacity.by_model(time.time()),
                doubled=self._doubled(),
                recent=list(self._recent),
            )

    def turns(self) -> dict[tuple[str, str], int]:
        """How many devices so far turned healthy or unhealthy, by model and that word."""
        with self._lock:
            return dict(self._capacity.changes)

    def in_two(self) -> dict[DeviceId, tuple[Key, ...]]:
        """Devices that are in several claims which Pods have reserved, and these claims."""
        with self._lock:
            found = {
                device: tuple(key for key in holders if self._is_reserved(key))
                for device, holders in self._doubled().items()
            }
        return {device: holders for device, holders in found.items() if len(holders) > 1}

    def whole(self) -> bool:
        """Whether the caches of Pods and claims are as the API server had them at some moment. While they are listed
        anew they are not: what is gone is only known to be when the last object has come, and what came in its place
        is there before.
        """
        return bool(self.version("Pod") and self.version("ResourceClaim"))

    def _doubled(self) -> Mapping[DeviceId, tuple[Key, ...]]:
        """Devices that are in several claims. With the lock held."""
        return self._capacity.doubled() if self.version("ResourceClaim") else {}

    def _is_reserved(self, key: Key) -> bool:
        seen = self._claims.get(key[0], {}).get(key[1])
        return seen is not None and bool(seen.users)

    def version(self, kind: str) -> str:
        """The newest version of that kind that was heard of."""
        return next(one.version for one in self.reflectors if one.name == f"decisions/{kind}")

    # -- the cluster as seen: each runs with the lock held, in a reflector's thread ------------------------------------

    def _set_namespace(self, key: Key, obj: Object) -> None:
        if self._listener is not None:
            self._listener.saw_namespace(key, obj)
        label = mapping(at(obj, "metadata", "labels")).get(LANE_LABEL)
        if label != self._gated.get(key[1]):
            self._set_lane(key[1], label)
            self._look_at_namespace(key[1])

    def _drop_namespace(self, key: Key) -> None:
        if self._listener is not None:
            self._listener.saw_namespace(key, None)
        self._set_lane(key[1], None)

    def _set_lane(self, namespace: str, label: str | None) -> None:
        if label is None:
            self._gated.pop(namespace, None)
        else:
            self._gated[namespace] = label
        if self._follower is not None:
            self._follower.lane_changed(namespace, label)

    def _set_node(self, key: Key, obj: Object) -> None:
        self._capacity.set_node(key, obj)
        labels = {name: text(value) for name, value in mapping(at(obj, "metadata", "labels")).items()}
        self._rooms[key[1]] = Room(labels, inversions.taints_of(obj), inversions.allocatable(obj))
        if self._follower is not None:
            self._follower.set_node(key, obj)
        if self._listener is not None:
            self._listener.saw_node(key, obj)

    def _drop_node(self, key: Key) -> None:
        self._capacity.drop_node(key)
        self._rooms.pop(key[1], None)
        if self._follower is not None:
            self._follower.drop_node(key)
        if self._listener is not None:
            self._listener.saw_node(key, None)

    def _set_class(self, key: Key, obj: Object) -> None:
        self._capacity.set_class(key, obj)
        if self._follower is not None:
            self._follower.set_class(key, obj)

    def _drop_class(self, key: Key) -> None:
        self._capacity.drop_class(key)
        if self._follower is not None:
            self._follower.drop_class(key)

    def _set_slice(self, key: Key, obj: Object) -> None:
        self._capacity.set_slice(key, obj)
        if self._follower is not None:
            self._follower.set_slice(key, obj)

    def _drop_slice(self, key: Key) -> None:
        self._capacity.drop_slice(key)
        if self._follower is not None:
            self._follower.devices_changed()

    def _set_taint_rule(self, key: Key, obj: Object) -> None:
        self._capacity.set_taint_rule(key, obj)
        if self._follower is not None:
            self._follower.devices_changed()

    def _drop_taint_rule(self, key: Key) -> None:
        self._capacity.drop_taint_rule(key)
        if self._follower is not None:
            self._follower.devices_changed()

    def _set_claim(self, key: Key, obj: Object) -> None:
        self._capacity.set_claim(key, obj)
        if self._follower is not None:
            self._follower.set_claim(key, obj)
        if self._listener is not None:
            self._listener.saw_claim(key, obj)
        seen = read_claim(obj)
        there = self._claims.setdefault(key[0], {})
        if there.get(key[1]) == seen:
            return
        there[key[1]] = seen
        self._claim_changed(key, seen)

    def _drop_claim(self, key: Key) -> None:
        self._capacity.drop_claim(key)
        if self._follower is not None:
            self._follower.drop_claim(key)
        self._pop(self._claims, key)
        for item in (("extended", key), ("doubled", key)):
            self._progress.pop(item, None)
        self._claim_changed(key, None)

    def _claim_changed(self, key: Key, seen: ClaimSeen | None) -> None:
        for name in self._namers.get(key, ()):
            self._look_at(("pod", (key[0], name)), SETTLE_SECONDS)
        if seen is not None and seen.extended:
            self._look_at(("extended", key))
        for device in self._capacity.doubled_in(key):
            for claim in self._capacity.holders(device):
                self._look_at(("doubled", claim))

    def _set_pod(self, key: Key, obj: Object) -> None:
        if self._follower is not None:
            self._follower.set_pod(key, obj)
        if self._listener is not None:
            self._listener.saw_pod(key, obj)
        self._take_room(key, obj)
        seen = read_pod(obj)
        before = self._pods.get(key[0], {}).get(key[1])
        if seen is None:
            self._forget_pod(key)
            return
        if before == seen:
            return
        if before is not None and before.uid != seen.uid:
            self._forget_pod(key)
            before = None
        self._pods.setdefault(key[0], {})[key[1]] = seen
        if before is None or before.entries != seen.entries:
            for _, name in () if before is None else before.entries:
                self._unname((key[0], name), key[1])
            for _, name in seen.entries:
                if name:
                    self._namers.setdefault((key[0], name), set()).add(key[1])
        self._look_at(("pod", key), SETTLE_SECONDS)

    def _drop_pod(self, key: Key) -> None:
        if self._follower is not None:
            self._follower.drop_pod(key)
        if self._listener is not None:
            self._listener.saw_pod(key, None)
        self._take_room(key, {})
        self._forget_pod(key)

    def _forget_pod(self, key: Key) -> None:
        before = self._pop(self._pods, key)
        self._progress.pop(("pod", key), None)
        for _, name in () if before is None else before.entries:
            self._unname((key[0], name), key[1])

    @staticmethod
    def _pop(there: dict[str, dict[str, Kept]], key: Key) -> Kept | None:
        """What is there of `key`, taken out; and its namespace with the last: these come and go."""
        namespace = there.get(key[0], {})
        found = namespace.pop(key[1], None)
        if not namespace:
            there.pop(key[0], None)
        return found

    def _unname(self, claim: Key, pod: str) -> None:
        namers = self._namers.get(claim)
        if namers is not None:
            namers.discard(pod)
            if not namers:
                del self._namers[claim]

    def _take_room(self, key: Key, pod: Object) -> None:
        taken = None
        if inversions.holds_room(pod):
            amounts = tuple(sorted(inversions.requested(pod).items()))
            if len(self._amounts) > 2 * len(self._taken) + FEW_AMOUNTS:  # Pods went, and theirs with them
                self._amounts = {kept: kept for _, kept in self._taken.values()}
            taken = text(at(pod, "spec", "nodeName")), self._amounts.setdefault(amounts, amounts)
        before = self._taken.get(key)
        if before == taken:
            return
        if before is not None:
            left = self._taken_on[before[0]]
            left.subtract(dict(before[1]))
            if not any(left.values()):  # nodes come and go, and each has a name of its own
                del self._taken_on[before[0]]
            del self._taken[key]
        if taken is not None:
            self._taken[key] = taken
            self._taken_on.setdefault(taken[0], Counter()).update(dict(taken[1]))

    # -- what is to be looked at; with the lock held -------------------------------------------------------------------

    def _look_at(self, item: Item, after: float = 0.0) -> None:
        due = time.monotonic() + after
        if self._active and due < self._due_at.get(item, float("inf")):
            self._due_at[item] = due
            heapq.heappush(self._due, (due, item))
            self._changed.notify()

    def _look_at_namespace(self, namespace: str) -> None:
        for name in self._pods.get(namespace, ()):
            self._look_at(("pod", (namespace, name)))
        for name, seen in self._claims.get(namespace, {}).items():
            if seen.extended:
                self._look_at(("extended", (namespace, name)))

    def _everything(self) -> None:
        for namespace in self._gated:
            self._look_at_namespace(namespace)
        for holders in self._capacity.doubled().values():
            for claim in holders:
                self._look_at(("doubled", claim))
        self._changed.notify_all()

    def _ready(self) -> bool:
        """Whether enough is known to say something true."""
        if self._settled:
            return True
        if not all(one.synced.is_set() for one in self.reflectors):
            return False
        self._settled = True
        self._capacity.changes.clear()  # what was learnt at the start was no change
        return True

    def _next(self) -> Item | None:
        """The item that is due, waiting for it; None to end. With the lock held."""
        while not self._stopping:
            now = time.monotonic()
            if not self._active or not self._sets or not self._ready():
                self._changed.wait(0.2 if self._active else None)
                continue
            if now >= self._sweep_at:
                self._sweep_at = now + SWEEP_SECONDS
                for item, progress in self._progress.items():
                    if progress.waiting is not None:
                        self._look_at(item)
            wait = self._sweep_at - now
            if self._due:
                due, item = self._due[0]
                if self._due_at.get(item) != due or due <= now:
                    heapq.heappop(self._due)
                    if self._due_at.get(item) != due:
                        continue  # it was due earlier
                    del self._due_at[item]
                    if item not in self._busy:
                        return item
                    self._again.add(item)
                    continue
                wait = min(wait, due - now)
            self._changed.wait(wait)
        return None

    # -- deciding and writing -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                item = self._next()
                if item is None:
                    return
                self._busy.add(item)
            wait: float | None = None
            try:
                wait = self._attend(item)
            except ClusterError as error:
                wait = self._failed(item, error)
            except Exception:  # noqa: BLE001 - a dead thread would leave its share of the Pods without a word
                _log.exception("%s %s", item[0], "/".join(item[1]))
                wait = self._failed(item, None)
            finally:
                with self._changed:
                    self._busy.discard(item)
                    if item in self._again:
                        self._again.discard(item)
                        wait = SETTLE_SECONDS if wait is None else wait
                    if wait is not None:
                        self._look_at(item, wait)

    def _failed(self, item: Item, error: ClusterError | None) -> float | None:
        """How long to leave the item alone after a write failed; None for good: the watch tells when it changes."""
        if isinstance(error, NotFound | Conflict):  # gone, or another Pod of that name: the caches will tell
            return None
        if isinstance(error, ApiError) and error.has_cause("NamespaceTerminating"):
            return None
        with self._lock:
            progress = self._progress.get(item)
            wait = 5.0 if progress is None else progress.backoff.next()
        after = error.retry_after if isinstance(error, ApiError) else None
        if error is not None:
            _log.warning("%s %s: %s; next attempt in %.1f s", item[0], "/".join(item[1]), error, wait)
        return max(wait, min(after or 0.0, 60.0))

    def _attend(self, item: Item) -> float | None:
        """Look at the item and write what there is to say; after how many seconds to look again, None: not by time."""
        kind, key = item
        if kind == "pod":
            return self._attend_pod(key)
        with self._lock:
            seen = self._claims.get(key[0], {}).get(key[1])
            if seen is None:
                return None
            devices = self._capacity.doubled_in(key) if self.version("ResourceClaim") else []
            if kind == "extended" and key[0] not in self._gated:
                return None
            if kind == "doubled" and not devices:
                return None if self.version("ResourceClaim") else LISTING_SECONDS
            said = f"{kind} {devices}"
            progress = self._progress_of(item, seen.uid)
            if progress.told is not None and progress.told.message == said:
                return None
            pod = self._pods.get(key[0], {}).get(seen.pod)
        if kind == "extended":
            note = (
                f"dra-gate: kube-scheduler made claim {key[1]} for extended resources. It is not the gate's: no policy "
                "decided what it gives. Create the Pod again, so that its request becomes a claim of its tenant."
            )
            self._tell("NotOurClaim", key, seen, pod, note, f"{seen.uid} extended")
        else:
            note = (
                f"dra-gate: {', '.join('/'.join(device[1:]) for device in devices)} of this claim is in another claim, "
                "too. Two workloads may be using one device; an operator has to look at it."
            )
            self._tell("DoubleAllocation", key, seen, pod, note, f"{seen.uid} {devices}")
        with self._lock:
            progress.told = Told("", "", said, 0)
        return None

    def _attend_pod(self, key: Key) -> float | None:
        item: Item = ("pod", key)
        if time.monotonic() >= self._version_until:  # the API server may have been upgraded
            self._version = text(self._client.get("/version", timeout=5.0).get("gitVersion"))
            self._version_until = time.monotonic() + REFRESH_SECONDS
        now = time.time()
        with self._lock:
            pod = self._pods.get(key[0], {}).get(key[1])
            if pod is None or key[0] not in self._gated:
                self._progress.pop(item, None)  # nobody says any more whether it waits
                return None
            progress = self._progress_of(item, pod.uid, pod.told)
            stage = pod.stage(self._claims.get(key[0], {}))
            if progress.stage != stage:
                # What it was before we saw it nobody can tell; that it is older than the Pod is impossible.
                early = progress.stage is None and stage in ("held", "claimless", "scheduling")
                progress.since = pod.created if early else now
                progress.stage, progress.events, progress.ask_at = stage, (), 0.0
            ask = self._asks(stage, now - progress.since) and time.monotonic() >= progress.ask_at
        if ask:
            self._ask(pod, progress)
        with self._lock:
            tenant = self._sets[0].tenant_by_namespace.get(key[0], "")
            told = progress.told
            heard = Heard(self._version, progress.since, progress.events)
            decision = decide(pod, self._claims.get(key[0], {}), tenant, self._fleet, now, heard)
            again = self._again_after(stage, now - progress.since)
            if decision is None:
                progress.waiting = None
                return again
            progress.waiting = (tenant, decision.record.klass) if decision.status == "False" else None
            closely = decision.status == "False" and time.monotonic() >= progress.refresh_at
            if decision.says_the_same(told, closely=closely):
                if decision.status == "False":
                    return again
                decision = replace(decision, record=replace(decision.record, sequence=told.sequence if told else 0))
            else:
                sequence = 1 + (told.sequence if told is not None else 0)
                decision = replace(decision, record=replace(decision.record, sequence=sequence))
            new = told is None or decision.record.sequence != told.sequence
        record = decision.record
        if new:
            recorded = record.sequence, decision.reason, decision.message
            if self._records is not None and progress.recorded != recorded:
                self._records.write(dumps(record))
                progress.recorded = recorded
            self._say(pod, decision)
            first = record.outcome == "allocated" and (told is None or told.status != "True")
            with self._lock:
                progress.told = Told(decision.status, decision.reason, decision.message, record.sequence)
                progress.refresh_at = time.monotonic() + REFRESH_SECONDS
                self._recent.append(record)
            self.metrics.decided(decision, now - pod.created if first else None)
        model = record.model if record.outcome == "allocated" else ""
        if model and pod.model != model:
            path = f"/api/v1/namespaces/{key[0]}/pods/{key[1]}"
            self._write("annotation", lambda: self._client.patch(
                path, {"metadata": {"uid": pod.uid, "annotations": {stamps.MODEL: model}}}
            ))  # fmt: skip
        with self._lock:
            progress.backoff.reset()
        return again

    @staticmethod
    def _asks(stage: Stage, seconds: float) -> bool:
        """Whether only its Events say how such a Pod fares: nothing on it tells why no claim comes, or no container."""
        return (stage == "claimless" and seconds > SILENT_SECONDS) or (stage == "bound" and seconds > BOUND_SECONDS)

    @staticmethod
    def _again_after(stage: Stage, seconds: float) -> float | None:
        limits = (SILENT_SECONDS, BOUND_SECONDS) if stage in ("held", "claimless", "bound") else ()
        waits = [limit - seconds for limit in limits if limit >= seconds]
        later = failures.look_again(seconds)
        return min([*waits, *([] if later is None else [later])], default=None)

    def _ask(self, pod: PodSeen, progress: _Progress) -> None:
        """Read the Pod's Events, at most once an hour and stage."""
        progress.ask_at = time.monotonic() + REFRESH_SECONDS
        found = self._client.get(
            f"/api/v1/namespaces/{pod.namespace}/events",
            {"fieldSelector": f"involvedObject.uid={pod.uid}", "limit": 100},
            timeout=5.0,
        )
        progress.events = [mapping(one) for one in sequence(found.get("items"))]

    def _progress_of(self, item: Item, uid: str, told: Told | None = None) -> _Progress:
        """What we remember of the item as it is now; what stands on it is news only if it is later than ours."""
        progress = self._progress.get(item)
        if progress is None or progress.uid != uid:
            progress = self._progress[item] = _Progress(uid, told, time.monotonic() + REFRESH_SECONDS)
        elif told is not None and (progress.told is None or told.sequence > progress.told.sequence):
            progress.told = told
        return progress

    def _say(self, pod: PodSeen, decision: Decision) -> None:
        """First the Event, whose name tells that it is said, then the condition, which tells what to say next."""
        record = decision.record
        regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        normal = record.outcome == "allocated"
        self._event(
            regarding, f"Devices{decision.reason}", chain(record), f"{pod.uid} {record.sequence}", normal=normal
        )
        now = _rfc3339()
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [decision.condition(now)]}}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        self._write("condition", lambda: self._client.patch(path, patch, STRATEGIC_PATCH))

    def _tell(self, reason: str, claim: Key, seen: ClaimSeen, pod: PodSeen | None, note: str, once: str) -> None:
        regarding = {**_CLAIM, "namespace": claim[0], "name": claim[1], "uid": seen.uid}
        if pod is not None:
            regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": claim[0], "name": pod.name, "uid": pod.uid}
        self._event(regarding, reason, note, once, normal=False)

    def _event(self, regarding: dict[str, str], reason: str, note: str, once: str, *, normal: bool) -> None:
        """An Event under a name made of `once`: there already means said already."""
        name = f"dra-gate-{hashlib.blake2b(once.encode(), digest_size=12).hexdigest()}"
        kind = "Normal" if normal else "Warning"
        made = event(regarding, reason, "Decide", note, kind=kind, name=name, identity=self._identity)

        def create() -> None:
            with contextlib.suppress(Conflict):
                write_event(self._client, made)

        self._write("event", create)

    def _write(self, what: str, send: Callable[[], Any]) -> None:
        """Send it if we still lead. Raises ClusterError."""
        if not self._active or not self._leading():
            raise _NotLeadingError
        try:
            send()
        except (NotFound, Conflict):
            self.metrics.wrote(what, "stale")
            raise
        except ClusterError:
            self.metrics.wrote(what, "error")
            raise
        self.metrics.wrote(what, "done")

    # -- what is asked ------------------------------------------------------------------------------------------------

    def _inversion(self, pod: PodSeen, policy: PolicyRef, model: str, count: int) -> Inversion:
        """With the lock held: deciding asks it."""
        better = self._capacity.nodes_with(policy, model, count)
        return inversions.inversion(pod.spec, pod.node, better, self._room, len(self._rooms))

    def _room(self, node: str) -> Room | None:
        room = self._rooms.get(node)
        if room is None:
            return None
        taken = self._taken_on.get(node, Counter())
        return replace(room, free={name: amount - taken[name] for name, amount in room.free.items()})

    def _standing(self) -> Standing:
        with self._lock:
            owners = self._sets[0].tenant_by_namespace if self._sets else {}
            extended = Counter(
                owners.get(namespace, "")
                for namespace in self._gated
                for seen in self._claims.get(namespace, {}).values()
                if seen.extended
            )
            return Standing(
                models=self._capacity.by_model(time.time()),
                waiting=Counter(one.waiting for one in self._progress.values() if one.waiting is not None),
                turns=dict(self._capacity.changes),
                extended=extended,
                doubled=len(self._doubled()),
                not_evaluated=self._capacity.not_evaluated(),
                dropped=0 if self._records is None else self._records.dropped,
            )


class _NotLeadingError(ClusterError):
    """Another replica leads: nothing is written."""


def _rfc3339() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
