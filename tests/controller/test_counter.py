"""What the counter hears of, on a fake API server: Events are whatever somebody wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import kubeconfig
from cluster.fake_api import FakeApi
from dra_gate.admission.sets import PolicySets
from dra_gate.cluster.client import Client
from dra_gate.controller import counter as counter_module
from dra_gate.controller import counter_inbox
from dra_gate.controller.arbiter import ArbiterController
from dra_gate.controller.counter import CounterController
from dra_gate.controller.counter_inbox import Inbox
from dra_gate.controller.decisions import DecisionController
from dra_gate.migration.cohort import HOUR
from migration.seen import at, claim, pod
from migration.simulated import START
from migration.test_counting import policy_set

__all__ = ["policy_set"]
SAID = 'pods "r-" is forbidden: admission webhook "validate.dra-gate.io" denied the request: POLICY_NO_TENANT'


def denied(uid: str = "u", name: str = "r", seconds: float = 5) -> dict[str, Any]:
    about = {"kind": "ReplicaSet", "namespace": "lilac", "name": name, "uid": uid}
    return {"involvedObject": about, "reason": "FailedCreate", "message": SAID, "lastTimestamp": at(seconds)}


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    made = FakeApi()
    yield made
    made.stop()


def test_an_event_about_an_owner_of_a_made_up_name_is_no_request(
    fake: FakeApi, tmp_path: Path, policy_set: Any
) -> None:
    """It would be a watch of all Pods, by the controller's own rights, that keeps the counter as long as it lasts."""
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    decisions = DecisionController(client, identity="t", leading=lambda: True)
    arbiter = ArbiterController(client, decisions, leading=lambda: True)
    counter = CounterController(client, decisions, arbiter, leading=lambda: True)
    for uid, name in (("u", "../../../../../../api/v1/pods?watch=true&x="), ("v", "r")):
        counter._inbox._saw_denial(("lilac", "e"), denied(uid, name))
    counter._tally.begin(1)
    counter._take_denials(PolicySets(policy_set))
    assert [one.path for one in fake.requests] == ["/apis/apps/v1/namespaces/lilac/replicasets/r"]
    client.close()


def test_who_does_not_lead_keeps_no_more_refusals_than_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes them from a replica that waits for its turn, and anybody may write such Events."""
    monkeypatch.setattr(counter_inbox, "DENIALS", 30)
    inbox = Inbox(client=None)  # type: ignore[arg-type]
    for number in range(100):
        inbox._saw_denial(("lilac", "e"), denied(f"u-{number}", seconds=number * HOUR / 1000))
    assert [one.owner for one in inbox.take_denials(1000)] == [f"u-{number}" for number in range(70, 100)]


def test_an_event_tells_only_of_a_pod_of_its_own_namespace() -> None:
    """Its namespace is all that the API server checks of what it is about."""
    inbox = Inbox(client=None)  # type: ignore[arg-type]
    uid = pod()["metadata"]["uid"]
    inbox.saw_pod(("lilac", "p"), pod())
    about = {"kind": "Pod", "name": "p", "uid": uid}
    inbox._saw_unprepared(("mint", "e"), {"involvedObject": {**about, "namespace": "mint"}})
    inbox._saw_unprepared(("lilac", "e"), {"involvedObject": {**about, "namespace": "lilac", "name": "q"}})
    assert inbox.take().unprepared == {}
    inbox._saw_unprepared(("lilac", "e"), {"involvedObject": {**about, "namespace": "lilac"}})
    assert list(inbox.take().unprepared) == [uid]


@pytest.mark.parametrize("skew", [0.0, 900.0, -900.0])
def test_a_clock_that_is_ahead_makes_no_hard_stop(
    fake: FakeApi, tmp_path: Path, policy_set: Any, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """Ten minutes after binding who has not started has failed: of Pods that were bound just now nobody has."""
    now = START + 30_000
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    monkeypatch.setattr(client, "_ahead", skew)
    monkeypatch.setattr(counter_module, "now_ms", lambda: now + round(1000 * skew))
    decisions = DecisionController(client, identity="t", leading=lambda: True)
    arbiter = ArbiterController(client, decisions, leading=lambda: True)
    counter = CounterController(client, decisions, arbiter, leading=lambda: True)
    counter._inbox.saw_namespace(("", "lilac"), {"metadata": {"labels": {"dra-gate.io/lane": "dra"}}})
    for number in range(10):
        counter._inbox.saw_pod(("lilac", f"p-{number}"), pod(uid=f"u-{number}", created=5, bound=9))
    counter._drain(PolicySets(policy_set))
    counter._loaded = True
    assert counter.stops(0.05, 0) == ()
    assert counter._tally.pods == 10
    client.close()


def test_while_claims_are_listed_anew_no_device_is_in_two(
    fake: FakeApi, tmp_path: Path, policy_set: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that was given on while nobody watched: the new claim comes before it is known that the old one is gone.
    In a large cluster that takes longer than two looks."""
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    decisions = DecisionController(client, identity="t", leading=lambda: True)
    arbiter = ArbiterController(client, decisions, leading=lambda: True)
    counter = CounterController(client, decisions, arbiter, leading=lambda: True)
    cache = {one.name: one for one in decisions.reflectors}["decisions/ResourceClaim"]
    for one in (*decisions.reflectors, *counter.reflectors):
        one.synced.set()
        one._version = "1"
    decisions.use([policy_set])
    counter.use(PolicySets(policy_set))
    counter._loaded = True
    looks: list[int] = []
    monkeypatch.setattr(counter, "_look", lambda _: looks.append(len(decisions.in_two())))
    monkeypatch.setattr(counter, "_save", lambda: None)

    def turn() -> None:
        counter._look_at = 0.0
        counter.turn()

    def listed() -> Iterator[dict[str, Any]]:
        yield claim("h100", name="new", uid="v", namespace="lilac")
        assert (decisions.in_two(), decisions.seen().doubled) == ({}, {})
        turn()

    cache._sink.upsert(claim("h100", name="old", uid="u", namespace="lilac"))
    turn()
    cache._version = None
    cache._sink.replace(listed())
    assert looks == [0]
    cache._version = "9"
    turn()
    assert looks == [0, 0]
    cache._sink.upsert(claim("h100", name="third", uid="w", namespace="lilac"))
    turn()
    assert looks == [0, 0, 1]
    client.close()
