"""Fifteen times "why not the H100?": each situation is what it says it is, by the real control plane.

With DRA_GATE_SITUATIONS=DIR the raw objects of each, as they are when the Pod has been decided about, stay in DIR.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from allocation.explained import check
from allocation.situation import CAUSES, Situation, Stage, policies, situations
from controlplane.api import Api
from controlplane.control_plane import ControlPlane
from controlplane.gate import Gate

pytestmark = pytest.mark.controlplane
ALL = situations()


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """One gate for all of them, with the policies published in the cluster."""
    with Gate(control_plane, policies(tmp_path_factory.mktemp("policies")), published=True) as installed:
        yield installed


@pytest.fixture
def stage(gate: Gate, api: Api, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(api, request.param)
    try:
        made.build()
        yield made
    finally:
        made.clear()


def test_there_are_fifteen_causes_and_a_situation_of_each() -> None:
    assert sorted(situation.cause.code for situation in ALL) == sorted(CAUSES)


@pytest.mark.parametrize(
    ("stage", "situation"), [(one, one) for one in ALL], ids=[one.name for one in ALL], indirect=["stage"]
)
def test_the_cause_is_the_cause_and_is_explained_and_the_decoy_is_not(
    stage: Stage, situation: Situation, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Without the decoy the same becomes of the Pod; with the decoy and without the cause it gets its H100."""
    outcome = stage.ask(situation.pod)
    assert outcome.is_as(situation.expected), outcome
    folder = Path(os.environ.get("DRA_GATE_SITUATIONS", tmp_path))
    (folder / f"{situation.name}.json").write_text(json.dumps(stage.dump(), indent=1))
    check(control_plane, situation)

    stage.run(situation.decoy.remove)
    outcome = stage.ask(situation.pod)
    assert outcome.is_as(situation.expected), outcome
    check(control_plane, situation)

    stage.run((*situation.decoy.add, *situation.remedy.steps))
    outcome = stage.ask(situation.remedy.pod or situation.pod)
    assert outcome.got == situation.remedy.gets, outcome
