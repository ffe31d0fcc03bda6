"""The short form of `make prove-migration`."""

from __future__ import annotations

import contextlib

import pytest

from proofs.lanes_audited import DRA, PLUGIN
from proofs.migration import POLICIES, WAVES, Stage, fail_and_return, judge
from proofs.migration_page import Run, page, plots, waited

pytestmark = pytest.mark.controlplane


def test_over_back_by_itself_when_devices_fail_and_over_again() -> None:
    run = Run(seed=3, seconds=4)
    with contextlib.ExitStack() as stack:
        stage = Stage(stack, run, POLICIES)
        with stage.chapter("50 %"):
            stage.step("--wave", WAVES[1], "--wave", WAVES[2])
            stage.above_quota_by_both_lanes("dune")
        with stage.chapter("100 %"):
            stage.step()
            stage.command("canary", "on-stop", "rollback")
            stage.steady()
        fail_and_return(stage)
        judge(stage)
    print(page(run))
    assert run.wrong == []
    assert run.noticed is not None
    assert run.most["dune"] == (12, 12, 12)
    assert {(turn.lane, turn.by != "admin") for turn in run.found.turns} == {(DRA, False), (PLUGIN, True)}
    assert {one.lane for one in run.found.pods} == {DRA, PLUGIN}
    assert len(run.found.waited) > 5
    assert waited(run).count("\n") == len(run.found.waited) + 1
    assert all(drawing.startswith("<svg") for drawing in plots(run).values())
