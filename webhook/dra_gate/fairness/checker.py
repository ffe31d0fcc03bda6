"""Says from the arbiter's log alone whether its promises were kept. It shares no code with the arbiter.

What is promised is in docs/decisions/0033-arbiter.md; what a violation of each means in RULES. The log is read once,
line by line: each goes into the books (`books.py`), and a decision is judged by them as they were before it. What is
kept here is bounded by the pairs of tenants that wait for one model.

A request *contends* for a model if it could be granted that model now: complete, within its tenant's caps, allowed the
model by its fallback, fitting into what is free beside all open grants at their worst, and no better candidate is to be
had like that. It *waits* for a model if it can be granted none, and that is the first it could ever have. In both cases
it has a tier there. All promises about order are about such requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, field

from dra_gate.fairness.books import Books, Open, Request, Size
from dra_gate.fairness.events import (
    SCALE,
    AnyLine,
    Capacity,
    Config,
    Granted,
    Held,
    Left,
    Opened,
    Pass,
    Revised,
    Settled,
    State,
    Tags,
    Used,
)

RULES = {
    "sequence": "A line of the log is missing, or can't be read.",
    "conservation": "Something was granted that did not wait, granted twice, or settled though it was not open.",
    "account": "The tenant's account, or what was free, is not what the decision says.",
    "cap": "A tenant was given more than its quota allows, open grants at their worst case.",
    "release": "More was granted than is free beside open grants at their worst case and reserves that are not lent.",
    "tier": "A grant was said to be within the tenant's share and was not, or the other way round.",
    "inversion": "A tenant above its share was given what one below its share contended for.",
    "bound": "Of two tenants that contended one got more than its weight allows, by more than a request of each.",
    "age": "What was to be kept for a request that had waited for long, in its turn, was given to another.",
    "fallback": "A request was given a candidate before its fallback allowed it.",
    "lease": "A grant above the share runs without the tenant's lease, or one within it has one.",
    "tag": "A grant cost less in its queue than its devices by the tenant's weight.",
    "group": "A group was not granted whole, at once and with one model.",
    "clock": "A decision was dated otherwise than the pass that made it.",
}


class Violation(Struct, frozen=True):
    """`rule` is one of RULES, `text` says what was found, with its numbers."""

    sequence: int
    rule: str
    text: str


def check(lines: Iterable[bytes]) -> Iterator[Violation]:
    """What a log violates, in its order. Several files of one log are read as one, oldest first."""
    checker = Checker()
    for line in lines:
        yield from checker.feed(line)


class _Pair(Struct):
    """How far the first of two tenants is ahead of the second in one interval: devices times the other's weight."""

    ahead: int = 0
    least: int = 0
    most: int = 0
    largest: dict[str, int] = field(default_factory=dict)  # by tenant: its largest request, in devices


class _Queue(Struct):
    """The fair queue of a model: start tag of its last grant, each tenant's finish tag, each pair's interval."""

    now: int = 0
    places: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, dict[str, _Pair]] = field(default_factory=dict)

    def part(self, tenant: str) -> None:
        """Its intervals end."""
        for other in self.pairs.pop(tenant, {}):
            del self.pairs[other][tenant]


class Checker:
    """Reads a log as it is written. `granted` counts Pods, `compared` how often two tenants' service was compared."""

    def __init__(self) -> None:
        self.granted = self.compared = 0
        self._decoder = msgspec.json.Decoder(AnyLine)
        self._found: list[Violation] = []
        self._sequence = -1
        self._reset(0)

    def _reset(self, at: int) -> None:
        self._books = Books(at)
        self._queues: dict[str, _Queue] = {}
        self._unit: set[str] = set()  # members of a group that are still to be granted, right now

    @property
    def pods(self) -> int:
        """Pods that are kept: they wait, or their grant is open."""
        return len(self._books.where) + len(self._books.open)

    def feed(self, raw: bytes) -> list[Violation]:
        """What this line violates, given those before it."""
        self._found = []
        try:
            line = self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            return [Violation(self._sequence + 1, "sequence", f"The line can't be read: {error}.")]
        expected, self._sequence = self._sequence + 1, line.sequence
        if line.sequence != expected and expected:
            self._say("sequence", f"Line {expected} was to follow, not {line.sequence}.")
        if self._unit and not (isinstance(line, Granted) and line.uid in self._unit):
            self._say("group", f"{len(self._unit)} members were left behind, {min(self._unit)} among them.")
            self._unit = set()
        self._take(line)
        return self._found

    def _take(self, line: AnyLine) -> None:
        books = self._books
        match line:
            case State():
                self._state(line)
            case Config():
                books.rule(line)
                for queue in self._queues.values():
                    queue.pairs.clear()
            case Capacity():
                books.stock(line)
            case Held():
                books.hold(line)
            case Left():
                books.forget(line.uid)
            case Used():
                books.use(line)
            case Opened():
                self._opened(line)
            case Settled():
                self._settled(line)
            case Tags():
                self._tags(line)
            case Pass():
                books.at = line.at
            case Granted():
                self._grant(line)
            case Revised():
                self._revise(line)

    def _say(self, rule: str, text: str) -> None:
        self._found.append(Violation(self._sequence, rule, text))

    # -- what the arbiter was told ------------------------------------------------------------------------------------

    def _state(self, line: State) -> None:
        books = self._books
        if (
            line.config is not None
            and books.config.models
            and {one.request.uid for one in line.open} != set(books.open)
        ):
            self._say("conservation", "A new file begins with other open grants than the one before ended with.")
        self._reset(books.at)
        for told in (line.config, line.capacity, *line.waiting, *line.open, *line.used, *line.tags):
            if told is not None:
                self._take(told)

    def _opened(self, line: Opened) -> None:
        if line.request.uid in self._books.open:
            self._say("conservation", f"{line.request.uid} is open already.")
            return
        self._books.grant(Open(line.request, line.model, line.candidates, line.left))

    def _settled(self, line: Settled) -> None:
        one = self._books.open.get(line.uid)
        if one is None:
            self._say("conservation", f"{line.uid} was settled and is not open.")
            return
        self._books.close(one)
        if one.model and line.model != one.model:  # a refund: its place in both queues moves
            tenant, paid = one.pod.tenant, self._books.price(one.pod.tenant, Size.of(one.pod).total)
            for model, cost in ((one.model, -paid), (line.model, paid)) if line.model else ((one.model, -paid),):
                queue = self._queue(model)
                queue.part(tenant)
                place = queue.places.get(tenant, 0)
                queue.places[tenant] = max(place, queue.now) + cost if cost > 0 else max(0, place + cost)

    def _tags(self, line: Tags) -> None:
        for model, (start, finish) in line.tags.items():
            queue = self._queue(model)
            queue.part(line.tenant)
            queue.now = max(queue.now, start)
            queue.places[line.tenant] = finish

    def _queue(self, model: str) -> _Queue:
        return self._queues.setdefault(model, _Queue())

    # -- what it decided ----------------------------------------------------------------------------------------------

    def _grant(self, line: Granted) -> None:
        books = self._books
        self.granted += 1
        request = books.where.get(line.uid)
        if request is None or line.tenant not in books.config.tenants:
            said = "is open already" if line.uid in books.open else "did not wait"
            self._say("conservation", f"{line.uid} of {line.tenant} was granted and {said}.")
            return
        pod = request.pods[line.uid]
        size = Size.of(pod)
        true = (pod.tenant, pod.queued, size.total, pod.group)
        if (line.tenant, line.queued, line.devices, line.group) != true:
            self._say("conservation", f"{line.uid} was granted as another request than the one that waits.")
            return
        if line.at != books.at:
            self._say("clock", f"{line.uid} was decided at {line.at} in a pass at {books.at}.")
        if not self._unit:
            if pod.group:
                self._unit = set(request.pods)
                if not request.complete:
                    self._say("group", f"{len(request.pods)} of {pod.members} of {pod.group} were there.")
            self._turn(line, request)
        self._unit.discard(line.uid)
        self._one_model(line, pod)
        self._accounted(line, pod, size)
        books.grant(Open(pod, line.model, line.candidates))
        if line.model:
            self._queue(line.model).places[line.tenant] = line.finish

    def _one_model(self, line: Granted, pod: Held) -> None:
        """A group gets one model."""
        if pod.group and line.candidates not in ((line.model,), ()):
            self._say("group", f"{line.uid} of {pod.group} may have {', '.join(line.candidates)}.")
        if pod.only and line.model and (line.model != pod.only or set(line.candidates) - {pod.only}):
            self._say("group", f"{line.uid} was given {line.model}, and its group has {pod.only}.")

    def _accounted(self, line: Granted, pod: Held, size: Size) -> None:
        """What it costs, what is free and what its tenant holds is as the line says, and no cap is passed."""
        books = self._books
        if line.model and line.finish - line.start < books.price(line.tenant, size.total):
            self._say("tag", f"{line.uid}: {size.total} devices moved the tag by {line.finish - line.start}.")
        kinds = books.kinds(line.model, books.needs(pod.policy, line.model) or 0)
        view = books.free(kinds), sum(one * count for one, count in books.claims(kinds))
        if line.model and (line.free, line.open) != view:
            self._say("account", f"{line.uid}: {line.free} free and {line.open} spoken for, and it is {view}.")
        before, cost = books.held[line.tenant], size.cost(line.candidates)
        if capped := books.capped(line.tenant, cost):
            self._say("cap", f"{line.uid} of {line.tenant}: {capped}.")
        after = Counter(before)
        after.update(cost)
        for told, counted in ((line.before, before), (line.after, after)):
            if Counter({"": told.devices, **told.models}) != counted:  # what is missing is 0 to a Counter
                self._say("account", f"{line.uid} of {line.tenant}: {told}, and it is {dict(counted)}.")

    def _possible(self, uid: str, policy: str, size: Size, model: str, kept: int = 0) -> None:
        """What may be taken is there, beside what others may take."""
        books = self._books
        needs = books.needs(policy, model)
        if needs is None:
            self._say("release", f"{uid}: {model} is no candidate of {policy}.")
        elif not books.fits(kinds := books.kinds(model, needs), size, kept):
            taken = ", ".join(f"{count} of {one}" for one, count in books.claims(kinds)) or "none"
            asked = f"{size.total} {model} ({size.pods} x {size.home})"
            self._say("release", f"{uid}: {asked} of {books.free(kinds)} free, {kept} kept, open grants: {taken}.")

    def _revise(self, line: Revised) -> None:
        books = self._books
        one = books.open.get(line.uid)
        if one is None or not line.candidates or one.pod.group:
            self._say("conservation", f"{line.uid} was revised and is not open, or all of one model.")
            return
        if one.pod.only and set(line.candidates) != {one.pod.only}:
            self._say("group", f"{line.uid} may have {', '.join(line.candidates)}, and its group has {one.pod.only}.")
        books.close(one)
        size = Size.of(one.pod)
        for model in set(line.candidates) - set(one.candidates):
            if capped := books.capped(one.pod.tenant, {model: size.late}):
                self._say("cap", f"{line.uid} of {one.pod.tenant}, revised: {capped}.")
            self._possible(line.uid, one.pod.policy, size, model)
        left = tuple({*one.candidates, *one.left} - {*line.candidates})
        books.grant(Open(one.pod, one.model, line.candidates, left))

    # -- order --------------------------------------------------------------------------------------------------------

    def _turn(self, line: Granted, request: Request) -> None:
        """Whether it was this request's turn: the first line of a group stands for all of it."""
        books = self._books
        rules, size = books.config.tenants[line.tenant], request.size
        if not rules.weight:
            return
        tier = books.tier(line.tenant, line.model, size)
        if line.tier != tier:
            share = books.share(line.tenant, line.model)
            self._say("tier", f"{line.uid}: {size.late} more make it tier {tier} in a share of {share} {line.model}.")
        if line.lease != (rules.lease if tier else 0):
            self._say("lease", f"{line.uid}: {line.lease} s in tier {tier}, and {line.tenant} has {rules.lease}.")
        aged = books.overdue(request)
        if aged != line.aged:
            self._say("age", f"{line.uid} has waited for {line.at - line.queued} of {rules.reserve_after} ms.")
        if line.model not in books.allowed(request, size):
            self._say("fallback", f"{line.uid} has waited for {line.at - line.queued} ms and was given {line.model}.")
        kept = books.kept_from(line.tenant, line.model) if tier else 0
        self._possible(line.uid, request.policy, size, line.model, kept)
        age, contending, old = request.age(), set(), []
        for other in [one for requests in books.requests.values() for one in requests.values() if one is not request]:
            place, below = books.place(other, line.model if tier else "", saves=other.tenant != line.tenant)
            if below and other.tenant != line.tenant:
                self._say(
                    "inversion", f"{line.uid} is above a share of {line.model}, {other.age()[1]} would be within."
                )
            if place is None or place.model != line.model:
                continue
            if place.fits and place.tier == tier:
                contending.add(other.tenant)
                if other.tenant == line.tenant:
                    age = min(age, other.age())  # by priority a tenant gives its turn to another request of its own
            if books.overdue(other) and (place.tier == tier or (place.tier < tier and not place.fits)):
                old.append((other, place.tier))
        queue = self._queue(line.model)
        for other, its_tier in old:
            turn = max(queue.now, queue.places.get(other.tenant, 0)), *other.age()
            if other.tenant != line.tenant and (its_tier < tier or turn < (line.start, *age)):
                self._say("age", f"{line.uid} was granted before {turn[2]}, which waits since {turn[1]}, in its turn.")
        self._compare(line, size.total, contending - {line.tenant})

    def _compare(self, line: Granted, size: int, contending: set[str]) -> None:
        """The bound, for the tenant that was granted and each that contends. For others the interval ends."""
        queue = self._queue(line.model)
        for tenant in [one for one in queue.pairs if one != line.tenant and one not in contending]:
            queue.part(tenant)
        for tenant in contending:
            self._serve(queue, line, size, tenant)
        queue.now = max(queue.now, line.start)

    def _serve(self, queue: _Queue, line: Granted, size: int, other: str) -> None:
        """The tenant that was granted got so many devices while the other one contended."""
        self.compared += 1
        mine = line.tenant
        weight, others = self._books.config.tenants[mine].weight, self._books.config.tenants[other].weight
        pair = queue.pairs.setdefault(mine, {}).get(other)
        if pair is None:
            pair = _Pair(largest={one: self._lead(queue, one) for one in (mine, other)})
            queue.pairs[mine][other] = queue.pairs.setdefault(other, {})[mine] = pair
        pair.ahead += size * others if mine < other else -size * others
        pair.least, pair.most = min(pair.least, pair.ahead), max(pair.most, pair.ahead)
        pair.largest[mine] = max(pair.largest[mine], size)
        bound = pair.largest[mine] * others + pair.largest[other] * weight
        if pair.most - pair.least > bound:
            apart = f"{pair.most - pair.least} of at most {bound} apart, in devices times both weights"
            self._say("bound", f"{line.model}: {mine} (weight {weight}) and {other} (weight {others}) are {apart}.")
            queue.part(other)

    def _lead(self, queue: _Queue, tenant: str) -> int:
        """Devices that the tenant is ahead by as an interval begins: of its last request, which may be of before."""
        ahead = max(0, queue.places.get(tenant, 0) - queue.now)
        return -(-ahead * self._books.config.tenants[tenant].weight // SCALE)
