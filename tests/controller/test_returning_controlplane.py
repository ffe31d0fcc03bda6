"""Pods whose lane goes back, on the real control plane: the arbiter takes grants back, the return loop evicts. As the
controller's service account, with the rights of deploy/base and of deploy/components/recreate.

The Pods are made as mutate would leave them; what controls them is a ConfigMap, so that nobody makes another. What a
webhook makes of the next Pod is in tests/e2e/test_returning.py.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocation import fleet as small
from controller.held_pods import API, Crash, Loop, bound, checked, claims_of, held_pod, ledger, steady, until
from controller.test_arbiter_controlplane import granted, kubeconfig, namespace
from controlplane.api import Api, ApiError
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.kubelet import mark_running, mark_succeeded
from dra_gate.cluster.line_log import LineLog
from dra_gate.controller import returning
from dra_gate.controller.returning import ReturnController
from dra_gate.fairness.log import replay
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import NO_SWITCH, Switch

__all__ = ["kubeconfig", "namespace"]
pytestmark = pytest.mark.controlplane
LANE = {"dra-gate.io/lane": "dra"}
ROLE = Path(__file__).parents[2] / "deploy" / "components" / "recreate" / "rbac.yaml"
BACK = Switch("device-plugin")
WENT_BACK = ("False", "LaneWentBack")
NOWHERE = {"nodeSelector": {"example.com/nowhere": "yes"}}


def policies(**namespaces: str) -> PolicySet:
    """A tenant for each namespace, of two devices, with a policy of the rule that its name begins with."""
    documents = small.documents()
    for model in documents[0]["models"]:  # else lane device-plugin would refuse the next Pod
        model["nodeLabels"] = {"nvidia.com/gpu.product": [model["name"]]}
    for tenant, name in namespaces.items():
        rule = tenant.partition("_")[0]
        spec = {"serves": ["nvidia.com/gpu"], "candidates": ["h100", "a100"], "onRollback": rule}
        ref = {"name": tenant.replace("_", "-"), "version": 1}
        documents.append({**API, "kind": "DevicePolicy", "metadata": ref, "spec": spec})
        told = {"namespaces": [name], "policy": f"{ref['name']}@1", "weight": 1, "quota": {"devices": 2}}
        documents.append({**API, "kind": "Tenant", "metadata": {"name": ref["name"]}, "spec": told})
    return load_documents({f"{n}.yaml": json.dumps(one).encode() for n, one in enumerate(documents)})


class Returning(Loop):
    """The loops of a controller that leads, the one that evicts among them."""

    def __init__(self, *given: Any, recreate: bool = True, **more: Any) -> None:
        super().__init__(*given, **more)
        self.returning = ReturnController(
            self.client, self.arbiter.desk, recreate=recreate, rate=50, identity="test", leading=lambda: self.leads
        )

    def start(self, *, active: bool = True) -> Loop:
        self.returning.start()
        return super().start(active=active)

    def stop(self) -> None:
        self.leads = False
        self.returning.stop()
        super().stop()

    def done(self) -> dict[tuple[str, str], float]:
        """Evictions by step and outcome."""
        samples = [sample for metric in self.returning.collect() for sample in metric.samples]
        return {
            (one.labels["action"], one.labels["outcome"]): one.value
            for one in samples
            if one.name == "dra_gate_return_evictions_total"
        }


@contextlib.contextmanager
def leading(*given: Any, switch: Switch = NO_SWITCH, **more: Any) -> Iterator[Returning]:
    loop = Returning(*given, **more)
    loop.arbiter.switch(switch)
    loop.start()
    try:
        yield loop
        assert [*loop.arbiter.problems(), *loop.returning.problems()] == []
        assert checked(loop.arbiter) == {}
    finally:
        loop.stop()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, api: Api, kubeconfig: Path) -> None:
    """A namespace is settled in a second, and the controller may evict."""
    monkeypatch.setattr(returning, "SETTLE_SECONDS", 1.0)
    api.apply_yaml(ROLE.read_text())


@pytest.fixture
def place(make_namespace: MakeNamespace, api: Api) -> Callable[[], str]:
    """Makes a gated namespace with something in it that may control Pods."""

    def make() -> str:
        name = make_namespace(labels=LANE)
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}, name)
        return name

    return make


def pod(api: Api, namespace: str, name: str, found: PolicySet, tenant: str, *, owned: bool = True, **more: Any) -> Any:
    """A held Pod, created; `owned`: something controls it."""
    tenant = tenant.replace("_", "-")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "controller": True}
    owner["uid"] = api.get("configmaps", "owner", namespace)["metadata"]["uid"]
    metadata = {"labels": more.pop("labels", {}), **({"ownerReferences": [owner]} if owned else {})}
    made = held_pod(name, found, tenant, policy=tenant, metadata=metadata, **more)
    made["metadata"]["annotations"]["dra-gate.io/candidates"] = "h100,a100"
    return api.create(made, namespace)


def let_go(api: Api, namespace: str, name: str) -> bool:
    return "schedulingGates" not in api.get("pods", name, namespace)["spec"]


def identity(found: Any) -> tuple[str, str]:
    return found["metadata"]["uid"], found["metadata"]["resourceVersion"]


def told(api: Api, namespace: str, name: str) -> tuple[str, str] | None:
    found = granted(api, namespace, name)
    return None if found is None else (found["status"], found["reason"])


def events(api: Api, namespace: str, name: str) -> list[str]:
    found = api.request("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events").body["items"]
    return [one["note"] for one in found if one["reason"] == "LaneWentBack" and one["regarding"]["name"] == name]


def test_pods_in_every_phase_under_each_rule(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path, tmp_path: Path
) -> None:
    """One is bound, one terminates, one has ended, one was granted and fits nowhere, one is held by the quota."""
    install_fleet("four-and-four")
    where = {rule: place() for rule in ("recreate", "keep", "release")}
    found = policies(**where)
    log = LineLog(tmp_path, 1 << 24, "arbiter", by_hand=True)
    with leading(kubeconfig, found, log) as loop:
        before: dict[tuple[str, str], tuple[str, str]] = {}
        claims = {}
        for rule, space in where.items():
            for name in ("ended", "leaving"):
                pod(api, space, name, found, rule)
                bound(api, space, name)
                mark_running(api, space, name)
                if name == "ended":
                    mark_succeeded(api, space, name)
            api.delete("pods", "leaving", space)
            pod(api, space, "granted", found, rule, **NOWHERE)
            (claims[rule],) = claims_of(api.get("pods", "granted", space))
            until(lambda space=space: let_go(api, space, "granted"), "the gate to go")
            time.sleep(1.1)  # ages are in seconds
            pod(api, space, "held", found, rule)
            pod(api, space, "bare", found, rule, owned=False)
            until(lambda space=space: told(api, space, "held") == ("False", "Quota"), "the quota to hold it")
        time.sleep(2.5)  # decisions have been written on Pods
        before = {
            (rule, name): identity(api.get("pods", name, space))
            for rule, space in where.items()
            for name in ("ended", "leaving")
        }
        loop.arbiter.switch(BACK)
        for name in ("granted", "held"):
            until(lambda name=name: api.find("pods", name, where["recreate"]) is None, f"{name} to be evicted")
        for rule, name in (("recreate", "bare"), ("keep", "bare"), ("keep", "held"), ("keep", "granted")):
            until(lambda r=rule, n=name: told(api, where[r], n) == WENT_BACK, f"{name} of {rule} to be told")
        for rule in ("recreate", "keep"):
            assert claims[rule] not in [one["metadata"]["name"] for one in api.list("resourceclaims", where[rule])]
            until(lambda rule=rule: not ledger(api, rule)["spec"].get("grants"), "the grants to be taken back")
            until(lambda rule=rule: ledger(api, rule)["status"]["devices"] == 1, "who goes to count")
        assert let_go(api, where["keep"], "granted"), "its gate can't be put on again: it is held by its missing claim"
        assert api.get("resourceclaims", claims["release"], where["release"])
        assert told(api, where["release"], "held") == ("False", "Quota")
        assert "onRollback: keep" in granted(api, where["keep"], "held")["message"]
        assert "no controller would make it again" in granted(api, where["recreate"], "bare")["message"]
        kept = [
            (rule, name)
            for rule, names in (("recreate", ["bare"]), ("keep", ["held", "granted", "bare"]))
            for name in names
        ]
        steady(lambda: [told(api, where[rule], name) for rule, name in kept], 3)
        assert loop.done()["recreate", "done"] == 2
        for (rule, name), known in before.items():
            assert identity(api.get("pods", name, where[rule])) == known, f"{name} of {rule} is left as it is"

        # Forward again: who was kept gets its turn, the one that had a grant first; it is older.
        loop.arbiter.switch(NO_SWITCH)
        until(lambda: told(api, where["keep"], "granted") == ("True", "Granted"), "it to be granted again")
        until(
            lambda: api.find("resourceclaims", claims["keep"], where["keep"]), "its claim, which another thread makes"
        )
        until(lambda: told(api, where["keep"], "held") == ("False", "Quota"), "the other to wait as before")
        for node in ("hopper", "ampere"):
            api.patch("nodes", node, {"metadata": {"labels": {"example.com/nowhere": "yes"}}})
        bound(api, where["keep"], "granted")
    (file,) = tmp_path.iterdir()
    assert list(replay(file.read_bytes().splitlines())) == []


def test_the_label_of_a_namespace_counts_like_the_switch(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    install_fleet("demo")
    space = place()
    found = policies(recreate_label=space)
    with leading(kubeconfig, found) as loop:
        pod(api, space, "granted", found, "recreate_label", **NOWHERE)
        until(lambda: let_go(api, space, "granted"), "the gate to go")
        api.patch("namespaces", space, {"metadata": {"labels": {"dra-gate.io/lane": "device-plugin"}}})
        until(lambda: api.find("pods", "granted", space) is None, "it to be evicted")
        until(lambda: loop.done().get(("recreate", "done")) == 1, "it to be counted")
        assert "ConfigMap/owner makes another under device plugins" in events(api, space, "granted")[0]


@pytest.mark.parametrize("moment", ["away", "before the claim", "before the ledger"])
def test_whoever_leads_next_goes_on(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path, moment: str
) -> None:
    """The lane goes back while nobody leads, or the leader ends before a claim is taken away, or before its ledger is
    written. It is done once: the next leader, and the one after it, find nothing to do."""
    install_fleet("demo")
    space, name = place(), f"keep_{moment[-6:].strip()}"
    found, tenant = policies(**{name: space}), name.replace("_", "-")
    first = Returning(kubeconfig, found)
    first.start()
    try:
        (claim,) = claims_of(pod(api, space, "p", found, name, **NOWHERE))
        until(lambda: let_go(api, space, "p"), "the gate to go")
        uid = api.get("pods", "p", space)["metadata"]["uid"]

        def hook(method: str, path: str) -> None:
            if method == "DELETE" and moment == "before the claim":
                raise Crash
            if method == "PUT" and path.endswith(f"/tenantledgers/{tenant}"):
                raise Crash

        if moment != "away":
            first.client.hook = hook
            first.arbiter.switch(BACK)
            if moment == "before the ledger":
                until(lambda: api.find("resourceclaims", claim, space) is None, "the claim to go")
            else:
                time.sleep(1)
    finally:
        first.leads = False
        first.stop()
    assert ledger(api, tenant)["spec"]["grants"], "the ledger says still that it is granted"
    for _ in range(2):
        loop = Returning(kubeconfig, found)
        loop.arbiter.switch(BACK)
        loop.start()
        try:
            until(lambda: not ledger(api, tenant)["spec"].get("grants"), "the grant to be taken back")
            until(lambda: ledger(api, tenant)["status"]["devices"] == 0, "nothing to be charged")
            assert api.find("resourceclaims", claim, space) is None
            until(lambda: told(api, space, "p") == ("False", "LaneWentBack"), "the condition")
            assert steady(lambda: api.list("resourceclaims", space), 1) == []
        finally:
            loop.stop()
    assert api.get("pods", "p", space)["metadata"]["uid"] == uid
    api.patch("nodes", "hopper", {"metadata": {"labels": {"example.com/nowhere": "yes"}}})
    with leading(kubeconfig, found):
        bound(api, space, "p")


def test_a_claim_that_is_allocated_meanwhile_is_kept(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    install_fleet("demo")
    space = place()
    found = policies(recreate_race=space)
    with leading(kubeconfig, found) as loop:
        made = pod(api, space, "p", found, "recreate_race", **NOWHERE)
        (claim,) = claims_of(made)
        until(lambda: let_go(api, space, "p"), "the gate to go")

        def allocate(method: str, path: str) -> None:
            """The scheduler is faster than the delete."""
            if method == "DELETE" and path.endswith(claim):
                loop.client.hook = None
                api.patch("nodes", "hopper", {"metadata": {"labels": {"example.com/nowhere": "yes"}}})
                bound(api, space, "p")

        loop.client.hook = allocate
        uid = api.get("resourceclaims", claim, space)["metadata"]["uid"]
        loop.arbiter.switch(BACK)
        assert bound(api, space, "p")["metadata"]["uid"] == made["metadata"]["uid"]
        until(lambda: not ledger(api, "recreate-race")["spec"].get("grants"), "the grant to be closed")
        assert api.get("resourceclaims", claim, space)["metadata"]["uid"] == uid
        until(lambda: ledger(api, "recreate-race")["status"]["models"] == {"h100": 1}, "it to be charged")
        steady(lambda: api.get("pods", "p", space)["metadata"]["uid"], 3)
        assert loop.done() == {}


def test_back_and_forth_at_once_evicts_nobody(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returning, "SETTLE_SECONDS", 3.0)
    install_fleet("demo")
    space = place()
    found = policies(recreate_flap=space)
    with leading(kubeconfig, found) as loop:
        made = pod(api, space, "p", found, "recreate_flap", **NOWHERE)
        until(lambda: let_go(api, space, "p"), "the gate to go")
        for _ in range(5):
            loop.arbiter.switch(BACK)
            time.sleep(0.4)
            loop.arbiter.switch(NO_SWITCH)
            time.sleep(0.4)
        until(lambda: ledger(api, "recreate-flap")["spec"].get("grants"), "it to be granted again")
        api.patch("nodes", "hopper", {"metadata": {"labels": {"example.com/nowhere": "yes"}}})
        assert bound(api, space, "p")["metadata"]["uid"] == made["metadata"]["uid"]
        assert loop.done() == {}


def test_a_drain_says_until_when_and_then_goes_by_the_budget(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    install_fleet("demo")
    space = place()
    found = policies(recreate_drain=space)
    with leading(kubeconfig, found) as loop:
        names = ("guarded", "bare")
        for name in names:
            pod(api, space, name, found, "recreate_drain", owned=name != "bare", labels={"app": name})
            bound(api, space, name)
            mark_running(api, space, name)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "one"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        }
        api.create(budget, space)

        def ready() -> bool:
            return api.get("poddisruptionbudgets", "one", space).get("status", {}).get("currentHealthy") == 1

        until(ready, "the budget to count its Pod")

        def draining(name: str) -> tuple[str, str] | None:
            conditions = api.get("pods", name, space)["status"]["conditions"]
            one = next((one for one in conditions if one["type"] == "dra-gate.io/Draining"), None)
            return one and (one["status"], one["message"])

        loop.arbiter.switch(Switch("device-plugin", drain_by="2036-01-02T03:04:05Z"))
        until(lambda: draining("guarded"), "the condition")
        status, message = draining("guarded") or ("", "")
        assert (status, "2036-01-02T03:04:05Z" in message) == ("True", True)
        assert draining("bare") is None
        until(lambda: events(api, space, "bare"), "the Event")
        assert "is not drained, since no controller would make it again" in events(api, space, "bare")[0]
        loop.arbiter.switch(NO_SWITCH)
        until(lambda: (draining("guarded") or ("",))[0] == "False", "the condition to be taken back")
        assert loop.done() == {}

        loop.arbiter.switch(Switch("device-plugin", drain_by="2026-01-02T03:04:05Z"))
        until(lambda: loop.done().get(("drain", "budget")), "the budget to be asked")
        assert any("can't be evicted yet" in note for note in events(api, space, "guarded"))
        assert "deletionTimestamp" not in api.get("pods", "guarded", space)["metadata"]
        api.delete("poddisruptionbudgets", "one", space)
        until(lambda: "deletionTimestamp" in api.get("pods", "guarded", space)["metadata"], "it to be evicted", 30)
        until(lambda: loop.done().get(("drain", "done")) == 1, "it to be counted")
        assert "deletionTimestamp" not in api.get("pods", "bare", space)["metadata"]


def test_without_the_right_pods_are_kept_and_say_why(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    install_fleet("demo")
    space = place()
    found = policies(recreate_right=space)
    api.delete("clusterrolebindings", "dra-gate-recreate", missing_ok=True)
    with leading(kubeconfig, found) as loop:
        made = pod(api, space, "p", found, "recreate_right", **NOWHERE)
        until(lambda: let_go(api, space, "p"), "the gate to go")
        loop.arbiter.switch(BACK)
        until(
            lambda: (
                "may not evict Pods (deploy/components/recreate)" in (granted(api, space, "p") or {}).get("message", "")
            ),
            "the Pod to say so",
        )
        assert api.get("pods", "p", space)["metadata"]["uid"] == made["metadata"]["uid"]
        assert loop.done() == {}
    with leading(kubeconfig, found, switch=BACK, recreate=False) as loop:
        steady(lambda: told(api, space, "p"), 3)
        assert loop.done() == {}


def test_a_job_that_would_fail_keeps_its_pods(
    api: Api, place: Any, install_fleet: InstallFleet, kubeconfig: Path
) -> None:
    """Three Pods at once, of which one may fail: the first is evicted, the Job makes another, and all are left then."""
    install_fleet("demo")
    space = place()
    found = policies(recreate_job=space)
    template = held_pod("p", found, "recreate-job", policy="recreate-job", **NOWHERE)
    template["spec"]["restartPolicy"] = "Never"
    template["metadata"].pop("name")
    spec = {"parallelism": 3, "completions": 3, "backoffLimit": 1, "template": template}
    with leading(kubeconfig, found) as loop:
        api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}, space)
        until(lambda: len(api.list("pods", space)) == 3, "its Pods")
        loop.arbiter.switch(BACK)
        until(lambda: loop.done().get(("recreate", "done")) == 1, "one to be evicted")
        until(lambda: api.get("jobs", "j", space)["status"].get("failed") == 1, "the Job to count it", 40)
        until(lambda: loop.done().get(("recreate", "spared"), 0) >= 2, "the others to be spared")

        def live() -> list[str]:
            there = [one["metadata"] for one in api.list("pods", space)]
            return [one["name"] for one in there if "deletionTimestamp" not in one]

        until(lambda: len(live()) == 3, "another to be made")
        steady(lambda: len(live()), 3)
        assert not api.get("jobs", "j", space)["status"].get("conditions"), "the Job goes on"
        said = [(granted(api, space, name) or {}).get("message", "") for name in live()]
        assert any("would use up backoffLimit 1 of its Job" in one for one in said)
        with contextlib.suppress(ApiError):
            api.delete("jobs", "j", space)
