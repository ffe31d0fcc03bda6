"""Six tenants under load go over to DRA, back when it fails, and over again. Writes docs/proofs/migration.md.

A real control plane with a pool of each kind; the kit plays the kubelets (`proofs.migration_load`). What came of it is
judged from the API server's audit log alone (`proofs.lanes_audited`).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from controlplane.api import Object, wait_for
from controlplane.fleet import Fleet, cordon, taint_rule
from controlplane.gate import Gate
from e2e import scene
from proofs.arbiter_logs import violations
from proofs.audited import Caps, audited_plane, is_held
from proofs.lanes_audited import DRA, LANE, PLUGIN, LaneJudge, Place, Rule
from proofs.migration_load import Kubelets, Load
from proofs.migration_page import Chapter, Run, write

POLICIES = Path(__file__).parent / "migration_policies"
_COMPONENTS = Path(__file__).parents[2] / "deploy" / "components"
RIGHTS = [_COMPONENTS / name / "rbac.yaml" for name in ("recreate", "canary-rollback")]
FLEET = "migration"
RATES = {"amber": 0.9, "birch": 0.7, "cedar": 0.5, "dune": 0.6, "ember": 0.7, "fern": 0.6}  # Pods a second
MOST = {"cedar": 6, "dune": 8}  # devices out at once: below their quotas, so that nothing is refused for these
ORDER = "migration-5"  # the plan's seed: with it every tenant has one namespace among the first half
WAVES = ("10%", "50%", "100%")
FAILURES = 5  # percent of the Pods under DRA: above that it stops
RETURNED = 90.0  # seconds
COUNTED = 35.0  # seconds until the controller has written its counts
NOTICED = 120.0  # seconds within which the controller has to see that, and to act
CLASS, RESOURCE = "gpu.nvidia.com", "nvidia.com/gpu"
_TAINT = "gpu.nvidia.com/gpu-lost"


def rules(folder: Path) -> dict[str, Rule]:
    """The tenants of a policy folder, without the gate's loader."""
    documents = [one for path in sorted(folder.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]
    policies = {f"{one['metadata']['name']}@{one['metadata']['version']}": one["spec"] for one in documents
                if one["kind"] == "DevicePolicy"}  # fmt: skip
    found = {}
    for one in documents:
        if one["kind"] == "Tenant":
            quota, policy = one["spec"].get("quota", {}), policies[one["spec"]["policy"]]
            caps = Caps(frozenset(one["spec"]["namespaces"]), quota.get("devices"), quota.get("models", {}))
            models = frozenset(policy["candidates"])
            found[one["metadata"]["name"]] = Rule(caps, policy.get("onRollback", "recreate"), models)
    return found


def places(fleet: Fleet) -> dict[str, Place]:
    """The nodes of a fleet by pool, their models read from their labels."""
    models = {"H100": "h100", "A100": "a100", "L40S": "l40s"}
    found = {}
    for node in fleet.nodes:
        name, labels = node["metadata"]["name"], node["metadata"]["labels"]
        (model,) = (short for word, short in models.items() if word in labels["nvidia.com/gpu.product"])
        devices = int(node["status"]["allocatable"].get(RESOURCE, 0))
        published = sum(len(one["spec"]["devices"]) for one in fleet.slices if one["spec"]["nodeName"] == name)
        found[name] = Place(labels["gpu-pool"], model, devices or published)
    return found


class Stage:
    """Control plane, gate, load and kubelets; its methods are what an operator does, or what befalls them."""

    def __init__(self, stack: contextlib.ExitStack, run: Run, policies: Path) -> None:
        self.run, self.rules = run, rules(policies)
        run.held, run.rate = {name: rule.held for name, rule in self.rules.items()}, sum(RATES.values())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.plane = stack.enter_context(audited_plane(folder))
        self.api = self.plane.api()
        for file in RIGHTS:
            self.api.apply_yaml(file.read_text())
        self.fleet = Fleet.load(FLEET)
        self.fleet.install(self.api)
        for place in places(self.fleet).values():
            run.devices[place.lane] = run.devices.get(place.lane, 0) + place.devices
        spaces = {name: sorted(rule.caps.namespaces) for name, rule in self.rules.items()}
        self.namespaces = [one for names in spaces.values() for one in names]
        for name in self.namespaces:
            scene.namespace(self.api, name, {LANE: PLUGIN})
        self.arbiter_log = self.plane.run_dir / "arbiter"
        flags = ("--recreate", "--arbiter-log", f"{self.arbiter_log}/{{name}}")
        self.gate = stack.enter_context(Gate(self.plane, policies, replicas=2, published=True, controller_flags=flags))
        probes = lambda: [one for one in self.api.list("namespaces") if one["metadata"]["name"].startswith("kit-")]  # noqa: E731
        wait_for(lambda: not probes(), 30, "the kit's own namespaces to go: they would count for percentages")
        plan = {"seed": ORDER, "waves": [], "done": 0, "paused": None}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "dra-gate-canary", "namespace": "dra-gate"},
        }
        self.api.create(body | {"data": {"plan.json": json.dumps(plan)}})
        self.kubelets = Kubelets(self.api, self.namespaces, run.seed)
        self.load = Load(self.api, self.kubelets, spaces, RATES, MOST, run.seed)
        stack.enter_context(self.kubelets)
        stack.enter_context(self.load)

    @contextlib.contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """What is done within belongs to it."""
        chapter = Chapter(title, time.time())
        self.run.chapters.append(chapter)
        print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {title}", flush=True)
        yield
        chapter.ended = time.time()

    def steady(self, share: float = 1.0) -> None:
        """The load goes on for a while."""
        time.sleep(self.run.seconds * share)

    def command(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """`dra-gate` as cluster admin; what it says goes into the run."""
        line = [sys.executable, "-m", "dra_gate", *words, "--kubeconfig", str(self.plane.kubeconfig_for())]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            self.run.saw.append(f"dra-gate {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        self.run.said[" ".join(words)] = done.stdout + done.stderr
        return done.stdout

    def lanes(self) -> dict[str, str]:
        """The label of each namespace."""
        return {one["metadata"]["name"]: one["metadata"]["labels"].get(LANE, "") for one in self.api.list("namespaces")
                if one["metadata"]["name"] in self.namespaces}  # fmt: skip

    # -- what is done -------------------------------------------------------------------------------------------------

    def preflight(self) -> None:
        """Finds nothing in the way."""
        self.command("preflight")

    def step(self, *words: str) -> None:
        """The next wave."""
        self.command("canary", "step", *words, "--force", "--why", "the proof of the migration")

    def above_quota_by_both_lanes(self, tenant: str) -> None:
        """The tenant holds half of its quota by device plugin when it asks for more than all of it under DRA."""
        devices = self.rules[tenant].caps.devices
        assert devices is not None
        lanes = self.lanes()
        spaces = {lanes[name]: name for name in self.rules[tenant].caps.namespaces}
        if set(spaces) != {DRA, PLUGIN}:
            self.run.saw.append(f"{tenant} should have a namespace in either lane: {spaces}")
            return
        self.load.paused.add(tenant)
        wait_for(lambda: not self.load.out(tenant), 60, f"Pods of {tenant} to end", every=0.3)
        # A Job whose Pod is refused makes another after ten seconds, when the others have ended.
        self.kubelets.sound.add(spaces[PLUGIN])
        self.load.burst(spaces[PLUGIN], devices // 4, 2, 10.0)

        def run() -> bool:
            pods = self.api.list("pods", spaces[PLUGIN])
            return sum(one["status"].get("phase") == "Running" for one in pods) == devices // 4

        wait_for(run, 30, f"Pods of {tenant} to run by device plugin", every=0.3)
        self.kubelets.sound.discard(spaces[PLUGIN])
        self._above_quota(tenant, spaces[DRA], devices)

    def above_quota(self, tenant: str) -> None:
        """The tenant asks for more than its quota at once."""
        devices = self.rules[tenant].caps.devices
        assert devices is not None
        self.load.paused.add(tenant)
        self._above_quota(tenant, min(self.rules[tenant].caps.namespaces), devices)

    def _above_quota(self, tenant: str, namespace: str, devices: int) -> None:
        self.load.burst(namespace, devices * 2 // 3, 2, 2.0)
        time.sleep(2)
        wait_for(lambda: not self.load.out(tenant), 240, f"Pods of {tenant} to end", every=0.3)
        self.load.paused.discard(tenant)

    def fail(self) -> None:
        """Nothing is prepared any more, while more is asked for than there is; waits until the controller has taken
        everybody back, and says how long.
        """
        for namespace in ("amber-a", "birch-a", "ember-a"):  # one for each rule of what becomes of held Pods
            self.load.burst(namespace, 10, 2, 3.0)
            self.load.burst(namespace, 5, 2, 3.0, bare=True)
        self.kubelets.failing = True
        wait_for(lambda: self.kubelets.told["FailedPrepareDynamicResources"], 30, "a Pod to fail", every=0.1)
        began = time.monotonic()
        taint_rule(self.api, "some", _TAINT, pool="new-hopper-1")
        try:
            wait_for(lambda: set(self.lanes().values()) == {PLUGIN}, NOTICED, "the controller to go back", every=0.1)
        except TimeoutError as problem:
            self.run.saw.append(str(problem))
            self.command("canary", "rollback", "--why", "devices cannot be prepared")
        else:
            self.run.noticed = time.monotonic() - began
        taint_rule(self.api, "all", _TAINT, driver=CLASS)

    def returned(self) -> None:
        """Waits until nobody is left of those that the controller has to make again."""
        again = {one for rule in self.rules.values() if rule.held == "recreate" for one in rule.caps.namespaces}
        back = {name for name, lane in self.lanes().items() if lane == PLUGIN} or set(self.namespaces)

        def left() -> list[Object]:
            pods = [one for one in self.api.list("pods") if one["metadata"]["namespace"] in again & back]
            return [one for one in pods if is_held(one) and "ownerReferences" in one["metadata"]]

        try:
            wait_for(lambda: not left(), RETURNED, "the controller to have every held Pod made again", every=0.5)
        except TimeoutError as problem:
            self.run.saw.append(str(problem))

    def mend(self) -> None:
        """The devices are well, and what hangs is started."""
        for name in ("some", "all"):
            self.api.delete("devicetaintrules", name)
        self.kubelets.failing = False

    def tempt(self, *, on: bool) -> None:
        """The class serves the resource by its name, and the old pool is smaller."""
        self.api.patch("deviceclasses", CLASS, {"spec": {"extendedResourceName": RESOURCE if on else None}})
        for name, place in places(self.fleet).items():
            if place.lane == PLUGIN and name.endswith("-0"):
                cordon(self.api, name, on=on)

    def report(self) -> None:
        """What the gate itself counted."""
        words = ("canary", "report", "--last", "2")
        self.run.report = self.command(*words, codes=(0, 1))
        self.run.html = self.command(*words, "-o", "html", codes=(0, 1))

    def finish(self) -> None:
        """No more Pods come, and those that are there end."""
        self.load.paused |= set(self.rules)
        wait_for(lambda: not any(self.load.out(name) for name in self.rules), 180, "all Pods to end", every=0.5)


def run(seconds: float, seed: int, policies: Path = POLICIES) -> Run:
    """The long form: each chapter with `seconds` of steady load."""
    found = Run(seed, seconds)
    with contextlib.ExitStack() as stack:
        stage = Stage(stack, found, policies)
        with stage.chapter("all by device plugin"):
            stage.steady()
            stage.preflight()
        with stage.chapter("10 %"):
            stage.step(*(word for wave in WAVES for word in ("--wave", wave)))
            stage.steady()
        with stage.chapter("50 %"):
            stage.step()
            stage.steady()
        with stage.chapter("100 %"):
            stage.step()
            stage.command("canary", "on-stop", "rollback", "--failures", str(FAILURES))
            stage.steady()
            time.sleep(COUNTED)
            stage.report()
        fail_and_return(stage)
        with stage.chapter("above quotas"):
            stage.command("canary", "rollback", "dune-a", "--why", "a tenant with devices of both kinds")
            stage.returned()
            stage.above_quota_by_both_lanes("dune")
            stage.above_quota("cedar")
            stage.command("canary", "enroll", "dune-a", "--force", "--why", "over again")
        with stage.chapter("the switch"):
            stage.tempt(on=True)
            stage.command("rollback", "--why", "a try of the switch")
            stage.returned()
            stage.steady()
            stage.tempt(on=False)
        with stage.chapter("the switch off"):
            stage.command("rollback", "--off", "--why", "a try of the switch")
            stage.steady()
        judge(stage)
    return found


def fail_and_return(stage: Stage) -> None:
    """DRA fails, the controller takes everybody back, DRA is well again, and everybody goes over."""
    with stage.chapter("devices fail"):
        stage.fail()
    with stage.chapter("taken back"):
        stage.returned()
        stage.steady()
    with stage.chapter("over again"):
        stage.mend()
        stage.command("canary", "pause", "--off")
        stage.step("--again")
        stage.steady()


def judge(stage: Stage) -> None:
    """Lets everything end, and reads the logs."""
    with stage.chapter("the last Pods end"):
        stage.finish()
    run = stage.run
    lanes = LaneJudge(stage.rules, places(stage.fleet))
    run.found = lanes.run(slim(stage.plane.audit_events()))
    for name, account in lanes.judge.accounts.items():
        if account.caps.devices is not None:
            run.most[name] = account.caps.devices, account.most, account.most_both
        run.instants += account.instants
    run.told = dict(stage.kubelets.told)
    run.checked = [str(one) for one in violations(stage.arbiter_log)]


def slim(events: Iterator[Any]) -> Iterator[Object]:
    """The events without what the judge does not read, so that all of them have room."""
    for event in events:
        event.pop("requestObject", None)
        ((event.get("responseObject") or {}).get("metadata") or {}).pop("managedFields", None)
        yield event


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.migration", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of steady load a chapter; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--artifacts", type=Path, help="folder for what has no place in docs/: the report as HTML")
    arguments = parser.parse_args()
    found = run(arguments.seconds, arguments.seed)
    write(found, arguments.artifacts)
    print("\n".join(found.wrong) or "nothing was wrong")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
