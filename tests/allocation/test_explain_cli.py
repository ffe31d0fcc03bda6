"""`dra-gate explain`, `what-if` and `snapshot`: what they print, their exit codes, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from allocation import parts
from allocation.parts import gpu, node, resource_slice
from dra_gate.cli.main import root

STATE = str(Path(__file__).parent / "states" / "research.json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, list(arguments))


def test_a_waiting_pod_in_text() -> None:
    done = run("explain", "pod", "research/waits", "--snapshot", STATE)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2:6] == [
        "    1  h100    4 published   3 healthy   4 matching   1 free",
        "             2 in use by lilac/train",
        "             1 on n3: cpu: asks 8, 4 of 4 left",
        "             1 on n1: tainted example.com/unhealthy:NoSchedule",
    ]


def test_the_same_in_json_and_yaml() -> None:
    said = run("explain", "pod", "research/fell-back", "--snapshot", STATE, "-o", "json", "--devices")
    found = json.loads(said.stdout)
    request = found["claims"][0]["requests"][0]
    assert (found["kind"], found["state"], request["rank"], request["given"]) == ("Explanation", "bound", 2, ["n2/g0"])
    assert [line["code"] for line in request["candidates"][0]["devices"]] == [
        "in-use",
        "in-use",
        "taint",
        "node-resources",
    ]
    written = run("explain", "pod", "research/fell-back", "--snapshot", STATE, "-o", "yaml", "--devices").stdout
    assert yaml.safe_load(written) == found


def test_a_tenant_reads_counts_where_others_stand() -> None:
    said = run("explain", "pod", "research/waits", "--snapshot", STATE, "--as-tenant", "research").stdout
    assert "2 in use by others" in said
    assert "lilac" not in said
    assert run("explain", "pod", "lilac/train", "--snapshot", STATE, "--as-tenant", "research").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("explain", "pod", "research/nobody", "--snapshot", STATE), 1, "there is no Pod research/nobody"),
        (("explain", "pod", "waits", "--snapshot", STATE), 2, "write NAMESPACE/NAME"),
        (("explain", "pod", "a/b", "--snapshot", "/nowhere"), 2, "/nowhere: No such file"),
        (("explain", "pod", "a/b", "--snapshot", __file__), 2, "no JSON"),
        (("explain", "pod", "a/b", "--snapshot", STATE, "--kubeconfig", "x"), 2, "give one of the two"),
        (("what-if", "--snapshot", STATE), 2, "--all-waiting"),
        (("what-if", "--snapshot", STATE, "research/waits", "--like", "n9"), 2, "no node n9"),
        (("what-if", "--snapshot", STATE, "research/nobody"), 2, "research/nobody"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == code
    assert said in done.stderr


def test_a_state_that_was_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(Path(STATE).read_text().replace("20Gi", "80Gi"))
    assert "its digest does not fit" in run("explain", "pod", "research/waits", "--snapshot", str(file)).stderr


def test_what_if_says_now_and_then() -> None:
    done = run("what-if", "--snapshot", STATE, "--all-waiting", "--healthy", "n1/g2")
    assert done.exit_code == 0
    head, now, then = done.stdout.splitlines()
    assert head == "Pod research/waits"
    assert now.startswith("  now:  waits: h100: 2 in use by lilac/train, 1 on n3: cpu")
    assert then == "  then: on n1: gate-0 gpu/h100: n1/g2"
    assert "no difference" in run("what-if", "--snapshot", STATE, "--all-waiting", "--healthy", "n2/g0").stdout


def test_what_if_with_a_node_from_a_file_and_with_policies_of_a_folder(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(yaml.safe_dump_all([node("n4"), resource_slice("n4", gpu("g0", "l40s"))]))
    said = run("what-if", "--snapshot", STATE, "research/waits", "--add-node", str(more), "-o", "json")
    (entry,) = json.loads(said.stdout)
    assert (entry["now"]["node"], entry["then"]["got"]) == ("", ["gate-0 gpu/l40s: n4/g0"])

    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "policies.yaml").write_text(parts.POLICIES.replace("min: 40Gi", "min: 16Gi"))
    said = run("what-if", "--snapshot", STATE, "research/waits", "--policies", str(folder), "-o", "json")
    (entry,) = json.loads(said.stdout)
    assert (entry["now"]["node"], entry["then"]["got"]) == ("", ["gate-0 gpu/a100: n2/g1"])
