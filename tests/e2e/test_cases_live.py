"""The handed cases again, through the API server and the real webhooks: the same answers as offline."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cases import harness
from cases.test_handed import ACCEPTED, INPUTS, review
from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.cluster import install
from controlplane.control_plane import ControlPlane
from e2e import scene

pytestmark = [pytest.mark.controlplane, pytest.mark.cluster]
NAMESPACES = ("lilac-canary", "lilac-enforced")
# Kinds of the environment and of case files that a plain control plane serves.
CLUSTER_KINDS = (
    "Namespace",
    "Node",
    "RuntimeClass",
    "DeviceClass",
    "ResourceSlice",
    "ResourceClaimTemplate",
    "ResourceClaim",
    "ConfigMap",
)
GATE = "admission webhook"


@pytest.fixture(scope="module")
def lilac(control_plane: ControlPlane) -> Iterator[Api]:
    """The cases' environment under the cases' policy, with 8 of the tenant's 16 devices held."""
    api = control_plane.api()
    for obj in harness.environment():
        if obj["kind"] in CLUSTER_KINDS and obj["kind"] != "ResourceClaimTemplate":
            api.apply(servable(obj))
    # The API server takes no Pod of a runtime class that is not there.
    api.apply(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    )
    subjects = [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": "cases"}, "subjects": subjects, "roleRef": role}
    api.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **binding})
    try:
        with install(control_plane, harness.POLICIES):
            holder = scene.pod("holder", scene.container(gpus=8))
            api.create(holder, NAMESPACES[1])
            wait_for(
                lambda: "8 of 16 held" in refusal(api, scene.container(gpus=9)), 60, "the gate to have counted them"
            )
            yield api
    finally:
        scene.clear(api, *NAMESPACES)
        api.delete("clusterrolebindings", "cases")
        api.delete("runtimeclasses", "nvidia")
        for obj in harness.environment():
            if obj["kind"] in ("Node", "DeviceClass", "ResourceSlice"):
                plural = "deviceclasses" if obj["kind"] == "DeviceClass" else obj["kind"].lower() + "s"
                api.delete(plural, obj["metadata"]["name"], missing_ok=True)


def servable(obj: Object) -> Object:
    """The cases name a MIG device with a dot in it, which the API server does not take, and write templates for admin
    access, which it takes only in namespaces that are labelled so.
    """
    made = copy.deepcopy(obj)
    if obj["kind"] == "Namespace" and obj["metadata"]["name"] in NAMESPACES:
        made["metadata"]["labels"]["resource.kubernetes.io/admin-access"] = "true"
    for device in made.get("spec", {}).get("devices", []) if obj["kind"] == "ResourceSlice" else []:
        device["name"] = device["name"].replace(".", "-")
    return made


def refusal(api: Api, container: Object) -> str:
    try:
        api.create(scene.pod("probe", container), NAMESPACES[0], dry_run=True)
    except ApiError as refused:
        return refused.message
    return ""


def created(case_id: str, number: int) -> tuple[Object, str, list[str]] | None:
    """The Pod that an input creates, and as whom; None for inputs about other requests."""
    case = harness.case(case_id)
    expectation = case.expected[number]
    document = case.document(expectation)
    if document.get("kind") == "Pod":
        return document, expectation.get("user", harness.USER), expectation.get("groups", harness.GROUPS)
    request = document.get("request", {})
    if request.get("operation") != "CREATE" or document["apiVersion"] != "admission.k8s.io/v1":
        return None
    metadata = {"namespace": request["namespace"], **request["object"]["metadata"]}
    user = request["userInfo"]
    return request["object"] | {"metadata": metadata}, user["username"], user["groups"]


CREATED = [parameters for parameters in INPUTS if created(*parameters.values) is not None]


@pytest.mark.parametrize(("case_id", "number"), CREATED)
def test_same_answer(case_id: str, number: int, lilac: Api, tmp_path: Path) -> None:
    case = harness.case(case_id)
    expectation = case.expected[number]
    found = created(case_id, number)
    assert found is not None
    document, user, groups = found
    offline = review(tmp_path, document, case.objects, user, groups)
    with_objects(lilac, case.objects)
    try:
        acting = lilac.acting_as(user, [*groups, "system:authenticated"])
        known = [o for o in case.objects if o["kind"] in CLUSTER_KINDS]
        stored, error = attempt(acting, document, offline, seconds=10 if known else 0)
    finally:
        without_objects(lilac, case.objects)
    if error is not None and GATE not in error.message:
        print(f"the API server takes no such Pod: {error.message}")
        assert error.status in (400, 422)
        return
    word = "deny" if error is not None else offline["verdict"]
    assert word in ACCEPTED[expectation["verdict"]]
    assert word == offline["verdict"], error
    if error is not None:
        told = {cause["reason"] for cause in error.causes}
        assert told == {reason["code"] for reason in offline["reasons"]}
    else:
        assert stored is not None
        same_result(stored, offline["result"])


def attempt(api: Api, pod: Object, offline: Object, seconds: float) -> tuple[Object | None, ApiError | None]:
    """Create the Pod in a dry run. Objects made a moment ago reach each of the gate's caches in its own time: for so
    many seconds an answer that is not the one of offline review may be one from before.
    """
    ends = time.monotonic() + seconds
    while True:
        stored: Object | None = None
        error: ApiError | None = None
        try:
            stored = api.create(pod, dry_run=True)
        except ApiError as refused:
            error = refused
        if is_as_offline(error, offline) or time.monotonic() >= ends:
            return stored, error
        time.sleep(0.05)


def is_as_offline(error: ApiError | None, offline: Object) -> bool:
    """Whether it is refused, and why, as offline review says, or is no Pod to the API server, whoever judges it."""
    if error is None:
        return bool(offline["verdict"] != "deny")
    if GATE not in error.message:
        return error.status in (400, 422)
    codes = {reason["code"] for reason in offline["reasons"]}
    return offline["verdict"] == "deny" and {cause["reason"] for cause in error.causes} == codes


def with_objects(api: Api, objects: list[Object]) -> None:
    """Make the case's objects; a look-alike of one of the gate's own templates cannot even be made.

    Claims and templates for devices are refused to people: those of a case are there as if from before the gate.
    """
    before_the_gate = api.acting_as("system:kube-controller-manager", ["system:masters"])
    for obj in objects:
        if obj["metadata"].get("name", "").startswith("dra-gate-"):
            with pytest.raises(ApiError, match=r"RESERVED_NAME|field is immutable"):
                api.apply(obj)
        elif obj["kind"] in CLUSTER_KINDS:
            (before_the_gate if obj["kind"].startswith("ResourceClaim") else api).apply(servable(obj))
    if any(obj["kind"] == "RuntimeClass" for obj in objects):
        time.sleep(1)  # until the gate's caches, and the API server's own, have it


def without_objects(api: Api, objects: list[Object]) -> None:
    plurals = {"DeviceClass": "deviceclasses", "RuntimeClass": "runtimeclasses"}
    for obj in objects:
        if obj["kind"] in CLUSTER_KINDS and not obj["metadata"]["name"].startswith("dra-gate-"):
            plural = plurals.get(obj["kind"], obj["kind"].lower() + "s")
            api.delete(plural, obj["metadata"]["name"], obj["metadata"].get("namespace"), missing_ok=True)


def stamp(pod: Object) -> dict[str, str]:
    """Our annotations, but for the Gate's generation: offline there is no Gate."""
    annotations = pod["metadata"].get("annotations") or {}
    generation = "dra-gate.io/gate-generation"
    return {k: v for k, v in annotations.items() if k.startswith("dra-gate.io/") and k != generation}


def same_result(stored: Object, offline: Object) -> None:
    """What the API server stored is what offline review promised, the server's own defaults aside."""
    assert stamp(stored) == stamp(offline)
    assert stored["spec"].get("resourceClaims", []) == offline["spec"].get("resourceClaims", [])
    assert preferred(stored["spec"]) == preferred(offline["spec"])
    for kind in ("initContainers", "containers"):
        for now, then in zip(stored["spec"].get(kind, []), offline["spec"].get(kind, []), strict=True):
            assert now["resources"].get("claims", []) == then.get("resources", {}).get("claims", [])
            gated = "nvidia.com/gpu"
            assert (gated in now["resources"].get("limits", {})) == (
                gated in then.get("resources", {}).get("limits", {})
            )


def preferred(spec: Object) -> Any:
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return node.get("preferredDuringSchedulingIgnoredDuringExecution", [])
