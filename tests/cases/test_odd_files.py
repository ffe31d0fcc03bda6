"""`dra-gate review` on files that nobody would write: one line that says what is wrong, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cases import harness
from dra_gate.cli.demo import _asks
from dra_gate.cli.review import command

POD = "{kind: Pod, apiVersion: v1, metadata: {name: p, namespace: lilac-train%s}, spec: {containers: [{name: c%s}]}}"


def review(tmp_path: Path, document: str, cluster: str = "{}", *options: str) -> Result:
    (tmp_path / "cluster.yaml").write_text(cluster)
    (tmp_path / "input.yaml").write_text(document)
    paths = ["--policies", str(harness.POLICIES), "--cluster", str(tmp_path / "cluster.yaml")]
    return CliRunner().invoke(command, [*paths, *options, str(tmp_path / "input.yaml")])


@pytest.mark.parametrize("output", ["text", "json", "yaml"])
@pytest.mark.parametrize(
    "document",
    [
        POD % (", annotations: {on: 1, 2: b, when: 2024-01-01}", ""),
        POD % ("", ", resources: {limits: {nvidia.com/gpu: 0x" + "f" * 900 + "}}"),
        POD % ("", ", resources: {limits: {5: 1, yes: 2, nvidia.com/gpu: 2024-01-01}}"),
        POD % ("", ", env: " + "[" * 150 + "]" * 150),
        "kind: [a]\n---\n[3]\n---\nkind: Pod\nmetadata: []\nspec: {containers: {a: b}, initContainers: [1, []]}\n",
    ],
    ids=["keys", "number", "resources", "nested", "kinds"],
)
def test_odd_objects(output: str, document: str, tmp_path: Path) -> None:
    result = review(tmp_path, document, "kind: Namespace\nmetadata: {name: lilac-train}\n", "-o", output)
    assert isinstance(result.exception, SystemExit | None), result.exception
    if output == "json" and result.stdout:
        assert json.loads(result.stdout)


@pytest.mark.parametrize("cluster", ["kind: [a]", "kind: {a: b}", "[1, 2]", "3"])
def test_odd_clusters_are_skipped_with_a_warning(cluster: str, tmp_path: Path) -> None:
    result = review(tmp_path, POD % ("", ""), cluster)
    assert (result.exit_code, "is skipped" in result.stderr) == (0, True)


def test_ignored_for_its_namespace_says_so(tmp_path: Path) -> None:
    asks = POD % ("", ", resources: {limits: {nvidia.com/gpu: 1}}")
    result = review(tmp_path, asks, "kind: Namespace\nmetadata: {name: other}\n")
    assert "namespace lilac-train is not gated here" in result.stdout
    gated = "kind: Namespace\nmetadata: {name: lilac-train, labels: {dra-gate.io/lane: dra}}\n"
    assert "is not gated" not in review(tmp_path, POD % ("", ""), gated).stdout


def test_without_a_cluster_tenants_are_gated(tmp_path: Path) -> None:
    asks = POD % ("", ", resources: {limits: {nvidia.com/gpu: 1}}")
    (tmp_path / "pod.yaml").write_text(asks.replace("lilac-train", "lilac-enforced"))
    result = CliRunner().invoke(command, ["--policies", str(harness.POLICIES), str(tmp_path / "pod.yaml")])
    assert result.stdout.startswith("mutate"), result.output


def test_a_charge_beyond_counting_is_a_usage_error(tmp_path: Path) -> None:
    assert "is not TENANT=DEVICES" in review(tmp_path, POD % ("", ""), "{}", "--used", "lilac=" + "9" * 5000).stderr


def test_the_demo_tells_requests_without_limits() -> None:
    assert _asks(
        {"spec": {"containers": [{"name": "c", "resources": {"requests": {"a/b": 2}}}], "resourceClaims": None}}
    ) == ("asks for c: 2 x a/b")
