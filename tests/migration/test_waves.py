"""Waves: who is moved, who is left alone and why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.migration.waves import (
    Move,
    Paused,
    Plan,
    PlanError,
    Space,
    enroll,
    members,
    read_move,
    read_plan,
    read_wave,
    rollback,
    stamp,
    step,
    wave_of,
)

NOW = 1_800_000_000
LONG_AGO, JUST_NOW = NOW - 90_000, NOW - 600
MANY = [Space(f"ns-{number}", "lilac" if number % 3 else "mint", "device-plugin") for number in range(40)]


def moved(to: str, at: int = LONG_AGO) -> Move:
    return Move("dra" if to == "device-plugin" else "", to, at, "ada", "because")


def space(name: str = "a", lane: str = "device-plugin", tenant: str = "lilac", **more: object) -> Space:
    return Space(name, tenant, lane, **more)  # type: ignore[arg-type]


def plan(*words: str, begun: int = 0) -> Plan:
    return Plan("seed", tuple(map(read_wave, words)), begun)


ENROLLED, BACK = space(lane="dra", move=moved("dra")), space(move=moved("device-plugin"))
TAKEN_BACK = space(move=moved("dra"), labelled_by="argo", labelled_at=LONG_AGO)
PUT_IN = space(lane="dra", labelled_by="argo", labelled_at=LONG_AGO)


@pytest.mark.parametrize(
    ("one", "named", "by_step"),
    [
        (space(), "", ""),
        (space(lane=""), "", ""),
        (ENROLLED, "in lane dra already", "in lane dra already"),
        (space(leaving=True), "being deleted", "being deleted"),
        (space(tenant=""), "belongs to no tenant", "belongs to no tenant"),
        (BACK, "", "rolled back by ada"),
        (TAKEN_BACK, "", "somebody else took it back"),
        (space(lane="", move=moved("dra")), "", "somebody else took it back"),
        (space(lane="drs"), "", "its lane drs is none"),
        (space(labelled_at=JUST_NOW), "wait 50 min", "wait 50 min"),
        (space(move=moved("device-plugin", JUST_NOW)), "wait 50 min", "rolled back"),
        (space(move=moved("device-plugin"), labelled_at=JUST_NOW), "", "rolled back"),  # another write than the lane's
        (space(labelled_at=NOW + 50), "wait 60 min", "wait 60 min"),  # a clock that is ahead
    ],
)
def test_who_is_enrolled(one: Space, named: str, by_step: str) -> None:
    for by_name, expected in ((True, named), (False, by_step)):
        found = enroll([one], NOW, named=by_name)
        assert (found.moves, len(found.left)) == (((), 1) if expected else ((one,), 0))
        assert not expected or expected in found.left[0].why


def test_force_is_for_time_alone() -> None:
    assert enroll([space(labelled_at=JUST_NOW)], NOW, force=True).moves
    assert enroll([space(labelled_at=JUST_NOW)], NOW, settle=300).moves
    for one in (ENROLLED, space(tenant=""), space(leaving=True)):
        assert not enroll([one], NOW, force=True).moves
    assert not enroll([BACK], NOW, force=True, named=False).moves


@pytest.mark.parametrize(
    ("one", "named", "unnamed"),
    [
        (ENROLLED, True, True),
        (space(lane="dra", move=moved("dra", NOW - 1)), True, True),  # the way back never waits
        (PUT_IN, True, False),
        (space(lane="dra", move=moved("device-plugin")), True, False),  # rolled back, and put in by others since
        (space(), False, False),
        (space(lane=""), False, False),
        (space(lane="dra", move=moved("dra"), leaving=True), False, False),
        (space(lane="dra", tenant="", move=moved("dra")), True, True),
    ],
)
def test_who_is_rolled_back(one: Space, named: bool, unnamed: bool) -> None:
    assert bool(rollback([one], named=True).moves) is named
    assert bool(rollback([one], named=False).moves) is unnamed
    assert rollback([one], named=True).left or named  # whoever is named is told of


def test_whose_word_the_lane_is() -> None:
    assert (ENROLLED.by, ENROLLED.since, ENROLLED.told) == ("ada", LONG_AGO, "")
    assert (BACK.by, BACK.told) == ("ada", "rolled back")
    assert (PUT_IN.by, PUT_IN.since, PUT_IN.told) == ("argo", LONG_AGO, "labelled by somebody else")
    assert (TAKEN_BACK.by, TAKEN_BACK.told[:20]) == ("argo", "moved to dra by ada,")
    assert (space().by, space().since, space().told) == ("", 0, "")


@given(st.sets(st.integers(0, 999)), st.text(max_size=5), st.integers(1, 100), st.integers(1, 100))
def test_a_percentage_is_inside_every_larger_one(names: set[int], seed: str, one: int, other: int) -> None:
    spaces = [space(f"ns-{name}") for name in names]
    small, large = (
        {found.name for found in members(read_wave(f"{percent}%"), spaces, seed)} for percent in sorted((one, other))
    )
    assert small <= large
    assert len(small) == -(-len(names) * min(one, other) // 100)
    assert [found.name for found in members(read_wave(f"{one}%"), spaces[::-1], seed)] == [
        found.name for found in members(read_wave(f"{one}%"), spaces, seed)
    ]


def test_another_seed_is_another_order() -> None:
    tenth = read_wave("10%")
    assert members(tenth, MANY, "a") != members(tenth, MANY, "b")
    assert len(members(tenth, MANY, "a")) == 4


def in_dra(spaces: list[Space], names: set[str]) -> list[Space]:
    return [space(one.name, "dra", one.tenant, move=moved("dra")) if one.name in names else one for one in spaces]


def test_steps_go_wave_by_wave_until_all_are_in() -> None:
    waves, spaces, sizes = plan("10%", "tenant:mint", "ns-1,ns-2", "100%"), MANY, []
    for number in range(1, 5):
        found = step(waves, spaces, NOW)
        assert (found.wave, found.left) == (number, ())
        sizes.append(len(found.moves))
        spaces = in_dra(spaces, {one.name for one in found.moves})
        waves = plan(*map(str, waves.waves), begun=found.wave)
        assert {one.name for one in spaces if one.lane == "dra"} == {
            name for name, wave in wave_of(waves, spaces).items() if wave <= number
        }
    assert (sum(sizes), sizes[0]) == (40, 4)
    assert all(one.lane == "dra" for one in spaces)
    assert step(waves, spaces, NOW).moves == ()


def test_the_rest_of_a_wave_comes_first() -> None:
    waves = plan("10%", "100%", begun=1)
    first = members(waves.waves[0], MANY, "seed")
    spaces = in_dra(MANY, {one.name for one in first[1:]})
    found = step(waves, spaces, NOW)
    assert (found.wave, found.moves) == (1, (first[0],))


def test_those_that_are_left_alone_hold_up_nobody() -> None:
    spaces = [space("a", move=moved("device-plugin")), space("b"), space("c", tenant="")]
    waves = plan("a", "a,b,c", begun=1)
    found = step(waves, spaces, NOW)
    assert (found.wave, [one.name for one in found.moves]) == (2, ["b"])
    assert {one.space.name for one in found.left} == {"a", "c"}
    found = step(waves, spaces, NOW, again=True)
    assert (found.wave, [one.name for one in found.moves]) == (1, ["a"])


def test_again_is_for_what_commands_rolled_back() -> None:
    assert step(plan("a"), [BACK], NOW, again=True).moves == (BACK,)
    assert not step(plan("a"), [TAKEN_BACK], NOW, again=True).moves
    assert not step(plan("a"), [space(move=moved("device-plugin", JUST_NOW))], NOW, again=True).moves


def test_a_paused_plan_moves_nobody() -> None:
    held = Plan("seed", (read_wave("100%"),), paused=Paused("ada", NOW, ""))
    assert step(held, MANY, NOW, force=True, again=True).moves == ()


@given(
    st.lists(st.sampled_from(["device-plugin", "", "dra"]), min_size=1, max_size=12),
    st.lists(st.sampled_from(["step", "back", "others", "wait"]), max_size=12),
)
def test_nobody_flaps(lanes: list[str], deeds: list[str]) -> None:
    """Whatever others and rollbacks do in between: steps undo neither, and move nobody twice within the time."""
    spaces = [space(f"ns-{number}", lane) for number, lane in enumerate(lanes)]
    waves, now, taken = plan("30%", "100%"), NOW, {}
    for deed in deeds:
        now += 7200 if deed == "wait" else 60
        if deed == "step":
            found = step(waves, spaces, now)
            waves = plan("30%", "100%", begun=found.wave)
            for one in found.moves:
                assert one.name not in taken
            names = {one.name for one in found.moves}
            spaces = [
                Space(one.name, one.tenant, "dra", moved("dra", now)) if one.name in names else one for one in spaces
            ]
        elif deed == "back":
            for one in rollback(spaces, named=False).moves:
                taken[one.name] = now
                spaces[spaces.index(one)] = Space(one.name, one.tenant, "device-plugin", moved("device-plugin", now))
        elif deed == "others" and spaces[0].own is not None and spaces[0].lane == "dra":
            taken[spaces[0].name] = now
            spaces[0] = Space(spaces[0].name, "lilac", "device-plugin", spaces[0].move, "argo", now)


@pytest.mark.parametrize("word", ["0%", "101%", "-5%", "x%", "%", "²%", "", "a,,b", "tenant:", "tenant:a,"])
def test_waves_that_are_none(word: str) -> None:
    with pytest.raises(PlanError):
        read_wave(word)


@pytest.mark.parametrize("words", [("50%", "10%"), ("10%", "10%"), ("a", "a"), ("50%", "tenant:a", "50%")])
def test_a_wave_that_adds_nobody_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match="adds nobody"):
        Plan("s").with_waves(map(read_wave, words))


def test_plans_and_moves_are_read_as_written() -> None:
    full = Plan("s", tuple(map(read_wave, ("10%", "tenant:a,b", "x,y"))), 2, Paused("ada", NOW, 'a "reason" – ü'))
    assert read_plan(full.dumps()) == full
    assert read_plan(Plan("").dumps()) == Plan("")
    one = moved("dra")
    assert read_move(one.dumps()) == one
    assert json.loads(one.dumps())["at"] == stamp(LONG_AGO)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "[" * 100_000, '{"waves": "10%", "done": 0}', '{"waves": [5], "done": 0}', '{"waves": []}']
    + [f'{{"waves": ["10%"], "done": {begun}}}' for begun in ("-1", "2", "true", '"1"', "0.5")],
)
def test_a_plan_that_is_not_understood(content: str) -> None:
    with pytest.raises(PlanError):
        read_plan(content)


@pytest.mark.parametrize("held", ["true", '"yes"', '{"at": "nonsense"}', "{}"])
def test_whatever_pauses_pauses(held: str) -> None:
    assert read_plan(f'{{"waves": [], "done": 0, "paused": {held}}}').paused is not None
    assert read_plan('{"waves": [], "done": 0, "paused": false}').paused is None


@pytest.mark.parametrize("annotation", ["", "x", "[]", "{}", '{"at": "2026-11-30"}', '{"at": 5}', "[" * 100_000])
def test_a_record_that_was_spoilt(annotation: str) -> None:
    assert read_move(annotation) is None
