"""Why the outcome for a node is what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dra_gate.allocation.asked import Claim
from dra_gate.allocation.held import Held
from dra_gate.allocation.outcome import Examination, Outcome
from dra_gate.allocation.pools import Pool
from dra_gate.allocation.search import Search, View

Start = Callable[[View, Sequence[Claim]], Search]


def examined(
    outcome: Outcome, view: View, passed: Iterable[Pool], claims: Sequence[Claim], held: Held, start: Start
) -> Examination:
    return Examination(outcome, (), ())
