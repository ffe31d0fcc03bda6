"""What the gate stands on, compared with what an API server might hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dra_gate.admission import footing
from dra_gate.admission.configurations import GATE_WRITERS, configurations
from dra_gate.admission.guards import GUARDS
from dra_gate.policy.model import Settings, Workload

PLAIN = Settings()
EVERY_POD = Settings(visible_devices_void="withoutClaim")
CUSTOM = Settings(workloads=(Workload("ray.io", "rayjobs", (("spec", "template"),)),))
URL = "https://gate.example:8443"


def written(kind: str = "ValidatingWebhookConfiguration", settings: Settings = PLAIN, url: str = URL) -> dict[str, Any]:
    """A webhook configuration as the API server holds it: with what it adds itself, and a caBundle."""
    made = configurations(url=url, ca_bundle=b"some", writers=GATE_WRITERS, settings=settings)
    stored = copy.deepcopy(next(one for one in made if one["kind"] == kind))
    stored["metadata"] |= {"resourceVersion": "7", "generation": 3, "uid": "u"}
    for hook in stored["webhooks"]:
        hook["objectSelector"] = {}
    return stored


def policy(name: str = "zz-dra-gate-guard-labels", kind: str = "ValidatingAdmissionPolicy") -> dict[str, Any]:
    return copy.deepcopy(named(kind, name).forms[0])


def named(kind: str, name: str = "zz-dra-gate", *settings: Settings) -> footing.Wanted:
    found = footing.wanted(settings or (PLAIN,), with_backstop=True)
    return next(one for one in found if (one.kind, one.name) == (kind, name))


def test_it_is_both_configurations_each_guard_and_the_backstop_where_it_is_wanted() -> None:
    found = [(one.kind, one.name) for one in footing.wanted((PLAIN,), with_backstop=False)]
    assert len(found) == len(set(found)) == 2 + 2 * len(GUARDS)
    more = {(one.kind, one.name) for one in footing.wanted((PLAIN,), with_backstop=True)} - set(found)
    assert {name for _, name in more} == {"zz-dra-gate-backstop"}
    assert len(more) == 2


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
@pytest.mark.parametrize(
    ("holds", "needed", "intact"),
    [
        (PLAIN, (PLAIN,), True),
        (EVERY_POD, (PLAIN,), True),  # written before the set is activated
        (PLAIN, (EVERY_POD,), False),
        (PLAIN, (PLAIN, EVERY_POD), False),
        (EVERY_POD, (PLAIN, EVERY_POD), True),
        (replace(CUSTOM, visible_devices_void="off"), (replace(CUSTOM, visible_devices_void="off"),), True),
    ],
)
def test_they_fit_the_settings(kind: str, holds: Settings, needed: tuple[Settings, ...], intact: bool) -> None:
    assert bool(named(kind, "zz-dra-gate", *needed).differences(written(kind, holds))) is not intact


def test_custom_workloads_may_be_left_out_but_none_may_be_added() -> None:
    kind = "ValidatingWebhookConfiguration"
    assert not named(kind, "zz-dra-gate", CUSTOM).differences(written(settings=PLAIN))
    assert not named(kind, "zz-dra-gate", CUSTOM).differences(written(settings=CUSTOM))
    assert named(kind, "zz-dra-gate", PLAIN).differences(written(settings=CUSTOM))


Change = Callable[[dict[str, Any]], Any]
HOOK: list[tuple[str, Change]] = [
    ("failurePolicy", lambda hook: hook.update(failurePolicy="Ignore")),
    ("namespaceSelector.matchLabels", lambda hook: hook["namespaceSelector"].update(matchLabels={"a": "b"})),
    ("objectSelector.matchLabels", lambda hook: hook["objectSelector"].update(matchLabels={"a": "b"})),
    ("matchConditions[mine]", lambda hook: hook["matchConditions"].append({"name": "mine", "expression": "false"})),
    ("matchConditions[devices].expression", lambda hook: hook["matchConditions"][2].update(expression="false")),
    ("matchConditions[devices]", lambda hook: hook["matchConditions"].pop()),
    ("matchPolicy", lambda hook: hook.update(matchPolicy="Exact")),
    ("rules", lambda hook: hook["rules"].pop()),
    ("rules[0].operations", lambda hook: hook["rules"][0]["operations"].pop()),
    ("rules[0].scope", lambda hook: hook["rules"][0].update(scope="Cluster")),
    ("timeoutSeconds", lambda hook: hook.update(timeoutSeconds=30)),
    ("clientConfig", lambda hook: hook["clientConfig"].update(url=f"{URL}/mutate")),
    ("clientConfig", lambda hook: hook["clientConfig"].update(url="https://other.example/validate")),
    ("clientConfig", lambda hook: hook["clientConfig"].update(url="https://gate.example@other.example/validate")),
]


@pytest.mark.parametrize(("field", "change"), HOOK)
def test_what_is_altered_is_named(field: str, change: Change) -> None:
    stored = written()
    wanted = named("ValidatingWebhookConfiguration")
    assert wanted.differences(stored, {"gate.example"}) == ()
    change(stored["webhooks"][0])
    assert wanted.differences(stored, {"gate.example"}) == (f"webhooks[validate.dra-gate.io].{field}",)


def test_webhooks_count_by_name_and_not_by_place() -> None:
    stored = written()
    wanted = named("ValidatingWebhookConfiguration")
    stored["webhooks"].reverse()
    assert wanted.differences(stored) == ()
    stored["webhooks"] = stored["webhooks"][:1]
    assert wanted.differences(stored) == ("webhooks[claims.dra-gate.io]", "webhooks[validate.dra-gate.io]")
    del stored["webhooks"]
    assert wanted.differences(stored) == ("webhooks",)
    assert wanted.differences(None) == (footing.MISSING,)


@pytest.mark.parametrize(("path", "intact"), [("/validate", True), ("/mutate", False)])
@pytest.mark.parametrize(("called", "ours"), [((), True), (("gate.ns.svc",), True), (("gate.example",), False)])
def test_by_service(path: str, intact: bool, called: tuple[str, ...], ours: bool) -> None:
    stored = written()
    for hook in stored["webhooks"]:
        hook["clientConfig"] = {"service": {"namespace": "ns", "name": "gate", "port": 443, "path": path}}
    assert (named("ValidatingWebhookConfiguration").differences(stored, called) == ()) is (intact and ours)


POLICY: list[tuple[str, Change]] = [
    ("spec.failurePolicy", lambda spec: spec.update(failurePolicy="Ignore")),
    ("spec.validations[0].expression", lambda spec: spec["validations"][0].update(expression="true")),
    ("spec.validations", lambda spec: spec["validations"].append({"expression": "true"})),
    (
        "spec.matchConditions[mine]",
        lambda spec: spec["matchConditions"].append({"name": "mine", "expression": "false"}),
    ),
    ("spec.variables[was].expression", lambda spec: spec["variables"][0].update(expression="{}")),
    ("spec.matchConstraints.excludeResourceRules", lambda s: s["matchConstraints"].update(excludeResourceRules=[{}])),
    ("spec.matchConstraints.objectSelector.a", lambda s: s["matchConstraints"].update(objectSelector={"a": 1})),
]


@pytest.mark.parametrize(("field", "change"), POLICY)
def test_a_guard_that_is_altered(field: str, change: Change) -> None:
    stored = policy()
    stored["spec"]["matchConstraints"] |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    stored["spec"]["matchConstraints"]["resourceRules"][0]["scope"] = "*"
    stored["status"] = {"typeChecking": {}}
    wanted = named("ValidatingAdmissionPolicy", "zz-dra-gate-guard-labels")
    assert wanted.differences(stored) == ()
    change(stored["spec"])
    assert wanted.differences(stored) == (field,)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("spec.validationActions", {"validationActions": ["Audit"]}),
        ("spec.policyName", {"policyName": "other"}),
        ("spec.matchResources", {"matchResources": {"objectSelector": {"matchLabels": {"a": "b"}}}}),
    ],
)
def test_a_binding_that_is_altered(field: str, change: dict[str, Any]) -> None:
    kind = "ValidatingAdmissionPolicyBinding"
    stored = policy("zz-dra-gate-guard-labels", kind)
    stored["spec"] |= change
    assert named(kind, "zz-dra-gate-guard-labels").differences(stored) == (field,)
