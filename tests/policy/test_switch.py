"""The switch between lanes: back, forward, and what each tenant has then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.policy.switch import NO_SWITCH, Switch

PLUGIN, SOON, LATER = "device-plugin", "2026-11-30T18:00:00Z", "2026-11-30T20:00:00Z"
NAMES = ["lilac", "mint", "rose"]
LANES = st.sampled_from(["", "dra", PLUGIN])
UNTIL = st.sampled_from([None, "", SOON])


@pytest.mark.parametrize(
    ("before", "tenants", "drain_by", "after"),
    [
        (Switch(), [], None, Switch(PLUGIN)),
        (Switch(), [], SOON, Switch(PLUGIN, drain_by=SOON)),
        (Switch(), ["lilac"], None, Switch("", {"lilac": PLUGIN})),
        (Switch(), ["lilac"], SOON, Switch("", {"lilac": PLUGIN}, drains={"lilac": SOON})),
        # Twice in a row.
        (Switch(PLUGIN), [], None, Switch(PLUGIN)),
        (Switch(PLUGIN, drain_by=SOON), [], None, Switch(PLUGIN, drain_by=SOON)),
        (Switch(PLUGIN, drain_by=SOON), [], "", Switch(PLUGIN)),
        (Switch(PLUGIN), ["lilac"], None, Switch(PLUGIN)),
        (Switch("", {"lilac": PLUGIN}, drains={"lilac": SOON}), ["lilac"], None,
         Switch("", {"lilac": PLUGIN}, drains={"lilac": SOON})),
        # One more: what was said of the others stays, and is not said of this one.
        (Switch("", {"lilac": PLUGIN}, drains={"lilac": SOON}), ["mint"], None,
         Switch("", {"lilac": PLUGIN, "mint": PLUGIN}, drains={"lilac": SOON})),
        (Switch("", {"lilac": PLUGIN}), ["mint"], SOON,
         Switch("", {"lilac": PLUGIN, "mint": PLUGIN}, drains={"mint": SOON})),
        (Switch(PLUGIN, drain_by=SOON), ["lilac"], LATER,
         Switch(PLUGIN, {"lilac": PLUGIN}, SOON, {"lilac": LATER})),
        # Everybody is everybody.
        (Switch("dra", {"lilac": "dra", "mint": "", "rose": PLUGIN}, drains={"rose": SOON}), [], None,
         Switch(PLUGIN, {"rose": PLUGIN}, drains={"rose": SOON})),
        (Switch("", {"rose": PLUGIN}, drains={"rose": SOON}), [], LATER,
         Switch(PLUGIN, {"rose": PLUGIN}, LATER, {"rose": LATER})),
    ],
)  # fmt: skip
def test_back(before: Switch, tenants: list[str], drain_by: str | None, after: Switch) -> None:
    assert before.back(tenants, drain_by) == after


@pytest.mark.parametrize(
    ("before", "tenants", "after"),
    [
        (Switch(), [], Switch()),
        (Switch(PLUGIN, {"lilac": PLUGIN}, SOON, {"lilac": SOON}), [], Switch()),
        (Switch(), ["lilac"], Switch()),
        (Switch("", {"lilac": PLUGIN, "mint": PLUGIN}, drains={"lilac": SOON, "mint": LATER}), ["lilac"],
         Switch("", {"mint": PLUGIN}, drains={"mint": LATER})),
        (Switch(PLUGIN, drain_by=SOON), ["lilac"], Switch(PLUGIN, {"lilac": ""}, SOON)),
        (Switch(PLUGIN, {"lilac": ""}), ["lilac"], Switch(PLUGIN, {"lilac": ""})),
    ],
)  # fmt: skip
def test_forward(before: Switch, tenants: list[str], after: Switch) -> None:
    assert before.forward(tenants) == after


@given(
    st.builds(Switch, LANES, st.dictionaries(st.sampled_from(NAMES), LANES)),
    st.lists(st.sampled_from(NAMES), unique=True),
    UNTIL,
)
def test_who_is_named_moves_and_nobody_else(before: Switch, tenants: list[str], drain_by: str | None) -> None:
    moved = tenants or NAMES
    back, forth = before.back(tenants, drain_by), before.forward(tenants)
    for label in ("dra", PLUGIN):
        for name in NAMES:
            assert back.lane_of(name, label) == (PLUGIN if name in moved else before.lane_of(name, label))
            assert forth.lane_of(name, label) == (label if name in moved else before.lane_of(name, label))
            if drain_by is not None and name in moved:
                assert back.drain_of(name) == drain_by
    assert back.back(tenants, drain_by) == back, "twice is once"
    assert forth.forward(tenants) == forth
    for changed in (back, forth):
        # What the Gate's schema asks for.
        assert not changed.drain_by or changed.override == PLUGIN
        assert all(changed.tenants.get(name) == PLUGIN for name in changed.drains)


@pytest.mark.parametrize(
    ("switch", "said"),
    [
        (NO_SWITCH, "every tenant as labelled"),
        (Switch(PLUGIN), "every tenant in lane device-plugin"),
        (Switch("", {"mint": PLUGIN, "lilac": PLUGIN}),
         "every tenant as labelled, but lilac, mint in lane device-plugin"),
        (Switch(PLUGIN, {"mint": "dra", "lilac": ""}),
         "every tenant in lane device-plugin, but lilac as labelled and mint in lane dra"),
    ],
)  # fmt: skip
def test_in_words(switch: Switch, said: str) -> None:
    assert str(switch) == said
