"""What the checker has read in the arbiter's log: who waits, who holds what, what is there. It shares no code with the
arbiter, and finds no fault with anything: `checker.py` does that.

What is kept is bounded by what waits and what is open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from msgspec import Struct, field

from dra_gate.fairness.events import NEVER, NO_LIMIT, NOW, SCALE, Capacity, Config, Held, TenantRules, Used

MOST_OPEN = 1_000  # grants of one tenant, after which it gets no other


class Size(Struct, frozen=True):
    """What a request asks for. `late`: devices that a candidate is chosen for; `home`: at most on one node."""

    late: int
    total: int
    home: int
    pods: int
    fixed: Mapping[str, int]

    @classmethod
    def of(cls, *pods: Held) -> Size:
        """What these Pods ask for together."""
        fixed: Counter[str] = Counter()
        for pod in pods:
            fixed.update(pod.fixed_models)
        late, sizes = sum(sum(pod.claims) for pod in pods), [sum(pod.claims) + pod.fixed for pod in pods]
        return cls(late, sum(sizes), max(1, *sizes), len(pods), fixed)

    def cost(self, candidates: Iterable[str]) -> Mapping[str, int]:
        """What it holds at worst while it may get any of these models: devices by model, in all under ""."""
        cost = Counter(self.fixed)
        cost[""] = self.total
        for model in candidates:
            cost[model] += self.late
        return cost


class Request(Struct):
    """Pods of a tenant that are alike, any one of which may go; or the Pods of a group, which go together."""

    tenant: str
    policy: str
    group: str
    pods: dict[str, Held] = field(default_factory=dict)
    order: list[tuple[int, int, str]] = field(default_factory=list)  # heap; may name Pods that are gone

    def add(self, pod: Held) -> None:
        """Another Pod of it waits."""
        self.pods[pod.uid] = pod
        heappush(self.order, (-pod.priority, pod.queued, pod.uid))

    def age(self) -> tuple[int, str]:
        """Since when the first of them waits, and its UID: of a group the oldest."""
        if self.group:
            return min((pod.queued, pod.uid) for pod in self.pods.values())
        while (pod := self.pods.get(self.order[0][2])) is None or (-pod.priority, pod.queued) != self.order[0][:2]:
            heappop(self.order)
        return self.order[0][1:]

    def members(self) -> list[Held]:
        """The Pods that go at once."""
        return list(self.pods.values()) if self.group else [next(iter(self.pods.values()))]

    @property
    def size(self) -> Size:
        """What these ask for."""
        return Size.of(*self.members())

    @property
    def complete(self) -> bool:
        """Whether all members of its group are there, under one policy."""
        if not self.group:
            return True
        one_policy = len({pod.policy for pod in self.pods.values()}) == 1
        return one_policy and len(self.pods) >= max(pod.members for pod in self.pods.values())


class Open(Struct, frozen=True):
    """A grant whose claims are not allocated yet."""

    pod: Held
    model: str
    candidates: tuple[str, ...]
    left: tuple[str, ...] = ()  # what it could have had: a claim written before may be allocated yet


class Place(Struct, frozen=True):
    """Where a request contends (`fits`) or waits."""

    model: str
    tier: int
    fits: bool


class Books:
    """The books as of a line of the log. `at` is the time of the pass."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.config = Config(digest="", models=(), policies={}, tenants={})
        self.open: dict[str, Open] = {}
        self.requests: dict[str, dict[object, Request]] = {}  # by tenant and what makes them alike
        self.where: dict[str, Request] = {}  # by Pod
        self.held: dict[str, Counter[str]] = defaultdict(Counter)  # accounts: devices by model, in all under ""
        self._capacity = Capacity(kinds=())
        self._weights: Counter[str] = Counter()  # by model, of all who want it
        self._opened: Counter[str] = Counter()  # open grants by tenant
        self._used: dict[str, Used] = {}
        self._claimed: Counter[tuple[str, int, int]] = Counter()  # model, needs, devices -> open grants
        self._suited: dict[tuple[str, int], frozenset[int]] = {}
        self._fitting: dict[tuple[object, ...], bool] = {}

    # -- what is written in them --------------------------------------------------------------------------------------

    def rule(self, line: Config) -> None:
        """Other rules from now on."""
        self.config = line
        self._suited.clear()
        self._weights = Counter()
        for rules in line.tenants.values():
            for model in rules.wants:
                self._weights[model] += rules.weight
        self._claimed.clear()
        for one in self.open.values():
            self._claim(one, 1)

    def stock(self, line: Capacity) -> None:
        """Other devices from now on."""
        self._capacity = line
        self._suited.clear()
        self._fitting.clear()

    def hold(self, line: Held) -> None:
        """A Pod waits."""
        self.forget(line.uid)
        shape = (line.policy, line.only, sum(line.claims), line.fixed, tuple(sorted(line.fixed_models.items())))
        request = self.requests.setdefault(line.tenant, {}).setdefault(
            line.group or shape, Request(line.tenant, line.policy, line.group)
        )
        request.add(line)
        self.where[line.uid] = request

    def forget(self, uid: str) -> None:
        """A Pod waits no more."""
        request = self.where.pop(uid, None)
        if request is not None:
            del request.pods[uid]
            if not request.pods:
                mine = self.requests[request.tenant]
                self.requests[request.tenant] = {key: one for key, one in mine.items() if one is not request}

    def use(self, line: Used) -> None:
        """What a tenant holds beside its open grants."""
        held = self.held[line.tenant]
        if before := self._used.get(line.tenant):
            held.subtract({"": before.devices, **before.models})
        held.update({"": line.devices, **line.models})
        self._used[line.tenant] = line

    def grant(self, one: Open) -> None:
        """A grant is open from now on."""
        self.forget(one.pod.uid)
        self.open[one.pod.uid] = one
        self._charge(one, 1)

    def close(self, one: Open) -> None:
        """It is open no more."""
        del self.open[one.pod.uid]
        self._charge(one, -1)

    def _charge(self, one: Open, sign: int) -> None:
        """What its tenant holds, and what may be taken."""
        self._opened[one.pod.tenant] += sign
        held = self.held[one.pod.tenant]
        for model, count in Size.of(one.pod).cost((*one.candidates, *one.left)).items():
            held[model] += sign * count
        self._claim(one, sign)

    def _claim(self, one: Open, sign: int) -> None:
        self._fitting.clear()
        for model in one.candidates or ((one.model,) if one.model else ()):
            needs = self.needs(one.pod.policy, model)
            if needs is not None:
                self._claimed[model, needs, Size.of(one.pod).total] += sign

    # -- devices ------------------------------------------------------------------------------------------------------

    def needs(self, policy: str, model: str) -> int | None:
        """The bits that a kind of the model has to have; None: it is no candidate."""
        rules = self.config.policies.get(policy)
        return next((one.needs for one in rules.candidates if one.model == model), None) if rules else None

    def kinds(self, model: str, needs: int) -> frozenset[int]:
        """The kinds of the model that meet a policy's constraints."""
        found = self._suited.get((model, needs))
        if found is None:
            kinds = enumerate(self._capacity.kinds)
            found = frozenset(n for n, kind in kinds if kind.model == model and kind.holds & needs == needs)
            self._suited[model, needs] = found
        return found

    def claims(self, kinds: frozenset[int]) -> list[tuple[int, int]]:
        """Open grants that may take devices of these kinds: devices of each, how many there are."""
        claimed = self._claimed.items()
        return [(size, count) for (model, needs, size), count in claimed if count and kinds & self.kinds(model, needs)]

    def free(self, kinds: frozenset[int], size: int = 1) -> int:
        """How often so many devices are free on one node."""
        return sum(homes * (free // size) for number in kinds for free, homes in self._capacity.kinds[number].free)

    def fits(self, kinds: frozenset[int], size: Size, kept: int = 0) -> bool:
        """It fits beside all that is open, wherever that lands, and leaves `kept` devices."""
        key = (kinds, size.total, size.home, size.pods, kept)
        found = self._fitting.get(key)
        if found is None:
            claims = self.claims(kinds)
            taken = sum(one * count for one, count in claims)
            places = self.free(kinds, size.home) - self._spoilt(kinds, size.home, claims)
            found = self.free(kinds) - taken - kept >= size.total and places >= size.pods
            self._fitting[key] = found
        return found

    def _spoilt(self, kinds: frozenset[int], size: int, claims: list[tuple[int, int]]) -> int:
        """Places for so many devices on a node that claims can spoil: no claim more than its devices / size, rounded
        up; and all together no more than their devices could, one by one, if each did the most harm."""
        whole = sum(-(-one // size) * count for one, count in claims)
        left = sum(one * count for one, count in claims)
        prices: Counter[int] = Counter()
        for free, homes in [one for number in kinds for one in self._capacity.kinds[number].free if one[0] >= size]:
            prices[free % size + 1] += homes
            prices[size] += homes * (free // size - 1)
        singly = 0
        for price in sorted(prices):
            bought = min(prices[price], left // price)
            singly, left = singly + bought, left - bought * price
        return min(whole, singly)

    def _could_ever(self, kinds: frozenset[int], size: Size) -> bool:
        whole = [one for number in kinds for one in self._capacity.kinds[number].whole]
        return sum(homes * (most // size.home) for most, homes in whole) >= size.pods

    # -- tenants ------------------------------------------------------------------------------------------------------

    def price(self, tenant: str, devices: int) -> int:
        """How far so many devices move the tenant in its queue."""
        rules = self.config.tenants.get(tenant)
        return devices * SCALE // (rules.weight or 1 if rules else 1)

    def share(self, tenant: str, model: str) -> int:
        """Devices of the model that are the tenant's by its weight."""
        rules = self.config.tenants[tenant]
        if model not in rules.wants:
            return 0
        healthy = sum(kind.healthy for kind in self._capacity.kinds if kind.model == model)
        return healthy * rules.weight // self._weights[model]

    def tier(self, tenant: str, model: str, size: Size) -> int:
        """0: within its share with that as well, 1: above."""
        return int(self.held[tenant][model] + size.cost([model]).get(model, 0) > self.share(tenant, model))

    def kept_from(self, borrower: str, model: str) -> int:
        """Devices of the model that others have reserved and do not hold."""
        return sum(
            max(0, rules.reserve[model] - self.held[tenant][model])
            for tenant, rules in self.config.tenants.items()
            if model in rules.reserve and tenant != borrower
        )

    def capped(self, tenant: str, cost: Mapping[str, int], held: Mapping[str, int] | None = None) -> str:
        """Which cap of the tenant leaves no room for this beside what it holds; empty: none."""
        rules, held = self.config.tenants[tenant], self.held[tenant] if held is None else held
        for model, count in cost.items():
            cap = rules.models.get(model, NO_LIMIT) if model else rules.devices
            if cap != NO_LIMIT and count and held.get(model, 0) + count > cap:
                return f"{held.get(model, 0)} + {count} of {cap} {model or 'devices'}"
        return ""

    # -- requests -----------------------------------------------------------------------------------------------------

    def overdue(self, request: Request) -> bool:
        """It has waited for so long that devices are kept for it."""
        return self.at - request.age()[0] >= self.config.tenants[request.tenant].reserve_after

    def allowed(self, request: Request, size: Size) -> tuple[str, ...]:
        """The candidates that its waiting allows it by now."""
        policy = self.config.policies.get(request.policy)
        if policy is None:
            return ()
        if size.late and (only := max(pod.only for pod in request.members())):
            return (only,) if any(one.model == only for one in policy.candidates) else ()
        early = policy.fallback == NEVER or (policy.fallback != NOW and self.at - request.age()[0] < policy.fallback)
        return tuple(one.model for one in (policy.candidates[:1] if early and size.late else policy.candidates))

    def place(self, request: Request, watched: str, *, saves: bool) -> tuple[Place | None, bool]:
        """Where it contends or waits, and whether it could be granted the watched model within its tenant's share.

        With `saves` its tenant saves for the oldest of its overdue requests, which this one must leave room for.
        """
        tenant, rules = request.tenant, self.config.tenants.get(request.tenant)
        if rules is None or not rules.weight or self._opened[tenant] >= MOST_OPEN or not request.complete:
            return None, False
        size = request.size
        old = self._saved_for(tenant, rules) if saves else None
        place = waits = None
        below = False
        for model in self.allowed(request, size):
            held = self.held[tenant]
            if old is not None and old is not request:
                held = held + Counter(old.size.cost([model]))
            if self.capped(tenant, size.cost([model]), held):
                continue
            kinds, tier = self.kinds(model, self.needs(request.policy, model) or 0), self.tier(tenant, model, size)
            if self.fits(kinds, size, self.kept_from(tenant, model) if tier else 0):
                place = place or Place(model, tier, fits=True)
                below = below or (model == watched and not tier)
            elif waits is None and self._could_ever(kinds, size):
                waits = Place(model, tier, fits=False)
        return place or waits, below

    def _saved_for(self, tenant: str, rules: TenantRules) -> Request | None:
        """The oldest of the tenant's overdue requests that only what it holds keeps from a grant: it saves for that."""
        found = None
        for request in self.requests[tenant].values() if rules.models or rules.devices != NO_LIMIT else ():
            if self.overdue(request) and request.complete and (found is None or request.age() < found.age()):
                size = request.size
                costs = [size.cost([model]) for model in self.allowed(request, size)]
                possible = [cost for cost in costs if not self.capped(tenant, cost, {})]
                if possible and all(self.capped(tenant, cost) for cost in possible):
                    found = request
        return found
