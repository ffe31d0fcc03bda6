"""Rights, both ways: everything that the gate does is granted, and nothing is granted that it doesn't do.

What it does is read from the audit log of a run in which every right is needed. The gate works there as the service
accounts that its Pods have, with exactly the roles of deploy/.
"""

from __future__ import annotations

import copy
import dataclasses
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from controller.held_pods import ledger
from controller.test_certificates_controlplane import tls_secret
from controlplane.api import MERGE, Api, wait_for
from controlplane.control_plane import GATE_CONTROLLER, GATE_WEBHOOK, ControlPlane, User
from controlplane.fleet import Fleet, taint_device
from controlplane.gate import Gate
from deploy.kubectl import DEPLOY
from dra_gate.admission.guards import CANARY_PLAN, MOVED
from dra_gate.controller.decision_plan import BOUND_SECONDS
from dra_gate.migration.waves import Move, OnStop, Plan
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import load
from dra_gate.policy.model import PolicyRef
from e2e import scene
from e2e.test_health import bound_pod_of, replica_set

pytestmark = pytest.mark.controlplane
POLICIES = DEPLOY.parent / "tests" / "controlplane_test" / "policies"
GATED = "kit-gate"  # the namespace that those policies name
HELD = "kit-held"  # a tenant more, and its namespace
HELD_TENANT = f"""\
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {{name: {HELD}}}
spec: {{namespaces: [{HELD}], policy: kit@1, weight: 1}}
---
"""
ROLES = ("base/rbac.yaml", "components/own-certificates/rbac.yaml", "components/recreate/rbac.yaml",
         "components/canary-rollback/rbac.yaml")  # fmt: skip
ACCOUNTS = {"dra-gate-webhook": GATE_WEBHOOK, "dra-gate-controller": GATE_CONTROLLER}
# Everybody who is authenticated may: system:basic-user, system:discovery.
EVERYBODY = {("authentication.k8s.io", "selfsubjectreviews", "create")}

# Of its counts. Policy sets are immutable, and none counts before the Gate names it.
OWN_MAPS = {("dra-gate", "create"), ("dra-gate", "update")}

# Asked for by the guards (deploy/base/guards.yaml), not by a request of its own: no audit line shows it.
GUARDIAN = ("dra-gate-controller", "dra-gate.io", "gates", "guard", "", "")

# Every right, by account, and what fails without it.
WHY = {
    "webhook": {
        "namespaces list watch": "lane and mode of a namespace are labels on it",
        "nodes list watch": "which nodes have devices: a Pod may not choose them",
        "node.k8s.io/runtimeclasses list watch": "a runtime class is judged by its handler",
        "resource.k8s.io/deviceclasses list watch": "which resource names are devices",
        "resource.k8s.io/resourceclaims list watch": "what a claim reaches that a Pod names",
        "resource.k8s.io/resourceclaimtemplates list watch": "whether a template is the tenant's",
        "resource.k8s.io/resourceslices list watch": "whether a selector reaches gated devices",
        "dra-gate.io/gates get list watch": "which policy set is active; get: a stamp is newer than the cache",
        "dra-gate.io/tenantledgers list watch": "what a tenant holds, how many of its Pods wait",
        "configmaps list watch": "the published policy sets",
        "events.k8s.io/events create": "a policy set that can't be used is told",
    },
    "controller": {
        "namespaces list watch patch": "a tenant namespace gets templates as soon as it is there; patch: back to lane "
        "device-plugin on a hard stop",
        "nodes list watch": "which devices are healthy, where a Pod would have fitted",
        "pods get list watch patch": "the templates that Pods name; get: is a Pod that is not seen really gone; patch: "
        "the annotation with the model that one got, the gate that is taken off",
        "batch/jobs get": "how many Pods of an Indexed Job go together",
        "pods/status patch": "the condition that says what a Pod got or why it waits",
        "events list watch": "why no claim comes for a Pod, or no container; watch: devices that could not be "
        "prepared, Pods that were refused",
        "apps/replicasets get": "what a Pod asked for that was refused",
        "apps/statefulsets get": "as the one before",
        "pods/eviction create": "a device fell ill before its Pod ran, and policy says to recreate it",
        "resource.k8s.io/deviceclasses list watch": "which devices are of which model",
        "resource.k8s.io/devicetaintrules list watch": "which devices are healthy",
        "resource.k8s.io/resourceclaims get list watch create delete": "which devices a Pod was given; create: late "
        "claims at the grant; get, delete: what stands under their names and is not theirs",
        "dra-gate.io/tenantledgers get list create update": "grants; get: after a write that failed",
        "dra-gate.io/tenantledgers/status update": "what replicas read of each tenant",
        "resource.k8s.io/resourceslices list watch": "how many devices a node has, and which",
        "resource.k8s.io/resourceclaimtemplates list watch create delete": "its work",
        "events.k8s.io/events create": "every decision; a name taken by somebody else, a set that can't be used, a "
        "failed renewal",
        "dra-gate.io/gates get list watch patch guard": "follows the Gate; patch: spec.accepted; get: who edited it by "
        "hand; guard: the guards let it write the Gate, its templates and the caBundle",
        "dra-gate.io/gates/status patch": "history and conditions of the Gate",
        "configmaps get list watch create update": "the published policy sets; create, update: what is counted of "
        "Pods, and the plan of waves; get: that plan",
        "coordination.k8s.io/leases create get update": "one leads",
        "secrets create get update": "its own certificates",
        "admissionregistration.k8s.io/mutatingwebhookconfigurations get patch": "get: is it there and unchanged; "
        "patch: the caBundle",
        "admissionregistration.k8s.io/validatingwebhookconfigurations get patch": "as the one before",
        "admissionregistration.k8s.io/validatingadmissionpolicies get": "whether guards and backstop are unchanged",
        "admissionregistration.k8s.io/validatingadmissionpolicybindings get": "and are in force",
    },
}


@dataclass(frozen=True, order=True)
class Grant:
    """One verb on one resource, for one account; `namespace` empty: everywhere; `name` empty: whatever its name."""

    account: str
    group: str
    resource: str
    verb: str
    namespace: str
    name: str

    def covers(self, access: Grant) -> bool:
        """Whether it allows the access."""
        same = dataclasses.replace(access, namespace=self.namespace, name=self.name) == self
        return same and self.namespace in ("", access.namespace) and self.name in ("", access.name)

    def __str__(self) -> str:
        group = f"{self.group}/" if self.group else ""
        return f"{self.account}: {self.verb} {group}{self.resource} {self.name}".strip()


def documents() -> list[dict[str, Any]]:
    texts = [(DEPLOY / path).read_text() for path in ROLES]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def grants() -> set[Grant]:
    """What the manifests grant."""
    found: list[Grant] = []
    roles = {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in documents()}
    for (kind, namespace, _), binding in roles.items():
        if kind.endswith("Binding"):
            role = roles[binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]]
            (subject,) = binding["subjects"]
            found += [grant for *_, grant in rights(role, subject["name"])]
    assert len(set(found)) == len(found), "a right is granted twice"
    return set(found)


def rights(role: dict[str, Any], account: str) -> Iterator[tuple[int, Grant]]:
    """The grants of one role, with the index of the rule that each is from."""
    namespace = role["metadata"].get("namespace", "")
    for index, rule in enumerate(role["rules"]):
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield index, Grant(account, group, resource, verb, namespace, name)


def test_every_right_has_a_reason() -> None:
    reasons = set()
    for account, lines in WHY.items():
        for line in lines:
            what, *verbs = line.split()
            parts = what.split("/")
            grouped = "." in parts[0] or parts[0] in ("apps", "batch")
            group, resource = (parts[0], "/".join(parts[1:])) if grouped else ("", what)
            reasons |= {(f"dra-gate-{account}", group, resource, verb) for verb in verbs}
    assert reasons == {(g.account, g.group, g.resource, g.verb) for g in grants()}


def test_nothing_is_granted_that_leads_further() -> None:
    """No right to read Secrets but our own two, none to act as others, to grant, to bind or allocate, to make Pods."""
    for grant in grants():
        assert grant.resource != "secrets" or grant.verb == "create" or grant.name in ("dra-gate-ca", "dra-gate-tls")
        assert grant.verb not in ("impersonate", "bind", "escalate", "deletecollection")
        assert not grant.resource.endswith(("/binding", "/token", "/exec", "/proxy"))
        if grant.resource == "pods":
            assert grant.verb in ("get", "list", "watch", "patch")
        if grant.resource == "resourceclaims":
            assert grant.verb in ("get", "list", "watch", "create", "delete")
        if grant.resource in ("nodes", "resourceslices", "deviceclasses"):
            assert grant.verb in ("list", "watch")
        if grant.resource == "configmaps":
            assert (
                grant.verb in ("list", "watch")
                or (grant.namespace, grant.verb) in OWN_MAPS
                or (grant.verb, grant.name) == ("get", "dra-gate-canary")
            )
        if grant.group == "admissionregistration.k8s.io":
            assert grant.name == "zz-dra-gate" or (grant.name.startswith("zz-dra-gate-") and grant.verb == "get")


# -- a run in which everything is needed ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def accesses(plane: ControlPlane) -> list[Grant]:
    """What the gate asked of the API server in that run. Fails if any of it was forbidden."""
    began = sum(1 for _ in plane.audit_events())
    with gate_at_work(plane):
        pass
    found = []
    users = {user.name: account for account, user in ACCOUNTS.items()}
    for event in list(plane.audit_events())[began:]:
        account = users.get(event["user"]["username"])
        ref = event.get("objectRef")
        if account is None or ref is None:  # discovery, /version
            continue
        assert event["responseStatus"]["code"] != 403, event
        resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
        access = Grant(
            account, ref.get("apiGroup", ""), resource, event["verb"], ref.get("namespace", ""), ref.get("name", "")
        )
        if (access.group, access.resource, access.verb) not in EVERYBODY:
            found.append(access)
    return [*found, Grant(*GUARDIAN)]


class gate_at_work:  # noqa: N801 - reads as a statement
    """Runs the gate until it has done each thing that it can do."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.api = plane.api()
        self.policies = plane.run_dir / "policies"
        self.policies.mkdir()
        text = (POLICIES / "policies.yaml").read_text()
        (self.policies / "policies.yaml").write_text(HELD_TENANT + text)

    def __enter__(self) -> None:
        api = self.api
        for name, labels in (("dra-gate", {}), (GATED, {"dra-gate.io/lane": "dra"})):
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for role in ROLES[1:]:
            api.apply_yaml((DEPLOY / role).read_text())
        api.delete("leases", "dra-gate-controller", "dra-gate", missing_ok=True)  # so that it has to be made
        for name in self.counts():  # likewise
            api.delete("configmaps", name, "dra-gate")
        taken = self.take_a_name()
        flags = ("--own-certificates", "--url-host", "127.0.0.1", "--certificate-life", "60s")  # looks every 3 s
        flags += ("--backstop", "--recreate")
        with Gate(self.plane, self.policies, published=True, controllers=0, controller_flags=flags) as gate:
            self.gate = gate
            api.apply(tls_secret({key: (gate.folder / key).read_bytes() for key in ("tls.crt", "tls.key", "ca.crt")}))
            gate.start_controller()
            self.until("templates", lambda: len(api.list("resourceclaimtemplates", GATED)) == 8)
            self.give_a_device()
            self.grant_pods()
            self.refuse_pods()
            self.until("the Event about the name", lambda: self.told("TemplateNameTaken", GATED))
            self.until("own certificates", lambda: api.find("secrets", "dra-gate-ca", "dra-gate"))
            self.until(
                "the Secret to be updated", lambda: len(api.get("secrets", "dra-gate-tls", "dra-gate")["data"]) > 3
            )
            self.damage_a_template(taken)
            self.lose_a_device()
            self.gate_changes()
            self.lose_the_ca_in_the_secret()
            self.publish_nonsense()
            self.stop_the_canary()
            self.until("the counts to be kept", self.counts)
            self.show_a_stamp_from_the_future()

    def __exit__(self, *_: object) -> None:
        for name in (GATED, HELD):
            self.api.delete("namespaces", name)
        for name in ("dra-gate-ca", "dra-gate-tls"):
            self.api.delete("secrets", name, "dra-gate", missing_ok=True)

    def until(self, what: str, probe: Any) -> None:
        wait_for(probe, 30, f"{what}; log: {self.gate.log()}", every=0.1)

    def counts(self) -> list[str]:
        names = [one["metadata"]["name"] for one in self.api.list("configmaps", "dra-gate")]
        return [name for name in names if name.startswith("dra-gate-cohorts-")]

    def told(self, reason: str, namespace: str, by: str = "") -> bool:
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        return any(
            event["reason"] == reason and by in event["metadata"].get("managedFields", [{}])[0].get("manager", "")
            for event in self.api.request("GET", path).body["items"]
        )

    def take_a_name(self) -> str:
        """Somebody else's template stands where ours has to be."""
        template = copy.deepcopy(
            templates_of(load(self.policies)).for_count("kit", PolicyRef("kit", 1), 1).manifest(GATED)
        )
        template["metadata"].pop("labels", None)
        template["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"].pop()
        self.api.create(template)
        return str(template["metadata"]["name"])

    def give_a_device(self) -> None:
        """A Pod gets a device, which then stands on it."""
        fleet = Fleet.load("demo")
        fleet.install(self.api)
        self.api.create(DEVICE_POD | {"metadata": {"name": "given"}}, GATED)

        def annotated() -> bool:
            found = self.api.get("pods", "given", GATED)["metadata"].get("annotations", {})
            return "dra-gate.io/model" in found

        self.until("the model on the Pod", annotated)
        time.sleep(BOUND_SECONDS + 2)  # nobody starts it: its Events are asked for
        self.api.delete("pods", "given", GATED, grace=0)
        fleet.remove(self.api)

    def grant_pods(self) -> None:
        """The gate holds Pods of a tenant with a weight, whose ledger somebody else writes in between. One Pod is of an
        Indexed Job; another can't be scheduled until there are further devices, so that its claim is made anew."""
        fleet = Fleet.of("rbac-h", {"nodes": [{"name": "rbac-h", "devices": {"h100": 2}}]})
        fleet.install(self.api)
        metadata = {"name": HELD, "labels": {"dra-gate.io/lane": "dra"}}
        self.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.until("the ledger", lambda: ledger(self.api, HELD).get("status"))
        path = f"/apis/dra-gate.io/v1alpha1/tenantledgers/{HELD}"
        self.api.request("PATCH", path, {"metadata": {"labels": {"x": "y"}}}, content_type=MERGE)
        template = {"spec": {**DEVICE_POD["spec"], "restartPolicy": "Never"}}
        template["spec"]["containers"] = [
            {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ]
        spec = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "template": template}
        self.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}, "spec": spec}, HELD)
        self.until("the Job's Pod", lambda: [p for p in self.api.list("pods", HELD) if "nodeName" in p["spec"]])
        gates = [{"name": "example.com/hold"}]
        pod = {**DEVICE_POD, "metadata": {"name": "gone"}, "spec": {**template["spec"], "schedulingGates": gates}}
        self.api.create(pod, HELD)

        def candidates() -> list[str]:
            """Of its grant; that of the Job's Pod stands in the ledger for a moment more."""
            grants = ledger(self.api, HELD)["spec"].get("grants", [])
            return next((list(grant["candidates"]) for grant in grants if grant["name"] == "gone"), [])

        self.until("its grant", candidates)
        more = Fleet.of("rbac-a", {"nodes": [{"name": "rbac-a", "devices": {"a100": 2}}]})
        more.install(self.api)
        self.until("its other candidate", lambda: len(candidates()) == 2)
        self.until("its new claim", lambda: len(self.api.list("resourceclaims", HELD)) == 2)
        self.api.delete("pods", "gone", HELD, grace=0)
        self.until("its end", lambda: not ledger(self.api, HELD)["spec"].get("grants"))
        scene.clear(self.api, HELD)
        more.remove(self.api)
        fleet.remove(self.api)

    def refuse_pods(self) -> None:
        """Workloads whose Pods the gate refuses: they are asked what these want."""
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        work = replica_set("refused", gpus=1)
        work["spec"]["template"]["spec"]["containers"][0]["env"] = env
        self.api.create(work, GATED)
        self.api.create({**work, "kind": "StatefulSet", "spec": {**work["spec"], "serviceName": "x"}}, GATED)

        def asked() -> bool:
            user = ACCOUNTS["dra-gate-controller"].name
            refs = [e.get("objectRef", {}) for e in self.plane.audit_events() if e["user"]["username"] == user]
            return {"replicasets", "statefulsets"} <= {one.get("resource") for one in refs if one.get("name")}

        self.until("the owners to be asked", asked)

    def damage_a_template(self, taken: str) -> None:
        """One of ours gets another stamp: it is deleted and made again."""
        ours = [t for t in self.api.list("resourceclaimtemplates", GATED) if t["metadata"]["name"] != taken]
        name, uid = ours[0]["metadata"]["name"], ours[0]["metadata"]["uid"]
        self.api.patch(
            "resourceclaimtemplates", name, {"metadata": {"annotations": {"dra-gate.io/policy": "x"}}}, GATED
        )

        def repaired() -> bool:
            found = self.api.find("resourceclaimtemplates", name, GATED)
            return found is not None and found["metadata"]["uid"] != uid

        self.until("the repair", repaired)

    def lose_a_device(self) -> None:
        """Before its Pod runs: the Pod is evicted."""
        fleet = Fleet.of("rbac", {"nodes": [{"name": "rbac", "devices": {"h100": 2}}]})
        fleet.install(self.api)
        try:
            self.api.create(replica_set("work", gpus=2), GATED)
            pod = bound_pod_of(self.api, GATED, "work")
            taint_device(self.api, "rbac", "gpu-0", "gpu.nvidia.com/xid")
            name = pod["metadata"]["name"]
            self.until("the eviction", lambda: "deletionTimestamp" in self.api.get("pods", name, GATED)["metadata"])
        finally:
            scene.clear(self.api, GATED)
            fleet.remove(self.api)

    def gate_changes(self) -> None:
        """Something among the accepted sets that says nothing about when it came there: the controller writes it."""
        active = self.api.get("gates", "default")["spec"]["active"]
        unknown = "0" * 64 if not active.startswith("0") else "f" * 64
        self.api.patch("gates", "default", {"spec": {"accepted": [{"digest": unknown}]}})
        self.until(
            "the Gate to be written",
            lambda: all("since" in entry for entry in self.api.get("gates", "default")["spec"].get("accepted", [])),
        )
        # Activated by hand: who did it stands in managedFields, which the watch leaves out.
        text = (self.policies / "policies.yaml").read_text()
        other = self.plane.run_dir / "other"
        other.mkdir()
        (other / "policies.yaml").write_text(text + "  quota: {devices: 100}\n")
        self.gate.policy("publish", other, "--no-lint")
        digest = load(other).digest
        self.api.patch("gates", "default", {"spec": {"active": digest}})

        def in_history() -> bool:
            history = self.api.get("gates", "default").get("status", {}).get("history", [])
            return bool(history) and history[0]["digest"] == digest

        self.until("the activation in the Gate's history", in_history)

    def lose_the_ca_in_the_secret(self) -> None:
        """ca.crt with something in it that nothing needs: written anew."""
        bundle = self.api.get("secrets", "dra-gate-ca", "dra-gate")["data"]["ca.crt"]
        stripped = self.api.get("secrets", "dra-gate-tls", "dra-gate")["data"]["tls.crt"]
        self.api.patch("secrets", "dra-gate-ca", {"data": {"ca.crt": _joined(bundle, stripped)}}, "dra-gate")
        self.until(
            "the CA's Secret to be written",
            lambda: self.api.get("secrets", "dra-gate-ca", "dra-gate")["data"]["ca.crt"] == bundle,
        )

    def stop_the_canary(self) -> None:
        """Pods fail in a namespace that a command has moved, and the plan says rollback."""
        fleet = Fleet.of("rbac-s", {"nodes": [{"name": "rbac-s", "devices": {"h100": 8}}]})
        fleet.install(self.api)
        now = int(time.time())
        moved = Move("", "dra", now, "ada", "x").dumps()
        self.api.patch("namespaces", GATED, {"metadata": {"annotations": {MOVED: moved}}})
        plan = {"plan.json": Plan("s", on_stop=OnStop("rollback", since=now)).dumps()}
        metadata = {"name": CANARY_PLAN, "namespace": "dra-gate"}
        self.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": plan})
        time.sleep(1.1)  # times of Pods are whole seconds
        for number in range(4):
            self.api.create({**DEVICE_POD, "metadata": {"name": f"s{number}"}}, GATED)
        for number in range(4):
            scene.bound(self.api, GATED, f"s{number}")
            failed = {"status": {"phase": "Failed", "reason": "Evicted"}}
            self.api.patch("pods", f"s{number}", failed, GATED, subresource="status")

        def back() -> bool:
            return self.api.get("namespaces", GATED)["metadata"]["labels"]["dra-gate.io/lane"] == "device-plugin"

        self.until("the way back", back)
        self.api.delete("configmaps", CANARY_PLAN, "dra-gate")
        self.api.patch("namespaces", GATED, {"metadata": {"labels": {"dra-gate.io/lane": "dra"}}})
        scene.clear(self.api, GATED)
        fleet.remove(self.api)

    def publish_nonsense(self) -> None:
        """A published set that can't be used: replica and controller both tell."""
        name = "policy-set-" + "a" * 64
        labels = {"dra-gate.io/policy-set": "true"}
        metadata = {"name": name, "namespace": "dra-gate", "labels": labels}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": metadata,
                "immutable": True,
                "data": {"a.yaml": "x: 1"},
            }
        )
        path = "/apis/events.k8s.io/v1/namespaces/dra-gate/events"

        def both() -> bool:
            found = self.api.request("GET", path).body["items"]
            return len([e for e in found if e["reason"] == "PolicySetRefused" and e["regarding"]["name"] == name]) >= 2

        self.until("both Events about the set", both)
        self.api.delete("configmaps", name, "dra-gate")

    def show_a_stamp_from_the_future(self) -> None:
        """A Pod that was stamped under a Gate newer than the replica knows: it looks at the Gate itself."""
        port = int(self.gate.replica_url("gate-0").rpartition(":")[2])
        pod = self.api.create(DEVICE_POD, GATED, dry_run=True)
        pod["metadata"]["annotations"]["dra-gate.io/gate-generation"] = "999999"
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, context=ssl._create_unverified_context(), timeout=10
        )
        request = {
            "uid": "u",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": GATED,
            "name": pod["metadata"]["name"],
            "userInfo": {"username": "admin"},
            "object": pod,
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        connection.request("POST", "/validate", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        assert answer["response"]["allowed"] is False, answer


DEVICE_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
    },
}


def _joined(*encoded: str) -> str:
    import base64  # noqa: PLC0415

    return base64.b64encode(b"".join(base64.b64decode(one) for one in encoded)).decode()


def test_everything_that_is_done_is_granted(accesses: list[Grant]) -> None:
    """It wasn't refused in the run, and not because of some other role."""
    allowed = grants()
    assert not {str(access) for access in accesses if not any(grant.covers(access) for grant in allowed)}


def test_everything_that_is_granted_is_done(accesses: list[Grant]) -> None:
    assert not {str(grant) for grant in grants() if not any(grant.covers(access) for access in accesses)}


def test_without_any_one_right_something_is_refused(plane: ControlPlane, accesses: list[Grant]) -> None:
    """Each verb on each resource in turn is taken out of its role, and the server asked about what the gate did."""
    api = plane.api()
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-gate"}})
    bindings = {d["roleRef"]["name"]: d["subjects"][0]["name"] for d in documents() if "roleRef" in d}
    checked = 0
    for document in documents():
        api.apply(document)
    bound = (d for d in documents() if d["kind"] in ("Role", "ClusterRole") and d["metadata"]["name"] in bindings)
    for role in bound:
        for index, grant in rights(role, bindings[role["metadata"]["name"]]):
            access = next(found for found in accesses if grant.covers(found))
            wait_for(lambda access=access: may(api, access), 5, f"{access} to be allowed", every=0.02)
            api.replace(api.stored(role) | {"rules": without(role["rules"], index, grant)})
            wait_for(lambda access=access: not may(api, access), 5, f"{access} to be refused", every=0.02)
            api.replace(api.stored(role) | {"rules": role["rules"]})
            checked += 1
    assert checked == len(grants())


def without(rules: list[dict[str, Any]], index: int, grant: Grant) -> list[dict[str, Any]]:
    """The rules less one verb on one resource (and one name): the rule is split into what is left of it."""
    rule, rest = rules[index], [*rules[:index], *rules[index + 1 :]]
    left = [{**rule, "resources": [one]} for one in rule["resources"] if one != grant.resource]
    left.append({**rule, "resources": [grant.resource], "verbs": [v for v in rule["verbs"] if v != grant.verb]})
    if grant.name:
        names = [name for name in rule["resourceNames"] if name != grant.name]
        left.append({**rule, "resources": [grant.resource], "verbs": [grant.verb], "resourceNames": names})
    return rest + [one for one in left if one["verbs"] and one.get("resourceNames", ["-"])]


def may(api: Api, access: Grant) -> bool:
    """What the server's authorizer says."""
    user: User = ACCOUNTS[access.account]
    resource, _, subresource = access.resource.partition("/")
    attributes = {
        "group": access.group,
        "resource": resource,
        "subresource": subresource,
        "verb": access.verb,
        "namespace": access.namespace,
        "name": access.name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes},
    }
    answer = api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).body
    return bool(answer["status"]["allowed"])
