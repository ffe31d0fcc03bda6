"""The handed cases, offline: `dra-gate review` gives the expected verdicts, and every mutation keeps the invariants."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cases import harness, invariants
from dra_gate.admission.review import BadRequest, answer
from dra_gate.cli.review import command
from dra_gate.cluster.facts import World
from dra_gate.fairness.charge import Charge

# What the gate calls it where it is not the cases' word.
CODES = {"NODE_PINNING": {"NODE_PINNING"}, "FOREIGN_CLAIM": {"FOREIGN_CLAIM"}, "QUOTA": {"QUOTA"}}
LATER = yaml.safe_load((harness.HERE / "later.yaml").read_text())
INPUTS = [
    pytest.param(case_id, number, id=f"{case_id}-{expectation.get('pod') or expectation.get('review')}")
    for case_id, entry in harness.expectations().items()
    if case_id not in LATER
    for number, expectation in enumerate(entry["inputs"])
    if ("pod" in expectation or "review" in expectation)
    and f"{case_id}/{expectation.get('pod', expectation.get('review'))}" not in LATER
]
ACCEPTED = {
    "mutate": {"mutate"},
    "deny": {"deny"},
    "leave": {"admit", "ignore"},
    "leave_or_strip": {"admit", "ignore", "mutate"},
    "mutate_or_deny": {"mutate", "deny"},
    "deny_or_leave": {"deny", "admit", "ignore"},
    "leave_or_deny": {"deny", "admit", "ignore"},
    "http400_or_v1beta1_answer": {"invalid"},
    "http400": {"invalid"},
}


def review(
    tmp_path: Path, document: Any, objects: list[dict[str, Any]], user: str = "", groups: list[str] | None = None
) -> dict[str, Any]:
    """The entry that `dra-gate review -o json` gives for one document."""
    cluster, file = tmp_path / "cluster.json", tmp_path / "input.json"
    cluster.write_text(json.dumps({"kind": "List", "items": [*harness.environment(), *objects]}))
    file.write_text(json.dumps(document))
    arguments = ["--policies", str(harness.POLICIES), "--cluster", str(cluster), "--used", harness.USED, "-o", "json"]
    arguments += ["--user", user or harness.USER]
    for group in groups or harness.GROUPS:
        arguments += ["--group", group]
    result = CliRunner().invoke(command, [*arguments, str(file)], catch_exceptions=False)
    entries = json.loads(result.stdout)
    assert len(entries) == 1
    entry: dict[str, Any] = entries[0]
    assert result.exit_code == {"deny": 1, "invalid": 2}.get(entry["verdict"], 0)
    return entry


@pytest.mark.parametrize(("case_id", "number"), INPUTS)
def test_verdict(case_id: str, number: int, tmp_path: Path) -> None:
    case = harness.case(case_id)
    expectation = case.expected[number]
    document = case.document(expectation)
    entry = review(tmp_path, document, case.objects, expectation.get("user", ""), expectation.get("groups"))

    assert entry["verdict"] in ACCEPTED[expectation["verdict"]], entry
    if entry["verdict"] == "deny":
        check_reasons(entry, expectation)
    elif entry["verdict"] in ("mutate", "admit"):
        before = document["request"]["object"] if document["kind"] == "AdmissionReview" else document
        check_result(before, entry, expectation)
        again = copy.deepcopy(document)
        if document["kind"] == "AdmissionReview":
            again["request"]["object"] = entry["result"]
        else:
            again = entry["result"]
        assert review(tmp_path, again, case.objects)["patch"] == []


def check_reasons(entry: dict[str, Any], expectation: dict[str, Any]) -> None:
    codes = {reason["code"] for reason in entry["reasons"]}
    for reason in entry["reasons"]:
        assert reason["message"]
        assert reason["rule"]
        assert reason["policy"].startswith("lilac-gpu@")
    wanted = [CODES.get(code, {code}) for code in expectation.get("reasons", [])]
    matched = [bool(codes & codes_of) for codes_of in wanted]
    assert not wanted or (any(matched) if expectation.get("reasons_any") else all(matched)), codes


def check_result(before: dict[str, Any], entry: dict[str, Any], expectation: dict[str, Any]) -> None:
    after = invariants.applied(before, entry["patch"])
    assert after == entry["result"]
    invariants.check(before, after, only_annotations=entry["verdict"] == "admit")
    if "charge" in expectation:
        assert entry["charge"]["devices"] == expectation["charge"]
    for path in expectation.get("keep", []):
        kept, now = harness.at_path(before, path), harness.at_path(after, path)
        # Where the gate adds items of its own to a list, those that were there stay, in order.
        assert (now[: len(kept)] if isinstance(kept, list) and path == "spec.tolerations" else now) == kept, path
    seen = invariants.entries_seen(after)
    for container, devices in expectation.get("devices", {}).items():
        assert sum(seen[container].values()) == devices
        if expectation.get("homogeneous"):
            assert len(seen[container]) <= 1, "one claim is one model"
    sets = [set(entries) for entries in seen.values() if entries]
    if expectation.get("shared"):
        assert set.intersection(*sets)
    if expectation.get("disjoint"):
        assert sum(map(len, sets)) == len(set.union(*sets))
    if "toleration" in expectation:
        keys = [toleration["key"] for toleration in after["spec"]["tolerations"]]
        assert keys.count(expectation["toleration"]) == 1
    for key, forged in expectation.get("not_annotation", {}).items():
        assert after["metadata"]["annotations"][key] != forged
    held = {name: count for entries in seen.values() for name, count in entries.items()}
    stamp = (after["metadata"].get("annotations") or {}).get("dra-gate.io/devices")
    assert stamp == (str(sum(held.values())) if held else None)


@pytest.mark.parametrize("route", ["mutate", "validate"])
def test_envelope(route: Any) -> None:
    """B09: the version and uid that came, a patch with its type or neither, 400 for what is no AdmissionReview v1."""
    world = World(harness.policy_set())
    for obj in harness.environment():
        world.apply(obj)
    world.set_used("lilac", Charge(8))
    good, old, garbage = harness.case("B09").reviews
    response = json.loads(answer(route, json.dumps(good).encode(), world.facts()).body)
    assert (response["apiVersion"], response["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert response["response"]["uid"] == good["request"]["uid"]
    if route == "mutate":
        assert response["response"]["patchType"] == "JSONPatch"
        assert isinstance(json.loads(base64.b64decode(response["response"]["patch"])), list)
    else:
        assert "patch" not in response["response"]
        assert response["response"]["allowed"] is False  # never mutated, so a raw request is left
        assert response["response"]["status"]["code"] == 403
        assert "spec.containers[0].resources.limits[nvidia.com/gpu]" in response["response"]["status"]["message"]
    for bad in (old, garbage, [], "x", None):
        with pytest.raises(BadRequest) as refused:
            answer(route, json.dumps(bad).encode(), world.facts())
        assert refused.value.status == 400


def test_every_later_case_is_named() -> None:
    """What is left for later is a list that somebody wrote, with the reason; nothing falls out of it unseen."""
    known = harness.expectations()
    for name in LATER:
        assert name.partition("/")[0] in known
