"""Who tries to get devices around the arbiter, or loses track of them: what comes of it on the real control plane.

With the webhook in force the attempts are refused; where a test takes it away first, it plays its outage, and the
arbiter has to cope alone.
"""

from __future__ import annotations

import contextlib
import copy
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.api import JSON_PATCH, Api, ApiError, Object, wait_for
from controlplane.control_plane import GATE_CONTROLLER, SCHEDULER, TENANT, ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from controlplane.kubelet import delete_now, mark_succeeded
from e2e import scene
from e2e.granted import alternatives, condition, is_held, late_name, ledger, let_go, waits
from e2e.test_fair import POLICIES, fleet

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]
CLAIMS = "dra-gate.io/claims"


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    with Gate(control_plane, POLICIES, published=True) as installed:
        yield installed


@pytest.fixture
def place(api: Api, install_fleet: InstallFleet, clean: Clean, gate: Gate) -> str:
    """A namespace of the tenant that may hold one device, whose users may do what `edit` allows."""
    install_fleet(fleet(4, 4))
    namespace = clean("fair-one")
    api.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "team", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT.name}],
        }
    )
    return namespace


@pytest.fixture
def ada(control_plane: ControlPlane, place: str) -> Api:
    """A user of the tenant."""
    user = control_plane.api(TENANT)
    wait_for(lambda: _may(user, place), 10, "the tenant's rights")
    return user


def _may(user: Api, namespace: str) -> bool:
    try:
        user.list("pods", namespace)
    except ApiError:
        return False
    return True


@pytest.fixture
def waiting(api: Api, place: str) -> Object:
    """A Pod that waits because another one has what its tenant may hold."""
    api.create(scene.pod("first"), place)
    scene.bound(api, place, "first")
    api.create(scene.pod("waiting"), place)
    return waits(api, place, "waiting", "Quota")


@contextmanager
def unguarded(gate: Gate, attempt: Callable[[], Any]) -> Iterator[None]:
    """The webhook is not asked, which shows when it doesn't refuse the attempt any more: a dry run."""

    def passes() -> bool:
        try:
            attempt()
        except ApiError:
            return False
        return True

    gate.unregister()
    try:
        wait_for(passes, 20, "the API server to ask no webhook")
        yield
    finally:
        gate.register()


def end(api: Api, namespace: str, name: str) -> None:
    """The Pod finishes and goes."""
    mark_succeeded(api, namespace, name)
    delete_now(api, namespace, name)


def refused(attempt: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(ApiError) as problem:
        attempt()
    assert problem.value.status == 403
    assert any(text in problem.value.message for text in texts), problem.value.message


def copied(pod: Object, name: str) -> Object:
    """A Pod that says of itself what the gate wrote into `pod`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": copy.deepcopy(pod["metadata"]["annotations"])},
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": pod["spec"]["schedulingGates"],
            "resourceClaims": pod["spec"]["resourceClaims"],
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": late_entry(pod)}]}}],
        },
    }


def late_entry(pod: Object) -> str:
    return str(pod["spec"]["resourceClaims"][0]["name"])


def named(api: Api, namespace: str, pod: Object) -> Object:
    """The stored claim that the Pod names."""
    return api.get("resourceclaims", late_name(pod), namespace)


def hand_made(name: str, owner: Object | None = None) -> Object:
    """A claim for any four devices under a name."""
    metadata: Object = {"name": name}
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["metadata"]["name"], "controller": True}
        metadata["ownerReferences"] = [reference | {"uid": owner["metadata"]["uid"]}]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": [request]}},
    }


def test_another_pods_claim_is_not_to_be_had(api: Api, ada: Api, place: str, waiting: Object) -> None:
    """Admission can't know a name's first Pod from a later one: the arbiter can."""
    time.sleep(1.1)  # creationTimestamp counts in seconds
    bare = copied(waiting, "bare")
    del bare["spec"]["schedulingGates"], bare["metadata"]["annotations"]
    for pod in (copied(waiting, "thief"), bare):
        with contextlib.suppress(ApiError):
            ada.create(pod, place)
    thieves = api.list("pods", place)
    thieves = [pod for pod in thieves if pod["metadata"]["name"] in ("thief", "bare")]
    for thief in thieves:
        waits(api, place, thief["metadata"]["name"], "NameTaken")
    end(api, place, "first")
    pod = scene.bound(api, place, "waiting")
    assert [one["uid"] for one in named(api, place, pod)["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    for thief in thieves:
        assert condition(waits(api, place, thief["metadata"]["name"]))["reason"] == "NameTaken"


@pytest.mark.parametrize("owned", [False, True], ids=["nobody's", "with the Pod as owner"])
def test_a_claim_that_was_there_first_is_not_taken_for_ours(
    gate: Gate, api: Api, ada: Api, place: str, waiting: Object, owned: bool
) -> None:
    squatter = hand_made(late_name(waiting), waiting if owned else None)
    refused(lambda: ada.create(squatter, place), "reserved", "dra-gate-")
    with unguarded(gate, lambda: ada.create(squatter, place, dry_run=True)):
        made = ada.create(squatter, place)
    end(api, place, "first")
    pod = scene.bound(api, place, "waiting")
    claim = named(api, place, pod)
    assert claim["metadata"]["uid"] != made["metadata"]["uid"]
    assert set(alternatives(claim)) <= {"h100", "a100"}
    assert [one["uid"] for one in claim["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    assert len(scene.given(api, pod)) == 1


def test_nobody_lets_a_pod_go_or_changes_what_it_is_for(ada: Api, place: str, waiting: Object) -> None:
    remove = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    refused(lambda: ada.patch("pods", "waiting", remove, place, content_type=JSON_PATCH), "gate")
    more = {"metadata": {"annotations": {CLAIMS: f"{late_entry(waiting)}=4"}}}
    refused(lambda: ada.patch("pods", "waiting", more, place), "dra-gate.io")
    tenant = {"metadata": {"annotations": {"dra-gate.io/tenant": "other"}}}
    refused(lambda: ada.patch("pods", "waiting", tenant, place), "dra-gate.io")


def test_forged_counts_count_for_nothing(api: Api, place: str, clean: Clean) -> None:
    other = clean("fair-other")
    pod = scene.pod("modest", scene.container(gpus=2))
    pod["metadata"]["annotations"] = {CLAIMS: "gate-0=1", "dra-gate.io/devices": "1"}
    stored = api.create(pod, other)
    assert stored["metadata"]["annotations"][CLAIMS] == f"{late_entry(stored)}=2"
    assert stored["metadata"]["annotations"]["dra-gate.io/devices"] == "2"
    bound = scene.bound(api, other, "modest")
    assert len(scene.given(api, bound)) == 2
    wait_for(lambda: ledger(api, "other").get("devices") == 2, 20, "the ledger to count both")


def test_a_deleted_late_claim_is_written_again(control_plane: ControlPlane, api: Api, ada: Api, place: str) -> None:
    control_plane.stop(SCHEDULER)
    try:
        api.create(scene.pod("robbed"), place)
        pod = let_go(api, place, "robbed")
        before = named(api, place, pod)
        ada.delete("resourceclaims", late_name(pod), place)

        def anew(claim: Object) -> bool:
            return claim["metadata"]["uid"] != before["metadata"]["uid"]

        after = api.wait("resourceclaims", late_name(pod), place, anew, 20, "the claim to be written again")
        assert after["spec"] == before["spec"]
    finally:
        control_plane.start(SCHEDULER)
    scene.bound(api, place, "robbed")


def test_a_grant_whose_pod_is_gone_is_closed_by_the_next_leader(
    gate: Gate, control_plane: ControlPlane, api: Api, place: str, waiting: Object
) -> None:
    """The leader dies between the ledger and the claim, and the Pod is deleted before another leads."""
    gate.stop_controller(kill=True)
    stored = api.get("tenantledgers", "one")
    generation = stored["spec"]["generation"] + 1
    metadata, stamp = waiting["metadata"], waiting["metadata"]["annotations"]
    now = int(time.time() * 1000)
    grant = {
        "uid": metadata["uid"],
        "namespace": place,
        "name": "waiting",
        "generation": generation,
        "at": now,
        "queued": now,
        "policy": "ordered@1",
        "policySet": stamp["dra-gate.io/policy-set"],
        "model": "a100",
        "candidates": ["a100"],
        "claims": [{"entry": late_entry(waiting), "name": late_name(waiting), "count": 1, "digest": "0" * 64}],
    }
    stored["spec"] |= {"generation": generation, "grants": [*stored["spec"].get("grants", []), grant]}
    control_plane.api(GATE_CONTROLLER).replace(stored)
    delete_now(api, place, "waiting")
    gate.start_controller()

    def closed() -> bool:
        return not api.get("tenantledgers", "one")["spec"].get("grants") and ledger(api, "one")["devices"] == 1

    wait_for(closed, 60, "the grant to be closed")
    assert api.find("resourceclaims", late_name(waiting), place) is None


def test_a_late_claim_that_no_ledger_knows_is_deleted(
    control_plane: ControlPlane, api: Api, place: str, waiting: Object
) -> None:
    template = named(api, place, api.get("pods", "first", place))
    orphan = hand_made(late_name(waiting), waiting)
    orphan["metadata"] |= {key: template["metadata"][key] for key in ("labels", "annotations")}
    orphan["spec"] = template["spec"]
    made = control_plane.api(GATE_CONTROLLER).create(orphan, place)

    def gone() -> bool:
        found = api.find("resourceclaims", late_name(waiting), place)
        return found is None or found["metadata"]["uid"] != made["metadata"]["uid"]

    wait_for(gone, 30, "the claim of no grant to be deleted")
    assert is_held(api.get("pods", "waiting", place))


# -- tenants that change while they hold devices ----------------------------------------------------------------------


@contextmanager
def changed(gate: Gate, folder: Path, change: Callable[[dict[str, Object]], None]) -> Iterator[None]:
    """The policies with `change` made to the tenants' specs are active; then those before are again."""
    documents: list[Object] = list(yaml.safe_load_all((POLICIES / "fair.yaml").read_text()))
    change({one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Tenant"})
    folder.mkdir()
    (folder / "fair.yaml").write_text(yaml.safe_dump_all(documents))
    gate.policy("publish", folder, "--activate", "--no-lint")
    try:
        in_use(gate)
        yield
    finally:
        gate.policy("rollback")
        in_use(gate)


def in_use(gate: Gate) -> None:
    """Wait until the controller and every replica go by the Gate as it is now."""
    api = gate.plane.api()
    generation = api.get("gates", "default")["metadata"]["generation"]

    def followed() -> bool:
        stored = api.get("gates", "default")
        status = stored.get("status", {})
        active = [one["digest"] for one in status.get("sets", []) if one["state"] == "Active"]
        by_controller = active == [stored["spec"]["active"]] and status.get("observedGeneration", 0) >= generation
        return by_controller and all(generation_of(gate, replica) >= generation for replica in gate.replicas)

    wait_for(followed, 30, "controller and replicas to use the active policies")


def generation_of(gate: Gate, replica: str) -> float:
    """The generation of the Gate that the replica goes by."""
    with urllib.request.urlopen(f"{gate.status_url(replica)}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("dra_gate_gate_generation "))


def test_a_cap_that_is_lowered_below_use_takes_nothing_away_and_gives_nothing(
    gate: Gate, api: Api, place: str, clean: Clean, tmp_path: Path
) -> None:
    other = clean("fair-other")
    for n in range(4):
        api.create(scene.pod(f"p{n}"), other)
    before = {f"p{n}": scene.bound(api, other, f"p{n}")["metadata"]["uid"] for n in range(4)}

    def lower(tenants: dict[str, Object]) -> None:
        tenants["other"]["quota"] = {"devices": 2, "models": {"h100": 2}}

    with changed(gate, tmp_path / "lower", lower):
        api.create(scene.pod("late"), other)
        waits(api, other, "late", "Quota")
        for n in range(2):
            end(api, other, f"p{n}")
        wait_for(lambda: ledger(api, "other").get("devices") == 2, 20, "two devices to be given back")
        time.sleep(2)
        assert is_held(api.get("pods", "late", other))
        assert [api.get("pods", f"p{n}", other)["metadata"]["uid"] for n in (2, 3)] == [before["p2"], before["p3"]]
        end(api, other, "p2")
        scene.bound(api, other, "late")
        wait_for(lambda: ledger(api, "other").get("devices") == 2, 20, "the ledger to count it")


def test_what_a_namespace_holds_stays_with_who_was_granted_it(
    gate: Gate, api: Api, place: str, clean: Clean, tmp_path: Path
) -> None:
    moves = clean("fair-moves")
    api.create(scene.pod("settled"), moves)
    scene.bound(api, moves, "settled")
    wait_for(lambda: ledger(api, "one").get("devices") == 1, 20, "the ledger to count it")

    def move(tenants: dict[str, Object]) -> None:
        tenants["one"]["namespaces"].remove(moves)
        tenants["other"]["namespaces"].append(moves)

    with changed(gate, tmp_path / "moved", move):
        api.create(scene.pod("new"), moves)
        scene.bound(api, moves, "new")
        wait_for(lambda: ledger(api, "other").get("devices") == 1, 20, "its new tenant to pay for the new Pod")
        assert ledger(api, "one")["devices"] == 1
        api.create(scene.pod("still"), place)
        waits(api, place, "still", "Quota")
        end(api, moves, "settled")
        scene.bound(api, place, "still")


def test_a_namespace_without_its_lane_still_pays_for_what_it_holds(api: Api, place: str, clean: Clean) -> None:
    moves = clean("fair-moves")
    api.create(scene.pod("settled"), moves)
    scene.bound(api, moves, "settled")
    api.patch("namespaces", moves, {"metadata": {"labels": {"dra-gate.io/lane": None}}})
    try:
        api.create(scene.pod("still"), place)
        waits(api, place, "still", "Quota")
        time.sleep(2)
        assert ledger(api, "one")["devices"] == 1
        assert is_held(api.get("pods", "still", place))
    finally:
        scene.namespace(api, moves)
    end(api, moves, "settled")
    scene.bound(api, place, "still")
