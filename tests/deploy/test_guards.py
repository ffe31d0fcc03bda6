"""The guards on the real API server: against somebody who may do anything by RBAC, but is no guardian."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional
from click.testing import CliRunner

from admission import setting
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, TENANT, ControlPlane
from deploy.kubectl import DEPLOY
from dra_gate.admission.backstop import BACKSTOP
from dra_gate.admission.configurations import GATE_WRITERS, configurations
from dra_gate.admission.guards import GUARDS, MOVED, TENANT_LABEL, findings
from dra_gate.admission.request import Request
from dra_gate.cli import guards

LANE, MODE, ADMIN_ACCESS = "dra-gate.io/lane", "dra-gate.io/mode", "resource.kubernetes.io/admin-access"
SET = {"dra-gate.io/policy-set": "true"}
META = "admissionregistration.k8s.io/v1"
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "create", "update", "patch", "delete"]}
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "nearly-everything"},
    "rules": [EVERYTHING],  # all but the verb `guard`
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "nearly-everything"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nearly-everything"},
    "subjects": [{"kind": "User", "name": TENANT.name, "apiGroup": "rbac.authorization.k8s.io"}],
}
CLAIM = {"devices": {"requests": [{"name": "n", "exactly": {"deviceClassName": "nic.example"}}]}}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def marked(name: str, move: str, **more: str) -> dict[str, Any]:
    found = namespace(name)
    found["metadata"]["annotations"] = {MOVED: move, **more}
    return found


def config_map(name: str, labels: dict[str, str], where: str = "dra-gate") -> dict[str, Any]:
    meta = {"name": name, "namespace": where, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}}


def template(name: str, where: str = "guarded") -> dict[str, Any]:
    meta = {"name": name, "namespace": where}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": meta,
        "spec": {"spec": CLAIM},
    }


def claim(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "guarded"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": CLAIM}


HOOKS = configurations(url="https://127.0.0.1:1", ca_bundle=b"", writers=GATE_WRITERS)
GATE = {
    "apiVersion": "dra-gate.io/v1alpha1",
    "kind": "Gate",
    "metadata": {"name": "default"},
    "spec": {"active": "0" * 64},
}
LEDGER = {
    "apiVersion": "dra-gate.io/v1alpha1",
    "kind": "TenantLedger",
    "metadata": {"name": "fern"},
    "spec": {"generation": 1},
}
# Objects that are there, what somebody does to them, and whether that touches what is guarded.
THERE: list[dict[str, Any]] = [
    namespace("guarded", **{LANE: "dra", MODE: "enforce"}),
    marked("moved", "{}"),
    namespace("open", team="x"),
    namespace("dra-gate"),
    config_map("set", SET),
    config_map("other", {}),
    config_map("set", SET, "open"),
    config_map("dra-gate-cohorts-0", {}),
    config_map("dra-gate-canary", {}),
    template("dra-gate-train-v1-x1-0"),
    template("nics"),
    {**copy.deepcopy(HOOKS[1]), "webhooks": []},
    {**copy.deepcopy(HOOKS[1]), "metadata": {"name": "another"}, "webhooks": []},
    GATE,
    LEDGER,
]
ROWS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("the lane label goes", "change", namespace("guarded", **{MODE: "enforce"}), True),
    ("another lane", "change", namespace("guarded", **{LANE: "device-plugin", MODE: "enforce"}), True),
    ("mode shadow", "change", namespace("guarded", **{LANE: "dra", MODE: "shadow"}), True),
    ("no mode", "change", namespace("guarded", **{LANE: "dra"}), True),
    ("admin access", "change", namespace("guarded", **{LANE: "dra", MODE: "enforce", ADMIN_ACCESS: "true"}), True),
    ("a tenant label", "change", namespace("guarded", **{LANE: "dra", MODE: "enforce", TENANT_LABEL: "x"}), True),
    ("a label of one's own", "change", namespace("guarded", **{LANE: "dra", MODE: "enforce", "team": "y"}), False),
    ("a move of its lane is made up", "change", marked("open", '{"from": ""}'), True),
    ("a move of its lane is edited", "change", marked("moved", '{"from": ""}'), True),
    ("a move of its lane is taken away", "change", namespace("moved"), True),
    ("an annotation of one's own", "change", marked("moved", "{}", team="y"), False),
    ("an open namespace is gated", "change", namespace("open", **{LANE: ""}), True),
    ("admin access where nothing is gated", "change", namespace("open", **{ADMIN_ACCESS: "true"}), False),
    ("a namespace made with a lane", "create", namespace("made", **{LANE: "dra"}), True),
    ("a namespace made", "create", namespace("made"), False),
    ("a set is edited", "change", config_map("set", {**SET, "x": "y"}), True),
    ("a set loses its label", "change", config_map("set", {}), True),
    ("a ConfigMap becomes a set", "change", config_map("other", SET), True),
    ("a set is published", "create", config_map("new", SET), True),
    ("a set is deleted", "delete", config_map("set", SET), True),
    ("counts are edited", "change", config_map("dra-gate-cohorts-0", {"x": "y"}), True),
    ("counts are made", "create", config_map("dra-gate-cohorts-3", {}), True),
    ("counts are deleted", "delete", config_map("dra-gate-cohorts-0", {}), True),
    ("the plan of waves is edited", "change", config_map("dra-gate-canary", {"x": "y"}), True),
    ("the plan of waves is deleted", "delete", config_map("dra-gate-canary", {}), True),
    ("a plan elsewhere", "create", config_map("dra-gate-canary", {}, "open"), False),
    ("counts elsewhere", "create", config_map("dra-gate-cohorts-0", {}, "open"), False),
    ("a ConfigMap beside", "change", config_map("other", {"x": "y"}), False),
    ("the same label elsewhere", "change", config_map("set", {**SET, "x": "y"}, "open"), False),
    ("a template of ours is deleted", "delete", template("dra-gate-train-v1-x1-0"), True),
    ("a template of ours is made", "create", template("dra-gate-train-v1-x2-0"), True),
    ("so in an open namespace", "create", template("dra-gate-train-v1-x2-0", "open"), True),
    ("a template of one's own is made", "create", template("mine"), False),
    ("a template of one's own is deleted", "delete", template("nics"), False),
    ("our configuration is deleted", "delete", HOOKS[1], True),
    ("our configuration is edited", "change", {**HOOKS[1], "webhooks": [HOOKS[1]["webhooks"][0]]}, True),
    ("our configuration is made", "create", {**HOOKS[0], "webhooks": []}, True),
    ("another's configuration is deleted", "delete", {**HOOKS[1], "metadata": {"name": "another"}}, False),
    ("the Gate is edited", "change", {**GATE, "spec": {"active": "1" * 64}}, True),
    (
        "a tenant is sent to the other lane",
        "change",
        {**GATE, "spec": {**GATE["spec"], "lane": {"tenants": [{"name": "fern", "lane": "device-plugin"}]}}},
        True,
    ),
    ("the Gate is deleted", "delete", GATE, True),
    ("a ledger is edited", "change", {**LEDGER, "spec": {"generation": 9}}, True),
    ("a ledger is made", "create", {**LEDGER, "metadata": {"name": "nobodys-yet"}}, True),
    ("a ledger is deleted", "delete", LEDGER, True),
    ("a late claim is squatted", "create", claim("dra-gate-late-" + "0a" * 16), True),
    ("a claim of one's own is made", "create", claim("mine"), False),
]  # fmt: skip
RESOURCES = {
    "Namespace": ("", "namespaces"),
    "ConfigMap": ("", "configmaps"),
    "ResourceClaimTemplate": ("resource.k8s.io", "resourceclaimtemplates"),
    "MutatingWebhookConfiguration": ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    "ValidatingWebhookConfiguration": ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    "Gate": ("dra-gate.io", "gates"),
    "TenantLedger": ("dra-gate.io", "tenantledgers"),
    "ResourceClaim": ("resource.k8s.io", "resourceclaims"),
}


def key(obj: dict[str, Any]) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace", "")


@pytest.mark.parametrize(("doing", "obj", "guarded"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_offline(doing: str, obj: dict[str, Any], guarded: bool) -> None:
    found = judged(doing, obj, TENANT.name)
    assert bool(found) is guarded
    assert all(one.field and one.message and one.remedy for one in found)
    assert not judged(doing, obj, GATE_CONTROLLER.name)
    assert not judged(doing, obj, "system:serviceaccount:kube-system:namespace-controller")


ENVIRONMENT = cel.NewEnv(variables={"variables": cel.Type.DYN}, extensions=[ext_optional.ExtOptional()])


@pytest.mark.parametrize(("doing", "obj", "guarded"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_the_policies_condition_holds_for_the_same(doing: str, obj: dict[str, Any], guarded: bool) -> None:
    request = asked(doing, obj, TENANT.name)
    was, now = (one.get("metadata", {}) for one in (request.old_object, request.object))
    said = {
        "was": was.get("labels", {}),
        "now": now.get("labels", {}),
        "notesWas": was.get("annotations", {}),
        "notesNow": now.get("annotations", {}),
        "name": now.get("name") or was.get("name") or now.get("generateName", ""),
    }
    held = [
        guard.id
        for guard in GUARDS
        if guard.covers(request) and ENVIRONMENT.compile(guard.condition).eval(data={"variables": said}).value() is True
    ]
    assert bool(held) is guarded


def judged(doing: str, obj: dict[str, Any], user: str) -> Any:
    return findings(asked(doing, obj, user), frozenset(GATE_WRITERS))


def asked(doing: str, obj: dict[str, Any], user: str) -> Request:
    old = next((one for one in THERE if key(one) == key(obj)), {})
    return setting.request(
        {} if doing == "delete" else obj,
        old=old,
        operation={"change": "UPDATE", "create": "CREATE", "delete": "DELETE"}[doing],
        resource=RESOURCES[obj["kind"]],
        namespace=obj["metadata"].get("namespace", obj["metadata"]["name"]),
        user=user,
    )


def test_every_guard_has_rows_of_both_kinds() -> None:
    for guard in GUARDS:
        sides = {guarded for _, _, obj, guarded in ROWS if RESOURCES[obj["kind"]][1] in guard.resources}
        assert True in sides, guard.id
        assert False in sides or guard.id in ("guard-gate", "guard-ledgers"), guard.id


def test_the_committed_guards_are_what_the_command_prints() -> None:
    for words, file in (
        ([], "base/guards.yaml"),
        (["--backstop"], "components/backstop/backstop.yaml"),
    ):
        done = CliRunner().invoke(guards.command, words)
        committed = (DEPLOY / file).read_text()
        assert committed.partition("\n")[2] == done.output, "write it anew as its first line says"
    # The API server takes no document that is only a comment, so this one says nothing of itself.
    static = CliRunner().invoke(guards.command, ["--static"]).output
    assert (DEPLOY / "static" / "policies" / "guards.yaml").read_text() == static


# -- on the API server ------------------------------------------------------------------------------------------------


def serve_our_kinds(api: Api) -> None:
    for file in ("gate.yaml", "tenantledgers.yaml"):
        api.apply_yaml((DEPLOY / "base" / "crds" / file).read_text())
    wait_for(lambda: api.serves("gates") and api.serves("tenantledgers"), 10, "the API server to serve our kinds")


@pytest.fixture(scope="module")
def guarded(control_plane: ControlPlane) -> Iterator[Api]:
    """The guards are in force, and everybody's objects are there; gives the admin's client."""
    api = control_plane.api()
    serve_our_kinds(api)
    for obj in (ROLE, BINDING, *THERE):
        api.apply(obj)
    api.apply_yaml((DEPLOY / "base" / "guards.yaml").read_text())
    wait_for(lambda: may(control_plane.api(TENANT)), 10, "the role to count")
    for name, doing, obj, wanted in ROWS:  # each guard comes into force at a moment of its own
        if wanted:
            wait_for(partial(refused, control_plane.api(TENANT), doing, obj), 20, f"a guard to be in force: {name}")
    yield api
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        for guard in GUARDS:
            api.delete(kind, f"zz-dra-gate-{guard.id}", missing_ok=True)
        api.delete(kind, BACKSTOP, missing_ok=True)
    for kind, name in (("clusterrolebindings", ROLE), ("clusterroles", ROLE)):
        api.delete(kind, name["metadata"]["name"], missing_ok=True)  # type: ignore[index]
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        for one in ("zz-dra-gate", "another"):
            api.delete(kind, one, missing_ok=True)
    api.delete("gates", "default", missing_ok=True)
    api.delete("tenantledgers", "fern", missing_ok=True)
    for one in THERE:
        if one["kind"] == "ConfigMap":
            api.delete("configmaps", one["metadata"]["name"], one["metadata"]["namespace"], missing_ok=True)
    for name in ("guarded", "moved", "open"):
        api.delete("namespaces", name, missing_ok=True)


def may(api: Api) -> bool:
    """Whether RBAC lets this user at what is guarded."""
    try:
        api.list("validatingadmissionpolicies")
    except ApiError:
        return False
    return True


def refused(api: Api, doing: str, obj: dict[str, Any]) -> str:
    """What the API server says against a dry run of it; nothing when it would take it."""
    resource, where = RESOURCES[obj["kind"]][1], obj["metadata"].get("namespace")
    one = api.path(resource, where, obj["metadata"]["name"])
    try:
        if doing == "create":
            api.request("POST", f"{api.path(resource, where)}?dryRun=All", obj)
        elif doing == "change":
            there = api.request("GET", one).body
            changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": there["metadata"]["resourceVersion"]}}
            api.request("PUT", f"{one}?dryRun=All", changed)
        else:
            api.request("DELETE", f"{one}?dryRun=All")
    except ApiError as error:
        if "zz-dra-gate-guard" not in error.message:
            raise
        return error.message
    return ""


@pytest.mark.controlplane
@pytest.mark.parametrize(("doing", "obj", "wanted"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_on_the_api_server(
    doing: str, obj: dict[str, Any], wanted: bool, guarded: Api, control_plane: ControlPlane
) -> None:
    said = refused(control_plane.api(TENANT), doing, obj)
    assert bool(said) is wanted, said
    if wanted:
        assert "dra-gate-guardian" in said
    assert refused(guarded, doing, obj) == ""  # the cluster admin


@pytest.mark.controlplane
def test_who_is_bound_to_the_role_is_a_guardian(guarded: Api, control_plane: ControlPlane) -> None:
    role = {
        "metadata": {"name": "dra-gate-guardian"},
        "rules": [{"apiGroups": ["dra-gate.io"], "resources": ["gates"], "verbs": ["guard"]}],
    }
    guarded.apply({**ROLE, **role})
    guarded.apply(
        {**BINDING, "metadata": {"name": "guardian"}, "roleRef": {**BINDING["roleRef"], "name": "dra-gate-guardian"}}
    )  # type: ignore[dict-item]
    try:
        wait_for(lambda: not refused(control_plane.api(TENANT), "change", ROWS[0][2]), 10, "the role to count")
    finally:
        guarded.delete("clusterrolebindings", "guardian")
        guarded.delete("clusterroles", "dra-gate-guardian")


@pytest.mark.controlplane
def test_a_namespace_with_our_templates_can_be_deleted_by_anybody_who_may(
    guarded: Api, control_plane: ControlPlane
) -> None:
    guarded.apply(namespace("going", **{LANE: "dra"}))
    guarded.apply(template("dra-gate-train-v1-x1-0", "going"))
    control_plane.api(TENANT).delete("namespaces", "going")
    wait_for(lambda: guarded.find("namespaces", "going") is None, 60, "the namespace to go")


@pytest.mark.controlplane
@pytest.mark.parametrize("subresource", ["status", "finalize"])
def test_labels_do_not_change_by_a_subresource(subresource: str, guarded: Api, control_plane: ControlPlane) -> None:
    path = f"{guarded.path('namespaces', None, 'guarded')}/{subresource}"
    there = guarded.get("namespaces", "guarded")
    there["metadata"]["labels"] = {key: value for key, value in there["metadata"]["labels"].items() if key != LANE}
    with pytest.raises(ApiError, match="zz-dra-gate-guard-labels"):
        control_plane.api(TENANT).request("PUT", path, there)
    assert guarded.get("namespaces", "guarded")["metadata"]["labels"][LANE] == "dra"


@pytest.mark.controlplane
@pytest.mark.parametrize(
    ("resource", "name", "status", "guard"),
    [("gates", "default", {"history": []}, "gate"), ("tenantledgers", "fern", {"devices": 0}, "ledgers")],
)
def test_a_status_is_the_controllers(
    resource: str, name: str, status: dict[str, Any], guard: str, guarded: Api, control_plane: ControlPlane
) -> None:
    there = guarded.get(resource, name)
    there["status"] = status
    with pytest.raises(ApiError, match=f"zz-dra-gate-guard-{guard}"):
        control_plane.api(TENANT).request("PUT", f"{guarded.path(resource, None, name)}/status", there)
