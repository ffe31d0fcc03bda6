"""A large cluster as objects: 5,000 nodes of eight devices, 1,000 namespaces, 20,000 templates, 20,000 Pods and claims.

A hundred tenants own ten namespaces each. A namespace has the templates that the controller makes ahead of need
(counts 1 to 8 of two versions of the policy) and four that people wrote. Pods are as mutate leaves them. Everything is
made one object at a time, so that nobody who asks holds all of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from bench import workload
from controlplane.fleet import Fleet
from dra_gate.admission.review import answer
from dra_gate.cluster.facts import World
from dra_gate.fairness.holding import POD_CLAIM_ANNOTATION
from dra_gate.policy.load import load

TENANTS = 100
VERSIONS = (1, 2)
COUNTS = range(1, 9)
Object = dict[str, Any]


class Large:
    """The cluster at `scale` (1: as said above). Writes its policies to `folder` and compiles them."""

    def __init__(self, folder: Path, scale: float = 1.0) -> None:
        self.nodes = max(3, round(5000 * scale))
        self.namespaces = [f"ns-{number}" for number in range(max(TENANTS, round(1000 * scale)))]
        self.pods_each = 20
        self.policies = folder
        _write_policies(folder, self.namespaces)
        workload.write_policies(folder.with_name("shapes") / "policies")
        workload.write_cluster(folder.with_name("shapes") / "cluster.yaml")
        self._review = workload.questions(workload.world(folder.with_name("shapes")))[0].body
        self._world = World(load(folder))
        for one in (*self.classes(), *self.namespace_objects()):
            self._world.apply(one)

    def tenant(self, namespace: str) -> int:
        """The number of the tenant that owns it."""
        return int(namespace.removeprefix("ns-")) % TENANTS

    def namespace_objects(self) -> Iterator[Object]:
        """Namespaces, all gated."""
        for name in self.namespaces:
            labels = {"dra-gate.io/lane": "dra", "kubernetes.io/metadata.name": name}
            yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}

    def classes(self) -> Iterator[Object]:
        """The drivers' classes."""
        yield from self._fleet(1).classes

    def slices(self) -> Iterator[Object]:
        """One slice a node, as the NVIDIA driver publishes it."""
        yield from self._fleet(self.nodes // 3).slices

    def templates(self) -> Iterator[Object]:
        """Sixteen of the gate's and four of people's in each namespace."""
        index = self._world.facts().index
        policy_set = self._world.facts().policy_set
        for namespace in self.namespaces:
            tenant = policy_set.tenants[f"tenant-{self.tenant(namespace)}"]
            for ref in tenant.valid_refs(namespace):
                for count in COUNTS:
                    yield index.for_count(tenant.name, ref, count).manifest(namespace)
            for number in range(4):
                selector = (
                    f"device.driver == 'nic.example.com' && device.attributes['nic.example.com'].port == {number}"
                )
                exactly = {"deviceClassName": "nic.example.com", "selectors": [{"cel": {"expression": selector}}]}
                spec = {"devices": {"requests": [{"name": "nic", "exactly": exactly}]}}
                yield {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaimTemplate",
                    "metadata": {"name": f"nic-{number}", "namespace": namespace},
                    "spec": {"spec": spec},
                }

    def pods(self) -> Iterator[Object]:
        """Twenty in each namespace, of two devices."""
        for namespace in self.namespaces:
            patched = self._pod(self.tenant(namespace))
            for number in range(self.pods_each):
                meta = {**patched["metadata"], "name": f"train-{number}", "namespace": namespace}
                yield {**patched, "metadata": meta}

    def claim(self, namespace: str, pod: str, uid: str, number: int) -> tuple[Object, Object]:
        """The claim that the Pod gets, and its status once it is allocated: devices of the cluster's Pod `number`."""
        index, sets = self._world.facts().index, self._world.facts().policy_set
        tenant = sets.tenants[f"tenant-{self.tenant(namespace)}"]
        template = index.for_count(tenant.name, tenant.valid_refs(namespace)[0], 2)
        stamp = template.spec["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": f"{pod}-gate-0-x7k2p",
                "namespace": namespace,
                "labels": dict(stamp["labels"]),
                "annotations": {**stamp["annotations"], POD_CLAIM_ANNOTATION: "gate-0"},
                "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
            },
            "spec": template.spec["spec"],
        }
        node = f"ampere-{number // 4 % max(1, self.nodes // 3)}"
        given = [
            {"request": "gpu/a100", "driver": "gpu.nvidia.com", "pool": node, "device": f"gpu-{number % 4 * 2 + index}"}
            for index in range(2)
        ]
        user = {"resource": "pods", "name": pod, "uid": uid}
        return claim, {"status": {"allocation": {"devices": {"results": given}}, "reservedFor": [user]}}

    def review(self, namespace: str) -> bytes:
        """A mutate review of about 10 KB: a Pod of two devices in a tenant's namespace."""
        made: Object = json.loads(self._review)
        request = made["request"]
        request["namespace"] = request["object"]["metadata"]["namespace"] = namespace
        for part in request["object"]["spec"]["containers"][0]["resources"].values():
            part["nvidia.com/gpu"] = "2"
        return json.dumps(made, separators=(",", ":")).encode()

    @cache  # noqa: B019 - one of these lives as long as the program
    def _fleet(self, each: int) -> Fleet:
        groups = [("hopper", "h100"), ("ampere", "a100"), ("ada", "l40s")]
        nodes = [{"name": name, "count": each, "devices": {kind: 8}} for name, kind in groups]
        return Fleet.of("large", {"nodes": nodes})

    @cache  # noqa: B019
    def _pod(self, tenant: int) -> Object:
        """As mutate leaves it, for any namespace of the tenant."""
        namespace = f"ns-{tenant}"
        body = self.review(namespace)
        response = json.loads(answer("mutate", body, self._world.facts()).body)["response"]
        patched = jsonpatch.apply_patch(
            json.loads(body)["request"]["object"], json.loads(base64.b64decode(response["patch"]))
        )
        patched["metadata"].pop("creationTimestamp")
        return {"apiVersion": "v1", "kind": "Pod", **patched}


def _write_policies(folder: Path, namespaces: list[str]) -> None:
    models = [
        ("h100", "NVIDIA H100*", "81559Mi", "Hopper", "NVIDIA-H100-80GB-HBM3"),
        ("a100", "NVIDIA A100*", "80Gi", "Ampere", "NVIDIA-A100-SXM4-80GB"),
        ("l40s", "NVIDIA L40S*", "46068Mi", "Ada Lovelace", "NVIDIA-L40S"),
    ]
    api = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
    catalogue = [
        {
            "name": name,
            "deviceClassName": "gpu.nvidia.com",
            "products": [product],
            "memory": memory,
            "architecture": architecture,
            "nodeLabels": {"nvidia.com/gpu.product": [label]},
        }
        for name, product, memory, architecture, label in models
    ]
    documents: list[Object] = [{**api, "kind": "DeviceCatalog", "models": catalogue}]
    for tenant in range(TENANTS):
        for version in VERSIONS:
            spec = {
                "serves": ["nvidia.com/gpu"],
                "candidates": ["h100", "a100", "others"],
                "constraints": {"memory": {"min": f"{16 + version}Gi"}, "driverVersion": {"min": "550.54.15"}},
            }
            meta = {"name": f"policy-{tenant}", "version": version}
            documents.append({**api, "kind": "DevicePolicy", "metadata": meta, "spec": spec})
        owned = [name for name in namespaces if int(name.removeprefix("ns-")) % TENANTS == tenant]
        documents.append(
            {
                **api,
                "kind": "Tenant",
                "metadata": {"name": f"tenant-{tenant}"},
                "spec": {
                    "namespaces": owned,
                    "policy": f"policy-{tenant}@{VERSIONS[-1]}",
                    "keepVersions": list(VERSIONS[:-1]),
                    "quota": {"devices": 100_000},
                },
            }
        )
    folder.mkdir(parents=True)
    (folder / "large.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))
