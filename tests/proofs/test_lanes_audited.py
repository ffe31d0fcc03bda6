"""The judge of lanes, on logs made by hand: it has to see everything that must not happen on the way over and back."""

from __future__ import annotations

import copy
import datetime as dt
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.api import Object
from proofs.audited import Caps
from proofs.lanes_audited import Found, LaneJudge, Place, Rule

CONTROLLER = "system:serviceaccount:dra-gate:dra-gate-controller"
JOBS = "system:serviceaccount:kube-system:job-controller"
KINDS = {"pods": "Pod", "resourceclaims": "ResourceClaim", "tenantledgers": "TenantLedger", "namespaces": "Namespace",
         "gates": "Gate"}  # fmt: skip
NODES = {"old": Place("device-plugin", "h100", 2), "weak": Place("device-plugin", "l40s", 8),
         "new": Place("dra", "h100", 2)}  # fmt: skip
GATE = [{"name": "dra-gate.io/grant"}]


class Log:
    """Audit events a second apart unless `wait` says otherwise, revisions counted."""

    def __init__(self, held: Any = "recreate", devices: int = 4) -> None:
        self.events: list[Object] = []
        self.held, self.devices = held, devices
        self._now = 0.0
        self._revisions = itertools.count(10)
        self._pods: dict[str, Object] = {}
        self.label("dra")

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def say(self, verb: str, path: str, obj: Object, user: str, code: int = 200, **reference: str) -> None:
        resource, _, sub = path.partition("/")
        self._now += 1
        when = dt.datetime.fromtimestamp(1_800_000_000 + self._now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = {"resourceVersion": str(next(self._revisions)), **obj.get("metadata", {})}
        named = {"namespace": metadata.get("namespace", ""), "name": metadata.get("name", "")}
        answer = {"kind": KINDS[resource], **obj, "metadata": metadata} if not sub else {"kind": "Status"}
        self.events.append(
            {
                "auditID": str(len(self.events)),
                "stage": "ResponseComplete",
                "verb": verb,
                "requestURI": f"/{path}",
                "requestReceivedTimestamp": when,
                "stageTimestamp": when,
                "user": {"username": user},
                "objectRef": {"resource": resource, **({"subresource": sub} if sub else {}), **named, **reference},
                "responseStatus": {"code": code},
                "responseObject": copy.deepcopy(answer),
            }
        )

    def label(self, lane: str) -> None:
        self.say("patch", "namespaces", {"metadata": {"name": "t-1", "labels": {"dra-gate.io/lane": lane}}}, "admin")

    def switch(self, override: str, **tenants: str) -> None:
        entries = [{"name": name, "lane": lane} for name, lane in tenants.items()]
        lane = {"override": override, "tenants": entries}
        self.say("patch", "gates", {"metadata": {"name": "default"}, "spec": {"lane": lane}}, "admin")

    def ledger(self, *uids: str) -> None:
        grants = [{"uid": one, "candidates": ["h100"], "claims": [{"entry": "gate-0", "count": 1}]} for one in uids]
        self.say("update", "tenantledgers", {"metadata": {"name": "t"}, "spec": {"grants": grants}}, CONTROLLER)

    def pod(self, uid: str, lane: str, *, held: bool = False, owner: str = "job", devices: int = 1) -> None:
        owners = [{"uid": owner, "controller": True}] if owner else []
        container: Object = {"name": "c"}
        spec: Object = {"containers": [container], "schedulingGates": GATE if held else []}
        if lane == "dra":
            spec["resourceClaims"] = [{"name": "gate-0", "resourceClaimName": f"late-{uid}"}]
        else:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(devices)}}
        metadata = {"namespace": "t-1", "name": uid, "uid": uid, "ownerReferences": owners,
                    "annotations": {"dra-gate.io/lane": lane}}  # fmt: skip
        self._pods[uid] = {"metadata": metadata, "spec": spec, "status": {}}
        self.say("create", "pods", self._pods[uid], JOBS if owner else "admin")

    def change(self, uid: str, user: str = CONTROLLER, verb: str = "patch", **spec: Any) -> None:
        self._pods[uid]["spec"] |= spec
        self.say(verb, "pods", self._pods[uid], user)

    def let_go(self, uid: str) -> None:
        self.ledger(uid)
        self.change(uid, schedulingGates=[])

    def bind(self, uid: str, node: str) -> None:
        self.say("create", "pods/binding", {"metadata": self._pods[uid]["metadata"]}, "system:kube-scheduler")
        self._pods[uid]["status"] = {"phase": "Running"}
        self.change(uid, "kubelet", nodeName=node)

    def finish(self, uid: str) -> None:
        self._pods[uid]["status"] = {"phase": "Succeeded"}
        self.change(uid, "kubelet")

    def delete(self, uid: str, user: str) -> None:
        metadata = self._pods[uid]["metadata"] | {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0}
        self.say("delete", "pods", self._pods[uid] | {"metadata": metadata}, user)

    def evict(self, uid: str, user: str = CONTROLLER, code: int = 201) -> None:
        self.say("create", "pods/eviction", {"metadata": self._pods[uid]["metadata"]}, user, code)

    def judged(self) -> Found:
        rule = Rule(Caps(frozenset({"t-1"}), self.devices), self.held, frozenset({"h100"}))
        return LaneJudge({"t": rule}, NODES).run(self.events)


def over_and_back(log: Log) -> Log:
    """A Pod runs and one is held when the lane goes back; the held one is made again, and forward it goes."""
    log.pod("a", "dra", held=True)
    log.let_go("a")
    log.bind("a", "new")
    log.pod("b", "dra", held=True)
    log.switch("device-plugin")
    log.wait(2)
    log.evict("b")
    log.pod("c", "device-plugin")
    log.bind("c", "old")
    log.switch("")
    log.finish("a")
    log.delete("a", CONTROLLER)  # it has ended
    log.pod("d", "dra", held=True)
    log.let_go("d")
    return log


def test_over_and_back_as_it_should_be() -> None:
    found = over_and_back(Log()).judged()
    assert found.wrong == []
    assert [one.lane for one in found.pods] == ["dra", "dra", "device-plugin", "dra"]
    assert [one.bound is None for one in found.pods] == [False, True, False, True]
    assert [(one.uid, one.end) for one in found.waited] == [("b", "recreated")]
    assert [(one.lane, one.last) for one in found.turns] == [("device-plugin", 0.0), ("dra", 0.0)]
    assert [one.first for one in found.turns] == [4.0, 3.0]


def refused(log: Log) -> None:
    log.pod("x", "dra")
    log.events[-1] |= {"responseStatus": {"code": 403, "message": "QUOTA"}}


def not_answered(log: Log) -> None:
    log.pod("x", "dra")
    log.events[-1] |= {"responseStatus": {"code": 500, "message": "failed calling webhook"}, "responseObject": None}


def bound_and_deleted(log: Log) -> None:
    log.pod("x", "dra")
    log.bind("x", "new")
    log.delete("x", CONTROLLER)


def bound_and_evicted(log: Log) -> None:
    log.pod("x", "dra")
    log.say("create", "pods/binding", {"metadata": {"namespace": "t-1", "name": "x"}}, "system:kube-scheduler")
    log.evict("x")


def bound_and_changed(log: Log) -> None:
    log.pod("x", "dra")
    log.bind("x", "new")
    log.change("x", activeDeadlineSeconds=1)


def late_verdict(log: Log) -> None:
    log.switch("device-plugin")
    log.wait(1)
    log.pod("x", "dra")


def late_verdict_by_label(log: Log) -> None:
    log.label("device-plugin")
    log.wait(1)
    log.pod("x", "dra")


def late_verdict_of_one_tenant(log: Log) -> None:
    log.switch("", t="device-plugin")
    log.wait(1)
    log.pod("x", "dra")


def never_went_over(log: Log) -> None:
    log.pod("x", "device-plugin")


def onto_the_other_pool(log: Log) -> None:
    log.switch("device-plugin")
    log.pod("x", "device-plugin")
    log.bind("x", "new")


def below_the_floor(log: Log) -> None:
    log.switch("device-plugin")
    log.pod("x", "device-plugin")
    log.bind("x", "weak")


def made_by_the_scheduler(log: Log) -> None:
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    claim = {"metadata": {"namespace": "t-1", "name": "x", "annotations": annotations}, "spec": {}}
    log.say("create", "resourceclaims", claim, "system:kube-scheduler")


def node_given_twice(log: Log) -> None:
    log.switch("device-plugin")
    for uid in ("x", "y"):
        log.pod(uid, "device-plugin", devices=2)
        log.bind(uid, "old")


def above_the_cap_in_both(log: Log) -> None:
    for uid in ("x", "y"):
        log.pod(uid, "dra", held=True, owner="")
        log.let_go(uid)
    log.ledger("x", "y")
    log.switch("device-plugin")
    log.pod("z", "device-plugin", devices=3)


def never_made_again(log: Log) -> None:
    log.pod("x", "dra", held=True, owner="other")
    log.switch("device-plugin")
    log.evict("x")


def not_taken_away(log: Log) -> None:
    log.pod("x", "dra", held=True)
    log.switch("device-plugin")
    log.wait(60)


def nobodys_taken_away(log: Log) -> None:
    log.pod("x", "dra", held=True, owner="")
    log.switch("device-plugin")
    log.delete("x", CONTROLLER)


def let_go_all_the_same(log: Log) -> None:
    log.pod("x", "dra", held=True, owner="")
    log.switch("device-plugin")
    log.wait(5)
    log.let_go("x")


def forgotten(log: Log) -> None:
    log.pod("x", "dra", held=True, owner="")
    log.switch("device-plugin")
    log.switch("")
    log.wait(60)


@pytest.mark.parametrize(
    ("happens", "kind", "said"),
    [
        (refused, "refused", "403 QUOTA"),
        (not_answered, "refused", "500 failed calling webhook"),
        (bound_and_deleted, "touched", "was deleted by"),
        (bound_and_evicted, "touched", "was evicted by"),
        (bound_and_changed, "touched", "the spec of Pod t-1/x, which was bound"),
        (late_verdict, "strayed", "was let in as dra 2.0 s after its namespace went to device-plugin"),
        (late_verdict_by_label, "strayed", "was let in as dra 2.0 s after"),
        (late_verdict_of_one_tenant, "strayed", "was let in as dra 2.0 s after"),
        (never_went_over, "strayed", "was let in as device-plugin"),
        (onto_the_other_pool, "strayed", "of lane device-plugin is on new of pool dra"),
        (below_the_floor, "strayed", "is on weak of pool device-plugin, l40s"),
        (made_by_the_scheduler, "strayed", "was made by system:kube-scheduler for a resource's name"),
        (node_given_twice, "twice", "old has 2 devices and Pods with 4 on it"),
        (above_the_cap_in_both, "over", "t held 5 devices"),
        (never_made_again, "unaccounted", "nobody made it again"),
        (not_taken_away, "unaccounted", "should have been made again"),
        (nobodys_taken_away, "unaccounted", "should not have been"),
        (let_go_all_the_same, "unaccounted", "went on 7.0 s after that"),
        (forgotten, "unaccounted", "was never let go again"),
    ],
)
def test_what_must_not_be_is_seen_and_nothing_else(happens: Callable[[Log], None], kind: str, said: str) -> None:
    log = over_and_back(Log())
    log.finish("c")
    log.finish("d")
    happens(log)
    found = log.judged()
    (wrong,) = getattr(found, kind)
    assert said in wrong
    assert found.wrong == [wrong]


def kept(log: Log) -> None:
    log.switch("device-plugin")
    log.wait(30)
    log.switch("")
    log.let_go("x")


def released(log: Log) -> None:
    log.switch("device-plugin")
    log.wait(30)
    log.let_go("x")


def off_again_at_once(log: Log) -> None:
    log.switch("device-plugin")
    log.wait(5)
    log.switch("")
    log.let_go("x")


def just_granted(log: Log) -> None:
    log.switch("device-plugin")
    log.let_go("x")


def its_owner(log: Log) -> None:
    log.switch("device-plugin")
    log.delete("x", JOBS)


@pytest.mark.parametrize(
    ("held", "happens", "end"),
    [
        ("keep", kept, "kept"),
        ("release", released, "released"),
        ("recreate", off_again_at_once, "kept"),
        ("keep", just_granted, "was just being granted"),
        ("recreate", its_owner, f"taken away by {JOBS}"),
    ],
)
def test_every_pod_that_waited_has_an_end(held: str, happens: Callable[[Log], None], end: str) -> None:
    log = Log(held)
    log.pod("x", "dra", held=True)
    happens(log)
    found = log.judged()
    assert ([one.end for one in found.waited], found.wrong) == ([end], [])


def test_who_was_given_devices_did_not_wait() -> None:
    log = Log()
    log.pod("x", "dra", held=True)
    log.let_go("x")
    results = [{"request": "gpu/h100", "pool": "new", "device": "gpu-0"}]
    claim = {"metadata": {"namespace": "t-1", "name": "late-x", "uid": "c", "ownerReferences": [{"uid": "x"}]},
             "spec": {"devices": {"requests": []}},
             "status": {"allocation": {"devices": {"results": results}}}}  # fmt: skip
    log.say("update", "resourceclaims", claim, "system:kube-scheduler")
    log.switch("device-plugin")
    log.wait(60)
    found = log.judged()
    assert (found.waited, found.wrong) == ([], [])


def test_a_create_that_the_switch_overtakes_may_get_either_lane() -> None:
    for lane in ("dra", "device-plugin"):
        log = Log()
        received = log.events[-1]["stageTimestamp"]
        log.switch("device-plugin")
        log.pod("x", lane, owner="")
        log.events[-1]["requestReceivedTimestamp"] = received
        assert log.judged().wrong == []


def test_what_followed_within_a_second_is_told_and_no_fault() -> None:
    log = Log()
    log.switch("device-plugin")
    log.wait(-0.7)
    log.pod("x", "dra")
    found = log.judged()
    assert found.strayed == []
    assert round(found.turns[0].last, 1) == 0.3
