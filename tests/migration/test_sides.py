"""Two policy versions side by side: who is compared with whom, and in which words."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gate.cli.canary import command
from dra_gate.migration.cohort import HOUR, OTHERS, Cell, Cohorts, Key
from dra_gate.migration.compare import compare
from dra_gate.migration.report import as_html, as_json, as_text, report
from dra_gate.migration.sides import elsewhere, versions
from dra_gate.policy.switch import Lane
from migration.simulated import ALIKE, HOURS, START, USUAL, Fares, simulate

END = START + HOURS * HOUR
NEW, OLD = "training@8", "training@7"
BOTH = versions(NEW, OLD)


def as_versions(lanes: Cohorts, firsts: tuple[str, str] = ("h100", "h100")) -> Cohorts:
    """The same Pods, all in lane dra: those of DRA under NEW, the others under OLD."""
    found = Cohorts()
    for hour, key, cell in lanes.between(START, END):
        number = int(key.lane != "dra")
        found.cell(hour, Key("dra", key.tenant, key.size, firsts[number], (NEW, OLD)[number])).add(cell)
    return found


def simulated(new: Fares, pods: int, old: Fares = USUAL, seed: int = 3, tenants: int = 3) -> Cohorts:
    return as_versions(simulate(new, old, (pods, pods), seed, tenants))


def pods(cohorts: Cohorts, key: Key, count: int, **more: int) -> None:
    cell = cohorts.cell(START, key)
    cell.submitted += count
    for name, value in more.items():
        setattr(cell, name, value)


def test_versions_that_differ_are_told_apart_and_those_alike_are_not() -> None:
    worse = compare(simulated(replace(USUAL, success=0.85), 1_500), START, END, sides=BOTH)
    better = compare(simulated(USUAL, 1_500, replace(USUAL, success=0.85)), START, END, sides=BOTH)
    assert [one.measures[0].verdict for one in (worse, better)] == ["worse", "better"]
    assert (worse.verdict, [one.reason for one in worse.stops]) == ("worse", ["Failures", "Failures"])
    assert better.stops == ()  # what fails under the version that runs everywhere stops no canary
    assert compare(simulated(USUAL, 10_000), START, END, sides=BOTH).verdict == "same"


@pytest.mark.parametrize("name", ALIKE)
def test_no_more_false_alarms_among_versions_than_among_lanes(name: str) -> None:
    """Of 40 at 5 % more than 6 have a chance of 0.3 %; the seeds are fixed."""
    dra, plugin, share = ALIKE[name]
    first = round(600 * share)
    alarms = 0
    for seed in range(40):
        cohorts = as_versions(simulate(dra, plugin, (first, 600 - first), seed))
        measures = compare(cohorts, START, END, sides=BOTH).measures
        alarms += any(one.verdict in ("worse", "better") for one in measures)
    assert alarms <= 6


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", OLD, NEW, "training@6"]), min_size=1, max_size=4), st.integers(0, 3))
def test_lanes_do_not_look_at_policies(policies: list[str], seed: int) -> None:
    lanes = simulate(USUAL, USUAL, (60, 60), seed)
    split = Cohorts()
    for number, (hour, key, cell) in enumerate(lanes.between(START, END)):
        policy = policies[number % len(policies)]
        split.cell(hour, Key(key.lane, key.tenant, key.size, key.first, policy)).add(cell)
        split.cell(hour, Key(key.lane, key.tenant, key.size, key.first, "training@5")).add(Cell())
    assert compare(split, START, END) == compare(lanes, START, END)


def test_pods_are_compared_within_their_tenant_and_lane() -> None:
    cohorts = Cohorts()
    pods(cohorts, Key("dra", "lilac", 1, "h100", NEW), 60, started=60)
    pods(cohorts, Key("dra", "lilac", 1, "h100", OLD), 80, started=80)
    pods(cohorts, Key("dra", "lilac", 1, "h100", "training@6"), 7)
    pods(cohorts, Key("dra", "mint", 1, "h100", OLD), 500, failed=500)  # no canary there
    pods(cohorts, Key("dra", "fern", 1, "h100", NEW), 3)  # nothing else there
    pods(cohorts, Key("device-plugin", "lilac", 1, "h100", NEW), 900, failed=900)
    found = compare(cohorts, START, END, sides=BOTH)
    assert found.pods == {NEW: 63, OLD: 580}
    assert found.left_out == {NEW: 3, OLD: 500}
    assert {name: one.n for name, one in found.measures[0].figures.items()} == {NEW: 60, OLD: 80}
    assert found.stops == ()
    mine = compare(cohorts, START, END, sides=BOTH, tenant="lilac")
    assert (mine.pods, mine.left_out) == ({NEW: 60, OLD: 80}, {NEW: 0, OLD: 0})


def test_another_first_choice_leaves_nobody_out_and_is_not_compared_by_itself() -> None:
    alike = simulate(USUAL, USUAL, (600, 600), 3)
    same = compare(as_versions(alike), START, END, sides=BOTH)
    other = compare(as_versions(alike, ("h200", "h100")), START, END, sides=BOTH)
    assert other.left_out == same.left_out
    assert [one for one in same.measures if one.name != "first-choice"] == list(other.measures)
    assert other.firsts == {NEW: ("h200",), OLD: ("h100",)}
    text = as_text(report(as_versions(alike, ("h200", "h100")), START, END, 0.05, BOTH))
    assert f"first-choice is not compared: {NEW} prefers h200; {OLD} prefers h100" in text
    assert "not compared" not in as_text(report(as_versions(alike), START, END, 0.05, BOTH))
    assert "not compared" not in as_text(report(alike, START, END, 0.05))


@pytest.mark.parametrize("lane", ["dra", "device-plugin"])
def test_pods_of_any_size_are_nobodys_counterpart(lane: Lane) -> None:
    """Of an hour that had too many keys to count apart."""
    cohorts = simulate(USUAL, USUAL, (300, 300), 1)
    before = compare(cohorts, START, END).measures
    for one in ("dra", "device-plugin"):
        pods(cohorts, Key(one, OTHERS, 0, OTHERS), 500, failed=500 * (one == lane))  # type: ignore[arg-type]
    assert compare(cohorts, START, END).measures == before


def test_what_it_is_compared_with_is_what_most_pods_of_its_tenants_have() -> None:
    cohorts = Cohorts()
    pods(cohorts, Key("dra", "lilac", 1, "h100", NEW), 5)
    pods(cohorts, Key("dra", "lilac", 1, "h100", OLD), 40)
    pods(cohorts, Key("dra", "lilac", 2, "h100", "training@6"), 39)
    pods(cohorts, Key("dra", "mint", 1, "l40s", "inference@2"), 900)
    pods(cohorts, Key("device-plugin", "lilac", 1, "h100", ""), 900)
    assert elsewhere(cohorts, START, END, NEW) == OLD
    with pytest.raises(ValueError, match="mint had Pods of inference@2 alone"):
        elsewhere(cohorts, START, END, "inference@2")
    with pytest.raises(ValueError, match=r"no Pod of training@9 was counted in these hours, but of inference@2, .*@8"):
        elsewhere(cohorts, START, END, "training@9")
    with pytest.raises(ValueError, match="but of no policy"):
        elsewhere(Cohorts(), START, END, NEW)


def test_all_forms_speak_of_the_versions() -> None:
    cohorts = simulated(replace(USUAL, success=0.8), 600)
    found = report(cohorts, START, END, 0.05, BOTH)
    text, html, told = as_text(found), as_html(found), as_json(found)
    assert text.startswith(f"{NEW} beside {OLD}: worse")
    assert "By tenant:" in text
    assert "By first choice:" not in text
    for said in (text, html):
        assert "plugin" not in said
        assert "DRA" not in said
    assert f"{NEW} fares worse" in html
    assert told["sides"] == [NEW, OLD]
    assert told["whole"]["measures"][0]["figures"].keys() == {NEW, OLD}
    assert Counter(one["side"] for one in told["hours"]) == {NEW: HOURS, OLD: HOURS}
    assert "<i>" not in as_html(report(cohorts, START, END, 0.05, versions("<i>", OLD)))


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "cohorts.json"
    file.write_bytes(simulated(replace(USUAL, success=0.8), 600).dumps())

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(command, ["report", "--cohorts", str(file), *words])
        return done.exit_code, done.output

    code, text = run("--policy", NEW)
    assert (code, text.splitlines()[0].startswith(f"{NEW} beside {OLD}: worse")) == (1, True)
    assert run("--policy", NEW, "--against", OLD) == (code, text)
    code, text = run("--policy", OLD, "--against", NEW, "-o", "json")
    assert (code, json.loads(text)["sides"]) == (0, [OLD, NEW])
    for words, says in (
        (("--policy", "training@9"), f"no Pod of training@9 was counted in these hours, but of {OLD} and {NEW}"),
        (("--policy", NEW, "--against", NEW), "can't be compared with itself"),
        (("--against", OLD), "give both"),
    ):
        code, text = run(*words)
        assert (code, says in text) == (2, True), text
