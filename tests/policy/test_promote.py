"""Promotion of a canary: a small change of the file, or none."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gate.cli.policy import command
from dra_gate.cli.policy import promote as verb
from dra_gate.policy.load import load, load_documents
from dra_gate.policy.model import PolicyRef
from dra_gate.policy.promote import MOST_KEPT, PromotionError, drop, promote
from dra_gate.policy.schemas import schema
from policy_publish.sets import CATALOGUE

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "promote.yaml").read_text())
VERSIONS = [("training", version) for version in range(1, 20)] + [("other", 1)]
POLICIES = "\n---\n".join(
    f"apiVersion: policy.dra-gate.io/v1alpha1\nkind: DevicePolicy\nmetadata: {{name: {name}, version: {version}}}\n"
    "spec: {serves: [nvidia.com/gpu], candidates: [h100, a100]}"
    for name, version in VERSIONS
)
HEAD = (
    "# tenants\n---\n\n# maple pays\napiVersion: policy.dra-gate.io/v1alpha1\nkind: Tenant\nmetadata: {name: maple}\n"
)
TAIL = """\
---
# ümläut 🌱
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: fern}
spec: {namespaces: [c], policy: training@7}
"""


def folder(spec: str, end: str = "\n", mark: bytes = b"") -> dict[str, bytes]:
    tenants = mark + (HEAD + spec + TAIL).replace("\n", end).encode()
    return {"c.yaml": CATALOGUE.encode(), "p.yaml": POLICIES.encode(), "t.yaml": tenants}


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "bom"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_only_what_has_to_change_does(case: dict[str, Any], end: str, mark: bytes) -> None:
    files = folder(case["before"], end, mark)
    policy_set = load_documents(files)
    if "promoted" in case:
        assert promote(files, policy_set, ["maple"]) == {"t.yaml": folder(case["promoted"], end, mark)["t.yaml"]}
    else:
        with pytest.raises(PromotionError) as refused:
            promote(files, policy_set, ["maple"])
        assert case["refused"] in str(refused.value)
    if case["dropped"] == "same":
        with pytest.raises(PromotionError, match="no canary that could end"):
            drop(files, policy_set, ["maple"])
    else:
        assert drop(files, policy_set, ["maple"]) == {"t.yaml": folder(case["dropped"], end, mark)["t.yaml"]}


def test_the_last_line_needs_no_end() -> None:
    spec = "spec:\n  namespaces: [a, b]\n  canary: {policy: training@8, namespaces: [b]}\n  policy: training@7"
    files = folder("") | {"t.yaml": (HEAD + spec).encode()}
    (changed,) = promote(files, load_documents(files), ["maple"]).values()
    assert changed.decode().endswith("  namespaces: [a, b]\n  policy: training@8\n  keepVersions: [7]")


def test_several_tenants_of_several_files_at_once() -> None:
    files = folder(CASES[0]["before"])
    other = HEAD.replace("maple", "oak") + CASES[1]["before"].replace("[a, b]", "[d, e]").replace("- b", "- e")
    files["u.yaml"] = other.encode()
    changed = promote(files, load_documents(files), ["oak", "maple", "fern"], PolicyRef("training", 8))
    after = load_documents({**files, **changed})
    assert set(changed) == {"t.yaml", "u.yaml"}
    assert {(one.policy.version, one.canary) for one in after.tenants.values()} == {(8, None)}
    assert [after.tenants[name].keep_versions for name in ("maple", "fern", "oak")] == [(7,), (7,), (5, 6, 7)]


@pytest.mark.parametrize(
    ("tenants", "to", "says"),
    [
        (["maple"], "training@9", "its canary is training@8, not training@9"),
        (["fern"], "training@30", "no policy training@30: there is training@1,"),
        (["fern"], "nothing@1", "no policy nothing@1"),
        (["fern"], "training@7", "has training@7 already"),
        (["maple", "oak"], None, "no tenant oak: there is maple or fern"),
        (["maple", "fern"], None, "tenant fern has no canary"),
    ],
)
def test_one_that_is_refused_changes_nobody(tenants: list[str], to: str | None, says: str) -> None:
    files = folder(CASES[0]["before"])
    name, _, version = (to or "@").partition("@")
    with pytest.raises(PromotionError) as refused:
        promote(files, load_documents(files), tenants, PolicyRef(name, int(version)) if to else None)
    assert says in str(refused.value)


def test_as_many_are_kept_as_the_schema_lets() -> None:
    assert schema("Tenant")["properties"]["spec"]["properties"]["keepVersions"]["maxItems"] == MOST_KEPT


BLOCK = st.sampled_from(["block", "flow"])


@settings(deadline=None)
@given(
    order=st.permutations(["namespaces", "policy", "keepVersions", "canary", "quota"]),
    kept=st.lists(st.sampled_from([4, 5, 6, 7, 8]), max_size=4, unique=True),
    layouts=st.tuples(BLOCK, BLOCK, BLOCK, BLOCK),
    quote=st.sampled_from(["", "'", '"']),
    comments=st.lists(st.sampled_from(["", " # a: {b}", " # canary: x"]), min_size=5, max_size=5),
    gaps=st.lists(st.sampled_from(["", "\n", "  # alone\n"]), min_size=5, max_size=5),
)
def test_any_usual_layout_comes_out_right(
    order: list[str],
    kept: list[int],
    layouts: tuple[str, str, str, str],
    quote: str,
    comments: list[str],
    gaps: list[str],
) -> None:
    whole, spaces, keeps, canary = layouts
    flow = whole == "flow"

    def items(name: str, values: list[Any], layout: str, indent: str) -> str:
        if flow or layout == "flow":
            return f"{name}: [{', '.join(map(str, values))}]"
        return f"{name}:" + "".join(f"\n{indent}- {value}" for value in values)

    said = {
        "namespaces": items("namespaces", ["a", "b"], spaces, "  "),
        "policy": f"policy: {quote}training@7{quote}",
        "keepVersions": items("keepVersions", kept, keeps, "    ") if kept else "",
        "canary": "canary: {policy: training@8, namespaces: [b]}"
        if flow or canary == "flow"
        else "canary:\n    policy: training@8\n    namespaces: [b]",
        "quota": "quota: {devices: 4}",
    }
    parts = [said[name] for name in order if said[name]]
    if flow:
        spec = "spec: {" + ", ".join(parts) + "}\n"
    else:
        lines = (f"{gap}  {part}{comment}\n" for part, comment, gap in zip(parts, comments, gaps, strict=False))
        spec = "spec:\n" + "".join(lines)
    files = folder(spec)
    before = load_documents(files)
    (changed,) = promote(files, before, ["maple"]).values()
    after = load_documents({**files, "t.yaml": changed}).tenants["maple"]
    assert (after.policy, after.canary, after.namespaces) == (PolicyRef("training", 8), None, ("a", "b"))
    assert set(kept) - {8} | {7} <= set(after.keep_versions) <= set(kept) | {7}
    (dropped,) = drop(files, before, ["maple"]).values()
    assert load_documents({**files, "t.yaml": dropped}).tenants["maple"].keep_versions == tuple(kept)
    for text in (changed.decode(), dropped.decode()):
        assert [line for line in text.splitlines() if line == "  # alone"] == ["  # alone"] * spec.count("# alone")


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    for name, content in folder(CASES[1]["before"]).items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def run(policies: Path, *words: str) -> Result:
    return CliRunner().invoke(command, ["promote", *words, "--policies", str(policies)])


def test_the_command_writes_and_says_what_is_next(policies: Path) -> None:
    before = {path.name: path.read_bytes() for path in policies.iterdir()}
    (policies / "t.yaml").chmod(0o640)
    tried = run(policies, "maple", "--dry-run")
    assert (tried.exit_code, "-  policy: training@7 # SEC-1\n+  policy: training@8 # SEC-1" in tried.stdout) == (
        0,
        True,
    )
    assert {path.name: path.read_bytes() for path in policies.iterdir()} == before
    done = run(policies, "maple")
    assert done.exit_code == 0
    assert f"t.yaml written; once that is reviewed: dra-gate policy publish {policies} --activate" in done.stdout
    assert "Pods may go on naming it" in done.stdout
    assert (policies / "t.yaml").read_text() == HEAD + CASES[1]["promoted"] + TAIL
    assert stat.S_IMODE((policies / "t.yaml").stat().st_mode) == 0o640
    assert sorted(path.name for path in policies.iterdir()) == sorted(before)
    again = run(policies, "maple")
    assert (again.exit_code, "has no canary" in again.stderr) == (2, True)


def test_the_command_ends_a_canary_the_other_way(policies: Path) -> None:
    done = run(policies, "maple", "--drop")
    assert (done.exit_code, load(policies).tenants["maple"].policy) == (0, PolicyRef("training", 7))
    assert (policies / "t.yaml").read_text() == HEAD + CASES[1]["dropped"] + TAIL
    assert run(policies, "maple", "--drop", "--to", "training@8").exit_code == 2


def test_what_would_not_load_is_not_written(policies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"t.yaml": (policies / "t.yaml").read_bytes().replace(b"training@7", b"training@77")}
    monkeypatch.setattr(verb, "promote", lambda *_: broken)
    before = (policies / "t.yaml").read_bytes()
    done = run(policies, "maple")
    assert (done.exit_code, "nothing is changed" in done.stderr) == (2, True)
    assert "t.yaml:11:11 error: no policy training@77" in done.stdout
    assert (policies / "t.yaml").read_bytes() == before


def test_an_exception_that_has_ended_is_said(policies: Path) -> None:
    (policies / "e.yaml").write_text(
        "apiVersion: policy.dra-gate.io/v1alpha1\nkind: PolicyException\nmetadata: {name: old}\n"
        "spec: {rules: [privileged], namespaces: [a], reason: r, ticket: T-1, approver: a@b.example, "
        'expires: "2020-01-01"}\n'
    )
    done = run(policies, "maple")
    assert (done.exit_code, "exception old" in done.stdout) == (1, True)
    assert load(policies).tenants["maple"].policy == PolicyRef("training", 8)


@pytest.mark.parametrize("word", ["training", "training@", "@8", "training@x", "training@-1"])
def test_a_version_is_written_in_full(policies: Path, word: str) -> None:
    done = run(policies, "maple", "--to", word)
    assert (done.exit_code, "such as training@8" in done.stderr) == (2, True)
