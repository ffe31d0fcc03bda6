"""Where a replica's policies come from: the published sets and the Gate, watched, verified, and chosen from.

Every published set is verified once for each object that stands for it. What the Gate names, and what may be activated
next, stays loaded. Loading happens in a thread of its own, what the Gate names first.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dra_gate.admission.sets import PolicySets
from dra_gate.cluster.client import Client, ClusterError, NotFound, lean
from dra_gate.cluster.events import event, write_event
from dra_gate.cluster.gate import GATE, GATE_PATH, GATES_PATH, Gate, choose, kept, read_gate
from dra_gate.cluster.policy_map import (
    MAPS_PATH,
    NAMESPACE,
    SELECTOR,
    Refusal,
    RefusedError,
    digest_of,
    name_of,
    read_policy_map,
)
from dra_gate.cluster.reflector import Reflector
from dra_gate.kube.raw import Object, at, sequence, text
from dra_gate.policy.model import PolicySet

BRIDGE_SECONDS = 60.0  # how long the set that was active is honoured before the Gate says that it is
REFRESH_SECONDS = 0.1  # least time between two live looks at the Gate; who asks meanwhile shares the next one
LIVE_SECONDS = 1.0  # how long a live look waits for an answer: an admission call waits behind it
RETRY_SECONDS = 1.0
EVENTS = (20, 300.0)  # so many Events in so many seconds: somebody may keep publishing nonsense

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Map:
    """A ConfigMap with our label. `obj` is there until it has been verified; `refusal` says that it was refused."""

    uid: str
    version: str
    created: str
    digest: str
    obj: Object | None
    refusal: Refusal | None = None


class PolicySource:
    """Keeps `sets` true to the cluster's Gate and published policy sets. Safe for use by many threads.

    `on_change` is called with the sets when they change, one call at a time; `on_prepared` with the sets whose
    templates are worth having, once there are sets that count; `report` once for each thing that is refused. All
    three come from threads of this object, or from who called `refresh`, and should return soon. `identity` names this
    replica in Events.
    """

    def __init__(
        self,
        client: Client,
        on_change: Callable[[PolicySets], None],
        report: Callable[[Refusal], None] = lambda _: None,
        *,
        on_prepared: Callable[[tuple[PolicySet, ...]], None] = lambda _: None,
        identity: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._on_prepared = on_prepared
        self._report = report
        self._identity = identity or socket.gethostname()
        self._clock = clock
        self.reflectors = (
            Reflector(
                client,
                MAPS_PATH,
                _Sink(self, self._put_map, self._drop_map, lambda: dict(self._maps), "maps"),
                "PolicySet",
                SELECTOR,
            ),
            Reflector(
                client,
                GATES_PATH,
                _Sink(self, self._put_gate, self._drop_gate, lambda: {GATE: (self._gate, self._gate_gone)}, "gate"),
                "Gate",
            ),
        )
        # What the cluster says; under the lock.
        self.lock = threading.Condition()
        self.listed: set[str] = set()
        self._gate: Gate | None = None
        self._listed: set[str] = set()  # accepted at some time since the Gate has named this active set
        self._gate_gone = 0  # the version at which the Gate was deleted or found missing
        self._maps: dict[str, _Map] = {}
        self._dirty = False
        self._loaded: dict[str, PolicySet] = {}  # those of them that were verified and are worth having
        # What was made of it; written by who settles.
        self._settling = threading.Lock()
        self._missing: dict[str, Refusal] = {}  # digest -> named by the Gate, but not published
        self._bridged: dict[str, tuple[PolicySet, float]] = {}  # digest -> set, until when
        self._sets: PolicySets | None = None
        self._prepared: tuple[PolicySet, ...] = ()
        self._told_prepared: tuple[PolicySet, ...] = ()
        self._settled = False
        self._retry_at: float | None = None
        self._told: set[str] = set()  # digests missing under this generation of the Gate, already told
        self._to_tell: deque[Refusal] = deque()
        self._event_times: deque[float] = deque(maxlen=EVENTS[0])
        self._refused: Counter[str] = Counter()
        # Live looks.
        self._flight = threading.Condition()
        self._flying = False
        self._begun = self._ended = self._succeeded = 0
        self._flown_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="policies", daemon=True)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> PolicySource:
        """Start watching; returns self."""
        for reflector in self.reflectors:
            reflector.start()
        self._thread.start()
        return self

    def stop(self, timeout: float = 2.0) -> None:
        """End the threads; waits at most about `timeout` seconds for requests under way."""
        self._stopping.set()
        with self.lock:
            self.lock.notify_all()
        for reflector in self.reflectors:
            reflector.stop(timeout=timeout / 2)
        if self._thread.is_alive():
            self._thread.join(timeout / 2)

    def alive(self) -> bool:
        """Whether all threads run."""
        return self._thread.is_alive() and all(reflector.alive() for reflector in self.reflectors)

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> PolicySets | None:
        """The sets that count now; None until a Gate has named one that can be used."""
        return self._sets

    def states(self) -> dict[str, str]:
        """The sets that count, by digest: active or accepted."""
        sets = self._sets
        if sets is None:
            return {}
        return {sets.active.digest: "active", **{found.digest: "accepted" for found in sets.accepted}}

    @property
    def prepared(self) -> tuple[PolicySet, ...]:
        """The sets whose templates are worth having: active, accepted, a rollback's, newly published ones."""
        return self._prepared

    @property
    def gate(self) -> Gate | None:
        """The Gate as last seen."""
        return self._gate

    @property
    def synced(self) -> bool:
        """Whether both kinds have been listed and what the Gate then named has been loaded or refused."""
        return self._settled

    @property
    def refused(self) -> Mapping[str, int]:
        """How many refusals were reported since start, by code."""
        return MappingProxyType(self._refused)

    def problems(self) -> dict[str, Refusal]:
        """Why what is refused now is refused, by name of the ConfigMap."""
        with self.lock:
            found = {name: entry.refusal for name, entry in self._maps.items() if entry.refusal is not None}
            named = self._gate.named if self._gate is not None else ()
            return found | {miss.name: miss for digest, miss in self._missing.items() if digest in named}

    def published(self) -> int:
        """How many sets are published, refused ones among them."""
        return len(self._maps)

    def waiting(self) -> list[str]:
        """Why there is nothing to decide by yet; empty once there is."""
        with self.lock:
            if not self._settled:
                unlisted = [r.name for r in self.reflectors if not r.synced.is_set()]
                return [f"{name} not listed yet" for name in unlisted] or ["the Gate's policy sets are being loaded"]
            if self._sets is not None:
                return []
            if self._gate is None:
                return [f"there is no Gate {GATE}: publish a policy set and activate it"]
            refusal = self.problems().get(name_of(self._gate.active))
            why = refusal.message if refusal is not None else "it is not loaded"
            return [f"the active policy set {self._gate.active[:12]} can't be used: {why}"]

    # -- a live look --------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Ask the API server for the Gate, and for sets that it names and nobody here has, and take them into account.

        For who met a stamp that names something unknown. Whoever asks while a look is under way or was a moment ago
        shares the next one. False: the API server could not be asked.
        """
        with self._flight:
            ticket = self._begun + 1  # a look that began before we were asked may have come too early
            while self._flying and self._ended < ticket:
                self._flight.wait()
            if self._ended >= ticket:
                return self._succeeded >= ticket
            self._flying = True
        self._stopping.wait(max(0.0, self._flown_at + REFRESH_SECONDS - self._clock()))
        with self._flight:
            self._begun += 1
            self._flown_at = self._clock()
        done = False
        try:
            done = self._look()
        finally:
            with self._flight:
                self._ended = self._begun
                if done:
                    self._succeeded = self._ended
                self._flying = False
                self._flight.notify_all()
        return done

    def _look(self) -> bool:
        try:
            self.take(self._client.get(GATE_PATH, timeout=LIVE_SECONDS))
        except NotFound:
            return True  # the watch will say that it is gone
        except ClusterError as error:
            _log.warning("live look at the Gate: %s", error)
            return False
        return self._settle()

    def take(self, obj: Object) -> None:
        """A Gate as the API server just gave it out: taken in if it is newer than the one that is known."""
        with self.lock:
            self._put_gate(obj)

    # -- the cluster as seen: each runs with the lock held ------------------------------------------------------------

    def _put_gate(self, obj: Object, *, newest: bool = False) -> None:
        """`newest`: nothing newer is known, even where its version is lower, as after a restored etcd backup."""
        if at(obj, "metadata", "name") != GATE:
            return
        seen, known = read_gate(obj), self._gate
        # KEP-5504: versions of one resource are numbers that may be compared.
        if known is not None and _known(seen.resource_version, known.resource_version, newest=newest):
            return
        if known is None and _number(seen.resource_version) <= self._gate_gone and not newest:
            return
        if known is None or known.generation != seen.generation:
            self._told.clear()
        if known is None or known.active != seen.active:
            self._listed.clear()
        self._listed.update(entry.digest for entry in seen.accepted)
        self._gate = seen
        self._missing.clear()
        self.touched()

    def _drop_gate(self, obj: Object) -> None:
        if self._gate is not None and at(obj, "metadata", "uid") == self._gate.uid:
            self._gate_gone = max(_number(text(at(obj, "metadata", "resourceVersion"))), self._gate_gone)
            self._gate = None
            _log.warning("the Gate is gone: what it said last goes on")
            self.touched()

    def _put_map(self, obj: Object, *, newest: bool = False) -> None:
        name, version = text(at(obj, "metadata", "name")), text(at(obj, "metadata", "resourceVersion"))
        known = self._maps.get(name)
        if known is not None and _known(version, known.version, newest=newest):
            return
        uid, created = text(at(obj, "metadata", "uid")), text(at(obj, "metadata", "creationTimestamp"))
        self._maps[name] = _Map(uid, version, created, digest_of(name), obj)
        self._loaded.pop(digest_of(name), None)  # what was verified was another object
        self._missing.clear()
        self.touched()

    def _drop_map(self, obj: Object) -> None:
        name = text(at(obj, "metadata", "name"))
        self._maps.pop(name, None)
        self._loaded.pop(digest_of(name), None)
        self.touched()

    def touched(self) -> None:
        """Something changed that has to be settled; with the lock held."""
        self._dirty = True
        self.lock.notify_all()

    # -- making something of it ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._settle()
                self._tell()
                if not self._verify_one():
                    self._wait()
            except Exception:  # noqa: BLE001 - a dead thread would leave the replica at an old policy for ever
                _log.exception("policies")
                self._stopping.wait(RETRY_SECONDS)

    def _wait(self) -> None:
        with self.lock:
            dues = [until for _, until in self._bridged.values()] + ([self._retry_at] if self._retry_at else [])
            unread = any(entry.obj is not None for entry in self._maps.values())
            if not (self._dirty or unread or self._to_tell or self._stopping.is_set()):
                self.lock.wait(max(0.0, min(dues) - self._clock()) if dues else None)

    def _settle(self) -> bool:
        """Load what the Gate names and nobody has loaded, then choose. False: something could not be asked for."""
        with self._settling:
            with self.lock:
                self._dirty = False
                self._retry_at = None
                complete = self.listed >= {"maps", "gate"}
            asked = True
            tried: set[str] = set()
            while (digest := self._next_to_load(tried)) is not None:
                tried.add(digest)
                asked = self._obtain(digest) and asked
            if not asked:
                with self.lock:
                    self._retry_at = self._clock() + RETRY_SECONDS
                    self.lock.notify_all()
            settled = self._settled or (complete and asked)
            self._conclude(settled=settled)
            self._settled = settled
            return asked

    def _next_to_load(self, tried: set[str]) -> str | None:
        with self.lock:
            for digest in self._kept():
                entry = self._maps.get(name_of(digest))
                usable = entry is None or entry.refusal is None
                if digest not in self._loaded and digest not in tried and usable and digest not in self._missing:
                    return digest
        return None

    def _kept(self) -> tuple[str, ...]:
        entries = self._maps.values()
        valid = {entry.digest: entry.created for entry in entries if entry.digest and entry.refusal is None}
        return kept(self._gate, valid)

    def _obtain(self, digest: str) -> bool:
        """Load a set that is kept; from the API server where its text is not at hand. False: it couldn't be asked."""
        with self.lock:
            entry = self._maps.get(name_of(digest))
        if entry is None or entry.obj is None:
            wanted = {"fieldSelector": f"metadata.name={name_of(digest)}", "labelSelector": SELECTOR}
            try:
                # Not by name: to list and watch is all the right that a replica needs on ConfigMaps.
                items = sequence(self._client.get(MAPS_PATH, wanted, timeout=LIVE_SECONDS).get("items"))
                found = next((item for item in items if _name(item) == name_of(digest)), None)
            except ClusterError as error:
                _log.warning("policy set %s: %s", digest, error)
                return False
            with self.lock:
                entry = self._maps.get(name_of(digest))
                if entry is None or entry.obj is None:  # and the watch has not brought it meanwhile
                    self._maps.pop(name_of(digest), None)
                    if found is None:
                        self._miss(digest)
                        return True
                    self._put_map(lean(found))
                    entry = self._maps[name_of(digest)]
        self._verify(name_of(digest), entry)
        return True

    def _miss(self, digest: str) -> None:
        """A set that is kept is not there; told once for each generation of the Gate that names it."""
        refusal = Refusal(name_of(digest), "", "NotPublished", "the Gate names it, but it is not published")
        self._missing[digest] = refusal
        if self._gate is not None and digest in self._gate.named and digest not in self._told:
            self._told.add(digest)
            self._note(refusal)

    def _verify(self, name: str, entry: _Map) -> None:
        """Load what `entry` holds, keep it if it is wanted, and note what is wrong with it."""
        obj = entry.obj
        if obj is None:
            return
        loaded: PolicySet | None = None
        refusal: Refusal | None = None
        try:
            loaded = read_policy_map(obj)  # a live look may verify it at the same time and let go of it
        except RefusedError as error:
            refusal = error.refusal
        except Exception as error:  # noqa: BLE001 - whatever it is: refused, and the last good one stays
            _log.exception("policy set %s", name)
            refusal = Refusal(name, entry.uid, "Invalid", f"it can't be read: {error!r}"[:500])
        with self.lock:
            entry.obj = None
            if self._maps.get(name) is not entry:
                self.touched()  # replaced while we read
                return
            entry.refusal = refusal
            if refusal is not None:
                self._note(refusal)
            elif loaded is not None and loaded.digest in self._kept():
                counting = self._sets.all if self._sets is not None else ()
                # The same content as what counts: one object for it, so that nobody takes it for a change.
                same = next((held for held in counting if held.digest == loaded.digest), loaded)
                self._loaded[loaded.digest] = same

    def _verify_one(self) -> bool:
        """Verify one more of the sets that nobody waits for. False: there is none left."""
        with self.lock:
            found = next(((name, entry) for name, entry in self._maps.items() if entry.obj is not None), None)
        if found is None:
            return False
        self._verify(*found)
        return True

    def _conclude(self, *, settled: bool) -> None:
        """Choose from what is loaded; tell who wants to know. With `_settling` held."""
        with self.lock:
            gate, before, now, listed = self._gate, self._sets, self._clock(), self._listed
            self._bridged = {
                digest: (held, until)
                for digest, (held, until) in self._bridged.items()
                if until > now and digest not in listed
            }
            sets = choose(gate, self._loaded, before, [held for held, _ in self._bridged.values()])
            if before is not None and sets is not None and sets.active.digest != before.active.digest:
                self._bridged.pop(sets.active.digest, None)
                if before.active.digest not in listed:
                    self._bridged[before.active.digest] = (before.active, now + BRIDGE_SECONDS)
                    sets = choose(gate, self._loaded, before, [held for held, _ in self._bridged.values()])
            wanted = self._kept()
            self._loaded = {digest: held for digest, held in self._loaded.items() if digest in wanted}
            # What counts need not be loaded: the Gate may not name it any more, its ConfigMap may be gone.
            counting = {held.digest: held for held in (sets.all if sets is not None else ())}
            known = {**self._loaded, **counting}
            prepared = tuple(known[digest] for digest in dict.fromkeys((*counting, *wanted)) if digest in known)
        try:
            if sets is not None and sets != before:
                _log.info("policy set %s is in use, Gate generation %d", sets.active.digest, sets.generation)
                self._on_change(sets)
            self._sets = sets
            self._prepared = prepared
            # Before all is known, or while no Gate says what counts, templates that seem superfluous may not be.
            if settled and sets is not None and prepared != self._told_prepared:
                self._on_prepared(prepared)
                self._told_prepared = prepared
        except Exception:
            with self.lock:
                self.touched()  # to be tried again
            raise

    # -- telling ------------------------------------------------------------------------------------------------------

    def _note(self, refusal: Refusal) -> None:
        """To be told by the thread that waits for nobody; with the lock held."""
        self._refused[refusal.code] += 1
        self._to_tell.append(refusal)
        self.lock.notify_all()

    def _tell(self) -> None:
        while self._to_tell:
            refusal = self._to_tell.popleft()
            _log.warning("%s is refused (%s): %s", refusal.name, refusal.code, refusal.message)
            self._report(refusal)
            now = self._clock()
            if len(self._event_times) == EVENTS[0] and now - self._event_times[0] < EVENTS[1]:
                continue
            self._event_times.append(now)
            try:
                write_event(self._client, self._event(refusal), LIVE_SECONDS)
            except ClusterError as error:
                _log.warning("no Event about %s: %s", refusal.name, error)

    def _event(self, refusal: Refusal) -> dict[str, object]:
        stays = self._sets.active.digest[:12] if self._sets is not None else "none"
        note = f"dra-gate does not use this policy set ({refusal.code}): {refusal.message}. In use: {stays}"
        regarding = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": NAMESPACE, "name": refusal.name}
        regarding |= {"uid": refusal.uid} if refusal.uid else {}
        return event(regarding, "PolicySetRefused", "Load", note, part="policies", identity=self._identity)


class _Sink:
    """The reflector's end of one kind: gives objects on with the source's lock held."""

    def __init__(
        self,
        source: PolicySource,
        put: Callable[..., None],
        drop: Callable[[Object], None],
        learnt: Callable[[], Mapping[str, object]],
        kind: str,
    ) -> None:
        """`learnt` says, with the lock held, what is known of which name."""
        self._source = source
        self._put = put
        self._drop = drop
        self._learnt = learnt
        self._kind = kind
        self._known: dict[str, Object] = {}  # what a new list may show to be gone: name and uid of each

    shape = None  # sets are checked whole, and there are few

    def replace(self, objects: Iterable[Object]) -> None:
        """The whole truth at one moment."""
        with self._source.lock:
            before = self._learnt()
        arrived = list(objects)  # off the network: not with the lock held
        with self._source.lock:
            now = self._learnt()
            gone = self._known
            self._known = {}
            for obj in arrived:
                self._remember(obj)
                gone.pop(_name(obj), None)
                # What was known before the list was asked for is no newer than the list.
                self._put(obj, newest=now.get(_name(obj)) == before.get(_name(obj)))
            for stub in gone.values():
                self._drop(stub)
            self._source.listed.add(self._kind)
            self._source.touched()

    def upsert(self, obj: Object) -> None:
        """One object was made or changed."""
        with self._source.lock:
            self._remember(obj)
            self._put(obj)

    def delete(self, obj: Object) -> None:
        """One object is gone."""
        with self._source.lock:
            self._known.pop(_name(obj), None)
            self._drop(obj)

    def _remember(self, obj: Object) -> None:
        self._known[_name(obj)] = {"metadata": {"name": _name(obj), "uid": at(obj, "metadata", "uid")}}


def _name(obj: Object) -> str:
    return text(at(obj, "metadata", "name"))


def _known(version: str, known: str, *, newest: bool) -> bool:
    """Whether the object of `version` says nothing new to who knows it at version `known`."""
    return version == known if newest else _number(version) <= _number(known)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
