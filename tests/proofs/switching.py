"""How long after a change of the switch the first verdict on the other lane comes. Writes docs/proofs/switch.md.

Three replicas on the real control plane, and no controller: it is stopped before the first change. Each replica is
asked directly without pause, and the API server by dry runs; a change counts from the moment when its PUT is answered.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import commit, described
from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.background import Background
from controlplane.gate import Gate
from controlplane.replica import Replica
from dra_gate.cluster.gate import Switched, read_gate, with_switch
from dra_gate.policy.switch import DRA, PLUGIN, Switch
from e2e import scene
from proofs.load import Load, Outcome
from proofs.rolling import NAMESPACE, Stage, on_stage

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "switch.md"
TENANT = "ordered"
BOUND = 1.0  # seconds: what the switch promises
PAUSE = 0.002  # seconds between two questions to one replica: two cores are there for everything
API = "the API server"


def lane_of(pod: Object) -> str:
    """The lane that the gate gave the Pod: a claim is there in place of the request, or it is not."""
    return DRA if pod["spec"].get("resourceClaims") else PLUGIN


@dataclass(frozen=True, slots=True)
class Verdict:
    """The lane that one question was answered with, and when it was asked and answered (time.monotonic())."""

    asked: float
    answered: float
    lane: str


class Watch(Background):
    """Asks for one Pod's lane again and again while the block is open."""

    def __init__(self, ask: Callable[[], str]) -> None:
        super().__init__(self._look, PAUSE)
        self._ask = ask
        self.seen: list[Verdict] = []
        self.failed: list[str] = []

    def _look(self) -> None:
        asked = time.monotonic()
        try:
            lane = self._ask()
        except (ApiError, AssertionError, OSError) as problem:
            self.failed.append(str(problem))
        else:
            self.seen.append(Verdict(asked, time.monotonic(), lane))

    def since(self, moment: float) -> list[Verdict]:
        """The verdicts on what was asked after that moment."""
        return [one for one in self.answered_since(moment) if one.asked >= moment]

    def answered_since(self, moment: float) -> list[Verdict]:
        """Those and the one that was under way."""
        return list(itertools.takewhile(lambda one: one.answered >= moment, reversed(self.seen)))[::-1]


@dataclass
class Followed:
    """Seconds after the PUT's answer, one for each change: until the first verdict on the other lane was given, and
    until the last question was asked that was answered with the lane before (0: none was)."""

    first: list[float] = field(default_factory=list)
    last_old: list[float] = field(default_factory=list)


@contextmanager
def watching(gate: Gate, namespace: str = NAMESPACE) -> Iterator[dict[str, Watch]]:
    """Watches by name: every replica, and the API server."""
    api = gate.plane.api()
    pod = scene.pod("asked")
    with ExitStack() as stack:
        watches = {}
        for name in gate.replicas:
            replica = stack.enter_context(Replica(gate, name))
            asked = {**pod, "metadata": {"name": "asked", "namespace": namespace}}
            watches[name] = Watch(lambda replica=replica, asked=asked: lane_of(replica.mutated(asked)))  # type: ignore[misc]
        watches[API] = Watch(lambda: lane_of(api.create(pod, namespace, dry_run=True)))
        for watch in watches.values():
            stack.enter_context(watch)
        yield watches


def put(api: Api, switch: Switch) -> float:
    """Write the switch; when that was answered (time.monotonic()). Again, while a controller writes the status."""
    while True:
        try:
            api.replace(with_switch(api.get("gates", "default"), switch, Switched("proof", reason="measured")))
            return time.monotonic()
        except ApiError as error:
            if error.status != 409:
                raise


def follow(api: Api, watches: dict[str, Watch], switch: Switch, lane: str, found: dict[str, Followed]) -> None:
    """One change, until every watch has seen nothing but its lane for a while."""
    answered = put(api, switch)

    def over() -> bool:
        ends = [watch.since(answered)[-5:] for watch in watches.values()]
        return all(len(end) == 5 and all(one.lane == lane for one in end) for end in ends)

    wait_for(over, 30, f"every verdict to be {lane}", every=0.02)
    for name, watch in watches.items():
        seen = watch.answered_since(answered)
        # A question that was under way when the PUT was answered may have been answered with the other lane already.
        first = next(one.answered for one in seen if one.lane == lane)
        old = [one.asked - answered for one in seen if one.lane != lane]
        record = found.setdefault(name, Followed())
        record.first.append(first - answered)
        record.last_old.append(max([0.0, *old]))


def measured(gate: Gate, switches: Sequence[tuple[Switch, str]], times: int) -> dict[str, Followed]:
    """Each of `switches` (with the lane that it gives) in turn, `times` changes in all; one before is not counted."""
    api = gate.plane.api()
    chance = random.Random(8)
    found: dict[str, Followed] = {}
    with watching(gate) as watches:
        follow(api, watches, *switches[-1], {})
        for switch, lane in itertools.islice(itertools.cycle(switches), times):
            time.sleep(chance.uniform(0.0, 0.3))
            follow(api, watches, switch, lane, found)
    failed = [f"{name}: {line}" for name, watch in watches.items() for line in watch.failed]
    assert not failed, failed[:5]
    return found


BACK, OF_TENANT = Switch(PLUGIN), Switch("", {TENANT: PLUGIN})
KINDS = {
    "every tenant": [(BACK, PLUGIN), (Switch(), DRA)],
    "one tenant": [(OF_TENANT, PLUGIN), (Switch(), DRA)],
    "one tenant forward, the others stay back": [(Switch(PLUGIN, {TENANT: ""}), DRA), (BACK, PLUGIN)],
}


class TwoLanes(Load):
    """Creates while the switch goes to and fro: either lane is right, and nothing between them."""

    def _look(self, stored: Object) -> str:
        raw = any("nvidia.com/gpu" in str(one["resources"]) for one in stored["spec"]["containers"])
        return "" if raw is (lane_of(stored) == PLUGIN) else "neither a request nor a claim, or both"


def loaded(stage: Stage, seconds: float, rate: float, every: float = 0.5) -> tuple[Outcome, int]:
    """Creates at that rate while the switch goes to and fro `every` so many seconds; how often it did."""
    times = 0
    with TwoLanes(stage.api, NAMESPACE, rate, lambda _: "") as running:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            put(stage.api, (BACK, Switch())[times % 2])
            times += 1
            time.sleep(every)
    put(stage.api, Switch())
    return running.outcome, times


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


def page(kinds: dict[str, dict[str, Followed]], load: tuple[Outcome, int], rate: float) -> str:
    rows = ""
    for kind, found in kinds.items():
        for name, one in found.items():
            cells = [1000 * quantile(one.first, part) for part in (0.5, 0.99, 1.0)]
            cells += [1000 * quantile(one.last_old, part) for part in (0.99, 1.0)]
            rows += f"| {kind} | {name} | {len(one.first)} | {' | '.join(f'{cell:.0f}' for cell in cells)} |\n"
    outcome, times = load
    return f"""# The switch is followed

Made by `make prove-switch` on {dt.datetime.now(dt.UTC).date()} at commit {commit()} on {described()}, which
control plane, gate and clients shared. Three replicas on a real control plane. Both controllers were stopped before the
first change.

Milliseconds from the answer to the PUT of the Gate, forth and back in turn: until the first verdict on the other lane,
and until the last question was asked that was still answered with the lane before. Each replica was asked past the API
server, every {1000 * PAUSE:.0f} ms at most; the API server by dry runs of creating a Pod.

| switched | asked | changes | first verdict, median | 99 % | longest | last one of before, 99 % | longest |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}
While Pods were created at {rate:g} a second and the switch went to and fro {times} times: {outcome.created} creates,
{len(outcome.failed)} failed, {len(outcome.wrong)} with neither a request nor a claim, or both.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.switching", description=__doc__)
    parser.add_argument("--changes", type=int, default=200, help="of each kind; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60, help="of creates under change; default: %(default)s")
    parser.add_argument("--rate", type=float, default=20, help="creates a second; default: %(default)s")
    arguments = parser.parse_args()
    with on_stage() as stage:
        for name in stage.gate.controllers:
            stage.gate.stop_controller(name, kill=True)
        kinds = {kind: measured(stage.gate, switches, arguments.changes) for kind, switches in KINDS.items()}
        load = loaded(stage, arguments.seconds, arguments.rate)
        assert read_gate(stage.api.get("gates", "default")).switch == Switch()
    said = page(kinds, load, arguments.rate)
    PROOF.write_text(said)
    print(said)
    longest = max(quantile(one.first, 0.99) for found in kinds.values() for one in found.values())
    return 1 if longest > BOUND or load[0].failed or load[0].wrong else 0


if __name__ == "__main__":
    sys.exit(main())
