"""Templates on the real control plane: stored as compiled, and the scheduler gives exactly what floors.yaml says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from controlplane.api import Api, wait_for
from controlplane.fleet import LABEL, Fleet
from dra_gate.policy.compile import Template, templates_of
from dra_gate.policy.load import load, load_documents
from dra_gate.policy.model import MAX_DEVICES
from policy.floors import Table, compiled, policy_files, tables

pytestmark = pytest.mark.controlplane
MakeNamespace = Callable[..., str]
ROOT = "resource.kubernetes.io/pcieRoot"


def store(api: Api, template: Template, namespace: str) -> dict[str, Any]:
    """Creates a template and returns what the API server made of it."""
    api.create(template.manifest(namespace))
    return api.get("resourceclaimtemplates", template.name, namespace)


def same(stored: dict[str, Any], template: Template, namespace: str) -> bool:
    """Whether the stored object says what was compiled, in spec, labels and annotations."""
    wanted = template.manifest(namespace)
    return bool(
        stored["spec"] == wanted["spec"]
        and stored["metadata"]["labels"] == wanted["metadata"]["labels"]
        and stored["metadata"]["annotations"] == wanted["metadata"]["annotations"]
    )


def pod(name: str, template: Template, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template.name}],
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }


def fleet_of(rows: list[Table]) -> Fleet:
    """A node and a pool per table; the classes accept every device of a driver: our selectors do all the work."""
    made = Fleet.of("floors", {"nodes": [{"name": row.name} for row in rows]})
    classes = tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": driver, "labels": {LABEL: "floors"}},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
        }
        for driver in sorted({row.driver for row in rows})
    )
    slices = tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{row.name}-0", "labels": {LABEL: "floors"}},
            "spec": {
                "driver": row.driver,
                "nodeName": row.name,
                "pool": {"name": row.name, "generation": 1, "resourceSliceCount": 1},
                "devices": [device for device, _ in row.devices],
            },
        }
        for row in rows
    )
    return Fleet("floors", made.nodes, classes, slices)


def test_scheduler_gives_exactly_what_meets_each_floor(
    api: Api, install_fleet: Callable[[Fleet], Fleet], make_namespace: MakeNamespace
) -> None:
    rows = tables()
    install_fleet(fleet_of(rows))
    namespace = make_namespace()
    for row in rows:
        assert same(store(api, row.template, namespace), row.template, namespace), row.name
    # One Pod more than there are devices to give: it must stay unschedulable, and not for an error in a selector.
    pods = [(row, number) for row in rows for number in range(len(row.given) + 1)]
    api.parallel(lambda p: api.create(pod(f"{p[0].name}-{p[1]}", p[0].template, p[0].name), namespace), pods)

    def settled() -> dict[str, list[str]] | None:
        found: dict[str, list[str]] = {}
        for claim in api.list("resourceclaims", namespace):
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                assert result["request"] == "gpu/model"
                found.setdefault(result["pool"], []).append(result["device"])
        waiting: dict[str, list[Any]] = {}
        for one in api.list("pods", namespace):
            for condition in one["status"].get("conditions", []):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    waiting.setdefault(one["metadata"]["name"].rpartition("-")[0], []).append(condition)
        for name, conditions in waiting.items():
            assert {condition["reason"] for condition in conditions} == {"Unschedulable"}, (name, conditions)
        done = all(
            len(found.get(row.name, [])) >= len(row.given) and len(waiting.get(row.name, [])) == 1 for row in rows
        )
        return found if done else None

    given = wait_for(settled, 90, "all devices that may be given to be given")
    assert {name: sorted(devices) for name, devices in given.items()} == {row.name: sorted(row.given) for row in rows}


def test_everything_that_is_compiled_is_stored_as_compiled(api: Api, make_namespace: MakeNamespace) -> None:
    namespace = make_namespace()
    examples = load("policies")
    index = templates_of(examples)
    wanted = [
        index.for_count(tenant.name, ref, count)
        for tenant in examples.tenants.values()
        for ref in tenant.valid_refs(tenant.namespaces[0])
        for count in (1, 2, 8, MAX_DEVICES)
    ]
    wanted += [
        compiled(policy_files(["Q"], {"sameAttribute": [ROOT, "gpu.nvidia.com/uuid"]}), count) for count in (1, 2)
    ]
    most = [
        {"name": f"{number}-" + "x" * 61, "deviceClassName": f"{'c' * 63}.example", "driver": "nic.example",
         "count": number, "minimum": {f"{'d' * 55}.example/{'c' * 31}{n}": f"{n}00G" for n in range(1, 9)},
         "sameAttribute": [ROOT, *(f"gpu.nvidia.com/x{n}" for n in range(3))],
         "cel": [f"has(device.attributes['nic.example'].a{n})" for n in range(8)]}
        for number in range(1, 5)
    ]  # fmt: skip
    agreeing = {"sameAttribute": [f"gpu.nvidia.com/a{number}" for number in range(8)]}
    wanted += [compiled(policy_files(["Q"], agreeing, companions=most), count) for count in (1, 2, 22)]
    eight = load_documents({"eight.yaml": _eight_candidates()})
    wanted += [templates_of(eight).for_count("floors", eight.tenants["floors"].policy, MAX_DEVICES)]
    for template in wanted:
        assert same(store(api, template, namespace), template, namespace), template.name


def _eight_candidates() -> bytes:
    """The largest policy there can be: eight models with 16 products each, all words, own CEL, the longest names."""
    documents = list(yaml.safe_load_all(policy_files(["Q"], {})["floors.yaml"]))
    documents[0]["models"] = [
        {
            "name": f"m{number}-" + "x" * 60,
            "deviceClassName": "gpu.nvidia.com",
            "products": [f"NVIDIA {number} {part:02} {'x' * 48}*" for part in range(16)],
        }
        for number in range(8)
    ]
    documents[1]["spec"] = {
        "serves": ["nvidia.com/gpu"],
        "candidates": ["others"],
        "constraints": {
            "memory": {"min": "40Gi"},
            "driverVersion": {"min": "550.54.15"},
            "architectures": [f"architecture {number}" for number in range(16)],
            "sameAttribute": [ROOT, "resource.kubernetes.io/numaNode"],
            "wholeDevice": True,
            "cel": [f"has(device.attributes['gpu.nvidia.com'].a{number})" for number in range(8)],
        },
    }
    documents[1]["metadata"]["name"] = documents[2]["metadata"]["name"] = "p" * 63
    documents[1]["metadata"]["version"] = 999_999_999
    documents[2]["spec"]["policy"] = f"{'p' * 63}@999999999"
    documents[2]["metadata"]["name"] = "floors"
    return yaml.safe_dump_all(documents).encode()
