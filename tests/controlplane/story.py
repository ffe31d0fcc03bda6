"""The story of the gate on a real control plane: first choice, fallback, a floor that forbids one, bypasses refused,
a Pod that waits for its turn.

Played with the example policies (`policies/`) on the fleet `demo`: two H100, two A100, two L40S.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.control_plane import TENANT, ControlPlane
from controlplane.gate import Gate

TRAINING, SERVING = "research-train", "serving-prod"
_SECONDS = 20
_QUOTA = "quota: {devices: 16}"  # of research, in policies/tenants.yaml


def tell(plane: ControlPlane, gate: Gate) -> None:
    """Plays all chapters and prints what the cluster answers; `gate` follows what is published.

    Raises TimeoutError when it does not answer as told.
    """
    story = _Story(plane)
    with story.chapter("Two Pods ask for nvidia.com/gpu: 1. Both get the first choice"):
        story.gets(TRAINING, "first", "h100")
        story.gets(TRAINING, "second", "h100")
    with story.chapter("The H100s are in use. The next two get the fallback, an A100"):
        story.gets(TRAINING, "third", "a100")
        story.gets(TRAINING, "fourth", "a100")
    with story.chapter("Two L40S are free, but the policy's floor is 50Gi: this Pod waits rather than get one"):
        story.waits(TRAINING, "fifth")
    with story.chapter("Another tenant, whose policy prefers the L40S, gets it at once"):
        story.gets(SERVING, "serve", "l40s")
    with story.chapter("The first Pod ends: the one that waited gets its H100"):
        story.ends(TRAINING, "first")
        story.shows(TRAINING, "fifth", "h100")
    with story.chapter("Ways around the policy are refused"):
        template = {"devices": {"requests": [{"name": "any", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
        own = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "any-gpu"}}
        story.refused(TRAINING, own | {"spec": {"spec": template}})
        story.refused(TRAINING, _pod("own", claims=[{"name": "g", "resourceClaimTemplateName": "any-gpu"}]))
        story.refused(TRAINING, _pod("slice", limits={"nvidia.com/mig-1g.10gb": "1"}))
        story.refused(SERVING, _pod("many", limits={"nvidia.com/gpu": "9"}))
    with story.chapter("A Pod without devices never meets the gate"):
        stored = story.api.create(_pod("plain"), TRAINING)
        story.say(f"{TRAINING}/{stored['metadata']['name']} stored as it was written")
    with story.chapter("Another policy set: research may hold two H100, and what is above that waits for its turn"):
        story.publishes(gate, _with_quota(gate.policies, plane.run_dir / "policies"))
        story.is_held(TRAINING, "sixth")
        for line in gate.command("queue", "--kubeconfig", plane.kubeconfig_for()).splitlines():
            story.say(f"  {line}")
    with story.chapter("The second Pod ends: the one that was held is granted its H100"):
        story.ends(TRAINING, "second")
        story.shows(TRAINING, "sixth", "h100")


class _Story:
    def __init__(self, plane: ControlPlane) -> None:
        self.api: Api = plane.api(TENANT)
        self._number = 0

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        self._number += 1
        print(f"\n{self._number}. {title}", flush=True)
        yield

    def say(self, text: str) -> None:
        print(f"   {text}".rstrip(), flush=True)

    def gets(self, namespace: str, name: str, model: str) -> None:
        self.api.create(_pod(name, limits={"nvidia.com/gpu": "1"}), namespace)
        self.shows(namespace, name, model)

    def shows(self, namespace: str, name: str, model: str) -> None:
        """The Pod is bound, and its claim says `gpu/<model>`."""
        pod = self.api.wait(
            "pods", name, namespace, lambda found: "nodeName" in found["spec"], _SECONDS, f"{name} bound"
        )
        entry = pod["spec"]["resourceClaims"][0]  # of a Pod that was held it names the claim itself
        made = entry.get("resourceClaimName") or pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        claim = self.api.get("resourceclaims", made, namespace)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        if result["request"] != f"gpu/{model}":
            raise TimeoutError(f"{namespace}/{name} got {result['request']}, not gpu/{model}")
        stamp = pod["metadata"]["annotations"]
        by = f"{stamp['dra-gate.io/policy']}@{stamp['dra-gate.io/policy-version']}"
        self.say(
            f"{namespace}/{name}: {result['request']}, device {result['device']} of {result['pool']} (policy {by})"
        )

    def waits(self, namespace: str, name: str) -> None:
        self.api.create(_pod(name, limits={"nvidia.com/gpu": "1"}), namespace)

        def said(pod: Object) -> Any:
            return [c for c in pod["status"].get("conditions", []) if c.get("reason") == "Unschedulable"]

        pod = self.api.wait("pods", name, namespace, said, _SECONDS, f"{name} to be unschedulable")
        self.say(f"{namespace}/{name}: Pending; kube-scheduler says: {said(pod)[0]['message'].split(' preemption')[0]}")

    def publishes(self, gate: Gate, policies: Path) -> None:
        told = gate.policy("publish", policies, "--activate", "--wait", "--no-lint")
        self.say(told.splitlines()[0])

    def is_held(self, namespace: str, name: str) -> None:
        self.api.create(_pod(name, limits={"nvidia.com/gpu": "1"}), namespace)

        def said(pod: Object) -> Any:
            return [c for c in pod["status"].get("conditions", []) if c["type"] == "dra-gate.io/Granted"]

        pod = self.api.wait("pods", name, namespace, said, _SECONDS, f"{name} to be told why it is held")
        self.say(f"{namespace}/{name}: held; {said(pod)[0]['reason']}: {said(pod)[0]['message']}")

    def ends(self, namespace: str, name: str) -> None:
        self.api.delete("pods", name, namespace)  # the played kubelet ends it
        wait_for(lambda: self.api.find("pods", name, namespace) is None, _SECONDS, f"{name} to go")

    def refused(self, namespace: str, obj: Object) -> None:
        try:
            self.api.create(obj, namespace)
        except ApiError as refused:
            self.say(f"{namespace}/{obj['metadata']['name']}: {refused.message}")
        else:
            raise TimeoutError(f"{namespace}/{obj['metadata']['name']} was not refused")


def _with_quota(policies: Path, to: Path) -> Path:
    """The policies with a quota by model, and waiting above it, for research."""
    shutil.copytree(policies, to)
    tenants = to / "tenants.yaml"
    before = tenants.read_text()
    after = before.replace(_QUOTA, f"{_QUOTA[:-1]}, models: {{h100: 2}}}}\n  overQuota: wait")
    if after == before:
        raise ValueError(f"{policies / 'tenants.yaml'} has no {_QUOTA!r}")
    tenants.write_text(after)
    return to


def _pod(name: str, limits: Object | None = None, claims: list[Object] | None = None) -> Object:
    resources: Object = {"limits": limits} if limits else {}
    spec: Object = {"containers": [{"name": "main", "image": "registry.example/a:1", "resources": resources}]}
    if claims:
        spec["resourceClaims"] = claims
        resources["claims"] = [{"name": claim["name"]} for claim in claims]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
