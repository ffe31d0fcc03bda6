"""A cluster in simulated time around the arbiter, and around two queues that know no tenants.

Everything is drawn from one seed. The arbiter is driven as the controller drives it: told what changed, asked in
passes, its grants settled some time later; it dies and comes back from what the ledgers have; its clock jumps. What
it is told and decides goes to the checker as it is written. Times are milliseconds, devices are counts.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.checker import Checker, Violation
from dra_gate.fairness.events import (
    Capacity,
    Config,
    Granted,
    Held,
    Kind,
    Opened,
    PolicyRules,
    Settled,
    Tags,
    TenantRules,
    Used,
)
from dra_gate.fairness.log import Recorder

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
START = 1_800_000_000_000  # what the clock says at the beginning
DECISION, ALLOCATION = "decision", "allocation"


@dataclass(slots=True)
class Pod:
    """One Pod and what became of it. `candidates` in order; `lasts` is how long it runs, `given` the model it got."""

    uid: str
    tenant: str
    policy: str
    size: int
    arrives: int
    lasts: int
    group: str = ""
    members: int = 1
    priority: int = 0
    granted: int = -1
    begins: int = -1
    given: str = ""
    home: int = -1

    @property
    def wait(self) -> int:
        """From its creation to its grant."""
        return self.granted - self.arrives


@dataclass(slots=True)
class Home:
    """A node. `ill` devices are neither healthy nor free; one that falls ill in use runs on."""

    whole: int
    used: int = 0
    ill: int = 0

    @property
    def free(self) -> int:
        return max(0, self.whole - self.used - self.ill)


@dataclass(frozen=True)
class Scene:
    """What happens, beside what is decided. `homes`: devices of each node by model. `fails`: when, which model, which
    of its nodes, how many devices, until when. `jumps` move the clock by so much. `changes` are new rules."""

    name: str
    homes: Mapping[str, tuple[int, ...]]
    tenants: Mapping[str, TenantRules]
    policies: Mapping[str, PolicyRules]
    pods: tuple[Pod, ...]
    fails: tuple[tuple[int, str, int, int, int], ...] = ()
    crashes: tuple[int, ...] = ()
    jumps: tuple[tuple[int, int], ...] = ()
    changes: tuple[tuple[int, Mapping[str, TenantRules]], ...] = ()
    settles: tuple[int, int] = (200, 1_500)  # between grant and allocation

    def candidates(self, pod: Pod) -> tuple[str, ...]:
        """Of its policy, in order."""
        return tuple(one.model for one in self.policies[pod.policy].candidates)


class Fleet:
    """Homes by model."""

    def __init__(self, scene: Scene) -> None:
        self.homes = {model: [Home(whole) for whole in wholes] for model, wholes in scene.homes.items()}

    def room(self, model: str, size: int) -> list[int]:
        """Homes with so many free."""
        return [number for number, home in enumerate(self.homes[model]) if home.free >= size]

    def kinds(self) -> Capacity:
        """As the arbiter is told."""
        kinds = []
        for model, homes in self.homes.items():
            free = Counter(home.free for home in homes if home.free)
            whole = Counter(home.whole - home.ill for home in homes if home.whole > home.ill)
            healthy = sum(home.whole - home.ill for home in homes)
            kinds.append(Kind(model, 0, healthy, tuple(sorted(free.items())), tuple(sorted(whole.items()))))
        return Capacity(kinds=tuple(kinds))


Grant = tuple[str, tuple[str, ...]]  # Pod and the models that it may have now


class Queue(Protocol):
    """Who decides. `place` says where an allocation lands; queues without tenants choose that themselves."""

    def arrive(self, pod: Pod, clock: int) -> None: ...
    def allocated(self, pod: Pod) -> None: ...
    def ended(self, pod: Pod) -> None: ...
    def moved(self) -> None: ...
    def decide(self, clock: int) -> Iterator[Grant]: ...
    def wakes(self) -> int | None: ...


class Fair:
    """The arbiter, its log and the checker of its log."""

    def __init__(
        self, scene: Scene, fleet: Fleet, chance: random.Random, made: Callable[[], Arbiter], keep: bool
    ) -> None:
        self._scene, self._fleet, self._chance, self._made = scene, fleet, chance, made
        self._tenants = scene.tenants
        self.checker = Checker()
        self.violations: list[Violation] = []
        self.lines: list[bytes] = []
        self.restarts = 0
        self._keep = keep
        self._waiting: dict[str, Held] = {}
        self._used: dict[str, Counter[str]] = {}
        self._changed = True
        self._recorder = Recorder(made(), self._write)
        self._recorder.state()
        self._rules()

    def _write(self, line: bytes) -> None:
        if self._keep:
            self.lines.append(line)
        self.violations += self.checker.feed(line)

    def _rules(self) -> None:
        policies = self._scene.policies
        self._recorder.take(
            Config(digest="d", models=tuple(self._scene.homes), policies=policies, tenants=self._tenants)
        )

    def rules(self, tenants: Mapping[str, TenantRules]) -> None:
        """From now on."""
        self._tenants = tenants
        self._rules()

    def arrive(self, pod: Pod, clock: int) -> None:
        held = Held(
            uid=pod.uid,
            tenant=pod.tenant,
            policy=pod.policy,
            claims=(pod.size,),
            queued=clock,
            priority=pod.priority,
            group=pod.group,
            members=pod.members,
        )
        self._waiting[pod.uid] = held
        self._recorder.take(held)

    def _use(self, tenant: str) -> Used:
        used = +self._used.get(tenant, Counter())
        return Used(tenant=tenant, devices=sum(used.values()), models=dict(used))

    def allocated(self, pod: Pod) -> None:
        self._used.setdefault(pod.tenant, Counter())[pod.given] += pod.size
        self._recorder.take(Settled(uid=pod.uid, model=pod.given))
        self._recorder.take(self._use(pod.tenant))
        self._changed = True

    def ended(self, pod: Pod) -> None:
        self._used[pod.tenant][pod.given] -= pod.size
        self._recorder.take(self._use(pod.tenant))
        self._changed = True

    def moved(self) -> None:
        self._changed = True

    def decide(self, clock: int) -> Iterator[Grant]:
        if self._changed:
            self._recorder.take(self._fleet.kinds())
            self._changed = False
        for decision in self._recorder.decide(clock):
            if isinstance(decision, Granted):
                del self._waiting[decision.uid]
            yield decision.uid, decision.candidates

    def wakes(self) -> int | None:
        return self._recorder.arbiter.next_time()

    def crash(self, clock: int) -> None:
        """It dies, in every second case between a decision and the write of the ledgers, and comes back."""
        tenants = list(self._tenants)
        arbiter = self._recorder.arbiter
        open_grants: list[Opened] = [grant for name in tenants for grant in arbiter.open_grants(name)]
        tags = [Tags(tenant=name, tags=dict(found)) for name in tenants if (found := arbiter.tags(name))]
        if self._chance.random() < 0.5:
            self._recorder.decide(clock)  # said in the log, and never written
        self.restarts += 1
        self._recorder = Recorder(self._made(), self._write, self._recorder.sequence)
        self._recorder.state()
        self._rules()
        for told in (*tags, *(self._use(name) for name in self._used), *open_grants, *self._waiting.values()):
            self._recorder.take(told)
        self._changed = True


class Fifo:
    """Who came first goes first, to the first candidate that is free; `skips`: past those that find nothing."""

    def __init__(self, scene: Scene, fleet: Fleet, *, skips: bool) -> None:
        self._scene, self._fleet, self._skips = scene, fleet, skips
        self._waiting: deque[Pod] = deque()

    def arrive(self, pod: Pod, clock: int) -> None:
        self._waiting.append(pod)

    def allocated(self, pod: Pod) -> None: ...
    def ended(self, pod: Pod) -> None: ...
    def moved(self) -> None: ...

    def decide(self, clock: int) -> Iterator[Grant]:
        kept: deque[Pod] = deque()
        failed: set[tuple[str, int]] = set()
        while self._waiting:
            pod = self._waiting.popleft()
            if (pod.policy, pod.size) not in failed:
                model = next((one for one in self._scene.candidates(pod) if self._fleet.room(one, pod.size)), "")
                if model:
                    rooms = [(self._fleet.homes[model][n].free, n) for n in self._fleet.room(model, pod.size)]
                    pod.given, pod.home = model, min(rooms)[1]  # the tightest
                    self._fleet.homes[model][pod.home].used += pod.size
                    yield pod.uid, (model,)
                    continue
                failed.add((pod.policy, pod.size))
            kept.append(pod)
            if not self._skips:
                break
        self._waiting.extendleft(reversed(kept))

    def wakes(self) -> int | None:
        return None


@dataclass
class Run:
    """What came of a scene. `busy` and `there`: device-milliseconds used, and healthy, while somebody waited."""

    scene: Scene
    pods: dict[str, Pod]
    fair: Fair | None
    busy: int = 0
    there: int = 0
    ends: int = 0
    held: dict[str, int] = field(
        default_factory=dict
    )  # device-milliseconds that a tenant held while it waited for more
    wanted: dict[str, int] = field(default_factory=dict)  # milliseconds for which it waited
    lost: list[str] = field(default_factory=list)  # Pods that never went

    def waits(self, tenants: Iterable[str] = ()) -> list[int]:
        """Sorted, of these tenants or of all."""
        only = set(tenants)
        return sorted(pod.wait for pod in self.pods.values() if pod.granted >= 0 and (not only or pod.tenant in only))

    @property
    def use(self) -> float:
        """Of the healthy devices, while somebody waited."""
        return self.busy / max(1, self.there)

    @property
    def fallback(self) -> float:
        """Of Pods that got another model than their first."""
        got = [pod for pod in self.pods.values() if pod.given]
        return sum(pod.given != self.scene.candidates(pod)[0] for pod in got) / max(1, len(got))

    def overtaken(self) -> dict[str, int]:
        """By Pod: how many that came later went before it."""
        order = sorted(self.pods.values(), key=lambda pod: (pod.arrives, pod.uid))
        ranks = {pod.uid: rank for rank, pod in enumerate(order)}
        tree = [0] * (len(order) + 1)
        found = {}
        went = sorted((p for p in order if p.granted >= 0), key=lambda pod: (pod.granted, ranks[pod.uid]))
        for done, pod in enumerate(went):
            place, before = ranks[pod.uid] + 1, 0
            while place:
                before += tree[place]
                place &= place - 1
            found[pod.uid] = done - before
            place = ranks[pod.uid] + 1
            while place < len(tree):
                tree[place] += 1
                place += place & -place
        return found

    def jain(self) -> float:
        """Of what tenants held for each unit of weight while they waited for more; 1: all the same."""
        rates = [
            self.held.get(name, 0) / wanted / max(1, self.scene.tenants[name].weight)
            for name, wanted in self.wanted.items()
            if wanted > MINUTE
        ]
        squares = len(rates) * sum(rate * rate for rate in rates)
        return sum(rates) ** 2 / squares if squares else 1.0

    def served(self) -> Counter[tuple[str, str]]:
        """Device-milliseconds by tenant and model."""
        total: Counter[tuple[str, str]] = Counter()
        for pod in self.pods.values():
            if pod.begins >= 0:
                total[pod.tenant, pod.given] += pod.size * pod.lasts
        return total


def simulate(
    scene: Scene,
    queue: str = "fair",
    seed: int = 0,
    *,
    made: Callable[[], Arbiter] = Arbiter,
    keep: bool = False,
    until: str = "",
) -> Run:
    """Until nothing happens any more, or the checker finds this rule broken. `queue`: fair, fifo or greedy. `keep`
    keeps the log's lines."""
    chance = random.Random(f"{scene.name} {seed}")
    fleet = Fleet(scene)
    fair = Fair(scene, fleet, chance, made, keep) if queue == "fair" else None
    decider: Queue = fair or Fifo(scene, fleet, skips=queue == "greedy")
    pods = {one.uid: replace(one) for one in scene.pods}  # the scene's stay as they are
    run = Run(scene, pods, fair)
    serial = count()
    heap: list[tuple[int, int, str, object]] = []

    def at(when: int, what: str, subject: object) -> None:
        heappush(heap, (when, next(serial), what, subject))

    for pod in pods.values():
        at(pod.arrives, "arrives", pod)
    for when, model, home, devices, back in scene.fails:
        at(when, "fails", (model, home, devices))
        at(back, "heals", (model, home, devices))
    if fair:
        for when in scene.crashes:
            at(when, "crashes", None)
        for when, delta in scene.jumps:
            at(when, "jumps", delta)
        for when, tenants in scene.changes:
            at(when, "rules", tenants)
    may: dict[str, tuple[str, ...]] = {}
    waiting: Counter[str] = Counter()
    holding: Counter[str] = Counter()
    offset, now, planned = START, 0, -1
    while heap and not (until and fair and any(one.rule == until for one in fair.violations)):
        passed, before = heap[0][0] - now, now
        now = heap[0][0]
        if sum(waiting.values()):
            run.busy += passed * sum(home.used for homes in fleet.homes.values() for home in homes)
            run.there += passed * sum(
                max(home.used, home.whole - home.ill) for homes in fleet.homes.values() for home in homes
            )
            for tenant, number in waiting.items():
                if number:
                    run.wanted[tenant] = run.wanted.get(tenant, 0) + passed
                    run.held[tenant] = run.held.get(tenant, 0) + passed * holding[tenant]
        while heap and heap[0][0] == now:
            _, _, what, subject = heappop(heap)
            if what == "wakes" and planned == now:
                planned = -1
            if what == "arrives" and isinstance(subject, Pod):
                waiting[subject.tenant] += 1
                decider.arrive(subject, now + offset)
            elif what == "settles" and isinstance(subject, Pod):
                if not fair or _allocate(fleet, subject, may[subject.uid], chance):
                    subject.begins = now
                    holding[subject.tenant] += subject.size
                    decider.allocated(subject)
                    at(now + subject.lasts, "ends", subject)
                else:
                    at(now + SECOND, "settles", subject)
            elif what == "ends" and isinstance(subject, Pod):
                fleet.homes[subject.given][subject.home].used -= subject.size
                holding[subject.tenant] -= subject.size
                decider.ended(subject)
            elif what in ("fails", "heals") and isinstance(subject, tuple):
                model, home, devices = subject
                fleet.homes[model][home].ill += devices if what == "fails" else -devices
                decider.moved()
            elif what == "crashes" and fair:
                fair.crash(now + offset)
            elif what == "jumps" and isinstance(subject, int):
                offset += subject
            elif what == "rules" and fair and isinstance(subject, dict):
                fair.rules(subject)
        for uid, candidates in decider.decide(now + offset):
            pod = pods[uid]
            if uid not in may:
                pod.granted = now
                waiting[pod.tenant] -= 1
                at(now + chance.randint(*scene.settles), "settles", pod)
            may[uid] = candidates
        wake = decider.wakes()
        if wake is not None and (planned < 0 or max(now + 1, wake - offset) < planned):
            planned = max(now + 1, wake - offset)
            at(planned, "wakes", None)
        run.ends = before
    run.lost = [uid for uid, pod in pods.items() if pod.granted < 0]
    return run


def _allocate(fleet: Fleet, pod: Pod, candidates: tuple[str, ...], chance: random.Random) -> bool:
    """As the scheduler would: the first alternative that some node has, on any such node."""
    for model in candidates:
        if rooms := fleet.room(model, pod.size):
            pod.given, pod.home = model, chance.choice(rooms)
            fleet.homes[model][pod.home].used += pod.size
            return True
    return False
