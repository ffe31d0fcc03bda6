"""`dra-gate policy`: what it prints, what it writes, its exit codes; the reference page and the schemas."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from dra_gate.cli.main import root
from dra_gate.cli.policy import command
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import RELEASED, load
from dra_gate.policy.model import PolicyRef
from dra_gate.policy.reference import page
from dra_gate.policy.schemas import ALL_KINDS, schema
from policy.floors import policy_files

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLUSTER = str(HERE / "lint-cluster.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example policies."""
    for file in (ROOT / "policies").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)
    return tmp_path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_help_cuts_no_sentence_and_a_wrong_verb_gets_a_hint() -> None:
    for group in (["policy"], ["canary"]):
        said = CliRunner().invoke(root, [*group, "--help"]).output
        assert "Commands:" in said
        assert "..." not in said.partition("Commands:")[2]
    assert "Did you mean 'policy'?" in CliRunner().invoke(root, ["polcy", "lint"]).output
    assert CliRunner().invoke(root, ["polcy"]).exit_code == 2


# -- lint -------------------------------------------------------------------------------------------------------------


def test_lint_of_the_example() -> None:
    result = run("lint", ROOT / "policies")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no errors, no warnings\n"


def test_lint_names_file_line_and_column(folder: Path) -> None:
    edit(folder, "training.yaml", "memory: {min: 50Gi}", "memroy: {min: 50Gi}")
    result = run("lint", folder)
    assert result.exit_code == 2
    assert f"{folder}/training.yaml:9:5 error: unknown field memroy; write memory\n" in result.stdout
    assert result.stderr.endswith("errors\n")


def test_lint_against_a_cluster(folder: Path) -> None:
    result = run("lint", folder, "--cluster", CLUSTER)
    assert result.exit_code == 0
    assert "model l40s matches none of the 3 devices" in result.stdout
    assert "catalog.yaml:6:3 warning: model h200 matches none" in result.stdout
    assert run("lint", folder, "--cluster", CLUSTER, "--strict").exit_code == 1
    edit(folder, "training.yaml", "{min: 50Gi}", "{min: 1Ti}")
    (folder / RELEASED).unlink()
    result = run("lint", folder, "--cluster", CLUSTER)
    assert result.exit_code == 1
    assert "error: no published device meets training@7" in result.stdout


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_lint_for_machines(folder: Path, output: str, read: Callable[[str], Any]) -> None:
    entries = read(run("lint", folder, "--cluster", CLUSTER, "-o", output).stdout)
    assert {"MODEL_MATCHES_NOTHING"} <= {entry["code"] for entry in entries}
    assert all(set(entry) == {"severity", "code", "file", "line", "column", "message", "remedy"} for entry in entries)
    (folder / "catalog.yaml").unlink()
    result = run("lint", folder, "-o", output)
    assert result.exit_code == 2
    assert [entry["message"] for entry in read(result.stdout)] == ["no DeviceCatalog"]


def test_lint_with_a_cluster_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    assert run("lint", folder, "--cluster", tmp_path / "nowhere.yaml").exit_code == 2
    assert run("lint", folder, "--cluster", CLUSTER, "--kubeconfig", "x").exit_code == 2
    empty = run("lint", folder, "--kubeconfig", "")
    assert (empty.exit_code, "is $KUBECONFIG set?" in empty.output) == (2, True)
    assert run("lint", tmp_path / "nowhere").exit_code == 2


@pytest.mark.controlplane
def test_lint_against_a_live_cluster(
    control_plane: ControlPlane, install_fleet: Callable[[str], Fleet], folder: Path
) -> None:
    install_fleet("four-and-four")
    result = run("lint", folder, "--kubeconfig", control_plane.kubeconfig_for())
    assert result.exit_code == 0, result.output
    assert "model h100" not in result.stdout
    assert "model h200 matches none of the 8 devices that gpu.nvidia.com publishes" in result.stdout


# -- render -----------------------------------------------------------------------------------------------------------


def test_render_prints_the_templates_themselves() -> None:
    result = run("render", ROOT / "policies", "--tenant", "research", "--count", 2)
    index = templates_of(load(ROOT / "policies"))
    canary = [PolicyRef("training", 8), PolicyRef("training", 7)]
    assert list(yaml.safe_load_all(result.stdout)) == [
        index.for_count("research", PolicyRef("training", 7), 2).manifest("research-train"),
        *(index.for_count("research", ref, 2).manifest("research-canary") for ref in canary),
    ]
    assert "*id" not in result.stdout


def test_render_as_a_list() -> None:
    listed = json.loads(run("render", ROOT / "policies", "-n", "serving-prod", "-o", "json").stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert [item["spec"]["metadata"]["annotations"]["dra-gate.io/devices"] for item in listed["items"]] == list(
        "12345678"
    )


def test_render_of_counts_that_companions_leave_no_room_for(tmp_path: Path) -> None:
    companions = [{"name": "nic", "deviceClassName": "nic.example", "driver": "nic.example", "count": 29}]
    (tmp_path / "p.yaml").write_bytes(policy_files(["A"], {}, companions=companions)["floors.yaml"])
    assert len(list(yaml.safe_load_all(run("render", tmp_path).stdout))) == 3
    result = run("render", tmp_path, "--count", 4)
    assert (result.exit_code, "a claim of floors@1 holds 1 to 3 devices, not 4" in result.stderr) == (2, True)


def test_render_of_resource_quotas(folder: Path) -> None:
    edit(folder, "tenants.yaml", "quota: {devices: 16}", "quota: {devices: 16, models: {h100: 4}}")
    result = run("render", folder, "--resourcequota")
    assert [
        (one["kind"], one["metadata"]["namespace"], one["spec"]["hard"]) for one in yaml.safe_load_all(result.stdout)
    ] == [
        ("ResourceQuota", namespace, {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "32"})
        for namespace in ("research-train", "research-canary")
    ]
    notes = [line for line in result.stdout.splitlines() if line.startswith("#")]
    assert [note.partition(": under")[0] for note in notes] == [
        "# serving, serving-prod: not fenced",
        "# vision, vision-train: not fenced",
    ]
    as_json = run("render", folder, "--resourcequota", "-o", "json")
    assert len(json.loads(as_json.stdout)["items"]) == 2
    assert as_json.stderr.splitlines() == notes
    one = run("render", folder, "--resourcequota", "-n", "research-train")
    assert (one.stdout.count("kind: ResourceQuota"), "#" in one.stdout) == (1, False)


def test_render_of_resource_quotas_that_cannot_be() -> None:
    result = run("render", ROOT / "policies", "--resourcequota", "--tenant", "vision")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "vision, vision-train: not fenced: under training@7 claims come from templates" in result.stderr
    assert "no tenant can be fenced" in result.stderr
    assert "--count is about templates" in run("render", ROOT / "policies", "--resourcequota", "--count", 2).stderr


def test_render_of_nothing() -> None:
    assert (
        "no tenant nobody: there is research, serving, vision"
        in run("render", ROOT / "policies", "--tenant", "nobody").stderr
    )
    result = run("render", ROOT / "policies", "--tenant", "vision", "-n", "serving-prod")
    assert (result.exit_code, result.stdout) == (2, "")
    assert run("render", ROOT / "policies", "--count", 33).exit_code == 2


# -- release ----------------------------------------------------------------------------------------------------------


def test_release_adds_new_versions_and_refuses_changed_ones(folder: Path) -> None:
    before = (folder / RELEASED).read_text()
    assert run("release", folder).stdout == "nothing new to release\n"
    new = yaml.safe_load((folder / "inference.yaml").read_text())
    new["metadata"]["version"] = 3
    (folder / "inference-3.yaml").write_text(yaml.safe_dump(new))
    result = run("release", folder)
    assert result.exit_code == 0
    assert (folder / RELEASED).read_text() == before + result.stdout
    assert result.stdout.startswith("inference@3 sha256:")
    assert load(folder)
    edit(folder, "inference.yaml", "[l40s, a100]", "[a100, l40s]")
    result = run("release", folder)
    assert result.exit_code == 2
    assert (
        "inference@2 was released and has changed since; undo the change and write it as inference@4" in result.stderr
    )
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_first_release(folder: Path) -> None:
    (folder / RELEASED).unlink()
    assert run("release", folder).exit_code == 0
    lines = (folder / RELEASED).read_text().splitlines()
    assert lines[0].startswith("#")
    assert [line.split(" ")[0] for line in lines[1:]] == ["inference@2", "training@7", "training@8"]
    (folder / RELEASED).write_text("\n".join(lines[:-1]))  # an editor left out the last line break
    assert run("release", folder).exit_code == 0
    assert (folder / RELEASED).read_text().splitlines() == lines


def test_example_policies_are_released() -> None:
    assert run("release", ROOT / "policies").stdout == "nothing new to release\n"


# -- schemas and the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_schema_is_valid_and_explains_every_field(kind: str) -> None:
    printed = json.loads(run("schema", kind).stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == schema(kind)
    for spec in _objects(printed):
        assert spec.get("additionalProperties") is not True
        assert "additionalProperties" in spec
    assert all("description" in spec for spec in _properties(printed))


def test_example_policies_fit_the_published_schemas() -> None:
    for file in (ROOT / "policies").glob("*.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            jsonschema.validate(document, schema(document["kind"]), jsonschema.Draft202012Validator)


def test_reference_page_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "reference" / "policy.md").read_text()
    assert committed == page(), "run: python -m dra_gate.policy.reference > docs/reference/policy.md"


def _objects(spec: Any) -> list[dict[str, Any]]:
    found = [spec] if isinstance(spec, dict) and spec.get("type") == "object" else []
    children = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return found + [one for child in children for one in _objects(child)]


def _properties(spec: Any) -> list[dict[str, Any]]:
    return [one for found in _objects(spec) for one in found.get("properties", {}).values()]
