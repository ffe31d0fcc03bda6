"""Rows of the failure table provoked on the real control plane: its own texts, classified.

Where a row asks for a fact, the test prepares what makes the fact true. Where the action of a row is ours and changes
something on the control plane, the test does it and sees that it helps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allocation.failures.evidence import Hold, rows
from controlplane import fleet as fleets
from controlplane.api import JSON_PATCH, STRATEGIC, Api, Object, wait_for
from controlplane.control_plane import CONTROLLER_MANAGER, ControlPlane
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.rate import plain_template, template_pod
from dra_gate.allocation.failures import Facts

pytestmark = pytest.mark.controlplane
HOW = "provoked"
POLICIES = Path(__file__).parents[2] / "e2e" / "policies"
TWO_NODES = {"nodes": [{"name": "hopper", "devices": {"h100": 2}}, {"name": "ampere", "devices": {"a100": 2}}]}


def two_nodes() -> Fleet:
    return Fleet.of("two-nodes", TWO_NODES)


def claim_spec(*alternatives: Object, **exactly: Any) -> Object:
    """A claim spec with one request `gpu`: alternatives in order, or an `exactly`."""
    request: Object = {"name": "gpu"}
    request |= {"firstAvailable": list(alternatives)} if alternatives else {"exactly": exactly}
    return {"devices": {"requests": [request]}}


def template(name: str, spec: Object) -> Object:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return kind | {"metadata": {"name": name}, "spec": {"spec": spec}}


def claim(name: str, spec: Object) -> Object:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def cel(expression: str) -> list[Object]:
    return [{"cel": {"expression": expression}}]


def pod(name: str, entry: Object | None = None, *, limits: Object | None = None, **spec: Any) -> Object:
    """A Pod of one container, with one claim entry or none."""
    resources: Object = {"requests": {"cpu": "100m"}}
    if entry is not None:
        resources["claims"] = [{"name": "gpu"}]
        spec["resourceClaims"] = [{"name": "gpu"} | entry]
    if limits:
        resources |= {"limits": limits}
    containers = [{"name": "main", "image": "none", "resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers} | spec}


def named(claim_name: str) -> Object:
    return {"resourceClaimName": claim_name}


def gated(name: str, entry: Object) -> Object:
    return pod(name, entry, schedulingGates=[{"name": "example.com/turn"}])


def ungate(api: Api, namespace: str, name: str) -> None:
    remove = [{"op": "remove", "path": "/spec/schedulingGates"}]
    api.patch("pods", name, remove, namespace, content_type=JSON_PATCH)


def bound(api: Api, namespace: str, name: str) -> Object:
    return api.wait("pods", name, namespace, lambda found: "nodeName" in found["spec"])


def touch(api: Api, namespace: str, name: str) -> None:
    api.patch("pods", name, {"metadata": {"labels": {"touched": str(time.time_ns())}}}, namespace)


def claim_of(api: Api, namespace: str, name: str) -> str:
    """The name of the claim made for the Pod's entry, when it is there."""

    def look() -> str | None:
        statuses = api.get("pods", name, namespace)["status"].get("resourceClaimStatuses") or [{}]
        made = statuses[0].get("resourceClaimName")
        return made if made and api.find("resourceclaims", made, namespace) else None

    return wait_for(look, 10, f"the claim of {name}")


@contextmanager
def denied(api: Api, namespace: str, operation: str, user: str) -> Iterator[None]:
    """Admission denies that user the operation on ResourceClaims of the namespace."""
    name = f"deny-{namespace}"
    rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "operations": [operation]}
    rule["resources"] = ["resourceclaims"]
    group = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    user_test = {"expression": f"request.userInfo.username != '{user}'", "message": "not you"}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [user_test]}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selector}}
    api.create(group | {"kind": "ValidatingAdmissionPolicy", "spec": policy})
    api.create(group | {"kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    time.sleep(4)  # in force about a second later; nothing shows it but a denial of that user
    try:
        yield
    finally:
        api.delete("validatingadmissionpolicybindings", name)
        api.delete("validatingadmissionpolicies", name)


# -- held, and claims that are not there ------------------------------------------------------------------------------


@rows("gated", "claim-gone")
def test_a_gated_pod_and_its_claim_deleted(api: Api, namespace: str, hold: Hold) -> None:
    api.create(plain_template("plain"), namespace)
    api.create(gated("p", {"resourceClaimTemplateName": "plain"}), namespace)
    made = claim_of(api, namespace, "p")
    hold("gated", "waiting", "wait", namespace, "p")
    api.delete("resourceclaims", made, namespace)
    hold("claim-gone", "retryable", "touch-pod", namespace, "p")
    touch(api, namespace, "p")
    assert claim_of(api, namespace, "p") != made


@rows("claim-not-made", "claim-not-made-for-long")
def test_a_claim_not_made_yet(control_plane: ControlPlane, api: Api, namespace: str, hold: Hold) -> None:
    api.create(plain_template("plain"), namespace)
    control_plane.stop(CONTROLLER_MANAGER)
    try:
        api.create(template_pod("p", "plain"), namespace)
        hold("claim-not-made", "retryable", "wait", namespace, "p")
        hold("claim-not-made-for-long", "operator", "alert", namespace, "p", Facts(seconds=61))
    finally:
        control_plane.start(CONTROLLER_MANAGER)


@rows("template-missing")
def test_a_missing_template(api: Api, namespace: str, hold: Hold) -> None:
    api.create(template_pod("p", "plain"), namespace)
    failure = hold("template-missing", "operator", "make-template", namespace, "p")
    assert 'resource claim template "plain"' in failure.text
    api.create(plain_template("plain"), namespace)
    claim_of(api, namespace, "p")


@rows("claim-over-quota", "claim-late-after-quota")
def test_a_claim_over_quota_and_late_after_it(api: Api, namespace: str, hold: Hold) -> None:
    hard = {"count/resourceclaims.resource.k8s.io": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": hard}}
    api.create(quota, namespace)
    api.wait("resourcequotas", "none", namespace, lambda found: found.get("status", {}).get("hard") == hard)
    api.create(plain_template("plain"), namespace)
    api.create(template_pod("p", "plain"), namespace)
    failure = hold("claim-over-quota", "retryable", "wait", namespace, "p")
    assert "exceeded quota: none" in failure.text
    time.sleep(12)  # attempts come 0.005 s * 2^n apart: the next one 20 s after the first
    more = {"count/resourceclaims.resource.k8s.io": "9"}
    api.patch("resourcequotas", "none", {"spec": {"hard": more}}, namespace)
    api.wait("resourcequotas", "none", namespace, lambda found: found["status"].get("hard") == more)
    time.sleep(1)
    hold("claim-late-after-quota", "retryable", "touch-pod", namespace, "p", Facts(quota_has_room=True))
    began = time.monotonic()
    touch(api, namespace, "p")
    claim_of(api, namespace, "p")
    assert time.monotonic() - began < 2


@rows("admin-access")
def test_admin_access_not_allowed_any_more(api: Api, make_namespace: MakeNamespace, hold: Hold) -> None:
    key = "resource.kubernetes.io/admin-access"
    namespace = make_namespace(labels={key: "true"})
    api.create(template("admin", claim_spec(deviceClassName="gpu.nvidia.com", adminAccess=True)), namespace)
    api.patch("namespaces", namespace, {"metadata": {"labels": {key: None}}})
    api.create(template_pod("p", "admin"), namespace)
    hold("admin-access", "terminal", "stop", namespace, "p")


@rows("claim-refused")
def test_admission_refuses_the_claim(api: Api, namespace: str, hold: Hold) -> None:
    api.create(plain_template("plain"), namespace)
    with denied(api, namespace, "CREATE", "system:serviceaccount:kube-system:resource-claim-controller"):
        api.create(template_pod("p", "plain"), namespace)
        hold("claim-refused", "operator", "alert", namespace, "p")


@rows("claim-creation-failed")
def test_a_claim_that_cannot_be_made_for_an_unknown_reason(api: Api, namespace: str, hold: Hold) -> None:
    """The claim controller has lost its rights: no row knows that text."""
    role = api.get("clusterroles", "system:controller:resource-claim-controller")
    fewer = [rule for rule in role["rules"] if "resourceclaims" not in rule["resources"]]
    api.create(plain_template("plain"), namespace)
    try:
        api.patch("clusterroles", role["metadata"]["name"], {"rules": fewer})
        time.sleep(1)
        api.create(template_pod("p", "plain"), namespace)
        failure = hold("claim-creation-failed", "unknown", "alert", namespace, "p")
        assert "cannot create resource" in failure.text
    finally:
        api.patch("clusterroles", role["metadata"]["name"], {"rules": role["rules"]})


@rows("claim-missing", "stale-gated")
def test_a_named_claim_that_is_missing(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    api.create(pod("p", named("never")), namespace)
    time.sleep(1)  # the scheduler has looked, and says nothing
    hold("claim-missing", "waiting", "wait", namespace, "p")
    api.create(gated("q", named("late")), namespace)
    api.wait("pods", "q", namespace, lambda found: found["status"].get("conditions"))
    ungate(api, namespace, "q")
    time.sleep(1)
    hold("stale-gated", "operator", "write-claim", namespace, "q")
    api.create(claim("late", claim_spec(deviceClassName="gpu.nvidia.com")), namespace)
    bound(api, namespace, "q")


@rows("claim-leaving")
def test_a_named_claim_that_is_being_deleted(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    api.create(claim("c", claim_spec(deviceClassName="gpu.nvidia.com")), namespace)
    api.create(pod("first", named("c")), namespace)
    bound(api, namespace, "first")
    api.delete("resourceclaims", "c", namespace)
    api.create(pod("second", named("c")), namespace)
    hold("claim-leaving", "waiting", "wait", namespace, "second")


# -- the scheduler speaks ---------------------------------------------------------------------------------------------


@rows("no-free-device", "template-matches-nothing")
def test_no_device_free_and_none_that_matches(
    api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(two_nodes())
    api.create(plain_template("all", count=2), namespace)
    for name in ("a", "b"):
        api.create(template_pod(name, "all"), namespace)
        bound(api, namespace, name)
    api.create(template_pod("full", "all"), namespace)
    failure = hold("no-free-device", "retryable", "explain", namespace, "full", Facts(fleet_can_match=True))
    assert failure.text.startswith("0/2 nodes are available: 2 cannot allocate all claims.")
    api.create(plain_template("odd", models=("B300",)), namespace)
    api.create(template_pod("never", "odd"), namespace)
    same = hold("template-matches-nothing", "terminal", "stop", namespace, "never", Facts(fleet_can_match=False))
    assert (same.text, same.told) == (failure.text, ("submitter", "reviewer"))


@rows("pool-incomplete", "pool-incomplete-for-long", "pool-with-extra-slices")
def test_pools_with_too_few_and_too_many_slices(
    api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(Fleet.of("one", {"nodes": [{"name": "n", "devices": {"h100": 4}, "slices": 2}]}))
    first, second = fleets.slices_of(api, "n")
    api.delete("resourceslices", second["metadata"]["name"])
    api.create(plain_template("plain"), namespace)
    api.create(template_pod("p", "plain"), namespace)
    hold("pool-incomplete", "retryable", "wait", namespace, "p", Facts(pool_incomplete=True))
    late = Facts(pool_incomplete=True, seconds=301)
    hold("pool-incomplete-for-long", "operator", "alert", namespace, "p", late)
    first["spec"]["pool"]["resourceSliceCount"] = 1
    api.replace(first)
    bound(api, namespace, "p")
    metadata = {k: second["metadata"][k] for k in ("name", "labels", "ownerReferences")}
    second = {k: second[k] for k in ("apiVersion", "kind", "spec")} | {"metadata": metadata}
    second["spec"]["pool"]["resourceSliceCount"] = 1
    api.create(second)
    api.create(template_pod("q", "plain"), namespace)
    hold("pool-with-extra-slices", "operator", "alert", namespace, "q", Facts(pool_with_extra_slices=True))


@rows("devices-tainted", "device-lost")
def test_tainted_and_lost_devices(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(Fleet.of("one", {"nodes": [{"name": "n", "devices": {"h100": 1}}]}))
    fleets.taint_device(api, "n", "gpu-0", "example.com/cleaning")
    api.create(plain_template("plain"), namespace)
    api.create(template_pod("p", "plain"), namespace)
    keys = frozenset({"example.com/cleaning"})
    hold("devices-tainted", "infrastructure", "wait", namespace, "p", Facts(taints=keys))
    fleets.taint_device(api, "n", "gpu-0", "gpu.nvidia.com/xid", "79")
    hold("device-lost", "operator", "alert", namespace, "p", Facts(taints=keys | {"gpu.nvidia.com/xid"}))


@rows("allocation-timeout")
def test_the_scheduler_takes_too_long(
    control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(two_nodes())
    api.create(plain_template("plain"), namespace)
    with scheduler_args(control_plane, filterTimeout="1ns"):
        api.create(template_pod("p", "plain"), namespace)
        hold("allocation-timeout", "operator", "alert", namespace, "p")


@contextmanager
def scheduler_args(control_plane: ControlPlane, **args: str) -> Iterator[None]:
    """The scheduler with these DynamicResourcesArgs."""
    typed = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "DynamicResourcesArgs", **args}
    config = [{"name": "DynamicResources", "args": typed}]
    control_plane.configure_scheduler(profiles=[{"schedulerName": "default-scheduler", "pluginConfig": config}])
    try:
        yield
    finally:
        control_plane.configure_scheduler(profiles=None)


@rows("claim-pinned-elsewhere")
def test_a_claim_allocated_elsewhere(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    api.create(claim("c", claim_spec(deviceClassName="gpu.nvidia.com")), namespace)
    api.create(pod("first", named("c")), namespace)
    fleets.cordon(api, bound(api, namespace, "first")["spec"]["nodeName"])
    api.create(pod("second", named("c")), namespace)
    hold("claim-pinned-elsewhere", "retryable", "explain", namespace, "second")


@rows("claim-in-use")
def test_a_claim_with_as_many_users_as_it_can_have(
    api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(two_nodes())
    api.create(claim("c", claim_spec(deviceClassName="gpu.nvidia.com")), namespace)
    api.create(pod("first", named("c")), namespace)
    bound(api, namespace, "first")
    # Users that are no Pods are left alone by the claim controller.
    users = [{"apiGroup": "example.com", "resource": "jobs", "name": f"j-{n}", "uid": f"u-{n}"} for n in range(255)]
    held = api.get("resourceclaims", "c", namespace)["status"]["reservedFor"]
    api.patch("resourceclaims", "c", {"status": {"reservedFor": held + users}}, namespace, subresource="status")
    try:
        api.create(pod("second", named("c")), namespace)
        hold("claim-in-use", "retryable", "wait", namespace, "second")
    finally:
        api.patch("resourceclaims", "c", {"status": {"reservedFor": held}}, namespace, subresource="status")


@rows("class-missing")
def test_a_missing_class(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    there, missing = ({"name": n, "deviceClassName": c} for n, c in (("a", "gpu.nvidia.com"), ("b", "nope.example")))
    api.create(template("t", claim_spec(there, missing)), namespace)
    api.create(template_pod("p", "t"), namespace)
    failure = hold("class-missing", "operator", "alert", namespace, "p")
    assert "request gpu/b: device class nope.example does not exist" in failure.text


@rows("class-selector-fails", "selector-fails", "one-bad-device")
def test_expressions_that_fail(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    bad = {"count": 1, "attributes": {"architecture": None}}
    nodes = [{"name": "bad", "devices": {"h100": bad}}, {"name": "good", "devices": {"a100": 2}}]
    install_fleet(Fleet.of("one-bad", {"nodes": nodes}))
    wants = cel("device.attributes['gpu.nvidia.com'].architecture == 'Ampere'")
    api.create(template("t", claim_spec(deviceClassName="gpu.nvidia.com", selectors=wants)), namespace)
    api.create(template_pod("p", "t"), namespace)
    hold("selector-fails", "terminal", "stop", namespace, "p")
    failure = hold("one-bad-device", "operator", "alert", namespace, "p", Facts(fits_without_bad_device=True))
    assert "gpu.nvidia.com/bad/gpu-0: CEL runtime error: no such key: architecture" in failure.text
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": f"wants.{namespace}"}}
    api.create(kind | {"spec": {"selectors": wants}})
    try:
        api.create(template("u", claim_spec(deviceClassName=f"wants.{namespace}")), namespace)
        api.create(template_pod("q", "u"), namespace)
        hold("class-selector-fails", "operator", "alert", namespace, "q")
    finally:
        api.delete("deviceclasses", f"wants.{namespace}")


@rows("claim-too-large")
def test_more_devices_than_a_claim_can_hold(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    api.create(template("t", claim_spec(deviceClassName="gpu.nvidia.com", count=33)), namespace)
    api.create(template_pod("p", "t"), namespace)
    hold("claim-too-large", "terminal", "stop", namespace, "p")


@rows("all-mode-waits", "invalid-pool")
def test_pools_that_are_in_between_or_contradict_themselves(
    api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(Fleet.of("one", {"nodes": [{"name": "n", "devices": {"h100": 4}, "slices": 2}]}))
    first, second = fleets.slices_of(api, "n")
    first["spec"]["pool"]["resourceSliceCount"] = second["spec"]["pool"]["resourceSliceCount"] = 3
    api.replace(first), api.replace(second)
    api.create(template("t", claim_spec(deviceClassName="gpu.nvidia.com", allocationMode="All")), namespace)
    api.create(template_pod("p", "t"), namespace)
    hold("all-mode-waits", "retryable", "wait", namespace, "p")
    api.delete("pods", "p", namespace, grace=0)
    first, second = fleets.slices_of(api, "n")
    first["spec"]["pool"]["resourceSliceCount"] = second["spec"]["pool"]["resourceSliceCount"] = 2
    second["spec"]["devices"][0]["name"] = first["spec"]["devices"][0]["name"]
    api.replace(first), api.replace(second)
    api.create(plain_template("plain"), namespace)
    api.create(template_pod("q", "plain"), namespace)
    failure = hold("invalid-pool", "operator", "alert", namespace, "q")
    assert "invalid resource pools were encountered" in failure.text


@rows("scheduler-refused", "extended-claim-stuck")
def test_admission_refuses_what_the_scheduler_writes(
    api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(two_nodes())
    api.create(plain_template("plain"), namespace)
    with denied(api, namespace, "UPDATE", "system:kube-scheduler"):
        api.create(template_pod("p", "plain"), namespace)
        hold("scheduler-refused", "retryable", "alert", namespace, "p")
        api.create(pod("x", limits={"nvidia.com/gpu": "1"}), namespace)
        hold("extended-claim-stuck", "operator", "recreate-pod", namespace, "x", timeout=60)
    bound(api, namespace, "p")


@rows("device-being-readied", "binding-for-long", "binding-failed")
def test_a_device_that_fails_to_become_ready(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    republish_with_binding_conditions(api, "hopper")
    api.create(plain_template("plain", models=("H100",)), namespace)
    api.create(template_pod("p", "plain"), namespace)
    hold("device-being-readied", "waiting", "wait", namespace, "p")
    hold("binding-for-long", "operator", "alert", namespace, "p", Facts(seconds=901))
    fail_binding(api, namespace, claim_of(api, namespace, "p"))
    failure = hold("binding-failed", "infrastructure", "wait", namespace, "p")
    assert 'message="no fabric"' in failure.text
    wait_for(
        lambda: "deallocation of ResourceClaim completed" in scheduler_said(api, namespace, "p"), 20, "it to be freed"
    )


def scheduler_said(api: Api, namespace: str, name: str) -> str:
    """Every text of the scheduler about the Pod."""
    events = (event for event in api.list("events", namespace) if event["involvedObject"]["name"] == name)
    return "\n".join(event["message"] for event in events if event["reason"] == "FailedScheduling")


def republish_with_binding_conditions(api: Api, node: str) -> None:
    binding = {"bindsToNode": True, "bindingConditions": ["kit/ready"], "bindingFailureConditions": ["kit/broken"]}
    fleets.republish(api, node, lambda devices: [device | binding for device in devices])


def fail_binding(api: Api, namespace: str, name: str) -> None:
    """What a driver writes that cannot attach a device."""
    (result,) = api.get("resourceclaims", name, namespace)["status"]["allocation"]["devices"]["results"]
    at = {key: result[key] for key in ("driver", "pool", "device")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    broken = {"type": "kit/broken", "status": "True", "reason": "NoFabric", "message": "no fabric"}
    broken["lastTransitionTime"] = now
    status = {"devices": [at | {"conditions": [broken]}]}
    api.patch("resourceclaims", name, {"status": status}, namespace, subresource="status", content_type=STRATEGIC)


@rows("binding-timeout")
def test_a_device_that_does_not_become_ready(
    control_plane: ControlPlane, api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold
) -> None:
    install_fleet(two_nodes())
    republish_with_binding_conditions(api, "hopper")
    api.create(plain_template("plain", models=("H100",)), namespace)
    with scheduler_args(control_plane, bindingTimeout="2s"):
        api.create(template_pod("p", "plain"), namespace)
        hold("binding-timeout", "infrastructure", "wait", namespace, "p")


@rows("class-mapping-lost", "resource-not-served", "resource-exhausted")
def test_extended_resources(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    nodes = [*TWO_NODES["nodes"], {"name": "plugin", "allocatable": {"example.com/card": 1}}]
    install_fleet(Fleet.of("plugin", {"nodes": nodes}))
    for name in ("a", "b"):
        api.create(pod(name, limits={"example.com/card": "1"}), namespace)
    bound(api, namespace, "a")
    served = Facts(class_serves=False, plugin_serves=True)
    hold("resource-exhausted", "retryable", "wait", namespace, "b", served)
    api.create(pod("c", limits={"example.com/none": "1"}), namespace)
    unserved = Facts(class_serves=False, plugin_serves=False)
    hold("resource-not-served", "operator", "alert", namespace, "c", unserved)

    # The obvious migration to another class: the new one takes the name, the old one goes.
    original = api.get("deviceclasses", "gpu.nvidia.com")["spec"]
    old = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": f"old.{namespace}"}}
    time.sleep(1.1)  # of two classes in one second the lower name would win
    api.create(old | {"spec": original})
    time.sleep(0.5)
    api.delete("deviceclasses", f"old.{namespace}")
    time.sleep(0.5)
    api.create(pod("d", limits={"nvidia.com/gpu": "1"}), namespace)
    lost = Facts(class_serves=True, plugin_serves=False)
    hold("class-mapping-lost", "operator", "wake-class", namespace, "d", lost)
    for name in (None, "nvidia.com/gpu"):
        api.patch("deviceclasses", "gpu.nvidia.com", {"spec": {"extendedResourceName": name}})
    bound(api, namespace, "d")


@rows("no-node-fits", "scheduler-silent")
def test_what_is_not_about_devices(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    api.create(plain_template("plain"), namespace)
    api.create(template_pod("p", "plain", cpu="1000"), namespace)
    failure = hold("no-node-fits", "retryable", "wait", namespace, "p")
    assert "cannot allocate" not in failure.text
    unseen = template_pod("q", "plain")
    unseen["spec"]["schedulerName"] = "nobody"
    api.create(unseen, namespace)
    claim_of(api, namespace, "q")
    hold("scheduler-silent", "operator", "alert", namespace, "q", Facts(seconds=31))


@rows("scheduling-failed")
def test_a_scheduler_text_that_no_row_knows(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    """The scheduler has lost its right to bind."""
    install_fleet(two_nodes())
    role = api.get("clusterroles", "system:kube-scheduler")
    fewer = [rule for rule in role["rules"] if "pods/binding" not in rule["resources"]]
    try:
        api.patch("clusterroles", "system:kube-scheduler", {"rules": fewer})
        time.sleep(1)
        api.create(plain_template("plain"), namespace)
        api.create(template_pod("p", "plain"), namespace)
        failure = hold("scheduling-failed", "unknown", "alert", namespace, "p")
        assert "pods/binding" in failure.text
    finally:
        api.patch("clusterroles", "system:kube-scheduler", {"rules": role["rules"]})


# -- no Pod came of it ------------------------------------------------------------------------------------------------


def job(name: str, spec: Object) -> Object:
    metadata = {"name": name}
    body = {"template": {"spec": spec | {"restartPolicy": "Never"}}, "backoffLimit": 0}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body}


@rows("refused-by-quota", "refused")
def test_pods_that_others_refuse(api: Api, make_namespace: MakeNamespace, hold: Hold) -> None:
    namespace = make_namespace()
    hard = {"requests.nvidia.com/gpu": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": hard}}
    api.create(quota, namespace)
    api.wait("resourcequotas", "one", namespace, lambda found: found.get("status", {}).get("hard") == hard)
    api.create(job("j", pod("p", limits={"nvidia.com/gpu": "2"})["spec"]), namespace)
    failure = hold("refused-by-quota", "terminal", "stop", namespace, "j", owner=True)
    assert "limited: requests.nvidia.com/gpu=1" in failure.text
    strict = make_namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    api.create(job("k", pod("p")["spec"]), strict)
    hold("refused", "unknown", "alert", strict, "k", owner=True)


@rows("refused-by-gate", "gate-unreachable")
def test_pods_that_the_gate_refuses(
    control_plane: ControlPlane, api: Api, make_namespace: MakeNamespace, hold: Hold
) -> None:
    namespace = make_namespace(labels={"dra-gate.io/lane": "dra"})  # gated, and nobody's
    with Gate(control_plane, POLICIES, controllers=0) as gate:
        api.create(job("j", pod("p", limits={"nvidia.com/gpu": "1"})["spec"]), namespace)
        failure = hold("refused-by-gate", "terminal", "stop", namespace, "j", owner=True)
        assert "NO_TENANT" in failure.text
        gate.stop(kill=True)
        api.create(job("k", pod("p", limits={"nvidia.com/gpu": "1"})["spec"]), namespace)
        hold("gate-unreachable", "infrastructure", "alert", namespace, "k", owner=True)


# -- leaving ----------------------------------------------------------------------------------------------------------


@rows("evicted-by-device-taint", "stuck-terminating", "node-not-ready")
def test_pods_that_are_told_to_leave(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    install_fleet(two_nodes())
    api.create(plain_template("plain"), namespace)
    api.create(template_pod("p", "plain"), namespace)
    bound(api, namespace, "p")
    fleets.set_ready(api, "hopper", ready=False)
    hold("node-not-ready", "infrastructure", "keep-charge", namespace, "p", Facts(node_ready=False))
    fleets.set_ready(api, "hopper", ready=True)
    fleets.taint_rule(api, f"drain-{namespace}", "kit/drain", "NoExecute", driver="gpu.nvidia.com", pool="hopper")
    ready = Facts(node_ready=True)
    hold("evicted-by-device-taint", "infrastructure", "requeue", namespace, "p", ready)
    late = Facts(node_ready=True, seconds=121)  # there is no kubelet that would end it
    hold("stuck-terminating", "operator", "alert", namespace, "p", late)


@rows("node-gone")
def test_a_node_that_is_deleted(api: Api, install_fleet: InstallFleet, namespace: str, hold: Hold) -> None:
    """The finalizer keeps the Pod object, which Pod GC marks and deletes a minute after its node."""
    install_fleet(two_nodes())
    api.create(plain_template("plain"), namespace)
    held = template_pod("p", "plain")
    held["metadata"]["finalizers"] = ["kit.example/look"]
    api.create(held, namespace)
    try:
        fleets.delete_node(api, bound(api, namespace, "p")["spec"]["nodeName"])
        hold("node-gone", "infrastructure", "requeue", namespace, "p", timeout=120)
    finally:
        api.patch("pods", "p", {"metadata": {"finalizers": None}}, namespace)
