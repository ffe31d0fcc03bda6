"""The allocators beside the scheduler itself: Pods on a real control plane, one after the other, each judged by the
cluster's state just before it.

Only DynamicResources scores nodes here (`ONLY_DEVICES`), so that the scheduler's choice of the node is the allocator's
score and, among equals, chance.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from allocation import generate
from allocation.compare import VERSION, canonical, plain
from allocation.oracle import Object, Oracle, Question
from controlplane.api import Api, wait_for
from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.nodes import best_nodes
from dra_gate.allocation.snapshot import snapshot_of

NAMESPACE = "allocation-live"
LABEL = {"test.dra-gate.io/allocation": "live"}
ONLY_DEVICES: list[Object] = [
    {
        "schedulerName": "default-scheduler",
        "plugins": {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "DynamicResources", "weight": 2}]}},
    }
]
KINDS = {
    "Node": "nodes",
    "ResourceSlice": "resourceslices",
    "DeviceClass": "deviceclasses",
    "DeviceTaintRule": "devicetaintrules",
    "ResourceClaim": "resourceclaims",
}
AMOUNTS = {"cpu": "64", "memory": "512Gi", "pods": "110"}


@dataclass
class Judged:
    """What a run came to; `problems` says of each disagreement which cluster and Pod, and what."""

    bound: int = 0
    devices: int = 0
    claims: int = 0
    alternatives: Counter[int] = field(default_factory=Counter)  # rank taken -> how often
    unbound: Counter[str] = field(default_factory=Counter)  # by the reason of the condition
    one_best: int = 0  # Pods for which there was one best node only
    not_evaluated: int = 0
    problems: list[str] = field(default_factory=list)


def clusters(count: int) -> list[int]:
    """Seeds of so many clusters that have several nodes and devices for several Pods."""
    found = []
    for seed in itertools.count():
        made = generate.question(seed)
        devices = sum(len(one["spec"].get("devices", ())) for one in made.of("ResourceSlice"))
        if len(made.of("Node")) > 1 and 10 <= devices <= 40 and "status" not in made.objects[-1]:
            found.append(seed)
        if len(found) == count:
            break
    return found


def run(api: Api, oracle: Oracle, seeds: Iterable[int], pods: int) -> Judged:
    """`pods` Pods on the cluster of each seed."""
    judged = Judged()
    labels = {"resource.kubernetes.io/admin-access": "true"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    for seed in seeds:
        _install(api, generate.question(seed))
        try:
            for number in range(pods):
                problem = _one(api, oracle, seed, number, judged)
                if problem:
                    judged.problems.append(f"cluster {seed}, Pod {number}: {problem}")
        finally:
            _clear(api)
    return judged


def _install(api: Api, question: Question) -> None:
    """Creates the cluster's nodes, all of one size, and what is published on them."""
    for one in question.objects:
        if one["kind"] == "ResourceClaim":
            continue
        made = one | {"metadata": one["metadata"] | {"labels": one["metadata"].get("labels", {}) | LABEL}}
        if one["kind"] == "Node":
            ready = {"type": "Ready", "status": "True", "reason": "Constructed"}
            made |= {"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": [ready]}}
            api.create(made)
            api.patch("nodes", one["metadata"]["name"], {"spec": {"taints": None}})  # admission wrote not-ready
        else:
            api.create(_storable(made))
    time.sleep(1)  # for the scheduler to have seen all of it


def _storable(made: Object) -> Object:
    """The object without binding conditions, which nobody would ever meet, and list attributes, which are refused."""
    for device in made["spec"].get("devices", ()):
        for key in ("bindingConditions", "bindingFailureConditions"):
            device.pop(key, None)
        device["attributes"] = {name: value for name, value in device["attributes"].items() if "strings" not in value}
    return made


def _clear(api: Api) -> None:
    def empty() -> bool:
        api.delete_all("pods", NAMESPACE, grace=0)
        return not (api.list("pods", NAMESPACE) or api.list("resourceclaims", NAMESPACE))

    wait_for(empty, 60, f"{NAMESPACE} to be empty", every=0.2)
    api.delete_all("resourceclaimtemplates", NAMESPACE)
    ours = ",".join(f"{key}={value}" for key, value in LABEL.items())
    for resource in ("devicetaintrules", "resourceslices", "nodes", "deviceclasses"):
        api.delete_all(resource, labels=ours)
    wait_for(lambda: not (api.list("nodes", labels=ours) or api.list("resourceslices", labels=ours)), 30, "nodes to go")


def _one(api: Api, oracle: Oracle, cluster: int, number: int, judged: Judged) -> str:
    """Runs one Pod and says what is wrong with its allocation; now and then an older Pod goes first."""
    rng = random.Random(f"{cluster} {number}")
    older = [pod["metadata"]["name"] for pod in api.list("pods", NAMESPACE)]
    for name in rng.sample(older, min(len(older), rng.choice((0, 0, 1, 2)))):
        _end(api, name)
    before = {kind: api.list(resource) for kind, resource in KINDS.items()}
    claims = generate.more_claims(before["ResourceSlice"], rng.getrandbits(32))
    pod = _pod(api, f"p{number}", claims)
    judged.claims += len(claims)
    stored = _settled(api, pod["metadata"]["name"])
    names = {one["name"]: one["resourceClaimName"] for one in stored["status"]["resourceClaimStatuses"]}
    own = [
        api.get("resourceclaims", names[entry["name"]], NAMESPACE) | {"kind": "ResourceClaim"}
        for entry in stored["spec"]["resourceClaims"]
    ]
    objects = [one | {"kind": kind} for kind, listed in before.items() for one in listed]
    snapshot = snapshot_of([*objects, *own], version=VERSION)
    allocator = Allocator(snapshot, ignore={claim["metadata"]["uid"] for claim in own})
    asked = [{key: value for key, value in claim.items() if key != "status"} for claim in own]
    question = Question((*objects, *asked), tuple(f"{NAMESPACE}/{claim['metadata']['name']}" for claim in own))
    outcomes = {
        node["metadata"]["name"]: allocator.allocate(node["metadata"]["name"], asked) for node in before["Node"]
    }
    verdicts = {verdict.node: verdict for verdict in oracle.ask(question)}
    judged.not_evaluated += any(outcome.kind == "cannot-evaluate" for outcome in outcomes.values())
    chosen = stored["spec"].get("nodeName")
    if chosen is None:
        condition = next(c for c in stored["status"]["conditions"] if c["type"] == "PodScheduled")
        judged.unbound[condition["reason"]] += 1
        _end(api, pod["metadata"]["name"])
        return _why_unbound(condition, outcomes) or _why_unbound(condition, verdicts)
    judged.bound += 1
    given = [canonical(claim["status"]["allocation"]) for claim in own]
    judged.devices += sum(len(one["results"]) for one in given)
    theirs = [canonical(one) for one in verdicts[chosen].results or []]
    if theirs != given:
        return f"the oracle gives {theirs}, the scheduler {given}"
    if outcomes[chosen].kind == "cannot-evaluate":
        return ""
    ours = [plain(one) for one in outcomes[chosen].claims]
    if ours != given:
        return f"{outcomes[chosen].kind} {ours} for {given} on {chosen}"
    best = best_nodes(outcomes)
    judged.one_best += len(best.nodes) == 1
    _count_ranks(own, judged)
    return "" if chosen in best.nodes else f"{chosen} is not among the best, {best.nodes}"


def _count_ranks(claims: list[Object], judged: Judged) -> None:
    for claim in claims:
        taken = {one["request"] for one in claim["status"]["allocation"]["devices"].get("results", [])}
        for request in claim["spec"]["devices"]["requests"]:
            for rank, sub in enumerate(request.get("firstAvailable", ()), 1):
                judged.alternatives[rank] += f"{request['name']}/{sub['name']}" in taken


def _why_unbound(condition: Object, answers: dict[str, Any]) -> str:
    """What contradicts that the scheduler bound the Pod nowhere."""
    kinds = {answer.kind for answer in answers.values()}
    if kinds & {"cannot-evaluate"}:
        return ""
    if "failed" in kinds:
        texts = {getattr(answer, "message", "") or getattr(answer, "error", "") for answer in answers.values()}
        told = str(condition["message"])
        if any(text and text in told for text in texts) or "does not exist" in told:
            return ""
        return f"{texts} for {told!r}"
    if "allocated" in kinds:
        return f"{sorted(kinds)} although the scheduler says {condition['message']!r}"
    return ""


def _pod(api: Api, name: str, claims: list[Object]) -> Object:
    entries = []
    for index, claim in enumerate(claims):
        template = f"{name}-{index}"
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": template},
                "spec": {"spec": claim["spec"]},
            },
            NAMESPACE,
        )
        entries.append({"name": f"c{index}", "resourceClaimTemplateName": template})
    resources = {"claims": [{"name": entry["name"]} for entry in entries]}
    container = {"name": "main", "image": "none", "resources": resources}
    spec = {"restartPolicy": "Never", "containers": [container], "resourceClaims": entries}
    return api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, NAMESPACE)


def _settled(api: Api, name: str) -> Object:
    """The Pod once it is bound, or once the scheduler has held for half a second that it fits nowhere."""
    refused: list[float] = []

    def settled(pod: Object) -> bool:
        if "nodeName" in pod["spec"]:
            return True
        conditions = pod.get("status", {}).get("conditions", [])
        if not any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions):
            return False
        refused.append(time.monotonic())
        return refused[-1] - refused[0] > 0.5

    return api.wait("pods", name, NAMESPACE, settled, 60, f"{name} to be bound or refused")


def _end(api: Api, name: str) -> None:
    """Deletes the Pod and waits until its claims hold nothing."""
    api.delete("pods", name, NAMESPACE, grace=0)

    def gone() -> bool:
        return not any(
            owner["name"] == name
            for claim in api.list("resourceclaims", NAMESPACE)
            for owner in claim["metadata"].get("ownerReferences", [])
        )

    wait_for(gone, 30, f"claims of {name} to go")
