"""The backstop on the real API server, with no webhook at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from admission import bypasses, setting
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, GATE_WEBHOOK, ControlPlane
from deploy.kubectl import DEPLOY
from dra_gate.admission import backstop
from dra_gate.admission.backstop import BACKSTOP, manifests
from dra_gate.policy.switch import NO_SWITCH, Switch

pytestmark = pytest.mark.controlplane
ACTIVE = "a" * 64
GATE = {
    "apiVersion": "dra-gate.io/v1alpha1",
    "kind": "Gate",
    "metadata": {"name": "default"},
    "spec": {"active": ACTIVE, "lane": {"override": "", "previous": ""}},
}
NAMESPACES = {
    "backstop": {"lane": "dra"},
    "backstop-nonsense": {"lane": "dra", "mode": "nonsense"},
    "backstop-plugin": {"lane": "device-plugin"},
    "backstop-warn": {"lane": "dra", "mode": "warn"},
    "backstop-shadow": {"lane": "dra", "mode": "shadow"},
    "backstop-open": {},
}
NOBODY: dict[str, Any] = {"active": ACTIVE, "domains": ["nvidia.com"], "exceptions": [], "exemptUsers": []}
PRIVILEGED, RAW = (dict(bypasses.CREATED)[rule] for rule in ("privileged", "raw-device-request"))
SECONDS = 5.0


@pytest.fixture(scope="module")
def admin(control_plane: ControlPlane) -> Iterator[Api]:
    """The backstop is in force; gives the admin's client."""
    api = control_plane.api()
    api.apply_yaml((DEPLOY / "base" / "crds" / "gate.yaml").read_text())
    wait_for(lambda: api.serves("gates"), 10, "the API server to serve Gates")
    for name, labels in NAMESPACES.items():
        meta = {"name": name, "labels": {f"dra-gate.io/{key}": value for key, value in labels.items()}}
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    told(api)
    for manifest in manifests():
        api.apply(manifest)
    wait_for(lambda: refused(api, PRIVILEGED), 20, "the backstop to be in force")
    yield api
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        api.delete(kind, BACKSTOP, missing_ok=True)
    api.delete("gates", "default", missing_ok=True)
    for name in NAMESPACES:
        api.delete_all("pods", name)
        api.delete("namespaces", name, missing_ok=True)


@pytest.fixture
def gate(admin: Api) -> Iterator[Api]:
    """The Gate may be changed, and is as it was at the end."""
    yield admin
    told(admin)
    wait_for(lambda: refused(admin, PRIVILEGED) and refused(admin, RAW), SECONDS, "the Gate to be as it was")


def told(api: Api, switch: Switch = NO_SWITCH, status: dict[str, Any] | None = None) -> None:
    """The Gate with that switch, and what the controller tells when all is settled. Each namespace is a tenant."""
    tenants = [{"name": name, "lane": lane} for name, lane in switch.tenants.items()]
    api.apply({**GATE, "spec": {"active": ACTIVE, "lane": {"override": switch.override, "tenants": tenants}}})
    listed = [
        backstop.told(
            backstop.labelled(name, {f"dra-gate.io/{key}": value for key, value in labels.items()}),
            switch.lane_of(name, labels["lane"]),
        )
        for name, labels in NAMESPACES.items()
        if labels.get("mode") not in ("warn", "shadow") and labels
    ]
    known = {**NOBODY, "lane": backstop.switch_text(switch), "namespaces": listed, **(status or {})}
    api.replace({**api.get("gates", "default"), "status": {"backstop": known}}, subresource="status")


def refused(api: Api, pod: dict[str, Any], namespace: str = "backstop") -> str:
    """What the backstop says against a dry run of creating the Pod; nothing when it is taken."""
    pod = copy.deepcopy(pod)
    pod["metadata"].setdefault("name", "p")
    try:
        api.create(pod, namespace, dry_run=True)
    except ApiError as error:
        if BACKSTOP not in error.message:
            raise
        return error.message
    return ""


def refused_change(api: Api, old: dict[str, Any], new: dict[str, Any], target: str, namespace: str, maker: Api) -> str:
    """The same of changing a Pod that `maker` makes."""
    meta = {**old["metadata"], "name": "changing"}
    containers = new["spec"].get("ephemeralContainers", [])
    before = copy.deepcopy({**old, "metadata": meta})
    before["spec"].pop("ephemeralContainers", None)
    maker.create(before, namespace)
    try:
        one = api.path("pods", namespace, "changing")
        stored = api.request("GET", one).body
        del stored["metadata"]["resourceVersion"]  # the scheduler writes to the Pod's status meanwhile
        if target == "pods/ephemeralcontainers":
            stored["spec"]["ephemeralContainers"] = containers
        else:
            stored["metadata"]["annotations"] = new["metadata"].get("annotations", {})
            stored["spec"]["schedulingGates"] = new["spec"].get("schedulingGates", [])
        subresource = target.partition("/")[2]
        api.request("PUT", f"{one}{f'/{subresource}' if subresource else ''}?dryRun=All", stored)
    except ApiError as error:
        if BACKSTOP not in error.message:
            raise
        return error.message
    finally:
        maker.request("DELETE", f"{one}?gracePeriodSeconds=0")
        wait_for(lambda: maker.find("pods", "changing", namespace) is None, 10, "the Pod to be gone")
    return ""


@pytest.mark.parametrize(("rule", "pod"), bypasses.CREATED)
def test_simple_ways_around_are_refused(
    rule: str, pod: dict[str, Any], admin: Api, control_plane: ControlPlane
) -> None:
    for namespace in ("backstop", "backstop-nonsense"):
        assert f"rule {rule})" in refused(admin, pod, namespace)
    assert bool(refused(admin, pod, "backstop-plugin")) is (rule != "raw-device-request")
    for namespace in ("backstop-warn", "backstop-shadow", "backstop-open"):
        assert not refused(admin, pod, namespace)
    for user in (GATE_CONTROLLER, GATE_WEBHOOK):
        assert not refused(acting(admin, user), pod)


def acting(admin: Api, user: Any) -> Api:
    return admin.acting_as(user.name, (*user.groups, "system:masters"))


@pytest.mark.parametrize(("rule", "old", "new", "target"), bypasses.CHANGED)
def test_later_changes_are_refused(
    rule: str, old: dict[str, Any], new: dict[str, Any], target: str, admin: Api
) -> None:
    maker = acting(admin, GATE_CONTROLLER)
    said = refused_change(admin, old, new, target, "backstop", maker)
    assert f"rule {rule})" in said
    for namespace in ("backstop-warn", "backstop-open"):
        assert not refused_change(admin, old, new, target, namespace, maker)
    assert not refused_change(maker, old, new, target, "backstop", maker)


@pytest.mark.parametrize("pod", bypasses.ORDINARY)
def test_ordinary_pods_pass(pod: dict[str, Any], admin: Api) -> None:
    assert not refused(admin, pod)


@pytest.mark.parametrize(("old", "new", "target"), bypasses.ORDINARY_CHANGES)
def test_ordinary_changes_pass(old: dict[str, Any], new: dict[str, Any], target: str, admin: Api) -> None:
    assert not refused_change(admin, old, new, target, "backstop", acting(admin, GATE_CONTROLLER))


def test_a_true_mirror_pod_passes_and_a_forged_one_does_not(admin: Api) -> None:
    pod = setting.pod(nodeName="n0", containers=[bypasses.container(securityContext={"privileged": True})])
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    kubelet = admin.acting_as("system:node:n0", ("system:nodes", "system:masters"))
    assert not refused(kubelet, pod)
    assert refused(admin, pod)


@pytest.mark.parametrize(
    ("change", "privileged", "raw"),
    [
        ({"switch": Switch("device-plugin")}, True, False),
        ({"switch": Switch("dra")}, True, True),
        ({"switch": Switch("dra"), "status": {"lane": "device-plugin"}}, False, False),  # it was that a moment ago
        ({"switch": Switch("", {"backstop": "device-plugin"})}, True, False),
        ({"switch": Switch("", {"other": "device-plugin"})}, True, True),
        ({"switch": Switch("device-plugin", {"backstop": "", "other": "dra"})}, True, True),
        ({"switch": Switch("", {"backstop": "dra"}), "status": {"lane": ""}}, False, False),
        ({"status": {"namespaces": []}}, False, False),  # labelled a moment ago
        ({"status": {"namespaces": ["backstop/device-plugin/enforce/dra"]}}, False, False),
        ({"status": {"namespaces": ["backstop/dra/enforce"]}}, False, False),  # an older controller's
        ({"status": {"exceptions": [{"rule": "privileged", "namespace": "backstop"}]}}, False, True),
        ({"status": {"exceptions": [{"rule": "privileged", "namespace": "other"}]}}, True, True),
        ({"status": {"exemptUsers": ["admin"]}}, False, False),
        ({"status": {"active": "b" * 64}}, False, False),
    ],
)
def test_what_the_gate_says_counts(change: dict[str, Any], privileged: bool, raw: bool, gate: Api) -> None:
    told(gate, **change)
    wait_for(
        lambda: (bool(refused(gate, PRIVILEGED)), bool(refused(gate, RAW))) == (privileged, raw),
        SECONDS,
        "the change of the Gate to count",
    )


def test_a_lane_switch_overrides_labels(gate: Api) -> None:
    assert not refused(gate, RAW, "backstop-plugin")
    told(gate, Switch("dra"))
    wait_for(lambda: refused(gate, RAW, "backstop-plugin"), SECONDS, "the switch to count")


def test_without_the_gate_nothing_is_refused(gate: Api) -> None:
    gate.delete("gates", "default")
    wait_for(lambda: not refused(gate, PRIVILEGED), SECONDS, "the Gate to be gone")


def test_as_much_as_can_be_told_is_within_the_budget(gate: Api) -> None:
    others = [f"{number:05}{'n' * 40}/dra/enforce/dra" for number in range(4999)]
    switch = Switch("", {f"{number:063}": "device-plugin" for number in range(500)})
    told(gate, switch, status={"namespaces": [*others, "backstop/device-plugin/enforce/dra"]})
    wait_for(lambda: not refused(gate, PRIVILEGED), SECONDS, "the change of the Gate to count")
    told(gate, switch, status={"namespaces": [*others, "backstop/dra/enforce/dra"]})
    wait_for(lambda: refused(gate, PRIVILEGED) and refused(gate, RAW), SECONDS, "the change of the Gate to count")


def test_many_containers_and_volumes_are_still_judged(admin: Api) -> None:
    """CEL has a budget: a Pod as large as people make them stays well below it."""
    env = [{"name": f"V{number}", "value": "x" * 50} for number in range(200)]
    pod = setting.pod(
        containers=[
            *(bypasses.container(name=f"c{number}", env=env) for number in range(30)),
            bypasses.container(name="last", securityContext={"privileged": True}),
        ],
        volumes=[
            *({"name": f"v{number}", "hostPath": {"path": "/data/" + "d" * 100}} for number in range(60)),
            {"name": "last", "hostPath": {"path": "/dev"}},
        ],
    )
    said = refused(admin, pod)
    assert "rule privileged)" in said or "rule host-device)" in said
    pod["spec"]["containers"].pop()
    assert "rule host-device)" in refused(admin, pod)


def test_the_api_server_finds_nothing_to_say_about_its_types(admin: Api) -> None:
    def checked() -> dict[str, Any] | None:
        stored = admin.get("validatingadmissionpolicies", BACKSTOP)
        status: dict[str, Any] = stored.get("status", {})
        return status if status.get("observedGeneration") == stored["metadata"]["generation"] else None

    status = wait_for(checked, 20, "the types to be checked")
    assert not status.get("typeChecking", {}).get("expressionWarnings")
