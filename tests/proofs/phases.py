"""The switch while Pods are in every phase, and something is down or happens twice. Writes docs/proofs/phases.md.

A real control plane with a node of each kind. `allocated` is constructed: a claim's status is written as the scheduler
would, since it binds in the same breath; so is what a kubelet would write.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import commit, described
from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_running, mark_succeeded
from e2e import scene
from proofs.audited import FINISHED, audited_plane, is_held
from proofs.lanes_audited import DRA, LANE, LaneJudge, Turn
from proofs.migration import RIGHTS, places, rules, slim
from proofs.migration_load import job_of, pod_of

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "phases.md"
POLICIES = Path(__file__).parent / "phases_policies"
RULES = {"recreate": "phase-recreate", "keep": "phase-keep", "release": "phase-release"}
DEVICES = 18  # under DRA: six Pods of each tenant hold one each, and those that are held find none
FLEET = {
    "classes": {"gpu.nvidia.com": {"extendedResourceName": None}},
    "nodes": [
        {"name": "new", "devices": {"h100": DEVICES}, "labels": {"gpu-pool": "dra"}},
        {"name": "old", "allocatable": {"nvidia.com/gpu": 96},
         "labels": {"gpu-pool": "device-plugin", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
    ],
}  # fmt: skip
LATER = "example.com/later"  # somebody else's gate: who has it is not scheduled once ours is off
ENDS = 90.0  # seconds until everything is as documented
DOWN = 4.0  # seconds that something is down after the switch
COMING, EVERY = 12, 0.3  # Jobs that are created around the switch, and the seconds between two

# What each Pod is when the switch comes, and what it has become then, by its policy's onRollback; then forward again.
AGAIN, HELD, GIVEN, TAKEN, NODE = (
    "made again, in lane device-plugin", "held", "has its claim", "its claim is taken away", "on its node",
)  # fmt: skip
BACK: Mapping[str, tuple[str, str, str]] = {
    "held, of a Job": (AGAIN, HELD, NODE),
    "held, of nobody": (HELD, HELD, NODE),
    "granted, of a Job": (AGAIN, TAKEN, GIVEN),
    "granted, of nobody": (TAKEN, TAKEN, GIVEN),
    "allocated, of a Job": ("has its devices",) * 3,
    "bound, of a Job": (NODE,) * 3,
    "running, of a Job": (NODE,) * 3,
    "terminating, of nobody": ("terminating",) * 3,
    "ended, of nobody": ("ended",) * 3,
}
FORWARD = {HELD: {NODE}, TAKEN: {GIVEN}}  # what these have become when devices are free; the others stay as they are


@dataclass
class Round:
    """What came of one: by Pod as in BACK and rule what it became; seconds until all was as documented."""

    disturbed: str
    ends: dict[tuple[str, str], str] = field(default_factory=dict)
    coming: dict[str, int] = field(default_factory=dict)
    settled: float = 0.0
    forward: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Stage:
    """Control plane and gate for all rounds; the three namespaces are under DRA."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.plane: ControlPlane = stack.enter_context(audited_plane(folder))
        self.api: Api = self.plane.api()
        for file in RIGHTS:
            self.api.apply_yaml(file.read_text())
        self.fleet = Fleet.of("phases", FLEET)
        self.fleet.install(self.api)
        for name in RULES.values():
            scene.namespace(self.api, name)
        flags = ("--recreate",)
        self.gate = stack.enter_context(Gate(self.plane, POLICIES, replicas=2, published=True, controller_flags=flags))

    def switch(self, *words: str) -> str:
        """`dra-gate rollback` as cluster admin; what it said. AssertionError when it fails."""
        line = [sys.executable, "-m", "dra_gate", "rollback", *words, "--why", "a try"]
        line += ["--kubeconfig", str(self.plane.kubeconfig_for())]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pods(self, namespace: str) -> dict[str, list[Object]]:
        """The Pods of a namespace by the name of their Job, or their own."""
        found: dict[str, list[Object]] = {}
        for pod in self.api.list("pods", namespace):
            owners = pod["metadata"].get("ownerReferences", [])
            found.setdefault(owners[0]["name"] if owners else pod["metadata"]["name"], []).append(pod)
        return found


def name_of(spot: str) -> str:
    """The name of the Job or Pod: held-job, granted-bare."""
    phase, _, owner = spot.partition(", of ")
    return f"{phase}-{'job' if owner == 'a Job' else 'bare'}"


class Cast:
    """The Pods of one namespace, one for each phase; their UIDs when the switch came."""

    def __init__(self, stage: Stage, namespace: str) -> None:
        self._stage, self._api, self.namespace = stage, stage.api, namespace
        self.uids: dict[str, str] = {}

    def _create(self, spot: str, *gates: str) -> None:
        name = name_of(spot)
        obj = (job_of if spot.endswith("a Job") else pod_of)(name, 1, 600)
        spec = obj["spec"]["template"]["spec"] if obj["kind"] == "Job" else obj["spec"]
        if gates:
            spec["schedulingGates"] = [{"name": one} for one in gates]
        self._api.create(obj, self.namespace)

    def _pod(self, spot: str, there: Callable[[Object], object]) -> Object:
        def look() -> Object | None:
            found = self._stage.pods(self.namespace).get(name_of(spot), [])
            return found[0] if found and there(found[0]) else None

        pod = wait_for(look, 90, f"{spot} in {self.namespace}", every=0.2)
        self.uids[spot] = pod["metadata"]["uid"]
        return pod

    def begin(self) -> None:
        """Those that have been given devices."""
        for spot in ("ended, of nobody", "bound, of a Job", "running, of a Job", "terminating, of nobody"):
            self._create(spot)
        names = {}
        for spot in ("ended, of nobody", "bound, of a Job", "running, of a Job", "terminating, of nobody"):
            names[spot] = self._pod(spot, lambda pod: "nodeName" in pod["spec"])["metadata"]["name"]
        mark_succeeded(self._api, self.namespace, names["ended, of nobody"])
        mark_running(self._api, self.namespace, names["running, of a Job"])
        mark_running(self._api, self.namespace, names["terminating, of nobody"])
        self._api.delete("pods", names["terminating, of nobody"], self.namespace)

    def grant(self) -> None:
        """Those that may go and are not scheduled; one of them has its devices."""
        waiting = ("granted, of a Job", "granted, of nobody", "allocated, of a Job")
        for spot in waiting:
            self._create(spot, LATER)
        for spot in waiting:
            pod = self._pod(spot, lambda pod: not is_held(pod))
            (name,) = claims_of(pod)
            claim = self._api.wait("resourceclaims", name, self.namespace, lambda found: found)
            if spot.startswith("allocated"):
                allocate(self._api, claim, pod)

    def hold(self) -> None:
        """Those for which there is no device."""
        for spot in ("held, of a Job", "held, of nobody"):
            self._create(spot)
        for spot in ("held, of a Job", "held, of nobody"):
            self._pod(spot, is_held)

    def end(self, spot: str) -> str:
        """What has become of it, in the words of BACK."""
        there = self._stage.pods(self.namespace).get(name_of(spot), [])
        old = [one for one in there if one["metadata"]["uid"] == self.uids[spot]]
        if not old:
            lanes = {one["metadata"]["annotations"].get(LANE) for one in there}
            return f"made again, in lane {' and '.join(map(str, lanes))}" if there else "gone"
        (pod,) = old
        if len(there) > 1:
            return "there, and made again"
        if pod["status"].get("phase") in FINISHED:
            return "ended"
        if "deletionTimestamp" in pod["metadata"]:
            return "terminating"
        if "nodeName" in pod["spec"]:
            return NODE if pod["spec"]["nodeName"] == "new" else f"on {pod['spec']['nodeName']}"
        if is_held(pod):
            return HELD
        claims = [self._api.find("resourceclaims", name, self.namespace) for name in claims_of(pod)]
        claims = [one for one in claims if one is not None and "deletionTimestamp" not in one["metadata"]]
        if not claims:
            return TAKEN
        return "has its devices" if any("allocation" in one.get("status", {}) for one in claims) else GIVEN


def claims_of(pod: Object) -> list[str]:
    return [one["resourceClaimName"] for one in pod["spec"]["resourceClaims"]]


def allocate(api: Api, claim: Object, pod: Object) -> None:
    """Writes into the claim what the scheduler would, with the last device, which it would come to last."""
    result = {"request": "gpu/h100", "driver": "gpu.nvidia.com", "pool": "new"}
    given = [one.get("status", {}).get("allocation", {}) for one in api.list("resourceclaims")]
    taken = {one["device"] for allocation in given for one in allocation.get("devices", {}).get("results", [])}
    device = next(name for number in reversed(range(DEVICES)) if (name := f"gpu-{number}") not in taken)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["new"]}]}
    reserved = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    claim["status"] = {
        "allocation": {"devices": {"results": [result | {"device": device}]},
                       "nodeSelector": {"nodeSelectorTerms": [term]}},
        "reservedFor": [reserved],
    }  # fmt: skip
    api.replace(claim, subresource="status")


# -- what is down, or happens twice, when the switch comes ------------------------------------------------------------


def nothing(stage: Stage, _casts: Mapping[str, Cast]) -> None:
    stage.switch()


def webhook_down(stage: Stage, _casts: Mapping[str, Cast]) -> None:
    """Nobody answers for new Pods until it is back."""
    for name in stage.gate.replicas:
        stage.gate.stop_replica(name, kill=True)
    stage.switch()
    time.sleep(DOWN)
    stage.gate.start()


def controller_down(stage: Stage, casts: Mapping[str, Cast]) -> None:
    """New Pods take the old lane all the same; nothing is done about the others until it is back."""
    stage.gate.stop_controller(kill=True)
    stage.switch()
    time.sleep(DOWN)
    assert casts["recreate"].end("held, of a Job") == HELD
    stage.gate.start_controller()


def twice(stage: Stage, _casts: Mapping[str, Cast]) -> None:
    stage.switch()
    stage.switch()


def half_way(stage: Stage, casts: Mapping[str, Cast]) -> None:
    """The controller is killed when the first Pod has been taken away, and comes again."""
    stage.switch()
    spots = ("held, of a Job", "granted, of a Job")
    left = lambda: any(casts["recreate"].end(spot) not in (HELD, GIVEN) for spot in spots)  # noqa: E731
    wait_for(left, 30, "the first Pod to be taken away", every=0.02)
    stage.gate.stop_controller(kill=True)
    time.sleep(1)
    stage.gate.start_controller()


def forth_and_back(stage: Stage, _casts: Mapping[str, Cast]) -> None:
    """Off again at once, and on again."""
    stage.switch()
    stage.switch("--off")
    stage.switch()


DISTURBED: dict[str, Callable[[Stage, Mapping[str, Cast]], None]] = {
    "nothing": nothing,
    "webhook down": webhook_down,
    "controller down": controller_down,
    "twice in a row": twice,
    "controller killed half-way": half_way,
    "off and on again": forth_and_back,
}


# -- a round ----------------------------------------------------------------------------------------------------------


class Coming:
    """Jobs that are created one after the other in a thread, before the switch and after it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in range(COMING):
            for namespace in RULES.values():
                with contextlib.suppress(ApiError):  # looked for below
                    self._api.create(job_of(f"coming-{number}", 1, 600), namespace)
            time.sleep(EVERY)

    def ended(self) -> None:
        self._thread.join()


def play(stage: Stage, disturbed: str) -> Round:
    """One round; leaves the namespaces empty and the switch off."""
    found = Round(disturbed)
    casts = {rule: Cast(stage, namespace) for rule, namespace in RULES.items()}
    for act in (Cast.begin, Cast.grant, Cast.hold):
        for cast in casts.values():
            act(cast)
    coming = Coming(stage.api)
    time.sleep(EVERY)
    DISTURBED[disturbed](stage, casts)
    began = time.monotonic()
    expected = {(spot, rule): {words} for spot, ends in BACK.items() for rule, words in zip(RULES, ends, strict=True)}
    found.ends, wrong = _settle(casts, expected)
    found.wrong += wrong
    found.settled = time.monotonic() - began
    coming.ended()
    found.coming, wrong = _came(stage)
    found.wrong += wrong
    _take_away(stage, "coming-")
    stage.switch("--off")
    began = time.monotonic()
    for cast in casts.values():
        for spot in ("bound, of a Job", "running, of a Job"):
            (pod,) = stage.pods(cast.namespace)[name_of(spot)]
            mark_succeeded(stage.api, cast.namespace, pod["metadata"]["name"])
    again = {key: FORWARD.get(words, {words}) for key, words in found.ends.items()
             if not key[0].startswith(("bound", "running"))}  # fmt: skip
    _, wrong = _settle(casts, again)
    found.wrong += [f"forward again: {line}" for line in wrong]
    found.forward = time.monotonic() - began
    _empty(stage)
    return found


def _settle(
    casts: Mapping[str, Cast], expected: Mapping[tuple[str, str], set[str]]
) -> tuple[dict[tuple[str, str], str], list[str]]:
    """What has become of all of them when it is what is documented, or the time is over; and what is not."""
    deadline = time.monotonic() + ENDS
    while True:
        ends = {key: casts[key[1]].end(key[0]) for key in expected}
        wrong = [f"{spot}, {rule}: {ends[spot, rule]}, not {' or '.join(sorted(words))}"
                 for (spot, rule), words in expected.items() if ends[spot, rule] not in words]  # fmt: skip
        if not wrong or time.monotonic() > deadline:
            return ends, wrong
        time.sleep(0.5)


def _came(stage: Stage) -> tuple[dict[str, int], list[str]]:
    """The Jobs that came meanwhile have a Pod each, by lane; in lane dra only as their rule has it."""

    def look() -> dict[str, list[Object]]:
        return {f"{rule} {name}": pods for rule, namespace in RULES.items()
                for name, pods in stage.pods(namespace).items() if name.startswith("coming-")}  # fmt: skip

    deadline = time.monotonic() + ENDS
    while True:  # those that came before the switch are made again one after the other
        found: dict[str, int] = {}
        wrong = []
        for name, pods in look().items():
            lanes = [str(one["metadata"]["annotations"].get(LANE)) for one in pods]
            for lane in lanes:
                found[lane] = found.get(lane, 0) + 1
            if len(lanes) != 1 or (lanes == [DRA] and name.startswith("recreate")):
                wrong.append(f"{name}, created around the switch: {', '.join(lanes) or 'no Pod'}")
        if sum(found.values()) != COMING * len(RULES):
            wrong.append(
                f"{sum(found.values())} Pods of {COMING * len(RULES)} Jobs that were created around the switch"
            )
        if not wrong or time.monotonic() > deadline:
            return found, wrong
        time.sleep(0.5)


def _take_away(stage: Stage, names: str = "") -> None:
    """These Jobs with their Pods, or everything, without force: what is taken away while it has a claim and has not
    ended counts for another minute.
    """
    api, spaces = stage.api, RULES.values()
    for name in spaces:
        for job in api.list("jobs", name):
            if job["metadata"]["name"].startswith(names):
                path = api.path("jobs", name, job["metadata"]["name"])
                api.request("DELETE", path, {"propagationPolicy": "Orphan"})

    def none_left() -> bool:
        pods = [pod for name in spaces for pod in api.list("pods", name) if pod["metadata"]["name"].startswith(names)]
        for pod in pods:
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            with contextlib.suppress(ApiError):  # somebody else was faster: it is looked at again
                if "nodeName" in pod["spec"]:
                    if pod["status"].get("phase") not in FINISHED:
                        mark_succeeded(api, namespace, name)
                    delete_now(api, namespace, name)
                elif is_held(pod) or not _goes_on(api, pod):
                    delete_now(api, namespace, name)
                elif pod["spec"].get("schedulingGates"):
                    api.patch("pods", name, {"spec": {"schedulingGates": None}}, namespace)
        return not pods

    wait_for(none_left, 90, f"{names or 'everything'} to go", every=0.3)


def _goes_on(api: Api, pod: Object) -> bool:
    """It will be bound: nothing of ours keeps it, and its claims are there."""
    names = [one.get("resourceClaimName") for one in pod["spec"].get("resourceClaims", [])]
    return all(api.find("resourceclaims", name, pod["metadata"]["namespace"]) is not None for name in names)


def _empty(stage: Stage) -> None:
    """Everything ends, and the devices are free."""
    _take_away(stage)
    claims = lambda: [one for name in RULES.values() for one in stage.api.list("resourceclaims", name)]  # noqa: E731
    wait_for(lambda: not claims(), 60, "the claims to go", every=0.3)
    time.sleep(1)  # the arbiter hears that the devices are free


def rounds(names: list[str]) -> Iterator[Round | list[str] | list[Turn]]:
    """The rounds; after the last what the judge has against the log, and the turns it saw."""
    with contextlib.ExitStack() as stack:
        stage = Stage(stack)
        for name in names:
            yield play(stage, name)
        found = LaneJudge(rules(POLICIES), places(stage.fleet)).run(slim(stage.plane.audit_events()))
        down = {"webhook down"} & set(names)
        yield [*found.touched, *found.strayed, *found.twice, *found.unaccounted, *([] if down else found.refused)]
        yield found.turns


# -- the page ---------------------------------------------------------------------------------------------------------


def page(found: list[Round], judged: list[str], turns: list[Turn]) -> str:
    """The page."""
    first = found[0]
    states = "".join(f"| {spot} | {' | '.join(ends)} |\n" for spot, ends in BACK.items())
    rows = ""
    for one in found:
        right = sum(one.ends[spot, rule] == words for spot, ends in BACK.items()
                    for rule, words in zip(RULES, ends, strict=True))  # fmt: skip
        came = ", ".join(f"{pods} {lane}" for lane, pods in sorted(one.coming.items()))
        rows += (f"| {one.disturbed} | {right} of {len(one.ends)} | {one.settled:.1f} | {came} | "
                 f"{one.forward:.1f} | {len(one.wrong)} |\n")  # fmt: skip
    wrong = "".join(f"\n- {one.disturbed}: {line}" for one in found for line in one.wrong)
    wrong += "".join(f"\n- {line}" for line in judged)
    late = max((one.last for one in turns), default=0.0)
    return f"""# The switch while Pods are in every phase

Made by `make prove-migration` on {dt.datetime.now(dt.UTC).date()} at commit {commit()} on
{described()}, which control plane, gate and clients shared.
A real control plane, two replicas of the webhook, one controller. Constructed: nodes, slices, what a kubelet would
write, and *allocated*: a claim's status as the scheduler writes it for a Pod that somebody else's gate holds.

Each round has three tenants, one for each `onRollback`, with a Pod in each phase when `dra-gate rollback` comes, while
{COMING} Jobs a tenant are created around it. This is what has become of them then, in every round:

| Pod | recreate | keep | release |
| --- | --- | --- | --- |
{states}
*On its node* of those that were held under `release`: they got devices under DRA, which claims that were taken away
had made free. After `dra-gate rollback --off`, and when devices are free, those that were held are on a node under DRA
and those whose claim was taken away have one again.

| meanwhile | as above | after s | Pods of Jobs that came meanwhile | forward again after s | wrong |
| --- | ---: | ---: | --- | ---: | ---: |
{rows}
*Webhook down*: both replicas were killed before the switch and were back {DOWN:g} s after it; until then the API server
refused new Pods, and their Jobs tried again. *Controller down* likewise: new Pods took the old lane meanwhile. *Twice*:
the second `rollback` had nothing to do and ended with 0. *Half-way*: the controller was killed when the first Pod had
been taken away. Over all rounds a Pod that came after the switch got the lane before for {late:.2f} s at most.

What was wrong, by the rounds and by the judge of the API server's audit log ({len(first.ends)} Pods a round, and those
that came):{wrong or " nothing"}
"""


def run(names: list[str]) -> tuple[list[Round], list[str], list[Turn]]:
    """Rounds, what the judge has against them, and the turns."""
    *found, judged, turns = rounds(names)
    return found, judged, turns  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.phases", description=__doc__)
    parser.add_argument("rounds", nargs="*", help=f"of {', '.join(DISTURBED)}; default: all")
    names = parser.parse_args().rounds or list(DISTURBED)
    found, judged, turns = run(names)
    PROOF.write_text(page(found, judged, turns))
    for one in found:
        print(one)
    print("\n".join(judged))
    return 1 if judged or any(one.wrong for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
