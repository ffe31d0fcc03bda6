"""The counts of all Pods: each once, whatever order, whoever leads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_gate.migration import tally as module
from dra_gate.migration.cohort import HOUR, Cohorts, Key
from dra_gate.migration.counting import Facts, PodSeen, read_pod
from dra_gate.migration.tally import Tally, nowhere
from migration.seen import ended, pod, running, waiting
from migration.simulated import START

KEY = Key("dra", "lilac", 2, "h100", "train@1")
PLUGIN = Key("device-plugin", "lilac", 2, "h100")
NOW = START + HOUR // 2
# A Pod's life in looks, as different Pods have it.
LIVES: list[list[dict[str, Any]]] = [
    [{}, {"bound": 2}, {"bound": 2, "containerStatuses": running(8)}],
    [{}, {"bound": 2}, {"bound": 2, "phase": "Failed", "reason": "UnexpectedAdmissionError"}],
    [{}, {"bound": 9, "containerStatuses": running(20)}, {"bound": 9, "containerStatuses": running(
        50, restartCount=1, lastState=ended(20, 40, 1))}],
    [{"bound": 1}, {"bound": 1, "containerStatuses": waiting("ImagePullBackOff")}],
    [{}],
    [{"bound": 3, "containerStatuses": running(4)}, {"bound": 3, "phase": "Succeeded", "containerStatuses": [
        {"state": ended(4, 90)}]}],
]  # fmt: skip


def look(number: int, stage: int) -> PodSeen:
    seen = read_pod(
        pod(
            uid=f"pod-{number}",
            created=number % 4,
            version=10 * number + stage + 1,
            **LIVES[number % len(LIVES)][stage],
        ),
        NOW + 100 * stage,
    )
    assert seen is not None
    return seen


def see(tally: Tally, seen: PodSeen) -> None:
    tally.see(seen.uid, KEY if int(seen.uid[4:]) % 2 else PLUGIN, seen.facts, NOW)


def all_looks(number: int) -> list[PodSeen]:
    return [look(number, stage) for stage in range(len(LIVES[number % len(LIVES)]))]


def counts(tally: Tally) -> bytes:
    return tally.cohorts(NOW + 60_000).dumps()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_and_any_repetition_counts_the_same(data: st.DataObject) -> None:
    looks = [one for number in range(8) for one in all_looks(number)]
    told = [("see", one) for one in looks] + [("gone", number) for number in range(0, 8, 3)]
    shuffled = data.draw(st.permutations(told + data.draw(st.lists(st.sampled_from(told), max_size=10))))
    plain, mixed = Tally(), Tally()
    for tally, order in ((plain, told), (mixed, shuffled)):
        known: set[str] = set()
        late = []
        for what, one in order:
            if what == "see":
                see(tally, one)  # type: ignore[arg-type]
                known.add(one.uid)  # type: ignore[union-attr]
            elif f"pod-{one}" in known:
                tally.gone(f"pod-{one}", NOW + 5_000)
            else:
                late.append(one)  # nothing goes before it was there
        for one in late:
            tally.gone(f"pod-{one}", NOW + 5_000)
    assert counts(mixed) == counts(plain)
    assert mixed.pods == plain.pods


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whoever_takes_over_counts_the_same_as_if_nobody_had_gone(data: st.DataObject) -> None:
    """The leader may end after any write, with a standby that saw everything, or with none but all Pods still there."""
    steps: list[tuple[str, Any]] = [("see", one) for number in range(8) for one in all_looks(number)]
    steps += [("gone", number) for number in (1, 4)]
    written_at = data.draw(st.integers(0, len(steps)))
    ends_at = data.draw(st.integers(written_at, len(steps)))
    standby = data.draw(st.booleans())
    without, leader, other = Tally(), Tally(), Tally()
    alive: set[str] = set()
    stored = leader.dumps(NOW, 0)

    def tell(tally: Tally, what: str, one: Any) -> None:
        if what == "see":
            see(tally, one)
        else:
            tally.gone(f"pod-{one}", NOW + 5_000)

    for number, (what, one) in enumerate(steps):
        if number == written_at:
            stored = leader.dumps(NOW, 0)
        if number == ends_at:
            if not standby:  # it lists what is there
                other = Tally()
                latest = {seen.uid: seen for what_, seen in steps[:number] if what_ == "see" and seen.uid in alive}
                for seen in latest.values():
                    see(other, seen)
            leader = other.adopt(*Tally.loads(stored), alive)
        for tally in (without, leader, *((other,) if number < ends_at and other is not leader else ())):
            tell(tally, what, one)
        (alive.add(one.uid) if what == "see" else alive.discard(f"pod-{one}"))
    if ends_at == len(steps):
        leader = other.adopt(*Tally.loads(stored), alive) if standby else leader
    if standby or written_at == ends_at:
        assert counts(leader) == counts(without)
    assert leader.pods == without.pods


def test_a_pod_that_came_and_went_between_write_and_crash_is_counted_by_who_saw_it() -> None:
    leader, standby = Tally(), Tally()
    for tally in (leader, standby):
        for seen in all_looks(1):
            see(tally, seen)
        tally.gone("pod-1", NOW)
    stored = leader.dumps(NOW, 0)
    for seen in all_looks(2):
        see(standby, seen)
    standby.gone("pod-2", NOW)
    found = standby.adopt(*Tally.loads(stored), set())
    cells = [cell for cells in found.cohorts(NOW).hours.values() for cell in cells.values()]
    assert sum(cell.submitted for cell in cells) == 2
    again = found.adopt(*Tally.loads(found.dumps(NOW, 0)), set())
    assert counts(again) == counts(found)


def test_what_is_written_is_read_again() -> None:
    tally = Tally(START)
    for number in range(8):
        for seen in all_looks(number):
            see(tally, seen)
    tally.gone("pod-3", NOW)
    tally.denied("owner", NOW, KEY, NOW)
    tally.stands("doubled", {"a/b/c": nowhere("dra", "lilac")}, NOW)
    tally.known["active"] = "x"
    written = tally.dumps(NOW, 77)
    again, when = Tally.loads(written)
    assert when == NOW
    assert counts(again) == counts(tally)
    assert again.known == {"active": "x"}
    assert again.dumps(NOW, 0) == written


@pytest.mark.parametrize("spoil", ["{", b"\xff", "[]", "keys", "cohorts"])
def test_what_is_no_tally_is_refused(spoil: Any) -> None:
    tally = Tally()
    see(tally, look(1, 0))
    stored = json.loads(tally.dumps(NOW, 0))
    if spoil in stored:
        stored[spoil] = []
        spoil = json.dumps(stored)
    with pytest.raises(ValueError, match="these are no"):
        Tally.loads(spoil.encode() if isinstance(spoil, str) else spoil)


def test_the_first_controller_counts_nobody_who_was_there_before() -> None:
    """Those that failed then are gone: what is left of them would say that all is well."""
    tally = Tally()
    for number, created in ((0, -500), (1, 20)):
        seen = read_pod(pod(uid=f"pod-{number}", created=created), NOW)
        assert seen is not None
        see(tally, seen)
    tally.begin(START)
    assert tally.pods == 1
    early = read_pod(pod(uid="pod-9", created=-1), NOW)
    assert early is not None
    see(tally, early)
    assert tally.pods == 1


def test_a_clock_that_jumps_spoils_nothing() -> None:
    tally = Tally()
    see(tally, look(1, 2))
    before = counts(tally)
    future = read_pod(pod(uid="pod-5", created=30 * 24 * 3600), NOW)
    assert future is not None
    see(tally, future)
    tally.denied("owner", NOW + 5 * HOUR, KEY, NOW)
    assert counts(tally) == before
    assert tally.uncounted == 2
    jumped = NOW + 40 * 24 * HOUR  # our own clock
    for _ in range(2):
        tally.stands("over_cap", {"lilac": nowhere("dra", "lilac")}, jumped)
    tally.mark(jumped, "?")
    found = tally.cohorts(NOW)
    assert len(found.hours) == 2
    assert max(found.hours) < NOW + 2 * 24 * HOUR


def test_a_denial_counts_once_an_owner_and_hour() -> None:
    tally = Tally()
    for minute in (0, 5, 20, 61):
        tally.denied("owner", START + 60_000 * minute, KEY, START + 2 * HOUR)
    tally.denied("other", START, KEY, START + 2 * HOUR)
    tally.settle(START + 9 * HOUR)
    tally.denied("owner", START, KEY, START + 9 * HOUR)  # the Event is listed again
    found = {hour: sum(cell.denied for cell in cells.values()) for hour, cells in tally.cohorts(NOW).hours.items()}
    assert found == {START: 2, START + HOUR: 1}


def test_what_is_wrong_counts_once_until_it_is_right_again() -> None:
    tally = Tally()
    wrong, right = {"lilac": nowhere("dra", "lilac")}, dict[str, Key]()
    for now in (wrong, right, wrong, wrong, wrong):  # the first was gone before anybody could be sure
        tally.stands("over_cap", now, NOW)
    tally, _ = Tally.loads(tally.dumps(NOW, 0))  # another leads
    for now in (wrong, wrong, right, wrong, wrong):
        tally.stands("over_cap", now, NOW)
    assert sum(cell.over_cap for cells in tally.cohorts(NOW).hours.values() for cell in cells.values()) == 2


def test_more_pods_than_there_is_room_for_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN", 3)
    tally = Tally()
    for number in range(5):
        for _ in range(2):
            see(tally, look(number, 0))
    assert (tally.pods, tally.uncounted) == (3, 2)


def test_merged_counts_are_their_sum() -> None:
    one, other = Tally(), Tally()
    for number in range(8):
        for seen in all_looks(number):
            see(one if number % 2 else other, seen)
    whole, merged = Tally(), Cohorts()
    for number in range(8):
        for seen in all_looks(number):
            see(whole, seen)
    for tally in (one, other):
        merged.merge(tally.cohorts(NOW + 60_000))
    assert merged.dumps() == counts(whole)


def test_devices_held_by_lane() -> None:
    tally = Tally()
    for number in (0, 1):
        for seen in all_looks(number):
            see(tally, seen)
    tally.note("pod-1", Facts(0, ended=NOW))
    assert tally.held() == {("lilac", "device-plugin"): 2}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_counts_after_a_time_are_those_of_the_pods_created_since(data: st.DataObject) -> None:
    """Though some have gone, or the counts were handed on; whatever the hour has that it falls into."""
    since = START + 1000 * data.draw(st.integers(-2, 6)) + data.draw(st.sampled_from([-HOUR, 0, 1]))
    if data.draw(st.booleans()):
        since -= since % HOUR
    asked_at = data.draw(st.integers(0, 8))
    tally, wanted = Tally(), Tally()
    for number in range(8):
        if number == asked_at:
            tally.after(since, NOW)
            tally = Tally().adopt(*Tally.loads(tally.dumps(NOW, 0)), {f"pod-{one}" for one in range(number)})
        for seen in all_looks(number):
            see(tally, seen)
            if seen.facts.created >= since:
                see(wanted, seen)
        if number % 3 == 0:
            for one in (tally, wanted):
                one.gone(f"pod-{number}", NOW + 5_000)
                one.note(f"pod-{number}", Facts(0, flags=1))
    tally.after(since, NOW)
    for one in (tally, tally, wanted, wanted):
        one.stands("over_cap", {"x": nowhere("dra", "lilac")}, NOW)
    found = tally.after(since, NOW + 60_000)
    assert _sums(found) == _sums(wanted.cohorts(NOW + 60_000))


def _sums(cohorts: Cohorts) -> dict[tuple[int, Key], Any]:
    return {(hour, key): cell for hour, key, cell in cohorts.between(0, 1 << 60) if cell != type(cell)()}
