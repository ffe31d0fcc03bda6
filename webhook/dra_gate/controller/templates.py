"""The template controller: watches the cluster, asks `plan`, writes the result.

Several may run at once: every write carries what it was decided on as a precondition, a name says its content, and
whoever comes second finds the work done. The Lease only keeps them from doing everything twice.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dra_gate.admission.backstop import labelled
from dra_gate.cluster import shapes
from dra_gate.cluster.client import ApiError, Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.events import event, write_event
from dra_gate.cluster.facts import DRA, PATHS, Key, KindSink
from dra_gate.cluster.reflector import Backoff, Reflector
from dra_gate.controller import threads
from dra_gate.controller.metrics import Metrics
from dra_gate.controller.plan import (
    LARGE_COUNT,
    Action,
    Compiled,
    Seen,
    SliceSeen,
    Verb,
    is_reserved,
    missing,
    most_devices,
    plan,
    read_slice,
    read_template,
    references,
)
from dra_gate.controller.settling import Settling
from dra_gate.kube.raw import Object, at, mapping
from dra_gate.policy.compile import templates_of
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import Switch

DEBOUNCE_SECONDS = 0.02  # one Pod makes several events; a namespace is planned once for them
GRACE_SECONDS = 60.0  # a template that nobody needs stays this long: an admitted Pod may not have reached our cache
ECHO_SECONDS = 2.0  # our own write comes back as an event well before
WORKERS = 4
BURST = 10  # writes to one name at full speed, so that a repair is never late …
REFILL_SECONDS = 2.0  # … and then one in this time, so that nobody keeps us busy by undoing it
FORGET_SECONDS = 60.0  # a name with nothing due for so long: its allowance is whole again, and its waits are over
FEW_NAMES = 256  # not worth a look whether some can be forgotten

_log = logging.getLogger(__name__)


@dataclass
class _Name:
    """What we remember about one template name: writes under way, their echo, their pace."""

    writing: bool = False
    echoed: bool = False  # an event came while writing
    echo_until: float = 0.0  # written: leave it alone until its event has come, or this has passed
    not_before: float = 0.0
    allowance: float = BURST
    counted_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 30.0))
    unneeded_since: float | None = None
    reported: str = ""  # UID of the foreign object that was reported

    def take(self, now: float) -> float:
        """0 if a write may go now, else when (time.monotonic())."""
        self.allowance = min(BURST, self.allowance + (now - self.counted_at) / REFILL_SECONDS)
        self.counted_at = now
        if self.allowance < 1:
            return now + (1 - self.allowance) * REFILL_SECONDS
        self.allowance -= 1
        return 0.0


class TemplateController:
    """Keeps the templates of every tenant namespace true to the policy sets that `use` names.

    Before the first `use` nothing is planned: no set is not the same as an empty one. `leading` is asked before every
    write. `activate` and `deactivate` follow the Lease; caches stay warm in between.
    `grace_seconds`: how long a template that nobody needs any more is kept.
    `lanes`: what the labels of each gated namespace say (admission/backstop.py), and since when.
    """

    def __init__(
        self,
        client: Client,
        *,
        identity: str,
        leading: Callable[[], bool],
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._client = client
        self._sets: tuple[Compiled, ...] = ()
        self._using = False
        self._switch = Switch()
        self._identity = identity
        self._leading = leading
        self._grace = grace_seconds
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # What the cluster looks like; written by reflector threads, under the lock.
        self._namespaces: set[str] = set()
        self.lanes = Settling()
        self._templates: dict[str, dict[str, Seen]] = {}
        self._named: dict[str, dict[Key, frozenset[str]]] = {}
        self._slices: dict[str, SliceSeen] = {}
        self._recount = False
        # What is to be done; under the lock.
        self._dirty: set[str] = set()
        self._due: dict[str, float] = {}  # namespaces to look at again, by time.monotonic()
        self._devices = 0  # the planner's own
        self._names: dict[Key, _Name] = {}
        self._many = FEW_NAMES  # from here on some may be forgotten
        self._foreign: Counter[str] = Counter()
        self._active = False
        self._stopping = threading.Event()
        self._work: queue.PriorityQueue[tuple[int, int, Action | None]] = queue.PriorityQueue()
        self._sequence = itertools.count()
        self.reflectors = [
            Reflector(client, PATHS[kind], KindSink(upsert, delete, self._lock, shape), kind)
            for kind, upsert, delete, shape in (
                ("Namespace", self._set_namespace, self._drop_namespace, shapes.Namespace),
                ("ResourceClaimTemplate", self._set_template, self._drop_template, None),
                ("Pod", self._set_pod, self._drop_pod, shapes.Pod),
                ("ResourceSlice", self._set_slice, self._drop_slice, shapes.Spec),
            )
        ]
        self.metrics = Metrics(self.reflectors, leading)
        self._threads = [
            threading.Thread(target=self._plan_loop, name="planner", daemon=True),
            *(threading.Thread(target=self._work_loop, name=f"writer-{i}", daemon=True) for i in range(WORKERS)),
        ]

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; nothing is written before `activate`."""
        for reflector in self.reflectors:
            reflector.start()
        for thread in self._threads:
            thread.start()

    def use(self, sets: Iterable[PolicySet]) -> None:
        """Keep templates for all of `sets` from now on; what none of them needs is collected."""
        known = {compiled.policy_set.digest: compiled for compiled in self._sets}
        made = tuple(known.get(one.digest) or Compiled(one, templates_of(one)) for one in sets)
        with self._changed:
            self._sets, self._using = made, True
            self._everything()

    def hold(self, switch: Switch) -> None:
        """Make nothing new for tenants that the switch sends to lane device-plugin, and collect nothing of theirs."""
        with self._changed:
            if switch != self._switch:
                self._switch = switch
                self._everything()

    def missing(self) -> dict[str, int] | None:
        """How many templates of usual counts each set lacks, by digest; None until the caches are full."""
        with self._lock:
            if not self._synced():
                return None
            found = [
                (
                    compiled,
                    {n: dict(self._templates.get(n, {})) for n in compiled.policy_set.tenant_by_namespace},
                    self._namespaces & compiled.policy_set.tenant_by_namespace.keys(),
                )
                for compiled in self._sets
            ]
            devices, switch = self._devices, self._switch
        return {
            compiled.policy_set.digest: missing(
                compiled, namespaces=there, existing=existing, devices=devices, switch=switch
            )
            for compiled, existing, there in found
        }

    def activate(self) -> None:
        """We lead: look at everything."""
        with self._changed:
            self._active = True
            for name in self._names.values():
                name.unneeded_since = None  # what was needed while another led we do not know
            self._everything()

    def deactivate(self) -> None:
        """We lead no more: what is queued is dropped, what is being sent ends."""
        with self._changed:
            self._active = False

    def stop(self, timeout: float = 5.0) -> None:
        """End all threads; waits at most about `timeout` seconds for requests under way."""
        self._stopping.set()
        with self._changed:
            self._active = False
            self._changed.notify_all()
        for _ in range(WORKERS):
            self._work.put((-1, next(self._sequence), None))
        threads.join(self._threads, self.reflectors, timeout)

    def problems(self) -> list[str]:
        """Why this process should be restarted; empty while it works."""
        return threads.ended(self._threads, self.reflectors)

    # -- the cluster as seen: each runs with the lock held, in a reflector's thread ------------------------------------

    def _touch(self, namespace: str) -> None:
        if not self._active:
            return  # whoever begins to lead looks at everything
        self._dirty.add(namespace)
        self._changed.notify_all()

    def _everything(self) -> None:
        self._dirty.update(self._templates, *(compiled.policy_set.tenant_by_namespace for compiled in self._sets))
        self._changed.notify_all()

    def _set_namespace(self, key: Key, obj: Object) -> None:
        name = key[1]
        self.lanes.note(name, labelled(name, mapping(at(obj, "metadata", "labels"))))
        # Nothing can be created in a namespace that is being deleted, and what is in it goes by itself.
        present = not at(obj, "metadata", "deletionTimestamp") and at(obj, "status", "phase") != "Terminating"
        if present != (name in self._namespaces):
            (self._namespaces.add if present else self._namespaces.discard)(name)
            self._touch(name)

    def _drop_namespace(self, key: Key) -> None:
        namespace = key[1]
        self._namespaces.discard(namespace)
        self.lanes.forget(namespace)
        self._foreign.pop(namespace, None)
        for past in [past for past, name in self._names.items() if past[0] == namespace and not name.writing]:
            del self._names[past]

    def _set_template(self, key: Key, obj: Object) -> None:
        namespace, name = key
        if is_reserved(name):
            self._templates.setdefault(namespace, {})[name] = read_template(obj)
            self._echoed(key)

    def _drop_template(self, key: Key) -> None:
        namespace, name = key
        if is_reserved(name):
            there = self._templates.get(namespace, {})
            there.pop(name, None)
            if not there:
                self._templates.pop(namespace, None)
            self._echoed(key)

    def _echoed(self, key: Key) -> None:
        if key in self._names:
            self._names[key].echoed = True
            self._names[key].echo_until = 0.0
        self._touch(key[0])

    def _set_pod(self, key: Key, obj: Object) -> None:
        self._refer(key, references(obj))

    def _drop_pod(self, key: Key) -> None:
        self._refer(key, frozenset())

    def _refer(self, key: Key, names: frozenset[str]) -> None:
        namespace = key[0]
        there = self._named.setdefault(namespace, {})
        if there.get(key, frozenset()) != names:
            if names:
                there[key] = names
            else:
                del there[key]
            self._touch(namespace)
        if not there:
            del self._named[namespace]

    def _set_slice(self, key: Key, obj: Object) -> None:
        seen = read_slice(obj)
        if self._slices.get(key[1]) != seen:  # a taint or an attribute changes no count
            self._slices[key[1]] = seen
            self._recount = True
            self._changed.notify_all()

    def _drop_slice(self, key: Key) -> None:
        if self._slices.pop(key[1], None):
            self._recount = True
            self._changed.notify_all()

    # -- planning -----------------------------------------------------------------------------------------------------

    def _plan_loop(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                while not self._ready():
                    if self._stopping.is_set():
                        return
                    self._changed.wait(self._until_due())
            self._stopping.wait(DEBOUNCE_SECONDS)
            try:
                self._plan_once()
            except Exception:  # noqa: BLE001
                # A plan that fails once may succeed on other facts; a dead planner repairs nothing.
                _log.exception("planning failed")
                with self._changed:
                    self._everything()
                self._stopping.wait(1.0)

    def _ready(self) -> bool:
        if not self._active or not self._using or not self._synced():
            return False
        now = time.monotonic()
        return bool(self._dirty) or self._recount or any(due <= now for due in self._due.values())

    def _synced(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self.reflectors)

    def _until_due(self) -> float | None:
        """Seconds until there may be something to plan without anybody telling us."""
        if not self._active or not self._using:
            return None
        if not self._synced():
            return 0.05
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _plan_once(self) -> None:
        with self._lock:
            if self._recount:
                self._recount = False
                devices, before = most_devices(self._slices.values()), self._devices
                self._devices = devices
                if (devices >= LARGE_COUNT) != (before >= LARGE_COUNT):
                    self._everything()
            now = time.monotonic()
            self._forget(now)
            due = {namespace for namespace, when in self._due.items() if when <= now}
            for namespace in due:
                del self._due[namespace]
            namespaces = (self._dirty | due) & self._namespaces
            self._dirty.clear()
            sets, switch = self._sets, self._switch
            existing = {namespace: dict(self._templates.get(namespace, {})) for namespace in namespaces}
            named = {namespace: frozenset().union(*self._named.get(namespace, {}).values()) for namespace in namespaces}
        actions = plan(
            sets,
            namespaces=namespaces,
            existing=existing,
            references=named,
            devices=self._devices,
            switch=switch,
        )
        with self._lock:
            for namespace in namespaces:
                self._foreign.pop(namespace, None)
            for action in actions:
                planned_on = existing[action.namespace].get(action.name)
                # What an event has changed meanwhile is planned anew: the event has touched its namespace.
                if self._templates.get(action.namespace, {}).get(action.name) == planned_on:
                    self._consider(action)
            self.metrics.foreign(self._foreign.total())

    def _consider(self, action: Action) -> None:
        """Hand an action to the writers, or see to it that it is looked at again; with the lock held."""
        key = (action.namespace, action.name)
        if action.verb is Verb.KEEP:
            if key in self._names:
                self._names[key].unneeded_since = None
            return
        name = self._names.setdefault(key, _Name())
        now = time.monotonic()
        wait = max(name.echo_until, name.not_before)
        if action.verb is Verb.COLLECT:
            name.unneeded_since = now if name.unneeded_since is None else name.unneeded_since
            wait = max(wait, name.unneeded_since + self._grace)
        else:
            name.unneeded_since = None
        if action.verb is Verb.REPORT:
            self._foreign[action.namespace] += 1
            if action.seen is not None and name.reported == action.seen.uid:
                return
        if name.writing:
            return  # whoever writes has the namespace looked at afterwards
        if wait <= now:
            wait = name.take(now)
        if wait:
            self._look_again(action.namespace, wait)
            return
        name.writing, name.echoed = True, False
        self._work.put((0 if action.urgent else 1, next(self._sequence), action))

    def _forget(self, now: float) -> None:
        """Let go of names of which nothing is left to remember; with the lock held. Every version of a policy has names
        of its own in each namespace, so they would only ever become more.
        """
        if len(self._names) < self._many:
            return
        for key, name in list(self._names.items()):
            there = key[1] in self._templates.get(key[0], ())
            quiet = max(name.echo_until, name.not_before, name.counted_at) + FORGET_SECONDS <= now
            if quiet and not name.writing and not (there and (name.reported or name.unneeded_since is not None)):
                del self._names[key]
        self._many = max(FEW_NAMES, 2 * len(self._names))  # so that looking costs little for each name

    def _look_again(self, namespace: str, when: float) -> None:
        self._due[namespace] = min(when, self._due.get(namespace, math.inf))
        self._changed.notify_all()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _work_loop(self) -> None:
        while True:
            _, _, action = self._work.get()
            if action is None:
                return
            outcome, wait = self._attempt(action)
            if outcome:
                self.metrics.wrote(action.verb.value, outcome)
            with self._changed:
                self._settle(action, outcome, wait)

    def _attempt(self, action: Action) -> tuple[str, float]:
        """Carry out `action` if we still lead: what came of it, and how long to leave the name alone (seconds)."""
        if not self._active or not self._leading():
            return "", 0.0
        where = f"{action.namespace}/{action.name}"
        try:
            self._write(action)
        except (Conflict, NotFound) as error:
            # Somebody was there before us, or the namespace is gone. The caches will tell.
            _log.info("%s %s: %s", action.verb, where, error)
            return "stale", ECHO_SECONDS
        except ApiError as error:
            if error.has_cause("NamespaceTerminating"):
                _log.info("%s %s: the namespace is being deleted", action.verb, where)
                return "stale", ECHO_SECONDS
            _log.warning("%s %s: %s", action.verb, where, error)
            return "error", error.retry_after or 0.0
        except ClusterError as error:
            _log.warning("%s %s: %s", action.verb, where, error)
            return "error", 0.0
        except Exception:  # noqa: BLE001 - a dead writer would leave its share of the work undone
            _log.exception("%s %s", action.verb, where)
            return "error", 0.0
        _log.info("%s %s: %s", action.verb, where, action.reason)
        return "done", ECHO_SECONDS

    def _write(self, action: Action) -> None:
        collection = f"{DRA}namespaces/{action.namespace}/resourceclaimtemplates"
        if action.template is not None:
            self._client.create(collection, action.template.manifest(action.namespace))
            return
        assert action.seen is not None  # noqa: S101 - the plan sets one of the two
        if action.verb is Verb.REPORT:
            write_event(self._client, self._event(action, action.seen))
            return
        # Exactly what the plan judged, with our label on it: not one made or edited since.
        self._client.delete(
            f"{collection}/{action.name}", uid=action.seen.uid, resource_version=action.seen.resource_version
        )

    def _settle(self, action: Action, outcome: str, wait: float) -> None:
        """Note what came of `action` and have its namespace looked at when that makes sense; with the lock held."""
        name = self._names[action.namespace, action.name]
        name.writing = False
        now = time.monotonic()
        if not outcome:  # who leads next looks at everything; but it may turn out that we still do
            self._look_again(action.namespace, now + 1.0)
            return
        if outcome == "error":
            name.not_before = now + max(name.backoff.next(), min(wait, 30.0))
            self._look_again(action.namespace, name.not_before)
            return
        name.backoff.reset()
        if action.verb is Verb.REPORT:
            name.reported = action.seen.uid if action.seen else ""
        elif name.echoed:
            self._touch(action.namespace)  # the event was faster than the answer
        else:
            name.echo_until = now + wait
            self._look_again(action.namespace, name.echo_until)

    def _event(self, action: Action, seen: Seen) -> dict[str, object]:
        about = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "namespace": action.namespace,
            "name": action.name,
            "uid": seen.uid,
        }
        note = (
            f"dra-gate leaves this template alone: {action.reason}. Pods that use it are refused. "
            "Delete it, and dra-gate makes its own."
        )
        return event(about, "TemplateNameTaken", "Compare", note, identity=self._identity)
