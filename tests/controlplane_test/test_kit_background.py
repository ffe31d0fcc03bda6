"""What runs beside a test goes on through refusals, and never fails in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from controlplane.api import ApiError
from controlplane.background import Background

# That a failure in a thread is told at once is what pytest warns of.
told = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def steps(*problems: Exception) -> tuple[Callable[[], None], threading.Event]:
    """A step that fails like that, one time after the other, and then no more; and when it came so far."""
    left, came = list(problems), threading.Event()

    def step() -> None:
        if left:
            raise left.pop(0)
        came.set()

    return step, came


def test_what_is_refused_is_tried_again() -> None:
    step, came = steps(ApiError(409, {}), ApiError(0, {}))
    with Background(step, 0.001):
        assert came.wait(5)


def test_the_end_of_the_block_ends_it() -> None:
    called: list[None] = []
    began = time.monotonic()
    with Background(lambda: called.append(None), 60):
        pass
    assert not called
    assert time.monotonic() - began < 5


@told
def test_a_failure_is_raised_at_the_end() -> None:
    step, came = steps(KeyError("mine"))
    running = Background(step, 0.001)
    with pytest.raises(KeyError, match="mine"), running:
        running._thread.join(5)
    assert not came.is_set()  # it isn't called again


@told
def test_the_block_s_own_failure_goes_first() -> None:
    running = Background(steps(KeyError("mine"))[0], 0.001)

    def block() -> None:
        with running:
            running._thread.join(5)
            raise ValueError("the block's")

    with pytest.raises(ValueError, match="the block's"):
        block()
