"""`python -m proofs.fairness`: the arbiter beside two queues that know no tenants, in simulated time; docs/fairness.md.

Every run of the arbiter is read by the checker. Nothing is asked of a cluster.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.machine import commit
from dra_gate.fairness.checker import RULES
from dra_gate.migration.plot import Points, distribution, lines
from fairness import scenes
from fairness.simulate import HOUR, MINUTE, Run, Scene, simulate

PAGE = Path(__file__).parents[2] / "docs" / "fairness.md"
NAMES = {"fair": "dra-gate", "fifo": "first come, first served", "greedy": "H100 first, who fits"}
FLOODS, CHAOS, CROWDS = range(4), range(12), range(3)
WORSE = 1.25  # what a flooder's mean wait may be of what it is first come, first served


def minutes(values: Sequence[int]) -> tuple[float, float, float]:
    """Mean, 95th of a hundred, and the longest."""
    if not values:
        return 0.0, 0.0, 0.0
    return tuple(one / MINUTE for one in (statistics.fmean(values), values[int(0.95 * len(values))], values[-1]))  # type: ignore[return-value]


def small(scene: Scene) -> list[str]:
    """All tenants but the one that floods."""
    return [name for name in scene.tenants if name != "flood"]


def unbounded(run: Run) -> list[str]:
    """Pods of small tenants before which more went to others than the promise allows.

    While such a Pod waits, nothing goes to anybody else of a model that it would be within its tenant's share of, but
    what is left of the other's own share.
    """
    weights = sum(rules.weight for rules in run.scene.tenants.values())
    share = {
        (name, model): sum(homes) * rules.weight // weights
        for name, rules in run.scene.tenants.items()
        for model, homes in run.scene.homes.items()
    }
    went = sorted((pod for pod in run.pods.values() if pod.granted >= 0), key=lambda pod: pod.granted)

    def held(tenant: str, model: str, when: int) -> int:
        mine = (one for one in went if (one.tenant, one.given) == (tenant, model))
        return sum(one.size for one in mine if one.granted <= when < one.begins + one.lasts)

    found = []
    for pod in went:
        if pod.tenant == "flood":
            continue
        for one in went:
            if pod.arrives < one.granted < pod.granted and one.tenant != pod.tenant:
                mine, others = ((who.tenant, one.given) for who in (pod, one))
                within = held(*mine, one.granted) + pod.size <= share[mine]
                if within and held(*others, one.granted) > share[others]:
                    found.append(f"{pod.uid} ({one.uid})")
    return found


def row(run: Run, tenants: Iterable[str], who: str, queue: str) -> str:
    """A line of the table."""
    mean, most, longest = minutes(run.waits(tenants))
    overtaken = [count for uid, count in run.overtaken().items() if run.pods[uid].tenant in set(tenants)]
    return (
        f"| {NAMES[queue]} | {who} | {mean:.1f} | {most:.1f} | {longest:.1f} | {max(overtaken, default=0)} "
        f"| {statistics.fmean(overtaken or [0]):.1f} | {100 * run.use:.1f} % | {100 * run.fallback:.0f} % "
        f"| {run.jain():.2f} |"
    )


HEAD = [
    "| queue | tenants | mean wait, min | p95 | longest | overtaken at most | on average | use | fallback | Jain |",
    "| --- | --- |" + " ---: |" * 8,
]


def shares(runs: dict[str, Run]) -> list[str]:
    """Device-hours by tenant and model, of a flood."""
    lines_ = ["| queue | tenant | H100, device-hours | A100, device-hours |", "| --- | --- | ---: | ---: |"]
    for queue, run in runs.items():
        served = run.served()
        lines_ += [
            f"| {NAMES[queue]} | {name} | {served[name, 'h100'] / HOUR:.1f} | {served[name, 'a100'] / HOUR:.1f} |"
            for name in run.scene.tenants
        ]
    return lines_


def held_over_time(run: Run, tenant: str, every: int = MINUTE) -> Points:
    """Devices that a tenant holds, by minute."""
    changes: list[tuple[int, int]] = []
    for pod in run.pods.values():
        if pod.tenant == tenant and pod.begins >= 0:
            changes += [(pod.begins, pod.size), (pod.begins + pod.lasts, -pod.size)]
    found, holds, at = [], 0, 0
    for when, change in sorted(changes):
        while at <= when:
            found.append((at / MINUTE, float(holds)))
            at += every
        holds += change
    return found


def sized(scene: Scene) -> str:
    """In words."""
    return f"{len(scene.tenants):,} tenants, {sum(sum(homes) for homes in scene.homes.values()):,} devices"


def judge(name: str, runs: Iterable[Run]) -> tuple[str, int]:
    """What the checker found, a line of its table."""
    granted = compared = restarts = fails = violations = number = 0
    for number, run in enumerate(runs, 1):
        assert run.fair is not None
        granted += run.fair.checker.granted
        compared += run.fair.checker.compared
        restarts += run.fair.restarts
        fails += len(run.scene.fails)
        violations += len(run.fair.violations)
        print(f"{name} {number}: {len(run.fair.violations)} violations", flush=True)
        for one in run.fair.violations[:3]:
            print(f"  {one}")
    return f"| {name} | {number} | {granted} | {compared} | {restarts} | {fails} | {violations} |", violations


def main() -> int:
    """Simulate, write the page."""
    parser = argparse.ArgumentParser(prog="python -m proofs.fairness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, 100 tenants instead of 1,000")
    options = parser.parse_args()
    quick = options.quick
    two = ("fair", "fifo")  # where everybody asks for one device at a time the third queue is the second
    floods = [{queue: simulate(scenes.flood(seed), queue, seed) for queue in two} for seed in FLOODS]
    many_scene = scenes.thousand(0, 100, 13, 800) if quick else scenes.thousand(0, 1_000, 125, 8_000)
    many = {queue: simulate(many_scene, queue) for queue in two}
    tight_scene = scenes.thousand(1, 100, 4, 500) if quick else scenes.thousand(1, 1_000, 32, 4_000)
    tight = {queue: simulate(tight_scene, queue) for queue in two}
    crowds = [{queue: simulate(scenes.crowd(seed, 24, 16, 1), queue, seed) for queue in NAMES} for seed in CROWDS]
    judged = [
        judge("floods", [runs["fair"] for runs in floods]),
        judge("1,000 tenants", [many["fair"], tight["fair"]]),
        judge("everybody wants more", [runs["fair"] for runs in crowds]),
        judge("everything happens", [simulate(scenes.chaos(seed), seed=seed) for seed in CHAOS]),
    ]
    wrong = sum(count for _, count in judged)
    table, late = [*HEAD], []
    ratios = []
    for seed, runs in zip(FLOODS, floods, strict=True):
        for queue, run in runs.items():
            table += [row(run, ["flood"], f"flood, seed {seed}", queue), row(run, small(run.scene), "small", queue)]
        late += unbounded(runs["fair"])
        flooder = {queue: statistics.fmean(run.waits(["flood"])) for queue, run in runs.items()}
        ratios.append(flooder["fair"] / flooder["fifo"])
    by_many, by_tight, by_crowd = [*HEAD], [*HEAD], [*HEAD]
    for seed, runs in zip(CROWDS, crowds, strict=True):
        by_crowd += [row(run, run.scene.tenants, f"24 alike, seed {seed}", queue) for queue, run in runs.items()]
    for found, runs in ((by_many, many), (by_tight, tight)):
        for queue, run in runs.items():
            found += [
                row(run, ["flood"], "flood", queue),
                row(run, small(run.scene), f"{len(small(run.scene))} small", queue),
            ]
    flooders = {queue: statistics.fmean(run.waits(["flood"])) for queue, run in many.items()}
    tights = {queue: statistics.fmean(run.waits(["flood"])) for queue, run in tight.items()}
    plots = {
        "wait": lines(
            "Waits of the small tenants in a flood (seed 0)",
            {
                NAMES[queue]: distribution(
                    [one / MINUTE for one in floods[0][queue].waits(small(floods[0][queue].scene))]
                )
                for queue in ("fair", "fifo")
            },
            "minutes",
            "% of Pods that waited at most so long",
        ),
        "many": lines(
            f"Waits among {len(many_scene.tenants):,} tenants",
            {
                f"{short}, {who}": distribution([one / MINUTE for one in many[queue].waits(names)])
                for queue, short in (("fair", "dra-gate"), ("fifo", "first come"))
                for who, names in (("flood", ["flood"]), ("small", small(many_scene)))
            },
            "minutes",
            "% of Pods that waited at most so long",
        ),
        "held": lines(
            "Devices held in a flood (seed 0), dra-gate",
            {name: held_over_time(floods[0]["fair"], name) for name in floods[0]["fair"].scene.tenants},
            "minutes",
            "devices",
        ),
    }
    for name, plot in plots.items():
        (PAGE.parent / "proofs" / f"fairness-{name}.svg").write_text(plot)
    worst = max(*ratios, flooders["fair"] / flooders["fifo"])
    PAGE.write_text(
        f"""# Who gets a scarce device, and when

> While you are under your share and waiting, nobody above theirs gets that device; among the others each gets at most
> its own unfilled share before you; and a borrowed device comes back within its lease.

That is the promise. It holds for Pods that the gate holds until they are granted: those of tenants with a weight, a
quota by model, or a policy whose fallback is not `now`. Other Pods and others' claims are capacity that goes away.

## The rules

1. **Cap.** Nobody gets more than its quota, in devices and by model. A grant whose claim is not allocated yet counts at
   its worst: against each model that it may still get.
2. **No more grants than devices.** A Pod goes only if it finds its devices on one node wherever everybody granted
   before it lands. Otherwise the scheduler would decide who gets them.
3. **Share first.** A tenant's share of a model is its healthy devices times the tenant's weight by all weights of those
   who may have it, rounded down. Nobody goes above its share while somebody waits who would be within its own.
4. **By weight.** Within and above the share alike, who has had least for its weight goes first (start-time fair
   queueing, one queue a model). While two tenants both wait, what they get differs by no more than one request of each,
   divided by their weights: |W₁/w₁ − W₂/w₂| ≤ L₁/w₁ + L₂/w₂.
5. **Age.** When the turn of a request comes that has waited longer than its tenant's `reserveAfter`, and there is
   nothing for it, what it waits for is kept for it, so that a large request isn't starved by small ones.
6. **No preference in the order.** The order of candidates says where a request may be served, never when.
7. **What is lent comes back.** A device above the share runs no longer than the tenant's `lease`, and `reserve` is
   never lent. Without either there is no bound: devices can't be taken from a Pod that runs.
8. **Groups** go whole, to one model, or not at all.
9. **In vain.** A grant that the scheduler can't use goes to somebody else after five minutes; its Pod waits again after
   a rest.

Everything the arbiter is told and decides is a line of its log. `dra-gate replay --check` decides all of it again and
has it judged by a checker that shares no code with the arbiter (`webhook/dra_gate/fairness/checker.py`). It says:

{chr(10).join(f"- {name}: {text}" for name, text in RULES.items())}

## Measured

Made by `make prove-fairness` on {dt.datetime.now(dt.UTC).date()} at commit {commit()}. Simulated time, the real
arbiter: run times are log-normal (median 8 minutes, mean about 13), a grant is allocated 0.2 to 1.5 s later. A wait
lasts from a Pod's creation to its grant. Jain's index is of the devices that tenants held per unit of weight while they
waited for more: of a flood it says little, as the small tenants want little, and it hides who is hurt. So the longest
wait and how many younger Pods went before one stand beside it.
It is 1 where one tenant alone waited for more than a minute.

What the checker found:

| scene | runs | Pods granted | comparisons of two tenants | arbiter died | devices failed, times | violations |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(line for line, _ in judged)}

"Everything happens": caps, reserves, leases, delayed fallbacks, groups, priorities; devices fail and come back, the
arbiter dies (in every second case between a decision and its write), the clock jumps by up to an hour, weights and caps
are edited.

### A flood: 8 H100 and 24 A100, 600 Pods of one tenant at once, two small tenants steadily

{chr(10).join(table)}

The flooder's mean wait is {100 * (min(ratios) - 1):+.0f} to {100 * (max(ratios) - 1):+.0f} % beside first come,
first served. Grants above a share of what a small tenant waited for within its own: {", ".join(late) or "none"}.

![Waits of the small tenants](proofs/fairness-wait.svg)

![Devices held](proofs/fairness-held.svg)

{chr(10).join(shares(floods[0]))}

"H100 first, who fits" (as Pods without a queue go) is the same here, as everybody asks for one device at a time.

### 24 tenants that all want more: 32 devices, weights of 1 to 5, requests for 1, 2, 4 or 8 devices

{chr(10).join(by_crowd)}

First come, first served leaves devices idle behind a large request. The third queue uses them about as well as
dra-gate, and knows no weights. Nobody is ever old here (`reserveAfter` is out of reach): the order is by weight alone.

### {sized(many_scene)}: everybody has a share of at least one

{chr(10).join(by_many)}

The flooder's mean wait is {100 * (flooders["fair"] / flooders["fifo"] - 1):+.0f} % beside first come, first served.

![Waits](proofs/fairness-many.svg)

### {sized(tight_scene)}: nobody has a share

With more tenants than devices of a model a share rounds down to nothing, and all are above it. Then weight alone
decides: age gives no earlier turn (rule 5), so the flood, however old, does not go before what small tenants submit
later, and pays for it with its own wait.

{chr(10).join(by_tight)}

The flooder's mean wait is {100 * (tights["fair"] / tights["fifo"] - 1):+.0f} % beside first come, first served.
"""
    )
    lost = [uid for runs in (*floods, many, tight) for run in runs.values() for uid in run.lost]
    print(f"violations {wrong}, late {late}, lost {len(lost)}, flooder {worst:.2f} of FIFO")
    return 1 if wrong or late or lost or worst > WORSE else 0


if __name__ == "__main__":
    sys.exit(main())
