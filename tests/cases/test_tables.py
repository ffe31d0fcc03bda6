"""The tables of the handed cases: charges, driver and memory floors, eligible devices, usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cases import harness
from dra_gate import cel
from dra_gate.cluster.facts import World
from dra_gate.fairness.charge import Charge, worst_case
from dra_gate.fairness.quota import over_quota
from dra_gate.kube.claim import Alternative, UnknownAllocationMode
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, Quota

DOMAIN = "gpu.nvidia.com"


def table(case_id: str) -> dict[str, Any]:
    return harness.case(case_id).tables[0]


@pytest.mark.parametrize("row", table("B37")["rows"], ids=str)
def test_charge_is_the_worst_case_until_the_truth_is_known(row: dict[str, Any]) -> None:
    if "exactly" in row:
        alternatives = [Alternative(row["exactly"]["model"], DOMAIN, (), row["exactly"])]
    else:
        alternatives = [Alternative(raw["name"], DOMAIN, (), raw) for raw in row["firstAvailable"]]
    if row.get("refused"):
        with pytest.raises(UnknownAllocationMode):
            worst_case(alternatives)
        return
    if "allocated" in row:
        alternatives = [alternative for alternative in alternatives if alternative.name == row["allocated"]]
    assert worst_case(alternatives) == Charge(row["devices"], row["models"])


def selectors_with(constraints: dict[str, Any]) -> Iterator[list[cel.Program]]:
    """The compiled selectors of each candidate of the cases' policy under other constraints."""
    documents = list(yaml.safe_load_all((harness.POLICIES / "lilac.yaml").read_text()))
    for document in documents:
        if document["kind"] == "DevicePolicy":
            document["spec"]["constraints"] = constraints
    policy_set = load_documents({"lilac.yaml": yaml.safe_dump_all(documents).encode()})
    template = templates_of(policy_set).for_count(harness.TENANT, PolicyRef(harness.POLICY, 7), 1)
    for alternative in template.spec["spec"]["devices"]["requests"][0]["firstAvailable"]:
        yield [cel.compile(selector["cel"]["expression"]) for selector in alternative["selectors"]]


def met(constraints: dict[str, Any], device: cel.Device) -> bool:
    return any(all(program.evaluate(device) for program in programs) for programs in selectors_with(constraints))


@pytest.mark.parametrize("row", table("B38")["rows"], ids=str)
def test_driver_floor_as_nvidia_prints_it(row: dict[str, Any]) -> None:
    floor = harness.case("B38").fragments[0]["hard"]["driverMin"]
    attributes = {"productName": {"string": "NVIDIA H100 80GB HBM3"}, "driverVersion": row["driverVersion"]}
    device = cel.device_of(DOMAIN, {"name": "gpu-0", "attributes": attributes})
    assert met({"driverVersion": {"min": floor}}, device) is row["meets"]


@pytest.mark.parametrize("row", table("B41")["rows"], ids=str)
def test_memory_floor_is_exact(row: dict[str, Any]) -> None:
    meeting = set()
    for name, memory in table("B41")["devices"].items():
        raw = {"name": "gpu-0", "attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}}}
        device = cel.device_of(DOMAIN, raw | {"capacity": {"memory": {"value": memory}}})
        if met({"memory": {"min": row["floor"]}}, device):
            meeting.add(name)
    assert meeting == set(row["meets"])


def test_missing_attributes_are_no_match_and_no_error() -> None:
    """B40: a VFIO device without memory and a GPU without a product name make no selector fail."""
    case = harness.case("B40")
    (slice_,) = case.objects
    classes = {obj["metadata"]["name"]: obj for obj in harness.environment() if obj["kind"] == "DeviceClass"}
    class_programs = [cel.compile(selector["cel"]["expression"]) for selector in classes[DOMAIN]["spec"]["selectors"]]
    template = harness.index().for_count(harness.TENANT, PolicyRef(harness.POLICY, 7), 1)
    eligible = set()
    for raw in slice_["spec"]["devices"]:
        device = cel.device_of(DOMAIN, raw)
        for alternative in template.spec["spec"]["devices"]["requests"][0]["firstAvailable"]:
            programs = [cel.compile(selector["cel"]["expression"]) for selector in alternative["selectors"]]
            verdicts = [
                program.evaluate(device) for program in programs
            ]  # every one, so that every one is seen to work
            if all(program.evaluate(device) for program in class_programs) and all(verdicts):
                eligible.add(raw["name"])
    assert eligible == set(case.expected[0]["eligible"])


def pod_of(row: dict[str, Any]) -> dict[str, Any]:
    """A Pod of the usage table as the API server would hold it."""
    spec: dict[str, Any] = {
        "schedulingGates": [{"name": gate} for gate in row.get("schedulingGates", [])],
        "containers": [{"name": "c", "resources": {"limits": row.get("limits", {})}}],
        "resourceClaims": [
            {"name": f"g{number}", "resourceClaimTemplateName": claim["template"]}
            for number, claim in enumerate(row.get("claims", []))
        ],
    }
    metadata = {"namespace": "lilac-canary", "name": row["name"], "uid": f"uid-{row['name']}"}
    if "deletionTimestamp" in row:
        metadata["deletionTimestamp"] = row["deletionTimestamp"]
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": row["phase"]}}


def test_usage_is_counted_from_pods() -> None:
    """B44: finished Pods hold nothing, terminating and gated ones do, raw requests count, one Pod at a time or all."""
    usage = table("B44")
    for row in usage["pods"]:
        world = World(harness.policy_set())
        for obj in [*harness.environment(), pod_of(row)]:
            world.apply(obj)
        assert world.facts().used.get("lilac", Charge()).devices == row["counts"], row["name"]
    world = World(harness.policy_set())
    for obj in [*map(pod_of, usage["pods"]), *harness.environment()]:  # Pods before what they name
        world.apply(obj)
    assert world.facts().used["lilac"].devices == usage["used"]
    for request in usage["requests"]:
        if request["op"] == "CREATE":  # UPDATE is not judged for quota: what a Pod holds cannot change
            problem = over_quota(Quota(usage["limit"]), world.facts().used["lilac"], Charge(request["devices"]))
            assert bool(problem) == (request["verdict"] == "deny")
    finished = pod_of(usage["pods"][0]) | {"status": {"phase": "Succeeded"}}
    world.apply(finished)
    assert world.facts().used["lilac"].devices == usage["used"] - usage["pods"][0]["counts"]
