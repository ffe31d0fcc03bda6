"""Random worlds: whatever happens in which order, the books agree, the log replays, the checker is silent, and no
time passes at which somebody could have been granted and nobody was woken."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.checker import check
from dra_gate.fairness.events import Capacity, Config, Granted, Held, Kind, Left, Settled, TenantRules, Used
from dra_gate.fairness.log import Recorder, replay
from fairness.scene import config, pod, policy


class World:
    """Tenants, nodes, Pods that wait, are granted, allocated and end; the arbiter is told of all of it."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.lines: list[bytes] = []
        self.recorder = Recorder(Arbiter(), self.lines.append)
        self.recorder.state()
        self.models = ["h100", "a100", "l40s"][: chance.randint(1, 3)]
        self.now, self.made = 1_000_000, 0
        self.homes = {model: [chance.randint(1, 4) for _ in range(chance.randint(1, 3))] for model in self.models}
        self.waiting: dict[str, Held] = {}
        self.open: dict[str, tuple[Held, tuple[str, ...]]] = {}
        self.allocated: dict[str, tuple[str, str, int, int]] = {}  # tenant, model, devices, home
        self.tenants = {name: self.rules() for name in "tuvw"[: chance.randint(1, 4)]}
        self.recorder.take(self.config())
        self.capacity()

    def rules(self) -> TenantRules:
        chance = self.random
        return TenantRules(
            weight=chance.choice([1, 1, 2, 5]),
            wants=tuple(self.models),
            devices=chance.choice([-1, -1, 3, 6]),
            models={model: chance.randint(0, 4) for model in self.models if chance.random() < 0.4},
            lease=chance.choice([0, 60]),
            reserve={model: 1 for model in self.models if chance.random() < 0.2},
            reserve_after=chance.choice([0, 5000, 1_000_000]),
        )

    def config(self) -> Config:
        fallback = self.random.choice([0, 0, 3000, -1])
        policies = {"p@1": policy(" ".join(self.models), fallback), "q@1": policy(self.models[-1])}
        return config({**self.tenants, "z": TenantRules(weight=0, devices=3)}, policies, " ".join(self.models))

    def free(self, model: str, home: int) -> int:
        taken = sum(n for _, its, n, where in self.allocated.values() if (its, where) == (model, home))
        return max(0, self.homes[model][home] - taken)

    def capacity(self) -> None:
        kinds = []
        for model, homes in self.homes.items():
            free = Counter(found for home in range(len(homes)) if (found := self.free(model, home)))
            whole = Counter(found for found in homes if found)
            kinds.append(Kind(model, 0, sum(homes), tuple(sorted(free.items())), tuple(sorted(whole.items()))))
        self.recorder.take(Capacity(kinds=tuple(kinds)))

    def used(self, tenant: str) -> None:
        held = Counter[str]()
        for its, model, devices, _ in self.allocated.values():
            held[model] += devices if its == tenant else 0
        self.recorder.take(Used(tenant=tenant, devices=sum(held.values()), models=dict(sorted((+held).items()))))

    def held(self, *pods: Held) -> None:
        for one in pods:
            self.waiting[one.uid] = one
            self.recorder.take(one)

    def create(self) -> None:
        chance = self.random
        self.made += 1
        uid, tenant = f"p{self.made}", chance.choice([*self.tenants, "z"])
        sizes = tuple(chance.choice([1, 1, 2, 3]) for _ in range(chance.choice([1, 1, 2])))
        if tenant == "z":
            total = sum(sizes)
            fixed_models = dict.fromkeys(self.models, total)
            self.held(pod(uid, tenant, (), at=self.now, fixed=total, fixed_models=fixed_models))
        elif chance.random() < 0.1:
            self.held(*(pod(f"{uid}{n}", tenant, sizes, at=self.now, group=uid, members=2) for n in "ab"))
        else:
            priority, ref = chance.choice([0, 0, 1, -(2**31), 2**31 - 1]), chance.choice(["p@1", "p@1", "q@1"])
            self.held(pod(uid, tenant, sizes, at=self.now, priority=priority, policy=ref))

    def allocate(self) -> None:
        uid = self.random.choice(list(self.open))
        held, candidates = self.open[uid]
        devices = sum(held.claims) + held.fixed
        for model in candidates or self.models:
            for home in range(len(self.homes[model])):
                if self.free(model, home) >= devices:
                    del self.open[uid]
                    self.allocated[uid] = held.tenant, model, devices, home
                    self.recorder.take(Settled(uid=uid, model=model))
                    self.used(held.tenant)
                    self.capacity()
                    return

    def happen(self) -> None:
        chance = self.random
        self.now += chance.choice([0, 10, 1000, 6000, -3000])
        what = chance.random()
        if what < 0.45:
            self.create()
        elif what < 0.52 and self.waiting:
            uid = chance.choice(list(self.waiting))
            del self.waiting[uid]
            self.recorder.take(Left(uid=uid))
        elif what < 0.75 and self.open:
            self.allocate()
        elif what < 0.8 and self.open:
            uid = chance.choice(list(self.open))
            self.recorder.take(Settled(uid=uid))
            self.used(self.open.pop(uid)[0].tenant)
        elif what < 0.95 and self.allocated:
            self.used(self.allocated.pop(chance.choice(list(self.allocated)))[0])
            self.capacity()
        elif what < 0.97:
            homes = self.homes[chance.choice(self.models)]
            homes[chance.randrange(len(homes))] = chance.randint(0, 4)
            self.capacity()
        elif what < 0.98:
            name = chance.choice(list(self.tenants))
            self.tenants[name] = replace(self.rules(), weight=chance.choice([1, 3, 8]))
            self.recorder.take(self.config())

    def decide(self) -> int:
        anew = Arbiter()
        anew.take(self.recorder.arbiter.state())
        expected = anew.decide(self.now)
        decisions = self.recorder.decide(self.now)
        assert [replace(one, sequence=0) for one in decisions] == expected, "what it kept is not what it reckons anew"
        for one in decisions:
            held = self.waiting.pop(one.uid) if isinstance(one, Granted) else self.open[one.uid][0]
            self.open[one.uid] = held, one.candidates
        return len(decisions)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_promises_are_kept(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.happen()
        passes = 0
        while world.decide():
            passes += 1
            assert passes < 10, "a pass after a pass goes on deciding"
        arbiter = world.recorder.arbiter
        state = arbiter.state()
        assert {one.uid for one in state.waiting} == set(world.waiting)
        assert {one.request.uid for one in state.open} == set(world.open)
        assert all(arbiter.why(uid, world.now) is not None for uid in list(world.waiting)[:3])
        arbiter.decide(world.now)
        soonest = arbiter.next_time()
        again = Arbiter()
        again.take(state)
        before = world.now + 10**9 if soonest is None else soonest - 1
        assert before <= world.now or again.decide(before) == [], "nobody is woken when it may go"
    assert list(replay(world.lines)) == []
    assert list(check(world.lines)) == []
