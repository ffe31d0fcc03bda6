from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from cluster.test_client import THINGS, thing
from dra_gate.cluster.client import Client
from dra_gate.cluster.reflector import Backoff, Reflector


class Store:
    """A sink that keeps names and counts what it is told."""

    shape: type | None = None

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.fail = 0  # how many of the next calls raise
        self.replaced = 0

    def _maybe(self) -> None:
        if self.fail:
            self.fail -= 1
            raise RuntimeError("the sink is broken")

    def replace(self, objects: Iterable[dict[str, Any]]) -> None:
        self._maybe()
        found = {obj["metadata"]["name"]: obj for obj in objects}
        self.replaced += 1
        self.objects = found  # last: this is what tests wait for

    def upsert(self, obj: dict[str, Any]) -> None:
        self._maybe()
        self.objects[obj["metadata"]["name"]] = obj

    def delete(self, obj: dict[str, Any]) -> None:
        self._maybe()
        self.objects.pop(obj["metadata"]["name"], None)


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "did not come true"
        time.sleep(0.01)
    return time.monotonic() - began


@contextmanager
def reflecting(client: Client, **options: Any) -> Iterator[tuple[Reflector, Store]]:
    store = Store()
    reflector = Reflector(client, THINGS, store, "things", **options).start()
    try:
        yield reflector, store
    finally:
        reflector.stop()
        assert not reflector.alive()


def test_list_then_watch(fake: FakeApi, client: Client) -> None:
    for i in range(1203):
        fake.put(THINGS, thing(f"t{i:04}", metadata={"name": f"t{i:04}", "managedFields": [{"manager": "x"}]}))
    with reflecting(client) as (reflector, store):
        assert reflector.synced.wait(10)
        assert len(store.objects) == 1203
        assert [r.params.get("limit") for r in fake.requests[:3]] == ["500", "500", "500"]
        eventually(lambda: reflector.watches)
        fake.put(THINGS, thing("new", metadata={"name": "new", "managedFields": []}))
        fake.remove(f"{THINGS}/t0000")
        eventually(lambda: "new" in store.objects and "t0000" not in store.objects)
        # Lists and events look alike to the sink, and the largest useless part is gone.
        for name in ("t0001", "new"):
            assert store.objects[name]["kind"] == "Thing"
            assert store.objects[name]["apiVersion"] == "v1"
            assert "managedFields" not in store.objects[name]["metadata"]
        watch = next(r for r in fake.requests if r.is_watch)
        assert watch.params["allowWatchBookmarks"] == "true"
        assert 240 <= int(watch.params["timeoutSeconds"]) <= 480
        assert reflector.age() < 5


def test_label_selector_goes_to_list_and_watch(fake: FakeApi, client: Client) -> None:
    with reflecting(client, label_selector="a=b") as (reflector, _):
        assert reflector.synced.wait(5)
        eventually(lambda: len(fake.requests) >= 2)
        assert {r.params.get("labelSelector") for r in fake.requests} == {"a=b"}


def test_deletion_in_the_gap_of_an_expired_watch_is_seen(fake: FakeApi, client: Client) -> None:
    for name in ("a", "b"):
        fake.put(THINGS, thing(name))
    with reflecting(client) as (reflector, store):
        eventually(lambda: set(store.objects) == {"a", "b"} and fake.watchers)
        fake.fault = lambda _: (503, status(503, "ServiceUnavailable"), {})
        fake.break_connections()
        fake.remove(f"{THINGS}/a")
        fake.compact()
        time.sleep(0.3)
        fake.fault = None
        eventually(lambda: set(store.objects) == {"b"})
        assert (reflector.lists, store.replaced) == (2, 2)


def test_broken_watch_goes_on_where_it_was_without_a_list(fake: FakeApi, client: Client) -> None:
    with reflecting(client) as (reflector, store):
        eventually(lambda: fake.watchers)
        fake.put(THINGS, thing("a"))
        eventually(lambda: "a" in store.objects)
        fake.break_connections()
        fake.put(THINGS, thing("b"))
        eventually(lambda: "b" in store.objects)
        assert reflector.lists == 1
        assert fake.requests[-1].params["resourceVersion"] == "101"


def test_bookmark_moves_the_place_to_go_on_from(fake: FakeApi, client: Client) -> None:
    with reflecting(client) as (reflector, _):
        eventually(lambda: fake.watchers)
        fake.send({"type": "BOOKMARK", "object": {"kind": "Thing", "metadata": {"resourceVersion": "777"}}})
        eventually(lambda: reflector.version == "777")
        fake.break_connections()
        eventually(lambda: len([r for r in fake.requests if r.is_watch]) == 2)
        assert fake.requests[-1].params["resourceVersion"] == "777"
        assert reflector.lists == 1


def test_server_that_went_back_in_time_is_listed_anew(fake: FakeApi, client: Client) -> None:
    fake.put(THINGS, thing("lost"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: fake.watchers)
        fake.objects.clear()  # an older backup was restored
        fake.log.clear()
        fake.version = 50
        fake.send({"type": "BOOKMARK", "object": {"kind": "Thing", "metadata": {"resourceVersion": "50"}}})
        eventually(lambda: not store.objects)
        assert reflector.lists == 2


def test_refusals_keep_the_place_for_a_while_and_then_lose_it(
    fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reflecting(client, backoff_seconds=(0.02, 0.05)) as (reflector, _):
        eventually(lambda: fake.watchers)
        refused: list[Request] = []

        def fault(request: Request) -> Answer | None:
            refused.append(request)
            # So does a server that has not read its RBAC objects yet.
            return (403, status(403, "Forbidden"), {}) if len(refused) <= 4 else None

        fake.fault = fault
        fake.break_connections()
        eventually(lambda: len(refused) == 5)
        assert reflector.lists == 1
        fake.fault = lambda request: (403, status(403, "Forbidden"), {}) if request.is_watch else None
        fake.break_connections()
        eventually(lambda: reflector.lists >= 2)


def dead(fake: FakeApi) -> None:
    fake.stop()


def answer(code: int, reason: str, **headers: str) -> Callable[[FakeApi], None]:
    def ill(fake: FakeApi) -> None:
        fake.fault = lambda _: (code, status(code, reason), headers)
        fake.break_connections()

    return ill


def gone_events(fake: FakeApi) -> None:
    def fault(request: Request) -> Answer | None:
        if request.is_watch:
            return 410, status(410, "Expired"), {}
        return None

    fake.fault = fault
    fake.break_connections()


def empty_closes(fake: FakeApi) -> None:
    fake.close_watches = True


def resets(fake: FakeApi) -> None:
    def fault(_: Request) -> Answer | None:
        raise ConnectionAbortedError

    fake.fault = fault
    fake.break_connections()


@pytest.mark.parametrize(
    ("ill", "seconds"),
    [
        (dead, 5.0),
        (answer(500, "InternalError"), 1.5),
        (answer(429, "TooManyRequests"), 1.5),
        (answer(403, "Forbidden"), 1.5),
        (answer(200, "no list at all"), 1.5),
        (gone_events, 1.5),
        (empty_closes, 1.5),
        (resets, 1.5),
    ],
    ids=["dead", "500", "429", "403", "nonsense", "410", "empty-close", "reset"],
)
def test_attempts_at_an_ill_server_are_few_and_its_return_is_noticed(
    ill: Callable[[FakeApi], None], seconds: float, tmp_path: Path
) -> None:
    fake = FakeApi()
    fake.put(THINGS, thing("old"))
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    store = Store()
    reflector = Reflector(client, THINGS, store, "things").start()
    try:
        eventually(lambda: fake.watchers)
        ill(fake)
        cpu = time.process_time()
        failures = reflector.failures
        time.sleep(seconds)
        # Waits of 0.2, 0.4, 0.8, 1.6, 3.2 s, each shortened by up to half.
        assert 2 <= reflector.failures - failures <= (6 if seconds == 5.0 else 4) + 1
        assert time.process_time() - cpu < seconds / 2  # of all threads; a storm takes all of it
        assert "old" in store.objects  # what was known is kept
        if ill is dead:
            old, fake = fake, FakeApi(fake.port)
            fake.version = old.version
        fake.fault, fake.close_watches = None, False
        fake.put(THINGS, thing("back"))
        eventually(lambda: "back" in store.objects, 20)  # its next attempt may come after 12.8 s
    finally:
        reflector.stop()
        fake.stop()


def test_an_answer_that_is_no_list_empties_nothing(fake: FakeApi, client: Client) -> None:
    fake.put(THINGS, thing("a"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: fake.watchers)

        def proxy(request: Request) -> Answer | None:
            return (410, status(410, "Expired"), {}) if request.is_watch else (200, {"page": "please log in"}, {})

        fake.fault = proxy
        fake.break_connections()
        eventually(lambda: reflector.lists >= 2)
        time.sleep(0.1)
        assert "a" in store.objects


def test_retry_after_is_honoured(fake: FakeApi, client: Client) -> None:
    busy = (429, status(429, "TooManyRequests"), {"Retry-After": "2"})
    fake.fault = lambda _: busy if len(fake.requests) == 1 else None
    with reflecting(client) as (reflector, _):
        assert reflector.synced.wait(10)
        assert fake.requests[1].at - fake.requests[0].at >= 2


def test_frozen_server_is_noticed(fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_gate.cluster.client.QUIET_SECONDS", 0.5)
    with reflecting(client) as (reflector, store):
        eventually(lambda: fake.watchers)
        eventually(lambda: reflector.failures)  # silent, as a frozen server is: the fake sends no bookmarks
        fake.put(THINGS, thing("a"))
        eventually(lambda: "a" in store.objects)
        assert reflector.lists == 1


def test_age_grows_while_the_server_is_silent(fake: FakeApi, client: Client) -> None:
    began = time.monotonic()
    with reflecting(client) as (reflector, _):
        eventually(lambda: fake.watchers)
        fake.fault = lambda _: (503, status(503, "ServiceUnavailable"), {})
        fake.break_connections()
        time.sleep(0.6)
        assert 0.5 < reflector.age() < time.monotonic() - began


def test_broken_sink_is_counted_and_told_everything_again(fake: FakeApi, client: Client) -> None:
    fake.put(THINGS, thing("a"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: fake.watchers)
        store.fail = 2  # the event, and the list that repairs it
        fake.put(THINGS, thing("b"))
        eventually(lambda: set(store.objects) == {"a", "b"})
        assert reflector.sink_failures == 2
        assert reflector.lists == 3


def test_what_a_broken_sink_says_is_not_logged(fake: FakeApi, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    fake.put(THINGS, thing("a"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: fake.watchers)
        store.fail = 1
        fake.put(THINGS, thing("b"))
        eventually(lambda: reflector.sink_failures)
        eventually(lambda: "RuntimeError (" in caplog.text)
    assert "test_reflector.py" in caplog.text
    assert "the sink is broken" not in caplog.text


def test_a_list_that_is_asked_for_while_a_watch_is_opened_comes_at_once(
    fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.put(THINGS, thing("a"))
    reflector = Reflector(client, THINGS, Store(), "things")
    watch = client.watch

    def asked_meanwhile(*args: Any) -> Any:
        opened = watch(*args)
        if reflector.watches == 1:
            reflector.relist()
        return opened

    monkeypatch.setattr(client, "watch", asked_meanwhile)
    reflector.start()
    try:
        eventually(lambda: reflector.lists == 2 and reflector.watches == 2)
        assert reflector.failures == 0
    finally:
        reflector.stop()


def test_a_kind_that_an_older_server_does_not_serve_is_none_until_it_is_served(
    fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_gate.cluster.reflector.UNSERVED_SECONDS", (0.3, 0.4))
    fake.fault = lambda _: (404, status(404, "NotFound"), {})
    store = Store()
    store.objects = {"from": {}, "before": {}}
    reflector = Reflector(client, THINGS, store, "things", optional=True).start()
    try:
        eventually(lambda: reflector.lists >= 3)
        assert reflector.synced.is_set()
        assert store.objects == {}
        assert (reflector.failures, caplog.records) == (0, [])
        fake.put(THINGS, thing("a"))
        fake.fault = None  # the cluster was upgraded
        eventually(lambda: "a" in store.objects)
    finally:
        reflector.stop()


def test_list_whose_pages_expire_is_taken_at_once(fake: FakeApi, client: Client) -> None:
    for i in range(600):
        fake.put(THINGS, thing(f"t{i}"))
    fake.fault = lambda r: (410, status(410, "Expired"), {}) if "continue" in r.params else None
    with reflecting(client) as (reflector, store):
        assert reflector.synced.wait(5)
        assert len(store.objects) == 600
        assert [r.params.get("limit") for r in fake.requests if not r.is_watch] == ["500", "500", "0"]


def test_stop_while_the_server_hangs_does_not_wait_for_it(fake: FakeApi, client: Client) -> None:
    hang = threading.Event()
    fake.fault = lambda _: hang.wait(20) and None
    reflector = Reflector(client, THINGS, Store(), "things").start()
    eventually(lambda: fake.requests)
    began = time.monotonic()
    reflector.stop(timeout=0.5)
    assert time.monotonic() - began < 10
    hang.set()
    eventually(lambda: not reflector.alive())


def test_backoff_doubles_to_its_cap_and_draws_the_upper_half() -> None:
    low, high = Backoff(0.2, 30.0, lambda: 0.0), Backoff(0.2, 30.0, lambda: 1.0)
    assert [round(high.next(), 1) for _ in range(10)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert [round(low.next(), 2) for _ in range(3)] == [0.1, 0.2, 0.4]
    high.reset()
    assert high.next() == 0.2
    assert [Backoff(0.2, 30.0).next() <= 0.2 for _ in range(3)] == [True] * 3
