"""PolicySource against a small API server that can be made ill."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.admission.sets import PolicySets
from dra_gate.cluster import policies
from dra_gate.cluster.client import Client
from dra_gate.cluster.gate import GATE_PATH, GATES_PATH
from dra_gate.cluster.policies import PolicySource
from dra_gate.cluster.policy_map import MAPS_PATH, Refusal, name_of
from policy_publish.sets import gate, made, published

A, B, C = (made(version) for version in (1, 2, 3))
EVENTS_PATH = "/apis/events.k8s.io/v1/namespaces/dra-gate/events"


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.stop()


class Seen:
    """What a source told."""

    def __init__(self) -> None:
        self.sets: list[PolicySets] = []
        self.refusals: list[Refusal] = []
        self.prepared: tuple[str, ...] = ()

    def prepare(self, sets: tuple[Any, ...]) -> None:
        self.prepared = tuple(found.digest for found in sets)

    @property
    def codes(self) -> list[str]:
        return [refusal.code for refusal in self.refusals]


class Now:
    """A clock that the test puts forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@contextmanager
def following(fake: FakeApi, tmp_path: Path, clock: Now | None = None) -> Iterator[tuple[PolicySource, Seen]]:
    client = Client.connect(str(kubeconfig(tmp_path / f"config-{time.monotonic_ns()}", fake.url)))
    seen = Seen()
    source = PolicySource(
        client, seen.sets.append, seen.refusals.append, on_prepared=seen.prepare, identity="r", clock=clock or Now()
    )
    source.start()
    try:
        yield source, seen
        assert source.alive()
    finally:
        source.stop()
        client.close()


def eventually(probe: Callable[[], object], timeout: float = 20.0) -> None:
    """However slow the machine is: what has to come soon is measured on the real control plane."""
    ends = time.monotonic() + timeout
    while not probe():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)


_generation = [0]


def put_gate(fake: FakeApi, active: str, *accepted: str, **status_fields: Any) -> None:
    _generation[0] += 1
    entries = [{"digest": digest} for digest in accepted]
    fake.put(GATES_PATH, gate(active, entries, generation=_generation[0]) | {"status": status_fields})


def active(source: PolicySource) -> str:
    return source.sets.active.digest if source.sets is not None else ""


def accepted(source: PolicySource) -> list[str]:
    return [found.digest for found in source.sets.accepted] if source.sets is not None else []


def events(fake: FakeApi) -> list[dict[str, Any]]:
    return [obj for path, obj in list(fake.objects.items()) if path.startswith(EVENTS_PATH)]  # it is being written to


def test_publish_activate_and_go_back(fake: FakeApi, tmp_path: Path) -> None:
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: source.synced)
        assert source.sets is None
        assert source.waiting() == ["there is no Gate default: publish a policy set and activate it"]
        fake.put(MAPS_PATH, published(1))
        eventually(lambda: source.prepared == (A,))  # loaded before anybody activates it
        assert seen.prepared == ()  # but without a Gate nobody may conclude that other templates are superfluous
        put_gate(fake, A.digest)
        eventually(lambda: active(source) == A.digest)
        assert source.waiting() == []
        assert seen.sets[-1].generation == source.gate.generation if source.gate else False
        fake.put(MAPS_PATH, published(2))
        eventually(lambda: B.digest in seen.prepared)
        put_gate(fake, B.digest, A.digest)
        eventually(lambda: active(source) == B.digest)
        assert accepted(source) == [A.digest]
        put_gate(fake, A.digest, B.digest)
        eventually(lambda: active(source) == A.digest)
        assert [sets.active.digest for sets in seen.sets] == [A.digest, B.digest, A.digest]
        assert seen.refusals == []


def test_unready_until_the_active_set_is_in(fake: FakeApi, tmp_path: Path) -> None:
    put_gate(fake, A.digest)
    hold = threading.Event()
    fake.fault = lambda r: (hold.wait(25), None)[1] if r.path == MAPS_PATH else None
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: source.waiting() == ["PolicySet not listed yet"])  # the Gate is
        time.sleep(0.3)
        assert not source.synced
        fake.put(MAPS_PATH, published(1))
        hold.set()
        eventually(lambda: source.synced and active(source) == A.digest)


def spoilt(kind: str) -> dict[str, Any]:
    obj = published(2)
    if kind == "Invalid":
        obj["data"]["more.yaml"] = "kind: [x"
    elif kind == "NotImmutable":
        obj["immutable"] = False
    elif kind == "TooLarge":
        obj["data"]["more.yaml"] = "#" * (900 * 1024)
    elif kind == "OtherContent":
        obj["data"] = published(3)["data"]
    return obj


@pytest.mark.parametrize("kind", ["Invalid", "NotImmutable", "TooLarge", "OtherContent"])
def test_a_bad_set_is_refused_and_the_last_good_one_stays(fake: FakeApi, tmp_path: Path, kind: str) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: active(source) == A.digest)
        fake.put(MAPS_PATH, spoilt(kind))
        eventually(lambda: seen.codes == [kind] and events(fake))
        put_gate(fake, B.digest, A.digest)
        newest = _generation[0]
        eventually(lambda: source.sets and source.sets.generation == newest)
        assert active(source) == A.digest
        assert dict(source.refused) == {kind: 1}
        assert source.problems()[name_of(B.digest)].code == kind
        event = events(fake)[0]
        assert (event["reason"], event["type"]) == ("PolicySetRefused", "Warning")
        assert event["regarding"]["name"] == name_of(B.digest)
        assert event["regarding"]["uid"] == fake.objects[f"{MAPS_PATH}/{name_of(B.digest)}"]["metadata"]["uid"]
        assert A.digest[:12] in event["note"]
        # Mended: deleted and published as it should be. The Gate names it still.
        fake.remove(f"{MAPS_PATH}/{name_of(B.digest)}")
        fake.put(MAPS_PATH, published(2))
        eventually(lambda: active(source) == B.digest)
        assert source.problems() == {}


def test_edited_in_place_while_active(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: active(source) == A.digest)
        held = source.sets
        fake.remove(f"{MAPS_PATH}/{name_of(A.digest)}")
        fake.put(MAPS_PATH, {**published(2), "metadata": {**published(2)["metadata"], "name": name_of(A.digest)}})
        eventually(lambda: "OtherContent" in seen.codes)
        assert source.sets == held
        # A replica that starts now cannot know what was in use: it does not serve, and says why.
        with following(fake, tmp_path) as (late, _):
            eventually(lambda: late.synced)
            assert late.sets is None
            assert "not what the name says" in late.waiting()[0]


def test_a_new_replica_agrees_with_the_old_ones_about_the_last_good_set(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    fake.put(MAPS_PATH, spoilt("Invalid"))
    put_gate(fake, B.digest, history=[{"digest": A.digest, "at": "2026-01-01T00:00:00Z"}])
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: active(source) == A.digest)
        eventually(lambda: source.waiting() == [])
        eventually(lambda: seen.codes == ["Invalid"])


def test_a_set_that_is_not_published(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: active(source) == A.digest)
        put_gate(fake, C.digest, A.digest)
        eventually(lambda: seen.codes == ["NotPublished"] and events(fake))
        assert "uid" not in events(fake)[0]["regarding"]
        fake.put(MAPS_PATH, published(2))  # another: C is looked for again, and not told again
        eventually(lambda: B.digest in seen.prepared)
        assert active(source) == A.digest
        assert seen.codes == ["NotPublished"]
        fake.put(MAPS_PATH, published(3))
        eventually(lambda: active(source) == C.digest)


def test_activated_by_manifest_the_old_set_is_bridged_until_the_gate_lists_it(fake: FakeApi, tmp_path: Path) -> None:
    for version in (1, 2):
        fake.put(MAPS_PATH, published(version))
    put_gate(fake, A.digest)
    with following(fake, tmp_path, clock := Now()) as (source, _):
        eventually(lambda: active(source) == A.digest)
        put_gate(fake, B.digest)  # says nothing about A
        eventually(lambda: active(source) == B.digest)
        assert accepted(source) == [A.digest]
        put_gate(fake, B.digest, A.digest)  # the controller
        newest = _generation[0]
        eventually(lambda: source.sets and source.sets.generation == newest)
        put_gate(fake, B.digest)  # withdrawn, well before the bridge would end
        eventually(lambda: accepted(source) == [])
        # As fast as events come: what was listed for a moment is not bridged either.
        with source.lock:
            put_gate(fake, A.digest)
            put_gate(fake, A.digest, B.digest)
            put_gate(fake, A.digest)
            newest = _generation[0]
            time.sleep(0.1)
        eventually(lambda: source.sets and source.sets.generation == newest)
        assert accepted(source) == []
        put_gate(fake, B.digest)
        eventually(lambda: active(source) == B.digest)
        clock.ahead += policies.BRIDGE_SECONDS
        # Without a controller the bridge ends by itself.
        put_gate(fake, A.digest)
        eventually(lambda: active(source) == A.digest)
        assert accepted(source) == [B.digest]
        clock.ahead += policies.BRIDGE_SECONDS
        put_gate(fake, A.digest)
        eventually(lambda: accepted(source) == [])


def test_what_was_loaded_once_does_not_outlive_its_config_map(fake: FakeApi, tmp_path: Path) -> None:
    for version in (1, 2):
        fake.put(MAPS_PATH, published(version))
    put_gate(fake, B.digest)
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: active(source) == B.digest)
        put_gate(fake, A.digest, B.digest)
        eventually(lambda: active(source) == A.digest)
        fake.remove(f"{MAPS_PATH}/{name_of(B.digest)}")  # accepted still: that goes on
        eventually(lambda: "NotPublished" in seen.codes)
        assert accepted(source) == [B.digest]
        put_gate(fake, B.digest, A.digest)  # but it can't be activated any more: a new replica could not either
        newest = _generation[0]
        eventually(lambda: source.sets and source.sets.generation == newest)
        assert active(source) == A.digest
        fake.put(MAPS_PATH, published(2))
        eventually(lambda: active(source) == B.digest)


def test_the_gate_is_deleted(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: active(source) == A.digest)
        fake.remove(GATE_PATH)
        eventually(lambda: source.gate is None)
        assert active(source) == A.digest
        put_gate(fake, A.digest)
        eventually(lambda: source.gate is not None)


@pytest.mark.parametrize("deleted", [False, True])
def test_an_older_backup_is_restored(fake: FakeApi, tmp_path: Path, deleted: bool) -> None:
    """All replicas, those that have run on among them, go by the Gate that is there, whatever its version."""
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    backup = {path: json.loads(json.dumps(obj)) for path, obj in fake.objects.items()}
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: active(source) == A.digest)
        fake.put(MAPS_PATH, published(2))
        put_gate(fake, B.digest)
        eventually(lambda: active(source) == B.digest)
        if deleted:
            fake.remove(GATE_PATH)
            eventually(lambda: source.gate is None)
        eventually(lambda: len(fake.watchers) >= 2)
        with fake.lock:
            fake.objects.clear()
            fake.objects.update(backup)
            fake.log.clear()
            fake.version = 102
        fake.send({"type": "BOOKMARK", "object": {"kind": "Thing", "metadata": {"resourceVersion": "102"}}})
        eventually(lambda: active(source) == A.digest)
        eventually(lambda: source.published() == 1)


def test_refresh_sees_what_the_watches_have_not_brought(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: source.synced)
        fake._emit = lambda *_: None  # type: ignore[method-assign]  # the watches fall silent
        fake.put(MAPS_PATH, published(2))
        put_gate(fake, B.digest, A.digest)
        time.sleep(0.2)
        assert active(source) == A.digest
        assert source.refresh()
        assert active(source) == B.digest
        assert accepted(source) == [A.digest]


def test_refresh_is_shared_and_never_older_than_the_question(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "LIVE_SECONDS", 20.0)  # a pause of the machine is no API server that can't be asked
    asks = 10
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: source.synced)
        fake._emit = lambda *_: None  # type: ignore[method-assign]
        fake.requests.clear()
        wrong: list[str] = []
        began = time.monotonic()

        def ask() -> None:
            for _ in range(asks):
                with fake.lock:
                    put_gate(fake, A.digest)
                    mine = _generation[0]
                asked = source.refresh()
                sets = source.sets
                if not asked or sets is None or sets.generation < mine:
                    wrong.append(f"asked after {mine}: {asked}, saw {sets and sets.generation}")

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        looks = [r for r in fake.requests if r.path == GATE_PATH]
        assert wrong == []
        assert len(looks) >= asks  # each question of one thread needs a look that began after it
        assert len(looks) < asks * len(threads) / 2
        assert len(looks) <= (time.monotonic() - began) / policies.REFRESH_SECONDS + 2  # ten a second, whoever asks


def test_refresh_without_an_api_server(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: source.synced)
        fake.fault = lambda r: (503, status(503, "ServiceUnavailable"), {}) if not r.is_watch else None
        assert source.refresh() is False
        assert active(source) == A.digest


def test_an_unreachable_set_is_tried_again(fake: FakeApi, tmp_path: Path) -> None:
    put_gate(fake, A.digest)
    ill = [True]

    def fault(request: Request) -> Answer | None:
        looked_for = "fieldSelector" in request.params
        return (503, status(503, "ServiceUnavailable"), {}) if looked_for and ill[0] else None

    fake.fault = fault
    with following(fake, tmp_path) as (source, seen):
        time.sleep(0.3)
        assert not source.synced
        assert seen.codes == []  # not known is not the same as not published
        ill[0] = False
        eventually(lambda: seen.codes == ["NotPublished"])


def test_a_callback_that_fails_is_called_again(fake: FakeApi, tmp_path: Path) -> None:
    fake.put(MAPS_PATH, published(1))
    put_gate(fake, A.digest)
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    calls: list[str] = []

    def use(sets: PolicySets) -> None:
        calls.append(sets.active.digest)
        if len(calls) == 1:
            raise RuntimeError("once")

    source = PolicySource(client, use).start()
    try:
        eventually(lambda: active(source) == A.digest)
        assert calls == [A.digest] * 2
    finally:
        source.stop()
        client.close()


def test_who_publishes_nonsense_all_day_gets_few_events(fake: FakeApi, tmp_path: Path) -> None:
    with following(fake, tmp_path) as (source, seen):
        eventually(lambda: source.synced)
        for number in range(60):
            fake.put(MAPS_PATH, {**published(1), "metadata": {**published(1)["metadata"], "name": f"x-{number}"}})
        eventually(lambda: len(seen.refusals) == 60)
        assert len(events(fake)) == policies.EVENTS[0]
        assert source.refused["BadName"] == 60


def test_only_what_may_be_needed_stays_loaded(fake: FakeApi, tmp_path: Path) -> None:
    for version in range(1, 9):
        fake.put(MAPS_PATH, published(version))
    put_gate(fake, A.digest)
    with following(fake, tmp_path) as (source, _):
        eventually(lambda: source.synced and all(entry.obj is None for entry in source._maps.values()))
        assert len(source._loaded) == 3  # active, and the newest two
        dropped = next(made(v) for v in range(2, 9) if made(v).digest not in source._loaded)
        put_gate(fake, dropped.digest, A.digest)  # an old one: fetched again
        eventually(lambda: active(source) == dropped.digest)
