"""The scenes that the arbiter is simulated in (`fairness.simulate`)."""

from __future__ import annotations

import random

from dra_gate.fairness.events import NEVER, TenantRules
from fairness.scene import policy
from fairness.simulate import HOUR, MINUTE, SECOND, Pod, Scene

BOTH = ("h100", "a100")
POLICIES = {"p@1": policy("h100 a100")}


def lasting(chance: random.Random, median: int = 8 * MINUTE, most: int = 6 * HOUR) -> int:
    """A heavy-tailed run time: log-normal, its mean about 1.6 times its median."""
    return max(SECOND, min(most, int(median * chance.lognormvariate(0.0, 1.0))))


def steady(chance: random.Random, tenant: str, every: int, until: int, size: int = 1) -> list[Pod]:
    """Pods one after the other, at random moments."""
    pods, now = [], 0
    while (now := now + int(chance.expovariate(1 / every))) < until:
        pods.append(Pod(f"{tenant}-{len(pods):05}", tenant, "p@1", size, now, lasting(chance)))
    return pods


def flood(seed: int, pods: int = 600) -> Scene:
    """8 H100 and 24 A100; one tenant submits everything at once, two small ones steadily."""
    chance = random.Random(f"flood {seed}")
    flooder = [Pod(f"flood-{number:05}", "flood", "p@1", 1, 0, lasting(chance)) for number in range(pods)]
    small = [pod for name in ("small-1", "small-2") for pod in steady(chance, name, 8 * MINUTE, 4 * HOUR)]
    tenants = {name: TenantRules(wants=BOTH) for name in ("flood", "small-1", "small-2")}
    return Scene(f"flood {seed}", {"h100": (8,), "a100": (8, 8, 8)}, tenants, POLICIES, (*flooder, *small))


def thousand(seed: int, tenants: int = 1_000, nodes: int = 32, pods: int = 6_000) -> Scene:
    """The same with 1,000 tenants: `nodes` of eight H100, three times as many of A100."""
    chance = random.Random(f"thousand {seed}")
    devices = 32 * nodes
    flooder = [Pod(f"flood-{number:05}", "flood", "p@1", 1, 0, lasting(chance)) for number in range(pods)]
    hours = pods * 13 * MINUTE / devices
    small = [
        pod
        for number in range(tenants - 1)
        for pod in steady(chance, f"small-{number:04}", int(hours), int(0.8 * hours))
    ]
    rules = {name: TenantRules(wants=BOTH) for name in ["flood", *(f"small-{n:04}" for n in range(tenants - 1))]}
    homes = {"h100": (8,) * nodes, "a100": (8,) * (3 * nodes)}
    return Scene(f"thousand {seed}", homes, rules, POLICIES, (*flooder, *small))


def crowd(seed: int, tenants: int = 200, pods: int = 10, nodes: int = 4) -> Scene:
    """Everybody wants more than there is from the first moment on, by weights of 1 to 5, one to eight at once; nobody
    is ever old enough to go first."""
    chance = random.Random(f"crowd {seed}")
    rules = {
        f"t{n:04}": TenantRules(chance.randint(1, 5), wants=BOTH, reserve_after=1_000 * HOUR) for n in range(tenants)
    }
    waiting = [
        Pod(f"{name}-{n:03}", name, "p@1", chance.choice([1, 1, 1, 2, 4, 8]), chance.randrange(MINUTE), lasting(chance))
        for name in rules
        for n in range(pods)
    ]
    return Scene(f"crowd {seed}", {"h100": (8,) * nodes, "a100": (8,) * (3 * nodes)}, rules, POLICIES, tuple(waiting))


def chaos(seed: int, tenants: int = 24, pods: int = 500, hours: int = 3) -> Scene:
    """All at once: caps, reserves, leases, delayed fallbacks, groups, priorities; devices fail, the arbiter dies, its
    clock jumps, weights and caps are edited."""
    chance = random.Random(f"chaos {seed}")
    end = hours * HOUR
    policies = {
        "p@1": policy("h100 a100 l40s"),
        "late@1": policy("h100 a100", 5 * MINUTE),
        "only@2": policy("h100 l40s", NEVER),
        "back@1": policy("l40s a100 h100"),
    }

    def rules() -> dict[str, TenantRules]:
        found = {}
        for number in range(tenants):
            models = chance.choice([("h100", "a100"), ("h100", "a100", "l40s"), ("a100",), ("l40s", "h100")])
            found[f"t{number:03}"] = TenantRules(
                weight=chance.choice([1, 1, 2, 3, 5, 7]),
                devices=chance.choice([-1, -1, 16, 8]),
                models=chance.choice([{}, {}, {"h100": 4}, {"h100": 2, "a100": 8}]),
                wants=models,
                lease=chance.choice([0, 3600]),
                reserve=chance.choice([{}, {}, {models[0]: 1}]),
                reserve_after=chance.choice([10, 30, 60]) * MINUTE,
            )
        return found

    first = rules()
    second = first | {name: other for name, other in rules().items() if chance.random() < 0.3}
    waiting: list[Pod] = []
    while len(waiting) < pods:
        tenant = f"t{min(int(chance.expovariate(1 / 6)), tenants - 1):03}"
        when, ref, size = chance.randrange(end), chance.choice(list(policies)), chance.choice([1, 1, 1, 1, 2, 2, 4, 8])
        members = chance.choice([1] * 9 + [3]) if size < 8 else 1
        group = f"g{len(waiting)}" if members > 1 else ""
        for _ in range(chance.randint(1, 12) if members == 1 else members):
            uid, late = f"u{len(waiting):05}", chance.randrange(20 * SECOND)
            waiting.append(
                Pod(uid, tenant, ref, size, when + late, lasting(chance), group, members, chance.choice([0, 0, 0, 5]))
            )
    homes = {"h100": (8, 8, 8), "a100": (8,) * 6, "l40s": (4,) * 4}
    fails = []
    for model, nodes in homes.items():
        for node, whole in enumerate(nodes):
            if chance.random() < 0.5:
                when = chance.randrange(end)
                fails.append((when, model, node, chance.randint(1, whole), when + lasting(chance, 20 * MINUTE)))
    return Scene(
        f"chaos {seed}",
        homes,
        first,
        policies,
        tuple(waiting),
        tuple(fails),
        crashes=tuple(chance.randrange(end) for _ in range(6)),
        jumps=((end // 3, chance.choice([-1, 1]) * HOUR), (end // 2, chance.choice([-1, 1]) * 5 * MINUTE)),
        changes=((end // 4, second), (3 * end // 4, first)),
    )
