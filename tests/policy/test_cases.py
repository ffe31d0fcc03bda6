"""`dra-gate policy test`: the example's cases hold, what fails is shown, and coverage says what nobody looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from dra_gate.admission.rules import ALL
from dra_gate.cli.policy import command
from dra_gate.cluster.facts import PATHS
from dra_gate.policy.schemas import schema
from policy.floors import policy_files

ROOT = Path(__file__).parents[2]
HEAD = "apiVersion: policy.dra-gate.io/v1alpha1\nkind: PolicyTest\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example policies without their cases."""
    for file in (ROOT / "policies").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)
    (tmp_path / "tests").mkdir()
    return tmp_path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(command, ["test", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_the_examples_promises_hold() -> None:
    result = run(ROOT / "policies", "-o", "json")
    assert result.exit_code == 0, run(ROOT / "policies").stdout
    (told,) = json.loads(result.stdout)
    assert all(case["passed"] and not case["mismatches"] for case in told["cases"])
    assert told["untouched"] == {
        "tenants": [],
        "candidates": [],
        "constraints": [],
        # mutate has put right what these are about before anything is judged; pools the example has none.
        "rules": ["late-claim", "visible-devices-void", "node-pool", "model-affinity", "stamp", "held"],
    }
    assert told["total"]["rules"] == len(list(ALL))


def test_what_fails_is_shown_with_expected_and_found(folder: Path) -> None:
    (folder / "tests" / "a.yaml").write_text(
        HEAD
        + """cases:
- name: wrong in every word
  namespace: research-train
  asks: {nvidia.com/gpu: 2}
  expect: {verdict: deny, reasons: [QUOTA], claims: [training@7 x1], candidates: [h100], fits: [p/d]}
- {name: right, namespace: serving-prod, asks: {nvidia.com/gpu: 9}, expect: {verdict: deny}}
- {name: refused, namespace: serving-prod, asks: {nvidia.com/gpu: 9}, expect: {verdict: mutate, reasons: []}}
"""
    )
    result = run(folder)
    assert result.exit_code == 1
    assert f"FAIL {folder}/tests/a.yaml:4:3  wrong in every word\n" in result.stdout
    for line in (
        "verdict: expected deny\n                found    mutate\n",
        "reasons: expected QUOTA\n                found    none\n",
        "claims: expected training@7 x1\n               found    training@7 x2\n",
        "candidates: expected h100\n                   found    h100, a100, h200\n",
        "fits: expected p/d\n             found    none\n",
        "verdict: expected mutate\n                found    deny (QUOTA)\n",
        "reasons: expected none\n                found    QUOTA\n",
        "3 cases, 2 failed\n",
    ):
        assert line in result.stdout
    assert "  2 of 3 tenants" not in result.stdout
    assert "  1 of 3 tenants: vision\n" in result.stdout
    assert "  12 of 12 constraints: training@7 memory, " in result.stdout  # no device was there to be turned away

    failed = ET.fromstring(run(folder, "-o", "junit").stdout)
    suite = failed.find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    messages = [element.get("message") for element in failed.iter("failure")]
    assert messages[1] == "verdict: expected mutate, found deny (QUOTA); reasons: expected none, found QUOTA"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("cases: []", "a.yaml:3:8 empty; write something, or leave the field out"),
        (
            "cases:\n- {name: x, asks: {nvidia.com/gpu: 1}, expcet: {verdict: deny}}",
            "a.yaml:4:40 unknown field expcet; write expect",
        ),
        (
            "cases:\n- {name: x, asks: {nvidia.com/gpu: 1}, expect: {verdict: denied}}",
            "a.yaml:4:58 verdict is denied; write mutate, admit, deny or ignore",
        ),
        (
            "cases:\n- {name: x, expect: {verdict: deny}}",
            "a.yaml:4:3 neither asks nor pod nor review; give one of asks, pod and review",
        ),
        (
            "cases:\n- {name: x, pod: {}, asks: {a/b: 1}, expect: {verdict: deny}}",
            "a.yaml:4:3 asks and pod together; give one of asks, pod and review",
        ),
        (
            "cases:\n- {name: x, pod: {}, expect: {verdict: deny, candidates: [h100, h1000]}}",
            "a.yaml:4:65 no model is called h1000; the catalogue has h200, h100, a100, l40s",
        ),
        (
            "used: {nobody: 1}\ncases:\n- {name: x, pod: {}, expect: {verdict: deny}}",
            "a.yaml:3:8 no tenant nobody; there is research, serving, vision",
        ),
        (
            "cases:\n- {name: x, pod: {}, expect: {verdict: deny, claims: [training@7]}}",
            "a.yaml:4:55 training@7 cannot stand here; write policy@version xDEVICES, such as training@7 x2",
        ),
        ("cases:\n- {name: on, pod: {}, expect: {verdict: deny}}", "a.yaml:4:10 on is a yes-or-no word"),
    ],
)
def test_errors_name_file_line_and_column(folder: Path, body: str, error: str) -> None:
    (folder / "tests" / "a.yaml").write_text(f"{HEAD}{body}\n")
    result = run(folder)
    assert result.exit_code == 2
    assert f"{folder}/tests/{error}" in result.stderr


def test_names_that_are_nobodys_are_told_where_a_case_fails(folder: Path) -> None:
    (folder / "tests" / "a.yaml").write_text(
        f"""{HEAD}cases:
- {{name: first, namespace: serving-prd, asks: {{nvidia.com/gpu: 1}}, expect: {{verdict: mutate}}}}
- {{name: second, namespace: serving-prod, asks: {{nvidia.com/gpu: 9}}, expect: {{verdict: deny, reasons: [QUOTAS]}}}}
"""
    )
    result = run(folder)
    assert "found    ignore (no tenant has namespace serving-prd)" in result.stdout
    assert "expected QUOTAS (there is no such code)" in result.stdout


def test_a_policy_is_no_case_and_a_case_no_policy(folder: Path) -> None:
    shutil.copy(folder / "tenants.yaml", folder / "tests" / "tenants.yaml")
    assert "kind Tenant; write kind: PolicyTest" in run(folder).stderr
    (folder / "case.yaml").write_text(f"{HEAD}cases: []\n")
    assert "case.yaml:2:7 kind PolicyTest is no policy; put it into a folder tests/" in run(folder).stderr


def test_review_and_workload_and_warn(folder: Path) -> None:
    (folder / "tests" / "a.yaml").write_text(
        HEAD
        + """facts:
- apiVersion: v1
  kind: Namespace
  metadata: {name: vision-train, labels: {dra-gate.io/lane: dra, dra-gate.io/mode: warn}}
cases:
- name: in mode warn the reasons are told and nothing is refused
  namespace: vision-train
  asks: {nvidia.com/mig-1g.10gb: 1}
  expect: {verdict: admit, reasons: [UNSUPPORTED_RESOURCE]}
- name: a job
  pod:
    apiVersion: batch/v1
    kind: Job
    metadata: {namespace: research-train, name: j}
    spec: {template: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 3}}}]}}}
  expect: {verdict: mutate, claims: [training@7 x3]}
- name: a recorded review
  review:
    apiVersion: admission.k8s.io/v1
    request:
      uid: u
      operation: CREATE
      resource: {group: "", version: v1, resource: pods}
      namespace: serving-prod
      object: {metadata: {name: p}, spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}
  expect: {verdict: mutate, claims: [inference@2 x1]}
"""
    )
    result = run(folder, "-o", "json")
    (told,) = json.loads(result.stdout)
    assert [case["mismatches"] for case in told["cases"]] == [[], [], []]
    assert told["untouched"]["tenants"] == []


FABRIC = """facts:
- {apiVersion: v1, kind: Node, metadata: {name: n1}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: gpus}
  spec:
    driver: gpu.nvidia.com
    nodeName: n1
    pool: {name: n1, generation: 1, resourceSliceCount: 1}
    devices:
    - {name: gpu-0, attributes: {productName: {string: NVIDIA A}, resource.kubernetes.io/pcieRoot: {string: a}}}
    - {name: gpu-1, attributes: {productName: {string: NVIDIA A}, resource.kubernetes.io/pcieRoot: {string: b}}}
    - {name: gpu-2, attributes: {productName: {string: NVIDIA A}}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: nics}
  spec:
    driver: nic.example
    nodeName: n1
    pool: {name: nics, generation: 1, resourceSliceCount: 1}
    devices:
    - {name: a, attributes: {resource.kubernetes.io/pcieRoot: {string: a}}, capacity: {bandwidth: {value: SLOW}}}
    - {name: b, attributes: {resource.kubernetes.io/pcieRoot: {string: b}}, capacity: {bandwidth: {value: 100G}}TAINT}
cases:
- name: aligned
  namespace: fern
  asks: {example.com/gpu: 1}
  expect: {verdict: mutate, claims: [floors@1 x1], fits: FITS}
- name: no room for more beside the NIC
  namespace: fern
  asks: {example.com/gpu: 32}
  expect: {verdict: deny, reasons: [QUOTA]}
"""


@pytest.mark.parametrize(
    ("slow", "taint", "fits"),
    [
        ("100G", "", "[n1/gpu-0, n1/gpu-1]"),
        ("99G", "", "[n1/gpu-1]"),
        ("100G", ", taints: [{key: k, effect: NoSchedule}]", "[n1/gpu-0]"),
    ],
    ids=["both", "too slow", "unhealthy"],
)
def test_a_device_fits_only_beside_its_companion(tmp_path: Path, slow: str, taint: str, fits: str) -> None:
    companions = [
        {
            "name": "nic",
            "deviceClassName": "nic.example",
            "driver": "nic.example",
            "minimum": {"bandwidth": "100G"},
            "sameAttribute": ["resource.kubernetes.io/pcieRoot"],
        }
    ]
    files = policy_files(["NVIDIA A"], {}, namespace="fern", companions=companions)
    (tmp_path / "p.yaml").write_bytes(files["floors.yaml"])
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.yaml").write_text(
        HEAD + FABRIC.replace("SLOW", slow).replace("TAINT", taint).replace("FITS", fits)
    )
    result = run(tmp_path, "-o", "json")
    (told,) = json.loads(result.stdout)
    assert [case["mismatches"] for case in told["cases"]] == [[], []]
    assert told["total"]["constraints"] == 1
    assert told["untouched"]["constraints"] == [], "a device without the NIC beside it was turned away"


def test_nested_folders_are_judged_by_the_nearest_policies(folder: Path, tmp_path: Path) -> None:
    case = "cases:\n- {name: x, namespace: research-train, asks: {nvidia.com/gpu: 1}, expect: {verdict: VERDICT}}\n"
    inner = folder / "team" / "policies"
    inner.mkdir(parents=True)
    for file in folder.glob("*.yaml"):
        text = file.read_text().replace("research-train", "elsewhere")
        (inner / file.name).write_text(text)
    for place, verdict in ((folder, "mutate"), (folder / "team", "mutate"), (inner, "ignore")):
        (place / "tests").mkdir(exist_ok=True)
        (place / "tests" / "a.yaml").write_text(HEAD + case.replace("VERDICT", verdict))
    told = json.loads(run(folder, "-o", "json").stdout)
    assert {one["folder"]: len(one["cases"]) for one in told} == {str(folder): 2, str(inner): 1}
    assert all(case["passed"] for one in told for case in one["cases"])


def test_facts_are_what_the_gate_reads() -> None:
    """A manifest whose kind is misspelt must not go unseen: the schema has every kind that facts are made of."""
    kinds = schema("PolicyTest")["$defs"]["facts"]["items"]["properties"]["kind"]["enum"]
    assert set(kinds) == {*PATHS, "DeviceTaintRule"}


def test_no_cases_is_an_error(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 2
    assert "no cases" in result.stderr
