"""The short form of `make prove-hostile`: all attacks together beside honest calls, then what is left of them.

Latency is only held to be of this world: on a shared machine the attackers' own work shows in it. The measured ratios
are in docs/proofs/hostile.md.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.api import wait_for
from dra_gate.server.worker import CONNECTIONS
from hostile.attacks import ATTACKS, attacking
from hostile.honest import call
from server.process import Served, review, served


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with served(folder) as server:
        yield server


def _settled(one: Served, seconds: float) -> float:
    """Open connections, once they are few, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := one.metrics()["dra_gate_connections_open"]) > 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _under_way(one: Served) -> bool:
    """Whether each kind of refusal that is counted below was sent a few times: attackers have the least priority."""
    refused = [line.get("status") for line in one.lines()]
    return all(refused.count(status) > 2 for status in (400, 413, 415))


def test_honest_calls_go_on_under_all_attacks_at_once(one: Served) -> None:
    worker = one.worker()
    assert not call(one, 0.5).wrong
    with attacking([attack.__name__ for attack in ATTACKS], one.port) as done:
        wait_for(lambda: _under_way(one), 60, "each kind of refusal", every=0.5)
        calls = call(one, 4, per_second=40)
        assert one.page("/readyz") == (200, "ok\n"), "the second port answers all the while"
        most = one.metrics()["dra_gate_connections_open"]
    assert not calls.wrong
    assert len(calls.milliseconds) == 160
    assert calls.median < 5000
    assert most <= CONNECTIONS + 20
    assert done["HTTP 413"] > 0
    assert done["HTTP 415"] > 0
    assert done["HTTP 400"] > 0
    assert done["HTTP 500"] == 0
    assert one.worker() == worker, "the same process as before"
    assert _settled(one, 30) <= 5
    assert one.memory() < 200
    assert not [line for line in one.lines() if line["level"] not in ("info", "warning")]


def test_connections_and_requests_leave_nothing_behind(one: Served) -> None:
    """The ones before have raised the process to its working size; more of the same must not raise it further."""
    body = review()

    def some() -> float:
        for _ in range(150):
            assert one.call("POST", "/validate", body)[0] == 200
        with contextlib.closing(one.connection()) as kept:
            for _ in range(1000):
                kept.request("POST", "/validate", body, {"Content-Type": "application/json"})
                kept.getresponse().read()
        return one.memory()

    before = some()
    after = [some() for _ in range(2)]
    assert after[-1] - before < 5, "300 connections of 57 KiB would be 17 MB"
