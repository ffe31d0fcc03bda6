from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.fail = 0  # how many of the next calls raise
        self.replaced = 0

    def _maybe(self) -> None:
        if self.fail:
            self.fail -= 1
            raise RuntimeError("the sink is broken")

    def replace(self, objects: list[dict[str, Any]]) -> None:
        self._maybe()
        self.replaced += 1
        self.objects = {obj["metadata"]["name"]: obj for obj in objects}

    def upsert(self, obj: dict[str, Any]) -> None:
        self._maybe()
        self.objects[obj["metadata"]["name"]] = obj

    def delete(self, obj: dict[str, Any]) -> None:
        self._maybe()
        self.objects.pop(obj["metadata"]["name"], None)


def eventually(condition: Callable[[], object], seconds: float = 5.0) -> float:
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


def test_list_then_watch(api: FakeApi, client: Client) -> None:
    for i in range(1203):
        api.put(THINGS, thing(f"t{i:04}", metadata={"name": f"t{i:04}", "managedFields": [{"manager": "x"}]}))
    with reflecting(client) as (reflector, store):
        assert reflector.synced.wait(5)
        assert len(store.objects) == 1203
        assert [r.params.get("limit") for r in api.requests[:3]] == ["500", "500", "500"]
        eventually(lambda: reflector.watches)
        api.put(THINGS, thing("new", metadata={"name": "new", "managedFields": []}))
        api.remove(f"{THINGS}/t0000")
        eventually(lambda: "new" in store.objects and "t0000" not in store.objects)
        # Lists and events look alike to the sink, and the largest useless part is gone.
        for name in ("t0001", "new"):
            assert store.objects[name]["kind"] == "Thing"
            assert store.objects[name]["apiVersion"] == "v1"
            assert "managedFields" not in store.objects[name]["metadata"]
        watch = next(r for r in api.requests if r.is_watch)
        assert watch.params["allowWatchBookmarks"] == "true"
        assert 240 <= int(watch.params["timeoutSeconds"]) <= 480
        assert reflector.age() < 1.0


def test_label_selector_goes_to_list_and_watch(api: FakeApi, client: Client) -> None:
    with reflecting(client, label_selector="a=b") as (reflector, _):
        assert reflector.synced.wait(5)
        eventually(lambda: len(api.requests) >= 2)
        assert {r.params.get("labelSelector") for r in api.requests} == {"a=b"}


def test_deletion_in_the_gap_of_an_expired_watch_is_seen(api: FakeApi, client: Client) -> None:
    for name in ("a", "b"):
        api.put(THINGS, thing(name))
    with reflecting(client) as (reflector, store):
        eventually(lambda: set(store.objects) == {"a", "b"} and api.watchers)
        api.fault = lambda _: (503, status(503, "ServiceUnavailable"), {})
        api.break_connections()
        api.remove(f"{THINGS}/a")
        api.compact()
        time.sleep(0.3)
        api.fault = None
        eventually(lambda: set(store.objects) == {"b"})
        assert (reflector.lists, store.replaced) == (2, 2)


def test_broken_watch_goes_on_where_it_was_without_a_list(api: FakeApi, client: Client) -> None:
    with reflecting(client) as (reflector, store):
        eventually(lambda: api.watchers)
        api.put(THINGS, thing("a"))
        eventually(lambda: "a" in store.objects)
        api.break_connections()
        api.put(THINGS, thing("b"))
        eventually(lambda: "b" in store.objects)
        assert reflector.lists == 1
        assert api.requests[-1].params["resourceVersion"] == "101"


def test_bookmark_moves_the_place_to_go_on_from(api: FakeApi, client: Client) -> None:
    with reflecting(client) as (reflector, _):
        eventually(lambda: api.watchers)
        api.send({"type": "BOOKMARK", "object": {"kind": "Thing", "metadata": {"resourceVersion": "777"}}})
        time.sleep(0.2)
        api.break_connections()
        eventually(lambda: len([r for r in api.requests if r.is_watch]) == 2)
        assert api.requests[-1].params["resourceVersion"] == "777"
        assert reflector.lists == 1


def test_server_that_went_back_in_time_is_listed_anew(api: FakeApi, client: Client) -> None:
    api.put(THINGS, thing("lost"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: api.watchers)
        api.objects.clear()  # an older backup was restored
        api.version = 50
        api.send({"type": "BOOKMARK", "object": {"kind": "Thing", "metadata": {"resourceVersion": "50"}}})
        eventually(lambda: not store.objects)
        assert reflector.lists == 2


def test_refusals_keep_the_place_for_a_while_and_then_lose_it(
    api: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reflecting(client, backoff_seconds=(0.02, 0.05)) as (reflector, _):
        eventually(lambda: api.watchers)
        refused: list[Request] = []

        def fault(request: Request) -> Answer | None:
            refused.append(request)
            # So does a server that has not read its RBAC objects yet.
            return (403, status(403, "Forbidden"), {}) if len(refused) <= 4 else None

        api.fault = fault
        api.break_connections()
        eventually(lambda: len(refused) == 5)
        assert reflector.lists == 1
        api.fault = lambda request: (403, status(403, "Forbidden"), {}) if request.is_watch else None
        api.break_connections()
        eventually(lambda: reflector.lists >= 2)


def dead(api: FakeApi) -> None:
    api.stop()


def answer(code: int, reason: str, **headers: str) -> Callable[[FakeApi], None]:
    def ill(api: FakeApi) -> None:
        api.fault = lambda _: (code, status(code, reason), headers)
        api.break_connections()

    return ill


def gone_events(api: FakeApi) -> None:
    def fault(request: Request) -> Answer | None:
        if request.is_watch:
            return 410, status(410, "Expired"), {}
        return None

    api.fault = fault
    api.break_connections()


def empty_closes(api: FakeApi) -> None:
    api.close_watches = True


def resets(api: FakeApi) -> None:
    def fault(_: Request) -> Answer | None:
        raise ConnectionAbortedError

    api.fault = fault
    api.break_connections()


@pytest.mark.parametrize(("ill", "seconds"), [
    (dead, 5.0), (answer(500, "InternalError"), 1.5), (answer(429, "TooManyRequests"), 1.5),
    (answer(403, "Forbidden"), 1.5), (answer(200, "no list at all"), 1.5), (gone_events, 1.5), (empty_closes, 1.5),
    (resets, 1.5),
], ids=["dead", "500", "429", "403", "nonsense", "410", "empty-close", "reset"])
def test_attempts_at_an_ill_server_are_few_and_its_return_is_noticed(
    ill: Callable[[FakeApi], None], seconds: float, tmp_path: Path
) -> None:
    api = FakeApi()
    api.put(THINGS, thing("old"))
    client = Client.connect(str(kubeconfig(tmp_path / "config", api.url)))
    store = Store()
    reflector = Reflector(client, THINGS, store, "things").start()
    try:
        eventually(lambda: api.watchers)
        ill(api)
        cpu = time.process_time()
        failures = reflector.failures
        time.sleep(seconds)
        # Waits of 0.2, 0.4, 0.8, 1.6, 3.2 s, each shortened by up to half.
        assert 2 <= reflector.failures - failures <= (6 if seconds == 5.0 else 4) + 1
        assert time.process_time() - cpu < 0.5
        assert "old" in store.objects  # what was known is kept
        if ill is dead:
            old, api = api, FakeApi(api.port)
            api.version = old.version
        api.fault, api.close_watches = None, False
        api.put(THINGS, thing("back"))
        eventually(lambda: "back" in store.objects, 8)
    finally:
        reflector.stop()
        api.stop()


def test_an_answer_that_is_no_list_empties_nothing(api: FakeApi, client: Client) -> None:
    api.put(THINGS, thing("a"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: api.watchers)

        def proxy(request: Request) -> Answer | None:
            return (410, status(410, "Expired"), {}) if request.is_watch else (200, {"page": "please log in"}, {})

        api.fault = proxy
        api.break_connections()
        eventually(lambda: reflector.lists >= 2)
        time.sleep(0.1)
        assert "a" in store.objects


def test_retry_after_is_honoured(api: FakeApi, client: Client) -> None:
    api.fault = lambda _: (429, status(429, "TooManyRequests"), {"Retry-After": "2"})
    with reflecting(client) as (reflector, _):
        time.sleep(1.5)
        assert len(api.requests) == 1
        api.fault = None
        assert reflector.synced.wait(3)


def test_frozen_server_is_noticed(api: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_gate.cluster.client.QUIET_SECONDS", 0.5)
    with reflecting(client) as (reflector, store):
        eventually(lambda: api.watchers)
        time.sleep(0.7)  # silent, as a frozen server is: the fake sends no bookmarks
        assert reflector.failures >= 1
        api.put(THINGS, thing("a"))
        eventually(lambda: "a" in store.objects)
        assert reflector.lists == 1


def test_age_grows_while_the_server_is_silent(api: FakeApi, client: Client) -> None:
    with reflecting(client) as (reflector, _):
        eventually(lambda: api.watchers)
        api.fault = lambda _: (503, status(503, "ServiceUnavailable"), {})
        api.break_connections()
        time.sleep(0.6)
        assert 0.5 < reflector.age() < 2.0


def test_broken_sink_is_counted_and_told_everything_again(api: FakeApi, client: Client) -> None:
    api.put(THINGS, thing("a"))
    with reflecting(client) as (reflector, store):
        eventually(lambda: api.watchers)
        store.fail = 2  # the event, and the list that repairs it
        api.put(THINGS, thing("b"))
        eventually(lambda: set(store.objects) == {"a", "b"})
        assert reflector.sink_failures == 2
        assert reflector.lists == 3


def test_list_whose_pages_expire_is_taken_at_once(api: FakeApi, client: Client) -> None:
    for i in range(600):
        api.put(THINGS, thing(f"t{i}"))
    api.fault = lambda r: (410, status(410, "Expired"), {}) if "continue" in r.params else None
    with reflecting(client) as (reflector, store):
        assert reflector.synced.wait(5)
        assert len(store.objects) == 600
        assert [r.params.get("limit") for r in api.requests if not r.is_watch] == ["500", "500", "0"]


def test_stop_while_the_server_hangs_does_not_wait_for_it(api: FakeApi, client: Client) -> None:
    hang = threading.Event()
    api.fault = lambda _: hang.wait(20) and None
    reflector = Reflector(client, THINGS, Store(), "things").start()
    eventually(lambda: api.requests)
    began = time.monotonic()
    reflector.stop(timeout=0.5)
    assert time.monotonic() - began < 1.0
    hang.set()
    eventually(lambda: not reflector.alive())


def test_backoff_doubles_to_its_cap_and_draws_the_upper_half() -> None:
    low, high = Backoff(0.2, 30.0, lambda: 0.0), Backoff(0.2, 30.0, lambda: 1.0)
    assert [round(high.next(), 1) for _ in range(10)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert [round(low.next(), 2) for _ in range(3)] == [0.1, 0.2, 0.4]
    high.reset()
    assert high.next() == 0.2
    assert [Backoff(0.2, 30.0).next() <= 0.2 for _ in range(3)] == [True] * 3
