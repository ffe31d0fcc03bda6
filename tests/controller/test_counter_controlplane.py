"""The counter against the real control plane, as the controller's service account with the rights of deploy/base."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from click.testing import CliRunner

from allocation import fleet as small
from controller.held_pods import Crash, Hooked
from controller.test_templates_controlplane import RBAC
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, ControlPlane
from controlplane.fixture_types import InstallFleet, MakeNamespace
from dra_gate.admission.sets import PolicySets
from dra_gate.cli.canary import command
from dra_gate.cluster.client import Client, Conflict
from dra_gate.controller.arbiter import ArbiterController
from dra_gate.controller.counter import CounterController
from dra_gate.controller.counter_store import Store
from dra_gate.controller.decisions import DecisionController
from dra_gate.migration.tally import Tally
from dra_gate.policy.compile import templates_of
from dra_gate.policy.model import PolicyRef, PolicySet

pytestmark = pytest.mark.controlplane
API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
LABEL = "dra-gate.io/cohorts=true"
REF = PolicyRef("train", 1)


@pytest.fixture(scope="module")
def kubeconfig(control_plane: ControlPlane) -> Path:
    api = control_plane.api()
    with contextlib.suppress(ApiError):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-gate"}})
    api.apply_yaml(RBAC.read_text())
    for crd in sorted((RBAC.parent / "crds").iterdir()):
        api.apply_yaml(crd.read_text())
    return control_plane.kubeconfig_for(GATE_CONTROLLER)


@pytest.fixture(autouse=True)
def nothing_counted(api: Api) -> Iterator[None]:
    api.delete_all("configmaps", "dra-gate", labels=LABEL)
    yield
    api.delete_all("configmaps", "dra-gate", labels=LABEL)


def store(kubeconfig: Path) -> tuple[Store, Hooked]:
    client = Hooked.connect(str(kubeconfig))
    assert isinstance(client, Hooked)
    return Store(client, lambda: True), client


def test_whoever_writes_after_another_has_written_does_not(kubeconfig: Path) -> None:
    (one, _), (other, _) = store(kubeconfig), store(kubeconfig)
    assert one.load() == other.load() == (False, None)
    assert one.save(b"first") == 1
    with pytest.raises(Conflict):
        other.save(b"mine")
    assert other.load() == (True, b"first")
    other.save(b"second")
    other.save(b"third")
    with pytest.raises(Conflict):
        one.save(b"late")
    assert one.load() == (True, b"third")
    assert (dict(one.outcomes), dict(other.outcomes)) == ({"done": 1, "stale": 1}, {"stale": 1, "done": 2})


def test_a_set_that_was_left_half_written_is_not_read(kubeconfig: Path, api: Api) -> None:
    (one, client), (other, _) = store(kubeconfig), store(kubeconfig)
    one.load()
    one.save(b"whole")
    written: list[str] = []

    def crash(_method: str, _path: str) -> None:
        written.append("")
        if len(written) == 2:
            raise Crash

    client.hook = crash
    big = bytes(range(256)) * 8000 + b"".join(number.to_bytes(4, "big") for number in range(700_000))
    with pytest.raises(Crash):
        one.save(big)
    assert len(api.list("configmaps", "dra-gate", labels=LABEL)) == 2
    assert other.load() == (True, b"whole")
    assert other.save(big) > 1
    assert other.load() == (True, big)


def test_maps_that_somebody_deletes_are_made_again(kubeconfig: Path, api: Api) -> None:
    one, _ = store(kubeconfig)
    one.load()
    for data in (b"first", b"second"):
        one.save(data)
    api.delete_all("configmaps", "dra-gate", labels=LABEL)
    one.save(b"third")
    assert one.load() == (True, b"third")


# -- the loop ---------------------------------------------------------------------------------------------------------


class World:
    """A gated namespace of a tenant that may have one device, though no webhook holds anybody to it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        oak = {"policy": "train@1", "namespaces": [namespace], "quota": {"devices": 1}}
        self.set: PolicySet = small.policy_set({**API, "kind": "Tenant", "metadata": {"name": "oak"}, "spec": oak})
        self.template = templates_of(self.set).for_count("oak", REF, 1)
        api.create(self.template.manifest(namespace))

    def pod(self, name: str) -> None:
        stamp = {"lane": "dra", "tenant": "oak", "devices": "1", "candidates": "h100,a100,l40s", "policy": "train",
                 "policy-version": "1"}  # fmt: skip
        container = {"name": "c", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
        entry = {"name": "gpu", "resourceClaimTemplateName": self.template.name}
        metadata = {"name": name, "annotations": {f"dra-gate.io/{key}": value for key, value in stamp.items()}}
        spec = {"containers": [container], "resourceClaims": [entry]}
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, self.namespace)
        self.api.wait("pods", name, self.namespace, lambda pod: "nodeName" in pod["spec"], 30, f"{name} to be bound")

    def claims(self) -> list[dict[str, Any]]:
        return sorted(self.api.list("resourceclaims", self.namespace), key=lambda one: str(one["metadata"]["name"]))


@pytest.fixture
def world(api: Api, install_fleet: InstallFleet, make_namespace: MakeNamespace) -> World:
    install_fleet("demo")
    return World(api, make_namespace(labels={"dra-gate.io/lane": "dra"}))


@contextmanager
def counting(world: World, kubeconfig: Path) -> Iterator[CounterController]:
    """A counter that leads; the arbiter beside it only sees."""
    client = Client.connect(str(kubeconfig))
    decisions = DecisionController(client, identity="test", leading=lambda: True)
    arbiter = ArbiterController(client, decisions, leading=lambda: False)
    counter = CounterController(client, decisions, arbiter, leading=lambda: True)
    decisions.use([world.set])
    arbiter.use([world.set])
    counter.use(PolicySets(world.set))
    for loop in (decisions, counter):
        loop.start()
    try:
        wait_for(lambda: counter.report(1, 0.05) or counter._loaded, 20, "the counter to begin")
        yield counter
        assert counter.problems() == []
    finally:
        for loop in (counter, decisions):
            loop.stop()
        client.close()


def stops(counter: CounterController) -> set[str]:
    found = counter.report(24, 0.05)
    return set() if found is None else {one.reason for one in found.whole.stops}


def test_a_tenant_above_its_cap_is_a_hard_stop_and_stays_one(world: World, kubeconfig: Path) -> None:
    with counting(world, kubeconfig) as counter:
        world.pod("first")
        wait_for(lambda: (found := counter.report(1, 0.05)) and found.whole.pods["dra"] == 1, 20, "the Pod")
        assert stops(counter) == set()
        world.pod("second")
        wait_for(lambda: stops(counter) == {"CapBreach"}, 30, "the stop")
    with counting(world, kubeconfig) as counter:  # another, which reads what the first has written at its end
        assert stops(counter) == {"CapBreach"}
        found = counter.report(24, 0.05)
        assert found is not None
        assert found.whole.pods["dra"] == 2


def test_a_device_in_two_claims_is_a_hard_stop(world: World, kubeconfig: Path, api: Api) -> None:
    """Nothing gives a device twice, so the second claim's status is written by hand."""
    with counting(world, kubeconfig) as counter:
        world.pod("first")
        (claim,) = world.claims()
        copy = {"apiVersion": claim["apiVersion"], "kind": "ResourceClaim", "spec": claim["spec"],
                "metadata": {"name": "second", "namespace": world.namespace}}  # fmt: skip
        api.create(copy)
        # Reserved by a Pod that is there: kube-controller-manager takes every other one off.
        status = {key: claim["status"][key] for key in ("allocation", "reservedFor")}
        api.patch("resourceclaims", "second", {"status": status}, world.namespace, subresource="status")
        try:
            wait_for(lambda: "DoubleAllocation" in stops(counter), 30, "the stop")
        finally:
            api.patch("resourceclaims", "second", {"status": {"reservedFor": None, "allocation": None}},
                      world.namespace, subresource="status")  # fmt: skip


def test_an_event_that_somebody_wrote_leads_the_controller_nowhere(
    world: World, kubeconfig: Path, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may edit a namespace may write Events, and of what they are about the API server checks the namespace."""
    namespace = world.namespace
    asked: list[str] = []
    send = urllib3.PoolManager.urlopen
    monkeypatch.setattr(
        urllib3.PoolManager,
        "urlopen",
        lambda self, method, url, **more: (asked.append(url), send(self, method, url, **more))[1],
    )
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "eve"}}
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    api.create({**binding, "subjects": [{"kind": "User", "name": "eve"}]}, namespace)
    eve = api.acting_as("eve")
    with counting(world, kubeconfig) as counter:
        for name in ("../../../../../../api/v1/pods?watch=true&x=", "r"):
            about = {"kind": "ReplicaSet", "namespace": namespace, "name": name, "uid": name}
            wait_for(lambda about=about: _event(eve, about), 10, "eve's right to write Events")
        wait_for(lambda: len(counter._tally._denied) == 2, 10, "both refusals to be counted")
    eve.close()
    assert any(url.endswith("/replicasets/r") for url in asked)
    assert not any("&x=" in url for url in asked)


def _event(api: Api, about: dict[str, str]) -> bool:
    said = 'admission webhook "validate.dra-gate.io" denied the request: x'
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {"reason": "FailedCreate", "message": said, "involvedObject": about, "lastTimestamp": now}
    metadata = {"generateName": "x-", "namespace": about["namespace"]}
    try:
        api.create({"apiVersion": "v1", "kind": "Event", "metadata": metadata, **event}, about["namespace"])
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return True


def test_what_cannot_be_read_is_not_written_over(world: World, kubeconfig: Path) -> None:
    """It may be a later version's."""
    first, _ = store(kubeconfig)
    first.load()
    first.save(b'{"format": 2}')
    client = Client.connect(str(kubeconfig))
    decisions = DecisionController(client, identity="test", leading=lambda: True)
    counter = CounterController(
        client, decisions, ArbiterController(client, decisions, leading=bool), leading=lambda: True
    )
    decisions.use([world.set])
    counter.use(PolicySets(world.set))
    decisions.start()
    counter.start()
    try:
        wait_for(lambda: counter._load_at > 0, 20, "an attempt to read")
        world.pod("first")
        assert counter.report(1, 0.05) is None
    finally:
        counter.stop()
        decisions.stop()
        client.close()
    assert first.load() == (True, b'{"format": 2}')


def test_the_command_line_says_what_is_missing(kubeconfig: Path, api: Api) -> None:
    def run() -> str:
        done = CliRunner().invoke(command, ["report", "--kubeconfig", str(kubeconfig)])
        assert done.exit_code == 2
        return done.output

    assert "there are none; the controller writes them half a minute after it begins to lead" in run()
    one, _ = store(kubeconfig)
    one.load()
    one.save(Tally().dumps(1, 1))
    assert "nothing was counted yet" in run()
    one.save(b"[]")
    assert "another version of the gate may have written them" in run()
    for found in api.list("configmaps", "dra-gate", labels=LABEL):
        api.patch("configmaps", found["metadata"]["name"], {"binaryData": {"part": "AAAA"}}, "dra-gate")
    assert "none is whole" in run()
