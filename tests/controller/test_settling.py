"""For how long something has said what it says."""

from __future__ import annotations

from dra_gate.cluster.facts import EARLIER_SECONDS
from dra_gate.controller.settling import SETTLE_SECONDS, Held, Settling


def test_it_waits_for_longer_than_webhooks_forgive() -> None:
    assert SETTLE_SECONDS > EARLIER_SECONDS + 1


def test_what_is_said_again_goes_on_and_what_changes_begins_anew() -> None:
    now = [100.0]
    settling = Settling(lambda: now[0])
    settling.note("a", "x")
    now[0] += 3
    settling.note("a", "x")
    settling.note("b", "y")
    assert settling.held() == {"a": Held("x", 3.0, changed=False), "b": Held("y", 0.0, changed=False)}
    settling.note("a", "z")
    now[0] += 1
    assert settling.held()["a"] == Held("z", 1.0, changed=True)
    settling.note("a", "x")
    assert settling.held()["a"] == Held("x", 0.0, changed=True), "back again is a change"
    settling.forget("a")
    settling.forget("never there")
    assert set(settling.held()) == {"b"}


def test_settled() -> None:
    assert Held("x", SETTLE_SECONDS, changed=True).settled(told=False)
    assert not Held("x", SETTLE_SECONDS - 0.1, changed=False).settled(told=False)
    assert Held("x", 0.0, changed=False).settled(told=True), "it was before this process began"
    assert not Held("x", 0.0, changed=True).settled(told=True)
