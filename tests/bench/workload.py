"""What is measured: 20 tenants, 100 policies, and AdmissionReviews with Pods of about 10 KB. Always the same bytes."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from dra_gate.admission.mutate import preferred_terms
from dra_gate.admission.review import Route, answer
from dra_gate.cluster.facts import World
from dra_gate.cluster.files import load_manifests
from dra_gate.policy.load import load
from dra_gate.policy.model import PolicySet

TENANTS = 20
VERSIONS = 5  # of each tenant's policy: 100 policies in all, every one of them honoured
SLICES = 40
_PADDING = 500  # bytes of environment a container, for Pods of about 10 KB

_MODELS = [
    ("h200", "NVIDIA H200*", "143771Mi", "Hopper"),
    ("h100", "NVIDIA H100*", "81559Mi", "Hopper"),
    ("a100", "NVIDIA A100*", "40960Mi", "Ampere"),
    ("l40s", "NVIDIA L40S*", "46068Mi", "Ada Lovelace"),
    ("l4", "NVIDIA L4", "23034Mi", "Ada Lovelace"),
    ("a10", "NVIDIA A10", "23028Mi", "Ampere"),
]


@dataclass(frozen=True, slots=True)
class Question:
    """One request: where it goes, what is in it, and whether the right answer lets it through."""

    route: Route
    body: bytes
    allowed: bool


def write_policies(folder: Path) -> None:
    """The policy folder."""
    folder.mkdir(parents=True)
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": "policy.dra-gate.io/v1alpha1",
            "kind": "DeviceCatalog",
            "models": [
                {
                    "name": name,
                    "deviceClassName": "gpu.nvidia.com",
                    "products": [product],
                    "memory": memory,
                    "architecture": architecture,
                    "nodeLabels": {"nvidia.com/gpu.product": [f"NVIDIA-{name.upper()}"]},
                }
                for name, product, memory, architecture in _MODELS
            ],
        }
    ]
    for tenant in range(TENANTS):
        for version in range(1, VERSIONS + 1):
            constraints = {
                "memory": {"min": f"{16 + version}Gi"},
                "driverVersion": {"min": "550.54.15"},
                "wholeDevice": True,
                "nodes": {"pool": f"pool-{tenant % 4}"},
            }
            documents.append(
                {
                    "apiVersion": "policy.dra-gate.io/v1alpha1",
                    "kind": "DevicePolicy",
                    "metadata": {"name": f"policy-{tenant}", "version": version},
                    "spec": {
                        "serves": ["nvidia.com/gpu"],
                        "candidates": ["h100", "a100", "others"],
                        "constraints": constraints,
                    },
                }
            )
        documents.append(
            {
                "apiVersion": "policy.dra-gate.io/v1alpha1",
                "kind": "Tenant",
                "metadata": {"name": f"tenant-{tenant}"},
                "spec": {
                    "namespaces": [f"team-{tenant}"],
                    "policy": f"policy-{tenant}@{VERSIONS}",
                    "keepVersions": list(range(1, VERSIONS)),
                    "quota": {"devices": 64},
                },
            }
        )
    (folder / "bench.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))


def write_cluster(file: Path) -> None:
    """The cluster: gated namespaces, one class, slices of eight devices, two running Pods a tenant."""
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu.nvidia.com"},
            "spec": {
                "extendedResourceName": "nvidia.com/gpu",
                "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
            },
        }
    ]
    for tenant in range(TENANTS):
        labels = {"dra-gate.io/lane": "dra", "kubernetes.io/metadata.name": f"team-{tenant}"}
        name = {"name": f"team-{tenant}", "labels": labels}
        documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": name})
        for number in range(2):
            pod = _pod(tenant, number, [2], "")
            pod["metadata"] |= {"name": f"running-{number}", "uid": f"{tenant}-{number}"}
            documents.append({**pod, "status": {"phase": "Running"}})
    for number in range(SLICES):
        _, product, memory, architecture = _MODELS[number % len(_MODELS)]
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {
                    "type": {"string": "gpu"},
                    "productName": {"string": product.rstrip("*")},
                    "architecture": {"string": architecture},
                    "driverVersion": {"version": "550.127.8"},
                },
                "capacity": {"memory": {"value": memory}},
            }
            for index in range(8)
        ]
        documents.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"node-{number}"},
                "spec": {
                    "driver": "gpu.nvidia.com",
                    "nodeName": f"node-{number}",
                    "pool": {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1},
                    "devices": devices,
                },
            }
        )
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))


def world(folder: Path) -> World:
    """What the server knows, in this process."""
    made = World(load(folder / "policies"))
    for manifest in load_manifests([str(folder / "cluster.yaml")]):
        made.apply(manifest)
    return made


def write_plain(file: Path, policy_set: PolicySet, known: World) -> None:
    """What the plain gate needs to know, looked up for it: which namespace is whose, what each template is called."""
    facts = known.facts()
    namespaces: dict[str, Any] = {}
    for tenant in policy_set.tenants.values():
        for namespace in tenant.namespaces:
            policies = []
            for ref in tenant.valid_refs(namespace):
                policy = policy_set.policies[ref]
                counts = {count: facts.index.for_count(tenant.name, ref, count) for count in range(1, 33)}
                policies.append(
                    {
                        "name": ref.name,
                        "version": ref.version,
                        "nodes": dict(policy.constraints.nodes),
                        "candidates": list(policy.candidates),
                        "preferred": preferred_terms(policy.candidates, policy_set.models),
                        "templates": {str(count): template.name for count, template in counts.items()},
                    }
                )
            namespaces[namespace] = {
                "tenant": tenant.name,
                "quota": tenant.quota.devices,
                "used": facts.used[tenant.name].devices,
                "policies": policies,
            }
    file.write_text(json.dumps({"digest": policy_set.digest, "namespaces": namespaces}))


def questions(known: World) -> list[Question]:
    """Five shapes of Pod for each tenant, each asked of both routes: validate sees what mutate made, or, one in five,
    a raw request that mutate never saw, and refuses it.
    """
    made = []
    facts = known.facts()
    shapes: list[tuple[list[int], str]] = [
        ([1, 0, 0, 0], ""),
        ([8, 0, 0, 0], ""),
        ([2, 2, 0, 0], ""),
        ([4, 0, 0, 0], "initContainers"),
        ([1, 0, 0, 0], "bypass"),
    ]
    for number, (devices, special) in enumerate(shapes):
        for tenant in range(TENANTS):
            pod = _pod(tenant, number, devices, special)
            body = _review(f"{number}-{tenant}-mutate", tenant, pod)
            made.append(Question("mutate", body, True))
            if special != "bypass":
                response = json.loads(answer("mutate", body, facts).body)["response"]
                patch = json.loads(base64.b64decode(response["patch"]))
                pod = jsonpatch.apply_patch(pod, patch)
            final = _review(f"{number}-{tenant}-validate", tenant, pod)
            made.append(Question("validate", final, special != "bypass"))
    return made


def _review(uid: str, tenant: int, pod: dict[str, Any]) -> bytes:
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": resource,
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": resource,
        "name": pod["metadata"]["name"],
        "namespace": f"team-{tenant}",
        "operation": "CREATE",
        "userInfo": {
            "username": f"system:serviceaccount:team-{tenant}:default",
            "uid": "0ad7aab1-3a0b-4c8c-a8f0-6c5c9cb3c1a0",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:team-{tenant}", "system:authenticated"],
        },
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()


def _pod(tenant: int, number: int, devices: list[int], special: str) -> dict[str, Any]:
    """A Pod as the API server hands it on: defaults filled in, a container for each entry of `devices`."""
    spec: dict[str, Any] = {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "training-data"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "config", "configMap": {"name": "run-config", "defaultMode": 420}},
        ],
        "containers": [_container(f"c{index}", count) for index, count in enumerate(devices)],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            },
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            },
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    if special == "initContainers":
        spec["initContainers"] = [_container("warm-up", devices[0], padding=10)]
    labels = {
        "app.kubernetes.io/name": "trainer",
        "app.kubernetes.io/instance": f"run-{number}",
        "batch.kubernetes.io/job-name": f"train-{tenant}-{number}",
        "team": f"team-{tenant}",
    }
    metadata = {
        "name": f"train-{tenant}-{number}-0",
        "namespace": f"team-{tenant}",
        "labels": labels,
        "annotations": {"example.com/git-commit": "0123456789abcdef0123456789abcdef01234567"},
        "creationTimestamp": None,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(name: str, devices: int, padding: int = _PADDING) -> dict[str, Any]:
    resources: dict[str, dict[str, str]] = {
        "limits": {"cpu": "4", "memory": "32Gi"},
        "requests": {"cpu": "4", "memory": "32Gi"},
    }
    if devices:
        for part in resources.values():
            part["nvidia.com/gpu"] = str(devices)
    environment = [{"name": f"SETTING_{index}", "value": f"value-{index}"} for index in range(25)]
    environment.append({"name": "ARGUMENTS", "value": "x" * padding})
    return {
        "name": name,
        "image": f"registry.example.com/team/{name}@sha256:" + "0" * 64,
        "command": ["/usr/bin/python3", "-m", "train"],
        "env": environment,
        "resources": resources,
        "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "config", "mountPath": "/etc/run"},
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
