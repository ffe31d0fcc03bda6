"""`dra-gate rollback` on the real control plane, with everything there and with parts of the gate away."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from controlplane.api import Api, ApiError, wait_for
from controlplane.replica import Replica
from dra_gate.cluster.gate import read_gate
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import load
from dra_gate.policy.model import PolicyRef
from dra_gate.policy.switch import DRA, PLUGIN, Switch
from e2e import scene
from proofs.rolling import NAMESPACE, Stage, on_stage
from proofs.switching import BOUND, KINDS, TENANT, lane_of, loaded, measured, put

pytestmark = pytest.mark.controlplane
OTHER = "e2e-floored"  # of another tenant


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with on_stage() as made:
        scene.namespace(made.api, OTHER)
        yield made


@pytest.fixture
def gate(stage: Stage) -> Iterator[Stage]:
    """Everything runs and nothing is switched, before and after."""
    yield stage
    put(stage.api, Switch())
    stage.gate.start()
    follows(stage, DRA)


def run(stage: Stage, *words: str, code: int = 0) -> str:
    """Runs `dra-gate rollback` as cluster admin, as an operator would."""
    where = ["--why", "a test", "--kubeconfig", str(stage.gate.plane.kubeconfig_for())]
    done = subprocess.run(
        [sys.executable, "-m", "dra_gate", "rollback", *words, *where], check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def follows(stage: Stage, lane: str, namespace: str = NAMESPACE) -> None:
    """Every replica gives new Pods this lane."""
    pod = {**scene.pod("p"), "metadata": {"name": "p", "namespace": namespace}}
    for name in stage.gate.replicas:
        with Replica(stage.gate, name) as replica:
            wait_for(lambda replica=replica: lane_of(replica.mutated(pod)) == lane, 5, f"{name} to be in {lane}")


def switch_of(api: Api) -> Switch:
    return read_gate(api.get("gates", "default")).switch


def test_every_replica_follows_within_a_second_with_no_controller(gate: Stage) -> None:
    for name in gate.gate.controllers:
        gate.gate.stop_controller(name, kill=True)
    for switches in KINDS.values():
        found = measured(gate.gate, switches, 4)
        changes = zip(*(one.first for one in found.values()), strict=True)
        slowest = sorted(max(change) for change in changes)
        # In one of the four the machine may have stood still. Who asks now and then is late in more than one.
        assert slowest[-2] < BOUND, slowest
    outcome, times = loaded(gate, 5, 10)
    assert (times > 3, outcome.failed, outcome.wrong) == (True, [], [])


def test_everybody_back_twice_and_forward(gate: Stage) -> None:
    said = run(gate)
    assert said.startswith("every tenant in lane device-plugin; before: every tenant as labelled; why: a test")
    for namespace in (NAMESPACE, OTHER):
        follows(gate, PLUGIN, namespace)
    before = gate.api.get("gates", "default")["spec"]
    assert "nothing to do: every tenant in lane device-plugin (last changed by admin" in run(gate)
    assert gate.api.get("gates", "default")["spec"] == before
    (event,) = [one for one in gate.api.list("events", "default") if one["reason"] == "LaneSwitched"]
    assert (event["involvedObject"]["name"], "by admin: a test" in event["message"]) == ("default", True)
    run(gate, "--off")
    for namespace in (NAMESPACE, OTHER):
        follows(gate, DRA, namespace)


def test_a_tenant_alone(gate: Stage) -> None:
    run(gate, TENANT)
    follows(gate, PLUGIN)
    follows(gate, DRA, OTHER)
    assert "no tenant mapel" in run(gate, "mapel", code=2)
    run(gate, "floored")
    run(gate, "--off", TENANT)
    follows(gate, DRA)
    follows(gate, PLUGIN, OTHER)


def test_with_the_webhook_down(gate: Stage) -> None:
    for name in gate.gate.replicas:
        gate.gate.stop_replica(name, kill=True)
    run(gate)
    assert switch_of(gate.api) == Switch(PLUGIN)
    gate.gate.start()
    follows(gate, PLUGIN)


def test_with_the_controller_down(gate: Stage) -> None:
    for name in gate.gate.controllers:
        gate.gate.stop_controller(name)
    assert "nothing becomes of them yet, since no controller leads" in run(gate)
    follows(gate, PLUGIN)
    gate.gate.start()
    wait_for(lambda: _leads(gate.api), 30, "a controller to lead")
    assert "those that wait are granted in turn, by gate-controller" in run(gate, "--off")


def _leads(api: Api) -> bool:
    return bool(api.get("leases", "dra-gate-controller", "dra-gate")["spec"].get("holderIdentity"))


def test_while_others_write_the_gate(gate: Stage) -> None:
    """Each write is decided anew on what they wrote; nobody's is lost."""
    over = threading.Event()
    written = 0

    def others() -> None:
        nonlocal written
        while not over.is_set():
            gate.api.patch("gates", "default", {"metadata": {"annotations": {"others": str(written)}}})
            written += 1
            time.sleep(0.02)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        run(gate, TENANT)
        run(gate, "floored", "--drain-by", "2h")
        run(gate, "--off", TENANT)
    finally:
        over.set()
        thread.join()
    stored = gate.api.get("gates", "default")
    assert read_gate(stored).switch.tenants == {"floored": PLUGIN}
    assert int(stored["metadata"]["annotations"]["others"]) == written - 1


def test_what_was_decided_from_an_older_gate_is_not_written(gate: Stage) -> None:
    """The write that a command makes, half-way after somebody else's."""
    stale = gate.api.get("gates", "default")
    run(gate, TENANT)
    stale["spec"]["lane"] = {"override": "dra"}
    with pytest.raises(ApiError, match="the object has been modified"):
        gate.api.replace(stale)
    assert switch_of(gate.api) == Switch("", {TENANT: PLUGIN})


def test_pods_admitted_just_before_are_stored(gate: Stage) -> None:
    """Each of these was mutated by a replica that goes by the lane of before, and is validated after the change."""
    pod = {**scene.pod("p"), "metadata": {"name": "p", "namespace": NAMESPACE}}
    with Replica(gate.gate) as replica:
        for switch, lane in ((Switch("", {TENANT: PLUGIN}), DRA), (Switch(), PLUGIN)):
            mutated = replica.mutated(pod)
            assert lane_of(mutated) == lane
            put(gate.api, switch)
            follows(gate, PLUGIN if lane == DRA else DRA)
            answer = replica.ask("validate", mutated)
            assert answer["allowed"], answer


def test_a_replica_that_is_a_second_behind_refuses_nothing_that_others_made() -> None:
    pod = {**scene.pod("p"), "metadata": {"name": "p", "namespace": NAMESPACE}}
    with (
        on_stage(late=True) as behind,
        Replica(behind.gate, "gate-0") as late,
        Replica(behind.gate, "gate-1") as ahead,
    ):
        was_behind: set[str] = set()
        for _ in range(3):  # where the machine stands still for that second, the late one has caught up
            for switch, lane in ((Switch(PLUGIN), PLUGIN), (Switch(), DRA)):
                wait_for(lambda: lane_of(late.mutated(pod)) == lane_of(ahead.mutated(pod)), 10, "both to be at one")
                old = late.mutated(pod)
                put(behind.api, switch)
                wait_for(lambda lane=lane: lane_of(ahead.mutated(pod)) == lane, 5, "the change to count", every=0.01)  # type: ignore[misc]
                if lane_of(late.mutated(pod)) != lane:  # now: what it does not know makes it look
                    was_behind.add(lane)
                for answer in (ahead.ask("validate", old), late.ask("validate", ahead.mutated(pod))):
                    assert answer["allowed"], answer
            if len(was_behind) == 2:
                break
        assert was_behind == {PLUGIN, DRA}


def test_no_templates_of_a_new_set_while_everybody_is_back(gate: Stage) -> None:
    older, newer = (load(folder) for folder in gate.folders)
    names = {
        number: {templates_of(one).for_count(TENANT, PolicyRef("ordered", number), count).name for count in range(1, 9)}
        for number, one in ((1, older), (2, newer))
    }

    def there() -> set[str]:
        return {one["metadata"]["name"] for one in gate.api.list("resourceclaimtemplates", NAMESPACE)}

    wait_for(lambda: there() >= names[1], 30, "the first set's templates")
    run(gate)
    gate.gate.policy("publish", gate.folders[1], "--activate", "--no-lint", "--wait")
    time.sleep(2)
    assert there() >= names[1], "what is there stays: Pods that were admitted before get their claims from it"
    assert not there() & names[2]
    run(gate, "--off")
    wait_for(lambda: there() >= names[2], 30, "the new set's templates")
    gate.gate.policy("activate", older.digest, "--wait")


def test_a_dry_run_says_what_becomes_of_each_pod(gate: Stage) -> None:
    gate.api.create(scene.pod("alone"), NAMESPACE)
    before = gate.api.get("gates", "default")["spec"]
    try:
        body = json.loads(run(gate, "--dry-run", "--drain-by", "2h", "-o", "json"))
        found = [(one["name"], one["tenant"], one["phase"], one["step"]) for one in body["pods"]]
        assert found == [("alone", TENANT, "waiting", "release")]
        assert "no controller would make it again" in body["pods"][0]["why"]
        assert gate.api.get("gates", "default")["spec"] == before
        assert f"  {TENANT}" in run(gate, "--dry-run")
        assert "no Pod with the gate's stamp" in run(gate, "floored", "--dry-run")
    finally:
        gate.api.delete("pods", "alone", NAMESPACE)
