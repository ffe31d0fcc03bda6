"""The arbiter's loop over an API server that is a dictionary: what one pass leaves behind when it does not end well."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from allocation import fleet as small
from controller.held_pods import API, GATE, claims_of, held_pod, tenant_set
from dra_gate.cluster.client import Client, ClusterError, Conflict, NotFound, Unreachable
from dra_gate.cluster.reflector import Sink
from dra_gate.controller import arbiter_gather
from dra_gate.controller.arbiter import ArbiterController
from dra_gate.controller.arbiter_term import Away, Overtaken
from dra_gate.controller.arbiter_view import View
from dra_gate.controller.decisions import DecisionController
from dra_gate.fairness import resting
from dra_gate.policy.model import PolicySet

Object = dict[str, Any]
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/"


class Server(Client):
    """Objects by path. `hook` is called before each write of a ledger with its path."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.hook: Callable[[str], None] = lambda path: None
        self._number = 0

    def _store(self, path: str, obj: Mapping[str, Any]) -> Object:
        if "tenantledgers" in path:
            self.hook(path)
        self._number += 1
        stored = copy.deepcopy(dict(obj))
        stored["metadata"] = {"uid": f"uid-{self._number}", **stored["metadata"], "resourceVersion": str(self._number)}
        self.objects[path] = stored
        return copy.deepcopy(stored)

    def get(self, path: str, *_: Any, **__: Any) -> Object:
        if path not in self.objects:
            raise NotFound(404, "NotFound", path)
        return copy.deepcopy(self.objects[path])

    def list(self, path: str, *_: Any, **__: Any) -> Any:
        return [copy.deepcopy(obj) for key, obj in self.objects.items() if key.startswith(path + "/")]

    def create(self, path: str, obj: Mapping[str, Any], *_: Any, **__: Any) -> Object:
        path = f"{path}/{obj['metadata']['name']}"
        if path in self.objects:
            raise Conflict(409, "AlreadyExists", path)
        return self._store(path, obj)

    def replace(self, path: str, obj: Mapping[str, Any], *_: Any, **__: Any) -> Object:
        before = self.get(path.removesuffix("/status"))
        if before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", path)
        return self._store(path.removesuffix("/status"), obj)

    def patch(self, *_: Any, **__: Any) -> Object:
        return {}

    def delete(self, path: str, *_: Any, **__: Any) -> None:
        if self.objects.pop(path, None) is None:
            raise NotFound(404, "NotFound", path)


class Loop:
    """A loop that is turned by hand; its caches are told what is there."""

    def __init__(self, policy_set: PolicySet, **options: Any) -> None:
        self.server = Server()
        self.decisions = DecisionController(self.server, identity="test", leading=lambda: True)
        for reflector in self.decisions.reflectors:
            reflector.synced.set()
        self.loop = ArbiterController(self.server, self.decisions, leading=lambda: True, **options)
        self.decisions.use([policy_set])
        self.loop.use([policy_set])
        self.tell("Node", ("", "n1"), small.node())
        self.tell("DeviceClass", ("", "gpu.nvidia.com"), small.gpu_class())
        self.tell("ResourceSlice", ("", "s"), small.slice_of("n1", [small.device(f"d{i}", "h100") for i in range(4)]))
        self.loop.wake()

    def tell(self, kind: str, key: tuple[str, str], obj: Object) -> None:
        self._sink(kind).upsert({**obj, "metadata": {"namespace": key[0], "name": key[1], **obj.get("metadata", {})}})

    def tell_gone(self, kind: str, obj: Object) -> None:
        self._sink(kind).delete(obj)

    def _sink(self, kind: str) -> Sink:
        (found,) = [one._sink for one in self.decisions.reflectors if one.name == f"decisions/{kind}"]
        return found

    def pod(self, name: str, policy_set: PolicySet, tenant: str, *counts: int, **more: Any) -> Object:
        pod = held_pod(name, policy_set, tenant, *counts, **more)
        pod["metadata"] |= {"namespace": "n", "uid": f"uid-{name}", "creationTimestamp": "2026-11-30T10:00:00Z"}
        self.tell("Pod", ("n", name), pod)
        return pod

    def turn(self) -> None:
        self.loop._turn()

    @property
    def granted(self) -> set[str]:
        return {
            uid
            for ledger in self.server.list("/apis/dra-gate.io/v1alpha1/tenantledgers")
            for uid in (grant["uid"] for grant in ledger["spec"].get("grants", ()))
        }

    @property
    def claims(self) -> list[str]:
        """The names of the claims that are there."""
        return [path.removeprefix(CLAIMS) for path in sorted(self.server.objects) if path.startswith(CLAIMS)]

    @property
    def used(self) -> dict[str, int]:
        return {tenant: charge.devices for tenant, charge in self.loop._view.holdings.used.items() if charge.devices}


def given(pod: Object, model: str = "h100") -> Object:
    """The Pod's claim, made by another leader and allocated."""
    (entry,) = pod["spec"]["resourceClaims"]
    owner = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "controller": True}
    result = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "d0", "request": f"gpu/{model}"}
    metadata = {"namespace": "n", "name": entry["resourceClaimName"], "uid": "c", "ownerReferences": [owner]}
    alternatives = [{"name": model, "deviceClassName": "gpu.nvidia.com", "count": 1}]
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def test_what_a_term_decided_and_did_not_write_counts_again_when_we_lead_again() -> None:
    """Somebody else may have granted it meanwhile."""
    policies = tenant_set("oak", "n", weight=1, quota={"devices": 1})
    one = Loop(policies)
    pod = one.pod("a", policies, "oak")
    one.turn()  # ledgers are there
    one.loop.deactivate()
    one.server.objects.clear()
    one.loop.wake()
    one.server.hook = lambda path: one.loop.deactivate() if path.endswith("/oak") else None
    with contextlib.suppress(ClusterError):
        one.turn()
    one.server.hook = lambda path: None
    one.server.objects.clear()  # of what the other leader did its ledger says nothing any more
    pod["spec"] |= {"schedulingGates": [], "nodeName": "n1"}
    claim = given(pod)
    one.tell("ResourceClaim", ("n", claim["metadata"]["name"]), claim)
    one.tell("Pod", ("n", "a"), pod)
    assert one.used == {}, "as far as the term knew that ended the grant is open"
    one.loop.wake()
    one.pod("b", policies, "oak")
    one.turn()
    one.turn()
    assert one.used == {"oak": 1}
    assert one.granted == set(), "the quota is one device"


def test_no_pod_keeps_others_waiting_by_what_it_says() -> None:
    policies = tenant_set("oak", "n", weight=1)
    one = Loop(policies)
    for number, said in enumerate(
        (
            {"policy-version": "²"},
            {"policy-version": "9" * 5000},
            {"policy-set": "x" * 300},
            {"claims": "gate-0=999"},
            {"claims": "gate-0=0"},
            {"group": "g" * 300_000, "group-size": "1000"},
            {"group": "g", "group-size": "2"},
            {"candidates": "," * 1000},
            {"tenant": "nobody"},
            {"tenant": "x" * 300},
        )
    ):
        one.pod(f"hostile-{number}", policies, "oak", annotations={f"dra-gate.io/{k}": v for k, v in said.items()})
    for number, gates in enumerate(([], [GATE])):
        bare = one.pod(f"bare-{number}", policies, "oak", resourceClaims=[], annotations={"dra-gate.io/claims": ""})
        entry = {"name": "mine", "resourceClaimTemplateName": "anybodys"}
        bare["spec"] |= {"resourceClaims": [entry], "schedulingGates": gates}
        one.tell("Pod", ("n", f"bare-{number}"), bare)
    one.pod("good", policies, "oak")
    one.turn()
    one.turn()
    assert "uid-good" in one.granted


def test_a_claim_that_says_what_it_likes_opens_no_grant() -> None:
    """A Pod that nothing holds, with a claim under a late name whose candidates nobody knows."""
    policies = tenant_set("oak", "n", weight=1)
    one = Loop(policies)
    pod = one.pod("forged", policies, "oak")
    pod["spec"]["schedulingGates"] = []
    claim = given(pod)
    del claim["status"]
    claim["metadata"]["annotations"] = {"dra-gate.io/candidates": "gold"}
    one.tell("ResourceClaim", ("n", claim["metadata"]["name"]), claim)
    one.tell("Pod", ("n", "forged"), pod)
    one.pod("good", policies, "oak")
    one.turn()
    one.turn()
    assert one.granted == {"uid-good"}


def test_nobody_is_charged_for_a_stamp_that_nobody_judges() -> None:
    policies = tenant_set("oak", "elsewhere", weight=1)
    one = Loop(policies)
    pod = one.pod("forged", policies, "oak")
    pod["spec"]["schedulingGates"] = []
    claim = given(pod)
    del claim["status"]
    claim["metadata"]["annotations"] = {"dra-gate.io/candidates": "h100"}
    one.tell("ResourceClaim", ("n", claim["metadata"]["name"]), claim)
    one.tell("Pod", ("n", "forged"), pod)
    one.turn()
    one.turn()
    assert one.granted == set()


def test_an_api_server_that_takes_no_ledger_for_a_moment_loses_nobody() -> None:
    """In one pass an open grant is revised and another tenant's Pod is granted, and both ledgers fail."""
    oak = {"policy": "train@1", "namespaces": ["m"], "weight": 1}
    policies = tenant_set("ash", "n", {**API, "kind": "Tenant", "metadata": {"name": "oak"}, "spec": oak}, weight=1)
    one = Loop(policies)

    def turns(count: int) -> None:
        for _ in range(count):
            try:
                one.turn()
            except (Away, Overtaken):  # as the loop's thread does
                one.loop._finish_term()
            except ClusterError:
                pass

    def fail(path: str) -> None:
        raise Unreachable(path)

    turns(2)
    one.pod("a", policies, "ash")
    turns(2)
    assert one.granted == {"uid-a"}
    one.tell("ResourceSlice", ("", "s"), small.slice_of("n1", [small.device(f"d{i}", "a100") for i in range(4)]))
    later = held_pod("b", policies, "oak")
    later["metadata"] |= {"namespace": "m", "uid": "uid-b", "creationTimestamp": "2026-11-30T10:00:00Z"}
    one.tell("Pod", ("m", "b"), later)
    one.server.hook = fail
    turns(3)
    one.server.hook = lambda path: None
    turns(6)
    assert one.granted == {"uid-a", "uid-b"}
    (grant,) = one.server.get("/apis/dra-gate.io/v1alpha1/tenantledgers/ash")["spec"]["grants"]
    assert "a100" in grant["candidates"], "its claim is for a model that is no more"


def test_a_large_group_costs_what_its_pods_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody waits while the loop looks: with 1,000 Pods of one group 28 s for each change of one of them."""
    policies = tenant_set("oak", "n", weight=1)
    one = Loop(policies)
    one.turn()
    for number in range(120):
        group = {"dra-gate.io/group": "g", "dra-gate.io/group-size": "200", "x": str(number)}
        one.pod(f"p-{number}", policies, "oak", annotations=group)
    one.turn()
    asked: list[object] = []
    waits = View.waits
    monkeypatch.setattr(View, "waits", lambda self, pod: bool(asked.append(pod)) or waits(self, pod))
    one.pod("p-0", policies, "oak", annotations=group, priority=5)
    one.turn()
    assert 0 < len(asked) < 10 * 120


def unplaced(pod: Object) -> Object:
    """The Pod, let go, as the scheduler leaves it when it finds no node."""
    message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No victims."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {**pod, "spec": {**pod["spec"], "schedulingGates": []}, "status": {"conditions": [condition]}}


def rests(one: Loop) -> list[Object]:
    """What the ledgers say of Pods that rest."""
    found = one.server.list("/apis/dra-gate.io/v1alpha1/tenantledgers")
    return [rest for ledger in found for rest in ledger["spec"].get("resting", ())]


def settled(one: Loop, condition: Callable[[], bool]) -> None:
    """Turn until it holds: the writer's threads need a moment, and time-outs some."""
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        one.turn()
        time.sleep(0.02)


def turned(one: Loop, seconds: float) -> None:
    """Turn for so long: what is not to happen would have happened."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        one.turn()
        time.sleep(0.02)


def test_a_grant_that_the_scheduler_has_no_use_for_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leads next knows from the ledger who rests."""
    monkeypatch.setattr(arbiter_gather, "IDLE_SECONDS", 0.0)
    policies = tenant_set("oak", "n", weight=1, quota={"devices": 1})
    one = Loop(policies, grant_timeout=0.2)
    stuck = one.pod("stuck", policies, "oak")
    one.turn()
    following = one.pod("next", policies, "oak")
    settled(one, lambda: one.granted == {"uid-stuck"} and one.claims == claims_of(stuck))
    one.tell("Pod", ("n", "stuck"), unplaced(stuck))
    settled(one, lambda: one.granted == {"uid-next"} and one.claims == claims_of(following))
    (rest,) = rests(one)
    assert (rest["uid"], rest["times"], rest["why"]) == ("uid-stuck", 1, "0/1 nodes are available: 1 Insufficient cpu")
    assert 50 < rest["until"] / 1000 - time.time() <= 60
    stale = {**given(stuck), "status": {}}  # our cache is behind: it shows the claim that was taken away
    stale["metadata"]["annotations"] = {"dra-gate.io/candidates": "h100"}
    one.tell("ResourceClaim", ("n", stale["metadata"]["name"]), stale)
    one.turn()
    assert one.claims == claims_of(following), "that is no grant"
    one.tell_gone("ResourceClaim", stale)
    one.loop.deactivate()
    one.tell("Pod", ("n", "next"), {**following, "status": {"phase": "Succeeded"}})
    one.loop.wake()
    settled(one, lambda: not one.granted)
    for _ in range(5):
        one.turn()
    assert not one.granted, "there is room, and it rests"
    assert rests(one) == [rest]


def test_a_pod_that_rested_waits_again_and_is_forgotten_when_it_has_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter_gather, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(arbiter_gather, "LEDGER_SECONDS", 0.0)
    monkeypatch.setattr(resting, "FIRST_REST", 300)
    policies = tenant_set("oak", "n", weight=1, lease="1h")
    one = Loop(policies, grant_timeout=0.2)
    stuck = one.pod("stuck", policies, "oak")
    one.tell("Pod", ("n", "stuck"), unplaced(stuck))
    for times in (1, 2):
        settled(one, lambda: one.granted == {"uid-stuck"})
        settled(one, lambda: not one.granted and [rest["times"] for rest in rests(one)] == [times])  # noqa: B023
    settled(one, lambda: one.granted == {"uid-stuck"})
    claim = given(stuck)
    one.tell("ResourceClaim", ("n", claim["metadata"]["name"]), claim)
    settled(one, lambda: not one.granted and not rests(one))


@pytest.mark.parametrize(
    ("more", "timeout"),
    [
        pytest.param({"status": {}}, 0.1, id="the scheduler has not looked"),
        pytest.param({"spec": {"nodeName": "n1"}}, 0.1, id="on a node"),
        pytest.param({}, 0.0, id="switched off"),
    ],
)
def test_a_grant_that_may_be_of_use_stays(more: Object, timeout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter_gather, "IDLE_SECONDS", 0.0)
    policies = tenant_set("oak", "n", weight=1)
    one = Loop(policies, grant_timeout=timeout)
    pod = one.pod("p", policies, "oak")
    one.turn()
    told = unplaced(pod)
    one.tell("Pod", ("n", "p"), {**told, **more, "spec": {**told["spec"], **more.get("spec", {})}})
    turned(one, 0.5)
    assert one.granted == {"uid-p"}
    assert not rests(one)


def test_a_group_of_which_one_has_devices_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter_gather, "IDLE_SECONDS", 0.0)
    policies = tenant_set("oak", "n", weight=1)
    one = Loop(policies, grant_timeout=0.3)
    group = {"dra-gate.io/group": "g", "dra-gate.io/group-size": "2"}
    first, second = (one.pod(name, policies, "oak", annotations=group) for name in ("first", "second"))
    settled(one, lambda: one.granted == {"uid-first", "uid-second"})
    claim = given(first)
    one.tell("ResourceClaim", ("n", claim["metadata"]["name"]), claim)
    one.tell("Pod", ("n", "second"), unplaced(second))
    turned(one, 1.0)
    assert one.granted == {"uid-second"}
    assert not rests(one)


def test_a_large_group_that_can_not_be_scheduled_costs_what_its_pods_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of it has devices: the others are looked at every few seconds for as long as they find no node."""
    monkeypatch.setattr(arbiter_gather, "IDLE_SECONDS", 0.0)
    policies = tenant_set("oak", "n", weight=1)
    one = Loop(policies, grant_timeout=0.001)
    one.tell("ResourceSlice", ("", "s"), small.slice_of("n1", [small.device(f"d{i}", "h100") for i in range(60)]))
    group = {"dra-gate.io/group": "g", "dra-gate.io/group-size": "60"}
    pods = [one.pod(f"p-{number}", policies, "oak", annotations=group) for number in range(60)]
    settled(one, lambda: len(one.granted) == 60)
    claim = given(pods[0])
    one.tell("ResourceClaim", ("n", claim["metadata"]["name"]), claim)
    settled(one, lambda: len(one.granted) == 59)
    for pod in pods[1:]:
        one.tell("Pod", ("n", pod["metadata"]["name"]), unplaced(pod))
    asked: list[object] = []
    given_to = View.given
    monkeypatch.setattr(View, "given", lambda self, pod, late: asked.append(pod) or given_to(self, pod, late))
    one.turn()
    assert 59 <= len(asked) < 5 * 60
    assert len(one.granted) == 59
