"""Creates in parallel against a quota while replicas, the leader and connections die. Writes docs/proofs/quota.md.

Three replicas and two controllers; each round one tenant has 16 devices and 8 of them in use, and 200 Pods are created
at once in its 20 namespaces. Judged from the API server's audit log alone (`proofs.audited`).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.machine import commit, described
from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.control_plane import GATE_CONTROLLER
from controlplane.delay import Delay
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_succeeded
from e2e import scene
from proofs.arbiter_logs import violations
from proofs.audited import GATE, Caps, Judge, audited_plane, unanswered, writes

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "quota.md"
QUOTA, USED, H100 = 16, 8, 6
NAMESPACES, CREATES, PARALLEL = 20, 200, 32
CHAOS = 25.0  # seconds in which things break
TORN = 0.03  # share of the Pods that end by being deleted by force: what they held counts for another minute
PAUSE = 20.0  # seconds that the old leader sleeps: longer than its Lease holds
# Seconds until everybody has what it can have, after the last thing was broken. A crash costs a Lease 20, and what a
# Pod held that was torn away counts for 60: both may come last, on a machine half as fast.
SETTLE = 150.0
LEAK = 120.0
FLEET = {
    "nodes": [
        {"name": "hopper", "count": 4, "devices": {"h100": 8}},
        {"name": "ampere", "count": 4, "devices": {"a100": 8}},
    ]
}
# How each tenant is held (late claims with a quota by model, or templates), and what happens above its quota.
TENANTS = {f"{hold}-{over}": (hold, over) for hold in ("late", "template") for over in ("wait", "reject")}


def policies(folder: Path) -> Path:
    """A policy set with these tenants."""
    catalog = {
        "apiVersion": "policy.dra-gate.io/v1alpha1",
        "kind": "DeviceCatalog",
        "models": [
            {"name": "h100", "deviceClassName": "gpu.nvidia.com", "products": ["NVIDIA H100*"]},
            {"name": "a100", "deviceClassName": "gpu.nvidia.com", "products": ["NVIDIA A100*"]},
        ],
    }
    policy = {
        "apiVersion": "policy.dra-gate.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "ordered", "version": 1},
        "spec": {"serves": ["nvidia.com/gpu"], "candidates": ["h100", "a100"]},
    }
    documents = [catalog, policy]
    for name, (hold, over) in TENANTS.items():
        quota: Object = {"devices": QUOTA} | ({"models": {"h100": H100}} if hold == "late" else {})
        spec = {"namespaces": namespaces(name), "policy": "ordered@1", "quota": quota, "overQuota": over}
        documents.append(
            {
                "apiVersion": "policy.dra-gate.io/v1alpha1",
                "kind": "Tenant",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    folder.mkdir()
    (folder / "quota.yaml").write_text(yaml.safe_dump_all(documents))
    return folder


def namespaces(tenant: str) -> list[str]:
    return [f"{tenant}-{number:02}" for number in range(NAMESPACES)]


def caps(tenant: str) -> Caps:
    models = {"h100": H100} if TENANTS[tenant][0] == "late" else {}
    return Caps(frozenset(namespaces(tenant)), QUOTA, models)


# -- what befalls them ------------------------------------------------------------------------------------------------


class Chaos:
    """Breaks something every now and then in a thread of its own while the block is open, and mends it at the end."""

    def __init__(self, gate: Gate, way: Delay, rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._gate, self._way, self._rng = gate, way, rng
        self._stop = threading.Event()
        self._paused: dict[str, float] = {}  # controller -> when it is woken
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._pause()
            while not self._stop.wait(self._rng.uniform(0.5, 2.0)):
                self._wake(time.monotonic())
                self._rng.choice((self._replica, self._leader, self._calls, self._watches))()
            time.sleep(max(0.0, max(self._paused.values(), default=0.0) - time.monotonic()))
            self._wake(float("inf"))
        except BaseException as problem:  # noqa: BLE001 - raised where the block ends
            self.failure = problem

    def _replica(self) -> None:
        name = self._rng.choice(self._gate.replicas)
        self._gate.stop_replica(name, kill=True)
        self._gate.start_replica(name, wait=False)
        self.done["a replica was killed"] += 1

    def _leader(self) -> None:
        name = holder(self._gate.plane.api())
        if name in self._gate.controllers and name not in self._paused:
            self._gate.stop_controller(name, kill=True)
            self._gate.start_controller(name)
            self.done["the leader was killed"] += 1

    def _calls(self) -> None:
        self._gate.forwarder.cut()
        self.done["connections to the webhook were cut"] += 1

    def _watches(self) -> None:
        self._way.cut()
        self.done["the controllers' connections were cut"] += 1

    def _pause(self) -> None:
        """The leader sleeps for longer than its Lease holds, in the middle of whatever it is doing."""
        self._stop.wait(self._rng.uniform(0.2, 2.0))
        name = holder(self._gate.plane.api())
        if name in self._gate.controllers:
            self._gate.plane.processes.signal(name, signal.SIGSTOP)
            self._paused[name] = time.monotonic() + PAUSE
            self.done["the leader was paused, and came back"] += 1

    def _wake(self, now: float) -> None:
        for name in [one for one, until in self._paused.items() if until <= now]:
            del self._paused[name]
            self._gate.plane.processes.signal(name, signal.SIGCONT)


def holder(api: Api) -> str:
    """Which controller has the Lease."""
    lease = api.find("leases", "dra-gate-controller", "dra-gate") or {"spec": {}}
    return str(lease["spec"].get("holderIdentity") or "")


# -- a round ----------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """What came of it. Seconds; `lost` and the others are said in words, one each."""

    tenant: str
    seed: int
    accepted: int = 0
    refused: int = 0
    let_go: int = 0
    waiting: int = 0
    ended: int = 0
    done: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    most: int = 0
    most_allocated: int = 0
    instants: int = 0
    settled: float = 0.0
    level: float = 0.0  # until the ledger's status said what the claims say

    @property
    def wrong(self) -> list[str]:
        unjudged = [] if self.instants > 200 else [f"{self.tenant}: the judge saw {self.instants} writes"]
        return [*unjudged, *self.over, *self.lost, *self.leaked, *self.checked]


class Stage:
    """The control plane, the gate and the judge, for as many rounds as wanted."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.plane = stack.enter_context(audited_plane(folder))
        self.api = self.plane.api()
        Fleet.of("quota", FLEET).install(self.api)
        for tenant in TENANTS:
            self.api.parallel(lambda name: scene.namespace(self.api, name), namespaces(tenant))
        self.way = stack.enter_context(Delay(int(self.plane.url.rpartition(":")[2]), 0.0))
        config = folder / "controller.conf"
        config.write_text(
            self.plane.kubeconfig_for(GATE_CONTROLLER)
            .read_text()
            .replace(self.plane.url, f"https://127.0.0.1:{self.way.port}")
        )
        names = ("gate-controller", "gate-controller-1")
        self.arbiter_log = self.plane.run_dir / "arbiter"
        self.gate = stack.enter_context(
            Gate(
                self.plane,
                policies(folder / "policies"),
                replicas=3,
                controllers=2,
                published=True,
                kubeconfigs=dict.fromkeys(names, config),
                controller_flags=("--arbiter-log", f"{self.arbiter_log}/{{name}}"),
            )
        )
        self.judge = Judge({tenant: caps(tenant) for tenant in TENANTS})
        self._read = 0
        self._torn: set[tuple[str, str]] = set()

    def round(self, tenant: str, seed: int) -> Round:
        """One round; leaves the tenant with nothing."""
        found, rng = Round(tenant, seed), random.Random(seed)
        seen = len(self.judge.accounts[tenant].violations), len(self.judge.faults), self.judge.accounts[tenant].instants
        places = namespaces(tenant)
        used = [self.api.create(scene.pod(f"used-{n}"), places[n % NAMESPACES]) for n in range(USED)]
        for pod in used:
            scene.bound(self.api, pod["metadata"]["namespace"], pod["metadata"]["name"])
        accepted = {_key(pod): pod["metadata"]["uid"] for pod in used}
        self._torn.clear()
        with Chaos(self.gate, self.way, rng) as chaos:
            until = time.monotonic() + CHAOS
            made = self._create(tenant, rng)
            while time.monotonic() < until:
                found.ended += self._end_one(tenant, rng)
                time.sleep(rng.uniform(0.3, 1.5))
        found.done = chaos.done
        self.gate.start()
        accepted |= {key: uid for key, uid in made.items() if uid}
        found.refused = sum(not uid for uid in made.values())
        found.accepted = len(made) - found.refused
        began = time.monotonic()
        found.lost = _when_quiet(lambda: self._lost(tenant, accepted), SETTLE)
        found.settled = time.monotonic() - began
        pods = self._pods(tenant)
        found.waiting = sum(map(_is_gated, pods))
        found.let_go = len(pods) - found.waiting
        began = time.monotonic()
        found.leaked = _when_quiet(lambda: self._leaked(tenant), LEAK)
        found.level = time.monotonic() - began
        self._empty(tenant)
        found.leaked += _when_quiet(lambda: self._leaked(tenant), LEAK)
        self._look()
        account = self.judge.accounts[tenant]
        found.over = account.violations[seen[0] :] + self.judge.faults[seen[1] :]
        found.instants = account.instants - seen[2]
        found.most, found.most_allocated = account.most, account.most_allocated
        return found

    def _create(self, tenant: str, rng: random.Random) -> dict[tuple[str, str], str]:
        """Creates them all at once, and again where nobody answered; the UID of each, empty if refused for good."""
        wanted = [(name, f"burst-{n}", rng.choice((1, 1, 1, 2))) for name in namespaces(tenant)
                  for n in range(CREATES // NAMESPACES)]  # fmt: skip
        rng.shuffle(wanted)

        def create(one: tuple[str, str, int]) -> tuple[tuple[str, str], str]:
            namespace, name, gpus = one
            pod = scene.pod(name, scene.container(gpus=gpus))
            for _ in range(60):
                try:
                    return (namespace, name), self.api.create(pod, namespace)["metadata"]["uid"]
                except ApiError as problem:
                    if problem.status == 409:
                        return (namespace, name), self.api.get("pods", name, namespace)["metadata"]["uid"]
                    if problem.status == 403 and " QUOTA " in problem.message:
                        return (namespace, name), ""
                    last = problem
                time.sleep(0.5)  # a call of a webhook was not answered: as a controller would, again
            raise last

        with ThreadPoolExecutor(PARALLEL) as pool:
            return dict(pool.map(create, wanted))

    def _end_one(self, tenant: str, rng: random.Random) -> int:
        """One of the Pods that are bound finishes, so that another one's turn comes; now and then it is torn away."""
        bound = [one for one in self._pods(tenant) if "nodeName" in one["spec"]]
        if not bound:
            return 0
        namespace, name = _key(rng.choice(bound))
        if rng.random() < TORN:
            self._torn.add((namespace, name))
            delete_now(self.api, namespace, name)
        else:
            mark_succeeded(self.api, namespace, name)
        return 1

    def _pods(self, tenant: str) -> list[Object]:
        """Its Pods that have not finished."""
        pods = self.api.list("pods")
        return [one for one in pods if one["metadata"]["namespace"].startswith(tenant) and not _is_finished(one)]

    def _lost(self, tenant: str, accepted: dict[tuple[str, str], str]) -> list[str]:
        """Accepted Pods that are neither bound nor truly waiting."""
        there = {_key(one): one for one in self.api.list("pods") if one["metadata"]["namespace"].startswith(tenant)}
        wrong = [f"{'/'.join(key)} is not there" for key, uid in accepted.items()
                 if key not in self._torn and (key not in there or there[key]["metadata"]["uid"] != uid)]  # fmt: skip
        held, _ = self._truth(tenant)
        for key, pod in there.items():
            if _is_finished(pod):
                continue
            if not _is_gated(pod):
                if "nodeName" not in pod["spec"]:
                    wrong.append(f"{'/'.join(key)} was let go and is not bound")
                continue
            conditions = [one for one in pod["status"].get("conditions", []) if one["type"] == "dra-gate.io/Granted"]
            if not conditions or conditions[0]["status"] != "False" or not conditions[0].get("message"):
                wrong.append(f"{'/'.join(key)} waits and nothing says why")
            elif held + int(pod["metadata"]["annotations"]["dra-gate.io/devices"]) <= QUOTA:
                said = f"{conditions[0]['reason']}: {conditions[0]['message']}"
                wrong.append(f"{'/'.join(key)} waits with {held} of {QUOTA} devices held ({said})")
        return wrong

    def _truth(self, tenant: str) -> tuple[int, Counter[str]]:
        """What its claims have been allocated."""
        models: Counter[str] = Counter()
        for claim in self.api.list("resourceclaims"):
            if claim["metadata"]["namespace"].startswith(tenant):
                results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
                models.update(result["request"].partition("/")[2] for result in results)
        return models.total(), models

    def _leaked(self, tenant: str) -> list[str]:
        """Where the ledger differs from what the claims say."""
        ledger = self.api.find("tenantledgers", tenant)
        if ledger is None:
            return [f"{tenant} has no ledger"]
        devices, models = self._truth(tenant)
        status = ledger.get("status", {})
        wrong = []
        if status.get("devices", 0) != devices:
            wrong.append(f"the ledger says {status.get('devices', 0)} devices, the claims {devices}")
        if Counter(status.get("models", {})) != models:
            wrong.append(f"the ledger says {status.get('models', {})}, the claims {dict(models)}")
        if status.get("waiting", 0) != sum(map(_is_gated, self._pods(tenant))):
            wrong.append(
                f"the ledger says {status.get('waiting', 0)} wait, the Pods {sum(map(_is_gated, self._pods(tenant)))}"
            )
        if ledger["spec"].get("grants"):
            wrong.append(f"{len(ledger['spec']['grants'])} grants are open")
        return wrong

    def _empty(self, tenant: str) -> None:
        """Every Pod finishes or goes, as Jobs and kubelets would have it."""

        def end(pod: Object) -> None:
            namespace, name = _key(pod)
            if "nodeName" in pod["spec"] and not _is_finished(pod):
                mark_succeeded(self.api, namespace, name)
            delete_now(self.api, namespace, name)

        def empty() -> bool:
            pods = [one for one in self.api.list("pods") if one["metadata"]["namespace"].startswith(tenant)]
            with contextlib.suppress(ApiError):
                self.api.parallel(end, sorted(pods, key=lambda one: "nodeName" in one["spec"]))
            return not pods and not self._truth(tenant)[0]

        wait_for(empty, 60, f"Pods and claims of {tenant} to go", every=0.5)

    def _look(self) -> None:
        """Shows the judge what was written since the last time. Nothing is under way now."""
        events = []
        with self.plane.audit_log.open() as lines:
            lines.seek(self._read)
            while (line := lines.readline()).endswith("\n"):
                events.append(json.loads(line))
                self._read = lines.tell()
        self.judge.unanswered |= unanswered(events)
        self.judge.run(writes(events))


def _when_quiet(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """What is found wrong twice in a row with nothing found in between, when the time is over; else nothing."""
    deadline = time.monotonic() + seconds
    while True:
        wrong = look()
        if not wrong or time.monotonic() > deadline:
            return wrong
        time.sleep(1)


def _key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _is_gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", []))


def _is_finished(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def rounds(number: int, seed: int) -> Iterator[Round]:
    """So many rounds, the tenants in turn. The last one gets what the checker has against the arbiter's logs."""
    with contextlib.ExitStack() as stack:
        stage = Stage(stack)
        for n, tenant in zip(range(1, number + 1), itertools.cycle(TENANTS), strict=False):
            found = stage.round(tenant, seed + n)
            if n == number:
                found.checked = [str(one) for one in violations(stage.arbiter_log)]
            yield found


# -- the page ---------------------------------------------------------------------------------------------------------


def page(found: list[Round], seed: int) -> str:
    done = sum((one.done for one in found), Counter[str]())
    table = "".join(f"| {what} | {times} |\n" for what, times in sorted(done.items()))
    rows = "".join(
        f"| {n} | {one.tenant} | {one.accepted} | {one.refused} | {one.ended} | {one.let_go} | {one.waiting} | "
        f"{one.most} | {one.most_allocated} | {one.instants} | {one.settled:.0f} | {one.level:.0f} |\n"
        for n, one in enumerate(found, 1)
    )
    wrong = "".join(f"\n- {line}" for one in found for line in one.wrong) or " none"
    short = "" if len(found) >= 20 else f" These are {len(found)} of the 20 rounds that are meant."
    return f"""# A quota that a burst does not pass

Made by `make prove-quota` on {dt.datetime.now(dt.UTC).date()} at commit {commit()}, seed {seed}, on {described()},
which control plane, gate and clients shared.{short} Three replicas of the webhook, two controllers, a real control
plane; nodes, slices and what a kubelet would write are constructed.

Each round: a tenant with a quota of {QUOTA} devices has {USED} in use; {CREATES} Pods of one or two devices are
created from {PARALLEL} threads in its {NAMESPACES} namespaces, and for {CHAOS:g} s bound Pods end one after the other
({TORN:.0%} are deleted by force), so that others get their turn while things break. `late` tenants have a quota of
{H100} H100 beside, so their claims are written at the grant; `template` tenants' Pods name the tenant's template.
`reject` refuses from the ledger's last word (best effort), `wait` queues.

What was broken meanwhile, at random:

| what | times |
| --- | --- |
{table}
The judge replays the API server's audit log in the order of resourceVersions and knows nothing of the gate's code:
after each write it adds up what is allocated and, at their worst case, the claims of every Pod that may go. *most* is
the most that the tenant ever held by that count, *allocated* by claims' status alone, in the tenant's rounds so far.
*settled*: seconds until every Pod was bound or waited truly, *level*: until the ledger said what the claims say.

| round | tenant | accepted | refused | ended | hold devices | wait | most | allocated | instants | settled | level |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
- Overshoot: {sum(bool(one.over) for one in found)} rounds
- Lost Pods (accepted, and neither bound nor waiting for a true reason): {sum(len(one.lost) for one in found)}
- Leaked charges (ledger unlike the claims after {LEAK:.0f} s): {sum(bool(one.leaked) for one in found)} rounds

What was wrong:{wrong}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.quota", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    found = []
    for one in rounds(arguments.rounds, arguments.seed):
        found.append(one)
        print(one, flush=True)
        PROOF.write_text(page(found, arguments.seed))
    return 1 if any(one.wrong for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
