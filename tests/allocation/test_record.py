"""Decision records: they come back as written, and say within an Event's limit what happened and nothing of others."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.allocation.capacity import CandidateCounts
from dra_gate.allocation.record import (
    NOTE_BYTES,
    ClaimDecision,
    DecisionRecord,
    chain,
    decisive_of,
    dumps,
    loads,
    passed_over,
)

ORDER = ("h100", "a100", "l40s")
COUNTS = CandidateCounts("h100", published=4, healthy=4, matching=4, usable=4, own=1)


def record(**change: object) -> DecisionRecord:
    claims = (ClaimDecision("gate-0", "p-gate-0-x", 1, ORDER, "a100", 2, ("ampere/gpu-0",)),)
    made = DecisionRecord(
        "m1", "p", "u1", 1, "allocated", "train@1", "d" * 64, "maple", "dra", claims,
        candidates=(COUNTS,), model="a100", rank=2, passed=passed_over([COUNTS], 2, 1, ""), at=12.5,
    )  # fmt: skip
    return dataclasses.replace(made, **change)  # type: ignore[arg-type]


def test_it_reads_as_a_person_would_say_it() -> None:
    assert chain(record()) == (
        "Asked for 1 device under train@1. h100: all 4 in use, 1 by this tenant. a100: given, rank 2 of 3. "
        "gate-0: a100 ampere/gpu-0."
    )
    waiting = (ClaimDecision("gate-0", "x", 2, ORDER[:1]), ClaimDecision("gate-1", "y", 1, ORDER))
    told = record(
        outcome="waiting", claims=waiting, passed=passed_over([COUNTS], 0, 2, ""), klass="waiting", text="No room."
    )
    assert chain(told) == (
        "Asked for 2 devices under train@1 in gate-0, beside 1 more claim. h100: all 4 in use, 1 by this tenant. "
        "waiting: No room."
    )


@pytest.mark.parametrize(
    ("counts", "code", "text"),
    [
        (CandidateCounts("m"), "unpublished", "none published"),
        (
            CandidateCounts("m", 3, 3, turned_away={"memory": 2, "driverVersion": 1}),
            "unmatched",
            "none of 3 meets memory (2), driverVersion (1)",
        ),
        (
            CandidateCounts("m", 3, 1, 2, unusable={"node lost": 2}),
            "unhealthy",
            "none of 2 of 3 that match healthy: node lost (2)",
        ),
        (CandidateCounts("m", 3, 2, 3, 2), "in-use", "all 2 healthy in use"),
        (CandidateCounts("m", 3, 3, 3, 3, 3), "scattered", "3 free, nowhere 2 together"),
        (CandidateCounts("m", 3, 3, 3, 3, 3, places=1), "inverted", "3 free: cpu"),
    ],
)
def test_why_a_better_candidate_was_passed_over(counts: CandidateCounts, code: str, text: str) -> None:
    (found,) = passed_over([counts, counts], 2, 2, "cpu")
    assert (found.model, found.code, found.text) == ("m", code, text)


def test_what_a_grant_left_out_is_told_apart() -> None:
    free = CandidateCounts("m", 3, 3, 3, 3, 3, places=1)
    (found,) = passed_over([free, free], 2, 2, "cpu", asked=("other",))
    assert (found.code, found.text) == ("ungranted", "3 free now, and had no room when the Pod was granted")


def test_the_decisive_claim_is_the_one_that_waits_else_the_worst() -> None:
    first, second = (ClaimDecision(entry, entry, 1, ORDER, "m", rank) for entry, rank in (("a", 1), ("b", 2)))
    assert decisive_of((first, second)) is second
    assert decisive_of((second, dataclasses.replace(first, rank=0))).entry == "a"  # type: ignore[union-attr]
    assert decisive_of((dataclasses.replace(first, candidates=()),)) is None


def test_another_tenant_reads_a_count() -> None:
    assert chain(record(), as_tenant="maple") == chain(record())
    assert chain(record(), as_tenant="birch") == "1 Pod of another tenant: allocated."


def test_what_is_no_record_is_refused() -> None:
    for line in (b"1", b"{}", dumps(record()).replace(b"v1alpha1", b"v9"), dumps(record()).replace(b"12.5", b'"x"')):
        with pytest.raises(ValueError):  # noqa: PT011 - any kind of it
            loads(line)


TEXTS = st.text(max_size=400)
CLAIMS = st.builds(
    ClaimDecision,
    TEXTS,
    TEXTS,
    st.integers(1, 32),
    st.lists(TEXTS, max_size=8).map(tuple),
    TEXTS,
    st.integers(0, 8),
    st.lists(TEXTS, max_size=32).map(tuple),
)


@given(st.lists(CLAIMS, max_size=4).map(tuple), TEXTS, st.integers(0, 9))
def test_records_come_back_and_their_text_fits_into_an_event(
    claims: tuple[ClaimDecision, ...], text: str, count: int
) -> None:
    counts = [CandidateCounts(text, 1, 1, turned_away={text: 1})] * count
    made = record(
        claims=claims, text=text, klass=text, passed=passed_over(counts, 0, 1, text), candidates=tuple(counts)
    )
    assert loads(dumps(made)) == made
    assert b"\n" not in dumps(made)
    assert len(chain(made).encode()) <= NOTE_BYTES


def test_a_pod_that_names_one_claim_twenty_thousand_times_is_told_at_once() -> None:
    claims = tuple(ClaimDecision(f"e{number}", "nic", 1, (), devices=("pool/nic-0",)) for number in range(20_000))
    began = time.process_time()
    told = chain(record(claims=claims, passed=()))
    assert time.process_time() - began < 1.0
    assert len(told.encode()) <= NOTE_BYTES
    assert told.startswith("Asked for 20000 devices under train@1. … e0: pool/nic-0. e1: ")
