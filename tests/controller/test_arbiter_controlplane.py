"""The arbiter's loop against the real control plane, as the controller's service account with the rights of
deploy/base. The Pods are made as mutate would leave them."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.held_pods import (
    Crash,
    Loop,
    bound,
    claims_of,
    held_pod,
    ledger,
    looping,
    models,
    steady,
    tenant_set,
    until,
)
from controller.test_templates_controlplane import RBAC
from controlplane.api import Api, ApiError
from controlplane.control_plane import GATE_CONTROLLER, ControlPlane
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.fleet import Fleet
from dra_gate.cluster.client import Unreachable
from dra_gate.cluster.line_log import LineLog
from dra_gate.controller import arbiter_gather, arbiter_tail
from dra_gate.fairness import resting
from dra_gate.fairness.checker import Checker
from dra_gate.fairness.events import AnyLine, Held
from dra_gate.fairness.log import loads, replay
from dra_gate.kube.times import rfc3339
from dra_gate.policy.compile import templates_of
from dra_gate.policy.model import PolicyRef

pytestmark = pytest.mark.controlplane
LANE = {"dra-gate.io/lane": "dra"}
CRD = Path(__file__).parents[2] / "deploy/base/crds/tenantledgers.yaml"


@pytest.fixture(scope="module")
def kubeconfig(control_plane: ControlPlane) -> Path:
    """Of the controller's service account, with exactly the rights that we ship."""
    api = control_plane.api()
    with contextlib.suppress(ApiError):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-gate"}})
    api.apply_yaml(RBAC.read_text())
    api.apply_yaml(CRD.read_text())
    until(lambda: _served(api), "the CRD to be served")
    return control_plane.kubeconfig_for(GATE_CONTROLLER)


def _served(api: Api) -> bool:
    try:
        api.request("GET", "/apis/dra-gate.io/v1alpha1/tenantledgers")
    except ApiError:
        return False
    return True


@pytest.fixture
def namespace(make_namespace: MakeNamespace, api: Api) -> str:
    return make_namespace(labels=LANE)


def test_a_held_pod_is_granted_and_bound(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path, tmp_path: Path
) -> None:
    install_fleet("demo")
    policies = tenant_set("t-bound", namespace, weight=1)
    pod = api.create(held_pod("p", policies, "t-bound", gates=[{"name": "example.com/other"}]), namespace)
    log = LineLog(tmp_path, 1 << 24, "arbiter", by_hand=True)
    with looping(kubeconfig, policies, log):
        until(
            lambda: (
                [gate["name"] for gate in api.get("pods", "p", namespace)["spec"].get("schedulingGates", [])]
                == ["example.com/other"]
            ),
            "our gate to go, and no other",
        )
        api.patch("pods", "p", {"spec": {"schedulingGates": []}}, namespace)
        assert bound(api, namespace, "p")["spec"]["nodeName"] == "hopper"
        (claim,) = api.list("resourceclaims", namespace)
        assert claim["metadata"]["name"] == claims_of(pod)[0]
        (owner,) = claim["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "p",
            "uid": pod["metadata"]["uid"],
            "controller": True,
        }
        until(lambda: not ledger(api, "t-bound")["spec"].get("grants"), "the grant to be closed")
        told = until(
            lambda: (status := ledger(api, "t-bound").get("status", {})).get("models") == {"h100": 1} and status,
            "status",
        )
        assert (told["devices"], told["waiting"], told["largest"]) == (1, 0, {"h100": 2, "a100": 2, "l40s": 2})
    (file,) = tmp_path.iterdir()
    assert list(replay(file.read_bytes().splitlines())) == []


def test_a_quota_by_model_divides_a_burst(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """Four of twenty get an H100, the others an A100, at once; nobody is left waiting."""
    nodes = {"h": {"h100": 8}, "a0": {"a100": 8}, "a1": {"a100": 8}}
    install_fleet(Fleet.of("burst", {"nodes": [{"name": name, "devices": found} for name, found in nodes.items()]}))
    policies = tenant_set("t-quota", namespace, quota={"models": {"h100": 4}})
    for number in range(20):
        api.create(held_pod(f"p{number}", policies, "t-quota"), namespace)
    with looping(kubeconfig, policies):
        until(lambda: len(models(api, namespace)) == 20, "20 claims to be allocated")
        assert models(api, namespace) == 16 * ["a100"] + 4 * ["h100"]
        until(lambda: ledger(api, "t-quota")["status"]["models"] == {"a100": 16, "h100": 4}, "the status")
        until(lambda: not ledger(api, "t-quota")["spec"].get("grants"), "the grants to be closed")


def test_above_the_quota_pods_wait_and_say_why(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    install_fleet("demo")
    policies = tenant_set("t-waits", namespace, weight=1, quota={"devices": 1})
    with looping(kubeconfig, policies):
        api.create(held_pod("first", policies, "t-waits"), namespace)
        bound(api, namespace, "first")
        second = api.create(held_pod("second", policies, "t-waits"), namespace)
        told = until(lambda: granted(api, namespace, "second"), "the condition")
        assert (told["status"], told["reason"]) == ("False", "Quota")
        assert "1 devices are held and the quota is 1" in told["message"]
        assert told["lastTransitionTime"] == second["metadata"]["creationTimestamp"]
        until(lambda: ledger(api, "t-waits")["status"]["waiting"] == 1, "the status, which is written now and then")
        api.patch("pods", "first", {"status": {"phase": "Succeeded"}}, namespace, subresource="status")
        bound(api, namespace, "second")
        until(lambda: granted(api, namespace, "second")["status"] == "True", "the condition to be true")
    assert granted(api, namespace, "first") is None


def granted(api: Api, namespace: str, name: str) -> Any:
    """The Pod's condition, None without one."""
    pod = api.find("pods", name, namespace) or {}
    found = pod.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == "dra-gate.io/Granted"), None)


@pytest.mark.parametrize("before", ["claim", "gate"])
def test_whoever_leads_next_finishes_a_grant(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path, before: str
) -> None:
    """The leader ends between ledger and claim, or between claim and gate."""
    install_fleet("demo")
    tenant = f"t-crash-{before}"
    policies = tenant_set(tenant, namespace, weight=1)
    stop = {"claim": ("POST", "/resourceclaims"), "gate": ("PATCH", f"/namespaces/{namespace}/pods/p")}[before]

    def hook(method: str, path: str) -> None:
        if method == stop[0] and path.endswith(stop[1]):
            raise Crash

    first = Loop(kubeconfig, policies)
    first.client.hook = hook
    first.start()
    try:
        pod = api.create(held_pod("p", policies, tenant), namespace)
        until(lambda: ledger(api, tenant).get("spec", {}).get("grants"), "the grant in the ledger")
        until(lambda: before == "claim" or api.list("resourceclaims", namespace), "the claim")
    finally:
        first.leads = False
        first.stop()
    assert api.get("pods", "p", namespace)["spec"]["schedulingGates"] == [{"name": "dra-gate.io/grant"}]
    generation = ledger(api, tenant)["spec"]["generation"]
    with looping(kubeconfig, policies):
        bound(api, namespace, "p")
        (claim,) = api.list("resourceclaims", namespace)
        assert claim["metadata"]["name"] == claims_of(pod)[0]
        assert claim["metadata"]["annotations"]["dra-gate.io/ledger-generation"] == str(generation)
        until(lambda: not ledger(api, tenant)["spec"].get("grants"), "the grant to be closed")


def test_a_grant_whose_pod_has_gone_is_closed_and_its_claim_taken_away(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    install_fleet("demo")
    policies = tenant_set("t-gone", namespace, weight=1)

    def hook(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/pods/p"):
            raise Crash

    first = Loop(kubeconfig, policies)
    first.client.hook = hook
    first.start()
    try:
        api.create(held_pod("p", policies, "t-gone"), namespace)
        until(lambda: api.list("resourceclaims", namespace), "the claim")
    finally:
        first.leads = False
        first.stop()
    api.delete("pods", "p", namespace, grace=0)
    with looping(kubeconfig, policies):
        until(lambda: not ledger(api, "t-gone")["spec"].get("grants"), "the grant to be closed")
        assert api.list("resourceclaims", namespace) == []
        until(lambda: ledger(api, "t-gone")["status"]["devices"] == 0, "nothing to be charged")


def test_a_taken_name_is_nobody_elses(api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path) -> None:
    """A thief names the first Pod's claim; a squatter has made a claim of that name before the grant."""
    install_fleet("demo")
    policies = tenant_set("t-theft", namespace, weight=1)
    first = api.create(held_pod("first", policies, "t-theft", uid="review"), namespace)
    (name,) = claims_of(first)
    squatter = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    }
    api.create(squatter)
    until(lambda: api.get("pods", "first", namespace)["metadata"]["creationTimestamp"] < _now(), "another second")
    api.create(held_pod("thief", policies, "t-theft", uid="review"), namespace)
    with looping(kubeconfig, policies):
        bound(api, namespace, "first")
        claim = api.get("resourceclaims", name, namespace)
        assert claim["metadata"]["ownerReferences"][0]["uid"] == first["metadata"]["uid"]
        told = until(lambda: granted(api, namespace, "thief"), "the thief's condition")
        assert (told["status"], told["reason"]) == ("False", "NameTaken")
        assert steady(lambda: api.get("pods", "thief", namespace)["spec"].get("schedulingGates")), "it is never granted"
        assert models(api, namespace) == ["h100"]


def test_late_claims_that_no_ledger_knows_are_deleted(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """One of a Pod that waits for its turn (no cap leaves room), one of a Pod that is gone."""
    install_fleet("demo")
    policies = tenant_set("t-orphan", namespace, weight=1, quota={"devices": 0})
    pod = api.create(held_pod("p", policies, "t-orphan"), namespace)
    other = held_pod("q", policies, "t-orphan")
    for name, uid in ((claims_of(pod)[0], pod["metadata"]["uid"]), (claims_of(other)[0], "0-gone")):
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "p" if uid != "0-gone" else "q",
            "uid": uid,
            "controller": True,
        }
        api.create({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "name": name, "namespace": namespace, "ownerReferences": [owner],
                "labels": {"app.kubernetes.io/managed-by": "dra-gate", "dra-gate.io/tenant": "t-orphan"},
                "annotations": {"dra-gate.io/ledger-generation": "7"},
            },
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        })  # fmt: skip
    with looping(kubeconfig, policies):
        until(lambda: not api.list("resourceclaims", namespace), "the claims to go")
        assert steady(lambda: api.get("pods", "p", namespace)["spec"].get("schedulingGates"))


def test_a_device_lost_between_grant_and_allocation(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """Another party's gate keeps Pods from being scheduled; meanwhile what they were granted goes. Their claims are
    made anew, and they are bound elsewhere."""
    if not api.serves("devicetaintrules"):
        pytest.skip("DeviceTaintRule is in v1 since 1.37")
    install_fleet("demo")
    policies = tenant_set("t-lost", namespace, weight=1)
    for number in range(4):  # granted in one pass nothing is left over: each has one candidate
        api.create(held_pod(f"p{number}", policies, "t-lost", gates=[{"name": "example.com/hold"}]), namespace)
    with looping(kubeconfig, policies):
        until(lambda: len(api.list("resourceclaims", namespace)) == 4, "the claims")
        before = {
            claim["metadata"]["ownerReferences"][0]["name"]: (claim["metadata"]["uid"], alternatives(claim))
            for claim in api.list("resourceclaims", namespace)
        }
        assert sorted(found for _, found in before.values()) == [["a100"], ["a100"], ["h100"], ["h100"]]
        lost = [name for name, (_, found) in before.items() if found == ["h100"]]
        rule = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "lost"},
            "spec": {
                "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "hopper"},
                "taint": {"key": "example.com/lost", "effect": "NoSchedule"},
            },
        }
        api.create(rule)
        try:
            for name in set(before) - set(lost):
                api.delete("pods", name, namespace, grace=0)

            def made_anew() -> bool:
                now = api.list("resourceclaims", namespace)
                return [alternatives(claim) for claim in now] == [["a100"], ["a100"]]

            until(made_anew, "claims that may have an A100")
            assert not {uid for uid, _ in before.values()} & {
                claim["metadata"]["uid"] for claim in api.list("resourceclaims", namespace)
            }
            for name in lost:
                api.patch("pods", name, {"spec": {"schedulingGates": []}}, namespace)
                assert bound(api, namespace, name)["spec"]["nodeName"] == "ampere"
        finally:
            api.delete("devicetaintrules", "lost")


def alternatives(claim: Mapping[str, Any]) -> list[str]:
    """The candidates that a claim may have."""
    return [sub["name"] for sub in claim["spec"]["devices"]["requests"][0]["firstAvailable"]]


def test_a_paused_old_leader_does_nothing_when_it_comes_back(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """It sleeps with a decision in its hand, and has not noticed that it leads no more: the ledger says no."""
    install_fleet("demo")
    policies = tenant_set("t-paused", namespace, weight=1, quota={"devices": 1})
    paused, go_on = threading.Event(), threading.Event()

    def hook(method: str, path: str) -> None:
        if method in ("PUT", "POST") and "/tenantledgers" in path and not path.endswith("/status") and armed:
            paused.set()
            go_on.wait(30)

    armed: list[bool] = []
    old = Loop(kubeconfig, policies)
    old.client.hook = hook
    old.start()
    try:
        until(lambda: ledger(api, "t-paused").get("status"), "the first status")
        armed.append(True)
        api.create(held_pod("p", policies, "t-paused"), namespace)
        assert paused.wait(20)
        with looping(kubeconfig, policies):
            bound(api, namespace, "p")
            api.create(held_pod("q", policies, "t-paused"), namespace)
            armed.clear()
            go_on.set()
            assert steady(lambda: api.get("pods", "q", namespace)["spec"].get("schedulingGates"), 3)
            assert len(api.list("resourceclaims", namespace)) == 1
            assert ledger(api, "t-paused")["status"]["devices"] == 1
    finally:
        old.stop()


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_ledger_that_could_not_be_written_grants_nothing(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path, when: str
) -> None:
    """The server is not reached three times, or its answers are lost: either way the Pods go once, within the quota."""
    install_fleet("demo")
    tenant = f"t-unreached-{when}"
    policies = tenant_set(tenant, namespace, weight=1, quota={"devices": 1})
    failures: list[str] = []

    def fail(method: str, path: str) -> None:
        if "/tenantledgers" in path and not path.endswith("/status") and armed and len(failures) < 3:
            failures.append(method)
            raise Unreachable("lost")

    armed: list[bool] = []
    with looping(kubeconfig, policies) as loop:
        until(lambda: ledger(api, tenant).get("status"), "the first status")
        if when == "before":
            loop.client.hook = fail
        else:
            loop.client.after = fail
        armed.append(True)
        for name in ("p", "q"):
            api.create(held_pod(name, policies, tenant), namespace)
        until(lambda: len(failures) == 3, "three failures")
        until(lambda: models(api, namespace) == ["h100"], "one to be granted")
        until(lambda: charged(api, tenant) == (1, 1, {"h100": 1}), "the status")
        assert steady(lambda: models(api, namespace)) == ["h100"]
        assert len(api.list("resourceclaims", namespace)) == 1


def charged(api: Api, tenant: str) -> tuple[int, int, dict[str, int]]:
    """What the ledger's status says: devices, Pods that wait, devices by model."""
    status = ledger(api, tenant)["status"]
    return status["devices"], status["waiting"], status["models"]


def test_a_cache_that_is_behind_lowers_no_charge(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """As in the open quota overshoot of Kubernetes (issue 123434): the watch of claims stands still after the first
    grant. What is not seen to be allocated stays charged at its worst case."""
    install_fleet("demo")
    policies = tenant_set("t-behind", namespace, weight=1, quota={"devices": 2})
    with looping(kubeconfig, policies) as loop:
        until(lambda: ledger(api, "t-behind").get("status"), "the first status")
        next(one for one in loop.decisions.reflectors if one.name.endswith("/ResourceClaim")).stop()
        for number in range(2):
            api.create(held_pod(f"p{number}", policies, "t-behind"), namespace)
            bound(api, namespace, f"p{number}")
        api.delete("pods", "p0", namespace)  # it is going, and nobody stops its containers
        api.create(held_pod("p2", policies, "t-behind"), namespace)
        assert steady(lambda: api.get("pods", "p2", namespace)["spec"].get("schedulingGates"), 3)
        assert ledger(api, "t-behind")["status"]["devices"] == 2
        for reflector in loop.decisions.reflectors:
            reflector.stop()
        loop.decisions.reflectors.clear()  # one of them had ended before: that is this test's doing


def test_a_lent_device_has_a_lease(api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path) -> None:
    """Two tenants of equal weight: the share is one H100 and one A100, the third Pod is above it. Nobody waits, so it
    gets one, for an hour."""
    install_fleet("demo")
    other = {"apiVersion": "policy.dra-gate.io/v1alpha1", "kind": "Tenant", "metadata": {"name": "t-lender"}}
    spec = {"policy": "train@1", "namespaces": ["somewhere-else"], "weight": 1}
    policies = tenant_set("t-lease", namespace, {**other, "spec": spec}, weight=1, lease="1h")
    for number in range(3):
        api.create(held_pod(f"p{number}", policies, "t-lease"), namespace)
    with looping(kubeconfig, policies):
        pods = [bound(api, namespace, f"p{number}") for number in range(3)]
    assert sorted(pod["spec"].get("activeDeadlineSeconds", 0) for pod in pods) == [0, 0, 3600]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Options of a loop that soon takes grants back which the scheduler can't use; then their Pods rest for 8 s."""
    monkeypatch.setattr(arbiter_gather, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(resting, "FIRST_REST", 8_000)
    return {"grant_timeout": 1.5}


NOWHERE = {"nodeSelector": {"example.com/nowhere": "yes"}}


def test_a_grant_that_can_not_be_scheduled_goes_to_who_waits_next(
    api: Api,
    namespace: str,
    install_fleet: InstallFleet,
    kubeconfig: Path,
    impatient: dict[str, float],
    tmp_path: Path,
) -> None:
    install_fleet("demo")
    policies = tenant_set("t-stuck", namespace, weight=1, quota={"devices": 1})
    stuck = api.create(held_pod("stuck", policies, "t-stuck", **NOWHERE), namespace)
    until(lambda: stuck["metadata"]["creationTimestamp"] < _now(), "another second")
    api.create(held_pod("next", policies, "t-stuck"), namespace)
    log = LineLog(tmp_path, 1 << 24, "arbiter", by_hand=True)
    with looping(kubeconfig, policies, log, **impatient) as loop:
        grants = until(lambda: ledger(api, "t-stuck").get("spec", {}).get("grants"), "a grant")
        assert [one["name"] for one in grants] == ["stuck"]
        told = until(  # before anything else is waited for: when it has rested it says that the quota is used up
            lambda: (found := granted(api, namespace, "stuck")) and found["reason"] == "NotScheduled" and found,
            "the condition",
        )
        bound(api, namespace, "next")
        assert told["status"] == "False"
        assert "could not be scheduled: 0/4 nodes are available: 4 node(s) didn't match Pod's node" in told["message"]
        assert told["lastTransitionTime"] == stuck["metadata"]["creationTimestamp"], "it keeps its age"
        assert [one["metadata"]["name"] for one in api.list("resourceclaims", namespace)] == claims_of(
            api.get("pods", "next", namespace)
        )
        (rest,) = ledger(api, "t-stuck")["spec"]["resting"]
        assert rest["uid"] == stuck["metadata"]["uid"]
        counted = {
            tuple(sample.labels.values()): sample.value
            for metric in loop.arbiter.collect()
            for sample in metric.samples
            if sample.name == "dra_gate_grants_withdrawn_total"
        }
        assert counted == {("t-stuck", "unscheduled"): 1}
    (file,) = tmp_path.iterdir()
    assert list(replay(file.read_bytes().splitlines())) == []


def test_a_pod_that_rested_is_granted_again_and_what_it_borrows_then_is_lent(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path, impatient: dict[str, float]
) -> None:
    """Its first grant was within the share and its gate is off: the lease of the second is written all the same."""
    install_fleet("demo")
    other = {"apiVersion": "policy.dra-gate.io/v1alpha1", "kind": "Tenant", "metadata": {"name": "t-rest-lender"}}
    spec = {"policy": "train@1", "namespaces": ["somewhere-else"], "weight": 1}
    policies = tenant_set("t-rest", namespace, {**other, "spec": spec}, weight=1, lease="1h")
    api.create(held_pod("stuck", policies, "t-rest", **NOWHERE), namespace)
    with looping(kubeconfig, policies, **impatient):
        until(lambda: ledger(api, "t-rest").get("spec", {}).get("resting"), "its grant to be taken back")
        api.create(held_pod("p", policies, "t-rest"), namespace)
        assert "activeDeadlineSeconds" not in bound(api, namespace, "p")["spec"], "the share is one H100"
        nodes = [node["metadata"]["name"] for node in api.list("nodes")]
        for name in nodes:
            api.patch("nodes", name, {"metadata": {"labels": {"example.com/nowhere": "yes"}}})
        pod = bound(api, namespace, "stuck", 40)  # if it was granted and taken back meanwhile it rests for 16 s
        assert pod["spec"].get("activeDeadlineSeconds") == 3600
        until(lambda: not ledger(api, "t-rest")["spec"].get("resting"), "its rests to be forgotten")
        until(lambda: granted(api, namespace, "stuck")["status"] == "True", "the condition")


def test_the_checker_reads_along_without_a_log(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fleet("demo")
    policies = tenant_set("t-checked", namespace, weight=1)
    checkers: list[Checker] = []

    class Kept(Checker):
        def __init__(self) -> None:
            super().__init__()
            checkers.append(self)

    monkeypatch.setattr(arbiter_tail, "Checker", Kept)
    with looping(kubeconfig, policies) as loop:
        api.create(held_pod("p", policies, "t-checked"), namespace)
        bound(api, namespace, "p")
        until(lambda: sum(one.granted for one in checkers) == 1, "the checker to read of the grant")
        # What a pass writes that goes on when its term is over is counted as not checked: none is to be under way.
        until(lambda: not ledger(api, "t-checked")["spec"].get("grants"), "the grant to be closed")
        loop.arbiter.deactivate()
        loop.arbiter.wake()  # the next term
        api.create(held_pod("q", policies, "t-checked"), namespace)
        bound(api, namespace, "q")
        until(lambda: checkers[-1].granted == 1, "the next checker to read of the next grant")
        assert checkers[-1].pods < 2  # it knows nothing of the term before


def test_a_group_goes_whole_and_gets_one_model(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """Two Pods of an Indexed Job. One H100 is taken: both get an A100."""
    install_fleet("demo")
    policies = tenant_set("t-group", namespace, weight=1)
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    spec["managedBy"] = "example.com/this-test"
    job = api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "two"}, "spec": spec}, namespace)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "two", "uid": job["metadata"]["uid"], "controller": True}

    def member(index: int) -> dict[str, Any]:
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        metadata = {"ownerReferences": [owner]}
        return held_pod(f"m{index}", policies, "t-group", annotations=annotations, metadata=metadata)

    with looping(kubeconfig, policies):
        api.create(held_pod("single", policies, "t-group"), namespace)
        bound(api, namespace, "single")
        api.create(member(0), namespace)
        told = until(lambda: granted(api, namespace, "m0"), "the condition")
        assert (told["status"], told["reason"]) == ("False", "GroupIncomplete")
        assert api.get("pods", "m0", namespace)["spec"]["schedulingGates"]
        api.create(member(1), namespace)
        assert {bound(api, namespace, name)["spec"]["nodeName"] for name in ("m0", "m1")} == {"ampere"}
        assert models(api, namespace) == ["a100", "a100", "h100"]
        # One is replaced while H100s are free: it gets the group's model.
        for name in ("single", "m1"):
            api.patch("pods", name, {"status": {"phase": "Failed"}}, namespace, subresource="status")
        until(lambda: models(api, namespace) == ["a100"], "their devices to be free")
        again = member(1)
        again["metadata"]["name"] = "m1-again"
        api.create(again, namespace)
        assert bound(api, namespace, "m1-again")["spec"]["nodeName"] == "ampere"
        assert models(api, namespace) == ["a100", "a100"]


def test_held_pods_with_templates(api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path) -> None:
    """A quota in devices only: the claims come from the template, the gate stays until there is room."""
    install_fleet("demo")
    policies = tenant_set("t-template", namespace, quota={"devices": 1})
    template = templates_of(policies).for_count("t-template", PolicyRef("train", 1), 1)
    api.create(template.manifest(namespace))

    def pod(name: str) -> dict[str, Any]:
        made = held_pod(name, policies, "t-template")
        del made["metadata"]["annotations"]["dra-gate.io/claims"]
        made["spec"]["resourceClaims"] = [{"name": "gate-0", "resourceClaimTemplateName": template.name}]
        return made

    with looping(kubeconfig, policies):
        api.create(pod("first"), namespace)
        bound(api, namespace, "first")
        until(lambda: not ledger(api, "t-template")["spec"].get("grants"), "the grant to be closed")
        api.create(pod("second"), namespace)
        told = until(lambda: granted(api, namespace, "second"), "the condition")
        assert (told["status"], told["reason"]) == ("False", "Quota")
        api.patch("pods", "first", {"status": {"phase": "Succeeded"}}, namespace, subresource="status")
        bound(api, namespace, "second")


def test_a_lost_ledger_is_made_again_from_claims_and_pods(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """The Pod was let go and its claim is not allocated yet, as another party's gate holds it: it is charged still."""
    install_fleet("demo")
    policies = tenant_set("t-ledgerless", namespace, weight=1, quota={"devices": 1})
    hold = [{"name": "example.com/hold"}]
    with looping(kubeconfig, policies):
        api.create(held_pod("p", policies, "t-ledgerless", gates=hold), namespace)
        until(lambda: api.get("pods", "p", namespace)["spec"]["schedulingGates"] == hold, "the grant")
        (before,) = until(lambda: api.list("resourceclaims", namespace), "the claim")
    api.request("DELETE", "/apis/dra-gate.io/v1alpha1/tenantledgers/t-ledgerless")
    api.create(held_pod("q", policies, "t-ledgerless"), namespace)
    with looping(kubeconfig, policies):
        until(lambda: ledger(api, "t-ledgerless").get("spec", {}).get("grants"), "the grant to be in the ledger again")
        until(lambda: ledger(api, "t-ledgerless").get("status", {}).get("waiting") == 1, "the other Pod to wait")
        assert ledger(api, "t-ledgerless")["status"]["devices"] == 1
        (after,) = api.list("resourceclaims", namespace)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        api.patch("pods", "p", {"spec": {"schedulingGates": []}}, namespace)
        bound(api, namespace, "p")
        assert steady(lambda: api.get("pods", "q", namespace)["spec"].get("schedulingGates"))


def test_age_is_kept_when_a_pod_is_made_again_and_when_the_leader_changes(
    api: Api, namespace: str, install_fleet: InstallFleet, kubeconfig: Path, tmp_path: Path
) -> None:
    install_fleet("demo")
    policies = tenant_set("t-age", namespace, weight=1, quota={"devices": 0})
    made = api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, namespace)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": made["metadata"]["uid"]}
    metadata = {"ownerReferences": [{**owner, "controller": True}]}

    def pod(name: str) -> dict[str, Any]:
        return held_pod(name, policies, "t-age", metadata=metadata)

    with looping(kubeconfig, policies):
        first = api.create(pod("one"), namespace)["metadata"]["creationTimestamp"]
        until(lambda: granted(api, namespace, "one"), "the condition")
        api.delete("pods", "one", namespace, grace=0)
        second = api.create(pod("two"), namespace)["metadata"]["creationTimestamp"]
        assert second > first
        assert until(lambda: granted(api, namespace, "two"), "the condition")["lastTransitionTime"] == first
    log = LineLog(tmp_path, 1 << 24, "arbiter", by_hand=True)
    with looping(kubeconfig, policies, log):
        until(lambda: any(isinstance(line, Held) for line in _lines(tmp_path)), "the Pod to wait")
    held = next(line for line in _lines(tmp_path) if isinstance(line, Held))
    assert rfc3339(held.queued, whole=True) == first


def _lines(folder: Path) -> list[AnyLine]:
    """Those that are whole: the loop may be writing the last."""
    whole = [file.read_bytes().rpartition(b"\n")[0] for file in folder.iterdir()]
    return [loads(line) for lines in whole for line in lines.splitlines()]
