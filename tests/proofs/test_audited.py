"""The judge of audit logs, on logs made by hand: it has to see every way of holding too much."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.api import Object
from proofs.audited import CONTROLLER, Caps, Judge, unanswered, writes

GATE = [{"name": "dra-gate.io/grant"}]


class Log:
    """Audit events as an API server writes them, revisions counted."""

    def __init__(self) -> None:
        self.events: list[Object] = []
        self._revisions = itertools.count(10)

    def say(self, verb: str, resource: str, obj: Object, user: str = CONTROLLER, **more: Any) -> None:
        kind = {"pods": "Pod", "resourceclaims": "ResourceClaim", "tenantledgers": "TenantLedger"}[resource]
        metadata = {"resourceVersion": str(next(self._revisions)), **obj["metadata"]}
        self.events.append(
            {
                "stage": "ResponseComplete",
                "verb": verb,
                "requestURI": f"/{resource}",
                "stageTimestamp": f"2026-11-30T10:00:{len(self.events):02}.000000Z",
                "user": {"username": user},
                "objectRef": {"resource": resource},
                "responseStatus": {"code": 200},
                "responseObject": {"kind": kind, **obj, "metadata": metadata},
            }
            | more
        )

    def pod(self, uid: str, gates: Any = (), verb: str = "create", user: str = CONTROLLER, **status: Any) -> None:
        entry = {"name": "gate-0", "resourceClaimName": f"dra-gate-late-{uid}"}
        spec = {"schedulingGates": list(gates), "resourceClaims": [entry]}
        metadata = {"namespace": "t-1", "name": uid, "uid": uid} | status.pop("metadata", {})
        self.say(verb, "pods", {"metadata": metadata, "spec": spec, "status": status}, user)

    def claim(self, uid: str, *models: str, given: tuple[str, ...] = (), verb: str = "create", **metadata: Any) -> None:
        alternatives = [{"name": one, "count": 1} for one in models]
        results = [{"request": f"gpu/{models[0]}", "pool": "n", "device": one} for one in given]
        status = {"allocation": {"devices": {"results": results}}} if given else {}
        named = {"namespace": "t-1", "name": f"dra-gate-late-{uid}", "ownerReferences": [{"uid": uid}]} | metadata
        spec = {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}
        self.say(verb, "resourceclaims", {"metadata": named, "spec": spec, "status": status})

    def ledger(self, *grants: str, candidates: tuple[str, ...] = ("h100",)) -> None:
        found = [{"uid": one, "candidates": list(candidates), "claims": [{"entry": "gate-0", "count": 1}]}
                 for one in grants]  # fmt: skip
        self.say("update", "tenantledgers", {"metadata": {"name": "t"}, "spec": {"grants": found}})

    def judged(self, devices: int = 1, **models: int) -> Judge:
        judge = Judge({"t": Caps(frozenset({"t-1"}), devices, models)})
        judge.unanswered |= unanswered(self.events)
        judge.run(writes(self.events))
        return judge


def granted(log: Log, uid: str) -> None:
    """All that happens to a Pod that gets an H100, in order."""
    log.pod(uid, GATE)
    log.ledger(uid)
    log.claim(uid, "h100")
    log.pod(uid, verb="patch")
    log.claim(uid, "h100", given=(f"gpu-{uid}",), verb="update")
    log.ledger()


def finished(log: Log, uid: str) -> None:
    log.pod(uid, verb="patch", phase="Succeeded")
    log.claim(uid, "h100", verb="delete")
    log.pod(uid, verb="delete", metadata={"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0})


def test_one_after_the_other_is_within_the_quota() -> None:
    log = Log()
    for uid in ("a", "b"):
        granted(log, uid)
        log.pod(f"{uid}-waits", GATE)
        finished(log, uid)
    judge = log.judged()
    account = judge.accounts["t"]
    assert (account.violations, judge.faults) == ([], [])
    assert (account.most, account.most_allocated, account.instants) == (1, 1, len(log.events))
    assert judge.let_go.keys() == {"a", "b"}


def two_open(log: Log) -> None:
    log.pod("a", GATE)
    log.pod("b", GATE)
    log.ledger("a", "b")


def let_go_beside(log: Log) -> None:
    granted(log, "a")
    log.pod("b")
    log.claim("b", "h100")


def claim_left_behind(log: Log) -> None:
    granted(log, "a")
    log.pod("a", verb="delete")
    log.pod("b", GATE)
    log.ledger("b")


def finished_and_allocated(log: Log) -> None:
    granted(log, "a")
    log.pod("a", verb="patch", phase="Failed")
    log.pod("b", GATE)
    log.ledger("b")


def two_at_once(log: Log) -> None:
    granted(log, "a")
    finished(log, "a")
    log.events[-2]["responseObject"]["metadata"]["resourceVersion"] = "900"  # answered early, took effect late
    granted(log, "b")


@pytest.mark.parametrize("happens", [two_open, let_go_beside, claim_left_behind, finished_and_allocated, two_at_once])
def test_too_much_is_seen(happens: Callable[[Log], None]) -> None:
    log = Log()
    happens(log)
    account = log.judged().accounts["t"]
    assert account.most == 2
    assert len(account.violations) == 1
    assert "held 2 devices" in account.violations[0]


def test_a_model_counts_at_the_worst_case_until_it_is_allocated() -> None:
    log = Log()
    granted(log, "a")
    log.pod("b", GATE)
    log.ledger("b", candidates=("a100", "h100"))
    log.claim("b", "a100", "h100")
    log.claim("b", "a100", "h100", given=("gpu-7",), verb="update")
    judge = log.judged(2, h100=1)
    assert ["held 2 h100" in one for one in judge.accounts["t"].violations] == [True]
    assert judge.charge("t").models == {"h100": 1, "a100": 1}


def test_what_the_api_server_refused_or_only_tried_counts_for_nothing() -> None:
    log = Log()
    granted(log, "a")
    log.pod("b")
    log.events[-1]["responseStatus"]["code"] = 403
    log.pod("c")
    log.events[-1]["requestURI"] += "?dryRun=All"
    assert log.judged().accounts["t"].violations == []


def test_a_claim_that_is_deleted_while_in_use_still_counts() -> None:
    log = Log()
    granted(log, "a")
    ends = {"deletionTimestamp": "now", "finalizers": ["resource.kubernetes.io/delete-protection"]}
    log.claim("a", "h100", given=("gpu-a",), verb="delete", **ends)
    log.pod("a", verb="delete")
    log.pod("b", GATE)
    log.ledger("b")
    assert log.judged().accounts["t"].most == 2
    log.claim("a", "h100", verb="update", deletionTimestamp="now")
    assert log.judged().charge("t").devices == 1


def test_an_answer_of_metadata_alone_is_of_the_object_that_was_there() -> None:
    log = Log()
    log.pod("a")
    log.claim("a", "h100")
    metadata = {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0}
    log.pod("a", verb="patch", metadata=metadata)
    log.events[-1]["responseObject"] |= {"kind": "PartialObjectMetadata"}
    del log.events[-1]["responseObject"]["spec"]
    judge = log.judged()
    assert (judge.accounts["t"].most, judge.charge("t").devices) == (1, 0)
    log.events = log.events[-1:]
    with pytest.raises(ValueError, match="not in the log before"):
        log.judged()


def test_a_delete_without_a_revision_took_effect_when_it_was_answered() -> None:
    log = Log()
    granted(log, "a")
    finished(log, "a")
    del log.events[-1]["responseObject"]["metadata"]["resourceVersion"]
    granted(log, "b")
    judge = log.judged()
    assert (judge.accounts["t"].violations, judge.faults) == ([], [])
    assert judge.charge("t").devices == 1


def test_who_lets_a_pod_go_and_on_what_is_looked_at() -> None:
    log = Log()
    log.pod("a", GATE)
    log.pod("a", verb="patch", user="ada@lilac.example")
    assert log.judged().faults == [
        "Pod t-1/a was let go and was never in a ledger",
        "Pod t-1/a was let go by ada@lilac.example",
    ]


def test_a_change_that_was_cut_off_may_have_let_the_pod_go() -> None:
    log = Log()
    log.pod("a", GATE)
    log.ledger("a")
    log.claim("a", "h100")
    cut = {"namespace": "t-1", "name": "a", "resource": "pods"}
    log.say("patch", "pods", {"metadata": {}}, objectRef=cut, responseStatus={"code": 504}, responseObject={})
    log.pod("a", verb="patch", user="system:kube-scheduler")
    assert log.judged().faults == []
    log.events.pop(-2)
    assert log.judged().faults == ["Pod t-1/a was let go by system:kube-scheduler"]


def test_a_ledger_that_was_cut_off_may_have_had_the_grant() -> None:
    log = Log()
    log.pod("a", GATE)
    cut = {"name": "t", "resource": "tenantledgers"}
    log.say("update", "tenantledgers", {"metadata": {}}, objectRef=cut, responseStatus={"code": 504}, responseObject={})
    log.pod("a", verb="patch")
    assert log.judged().faults == []
    log.events.pop(1)
    assert log.judged().faults == ["Pod t-1/a was let go and was never in a ledger"]


def test_a_device_that_is_given_twice_is_seen() -> None:
    log = Log()
    granted(log, "a")
    log.pod("b", GATE)
    log.ledger("b")
    log.claim("b", "h100", given=("gpu-a",))
    (fault,) = log.judged(2).faults
    assert "n/gpu-a was given to t-1/dra-gate-late-b while" in fault


def test_a_log_without_the_objects_is_no_evidence() -> None:
    log = Log()
    log.pod("a", GATE)
    del log.events[0]["responseObject"]
    with pytest.raises(ValueError, match="is not in the log"):
        log.judged()
