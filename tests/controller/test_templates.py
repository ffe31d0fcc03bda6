"""The template controller's manners when things go wrong, on a small fake API server."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from cluster.test_reflector import eventually
from controller.policies import policy_set
from dra_gate.cluster.client import Client
from dra_gate.controller import templates
from dra_gate.controller.http import StatusServer
from dra_gate.controller.plan import Action, Seen, Verb, plan
from dra_gate.controller.templates import TemplateController

ALL = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
OWN = "/apis/resource.k8s.io/v1/namespaces/maple-a/resourceclaimtemplates"


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    made = FakeApi()
    made.put("/api/v1/namespaces", {"metadata": {"name": "maple-a"}, "status": {"phase": "Active"}})
    yield made
    made.stop()


@contextmanager
def controlling(fake: FakeApi, tmp_path: Path, leading: list[bool] | None = None) -> Iterator[TemplateController]:
    client = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    lead = leading or [True]
    controller = TemplateController(client, identity="test", leading=lambda: lead[0])
    controller.use([policy_set()])
    controller.start()
    try:
        yield controller
        assert controller.problems() == []
    finally:
        controller.stop()
    assert len(controller.problems()) == 9  # one planner, four writers, four reflectors: all ended


def stored(fake: FakeApi) -> list[str]:
    return [path for path in fake.objects if path.startswith(OWN)]


def writes(fake: FakeApi) -> list[Request]:
    return [request for request in fake.requests if request.method in ("POST", "DELETE")]


def outcomes(controller: TemplateController) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in controller.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "dra_gate_controller_writes_total":
                found[sample.labels["outcome"]] = found.get(sample.labels["outcome"], 0) + sample.value
    return found


def test_writes_nothing_before_it_leads_and_nothing_after(fake: FakeApi, tmp_path: Path) -> None:
    leading = [True]
    with controlling(fake, tmp_path, leading) as controller:
        time.sleep(0.5)
        assert writes(fake) == []
        controller.activate()
        eventually(lambda: len(stored(fake)) == 16)
        controller.deactivate()
        fake.remove(stored(fake)[0])
        time.sleep(0.5)
        assert len(writes(fake)) == 16
        # The clock may know before the election's thread does: then nothing is written either.
        leading[0] = False
        controller.activate()
        time.sleep(0.5)
        assert len(writes(fake)) == 16
        leading[0] = True
        eventually(lambda: len(stored(fake)) == 16, 3)


def test_what_came_while_planning_is_not_made_a_second_time(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: Any, **facts: Any) -> Any:
        if stored(fake):  # some are there by now, and all of them before this plan is
            time.sleep(0.5)
        return plan(*arguments, **facts)

    monkeypatch.setattr(templates, "plan", slow)
    fake.fault = lambda r: time.sleep(0.03) if r.method == "POST" else None
    with controlling(fake, tmp_path) as controller:
        controller.activate()
        eventually(lambda: len(stored(fake)) == 16, 5)
        time.sleep(1.5)
        assert outcomes(controller) == {"done": 16.0}


def test_errors_are_retried_with_growing_waits(fake: FakeApi, tmp_path: Path) -> None:
    fake.fault = lambda r: (500, status(500, "InternalError"), {}) if r.method == "POST" else None
    with controlling(fake, tmp_path) as controller:
        controller.activate()
        time.sleep(2.5)
        # 16 names, each tried after 0, 0.2, 0.4, 0.8, 1.6 s at most, half of that at least.
        assert 16 * 3 <= len(writes(fake)) <= 16 * 6
        fake.fault = None
        eventually(lambda: len(stored(fake)) == 16, 10)  # the next wait is of 6.4 s if the machine paused


def test_a_namespace_that_ends_is_no_error_and_no_storm(
    fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "ECHO_SECONDS", 4.0)  # so long each is left alone: longer than the machine may pause
    body: dict[str, Any] = status(403, "Forbidden", "unable to create new content: it is being terminated")
    body["details"] = {"causes": [{"reason": "NamespaceTerminating", "message": "…"}]}
    fake.fault = lambda r: (403, body, {}) if r.method == "POST" else None
    with controlling(fake, tmp_path) as controller:
        controller.activate()
        eventually(lambda: len(writes(fake)) == 16)
        time.sleep(1.0)
        assert len(writes(fake)) == 16
        assert outcomes(controller) == {"stale": 16.0}
        fake.put("/api/v1/namespaces", {"metadata": {"name": "maple-a", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
        time.sleep(3.5)
        assert len(writes(fake)) == 16


def test_who_undoes_our_work_cannot_keep_us_busy(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path) as controller:
        controller.activate()
        eventually(lambda: len(stored(fake)) == 16)
        victim = stored(fake)[0]
        before = len(writes(fake))
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            if victim in fake.objects:
                fake.remove(victim)
            time.sleep(0.005)
        # Ten at full speed, then one every two seconds.
        assert 9 <= len(writes(fake)) - before <= 13
        eventually(lambda: victim in fake.objects, 4)


def test_an_edit_between_look_and_deletion_is_respected(fake: FakeApi, tmp_path: Path) -> None:
    with controlling(fake, tmp_path) as controller:
        controller.activate()
        eventually(lambda: len(stored(fake)) == 16)
        path = stored(fake)[0]
        good = fake.objects[path]
        raced: list[str] = []

        def fault(request: Request) -> Answer | None:
            if request.method == "DELETE" and not raced:
                raced.append(request.path)  # its owner takes our label off while our request is on its way
                fake.put(OWN, {**fake.objects[path], "metadata": {**good["metadata"], "labels": {}}})
            return None

        fake.fault = fault
        labels = {**good["metadata"]["labels"], "dra-gate.io/tenant": "other"}
        fake.put(OWN, {**good, "metadata": {**good["metadata"], "labels": labels}})
        eventually(lambda: raced)
        eventually(lambda: "stale" in outcomes(controller))
        time.sleep(0.5)
        assert fake.objects[path]["metadata"]["uid"] == good["metadata"]["uid"]
        assert outcomes(controller)["stale"] == 1.0


def test_a_plan_that_fails_is_made_again(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = templates.plan, []

    def once_broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a plan that fails")
        return real(*args, **kwargs)

    monkeypatch.setattr(templates, "plan", once_broken)
    with controlling(fake, tmp_path) as controller:
        controller.activate()
        eventually(lambda: len(stored(fake)) == 16)


def test_status_server() -> None:
    wrong: list[str] = []
    server = StatusServer("127.0.0.1", 0, metrics=lambda: b"a_metric 1\n", problems=lambda: wrong, pages={})

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        assert get("/metrics") == (200, "a_metric 1\n")
        assert get("/healthz?verbose") == (200, "ok\n")
        wrong.append("thread planner has ended")
        assert get("/healthz") == (503, "thread planner has ended\n")
        assert get("/other")[0] == 404
    finally:
        server.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_status_server_on_a_cluster_of_ipv6() -> None:
    server = StatusServer("::1", 0, metrics=lambda: b"a_metric 1\n", problems=list, pages={})
    try:
        with urllib.request.urlopen(f"http://[::1]:{server.port}/metrics", timeout=5) as answer:
            assert answer.read() == b"a_metric 1\n"
    finally:
        server.close()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[TemplateController]:
    """It leads and has no threads: a test plans and says what came of it."""
    client = Client.connect(str(kubeconfig(tmp_path / "config", "http://127.0.0.1:9")))
    controller = TemplateController(client, identity="test", leading=lambda: True)
    controller._active = True
    yield controller
    client.close()


def collecting(name: str) -> Action:
    seen = Seen(uid="u", resource_version="1", ours=True, deleting=False, spec="", stamp="")
    return Action(Verb.COLLECT, "maple-a", name, "its tenant needs it no more", seen=seen)


def look_at(controller: TemplateController, action: Action) -> bool:
    """Whether it is given to the writers."""
    with controller._lock:
        controller._consider(action)
    return not controller._work.empty()


def test_of_templates_that_are_gone_nothing_is_kept(idle: TemplateController, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version of a policy has names of its own, in every namespace of its tenant."""
    now = [1000.0]
    monkeypatch.setattr(templates.time, "monotonic", lambda: now[0])
    for version in range(2000):
        action = collecting(f"dra-gate-p-v{version}")
        assert action.seen is not None
        idle._templates["maple-a"] = {action.name: action.seen}
        assert not look_at(idle, action)
        now[0] += templates.GRACE_SECONDS + 1
        assert look_at(idle, action)
        idle._work.get()
        with idle._lock:
            idle._settle(action, "done", templates.ECHO_SECONDS)
            idle._drop_template((action.namespace, action.name))
        idle._plan_once()
    assert len(idle._names) < 500


def test_what_is_paced_or_waits_is_remembered(idle: TemplateController) -> None:
    """Who deletes templates over and over is not forgotten in between, nor since when one is not needed."""
    for number in range(500):
        name = idle._names.setdefault(("maple-a", f"dra-gate-{number}"), templates._Name())
        name.take(time.monotonic())
    action = collecting("dra-gate-p-v1")
    assert action.seen is not None
    idle._templates["maple-a"] = {action.name: action.seen}
    look_at(idle, action)
    idle._plan_once()
    assert len(idle._names) == 501


def test_what_was_not_needed_in_an_earlier_term_is_kept_for_its_grace_again(
    idle: TemplateController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica led in between: whether the template was needed then we do not know."""
    now = [1000.0]
    monkeypatch.setattr(templates.time, "monotonic", lambda: now[0])
    action = collecting("dra-gate-p-v1-x3")
    assert not look_at(idle, action)
    idle.deactivate()
    now[0] += 3600.0
    idle.activate()
    assert not look_at(idle, action)
    now[0] += templates.GRACE_SECONDS + 1
    assert look_at(idle, action)


def test_who_does_not_lead_keeps_no_list_of_what_was_touched(idle: TemplateController) -> None:
    """It would become longer with every namespace that comes and goes; who begins to lead looks at everything."""
    with idle._lock:
        idle._active = False
        for number in range(3):
            key = "", f"run-{number}"
            idle._set_namespace(key, {"metadata": {"name": key[1]}})
            idle._drop_namespace(key)
        assert idle._dirty == set()
        idle._templates["maple-a"] = {}
    idle.activate()
    assert idle._dirty == {"maple-a"}
