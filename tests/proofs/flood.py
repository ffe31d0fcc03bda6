"""One tenant submits 600 Pods at once, two others one after the other. Writes docs/proofs/flood.md.

8 H100 and 24 A100 on the real control plane; the kit plays the kubelets. How long each Pod waited is read from the API
server's audit log; the checker reads the arbiter's.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.machine import commit, described
from controlplane.api import Api, Object, wait_for
from controlplane.background import Background
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_succeeded
from e2e import scene
from proofs.arbiter_logs import violations
from proofs.audited import Caps, Judge, audited_plane, writes

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "flood.md"
POLICIES = Path(__file__).parent / "flood_policies"
CROWD, SMALL = "flood-crowd", ("flood-small", "flood-little")
H100, A100 = 8, 24
LASTS = 4.0  # seconds that every Pod runs
EVERY = 1.0  # seconds between two Pods of a small tenant: about four of them run at a time, its share is ten
SLACK = 3.0  # seconds for a device to change hands: kubelet, claim controller, arbiter, all on two cores


@dataclass
class Flood:
    """What came of it. Seconds from a Pod's creation until our gate was off, and until its claim was allocated."""

    pods: int
    seconds: float
    granted: dict[str, list[float]]
    allocated: dict[str, list[float]]
    models: dict[str, Counter[str]]
    checker: list[str]
    faults: list[str]

    @property
    def bound(self) -> float:
        """Who is below its share goes first, so it waits at most until the next of 32 devices is given back."""
        return LASTS + SLACK

    @property
    def longest(self) -> float:
        """The longest wait of the small tenants."""
        return max(max(self.granted[name]) for name in SMALL)


class Kubelets(Background):
    """Every bound Pod runs for its time, finishes and goes."""

    def __init__(self, api: Api, lasts: float) -> None:
        super().__init__(self._look, 0.3)
        self._api, self._lasts = api, lasts
        self._bound: dict[str, float] = {}
        self.ended: Counter[str] = Counter()  # by namespace

    def _look(self) -> None:
        now = time.monotonic()
        pods = [one for one in self._api.list("pods") if "nodeName" in one["spec"]]
        self._api.parallel(self._end, [one for one in pods if self._over(one, now)])

    def _over(self, pod: Object, now: float) -> bool:
        return now - self._bound.setdefault(pod["metadata"]["uid"], now) >= self._lasts

    def _end(self, pod: Object) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        mark_succeeded(self._api, namespace, name)
        delete_now(self._api, namespace, name)
        self.ended[namespace] += 1


def run(pods: int) -> Flood:
    """So many Pods of the crowd; the others go on as long as these last."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(audited_plane(folder))
        api = plane.api()
        groups = [{"name": "hopper", "devices": {"h100": H100}}, {"name": "ampere", "count": 3, "devices": {"a100": 8}}]
        Fleet.of("flood", {"nodes": groups}).install(api)
        for name in (CROWD, *SMALL):
            scene.namespace(api, name)
        flags = ("--arbiter-log", f"{folder}/arbiter/{{name}}")
        stack.enter_context(Gate(plane, POLICIES, controller_flags=flags))
        kubelets = stack.enter_context(Kubelets(api, LASTS))
        began = time.monotonic()
        over = threading.Event()
        steady = [threading.Thread(target=_steadily, args=(api, name, over), daemon=True) for name in SMALL]
        api.create_many((scene.pod(f"p{n}") for n in range(pods)), CROWD)
        for one in steady:
            one.start()
        wait_for(lambda: kubelets.ended[CROWD] == pods, 60 + pods, f"{pods} Pods to finish", every=0.5)
        seconds = time.monotonic() - began
        over.set()
        for one in steady:
            one.join()
        wait_for(lambda: not api.list("pods"), 60, "the last Pods to finish", every=0.5)
        judge = Judge({name: Caps(frozenset([name])) for name in (CROWD, *SMALL)})
        given: dict[str, str] = {}
        namespaces: dict[str, str] = {}
        for write in writes(plane.audit_events()):
            judge.take(write)
            metadata = write.obj["metadata"]
            if write.kind == "Pod":
                namespaces[metadata["uid"]] = metadata["namespace"]
            elif write.kind == "ResourceClaim" and (allocation := write.obj.get("status", {}).get("allocation")):
                given[metadata["ownerReferences"][0]["uid"]] = allocation["devices"]["results"][0]["request"]
        found = Flood(pods, seconds, {}, {}, {}, [str(one) for one in violations(folder / "arbiter")], judge.faults)
        for name in (CROWD, *SMALL):
            mine = [uid for uid in judge.born if namespaces[uid] == name]
            found.granted[name] = sorted(judge.let_go[uid] - judge.born[uid] for uid in mine)
            found.allocated[name] = sorted(judge.allocated_at[uid] - judge.born[uid] for uid in mine)
            found.models[name] = Counter(given[uid].partition("/")[2] for uid in mine)
        return found


def _steadily(api: Api, namespace: str, over: threading.Event) -> None:
    number = 0
    while not over.wait(EVERY):
        api.create(scene.pod(f"s{number}"), namespace)
        number += 1


def page(found: Flood) -> str:
    rows = ""
    for name, waits in found.granted.items():
        models = ", ".join(f"{count} {model}" for model, count in sorted(found.models[name].items()))
        allocated = found.allocated[name]
        rows += (
            f"| {name} | {len(waits)} | {sum(waits) / len(waits):.1f} | {waits[int(len(waits) * 0.95)]:.1f} | "
            f"{waits[-1]:.1f} | {allocated[-1]:.1f} | {models} |\n"
        )
    wrong = "".join(f"\n- {line}" for line in found.checker + found.faults) or " nothing"
    short = "" if found.pods >= 600 else f" These are {found.pods} Pods, and 600 are meant."
    return f"""# A flood that others don't drown in

Made by `make prove-flood` on {dt.datetime.now(dt.UTC).date()} at commit {commit()} on {described()}, which control
plane, gate and clients shared.{short} A real control plane; nodes, slices and what a kubelet would write are
constructed.

`{CROWD}` creates {found.pods} Pods of one device at once; two other tenants of the same weight create one every
{EVERY:g} s. There are {H100} H100 and {A100} A100; each Pod runs {LASTS:g} s. All of it took {found.seconds:.0f} s.
Seconds from a Pod's creation until it might go, as the API server's audit log has them:

| tenant | Pods | mean | 95 % | longest | longest until allocated | got |
| --- | --- | --- | --- | --- | --- | --- |
{rows}
The bound for a tenant below its share: the next of the {H100 + A100} devices that is given back is its own, so at most
{LASTS:g} s for a Pod to run and {SLACK:g} s for a device to change hands here, {found.bound:g} s in all. Longest wait
of the small tenants: {found.longest:.1f} s.

What the checker found in the arbiter's log, and the judge in the audit log:{wrong}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.flood", description=__doc__)
    parser.add_argument("--pods", type=int, default=600, help="of the crowd; default: %(default)s")
    found = run(parser.parse_args().pods)
    PROOF.write_text(page(found))
    print(json.dumps({"longest": found.longest, "bound": found.bound, "checker": found.checker}, indent=2))
    return 1 if found.checker or found.faults or found.longest > found.bound else 0


if __name__ == "__main__":
    sys.exit(main())
