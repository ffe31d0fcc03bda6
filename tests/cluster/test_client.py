from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec import Struct

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate import __version__
from dra_gate.cluster import shapes
from dra_gate.cluster.client import (
    ApiError,
    Client,
    ConfigError,
    Conflict,
    Gone,
    NotFound,
    Unreachable,
    _ahead,
    decoder,
)

THINGS = "/api/v1/things"


def thing(name: str, **extra: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}, **extra}


def test_pages_cover_the_list_once_and_are_read_when_they_are_due(fake: FakeApi, client: Client) -> None:
    for i in range(11):
        fake.put(THINGS, thing(f"t{i:02}", metadata={"name": f"t{i:02}", "managedFields": [{"manager": "x"}]}))
    listing = client.list(THINGS, limit=4)
    assert not fake.requests
    asked = []
    for i, item in enumerate(listing):
        asked.append(len(fake.requests))
        assert item == thing(f"t{i:02}", metadata=item["metadata"])
        assert item["metadata"]["name"] == f"t{i:02}"
        assert "managedFields" not in item["metadata"]
        assert listing.resource_version == ""
    assert asked == [1] * 4 + [2] * 4 + [3] * 3
    assert listing.resource_version == str(fake.version)


class Meta(Struct, omit_defaults=True):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815


class Shape(Struct, omit_defaults=True):
    metadata: Meta
    size: int = 0


def test_only_what_the_shape_names_is_read(fake: FakeApi, client: Client) -> None:
    fake.put(THINGS, thing("a", size=3, secret="hunter2"))
    (listed,) = client.list(THINGS, shape=Shape)
    version = listed["metadata"]["resourceVersion"]
    wanted = {"metadata": {"name": "a", "resourceVersion": version}, "size": 3}
    assert listed == {"apiVersion": "v1", "kind": "Thing", **wanted}
    events = iter(client.watch(THINGS, {"resourceVersion": version}, shape=Shape))
    fake.put(THINGS, thing("b", size=4, secret="hunter2"))
    event = next(events)
    assert (event["type"], event["object"]["size"]) == ("ADDED", 4)
    assert set(event["object"]) == {"metadata", "size"}
    fake.send({"type": "ERROR", "object": status(410, "Expired", "too old")})
    with pytest.raises(Gone, match="too old"):
        next(events)


@pytest.mark.parametrize("depth", [950, 5000])
@pytest.mark.parametrize("shape", [None, shapes.ResourceClaim])
def test_parameters_of_a_driver_nested_without_end_stop_nobody(
    fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch, depth: int, shape: type | None
) -> None:
    """The API server takes 10 KiB of parameters in a claim, nested as deeply as whoever writes it likes."""
    deep = '{"a \\"[": ' + "[" * depth + "]" * depth + ', "b": [{"c": "]"}]}'
    written = SimpleNamespace(loads=json.loads, dumps=lambda value: json.dumps(value).replace('"DEEP"', deep))
    monkeypatch.setattr("cluster.fake_api.json", written)
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    config = [{"opaque": {"driver": "d", "parameters": "DEEP"}}, {"opaque": {"driver": "e", "parameters": {}}}]
    spec = {"devices": {"config": config, "requests": [request]}}
    fake.put(THINGS, thing("a", spec=spec))
    fake.put(THINGS, thing("b", spec={}))
    listing = client.list(THINGS, shape=shape)
    listed = list(listing)
    assert [item["metadata"]["name"] for item in listed] == ["a", "b"]
    events = iter(client.watch(THINGS, {"resourceVersion": listing.resource_version}, shape=shape))
    fake.put(THINGS, thing("a", spec=spec))
    seen = [listed[0], next(events)["object"], client.get(f"{THINGS}/a"), client.delete(f"{THINGS}/a")]
    assert seen[0]["spec"] == seen[1]["spec"]
    for item in seen:
        assert item["spec"]["devices"]["requests"] == [request]
        first, second = item["spec"]["devices"]["config"]
        assert first["opaque"]["parameters"]["b"] == [{"c": "]"}]
        assert second == config[1]
        assert len(json.dumps(item)) < 1500  # what is kept of it is small enough to work with anywhere


def test_a_text_without_an_end_is_given_up_at_once() -> None:
    """What a broken connection leaves of an object."""
    began = time.thread_time()
    with pytest.raises(msgspec.DecodeError):
        decoder(None)(b'{"parameters": "' + b"[" * 1000 + b"x" * 100_000)
    assert time.thread_time() - began < 1


def test_a_value_of_another_type_than_the_shape_says_comes_with_all_the_rest(fake: FakeApi, client: Client) -> None:
    fake.put(THINGS, thing("a", size="large"))
    (listed,) = client.list(THINGS, shape=Shape)
    assert listed["size"] == "large"
    assert listed["kind"] == "Thing"
    watch = client.watch(THINGS, {"resourceVersion": listed["metadata"]["resourceVersion"]}, shape=Shape)
    fake.put(THINGS, thing("b", size=None, secret="kept"))
    assert next(iter(watch))["object"]["size"] is None


@pytest.mark.parametrize(
    "body",
    [{"page": "please log in"}, {"items": [], "metadata": {"resourceVersion": ""}}, {"items": [], "metadata": {}}],
)
def test_an_answer_that_is_no_list_is_none(fake: FakeApi, client: Client, body: dict[str, object]) -> None:
    fake.fault = lambda _: (200, body, {})
    with pytest.raises(Unreachable, match=f"{THINGS}: the answer is no list"):
        list(client.list(THINGS))


def test_create_replace_delete_with_preconditions(fake: FakeApi, client: Client) -> None:
    made = client.create(THINGS, thing("a", unknown={"kept": [1, 2]}))
    assert made["unknown"] == {"kept": [1, 2]}
    with pytest.raises(Conflict) as exists:
        client.create(THINGS, thing("a"))
    assert exists.value.reason == "AlreadyExists"
    newer = client.replace(f"{THINGS}/a", made)
    with pytest.raises(Conflict) as stale:
        client.replace(f"{THINGS}/a", made)
    assert stale.value.reason == "Conflict"
    with pytest.raises(Conflict):
        client.delete(f"{THINGS}/a", uid="another")
    with pytest.raises(Conflict):
        client.delete(f"{THINGS}/a", uid=made["metadata"]["uid"], resource_version=made["metadata"]["resourceVersion"])
    client.delete(f"{THINGS}/a", uid=made["metadata"]["uid"], resource_version=newer["metadata"]["resourceVersion"])
    with pytest.raises(NotFound) as gone:
        client.get(f"{THINGS}/a")
    assert gone.value.status == 404
    assert "not found" in gone.value.message


def test_errors_keep_what_the_status_says(fake: FakeApi, client: Client) -> None:
    body = status(403, "Forbidden", "being terminated") | {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    fake.fault = lambda _: (403, body, {})
    with pytest.raises(ApiError) as forbidden:
        client.get(THINGS)
    assert forbidden.value.has_cause("NamespaceTerminating")
    assert not forbidden.value.has_cause("Other")
    fake.fault = lambda _: (429, status(429, "TooManyRequests"), {"Retry-After": "7"})
    with pytest.raises(ApiError) as busy:
        client.get(THINGS)
    assert (busy.value.status, busy.value.retry_after) == (429, 7.0)
    fake.fault = lambda _: (410, status(410, "Expired"), {})
    with pytest.raises(Gone):
        list(client.list(THINGS))


def test_nothing_is_sent_twice_behind_our_back(fake: FakeApi, client: Client) -> None:
    def reset(_: Request) -> Answer | None:
        raise ConnectionAbortedError

    fake.fault = reset
    with pytest.raises(Unreachable):
        client.get(THINGS)
    assert len(fake.requests) == 1


def test_dead_server_is_unreachable_at_once(tmp_path: Path) -> None:
    client = Client.connect(str(kubeconfig(tmp_path / "config", "http://127.0.0.1:1")))
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        client.get(THINGS)
    assert time.monotonic() - began < 4, "less than it waits for a connection"


def test_time_out_of_a_frozen_server(fake: FakeApi, client: Client) -> None:
    frozen = threading.Event()
    fake.fault = lambda _: frozen.wait(10) and None
    began = time.monotonic()
    with pytest.raises(Unreachable):
        client.get(THINGS, timeout=0.3)
    assert 0.25 < time.monotonic() - began < 8, "and not until it thaws"
    frozen.set()


def test_user_agent_and_bearer_token(fake: FakeApi, client: Client) -> None:
    client.get(THINGS)
    assert fake.requests[0].headers["User-Agent"] == f"dra-gate/{__version__}"
    assert fake.requests[0].headers["authorization"] == "Bearer secret"


def only(token: str) -> object:
    def fault(request: Request) -> Answer | None:
        good = request.headers.get("authorization") == f"Bearer {token}"
        return None if good else (401, status(401, "Unauthorized"), {})

    return fault


def test_rotated_token_file_is_read_after_a_401(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_gate.cluster.client.RELOAD_SECONDS", 0.2)
    token = tmp_path / "token"
    token.write_text("one")
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url, {"tokenFile": str(token)})))
    fake.fault = only("one")  # type: ignore[assignment]
    client.get(THINGS)
    fake.fault = only("two")  # type: ignore[assignment]
    token.write_text("two")
    time.sleep(0.25)
    client.get(THINGS)
    assert len(fake.requests) == 3
    monkeypatch.setattr("dra_gate.cluster.client.RELOAD_SECONDS", 60.0)
    fake.fault = only("three")  # type: ignore[assignment]
    with pytest.raises(ApiError) as refused:  # no storm of readings when the token is simply wrong
        client.get(THINGS)
    assert refused.value.status == 401
    assert len(fake.requests) == 4


def test_exec_plugin_is_run_and_its_expired_token_renewed(fake: FakeApi, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "n = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(n))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',\n"
        "  'status': {'token': f't{n}', 'expirationTimestamp': '2020-01-01T00:00:00Z'}}))\n"
    )
    user: dict[str, object] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url, user)))
    client.get(THINGS)
    client.get(THINGS)
    assert [r.headers["authorization"] for r in fake.requests] == ["Bearer t2", "Bearer t3"]


def test_context_and_what_is_no_configuration(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig(tmp_path / "config", fake.url)
    assert Client.connect(str(path), context="here").get(THINGS)["items"] == []
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert Client.connect().get(THINGS)["items"] == []
    with pytest.raises(ConfigError, match="elsewhere"):
        Client.connect(str(path), context="elsewhere")
    with pytest.raises(ConfigError, match=r"there is no such file\. Give --kubeconfig FILE, or set KUBECONFIG"):
        Client.connect(str(tmp_path / "absent"))
    path.write_text("{not: [yaml")
    with pytest.raises(ConfigError):
        Client.connect(str(path))


def test_watch_yields_events_and_close_wakes_a_blocked_reader(fake: FakeApi, client: Client) -> None:
    watch = client.watch(THINGS, {"resourceVersion": "100", "allowWatchBookmarks": True})
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(event["type"] for event in watch))
    reader.start()
    fake.put(THINGS, thing("a"))
    fake.remove(f"{THINGS}/a")
    deadline = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == ["ADDED", "DELETED"]
    began = time.monotonic()
    watch.close()
    reader.join(10)
    assert not reader.is_alive()
    assert time.monotonic() - began < 5, "not when the watch ends or has been quiet for long"
    assert fake.requests[-1].params["timeoutSeconds"] == "300"


def test_watch_error_event_is_raised_as_what_it_is(fake: FakeApi, client: Client) -> None:
    watch = client.watch(THINGS, {"resourceVersion": "100"})
    fake.send({"type": "ERROR", "object": status(410, "Expired", "too old")})
    with pytest.raises(Gone, match="too old"):
        list(watch)


def test_broken_watch_is_unreachable(fake: FakeApi, client: Client) -> None:
    watch = client.watch(THINGS, {"resourceVersion": "100"})
    threading.Timer(0.1, fake.break_connections).start()
    with pytest.raises(Unreachable, match="broke off"):
        list(watch)


def test_no_typed_api_objects_and_nothing_loaded_before_connect() -> None:
    program = (
        "import sys, json\n"
        "from dra_gate.cluster.client import Client\n"
        "before = 'kubernetes' in sys.modules\n"
        "try: Client.connect('/nonexistent')\n"
        "except Exception: pass\n"
        "models = [m for m in sys.modules if m.startswith('kubernetes.client.models.')]\n"
        "apis = [m for m in sys.modules if m.startswith('kubernetes.client.api.')]\n"
        "print(json.dumps([before, 'kubernetes.config' in sys.modules, models, apis]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True, [], []]


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../../../pods", "r/../../../../api/v1/pods", "r?watch=true", "r#", "%2e%2e/pods", "r//x", "r\n",
        "../deployments?watch=true&x=", "ä",
    ],
)  # fmt: skip
def test_a_name_that_somebody_made_up_leads_nowhere(fake: FakeApi, client: Client, name: str) -> None:
    with pytest.raises(NotFound, match="no object has a path such as"):
        client.get(f"{THINGS}/{name}")
    with pytest.raises(NotFound):
        client.delete(f"{THINGS}/{name}")
    assert fake.requests == []


@pytest.mark.parametrize(("off", "ahead"), [(0, 0), (8, 0), (-8, 0), (700, 700), (-700, -700)])
def test_how_far_the_clock_is_from_the_api_servers(
    fake: FakeApi, client: Client, monkeypatch: pytest.MonkeyPatch, off: float, ahead: float
) -> None:
    fake.put(THINGS, thing("a"))
    assert client.ahead() == 0
    clock = SimpleNamespace(time=lambda: time.time() + off, monotonic=time.monotonic)
    monkeypatch.setattr("dra_gate.cluster.client.time", clock)
    client.get(f"{THINGS}/a")
    assert client.ahead() == pytest.approx(ahead, abs=3)
    monkeypatch.undo()
    client.get(f"{THINGS}/a")
    assert client.ahead() == 0


@pytest.mark.parametrize("date", ["", "now", "Tue, 99 Dec 2026 02:00:00 GMT"])
def test_an_answer_without_a_date_says_nothing_of_clocks(date: str) -> None:
    assert _ahead(date, 0.0, 1.0) == 0.0
