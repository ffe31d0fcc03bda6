"""Publishing policy on a real control plane: two replicas and the controller follow the Gate."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, TENANT, ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate, GateError
from controlplane.replica import Replica
from dra_gate.cli.policy import command
from dra_gate.cluster.client import Client
from dra_gate.cluster.gate import Switched, read_gate, with_switch
from dra_gate.cluster.policy_map import name_of
from dra_gate.controller import gate_plan
from dra_gate.controller.gate import GateController
from dra_gate.controller.templates import TemplateController
from dra_gate.policy.compile import templates_of
from dra_gate.policy.switch import Switch
from policy_publish.sets import files, gate, made, published

pytestmark = pytest.mark.controlplane
SPACE = "publish-a"
SPACES = (SPACE,)


def sets(version: int) -> Any:
    return made(version, namespaces=SPACES)


def digest(version: int) -> str:
    found: str = sets(version).digest
    return found


def config_map(version: int) -> dict[str, Any]:
    return published(version, namespaces=SPACES)


def folder(path: Path, version: int) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in files(version, namespaces=SPACES).items():
        (path / name).write_bytes(content)
    return path


@pytest.fixture(scope="module")
def running(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    api = control_plane.api()
    first = folder(tmp_path_factory.mktemp("policies"), 1)
    with Gate(control_plane, first, replicas=2, published=True) as installed:
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": {
            "dra-gate.io/lane": "dra"}}})  # fmt: skip
        yield installed
        api.delete("namespaces", SPACE)
    api.delete_all("gates")
    api.delete_all("configmaps", "dra-gate", labels="dra-gate.io/policy-set=true")


@pytest.fixture
def at_one(running: Gate, api: Api) -> Gate:
    """Set 1 is active on every replica, nothing is accepted, and nothing else is published."""
    # Old ones go first: a set that is published anew must not be the one that an earlier test left.
    for found in api.list("configmaps", "dra-gate", labels="dra-gate.io/policy-set=true"):
        if found["metadata"]["name"] != name_of(digest(1)):
            api.delete("configmaps", found["metadata"]["name"], "dra-gate")
    if api.find("configmaps", name_of(digest(1)), "dra-gate") is None:
        api.create(config_map(1))
    apply_gate(api, digest(1), [])
    noted(api, digest(1))
    apply_gate(api, digest(1), [])
    everywhere(running, lambda seen: states(seen) == {digest(1): "active"})
    return running


def noted(api: Api, active: str) -> None:
    """Wait for the controller to have written the activation down: until then it keeps the old set accepted."""

    def look() -> bool:
        history = api.get("gates", "default").get("status", {}).get("history", [])
        return bool(history) and history[0]["digest"] == active

    wait_for(look, 20, "the controller to note the activation")  # it may have been started anew


def apply_gate(api: Api, active: str, accepted: list[dict[str, Any]] | None = None) -> None:
    """By hand, as merge: what is not named stays."""
    spec: dict[str, Any] = {"active": active} | ({} if accepted is None else {"accepted": accepted})
    if api.find("gates", "default") is None:
        api.create(gate(active))
    else:
        api.patch("gates", "default", {"spec": spec})


def metrics(running: Gate, replica: str) -> dict[str, float]:
    """What a replica counts; nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"{running.status_url(replica)}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def states(seen: dict[str, float]) -> dict[str, str]:
    """Digest to state, as a replica's metrics have it."""
    rows = [name for name, value in seen.items() if name.startswith("dra_gate_policy_set_info{") and value == 1]
    return {row.split('digest="')[1][:64]: row.split('state="')[1].split('"')[0] for row in rows}


def everywhere(running: Gate, holds: Callable[[dict[str, float]], bool], timeout: float = 20.0) -> float:
    """Seconds until it holds on every replica."""
    began = time.monotonic()
    for replica in running.replicas:
        wait_for(lambda replica=replica: holds(metrics(running, replica)), timeout, f"{replica} to see it", every=0.01)
    return time.monotonic() - began


def policy(running: Gate, *words: str | Path) -> str:
    """Runs `dra-gate policy` with the words as cluster admin, in this process: a dozen starts cost half a minute."""
    return run(*words, "--kubeconfig", running.plane.kubeconfig_for())


def run(*words: str | Path) -> str:
    done = CliRunner().invoke(command, [str(word) for word in words])
    if done.exit_code != 0:
        raise GateError(f"ended with {done.exit_code}: {done.output}")
    return done.stdout


def refusals(seen: dict[str, float], code: str) -> float:
    return seen.get(f'dra_gate_policy_set_refusals_total{{code="{code}"}}', 0.0)


def load() -> str:
    return f"load {Path('/proc/loadavg').read_text().split()[0]}"


def device_pod(name: str = "p") -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    metadata = {"name": name, "namespace": SPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def stamped(pod: dict[str, Any]) -> str:
    found: str = pod["metadata"]["annotations"]["dra-gate.io/policy-set"]
    return found


# -- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"name": "other"}}, "its name is default"),
        ({"spec": {}}, "active"),
        ({"spec": {"active": ""}}, "active"),
        ({"spec": {"active": "x" * 64}}, "active"),
        ({"spec": {"active": "A" * 64}}, "active"),
        ({"spec": {"active": "a" * 64, "accepted": [{"digest": "b" * 64}, {"digest": "b" * 64}]}}, "Duplicate"),
        ({"spec": {"active": "a" * 64, "accepted": [{"digest": f"{n:064x}"} for n in range(9)]}}, "8 items"),
        *(
            ({"spec": {"active": "a" * 64, "lane": lane}}, words)
            for lane, words in (
                ({"override": "gpu"}, "Unsupported value"),
                ({"tenants": [{"name": "maple", "lane": "gpu"}]}, "Unsupported value"),
                ({"tenants": [{"lane": "dra"}]}, "name: Required value"),
                ({"tenants": [{"name": "maple"}, {"name": "maple", "lane": "dra"}]}, "Duplicate"),
                ({"tenants": [{"name": str(number)} for number in range(501)]}, "500 items"),
                ({"override": "device-plugin", "drainBy": "tomorrow"}, "drainBy"),
                ({"override": "device-plugin", "reason": "x" * 513}, "may not be more than 512"),
                ({"drainBy": "2026-11-30T12:00:00Z"}, "only where override is device-plugin can Pods be drained"),
                (
                    {"tenants": [{"name": "maple", "lane": "dra", "drainBy": "2026-11-30T12:00:00Z"}]},
                    "only in lane device-plugin can Pods be drained",
                ),
            )
        ),
        ({"spec": {"active": "a" * 64, "accepted": [{"digest": "b" * 64, "since": "yesterday"}]}}, "since"),
    ],
)
def test_the_schema_refuses(running: Gate, api: Api, change: dict[str, Any], words: str) -> None:
    api.delete_all("gates")
    with pytest.raises(ApiError, match=words):
        api.create({**gate("a" * 64), **change}, dry_run=True)


@pytest.mark.parametrize(
    "lane",
    [
        {},
        {"override": "device-plugin"},
        {"override": "dra", "previous": "device-plugin", "generation": 3},
        {"tenants": [{"name": "maple", "lane": "device-plugin", "drainBy": "2026-11-30T12:00:00Z"}]},
        {"override": "device-plugin", "tenants": [{"name": "maple"}], "drainBy": "2026-11-30T12:00:00Z"},
        # What is no time to us, or is written otherwise: tests/controller/test_arbiter_lanes.py
        {"override": "device-plugin", "drainBy": "2026-11-30T12:00:00+24:00"},
        {"override": "device-plugin", "drainBy": "2026-11-30t12:00:00z"},
        {"tenants": [{"name": f"t{number:062}", "lane": "device-plugin"} for number in range(500)]},
    ],
)
def test_the_schema_takes_old_and_new_switches(running: Gate, api: Api, lane: dict[str, Any]) -> None:
    api.delete_all("gates")
    sent = gate("a" * 64)
    stored = api.create({**sent, "spec": {**sent["spec"], "lane": lane}}, dry_run=True)
    read = read_gate(stored)
    tenants = {one["name"]: one.get("lane", "") for one in lane.get("tenants", [])}
    assert read.switch.same_lanes(Switch(lane.get("override", ""), tenants))
    assert api.create(with_switch(stored | sent, Switch("dra"), Switched("ada")), dry_run=True)


# -- publish, activate, go back ---------------------------------------------------------------------------------------


def takes_effect(at_one: Gate, api: Api, version: int) -> float:
    """Publishes and activates the set in place of the version before; seconds until every replica goes by it."""
    old, new = digest(version - 1), digest(version)
    began = time.monotonic()
    api.create(config_map(version))
    api.patch("gates", "default", {"spec": {"active": new, "accepted": [{"digest": old}]}})
    everywhere(at_one, lambda seen: states(seen) == {new: "active", old: "accepted"})
    took = time.monotonic() - began
    print(f"published and activated: seen by both replicas after {took:.3f} s, {load()}")
    assert {stamped(Replica(at_one, replica).mutated(device_pod())) for replica in at_one.replicas} == {new}
    noted(api, new)
    return took


def test_published_and_activated_is_seen_by_every_replica_within_a_second(at_one: Gate, api: Api) -> None:
    """In one of three tries: a machine that stands still for a second says nothing about the gate."""
    assert any(takes_effect(at_one, api, version) < 1.0 for version in (2, 3, 4))


def test_the_commands(at_one: Gate, api: Api, install_fleet: InstallFleet, tmp_path: Path) -> None:
    install_fleet("four-and-four")
    second = folder(tmp_path / "policies", 2)
    # Templates are there before anybody asks for them.
    said = policy(at_one, "publish", second, "--wait")
    assert f"{digest(2)} is published: maple: train@1→train@2; policies +train@2 -train@1" in said
    assert "its templates are in place" in said
    index = templates_of(sets(2))
    wanted = {index.for_count("maple", ref, count).name for ref in sets(2).policies for count in range(1, 9)}
    assert wanted <= {found["metadata"]["name"] for found in api.list("resourceclaimtemplates", SPACE)}
    assert states(metrics(at_one, "gate-0")) == {digest(1): "active"}
    assert "is published already" in policy(at_one, "publish", second)
    listed = json.loads(policy(at_one, "list", "-o", "json"))
    assert {(e["digest"], e["state"]) for e in listed} == {(digest(2), "published"), (digest(1), "active")}
    assert next(e for e in listed if e["digest"] == digest(2))["publishedBy"] == "admin"

    # A beginning that is unique will do; what it is the beginning of is what counts.
    assert "is active, instead of" in policy(
        at_one, "activate", digest(2)[:10], "--note", "H200 \x1b[31marrived", "--wait"
    )
    everywhere(at_one, lambda seen: states(seen) == {digest(2): "active", digest(1): "accepted"})
    assert "is active already" in policy(at_one, "activate", digest(2))
    assert stamped(api.create(device_pod("of-two"))) == digest(2)

    policy(at_one, "rollback", "--note", "they don't start", "--wait")
    everywhere(at_one, lambda seen: states(seen) == {digest(1): "active", digest(2): "accepted"})
    assert stamped(api.create(device_pod("of-one"))) == digest(1)

    wait_for(lambda: json.loads(policy(at_one, "history", "-o", "json"))[0]["digest"] == digest(1), 5, "the history")
    newest, before = json.loads(policy(at_one, "history", "-o", "json"))[:2]
    assert (newest["digest"], newest["by"], newest["note"]) == (digest(1), "admin", "they don't start")
    assert newest["change"] == "maple: train@2→train@1; policies +train@1 -train@2"
    assert (before["digest"], before["by"]) == (digest(2), "admin")
    assert before["note"] == "H200  [31marrived"
    assert digest(1)[:12] in policy(at_one, "history")
    api.delete_all("pods", SPACE, grace=0)

    # Twice is back again; pinned stays.
    policy(at_one, "rollback", "--pin-old")
    everywhere(at_one, lambda seen: states(seen) == {digest(2): "active", digest(1): "accepted"})
    pinned = api.get("gates", "default")["spec"]["accepted"]
    assert [(entry["digest"], entry["pinned"]) for entry in pinned] == [(digest(1), True)]
    noted(api, digest(2))


def test_commands_that_are_refused(at_one: Gate, api: Api, tmp_path: Path) -> None:
    with pytest.raises(GateError, match="no published policy set begins with 0123"):
        policy(at_one, "activate", "0123")
    with pytest.raises(GateError, match="no published policy set"):
        policy(at_one, "activate", digest(2))
    broken = config_map(2)
    broken["data"]["more.yaml"] = "a: [b"
    api.create(broken)
    with pytest.raises(GateError, match=r"can't be used \(Invalid\).*\n.*kubectl -n dra-gate delete configmap"):
        policy(at_one, "activate", digest(2))
    with pytest.raises(GateError, match=r"can't be used \(Invalid\)"):
        policy(at_one, "publish", folder(tmp_path / "two", 2), "--activate", "--no-lint")
    assert "refused" in policy(at_one, "list")
    bad = folder(tmp_path / "bad", 3)
    (bad / "train.yaml").write_text("kind: [")
    with pytest.raises(GateError, match=r"ended with 2"):
        policy(at_one, "publish", bad)
    with pytest.raises(GateError, match="not published: the policies don't fit this cluster"):
        policy(at_one, "publish", folder(tmp_path / "three", 3))  # no fleet: no class, no device
    (folder(tmp_path / "big", 3) / "more.yaml").write_text("#" * (1 << 20))
    with pytest.raises(GateError, match="a set may have 900"):
        policy(at_one, "publish", tmp_path / "big", "--no-lint")
    assert api.get("gates", "default")["spec"]["active"] == digest(1)
    assert states(metrics(at_one, "gate-0")) == {digest(1): "active"}


def test_by_manifests_alone(at_one: Gate, api: Api, tmp_path: Path) -> None:
    text = run("publish", folder(tmp_path / "policies", 2), "--activate", "-o", "yaml")
    assert text == run("publish", tmp_path / "policies", "--activate", "-o", "yaml")
    api.apply_yaml(text)
    everywhere(at_one, lambda seen: states(seen) == {digest(2): "active", digest(1): "accepted"})

    def noted() -> bool:
        found = api.get("gates", "default")
        newest = found["status"]["history"][0]
        accepted = [entry["digest"] for entry in found["spec"].get("accepted", [])]
        return (newest["digest"], newest.get("by"), accepted) == (digest(2), "control-plane-kit", [digest(1)])

    wait_for(noted, 5, "the controller to note who did it and to keep the old set accepted")
    api.apply_yaml(text)  # once more, as such tools do: nothing of the controller's is undone
    assert noted()
    ready = next(c for c in api.get("gates", "default")["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] in ("True", "False")


# -- refused ----------------------------------------------------------------------------------------------------------


def spoilt(kind: str) -> dict[str, Any]:
    obj = config_map(2)
    if kind == "Invalid":
        obj["data"]["more.yaml"] = "kind: [x"
    elif kind == "TooLarge":
        obj["data"]["more.yaml"] = "#" * (950 * 1024)
    elif kind == "NotImmutable":
        del obj["immutable"]
    return obj


@pytest.mark.parametrize("kind", ["Invalid", "TooLarge", "NotImmutable"])
def test_a_bad_set_is_refused_by_every_replica_and_the_last_good_one_stays(at_one: Gate, api: Api, kind: str) -> None:
    before = {replica: refusals(metrics(at_one, replica), kind) for replica in at_one.replicas}
    uid = api.create(spoilt(kind))["metadata"]["uid"]
    api.patch("gates", "default", {"spec": {"active": digest(2), "accepted": [{"digest": digest(1)}]}})
    for replica in at_one.replicas:
        wait_for(lambda r=replica: refusals(metrics(at_one, r), kind) > before[r], 5, f"{replica} to refuse it")

    def events() -> int:
        found = api.list("events", "dra-gate")
        return sum(e["reason"] == "PolicySetRefused" and e["involvedObject"].get("uid") == uid for e in found)

    wait_for(lambda: events() >= 3, 5, "an Event of each replica and of the controller")
    assert [states(metrics(at_one, replica)) for replica in at_one.replicas] == [{digest(1): "active"}] * 2
    assert stamped(api.create(device_pod())) == digest(1)
    api.delete("pods", "p", SPACE, grace=0)

    def said() -> bool:
        status = api.get("gates", "default").get("status", {})
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
        return ready.get("reason") == "SetUnusable" and f"{digest(1)} stays in use" in ready["message"]

    wait_for(said, 5, "the Gate's status to say so")
    # A replica that starts now agrees with the others.
    at_one.stop_replica("gate-1", kill=True)
    at_one.start_replica("gate-1")
    wait_for(lambda: states(metrics(at_one, "gate-1")) == {digest(1): "active"}, 15, "the new replica to agree")
    # Mended, it is taken without anybody touching the Gate again.
    api.delete("configmaps", name_of(digest(2)), "dra-gate")
    api.create(config_map(2))
    everywhere(at_one, lambda seen: states(seen).get(digest(2)) == "active")
    noted(api, digest(2))


def test_edited_in_place(at_one: Gate, api: Api) -> None:
    stored = api.get("configmaps", name_of(digest(1)), "dra-gate")
    with pytest.raises(ApiError, match="immutable"):
        api.replace({**stored, "data": config_map(2)["data"]})
    before = {replica: refusals(metrics(at_one, replica), "OtherContent") for replica in at_one.replicas}
    api.delete("configmaps", name_of(digest(1)), "dra-gate")
    api.create({**config_map(2), "metadata": config_map(1)["metadata"]})
    for replica in at_one.replicas:
        wait_for(lambda r=replica: refusals(metrics(at_one, r), "OtherContent") > before[r], 5, "it to be refused")
    assert [states(metrics(at_one, replica)) for replica in at_one.replicas] == [{digest(1): "active"}] * 2
    assert stamped(Replica(at_one).mutated(device_pod())) == digest(1)
    api.delete("configmaps", name_of(digest(1)), "dra-gate")
    api.create(config_map(1))
    wait_for(lambda: "refused" not in policy(at_one, "list"), 5, "it to be published again")


def test_a_withdrawn_set_is_refused(at_one: Gate, api: Api) -> None:
    replica = Replica(at_one)
    pod = replica.mutated(device_pod())
    assert stamped(pod) == digest(1)
    assert replica.ask("validate", pod)["allowed"]
    api.create(config_map(2))
    apply_gate(api, digest(2), [{"digest": digest(1)}])
    everywhere(at_one, lambda seen: states(seen) == {digest(2): "active", digest(1): "accepted"})
    assert all(Replica(at_one, name).ask("validate", pod)["allowed"] for name in at_one.replicas)
    noted(api, digest(2))
    with pytest.raises(GateError, match="activate another first"):
        policy(at_one, "withdraw", digest(2))
    policy(at_one, "withdraw", digest(1)[:12], "--note", "too low a floor")
    everywhere(at_one, lambda seen: states(seen) == {digest(2): "active"})
    newest = json.loads(policy(at_one, "history", "-o", "json"))[0]
    assert (newest["digest"], newest["by"], newest["note"]) == (digest(1), "admin", "too low a floor")
    for name in at_one.replicas:
        response = Replica(at_one, name).ask("validate", pod)
        assert not response["allowed"]
        assert response["status"]["code"] == 403
    # Under the present set the same Pod passes.
    assert replica.ask("validate", replica.mutated(device_pod()))["allowed"]


def test_taken_out_after_its_time_unless_pinned(
    at_one: Gate, api: Api, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_plan, "ACCEPTED_SECONDS", 1.5)
    at_one.stop_controller()
    client = Client.connect(str(control_plane.kubeconfig_for(GATE_CONTROLLER)))
    templates = TemplateController(client, identity="test", leading=lambda: True)
    controller = GateController(client, templates, identity="test", leading=lambda: True)
    templates.start()
    controller.start()
    try:
        for version in (2, 3):
            api.create(config_map(version))
        began = time.monotonic()  # before: the controller may see it first
        apply_gate(api, digest(3), [{"digest": digest(1), "pinned": True}, {"digest": digest(2)}])

        def left() -> list[str]:
            return [entry["digest"] for entry in api.get("gates", "default")["spec"]["accepted"]]

        wait_for(lambda: left() == [digest(1)], 20, "the one that is not pinned to go")  # by the real time a minute
        assert time.monotonic() - began >= 1.5
        time.sleep(1.0)
        assert left() == [digest(1)]
        assert controller.problems() == templates.problems() == []
    finally:
        controller.stop()
        templates.stop()
        client.close()
        at_one.start_controller()


# -- before there are policies ----------------------------------------------------------------------------------------


def test_a_replica_answers_nothing_before_its_policies_are_in(at_one: Gate, api: Api) -> None:
    at_one.stop_replica("gate-1", kill=True)
    api.delete("gates", "default")
    at_one.start_replica("gate-1", wait=False)

    def reasons() -> str:
        try:
            urllib.request.urlopen(f"{at_one.status_url('gate-1')}/readyz", timeout=2)
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""
        raise AssertionError("ready without policies")

    wait_for(lambda: "there is no Gate default" in reasons(), 30, "the replica to say what it lacks")
    with pytest.raises(AssertionError, match="not ready"):
        Replica(at_one, "gate-1").ask("mutate", device_pod())
    # The one that had policies goes on with them.
    assert stamped(Replica(at_one, "gate-0").mutated(device_pod())) == digest(1)
    api.create(gate(digest(1)))
    everywhere(at_one, lambda seen: states(seen) == {digest(1): "active"})
    at_one.forwarder.wait_ready(2)
    assert stamped(Replica(at_one, "gate-1").mutated(device_pod())) == digest(1)


# -- rights -----------------------------------------------------------------------------------------------------------


def test_the_rights_in_the_manual_are_enough(
    at_one: Gate, api: Api, control_plane: ControlPlane, install_fleet: InstallFleet, tmp_path: Path
) -> None:
    install_fleet("four-and-four")
    manual = (Path(__file__).parents[2] / "docs" / "operations" / "policy.md").read_text()
    kubeconfig = control_plane.kubeconfig_for(TENANT)  # somebody without any other right

    def tried(*words: str | Path) -> str:
        return run(*words, "--kubeconfig", kubeconfig)

    def in_force() -> bool:
        try:
            return "active" in tried("list")
        except GateError:  # 403 for a moment more
            return False

    second = folder(tmp_path / "policies", 2)
    with pytest.raises(GateError, match="403"):
        tried("publish", second, "--no-lint")
    roles = api.apply_yaml(manual.split("## Who may do it")[1].split("```yaml")[1].split("```")[0])
    subjects = [{"kind": "User", "name": TENANT.name, "apiGroup": "rbac.authorization.k8s.io"}]
    for role in roles:
        name, group = role["metadata"]["name"], "rbac.authorization.k8s.io"
        api.apply({
            "apiVersion": role["apiVersion"], "kind": f"{role['kind']}Binding",
            "metadata": {key: role["metadata"][key] for key in ("name", "namespace") if key in role["metadata"]},
            "roleRef": {"apiGroup": group, "kind": role["kind"], "name": name}, "subjects": subjects,
        })  # fmt: skip
    try:
        wait_for(in_force, 10, "the rights to be in force")
        tried("publish", second, "--activate", "--wait", "--note", "by the book")
        noted(api, digest(2))
        tried("rollback")
        noted(api, digest(1))
        tried("withdraw", digest(2))
        assert [e["by"] for e in json.loads(tried("history", "-o", "json"))][:3] == [TENANT.name] * 3
        with pytest.raises(ApiError, match="forbidden"):
            control_plane.api(TENANT).delete("configmaps", name_of(digest(2)), "dra-gate")
    finally:
        for resource, namespace in (("clusterrolebindings", None), ("rolebindings", "dra-gate")):
            api.delete(resource, "dra-gate-policy-publisher", namespace, missing_ok=True)
