"""What the counter hears of between two turns, one of each: small, however much happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dra_gate.admission.facts import LANE_LABEL, MODE_LABEL
from dra_gate.admission.guards import MOVED
from dra_gate.cluster import shapes
from dra_gate.cluster.client import Client
from dra_gate.cluster.facts import Key, KindSink
from dra_gate.cluster.reflector import Reflector
from dra_gate.controller.arbiter_term import now_ms
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.migration.counting import (
    DENIED_EVENT,
    PREPARE_EVENTS,
    ClaimSeen,
    Denial,
    PodSeen,
    read_claim,
    read_denial,
    read_pod,
)
from dra_gate.migration.tally import DENIALS
from dra_gate.migration.waves import Move, read_move

# Shorter than the client's patience with a silent watch: no bookmarks come for Events, which the API server does not
# cache (kube-apiserver --watch-cache-sizes).
_WATCH_SECONDS = (90, 130)


@dataclass(frozen=True, slots=True)
class Space:
    """A gated namespace: what its labels say, and the command that moved it last."""

    lane: str
    mode: str
    move: Move | None


@dataclass
class Batch:
    """Pods by UID; when others went; claims by number; Pods whose devices could not be prepared, with their keys."""

    pods: dict[str, PodSeen] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    claims: dict[int, ClaimSeen] = field(default_factory=dict)
    unprepared: dict[str, Key] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pods or self.gone or self.claims or self.unprepared)


class Inbox:
    """Hears of Pods, claims, nodes and namespaces from the caches of others, and of two kinds of Events by its own.
    `now` gives milliseconds since 1970.

    Every `saw_` runs in a reflector's thread and does little: the lock of the caches is held around it.
    """

    def __init__(self, client: Client, now: Callable[[], int] = now_ms) -> None:
        self._now = now
        self.spaces: dict[str, Space] = {}
        self.labels: dict[str, Object] = {}  # of nodes
        self._lock = threading.Lock()
        self._batch = Batch()
        self._denials: dict[tuple[str, int], Denial] = {}
        self._uids: dict[Key, str] = {}
        self._nodes: set[str] = set()
        sinks = dict.fromkeys(sorted(PREPARE_EVENTS), self._saw_unprepared) | {DENIED_EVENT: self._saw_denial}
        self.reflectors = [
            Reflector(
                client,
                "/api/v1/events",
                KindSink(saw, lambda _: None, self._lock, shapes.Event),
                f"counts/{reason}",
                field_selector=f"reason={reason}",
                watch_seconds=_WATCH_SECONDS,
            )
            for reason, saw in sinks.items()
        ]

    def saw_namespace(self, key: Key, obj: Object | None) -> None:
        """A namespace was made or changed; None: it is gone."""
        labels = mapping(at(obj, "metadata", "labels"))
        if LANE_LABEL not in labels:
            self.spaces.pop(key[1], None)
            return
        move = read_move(text(at(obj, "metadata", "annotations", MOVED)))
        self.spaces[key[1]] = Space(text(labels[LANE_LABEL]), text(labels.get(MODE_LABEL)), move)

    def saw_node(self, key: Key, obj: Object | None) -> None:
        """A Node was made or changed; None: it is gone."""
        with self._lock:
            self._nodes.add(key[1])
        if obj is None:
            self.labels.pop(key[1], None)
        else:
            self.labels[key[1]] = mapping(at(obj, "metadata", "labels"))

    def saw_claim(self, _: Key, obj: Object) -> None:
        """A claim was made or changed."""
        claim = read_claim(obj)
        if claim is not None:
            with self._lock:
                self._batch.claims[claim.number] = claim

    def saw_pod(self, key: Key, obj: Object | None) -> None:
        """A Pod was made or changed; None: it is gone."""
        now = self._now()
        pod = None if obj is None else read_pod(obj, now)
        if pod is None and key not in self._uids:
            return
        with self._lock:
            before = self._uids.get(key)
            if before is not None and (pod is None or pod.uid != before):
                del self._uids[key]
                self._batch.gone[before] = now
            if pod is not None:
                self._uids[key] = pod.uid
                self._batch.pods[pod.uid] = pod.after(self._batch.pods.get(pod.uid))

    def _saw_unprepared(self, _: Key, event: Object) -> None:
        about = mapping(event.get("involvedObject"))
        if about.get("kind") == "Pod":
            self._batch.unprepared[text(about.get("uid"))] = text(about.get("namespace")), text(about.get("name"))

    def _saw_denial(self, _: Key, event: Object) -> None:
        denial = read_denial(event)
        if denial is not None:
            self._denials[denial.owner, denial.hour] = denial
            if len(self._denials) > DENIALS:  # who does not lead is asked for none, and anybody may write such Events
                del self._denials[next(iter(self._denials))]

    # -- what is asked ------------------------------------------------------------------------------------------------

    def take(self) -> Batch:
        """What was heard of since this was last asked."""
        with self._lock:
            batch, self._batch = self._batch, Batch()
            # Of what an Event is about, its namespace is all that the API server holds it to.
            batch.unprepared = {
                uid: key for uid, key in batch.unprepared.items() if self._uids.get(key) == uid or uid in batch.gone
            }
        return batch

    def take_denials(self, most: int) -> list[Denial]:
        """So many of the denials that were heard of."""
        with self._lock:
            return [self._denials.pop(one) for one in list(self._denials)[:most]]

    def take_nodes(self) -> set[str]:
        """The nodes that changed since this was last asked."""
        with self._lock:
            nodes, self._nodes = self._nodes, set()
        return nodes

    def alive(self) -> set[str]:
        """The UIDs of all Pods with devices that are there."""
        with self._lock:
            return set(self._uids.values())
