"""Held Pods: who is held and how, what a second round keeps, Pods that are Kueue's; and forgeries, through both
webhooks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from admission import setting
from admission.setting import asking, pod, request
from dra_gate.admission import guards, held, late
from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.admission.facts import Facts
from dra_gate.admission.mutate import mutate
from dra_gate.admission.stamp import is_held
from dra_gate.admission.validate import validate
from dra_gate.admission.workloads import judge_workload, workload_in
from dra_gate.cluster.facts import World
from dra_gate.controller.plan import Compiled, Verb, plan
from dra_gate.kube.patch import apply
from dra_gate.policy.compile import TemplateIndex, templates_of
from dra_gate.policy.model import PolicyRef, PolicySet

GRANT = {"name": "dra-gate.io/grant"}
CLAIMS = "dra-gate.io/claims"
QUEUE = {"kueue.x-k8s.io/queue-name": "q"}


def mutated(obj: dict[str, Any], namespace: str, facts: Facts | None = None, uid: str = "first") -> dict[str, Any]:
    """What mutate makes of it."""
    verdict = mutate(request(obj, namespace=namespace, uid=uid), facts or setting.facts())
    assert verdict.allowed, verdict.findings
    made: dict[str, Any] = copy.deepcopy(apply(obj, list(verdict.patch)))
    return made


def refused(obj: dict[str, Any], namespace: str, facts: Facts | None = None) -> set[str]:
    """The codes by which validate refuses it."""
    return {one.code for one in validate(request(obj, namespace=namespace), facts or setting.facts()).findings}


def labelled(labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    made = pod(**spec)
    made["metadata"]["labels"] = labels
    return made


@pytest.mark.parametrize(
    ("namespace", "held", "is_late"),
    [("reed", True, True), ("birch", True, True), ("fern-dev", True, False), ("alder", False, False)],
)
def test_who_is_held_and_how(namespace: str, held: bool, is_late: bool) -> None:
    made = mutated(pod(containers=[asking("2")]), namespace)
    assert is_held(made) is held
    (entry,) = made["spec"]["resourceClaims"]
    if is_late:
        assert entry == {"name": "gate-0", "resourceClaimName": late.late_name("first", "gate-0")}
        assert made["metadata"]["annotations"][CLAIMS] == "gate-0=2"
    else:
        assert set(entry) == {"name", "resourceClaimTemplateName"}
        assert CLAIMS not in made["metadata"]["annotations"]
    assert made["metadata"]["annotations"]["dra-gate.io/devices"] == "2"
    assert refused(made, namespace) == set()


def test_other_gates_stay_before_ours() -> None:
    made = mutated(pod(containers=[asking("1")], schedulingGates=[{"name": "other.example/gate"}]), "reed")
    assert made["spec"]["schedulingGates"] == [{"name": "other.example/gate"}, GRANT]


def test_a_pod_that_names_its_tenants_template_keeps_it_and_is_held() -> None:
    name = setting.template_name("reed", "train", 1, 1)
    asked = pod(resourceClaims=[{"name": "g", "resourceClaimTemplateName": name}])
    made = mutated(asked, "reed")
    assert made["spec"]["resourceClaims"] == asked["spec"]["resourceClaims"]
    assert made["spec"]["schedulingGates"] == [GRANT]
    assert CLAIMS not in made["metadata"]["annotations"]
    assert refused(made, "reed") == set()


def test_nothing_is_held_without_devices_in_the_other_lane_and_in_shadow() -> None:
    assert mutate(request(pod(), namespace="reed"), setting.facts()).patch == ()
    world = setting.world(
        setting.labelled("reed", lane="device-plugin"), setting.labelled("moss", lane="dra", mode="shadow")
    )
    for namespace in ("reed", "moss"):
        verdict = mutate(request(pod(containers=[asking("1")]), namespace=namespace), world.facts())
        assert verdict.allowed
        assert "schedulingGates" not in str(verdict.patch)


def test_a_second_round_keeps_late_claims_and_lets_serial_init_containers_use_them() -> None:
    first = mutated(pod(containers=[asking("1")]), "reed")
    first["spec"]["initContainers"] = [{**asking("1"), "name": "same"}, {**asking("2"), "name": "more"}]
    second = mutated(first, "reed", uid="second")
    assert second["spec"]["resourceClaims"] == [
        {"name": "gate-0", "resourceClaimName": late.late_name("first", "gate-0")},
        {"name": "gate-1", "resourceClaimName": late.late_name("second", "gate-1")},
    ]
    assert [one["resources"]["claims"] for one in second["spec"]["initContainers"]] == [
        [{"name": "gate-0"}],
        [{"name": "gate-1"}],
    ]
    assert second["metadata"]["annotations"][CLAIMS] == "gate-0=1,gate-1=2"
    assert second["metadata"]["annotations"]["dra-gate.io/devices"] == "3"
    assert second["spec"]["schedulingGates"] == [GRANT]
    assert refused(second, "reed") == set()


def test_a_namespace_that_was_just_labelled_takes_pods_that_nobody_held() -> None:
    now = [0.0]
    world = World(setting.policy_set(), clock=lambda: now[0])
    world.apply({"kind": "Namespace", "metadata": {"name": "fern-dev", "labels": {}}})
    now[0] = 60.0
    world.apply(setting.labelled("fern-dev", lane="dra"))
    name = setting.template_name("fern", "train", 2, 1)
    unseen = pod(resourceClaims=[{"name": "g", "resourceClaimTemplateName": name}])
    assert validate(request(unseen), world.facts()).ignored
    now[0] += 60
    assert refused(unseen, "fern-dev", world.facts()) == {"NOT_HELD", "FORGED_ANNOTATION"}


def test_a_pod_of_more_claims_than_a_grant_has_room_for_would_wait_for_ever() -> None:
    quota = replace(setting.policy_set().tenants["birch"].quota, devices=None, models={})
    birch = replace(setting.policy_set().tenants["birch"], quota=quota, weight=1)
    tenants = {**setting.policy_set().tenants, "birch": birch}
    facts = replace(setting.facts(), policy_set=replace(setting.policy_set(), tenants=tenants))
    several = [{**asking("1"), "name": f"c{number}"} for number in range(33)]
    fits = mutated(pod(containers=several[:32]), "birch", facts)
    found = held.read({**fits, "metadata": {**fits["metadata"], "uid": "u", "namespace": "birch"}})
    assert found is not None and not found.trouble  # noqa: PT018
    assert refused(fits, "birch", facts) == set()
    verdict = mutate(request(pod(containers=several), namespace="birch"), facts)
    assert [finding.code for finding in verdict.findings] == ["TOO_LARGE"]
    # Nor one that somebody wrote as if mutate had.
    fits["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": late.late_name("first", "more")})
    fits["metadata"]["annotations"] |= {CLAIMS: f"{fits['metadata']['annotations'][CLAIMS]},more=1"}
    fits["metadata"]["annotations"] |= {"dra-gate.io/devices": "33"}
    assert refused(fits, "birch", facts) == {"TOO_LARGE"}


# -- quota, where a replica knows ledgers alone ------------------------------------------------------------------------


def ledger(tenant: str, devices: int, **status: Any) -> dict[str, Any]:
    return {"kind": "TenantLedger", "metadata": {"name": tenant}, "status": {"devices": devices, **status}}


def test_both_webhooks_go_by_the_ledger() -> None:
    world = World(setting.policy_set(), counting=False)
    assert "/api/v1/pods" not in world.sinks()
    asked = pod(containers=[asking("3")])
    admitted = mutated(asked, "moss", world.facts())
    world.apply(ledger("moss", 2))
    for decide, obj in ((mutate, asked), (validate, admitted)):
        findings = decide(request(obj, namespace="moss"), world.facts()).findings
        assert [(one.code, one.field) for one in findings] == [("QUOTA", "spec")]
        assert "2 left (2 of 4 held)" in findings[0].message
    world.apply(ledger("moss", 1))
    assert refused(admitted, "moss", world.facts()) == set()
    world.set_used("moss", replace(world.facts().ledger("moss").used, devices=4))
    world.apply(ledger("moss", 0))
    assert refused(admitted, "moss", world.facts()) == {"QUOTA"}, "what the caller says wins"


def test_a_ledger_that_goes_is_forgotten() -> None:
    world = World(setting.policy_set(), counting=False)
    sink = world.sinks()["/apis/dra-gate.io/v1alpha1/tenantledgers"]
    sink.replace([ledger("moss", 4, models={"l40s": 4}, waiting=3, largest={"l40s": 8})])
    view = world.facts().ledger("moss")
    assert (view.used.devices, view.used.models, view.waiting, view.largest) == (4, {"l40s": 4}, 3, {"l40s": 8})
    sink.replace([])
    assert world.facts().ledger("moss").used.devices == 0


def test_without_ledgers_files_are_counted() -> None:
    holder = mutated(pod(containers=[asking("3")]), "moss")
    holder["metadata"].update(namespace="moss", name="holder", uid="u")
    assert setting.world(holder).facts().ledger("moss").used.devices == 0, "what waits holds nothing"
    holder["spec"]["schedulingGates"] = []
    facts = setting.world(holder).facts()
    assert facts.ledger("moss").used.devices == 3
    assert refused(mutated(pod(containers=[asking("2")]), "moss"), "moss", facts) == {"QUOTA"}


def test_a_workload_is_not_told_of_quota_and_otherwise_of_all() -> None:
    template = {"metadata": {}, "spec": pod(containers=[asking("3")])["spec"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    asked = request(job, namespace="reed", resource=("batch", "jobs"))
    facts = setting.world(ledger("reed", 8, models={"h100": 2, "a100": 4})).facts()
    workload = workload_in(asked, facts.policy_set.settings)
    assert workload is not None
    assert judge_workload(asked, workload, facts).findings == ()
    template["spec"]["schedulingGates"] = [GRANT]
    assert judge_workload(asked, workload, facts).findings == (), "it is put on anyway"
    template["spec"]["containers"] = pod()["spec"]["containers"]
    assert [one.code for one in judge_workload(asked, workload, facts).findings] == ["FORGED_GATE"]


# -- Kueue -------------------------------------------------------------------------------------------------------------


def exactly() -> tuple[PolicySet, TemplateIndex]:
    known = setting.policy_set()
    reed = replace(known.tenants["reed"], kueue_exactly=True)
    made = replace(known, tenants={**known.tenants, "reed": reed})
    return made, templates_of(made)


@pytest.mark.parametrize(
    "asked",
    [
        labelled(QUEUE, containers=[asking("2")]),
        labelled({"kueue.x-k8s.io/managed": "true"}, containers=[asking("2")]),
        pod(containers=[asking("2")], schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
    ],
)
@pytest.mark.parametrize("namespace", ["reed", "fern-dev"])
def test_a_pod_that_kueue_manages_gets_the_template_and_is_not_held(asked: dict[str, Any], namespace: str) -> None:
    made = mutated(asked, namespace)
    assert not is_held(made)
    tenant = "reed" if namespace == "reed" else "fern"
    (entry,) = made["spec"]["resourceClaims"]
    assert entry["resourceClaimTemplateName"] == setting.template_name(tenant, "train", 2, 2)
    assert refused(made, namespace) == set()
    assert refused(mutated({**asked, "metadata": {"name": "p"}}, namespace), namespace) == set()


def test_so_in_a_namespace_that_is_kueues() -> None:
    settings = replace(setting.policy_set().settings, kueue_namespaces=("reed",))
    facts = setting.with_settings(setting.facts(), settings)
    made = mutated(pod(containers=[asking("1")]), "reed", facts)
    assert not is_held(made)
    assert refused(made, "reed", facts) == set()
    assert refused(made, "reed") == {"NOT_HELD"}


def test_exactly_is_one_request_for_the_first_candidate() -> None:
    policy_set, index = exactly()
    facts = replace(setting.facts(), policy_set=policy_set, index=index)
    made = mutated(labelled(QUEUE, containers=[asking("2")]), "reed", facts)
    name = made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    template = index.by_name("reed", name)
    assert template is not None
    assert name != index.for_count("reed", template.policy, 2).name
    (only,) = template.spec["spec"]["devices"]["requests"]
    preferred = index.for_count("reed", template.policy, 2).spec["spec"]["devices"]["requests"][0]["firstAvailable"][0]
    assert only == {"name": "gpu", "exactly": {key: value for key, value in preferred.items() if key != "name"}}
    assert made["metadata"]["annotations"]["dra-gate.io/candidates"] == "h100"
    assert refused(made, "reed", facts) == set()
    mine = mutated(pod(containers=[asking("2")]), "reed", facts)
    assert late.is_late_name(mine["spec"]["resourceClaims"][0]["resourceClaimName"]), (
        "Pods that are not Kueue's are held"
    )
    charged = validate(request(made, namespace="reed"), facts).charge
    assert (charged.devices, charged.models) == (2, {"h100": 2})


def test_the_template_controller_makes_them_where_the_tenant_says_so() -> None:
    compiled = Compiled(*exactly())
    ref = PolicyRef("train", 2)
    asked = {"namespaces": ["reed", "alder"], "existing": {}, "references": {}, "devices": 8}
    made = {action.name for action in plan([compiled], **asked) if action.verb is Verb.CREATE}  # type: ignore[arg-type]
    usual = {compiled.index.exactly("reed", ref)[count].name for count in range(1, 9)}
    assert usual <= made
    assert compiled.index.exactly("alder", ref) == {}
    large = compiled.index.exactly("reed", ref)[32].name
    (needed,) = [
        action
        for action in plan([compiled], **{**asked, "references": {"reed": [large]}})
        if action.name == large  # type: ignore[arg-type]
    ]
    assert needed.urgent


# -- forgeries ---------------------------------------------------------------------------------------------------------


def test_theft() -> None:
    victim = mutated(pod(containers=[asking("2")]), "reed")
    name = victim["spec"]["resourceClaims"][0]["resourceClaimName"]
    facts = setting.world(
        {
            "kind": "ResourceClaim",
            "metadata": {"namespace": "reed", "name": name, "ownerReferences": [{"kind": "Pod", "uid": "victim"}]},
            "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": [{"name": "h100"}]}]}},
        }
    ).facts()
    copied = mutated(victim, "reed", facts, uid="thief")
    assert refused(copied, "reed", facts) == {"FOREIGN_CLAIM"}
    for bare in (pod(resourceClaims=[{"name": "g", "resourceClaimName": name}]), {**copied, "metadata": {"name": "q"}}):
        assert "FOREIGN_CLAIM" in refused(mutated(bare, "reed", facts), "reed", facts)


def test_squatting() -> None:
    name = late.late_name("somebody's review", "gate-0")
    spec = {"devices": {"requests": [{"name": "n", "exactly": {"deviceClassName": "nic.example"}}]}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    for user, wanted in (("ada@reed.example", {"RESERVED_NAME"}), (GATE_WRITERS[0], set())):
        facts = replace(setting.facts(), writers=frozenset(GATE_WRITERS))
        asked = request(claim, namespace="reed", resource=("resource.k8s.io", "resourceclaims"), user=user)
        assert {one.code for one in validate(asked, facts).findings} == wanted
        assert {one.code for one in guards.findings(asked, facts.writers)} == wanted
        anywhere = replace(asked, namespace="open")
        assert {one.code for one in guards.findings(anywhere, facts.writers)} == wanted


def test_a_forged_gate() -> None:
    assert refused(mutated(pod(schedulingGates=[GRANT]), "reed"), "reed") == {"FORGED_GATE"}
    assert refused(mutated(pod(schedulingGates=[GRANT], containers=[asking("1")]), "alder"), "alder") == {"FORGED_GATE"}
    made = mutated(pod(containers=[asking("1")]), "reed")
    free = copy.deepcopy(made)
    del free["spec"]["schedulingGates"]
    assert refused(free, "reed") == {"FOREIGN_CLAIM", "FORGED_ANNOTATION"}
    update = request(free, old=made, operation="UPDATE", namespace="reed")
    assert [one.code for one in validate(update, setting.facts()).findings] == ["FORGED_GATE"]


@pytest.mark.parametrize(
    "forged", ["gate-0=1", "gate-0=33", "gate-0=2,gate-1=1", "", "gate-0=0", "gate-0=2,gate-0=2", "gate-0=2," * 4000]
)
def test_forged_counts(forged: str) -> None:
    made = mutated(pod(containers=[asking("2")]), "reed")
    old = copy.deepcopy(made)
    made["metadata"]["annotations"][CLAIMS] = forged
    assert "FORGED_ANNOTATION" in refused(made, "reed")
    update = request(made, old=old, operation="UPDATE", namespace="reed")
    assert [one.field for one in validate(update, setting.facts()).findings] == [f"metadata.annotations[{CLAIMS}]"]


@pytest.mark.parametrize("namespace", ["reed", "fern-dev", "alder"])
def test_forged_late_names(namespace: str) -> None:
    """A late name that a person writes, with all that they can think of but the gate: mutate makes nothing of it."""
    written = pod(resourceClaims=[{"name": "g", "resourceClaimName": late.late_name("guessed", "g")}])
    written["metadata"]["annotations"] = {CLAIMS: "g=1", "dra-gate.io/tenant": "reed"}
    made = mutated(written, namespace)
    assert "metadata" in made
    assert not {key for key in made["metadata"]["annotations"] if key.startswith("dra-gate.io/")}
    assert refused(made, namespace) == {"FOREIGN_CLAIM"}
    written["spec"]["containers"] = [asking("1")]
    assert "FOREIGN_CLAIM" in refused(mutated(written, namespace), namespace), "also beside a request that is good"
