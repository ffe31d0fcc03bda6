"""The short form of `make prove-rolling`: creates go on while replicas, certificates, policies, controllers change."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from proofs.rolling import Stage, chapters, on_stage, play

pytestmark = pytest.mark.controlplane
RATE, SECONDS = 10, 4


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with on_stage() as made:
        yield made


@pytest.mark.parametrize("title", [title for title in chapters if title != "nothing changes"])
def test_no_create_fails(stage: Stage, title: str) -> None:
    outcome, times = play(stage, partial(chapters[title], stage), RATE, SECONDS)
    assert times >= 1
    assert outcome.failed == []
    assert outcome.wrong == []
    assert outcome.created >= RATE


def test_replicas_that_are_a_second_apart_do_not_refuse_each_others_pods() -> None:
    with on_stage(late=True) as late:
        outcome, _ = play(late, late.lanes, RATE, SECONDS)
    assert outcome.failed == []
    assert outcome.wrong == []
