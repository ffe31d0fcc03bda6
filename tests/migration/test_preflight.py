"""Every check against its faults: `<check>.yaml` beside its module, each a change to the clean cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cases import harness
from dra_gate.allocation.around import TOOL
from dra_gate.allocation.state import State, dumps, state_of
from dra_gate.migration.preflight import ALL, Check, Cluster, Registry, Result, verdict_of
from migration.clean import HERE, fault

ROWS = [
    pytest.param(check, row, id=f"{check.id}-{row['name']}")
    for check in ALL
    for row in yaml.safe_load((HERE / f"{check.id.replace('-', '_')}.yaml").read_text())
]


def results(state: State) -> dict[str, Result]:
    return {one.id: one for one in ALL.results(Cluster(state))}


def test_of_a_clean_cluster_nothing_is_said() -> None:
    found = results(fault())
    assert [one for one in found.values() if one.findings] == []
    assert verdict_of(found.values()) == "ready"


@pytest.mark.parametrize(("check", "row"), ROWS)
def test_fault(check: Check, row: dict[str, Any]) -> None:
    """Each is found, and no other check takes it for something else."""
    row = dict(row)
    wanted, also = row.pop("findings"), row.pop("also", [])
    del row["name"]
    found = results(fault(**row))
    own = found[check.id]
    assert [(one.verdict, list(one.subjects)) for one in own.findings] == [
        (one["verdict"], one["subjects"]) for one in wanted
    ]
    for one, finding in zip(wanted, own.findings, strict=True):
        assert one["says"] in finding.text
    assert {one.id for one in found.values() if one.findings} == {*also, *([check.id] if wanted else [])}


@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in ALL])
def test_every_check_has_a_fault_that_it_finds(check: Check) -> None:
    severities = {one["verdict"] for _, row in (p.values for p in ROWS) if _ is check for one in row["findings"]}  # type: ignore[attr-defined]
    assert check.severity in severities


def test_handed_case_of_both_allocators() -> None:
    """B46: the node that has both is named, the one whose device plugin reports none is not."""
    case = harness.case("B46")
    state = state_of(case.objects, version="v1.37.2", policies={}, active="")
    (wanted,) = case.expected
    found = results(state)["both-allocators"]
    assert found.verdict == "block"
    assert [node for one in found.findings for node in one.subjects] == wanted["preflight"]


def test_what_blocks_decides_then_what_could() -> None:
    kueue = yaml.safe_load((HERE / "kueue.yaml").read_text())[0]["change"]
    assert verdict_of(results(fault(change=kueue)).values()) == "ready"  # a warning
    assert verdict_of(results(fault(without=["Pod/gpu-operator/toolkit-a"])).values()) == "ready"  # could only warn
    assert verdict_of(results(fault(unread=["Role"])).values()) == "unknown"
    assert verdict_of(results(fault(unread=["Role"], without=["DeviceClass/gpu.nvidia.com"])).values()) == "blocked"


def test_a_file_from_before_says_what_it_does_not_know() -> None:
    old = fault(unread=["RuntimeClass", TOOL])
    assert b'"Tool"' not in dumps(old)
    unknown = {one.id for one in results(old).values() if one.verdict == "unknown"}
    assert unknown == {"raw-resource", "default-runtime", "exporters", "autoscaler"}


def test_nothing_of_tools_and_roles_is_kept_but_what_is_asked() -> None:
    secret = {"name": "TOKEN", "value": "hunter2"}
    tool = {"image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.1", "env": [secret], "args": ["--cloud=x"]}
    state = fault(
        change=[
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "ca", "namespace": "kube-system"},
                "spec": {"containers": [tool]},
            },
            {"apiVersion": "v1", "kind": "ClusterRole", "metadata": {"name": "person@example.com"}, "rules": []},
            {
                "apiVersion": "v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "theirs"},
                "roleRef": {"kind": "ClusterRole", "name": "person@example.com"},
                "subjects": [{"kind": "User", "name": "person@example.com"}],
            },
        ]
    )
    assert any(one["tool"] == "cluster-autoscaler" for one in state.around[TOOL])
    for word in (b"hunter2", b"--cloud", b"person@example.com", b"caBundle"):
        assert word not in dumps(state)


def test_the_page_has_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    page = page.partition("## Before: preflight")[2].partition("\n## ")[0]
    rows = [(line.split("`")[1], line.split("|")[2].strip()) for line in page.splitlines() if line.startswith("| `")]
    assert rows == [(check.id, check.severity) for check in ALL]


def test_two_checks_of_one_id_are_refused() -> None:
    (first, *_) = ALL
    with pytest.raises(ValueError, match="two checks of one id"):
        Registry((first, first))
