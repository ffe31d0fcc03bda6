"""The backstop as a running controller keeps it, with the webhooks out of the way, on the real API server.

A replica runs beside it and is asked directly: at no moment of a change may the backstop refuse what that one admits.
"""

from __future__ import annotations

import copy
import datetime as dt
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admission import bypasses
from controlplane.api import JSON_PATCH, Api, ApiError, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.gate import Gate
from controlplane.replica import Replica
from deploy.test_backstop import refused
from dra_gate.admission.backstop import BACKSTOP, manifests
from dra_gate.cluster.policy_map import policy_map
from dra_gate.controller.settling import SETTLE_SECONDS
from dra_gate.policy.load import load_documents
from policy_publish.sets import files

pytestmark = pytest.mark.controlplane
SPACE, LATER = "backstop-live", "backstop-later"
LANE, MODE = "dra-gate.io/lane", "dra-gate.io/mode"
PODS: dict[str, dict[str, Any]] = {}
for _rule, _pod in bypasses.CREATED:
    PODS.setdefault(_rule, _pod)
ALL = frozenset(PODS)
OF_A_LANE = {"raw-device-request"}
OPENS = 5.0  # seconds until a change counts: what it lets pass is not refused any more …
CLOSES = SETTLE_SECONDS + 10.0  # … and what it forbids is
HEARS = 1.0  # … in the first of them the replica may have heard of the change, and the API server's caches not yet
TODAY = dt.datetime.now(dt.UTC).date()


def content(version: int, expires: dt.date | None = None) -> dict[str, bytes]:
    """A set whose tenant owns both namespaces, with an exception until that day."""
    made = files(version, namespaces=(SPACE, LATER))
    if expires is not None:
        made["exceptions.yaml"] = f"""
apiVersion: policy.dra-gate.io/v1alpha1
kind: PolicyException
metadata: {{name: profiler}}
spec: {{rules: [privileged], namespaces: [{SPACE}], reason: r, ticket: T-1, approver: x, expires: "{expires}"}}
""".encode()
    return made


def folder(path: Path, made: dict[str, bytes]) -> Path:
    """The folder with these files."""
    path.mkdir(exist_ok=True)
    for name, text in made.items():
        (path / name).write_bytes(text)
    return path


class Live:
    """The gate with its webhooks taken away, and both sides of the comparison."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.api: Api = gate.plane.api()

    def refuses(self, namespace: str = SPACE) -> frozenset[str]:
        """The rules by which the backstop refuses now."""
        return frozenset(rule for rule, pod in PODS.items() if refused(self.api, pod, namespace))

    def closed(self) -> bool:
        """Whether the backstop refuses all. For a moment a webhook may still be called that was taken away."""
        try:
            return self.refuses() == ALL
        except ApiError:
            return False

    def takes(self, pod: dict[str, Any]) -> bool:
        """Whether the API server takes the Pod: neither the backstop refuses it nor a webhook that must answer."""
        try:
            return not refused(self.api, pod, SPACE)
        except ApiError:
            return False

    def admits(self, pod: dict[str, Any], namespace: str) -> bool:
        """What the replica answers, as if the API server had asked it."""
        pod = copy.deepcopy(pod)
        pod["metadata"] = {"name": "p", **pod["metadata"], "namespace": namespace}
        with Replica(self.gate) as replica:
            groups = ("system:masters", "system:authenticated")
            allowed: bool = replica.ask("validate", pod, username="admin", groups=groups)["allowed"]
        return allowed

    def follow(self, change: Callable[[], Any], ends: frozenset[str] | set[str], namespace: str = SPACE) -> float:
        """Makes the change and compares the two until the backstop refuses exactly `ends`, and a moment longer.

        Gives the seconds until it did for good. What was refused before and isn't to be is let pass at once.
        """
        began = time.monotonic()
        change()
        changing = time.monotonic() - began  # a command takes seconds to start: those are no time of the backstop's
        reached, wrong = 0.0, []
        while time.monotonic() - began < changing + CLOSES + SETTLE_SECONDS:
            seen = set()
            for rule, pod in PODS.items():
                before = self.admits(pod, namespace)
                if refused(self.api, pod, namespace):
                    seen.add(rule)
                    since = time.monotonic() - began - changing
                    if before and self.admits(pod, namespace) and since > HEARS:
                        wrong.append((round(since, 1), rule))
            now = time.monotonic() - began
            if seen != ends:
                reached = 0.0
                after = now - changing
                assert after < OPENS or not seen - ends, f"{seen - ends} are refused still after {after:.1f} s"
                assert after < CLOSES, f"{ends - seen} are not refused after {after:.1f} s"
            else:
                reached = reached or now
                if now > SETTLE_SECONDS + 2 and now > reached + 2:
                    break
        assert not wrong, f"refused what the replica admits (seconds, rule): {wrong}"
        print(f"in force after {reached:.1f} s")
        return reached

    def label(self, key: str, value: str | None, namespace: str = SPACE) -> None:
        self.api.patch("namespaces", namespace, {"metadata": {"labels": {key: value}}})

    def switch(self, override: str, previous: str, maple: str | None = None) -> None:
        tenants = [] if maple is None else [{"name": "maple", "lane": maple}]
        lane = {"override": override, "previous": previous, "tenants": tenants}
        self.api.patch("gates", "default", {"spec": {"lane": lane}})

    def activate(self, policies: Path) -> str:
        """Publishes and activates the set; its digest."""
        self.gate.policy("publish", policies, "--activate", "--no-lint")
        digest: str = self.api.get("gates", "default")["spec"]["active"]
        return digest


@pytest.fixture(scope="module")
def live(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    api = control_plane.api()
    for name, labels in ((SPACE, {LANE: "dra"}), (LATER, {})):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    first = folder(tmp_path_factory.mktemp("policies"), content(1))
    with Gate(control_plane, first, published=True, controller_flags=("--backstop",)) as gate:
        for manifest in manifests():
            api.apply(manifest)
        gate.unregister()
        made = Live(gate)
        wait_for(made.closed, 30, "the backstop to be in force", every=0.2)
        yield made
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        api.delete(kind, BACKSTOP, missing_ok=True)
    api.delete_all("gates")
    api.delete_all("configmaps", "dra-gate", labels="dra-gate.io/policy-set=true")
    for name in (SPACE, LATER):
        api.delete("namespaces", name, missing_ok=True)


def test_without_the_webhooks_the_simple_ways_around_are_refused_and_nothing_else(live: Live) -> None:
    assert live.refuses() == ALL
    assert not [pod for pod in bypasses.ORDINARY if refused(live.api, pod, SPACE)]
    assert live.refuses(LATER) == frozenset()


def test_the_lane_switch(live: Live) -> None:
    live.follow(lambda: live.switch("device-plugin", ""), ALL - OF_A_LANE)
    live.follow(lambda: live.switch("", "device-plugin"), ALL)


def test_the_lane_switch_of_a_tenant(live: Live) -> None:
    live.follow(lambda: live.switch("", "", maple="device-plugin"), ALL - OF_A_LANE)
    live.follow(lambda: live.switch("device-plugin", "", maple="dra"), ALL)
    live.follow(lambda: live.switch("", "device-plugin", maple=None), ALL)


@pytest.mark.parametrize("mode", ["warn", "shadow"])
def test_the_mode_of_a_namespace(mode: str, live: Live) -> None:
    live.follow(lambda: live.label(MODE, mode), frozenset())
    assert live.follow(lambda: live.label(MODE, None), ALL) > SETTLE_SECONDS / 2


def test_the_lane_of_a_namespace(live: Live) -> None:
    live.follow(lambda: live.label(LANE, "device-plugin"), ALL - OF_A_LANE)
    live.follow(lambda: live.label(LANE, "dra"), ALL)


def test_a_namespace_that_becomes_gated(live: Live) -> None:
    live.follow(lambda: live.label(LANE, "dra", LATER), ALL, LATER)
    live.follow(lambda: live.label(LANE, None, LATER), frozenset(), LATER)


def test_exceptions_of_the_sets_that_count(live: Live, tmp_path: Path) -> None:
    """The exception counts with the set that is activated, as long as that is accepted, and not when it has ended."""
    first = live.api.get("gates", "default")["spec"]["active"]
    lenient = folder(tmp_path / "lenient", content(2, TODAY + dt.timedelta(days=30)))
    found: list[str] = []
    live.follow(lambda: found.append(live.activate(lenient)), ALL - {"privileged"})
    live.follow(lambda: live.gate.policy("activate", first, "--pin-old"), ALL - {"privileged"})
    # A replica that hears late may still go by it.
    assert live.follow(lambda: live.gate.policy("withdraw", found[0]), ALL) > SETTLE_SECONDS - 1
    ended = content(3, TODAY - dt.timedelta(days=30))  # the command publishes no such set: this one is older
    published = policy_map(load_documents(ended).digest, ended, {})
    live.api.create(published)
    active = published["metadata"]["name"].removeprefix("policy-set-")
    live.follow(lambda: live.api.patch("gates", "default", {"spec": {"active": active}}), ALL)


def test_with_the_server_killed_and_the_webhooks_set_to_ignore(live: Live) -> None:
    live.gate.register()
    hooks = live.api.get("validatingwebhookconfigurations", "zz-dra-gate")["webhooks"]
    patch = [{"op": "replace", "path": f"/webhooks/{n}/failurePolicy", "value": "Ignore"} for n in range(len(hooks))]
    live.api.patch("validatingwebhookconfigurations", "zz-dra-gate", patch, content_type=JSON_PATCH)
    live.gate.stop_replica("gate-0", kill=True)
    try:
        # The replica is asked for nothing here; a Pod without a way around shows that the API server goes on.
        wait_for(lambda: live.takes(bypasses.ORDINARY[2]), 20, "the webhooks to be ignored", every=0.2)
        assert live.refuses() == ALL
    finally:
        live.gate.unregister()
        live.gate.start()


def test_while_no_controller_runs_what_was_told_holds_and_what_changes_opens(live: Live) -> None:
    live.gate.stop_controller(kill=True)
    try:
        assert live.refuses() == ALL
        live.label(MODE, "nonsense")  # enforces, but it is another
        wait_for(lambda: not live.refuses(), OPENS, "the change to count")
        time.sleep(SETTLE_SECONDS + 2)
        assert not live.refuses()
        live.label(MODE, None)
        wait_for(lambda: live.refuses() == ALL, OPENS, "the change to be undone")
    finally:
        live.gate.start()
    live.follow(lambda: None, ALL)  # a controller that has just begun closes and opens nothing
