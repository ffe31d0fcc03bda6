"""What became of Pods while their namespaces changed lanes, from the API server's audit log alone; knows nothing of the
gate's code.

Beside what `audited` reads it looks at the log's lines themselves: creates that were refused, bindings, evictions, and
who changed the labels of namespaces and the switch in the Gate. An instant is when the API server answered.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from controlplane.api import Object
from proofs.audited import FINISHED, Caps, Judge, Write, asks, is_held, named, unanswered, writes

DRA, PLUGIN = "dra", "device-plugin"
LANE = "dra-gate.io/lane"  # label of namespaces, annotation of Pods
OURS = "system:serviceaccount:dra-gate:"
FOLLOWED = 1.0  # seconds after which no verdict may be of the lane before
SOON = 10.0  # seconds: a lane that goes forward again within them may leave everybody as they were
IN_FLIGHT = 2.0  # seconds in which a grant that was under way may still reach its Pod
_MADE_FOR_RESOURCE = "resource.kubernetes.io/extended-resource-claim"  # on claims that the scheduler makes by itself
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """A node: which pool it is in, its devices' model and how many there are."""

    lane: str
    model: str
    devices: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A tenant: what it may hold, what its policy says of held Pods, and which models it may get."""

    caps: Caps
    held: Literal["recreate", "keep", "release"] = "recreate"
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Seen:
    """A Pod that was let in; `by_controller`: its owner's made it. `bound` is None for one that never was."""

    lane: str
    by_controller: bool
    born: float
    bound: float | None


@dataclass
class Turn:
    """A namespace that went over to a lane. `last` and `first` are seconds: when the last Pod came in that got the lane
    before, and when the first one was answered that got the new one.
    """

    namespace: str
    lane: str
    at: float
    by: str
    last: float = 0.0
    first: float | None = None


@dataclass
class Waited:
    """A Pod in lane dra that had no devices when its namespace went back, and what came of it."""

    uid: str
    pod: str
    tenant: str
    at: float
    held: bool  # by our gate; else nothing held it any more
    late: bool  # its claims are written at the grant, and can be taken away; else they come from a template
    owner: str  # UID of its controller; empty without one
    end: str = ""


@dataclass
class _Life:
    """What the log says of one Pod, each time the first: `taken` is when it was asked away, `by` whom and how."""

    write: Write  # its creation
    last: Write
    spec: Object
    held: bool
    let_go: float | None = None
    bound: float | None = None
    finished: float | None = None
    taken: float | None = None
    by: str = ""
    gone: float | None = None

    @property
    def uid(self) -> str:
        return str(self.write.obj["metadata"]["uid"])

    @property
    def owner(self) -> str:
        owners = self.write.obj["metadata"].get("ownerReferences", [])
        return next((str(one["uid"]) for one in owners if one.get("controller")), "")

    @property
    def lane(self) -> str:
        return _lane(self.write.obj)


@dataclass
class Found:
    """The verdict. What must not be is said in words, one each."""

    pods: list[Seen] = field(default_factory=list)  # all that were let in
    refused: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    strayed: list[str] = field(default_factory=list)  # to a node, or to a lane, that is not theirs
    twice: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    unaccounted: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    waited: list[Waited] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        return [*self.refused, *self.touched, *self.strayed, *self.twice, *self.over, *self.unaccounted]


class LaneJudge:
    """Reads a whole log; `judge` has what each tenant held at each instant, in both currencies."""

    def __init__(self, tenants: Mapping[str, Rule], nodes: Mapping[str, Place]) -> None:
        models = {name: place.model for name, place in nodes.items()}
        self.judge = Judge({name: rule.caps for name, rule in tenants.items()}, models)
        self.found = Found()
        self._tenants, self._nodes = tenants, nodes
        self._tenant_of = {one: name for name, rule in tenants.items() for one in rule.caps.namespaces}
        self._lives: dict[str, _Life] = {}  # by UID
        self._names: dict[Name, str] = {}  # the UID that has the name now
        self._lanes: dict[str, list[tuple[float, str, str]]] = {one: [] for one in self._tenant_of}  # since, lane, by
        self._on: dict[str, dict[str, int]] = {name: {} for name in nodes}  # node -> UID -> devices by plugin

    def run(self, events: Iterable[Object]) -> Found:
        """All of the log."""
        log = [one for one in events if one["stage"] == "ResponseComplete" and "objectRef" in one
               and "dryRun=" not in one["requestURI"]]  # fmt: skip
        self._turns(log)
        self.judge.unanswered = unanswered(log)
        for event in log:
            if _what(event) == "create pods" and event["responseStatus"]["code"] >= 300:
                self._refused(event)
        lines = sorted(filter(_is_line, log), key=lambda one: _time(one, "stageTimestamp"), reverse=True)
        for write in writes(log):
            while lines and _time(lines[-1], "stageTimestamp") <= write.at:
                self._line(lines.pop())
            self.judge.take(write)
            if write.kind == "Pod":
                self._pod(write)
            elif write.kind == "ResourceClaim" and _MADE_FOR_RESOURCE in write.obj["metadata"].get("annotations", {}):
                self.found.strayed.append(f"{named(write)} was made by {write.user} for a resource's name")
        while lines:
            self._line(lines.pop())
        received = {event["auditID"]: _time(event, "requestReceivedTimestamp") for event in log
                    if _what(event) == "create pods"}  # fmt: skip
        for event in log:
            if event["auditID"] in received and event["responseStatus"]["code"] < 300:
                self._verdict(event, received[event["auditID"]])
        for turn in self.found.turns:
            if turn.lane == PLUGIN:
                self._account(turn)
        self.found.pods = [
            Seen(life.lane, life.write.user.startswith("system:"), life.write.at, life.bound)
            for life in self._lives.values()
        ]
        self.found.over = [text for account in self.judge.accounts.values() for text in account.violations]
        self.found.twice += self.judge.faults
        return self.found

    # -- lanes --------------------------------------------------------------------------------------------------------

    def _turns(self, log: Iterable[Object]) -> None:
        """The lane of each namespace over time: the switch of its tenant or of all, else its label."""
        labels: dict[str, str] = {}
        switch: Object = {}
        for event in sorted(_answers(log, ("namespaces", "gates")), key=_revision):
            obj, resource = event["responseObject"], event["objectRef"]["resource"]
            if resource == "namespaces":
                labels[obj["metadata"]["name"]] = obj["metadata"].get("labels", {}).get(LANE, "")
            else:
                switch = obj.get("spec", {}).get("lane", {})
            tenants = {one["name"]: one.get("lane", "") for one in switch.get("tenants", [])}
            for name, since in self._lanes.items():
                if name not in labels:
                    continue
                lane = tenants.get(self._tenant_of[name], switch.get("override", "")) or labels[name]
                if not since or since[-1][1] != lane:
                    since.append((_time(event, "stageTimestamp"), lane, event["user"]["username"]))
        for name, since in self._lanes.items():
            self.found.turns += [Turn(name, lane, at, by) for at, lane, by in since[1:]]
        self.found.turns.sort(key=lambda turn: turn.at)

    def _lane_at(self, namespace: str, when: float) -> tuple[float, str]:
        """The namespace's lane then and since when it was that."""
        since = self._lanes[namespace]
        number = bisect_right(since, when, key=lambda one: one[0])
        return since[number - 1][:2] if number else (when, "")

    def _verdict(self, event: Object, received: float) -> None:
        """A Pod that was let in: by a lane that counted while its create was under way, but just after a turn."""
        namespace, answered = event["objectRef"]["namespace"], _time(event, "stageTimestamp")
        if namespace not in self._tenant_of:
            return
        pod = event["responseObject"]
        got, (since, lane) = _lane(pod), self._lane_at(namespace, received)
        turns = [one for one in self.found.turns if one.namespace == namespace and since <= one.at <= answered]
        reached = next((one for one in turns if one.lane == got), None)
        if reached is not None:
            reached.first = answered - reached.at if reached.first is None else reached.first
        if got in (lane, *(one.lane for one in turns)):
            return
        if turns:
            turns[0].last = max(turns[0].last, received - since)
        if not turns or received - since > FOLLOWED:
            self.found.strayed.append(f"Pod {namespace}/{pod['metadata']['name']} was let in as {got} "
                                      f"{received - since:.1f} s after its namespace went to {lane}")  # fmt: skip

    # -- Pods ---------------------------------------------------------------------------------------------------------

    def _refused(self, event: Object) -> None:
        reference, status = event["objectRef"], event["responseStatus"]
        if reference.get("namespace") in self._tenant_of:
            self.found.refused.append(f"create in {reference['namespace']} by {event['user']['username']}: "
                                      f"{status['code']} {status.get('message', '')[:300]}")  # fmt: skip

    def _pod(self, write: Write) -> None:
        metadata, spec = write.obj["metadata"], write.obj["spec"]
        if metadata["namespace"] not in self._tenant_of:
            return
        life = self._lives.get(metadata["uid"])
        if life is None:
            life = self._lives[metadata["uid"]] = _Life(write, write, spec, is_held(write.obj))
            self._names[metadata["namespace"], metadata["name"]] = metadata["uid"]
        life.last = write
        if life.held and life.let_go is None and not is_held(write.obj):
            life.let_go = write.at
        node = spec.get("nodeName")
        if node is not None:
            self._stands(write, node)
        ours = write.user.startswith(OURS)
        if ours and node is not None and life.finished is None:  # not `bound`: answers overtake one another
            if write.verb == "delete":
                self.found.touched.append(f"{named(write)} was deleted by {write.user} while it was bound")
            elif _without_node(life.spec) != _without_node(spec):
                self.found.touched.append(f"the spec of {named(write)}, which was bound, was changed by {write.user}")
        life.spec = spec
        if write.obj.get("status", {}).get("phase") in FINISHED and life.finished is None:
            life.finished = write.at
        if write.verb == "delete" and life.taken is None:
            life.taken, life.by = write.at, write.user
        if write.gone:
            life.gone = write.at

    def _stands(self, write: Write, node: str) -> None:
        """On a node of its lane that has one of its models, and no node gives more devices than it has."""
        place, lane = self._nodes[node], _lane(write.obj)
        models = self._tenants[self._tenant_of[write.obj["metadata"]["namespace"]]].models
        on, uid = self._on[node], write.obj["metadata"]["uid"]
        if write.gone or write.obj.get("status", {}).get("phase") in FINISHED:
            on.pop(uid, None)
            return
        if uid in on:
            return
        on[uid] = asks(write.obj)
        if place.lane != lane or place.model not in models:
            self.found.strayed.append(f"{named(write)} of lane {lane} is on {node} of pool {place.lane}, {place.model}")
        if sum(on.values()) > place.devices:
            self.found.twice.append(f"{node} has {place.devices} devices and Pods with {sum(on.values())} on it")

    def _line(self, event: Object) -> None:
        """A binding or an eviction: the log has them without the Pod."""
        reference, at, user = event["objectRef"], _time(event, "stageTimestamp"), event["user"]["username"]
        uid = self._names.get((reference.get("namespace", ""), reference.get("name", "")))
        if uid is None:
            return
        life = self._lives[uid]
        if reference["subresource"] == "binding":
            life.bound = life.bound or at
            return
        if life.taken is None:
            life.taken, life.by = at, f"{user} by eviction"
        if life.bound is None and life.gone is None:
            life.gone = at  # nobody has to end it first
            self.judge.take(replace(life.last, at=at, verb="evict", user=user, gone=True))
        elif user.startswith(OURS) and life.finished is None:
            self.found.touched.append(f"{named(life.last)} was evicted by {user} while it was bound")

    # -- who waited when the lane went back ---------------------------------------------------------------------------

    def _account(self, turn: Turn) -> None:
        later = [one for one in self.found.turns if one.namespace == turn.namespace and one.at > turn.at]
        forward = next((one.at for one in later if one.lane == DRA), float("inf"))
        tenant = self._tenant_of[turn.namespace]
        for life in self._lives.values():
            metadata = life.write.obj["metadata"]
            there = life.write.at <= turn.at < min(one for one in (life.taken, life.gone, life.finished, float("inf"))
                                                   if one is not None)  # fmt: skip
            has = life.bound, self.judge.allocated_at.get(life.uid)
            stands = any(since is not None and since <= turn.at for since in has)
            if metadata["namespace"] != turn.namespace or life.lane != DRA or not there or stands:
                continue
            held = life.held and (life.let_go is None or life.let_go > turn.at)
            pod = f"{turn.namespace}/{metadata['name']}"
            late = any("resourceClaimName" in one for one in life.spec.get("resourceClaims", []))
            waited = Waited(life.uid, pod, tenant, turn.at, held, late, life.owner)
            self.found.waited.append(waited)
            wrong = self._end(waited, life, forward)
            if wrong:
                self.found.unaccounted.append(f"Pod {pod} ({life.uid}), which waited when its lane went back, {wrong}")

    def _end(self, waited: Waited, life: _Life, forward: float) -> str:
        """Sets what came of it, and says what is wrong with that."""
        rule = self._tenants[waited.tenant].held
        went = life.let_go if waited.held else life.bound
        if went is not None and went <= waited.at + IN_FLIGHT:
            waited.end = "was just being granted" if waited.held else "was just being bound"
            return ""
        if life.taken is not None and (went is None or life.taken < went) and life.taken < forward:
            waited.end = f"taken away by {life.by}"
            if not life.by.startswith(OURS):
                return ""  # its owner's business
            after = [one for one in self._lives.values() if one.owner == life.owner and one.write.at >= life.taken]
            if rule != "recreate" or not life.owner:
                return f"was taken away by {life.by} and should not have been"
            if not after:
                return "was taken away and nobody made it again"
            waited.end = "recreated"
            return ""
        if went is not None and went < forward:
            waited.end = "released"
            free = not waited.held and not waited.late and (rule == "keep" or not waited.owner)  # nothing can hold it
            return "" if rule == "release" or free else f"went on {went - waited.at:.1f} s after that"
        waited.end = "kept"
        if went is None and life.taken is None and life.finished is None and forward < float("inf"):
            return "was never let go again"
        again = rule == "recreate" and waited.owner and forward > waited.at + SOON
        return "was kept and should have been made again" if again else ""


# -- lines of the log -------------------------------------------------------------------------------------------------


def _answers(log: Iterable[Object], resources: Iterable[str]) -> Iterator[Object]:
    """The lines of writes to these resources that took effect and whose answer is there."""
    for event in log:
        kind = (event.get("responseObject") or {}).get("kind")
        right = event["responseStatus"]["code"] < 300 and event["verb"] != "deletecollection"
        if right and event["objectRef"].get("resource") in resources and kind in ("Namespace", "Gate"):
            yield event


def _is_line(event: Object) -> bool:
    return _what(event) in ("create pods/binding", "create pods/eviction") and event["responseStatus"]["code"] < 300


def _what(event: Object) -> str:
    reference = event["objectRef"]
    return f"{event['verb']} {'/'.join(filter(None, (reference.get('resource'), reference.get('subresource'))))}"


def _revision(event: Object) -> int:
    return int(event["responseObject"]["metadata"]["resourceVersion"])


def _time(event: Object, field: str) -> float:
    return dt.datetime.fromisoformat(event[field]).timestamp()


def _lane(pod: Object) -> str:
    return str(pod["metadata"].get("annotations", {}).get(LANE, "none"))


def _without_node(spec: Object) -> Object:
    """Of a spec what neither the scheduler nor time changes."""
    return {word: value for word, value in spec.items() if word not in ("nodeName", "tolerations")}
