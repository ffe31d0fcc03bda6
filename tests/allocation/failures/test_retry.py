"""When we try again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_gate.allocation.failures import CLASSES, next_attempt

TRIED = sorted(set(CLASSES) - {"terminal"})


@given(st.sampled_from(TRIED), st.integers(0, 10_000), st.text())
def test_between_half_of_the_step_and_all_of_it(klass: str, attempts: int, seed: str) -> None:
    plan = CLASSES[klass]  # type: ignore[index]
    step = min(plan.cap, plan.first * 2 ** min(attempts, 60))
    seconds = next_attempt(klass, attempts, seed)  # type: ignore[arg-type]
    assert seconds is not None
    assert step / 2 < seconds <= step


@given(st.integers(0, 100), st.text())
def test_terminal_stops_at_once(attempts: int, seed: str) -> None:
    assert next_attempt("terminal", attempts, seed) is None


def test_the_seed_decides_and_nothing_else() -> None:
    assert next_attempt("retryable", 3, "uid/7") == next_attempt("retryable", 3, "uid/7")
    spread = {next_attempt("retryable", 3, f"uid-{number}/7") for number in range(200)}
    assert len(spread) == 200
    assert min(map(float, spread)) < 4.2  # type: ignore[arg-type]
    assert max(map(float, spread)) > 7.8  # type: ignore[arg-type]


def test_a_waiting_pod_costs_at_most_one_look_an_hour() -> None:
    assert min(next_attempt("waiting", number, f"u{number}") or 0 for number in range(200)) >= 3600
