from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.fake_api import FakeApi, status
from cluster.test_reflector import eventually
from dra_gate.cluster.client import Client
from dra_gate.cluster.lease import Lease, Timing

LEASES = "/apis/coordination.k8s.io/v1/namespaces/dra-gate/leases"
PATH = f"{LEASES}/controller"
# Nobody loses it where the machine pauses for a second.
FAST = Timing(duration=4.0, renew=2.0, retry=0.1)


class Candidate:
    def __init__(self, client: Client, name: str, timing: Timing = FAST) -> None:
        self.log: list[tuple[str, float]] = []
        self.lease = Lease(
            client,
            "dra-gate",
            "controller",
            name,
            timing=timing,
            on_started=lambda: self.log.append(("started", time.monotonic())),
            on_stopped=lambda: self.log.append(("stopped", time.monotonic())),
        )

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.log]


@pytest.fixture
def candidates(client: Client) -> Iterator[tuple[Candidate, Candidate]]:
    pair = Candidate(client, "one"), Candidate(client, "two")
    yield pair
    for candidate in pair:
        candidate.lease.stop()


def spec(fake: FakeApi) -> dict[str, Any]:
    found: dict[str, Any] = fake.objects[PATH]["spec"]
    return found


def test_first_takes_it_second_waits_and_takes_over_when_it_is_given_up(
    fake: FakeApi, candidates: tuple[Candidate, Candidate]
) -> None:
    one, two = candidates
    one.lease.start()
    eventually(one.lease.held)
    first = spec(fake)
    assert (first["holderIdentity"], first["leaseDurationSeconds"], first["leaseTransitions"]) == ("one", 4, 0)
    for key in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first[key])
    two.lease.start()
    ends = time.monotonic() + FAST.duration + 0.5
    while time.monotonic() < ends:  # renewed for longer than it lasts: never taken
        assert one.lease.held()
        assert not two.lease.held()
        time.sleep(0.01)
    assert spec(fake)["renewTime"] > first["renewTime"]
    assert spec(fake)["acquireTime"] == first["acquireTime"]
    one.lease.stop()
    assert one.words == ["started", "stopped"]
    assert not one.lease.held()
    assert eventually(two.lease.held) < FAST.duration / 2  # given up: no need to wait for its end
    assert (spec(fake)["holderIdentity"], spec(fake)["leaseTransitions"]) == ("two", 1)
    assert two.lease.holder() == "two"


def test_dead_holder_is_followed_after_its_time_and_not_before(
    fake: FakeApi, client: Client, candidates: tuple[Candidate, Candidate]
) -> None:
    fake.put(
        LEASES,
        {
            "metadata": {"name": "controller", "namespace": "dra-gate"},
            "spec": {
                "holderIdentity": "dead",
                "leaseDurationSeconds": 2,
                "leaseTransitions": 4,
                # Its clock was a day ahead or behind: no matter, ours says how long it stays unchanged.
                "renewTime": "2099-01-01T00:00:00.000000Z",
                "acquireTime": "2001-01-01T00:00:00.000000Z",
            },
        },
    )
    began = time.monotonic()
    one, _ = candidates
    one.lease.start()
    eventually(one.lease.held)
    assert 1.9 < time.monotonic() - began < 5
    assert spec(fake)["leaseTransitions"] == 5


def test_frozen_server_ends_leading_in_time(fake: FakeApi, candidates: tuple[Candidate, Candidate]) -> None:
    one, _ = candidates
    one.lease.start()
    eventually(one.lease.held)
    thaw = threading.Event()
    frozen = time.monotonic()
    fake.fault = lambda _: thaw.wait(10) and None
    eventually(lambda: "stopped" in one.words)
    # The renew time after the last renewal at the latest, and before anybody may take it.
    assert one.log[-1][1] - frozen < FAST.duration
    assert not one.lease.held()
    fake.fault = None
    thaw.set()
    eventually(lambda: one.words == ["started", "stopped", "started"])
    assert one.lease.held()


def test_short_trouble_is_survived(fake: FakeApi, candidates: tuple[Candidate, Candidate]) -> None:
    one, _ = candidates
    one.lease.start()
    eventually(one.lease.held)
    fake.fault = lambda _: (503, status(503, "ServiceUnavailable"), {})
    time.sleep(0.3)
    fake.fault = None
    time.sleep(0.7)
    assert one.words == ["started"]


def test_edit_by_somebody_else_is_no_loss_but_another_holder_is(
    fake: FakeApi, candidates: tuple[Candidate, Candidate]
) -> None:
    one, _ = candidates
    one.lease.start()
    eventually(one.lease.held)
    lease = fake.objects[PATH]
    fake.put(LEASES, {**lease, "metadata": {**lease["metadata"], "labels": {"a": "b"}}})
    time.sleep(0.5)
    assert one.words == ["started"]
    assert fake.objects[PATH]["metadata"]["labels"] == {"a": "b"}
    fake.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "thief", "leaseDurationSeconds": 60}})
    assert eventually(lambda: "stopped" in one.words) < FAST.renew - 2 * FAST.retry, "not when its time is up"
    time.sleep(0.4)
    assert spec(fake)["holderIdentity"] == "thief"


def test_deleted_lease_is_made_again(fake: FakeApi, candidates: tuple[Candidate, Candidate]) -> None:
    one, _ = candidates
    one.lease.start()
    eventually(one.lease.held)
    fake.remove(PATH)
    eventually(lambda: PATH in fake.objects)
    time.sleep(0.3)
    assert one.words == ["started"]


def test_never_two_leaders_through_twenty_handovers(fake: FakeApi, client: Client) -> None:
    live = [Candidate(client, f"c{i}") for i in range(3)]
    for candidate in live:
        candidate.lease.start()
    try:
        for turn in range(20):
            eventually(lambda: any(c.lease.held() for c in live))
            leading = [c for c in live if c.lease.held()]
            assert len(leading) == 1
            live.remove(leading[0])
            leading[0].lease.stop()
            live.append(Candidate(client, f"n{turn}"))
            live[-1].lease.start()
        assert spec(fake)["leaseTransitions"] >= 19
    finally:
        for candidate in live:
            candidate.lease.stop()


def test_timing_must_make_sense() -> None:
    with pytest.raises(ValueError, match="longer"):
        Timing(duration=10, renew=10, retry=2)
