"""Held Pods made by hand, as mutate would leave them, and an arbiter's loop that may be crashed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from allocation import fleet as small
from controlplane.api import Api, ApiError, wait_for
from dra_gate.admission.late import counts_text, late_name
from dra_gate.cluster.client import Client
from dra_gate.cluster.line_log import LineLog
from dra_gate.controller.arbiter import ArbiterController
from dra_gate.controller.decisions import DecisionController
from dra_gate.policy.model import PolicySet

API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
GATE = {"name": "dra-gate.io/grant"}


def tenant_set(name: str, namespace: str, *more: dict[str, Any], **spec: Any) -> PolicySet:
    """The small catalogue with one tenant more, whose namespace is the test's, and what else is given."""
    document = {"policy": "train@1", "namespaces": [namespace], **spec}
    return small.policy_set({**API, "kind": "Tenant", "metadata": {"name": name}, "spec": document}, *more)


def held_pod(
    name: str, policy_set: PolicySet, tenant: str, *counts: int, uid: str = "", policy: str = "train", **more: Any
) -> dict[str, Any]:
    """A Pod with a late claim for each of `counts` (one device by default). `uid`: of the review that named them."""
    wanted = {f"gate-{i}": count for i, count in enumerate(counts or (1,))}
    review = uid or str(uuid.uuid4())
    entries = [{"name": entry, "resourceClaimName": late_name(review, entry)} for entry in wanted]
    annotations = {
        "dra-gate.io/policy": policy,
        "dra-gate.io/policy-version": "1",
        "dra-gate.io/policy-set": policy_set.digest,
        "dra-gate.io/gate-generation": "1",
        "dra-gate.io/tenant": tenant,
        "dra-gate.io/lane": "dra",
        "dra-gate.io/candidates": "h100,a100,l40s",
        "dra-gate.io/devices": str(sum(wanted.values())),
        "dra-gate.io/claims": counts_text(wanted),
    }
    metadata: dict[str, Any] = {"name": name, "annotations": {**annotations, **more.pop("annotations", {})}}
    metadata |= more.pop("metadata", {})
    gates = [*more.pop("gates", []), GATE]
    container = {"name": "c", "image": "none", "resources": {"claims": [{"name": entry} for entry in wanted]}}
    spec = {"containers": [container], "resourceClaims": entries, "schedulingGates": gates, **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claims_of(pod: Mapping[str, Any]) -> list[str]:
    """The names of its late claims."""
    return [entry["resourceClaimName"] for entry in pod["spec"]["resourceClaims"]]


class Crash(Exception):
    """What a hook raises to end a loop between two writes."""


class Hooked(Client):
    """A client whose writes may be stopped: `hook` gets method and path before each, `after` when it is done."""

    hook: Callable[[str, str], None] | None = None
    after: Callable[[str, str], None] | None = None

    def _send(self, method: str, path: str, *more: Any, **options: Any) -> Any:
        if self.hook is not None and method != "GET":
            self.hook(method, path)
        answer = super()._send(method, path, *more, **options)
        if self.after is not None and method != "GET":
            self.after(method, path)
        return answer


class Loop:
    """A controller's decisions and arbiter, leading from the start."""

    def __init__(self, kubeconfig: Path, policy_set: PolicySet, log: LineLog | None = None, **options: Any) -> None:
        client = Hooked.connect(str(kubeconfig))
        assert isinstance(client, Hooked)
        self.client = client
        self.leads = True
        self.decisions = DecisionController(client, identity="test", leading=lambda: self.leads)
        self.arbiter = ArbiterController(client, self.decisions, leading=lambda: self.leads, log=log, **options)
        self.decisions.use([policy_set])
        self.arbiter.use([policy_set])

    def start(self, *, active: bool = True) -> Loop:
        self.arbiter.start()
        self.decisions.start()
        if active:
            self.arbiter.wake()
        return self

    def use(self, policy_set: PolicySet) -> None:
        self.decisions.use([policy_set])
        self.arbiter.use([policy_set])

    def stop(self) -> None:
        self.arbiter.stop()
        self.decisions.stop()
        self.client.close()


def checked(arbiter: ArbiterController) -> dict[str, float]:
    """What the checker on its tail has found: rules broken, and lines left out under ""."""
    samples = [sample for metric in arbiter.collect() for sample in metric.samples if sample.value]
    broken = "dra_gate_arbiter_violations_total", "dra_gate_arbiter_unchecked_lines_total"
    return {one.labels.get("rule", ""): one.value for one in samples if one.name in broken}


@contextmanager
def looping(kubeconfig: Path, policy_set: PolicySet, log: LineLog | None = None, **options: Any) -> Iterator[Loop]:
    loop = Loop(kubeconfig, policy_set, log, **options).start()
    try:
        yield loop
        assert loop.arbiter.problems() == []
        assert checked(loop.arbiter) == {}
    finally:
        loop.stop()


def ledger(api: Api, tenant: str) -> dict[str, Any]:
    """The tenant's ledger, empty if there is none."""
    try:
        return dict(api.request("GET", f"/apis/dra-gate.io/v1alpha1/tenantledgers/{tenant}").body)
    except ApiError:
        return {}


def models(api: Api, namespace: str) -> list[str]:
    """The models that claims of the namespace were given."""
    found = []
    for claim in api.list("resourceclaims", namespace):
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        found += [result["request"].partition("/")[2] for result in results]
    return sorted(found)


def bound(api: Api, namespace: str, name: str, seconds: float = 20) -> dict[str, Any]:
    """The Pod, once it is bound."""
    return dict(
        api.wait("pods", name, namespace, lambda pod: "nodeName" in pod["spec"], seconds, f"{name} to be bound")
    )


def until(probe: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    """What `probe` gives, once it is something."""
    return wait_for(probe, seconds, what, every=0.02)


def steady(probe: Callable[[], Any], seconds: float = 1.5) -> Any:
    """What `probe` gives, which has to stay so."""
    first, ends = probe(), time.monotonic() + seconds
    while time.monotonic() < ends:
        assert probe() == first
        time.sleep(0.1)
    return first
