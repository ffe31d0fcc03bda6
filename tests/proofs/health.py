"""Two hundred Pods while devices and nodes fall ill and recover, the controller is killed, the API server restarted.

At the end every Pod is bound to devices that are well, or something says truly why not; judged by this module's own
plain reading of the cluster, not by the gate's. Writes docs/proofs/health.md and two plots beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.machine import child_named, commit, described, pss
from controlplane.api import Api, Object, wait_for
from controlplane.background import Background
from controlplane.control_plane import API_SERVER, AUDIT_POLICY, GATE_CONTROLLER, ControlPlane
from controlplane.fleet import (
    Fleet,
    cordon,
    delete_node,
    republish,
    set_ready,
    slices_of,
    taint_device,
    taint_rule,
    untaint_device,
)
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_running
from dra_gate.policy.load import load
from e2e import scene
from e2e.test_health import POLICIES, ROLE, replica_set

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "health.md"
NAMESPACES = {"e2e-recreate": 100, "e2e-alert": 50, "e2e-keep": 50}  # and the Pods in each
NODES, DEVICES = 32, 8
REPLICAS = 10  # Pods of one owner
MOST_ILL = 8  # nodes that something is wrong with at a time, so that the Pods still find a place
QUIET_SECONDS = 150.0  # Pod GC takes 79 s to free what a lost node held, an eviction up to a budget's refill
RULE = "chaos-"
SHORT = "This run is shorter than the 30 minutes that are meant, too short to\ncall the memory flat or not."


# -- what befalls them ------------------------------------------------------------------------------------------------


@dataclass
class Chaos:
    """Does one thing after the other to a fleet, from a seed, and undoes it some time later."""

    api: Api
    fleet: Fleet
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    _undo: dict[str, Callable[[], None]] = field(default_factory=dict)  # by node

    def step(self) -> None:
        """One thing goes wrong, or one is put right."""
        if len(self._undo) >= MOST_ILL or (self._undo and self.rng.random() < 0.4):
            node = self.rng.choice(sorted(self._undo))
            self._undo.pop(node)()
            self.done["put right"] += 1
            return
        node = self.rng.choice(sorted({one["metadata"]["name"] for one in self.fleet.nodes} - self._undo.keys()))
        what = self.rng.choice((self._taint, self._rule, self._replace, self._take, self._halve, self._cordon,
                                self._not_ready, self._vanish))  # fmt: skip
        undo = what(node)
        self.done[str(what.__doc__)] += 1
        if undo is not None:
            self._undo[node] = undo

    def _device(self) -> str:
        return f"gpu-{self.rng.randrange(DEVICES)}"

    def _taint(self, node: str) -> Callable[[], None]:
        """a device is tainted by its driver"""
        device = self._device()
        taint_device(self.api, node, device, "gpu.nvidia.com/xid", "79")
        return lambda: untaint_device(self.api, node, device, "gpu.nvidia.com/xid")

    def _rule(self, node: str) -> Callable[[], None]:
        """a node's devices are tainted by a rule"""
        taint_rule(self.api, RULE + node, "example.com/drain", pool=node)
        return lambda: self.api.delete("devicetaintrules", RULE + node)

    def _replace(self, node: str) -> None:
        """a pool is published anew, as it was"""
        republish(self.api, node)

    def _take(self, node: str) -> Callable[[], None]:
        """a device is gone from its pool"""
        device = self._device()
        before = slices_of(self.api, node)[0]["spec"]["devices"]
        republish(self.api, node, lambda devices: [one for one in devices if one["name"] != device])
        return lambda: void(republish(self.api, node, lambda _: before))

    def _halve(self, node: str) -> Callable[[], None]:
        """a pool is incomplete"""
        self._count(node, 2)
        return lambda: self._count(node, 1)

    def _count(self, node: str, slices: int) -> None:
        one = slices_of(self.api, node)[0]
        one["spec"]["pool"]["resourceSliceCount"] = slices
        one["spec"]["pool"]["generation"] += 1
        self.api.replace(one)

    def _cordon(self, node: str) -> Callable[[], None]:
        """a node is cordoned"""
        cordon(self.api, node)
        return lambda: cordon(self.api, node, on=False)

    def _not_ready(self, node: str) -> Callable[[], None]:
        """a node is not ready"""
        set_ready(self.api, node, ready=False)
        return lambda: set_ready(self.api, node, ready=True)

    def _vanish(self, node: str) -> Callable[[], None]:
        """a node vanishes with its slice"""
        delete_node(self.api, node)
        for one in slices_of(self.api, node):
            self.api.delete("resourceslices", one["metadata"]["name"], missing_ok=True)
        nodes = tuple(one for one in self.fleet.nodes if one["metadata"]["name"] == node)
        slices = tuple(one for one in self.fleet.slices if one["spec"]["nodeName"] == node)
        return lambda: Fleet(self.fleet.name, nodes, (), slices).install(self.api)


def void(_: object) -> None:
    """Forgets a result."""


class Kubelets:
    """Half of the Pods start some time after they are bound, the others never do; what is deleted goes. Constructed:
    there is no kubelet."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._bound: dict[str, float] = {}

    def __call__(self) -> None:
        for pod in self._api.list("pods"):
            metadata = pod["metadata"]
            uid = metadata["uid"]
            if "nodeName" not in pod["spec"]:
                continue
            if "deletionTimestamp" in metadata:
                delete_now(self._api, metadata["namespace"], metadata["name"])
            elif pod["status"].get("phase") == "Pending" and int(uid[:8], 16) % 2:
                bound = self._bound.setdefault(uid, time.monotonic())
                if time.monotonic() - bound > 15:
                    mark_running(self._api, metadata["namespace"], metadata["name"])


# -- the judge --------------------------------------------------------------------------------------------------------


def sick(api: Api) -> dict[tuple[str, str], str]:
    """Every device that is not well, by pool and name, and those that are nowhere are absent; and why. Empty: well."""
    nodes = {one["metadata"]["name"]: one for one in api.list("nodes")}
    rules = {one["spec"]["deviceSelector"]["pool"] for one in api.list("devicetaintrules")}
    found = {}
    for one in api.list("resourceslices"):
        spec = one["spec"]
        pool, node = spec["pool"]["name"], nodes.get(spec["nodeName"])
        for device in spec["devices"]:
            if spec["pool"]["resourceSliceCount"] != 1:
                why = "pool incomplete"
            elif node is None:
                why = "node lost"
            elif any(c["type"] == "Ready" and c["status"] != "True" for c in node["status"]["conditions"]):
                why = "node not ready"
            elif node["spec"].get("unschedulable"):
                why = "node cordoned"
            else:
                why = "taint" if device.get("taints") or pool in rules else ""
            found[pool, device["name"]] = why
    return found


def judged(api: Api) -> tuple[Counter[str], list[str]]:
    """How Pods ended, and those for which nothing says truly why they are not well placed."""
    # Not one moment: what moves meanwhile counts as wrong, and is looked at again.
    listed = {namespace: api.list("pods", namespace) for namespace in NAMESPACES}
    claims = {(c["metadata"]["namespace"], c["metadata"]["name"]): c for c in api.list("resourceclaims")}
    health = sick(api)
    held = {
        (result["pool"], result["device"])
        for claim in claims.values()
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    }
    room = sum(not why and device not in held for device, why in health.items())
    ends: Counter[str] = Counter()
    wrong = []
    for namespace, wanted in NAMESPACES.items():
        pods = [pod for pod in listed[namespace] if "deletionTimestamp" not in pod["metadata"]]
        if len(pods) != wanted:
            wrong.append(f"{namespace}: {len(pods)} Pods, not {wanted}")
        events = api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events").body["items"]
        notes: dict[str, str] = {}
        for event in events:
            if event["reason"] == "UnhealthyDevice":
                uid = event["regarding"]["uid"]
                notes[uid] = f"{notes.get(uid, '')} {event['note']}"
        for pod in pods:
            said = notes.get(pod["metadata"]["uid"], "")
            end, fine = _end(namespace, pod, claims, health, said, room)
            ends[end] += 1
            if not fine:
                wrong.append(f"{namespace}/{pod['metadata']['name']}: {end}; Events: {said or 'none'}")
    return ends, wrong


def _end(
    namespace: str,
    pod: Object,
    claims: dict[tuple[str, str], Object],
    health: dict[tuple[str, str], str],
    notes: str,
    room: int,
) -> tuple[str, bool]:
    runs = pod["status"].get("phase") == "Running"
    if "nodeName" not in pod["spec"]:
        conditions = [c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        reason = conditions[0].get("reason", "") if conditions else "silence"
        # The scheduler looks again within a second of every change, so that it must be right by now.
        return f"waits, {reason}, {'no' if not room else 'a'} device is left", reason == "Unschedulable" and not room
    names = [status["resourceClaimName"] for status in pod["status"].get("resourceClaimStatuses", [])]
    results = []
    for name in names:
        allocation = claims.get((namespace, name), {}).get("status", {}).get("allocation")
        if allocation is None:
            return "bound a moment ago", False
        results += allocation["devices"]["results"]
    ill = {r["device"]: why for r in results if (why := health.get((r["pool"], r["device"]), "not published"))}
    if not results or not ill:
        return ("bound, well" if results else "bound without a device"), bool(results)
    state = "runs" if runs else "has not started"
    why = next(iter(ill.values()))
    if namespace == "e2e-keep":
        return f"bound, {state}, device ill: its policy says to keep it", True
    if runs and why == "node cordoned":
        return "bound, runs, node cordoned", True
    told = all(f"/{device}: {why}" in notes for device, why in ill.items())
    return f"bound, {state}, device ill: {'told' if told else 'not told'}", told


# -- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What a run gave. `calls` are the controller's, in seconds since its beginning; `memory` the seconds and MiB."""

    minutes: float
    seed: int
    done: Counter[str]
    ends: Counter[str]
    wrong: list[str]
    evictions: int
    events: int
    calls: list[tuple[float, str]]
    memory: list[tuple[float, float]]
    killed: list[float]
    restarted: list[float]

    def per_second(self, *, leases: bool = True) -> list[int]:
        """Calls in each second."""
        counts = Counter(int(at) for at, what in self.calls if leases or "leases" not in what)
        return [counts[second] for second in range(int(max(at for at, _ in self.calls)) + 1)]

    @property
    def slope(self) -> float:
        """MiB an hour, over what the last controller used from its second minute on (least squares)."""
        since = max(self.killed, default=0.0)
        points = [(at, mib) for at, mib in self.memory if at > since + min(60.0, (self.memory[-1][0] - since) / 3)]
        mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
        above = sum((x - mean_x) * (y - mean_y) for x, y in points)
        return 3600 * above / sum((x - mean_x) ** 2 for x, _ in points)


def run(minutes: float, seed: int, every: float = 2.0) -> Run:
    """Chaos for so many minutes, then quiet, then the judgement."""
    fleet = Fleet.of(
        "chaos",
        {
            "nodes": [
                {"name": "hopper", "count": NODES // 2, "devices": {"h100": DEVICES}},
                {"name": "ampere", "count": NODES // 2, "devices": {"a100": DEVICES}},
            ]
        },
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(_plane(folder))
        api = plane.api()
        api.apply_yaml(ROLE.read_text())
        fleet.install(api)
        for namespace in NAMESPACES:
            scene.namespace(api, namespace)
        gate = stack.enter_context(Gate(plane, POLICIES, controller_flags=("--recreate",)))
        wait_for(lambda: len(api.list("resourceclaimtemplates")) >= len(load(POLICIES).tenants), 60, "templates")
        for namespace, pods in NAMESPACES.items():
            for number in range(pods // REPLICAS):
                api.create(replica_set(f"work-{number}", REPLICAS), namespace)
        wanted = sum(NAMESPACES.values())
        wait_for(lambda: sum("nodeName" in p["spec"] for p in api.list("pods")) == wanted, 240, "Pods", every=1.0)

        began, clock = time.time(), time.monotonic()
        memory: list[tuple[float, float]] = []
        killed: list[float] = []
        restarted: list[float] = []
        chaos = Chaos(api, fleet, random.Random(seed))

        def measure() -> None:
            with contextlib.suppress(LookupError, OSError):
                memory.append((time.monotonic() - clock, pss([_controller(plane)])))

        stack.enter_context(Background(Kubelets(plane.api()), 1.0))
        stack.enter_context(Background(measure, 2.0))
        # The last stretch is left to one controller, so that its memory says something.
        planned = sorted([(0.2, "kill"), (0.45, "kill"), (0.3, "restart"), (0.7, "restart")])
        while (passed := time.monotonic() - clock) < 60 * minutes:
            if planned and passed > planned[0][0] * 60 * minutes:
                if planned.pop(0)[1] == "kill":
                    killed.append(passed)
                    gate.stop_controller(kill=True)
                    gate.start_controller()
                else:
                    restarted.append(passed)
                    plane.restart(API_SERVER)
            chaos.step()
            time.sleep(every)
        ends, wrong = _settled(api)
        calls, evictions, events = _calls(plane, began)
        return Run(minutes, seed, chaos.done, ends, wrong, evictions, events, calls, memory, killed, restarted)


def _plane(folder: Path) -> ControlPlane:
    """Its audit log has every request of the controller."""
    every = {"level": "Metadata", "users": [GATE_CONTROLLER.name]}
    policy = folder / "audit.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY | {"rules": [every, *AUDIT_POLICY["rules"]]}))
    return ControlPlane(api_server_flags=[f"--audit-policy-file={policy}"])


def _controller(plane: ControlPlane) -> int:
    return child_named(plane.processes.supervisor, "", "controller")


def _settled(api: Api) -> tuple[Counter[str], list[str]]:
    """The judgement, as soon as nothing is wrong with it, or after a time."""
    ends = time.monotonic() + QUIET_SECONDS
    while True:
        found = judged(api)
        if not found[1] or time.monotonic() > ends:
            return found
        time.sleep(3)


def _calls(plane: ControlPlane, began: float) -> tuple[list[tuple[float, str]], int, int]:
    found = []
    evictions = events = 0
    for event in plane.audit_events():
        at = dt.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp() - began
        mine = event["user"]["username"] == GATE_CONTROLLER.name
        if at < 0 or not mine or event["stage"] == "ResponseStarted":  # a watch has two lines
            continue
        ref = event.get("objectRef", {})
        found.append((at, f"{event['verb']} {ref.get('resource', '')}"))
        accepted = event["responseStatus"]["code"] < 300
        evictions += accepted and ref.get("subresource") == "eviction"
        events += accepted and ref.get("resource") == "events" and event["verb"] == "create"
    return sorted(found), evictions, events


# -- the page ---------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP = 880, 220, 46, 18


def plot(title: str, points: list[tuple[float, float]], marks: dict[str, list[float]], unit: str) -> str:
    """One line over minutes as SVG, with dashed lines where something was done."""
    right, top = max(x for x, _ in points) or 1.0, max(y for _, y in points) * 1.1 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (_WIDTH - _LEFT - 10) * x / right, _HEIGHT - 30 - (_HEIGHT - 30 - _TOP) * y / top

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="12">{title}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        value = top / 1.1 * share
        x, y = at(0, value)
        parts.append(f'<line x1="{x:.0f}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 5:.0f}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for minute in range(int(right // 60) + 1):
        if right <= 600 or minute % 5 == 0:
            x, y = at(60 * minute, 0)
            parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{minute} min</text>')
    for row, (colour, (name, times)) in enumerate(zip(("#c33", "#36c"), marks.items(), strict=False)):
        for number, when in enumerate(times):
            x, y = at(when, 0)
            dashed = f'y1="{_TOP}" y2="{y:.1f}" stroke="{colour}" stroke-dasharray="4 3"'
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {dashed}/>')
            label = f'<text x="{x + 3:.1f}" y="{_TOP + 10 + 14 * row}" fill="{colour}">{name}</text>'
            parts.append(label if number == 0 else "")
    parts.append(f'<polyline points="{line}" fill="none" stroke="#222"/>')
    parts.append(f'<text x="{_WIDTH - 10}" y="12" text-anchor="end">{unit}</text></svg>\n')
    return "\n".join(filter(None, parts))


def page(found: Run, command: str) -> str:
    """The page, its plots beside it."""
    calls, own = found.per_second(), found.per_second(leases=False)
    marks = {"controller killed": found.killed, "API server restarted": found.restarted}
    for name, title, points, unit in (
        ("calls", "Requests of the controller", [(float(at), float(n)) for at, n in enumerate(calls)], "a second"),
        ("memory", "Memory of the controller", found.memory, "MiB"),
    ):
        PROOF.with_name(f"health-{name}.svg").write_text(plot(title, points, marks, unit))
    last = [mib for at, mib in found.memory if at > max(found.killed, default=0.0) + 20]
    done = "".join(f"| {what} | {times} |\n" for what, times in sorted(found.done.items()))
    ends = "".join(f"| {what} | {times} |\n" for what, times in sorted(found.ends.items()))
    wrong = "".join(f"\n- {line}" for line in found.wrong) or " none"
    short = f" {SHORT}" if found.minutes < 30 else ""
    return f"""# Pods on devices that fall ill

Made by `{command}` on {dt.datetime.now(dt.UTC).date()} at commit {commit()}, seed {found.seed}:
{found.minutes:g} minutes on {described()}.
Control plane, gate and chaos shared it. {sum(NAMESPACES.values())} Pods of ReplicaSets on {NODES} nodes of {DEVICES}
devices; half of the Pods never start. Constructed: nodes, slices and what a kubelet would write.

| what was done | times |
| --- | --- |
{done}| the controller was killed | {len(found.killed)} |
| the API server was restarted | {len(found.restarted)} |

| how Pods ended | Pods |
| --- | --- |
{ends}
Neither bound nor with a true reason:{wrong}

The controller evicted {found.evictions} Pods and wrote {found.events} Events. Its requests, leases, lists and watches
included: {sum(calls)} in all, {sum(calls) / len(calls):.2f} a second on average ({sum(own) / len(own):.2f} without the
Lease), at most {max(calls)} in one second and {busiest(calls):.1f} a second over ten.

![Requests a second](health-calls.svg)

Memory of the controller (PSS) after its last start: {min(last):.1f} to {max(last):.1f} MiB,
slope {found.slope:+.1f} MiB an hour.{short}

![Memory](health-memory.svg)
"""


def busiest(calls: list[int], seconds: int = 10) -> float:
    sums = [0]
    for count in calls:
        sums.append(sums[-1] + count)
    return max(end - begin for begin, end in zip(sums, sums[seconds:] or sums[-1:], strict=False)) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.health", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of chaos; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    found = run(arguments.minutes, arguments.seed)
    PROOF.write_text(page(found, f"make prove-health MINUTES={arguments.minutes:g}"))
    print(json.dumps({"ends": found.ends, "wrong": found.wrong, "evictions": found.evictions}, indent=2))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
