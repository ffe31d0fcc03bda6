"""What validate says of final objects as a whole; the rules one by one are in test_rules.py."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from admission import pods, setting
from admission.setting import asking, labelled, pod, request
from dra_gate.admission.mutate import mutate
from dra_gate.admission.request import denial_message
from dra_gate.admission.sets import PolicySets
from dra_gate.admission.validate import validate
from dra_gate.fairness.charge import Charge
from dra_gate.kube.patch import apply
from dra_gate.policy.load import load_documents


def converted(obj: dict[str, Any], namespace: str = "fern-dev") -> dict[str, Any]:
    result: dict[str, Any] = apply(obj, list(mutate(request(obj, namespace=namespace), setting.facts()).patch))
    return result


def test_what_mutate_made_is_admitted() -> None:
    verdict = validate(request(converted(pod(containers=[asking(2)]))), setting.facts())
    assert (verdict.word, verdict.charge.devices) == ("admit", 2)
    assert verdict.charge.models == {"h100": 2, "a100": 2, "l40s": 2}
    assert verdict.audit["policy"] == "train@2"


def test_all_findings_are_told_at_once_with_rule_and_remedy() -> None:
    obj = pod(containers=[asking(1)], resourceClaims=[{"name": "x", "resourceClaimName": "a-gpu"}])
    obj["metadata"] = {"name": "dra-gate-p", "annotations": {"dra-gate.io/devices": "1"}}
    verdict = validate(request(obj), setting.facts())
    assert [finding.code for finding in verdict.findings] == [
        "RESERVED_NAME",
        "RAW_DEVICE_REQUEST",
        "FOREIGN_CLAIM",
        "FORGED_ANNOTATION",
    ]
    message = denial_message(verdict)
    assert message.startswith(
        "refused by policy train@2 of tenant fern for 4 reasons: (1) RESERVED_NAME metadata.name: "
    )
    for finding in verdict.findings:
        assert finding.remedy in message
        assert f"[rule {finding.rule}]" in message


@pytest.mark.parametrize("key", ["policy-version", "tenant", "policy-set", "candidates", "gate-generation"])
def test_a_stamp_that_is_not_true_is_refused(key: str) -> None:
    obj = converted(pod(containers=[asking(1)]))
    obj["metadata"]["annotations"][f"dra-gate.io/{key}"] = "other"
    verdict = validate(request(obj), setting.facts())
    assert [finding.field for finding in verdict.findings] == [f"metadata.annotations[dra-gate.io/{key}]"]


@pytest.mark.parametrize(
    ("mode", "allowed", "word"), [("warn", True, "warn"), ("shadow", True, "shadow"), ("x", False, "deny")]
)
def test_modes(mode: str, allowed: bool, word: str) -> None:
    facts = setting.world(labelled("fern-dev", lane="dra", mode=mode)).facts()
    obj = pod(resourceClaims=[{"name": "x", "resourceClaimName": "a-gpu"}])
    verdict = validate(request(obj), facts)
    assert (verdict.allowed, verdict.word) == (allowed, word)
    assert bool(verdict.warnings) == (mode == "warn")
    assert verdict.audit["rules"] == "foreign-claim"


def test_shadow_judges_what_mutate_would_have_made() -> None:
    facts = setting.world(labelled("fern-dev", lane="dra", mode="shadow")).facts()
    verdict = validate(request(pod(containers=[asking(1)])), facts)
    assert (verdict.findings, verdict.charge.devices) == ((), 1)


def test_updates_are_judged_by_what_they_change() -> None:
    """A Pod from before the gate, with all that is refused today, may still lose its finalizer."""
    old = pod(containers=[asking(1)], nodeName="n0", resourceClaims=[{"name": "x", "resourceClaimName": "a-gpu"}])
    new = {**old, "metadata": {"name": "p", "labels": {"a": "b"}}}
    assert validate(request(new, operation="UPDATE", old=old), setting.facts()).word == "admit"


def test_usage_follows_pods_and_claims() -> None:
    """Until its claim is allocated a Pod is charged the worst case, then what it got; a hand-made claim counts once."""
    world = setting.world()
    template = setting.template_name("moss", "pooled", 1, 2)
    holder = {
        "kind": "Pod",
        "metadata": {"namespace": "moss", "name": "p", "uid": "u"},
        "spec": {
            "resourceClaims": [{"name": "g", "resourceClaimTemplateName": template}],
            "containers": [{"name": "c"}],
        },
    }
    world.apply(holder)
    assert world.facts().used["moss"].models == {"l40s": 2, "h100": 2, "a100": 2}
    claim = {
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": "moss",
            "name": "p-g-x",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "g"},
            "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "u"}],
        },
        "spec": {},
        "status": {"allocation": {"devices": {"results": [{"request": "gpu/h100", "device": "a"}] * 2}}},
    }
    world.apply(claim)
    assert world.facts().used["moss"].models == {"h100": 2}
    world.sinks()["/apis/resource.k8s.io/v1/resourceclaims"].delete(claim)
    assert world.facts().used["moss"].models == {"l40s": 2, "h100": 2, "a100": 2}
    made = {
        "kind": "ResourceClaim",
        "metadata": {"namespace": "moss", "name": "by-hand"},
        "spec": {
            "devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 3}}]}
        },
    }
    world.apply(made)
    assert world.facts().used["moss"].devices == 5
    world.sinks()["/api/v1/pods"].replace([])
    assert world.facts().used["moss"].devices == 3


def test_companions_are_not_charged() -> None:
    """Neither before the claim is allocated nor after, nor while the same claim is there under another catalogue."""
    world = setting.world()
    template = setting.template_name("sedge", "paired", 1, 1)
    metadata = {"namespace": "sedge", "name": "p", "uid": "u"}
    entries = [{"name": "g", "resourceClaimTemplateName": template}]
    world.apply(
        {"kind": "Pod", "metadata": metadata, "spec": {"resourceClaims": entries, "containers": [{"name": "c"}]}}
    )
    assert world.facts().used["sedge"] == Charge(1, {"h100": 1, "a100": 1})
    results = [
        {"request": "gpu/h100", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"},
        {"request": "nic", "driver": "nic.example", "pool": "n", "device": "nic-0"},
        {"request": "nic", "driver": "nic.example", "pool": "n", "device": "nic-1"},
    ]
    claim: dict[str, Any] = {
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": "sedge",
            "name": "p-g-x",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "g"},
            "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "u"}],
        },
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    world.apply(claim)
    assert world.facts().used["sedge"] == Charge(1, {"h100": 1})
    # A claim written by hand costs what it holds of the catalogue's drivers, whatever its requests are called.
    by_hand = claim | {"metadata": {"namespace": "sedge", "name": "by-hand"}}
    by_hand["status"] = {"allocation": {"devices": {"results": [{**one, "request": "nic"} for one in results]}}}
    by_hand["spec"] = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    world.apply(by_hand)
    assert world.facts().used["sedge"] == Charge(2, {"h100": 1})
    text = (setting.WORLD / "policies.yaml").read_text()
    also = text.replace(
        "models:\n", "models:\n- {name: fast, deviceClassName: f, driver: nic.example, selector: 'true'}\n"
    )
    also = also.replace(", others]", "]")  # which would bring it in where memory is asked for
    start = also.index("  companions:\n")
    world.use(PolicySets(load_documents({"p.yaml": (also[:start] + also[also.index("---", start) :]).encode()})))
    assert world.facts().used["sedge"].devices == 6, "what the NICs' driver publishes is in the catalogue now"


def test_a_thousand_mistakes_are_not_all_told() -> None:
    obj = pod(resourceClaims=[{"name": f"x{number}", "resourceClaimName": "a-gpu"} for number in range(1000)])
    assert len(validate(request(obj), setting.facts()).findings) == 100


def test_what_is_the_gates_own_is_so_in_every_lane() -> None:
    obj = pod(containers=[asking(1)])
    obj["metadata"]["name"] = "dra-gate-p"
    verdict = validate(request(obj, namespace="plugin"), setting.facts())
    assert verdict.findings[0].code == "RESERVED_NAME"


def test_a_claim_that_people_made_up_lowers_nobodys_charge() -> None:
    """Owner and entry of a claim can be written by anybody: the dearest claim of an entry counts."""
    world = setting.world()
    template = setting.template_name("moss", "pooled", 1, 2)

    def claim(name: str, results: int | None) -> dict[str, Any]:
        made: dict[str, Any] = {
            "kind": "ResourceClaim",
            "metadata": {
                "namespace": "moss",
                "name": name,
                "annotations": {"resource.kubernetes.io/pod-claim-name": "g"},
                "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "u"}],
            },
        }
        if results is not None:
            made["status"] = {"allocation": {"devices": {"results": [{"request": "gpu/h100"}] * results}}}
        return made

    entries = [{"name": "g", "resourceClaimTemplateName": template}]
    metadata = {"namespace": "moss", "name": "p", "uid": "u"}
    world.apply(
        {"kind": "Pod", "metadata": metadata, "spec": {"resourceClaims": entries, "containers": [{"name": "c"}]}}
    )
    world.apply(claim("real", 2))
    world.apply(claim("made-up", 0))
    assert world.facts().used["moss"].devices == 2
    world.sinks()["/apis/resource.k8s.io/v1/resourceclaims"].delete(claim("made-up", 0))
    assert world.facts().used["moss"].models == {"h100": 2}
    world.apply(claim("real", None))
    world.apply(claim("made-up", 0))
    assert world.facts().used["moss"].devices == 2, "not allocated: the worst case"


def test_a_template_that_goes_takes_its_weight_along() -> None:
    spec = {
        "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 3}}]}}
    }
    template = {"kind": "ResourceClaimTemplate", "metadata": {"namespace": "moss", "name": "own"}, "spec": spec}
    world = setting.world(template)
    entries = [{"name": "g", "resourceClaimTemplateName": "own"}]
    metadata = {"namespace": "moss", "name": "p", "uid": "u"}
    world.apply(
        {"kind": "Pod", "metadata": metadata, "spec": {"resourceClaims": entries, "containers": [{"name": "c"}]}}
    )
    assert world.facts().used["moss"].devices == 3
    world.sinks()["/apis/resource.k8s.io/v1/resourceclaimtemplates"].delete(template)
    assert world.facts().used["moss"].devices == 0


@hypothesis.settings(max_examples=300, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    old=pods.pods(valid=True),
    new=pods.pods(valid=True),
    lane=st.sampled_from(["fern-dev", "plugin", "nobody", "typo"]),
    target=st.sampled_from(["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]),
)
def test_an_update_that_changes_nothing_of_the_gates_has_no_finding(
    old: dict[str, Any], new: dict[str, Any], lane: str, target: str
) -> None:
    """Whatever the Pod is, and whatever else the update changes: labels, finalizers, owners, status, other gates."""
    ours = {key: value for key, value in annotations(old).items() if key.startswith("dra-gate.io/")}
    others = {key: value for key, value in annotations(new).items() if not key.startswith("dra-gate.io/")}
    new["metadata"] |= {"annotations": others | ours, "labels": {"a": "b"}, "finalizers": [], "ownerReferences": []}
    held = {"name": "dra-gate.io/grant"}
    gates = [gate for gate in new["spec"].get("schedulingGates", ()) if gate != held]
    new["spec"]["schedulingGates"] = gates + [held] * (held in old["spec"].get("schedulingGates", ()))
    new["status"] = {"phase": "Running"}
    new["spec"]["ephemeralContainers"] = old["spec"].get("ephemeralContainers", [])
    if target == "pods/ephemeralcontainers":
        new["spec"]["ephemeralContainers"] = [*new["spec"]["ephemeralContainers"], {"name": "d", "image": "busybox"}]
    if target == "pods/resize":
        new["spec"] |= {key: copy.deepcopy(old["spec"].get(key, [])) for key in ("containers", "initContainers")}
        for container in new["spec"]["containers"]:
            container.setdefault("resources", {}).setdefault("limits", {})["cpu"] = "7"
    asked = request(new, operation="UPDATE", old=old, namespace=lane, resource=("", target))
    verdict = validate(asked, setting.facts())
    assert verdict.findings == ()
    assert verdict.warnings == ()
    assert not verdict.charge.devices


def annotations(obj: dict[str, Any]) -> dict[str, Any]:
    return obj["metadata"].get("annotations") or {}


@pytest.mark.parametrize("target", ["pods/status", "pods/binding", "pods/eviction", "pods/exec"])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "CONNECT"])
def test_other_subresources_are_nobodys_business(target: str, operation: str) -> None:
    asked = request(pod(containers=[asking(1)]), operation=operation, resource=("", target))
    assert validate(asked, setting.facts()).ignored


def test_what_a_pod_of_before_the_gate_may_still_become() -> None:
    """All that rules refuse today stands in it; its finalizer, owner, labels, status and other gates come and go."""
    old = pod(
        containers=[{**asking(1), "securityContext": {"privileged": True}}],
        nodeName="n0",
        resourceClaims=[{"name": "x", "resourceClaimName": "a-gpu"}],
        ephemeralContainers=[{"name": "d", "securityContext": {"privileged": True}}],
    )
    old["metadata"] |= {"finalizers": ["batch.kubernetes.io/job-tracking"], "annotations": {"dra-gate.io/tenant": "x"}}
    for change in (
        {"finalizers": []},
        {"labels": {"a": "b"}},
        {"ownerReferences": [{"kind": "Job", "name": "j"}]},
        {"annotations": {"dra-gate.io/tenant": "x", "a": "b"}},
    ):
        new = {**old, "metadata": {**old["metadata"], **change}}
        for target in ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"):
            asked = request(new, operation="UPDATE", old=old, resource=("", target))
            assert validate(asked, setting.facts()).findings == ()


def test_an_exempt_user_is_neither_judged_nor_helped() -> None:
    exempt = frozenset({"system:serviceaccount:gpu-operator:gpu-operator"})
    facts = setting.with_settings(setting.facts(), replace(setting.policy_set().settings, exempt_users=exempt))
    privileged = pod(containers=[{**asking(1), "securityContext": {"privileged": True}}])
    for user, ignored in ((*exempt, True), ("ada", False)):
        asked = request(privileged, user=user)
        assert mutate(asked, facts).ignored is ignored
        assert validate(asked, facts).ignored is ignored
