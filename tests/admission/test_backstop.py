"""The backstop, offline: what it refuses the webhook refuses, by the same rule, in the same lane and mode."""

from __future__ import annotations

import copy
import datetime as dt
from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings
from hypothesis import strategies as st

from admission import bypasses, pods, setting
from cases import harness
from dra_gate.admission import backstop
from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.admission.facts import Facts
from dra_gate.admission.request import Request, read
from dra_gate.admission.rules import ALL, Context, Rule
from dra_gate.admission.rules import stamp_edit as stamps
from dra_gate.admission.scope import scope_of
from dra_gate.admission.validate import validate
from dra_gate.admission.verdict import Verdict
from dra_gate.cluster.facts import World
from dra_gate.cluster.gate import Accepted, Gate
from dra_gate.controller.gate_plan import Known, plan_gate
from dra_gate.controller.settling import SETTLE_SECONDS, Held
from dra_gate.policy.model import EXCEPTABLE, Place, PolicyException, PolicySet
from dra_gate.policy.switch import Switch

DAY = 20_787
SET: PolicySet = setting.policy_set()
NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
NAMES = ("object", "oldObject", "request", "params", "namespaceObject", "variables", "domains")
ENVIRONMENT = cel.NewEnv(
    variables=dict.fromkeys(NAMES, cel.Type.DYN), extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()]
)
POLICY, BINDING = (manifest["spec"] for manifest in backstop.manifests())
CONDITIONS = [ENVIRONMENT.compile(one["expression"]) for one in POLICY["matchConditions"]]
VARIABLES = {one["name"]: ENVIRONMENT.compile(one["expression"]) for one in POLICY["variables"]}
TWINS = {
    rule.id: (rule, about, ENVIRONMENT.compile(backstop.expression(rule, about)), ENVIRONMENT.compile(rule.twin))
    for rule, about in backstop.twins()
}
# Their twins hold for all that they refuse. The others': a node's name beside a claim, definitions of a variable that
# all ask, privileged ephemeral containers, our gate without anything to wait for, a late claim without our gate.
EXACT = {
    *("reserved-name", "privileged", "host-device", "third-party-allocator"),
    *("grant-gate-edit", "stamp-edit"),
}
SURE = {
    *("raw-device-request", "node-pinning", "visible-devices", "ephemeral-container"),
    *("grant-gate", "late-claim"),
}


def raw(request: Request) -> dict[str, Any]:
    """The request as the policy sees it."""
    made: dict[str, Any] = {
        "operation": request.operation,
        "resource": {"group": request.group, "version": "v1", "resource": request.resource},
        "namespace": request.namespace,
        "userInfo": {"username": request.username, "groups": sorted(request.groups)},
    }
    return made | ({"subResource": request.subresource} if request.subresource else {})


def refusing(request: Request, namespace: dict[str, str], gate: dict[str, Any] | None) -> set[str]:
    """The rules whose twins refuse the request. What is evaluated with an error refuses nothing (failurePolicy)."""
    covered = {
        (operation, resource)
        for rule in POLICY["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    if gate is None or (request.operation, request.target) not in covered or "dra-gate.io/lane" not in namespace:
        return set()
    data: dict[str, Any] = {
        "object": request.object,
        "oldObject": request.old_object,
        "request": raw(request),
        "params": gate,
        "namespaceObject": {"metadata": {"name": request.namespace, "labels": namespace}},
        "variables": {},
    }
    if not all(condition.eval(data=data).value() is True for condition in CONDITIONS):
        return set()
    for name, program in VARIABLES.items():
        data["variables"][name] = program.eval(data=data).plain_value()
    return {rule.id for rule, _, program, _ in TWINS.values() if program.eval(data=data).value() is False}


def gate_of(facts: Facts) -> dict[str, Any]:
    """The Gate as the controller leaves it when nothing has changed lately but what the facts say was another."""
    sets = (facts.policy_set, *(found for found, _ in facts.accepted.values()))
    active = facts.policy_set.digest
    known = Known(active, {}, {}, sets=sets, lane=lane_of(facts), namespaces=namespaces_of(facts))
    plan = plan_gate(Gate("u", "1", 1, active, switch=facts.switch), known, NOW)
    tenants = [{"name": name, "lane": lane} for name, lane in facts.switch.tenants.items()]
    lane = {"override": facts.switch.override, "tenants": tenants}
    return {"spec": {"active": active, "lane": lane}, "status": plan.status}


def held(said: str, *, changed: bool = False) -> Held:
    return Held(said, SETTLE_SECONDS - 0.1 if changed else SETTLE_SECONDS, changed)


def lane_of(facts: Facts) -> Held:
    return held(backstop.switch_text(facts.switch), changed=facts.switch_previous != facts.switch)


def namespaces_of(facts: Facts) -> dict[str, Held]:
    return {
        name: held(backstop.labelled(name, labels), changed=name in facts.previous_labels)
        for name, labels in facts.namespaces.items()
    }


def found_by(verdict: Verdict) -> set[str]:
    """The rules that refuse; where there is no tenant, that is what is said of raw requests."""
    found = {finding.rule for finding in verdict.findings}
    return found | ({"raw-device-request"} if "no-tenant" in found else set())


def judged_by(rule: Rule, request: Request, facts: Facts) -> bool:
    scope = scope_of(request.namespace, facts)
    return scope is not None and any(True for _ in rule.check(Context.of(request, request.object, scope, facts)))


KINDS = [("pods", "CREATE"), ("pods", "CREATE"), ("pods", "UPDATE"), ("pods/ephemeralcontainers", "UPDATE")]


def exception(rule: str, **more: Any) -> PolicyException:
    said: dict[str, Any] = {"owner": None, "users": (), "expires": DAY, **more}
    return PolicyException(
        "x", (rule,), ("fern-dev", "moss"), reason="", ticket="", approver="", place=Place("", 1, 1), **said
    )


WARNED = {"dra-gate.io/lane": "dra", "dra-gate.io/mode": "warn"}
EXCEPTIONS = st.builds(
    exception,
    st.sampled_from(EXCEPTABLE),
    users=st.sampled_from([(), ("bob",)]),
    owner=st.sampled_from([None, None, ("DaemonSet", "d")]),
    expires=st.sampled_from([DAY - 5, DAY, DAY + 5]),
)


SOME = Switch("device-plugin", {"fern": "", "moss": "dra"})


@hypothesis.settings(max_examples=500, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    pod=pods.pods(valid=True),
    old=pods.pods(valid=True),
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(["p", "p", "dra-gate-p"]),
    namespace=st.sampled_from(["fern-dev", "fern-dev", "moss", "moss-warned", "nobody", "typo", "plugin", "open"]),
    mode=st.sampled_from([None, None, "enforce", "warn", "shadow", "nonsense"]),
    lanes=st.sampled_from(
        [(Switch(), Switch())] * 3
        + [(Switch("dra"), Switch("dra")), (Switch("device-plugin"), Switch("device-plugin"))]
        + [(Switch("dra"), Switch("device-plugin")), (Switch(), Switch("dra")), (SOME, SOME), (Switch(), SOME)]
    ),
    user=st.sampled_from(["ada", "ada", "bob", "exempt", GATE_WRITERS[0], "system:node:n0"]),
    going=st.booleans(),
    mirror=st.booleans(),
    before=st.sampled_from([0, 0, 0, None, {"dra-gate.io/lane": "device-plugin"}, WARNED]),
    exceptions=st.lists(EXCEPTIONS, max_size=2),
)
def test_what_the_backstop_refuses_the_rule_of_that_name_refuses(
    pod: dict[str, Any],
    old: dict[str, Any],
    kind: tuple[str, str],
    name: str,
    namespace: str,
    mode: str | None,
    lanes: tuple[Switch, Switch],
    user: str,
    going: bool,
    mirror: bool,
    before: Any,
    exceptions: list[PolicyException],
) -> None:
    pod["metadata"]["name"] = name
    if mirror:
        pod["metadata"].setdefault("annotations", {})["kubernetes.io/config.mirror"] = "x"
    if going:
        old["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    groups = ("system:nodes",) if user.startswith("system:node:") else ("system:authenticated",)
    target, operation = kind
    old = old if operation == "UPDATE" else {}
    asked = setting.request(
        pod, operation=operation, old=old, user=user, groups=groups, resource=("", target), namespace=namespace
    )
    facts = setting.facts()
    labels = {**facts.namespaces[namespace], **({} if mode is None else {"dra-gate.io/mode": mode})}
    settings = replace(facts.policy_set.settings, exempt_users=frozenset({"exempt"}))
    facts = replace(
        facts,
        policy_set=replace(facts.policy_set, settings=settings, exceptions=tuple(exceptions)),
        namespaces={**facts.namespaces, namespace: labels},
        previous_labels={} if before == 0 else {namespace: before},
        switch=lanes[0],
        switch_previous=lanes[1],
        writers=frozenset(GATE_WRITERS),
        day=DAY,
    )
    refused = refusing(asked, labels, gate_of(facts))
    if refused:
        verdict = validate(asked, facts)
        assert not verdict.allowed
        assert refused <= found_by(verdict)
    for rule, about, _, twin in TWINS.values():
        if f"{operation} {target}" not in about or user in GATE_WRITERS or scope_of(namespace, facts) is None:
            continue
        data = {"object": pod, "oldObject": old, "request": raw(asked), "domains": ["nvidia.com"]}
        holds = twin.eval(data=data).value()
        if rule.id in EXACT:
            assert holds is judged_by(rule, asked, facts), rule.id
        elif holds is True and (rule.id != "raw-device-request" or SET.tenant_of(namespace) is not None):
            assert judged_by(rule, asked, facts), rule.id


ROWS: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    (rule, "CREATE", pod, {}, "pods") for rule, pod in bypasses.CREATED
]
ROWS += [(rule, "UPDATE", pod, old, target) for rule, old, pod, target in bypasses.CHANGED]
ROWS += [("", "CREATE", pod, {}, "pods") for pod in bypasses.ORDINARY]
ROWS += [("", "UPDATE", pod, old, target) for old, pod, target in bypasses.ORDINARY_CHANGES]


@pytest.mark.parametrize(("rule", "operation", "pod", "old", "target"), ROWS)
def test_simple_ways_around(rule: str, operation: str, pod: dict[str, Any], old: dict[str, Any], target: str) -> None:
    facts = setting.facts()
    asked = setting.request(pod, operation=operation, old=old, resource=("", target))
    assert refusing(asked, dict(facts.namespaces["fern-dev"]), gate_of(facts)) == ({rule} if rule else set())
    assert not rule or rule in {finding.rule for finding in validate(asked, facts).findings}


@pytest.mark.parametrize(("rule", "pod"), [row for row in bypasses.CREATED if row[0] in EXCEPTABLE])
@pytest.mark.parametrize("more", [{}, {"users": ("bob",)}, {"owner": ("DaemonSet", "d")}, {"expires": DAY}])
def test_what_an_exception_may_let_pass_is_let_pass(rule: str, pod: dict[str, Any], more: dict[str, Any]) -> None:
    facts = setting.facts()
    facts = replace(facts, policy_set=replace(SET, exceptions=(exception(rule, **more),)), day=DAY)
    for namespace, wanted in (("fern-dev", set()), ("fern-canary", {rule})):
        asked = setting.request(pod, namespace=namespace, user="bob")
        assert refusing(asked, dict(facts.namespaces[namespace]), gate_of(facts)) == wanted


def test_every_twin_refuses_something() -> None:
    assert set(TWINS) == EXACT | SURE
    assert {rule for rule, *_ in ROWS if rule} == set(TWINS)


def test_the_handed_cases() -> None:
    world = World(harness.policy_set())
    for obj in harness.environment():
        world.apply(obj)
    facts = replace(world.facts(), writers=frozenset(GATE_WRITERS))
    gate, refused = gate_of(facts), Counter[str]()
    for case_id, entry in harness.expectations().items():
        if not entry.get("file"):
            continue
        case = harness.case(case_id)
        for obj in case.objects:
            world.apply(obj)
        requests = [
            setting.request(pod, namespace=pod["metadata"].get("namespace", "lilac-dev")) for pod in case.pods.values()
        ]
        requests += [
            read(review)
            for review in case.reviews
            if isinstance(review, dict) and review.get("apiVersion") == "admission.k8s.io/v1" and review.get("request")
        ]
        known = replace(world.facts(), writers=frozenset(GATE_WRITERS))
        for asked in requests:
            try:
                by = refusing(asked, dict(known.namespaces.get(asked.namespace, {})), gate)
            except RuntimeError:  # objects that no API server has: evaluation ends in an error
                continue
            refused.update(by)
            assert by <= found_by(validate(asked, known)), case_id
    assert {"privileged", "host-device", "visible-devices"} <= set(refused)


PRIVILEGED = setting.pod(containers=[{"name": "c", "image": "a", "securityContext": {"privileged": True}}])


def status(gate: Gate, **known: Any) -> dict[str, Any]:
    given = Known(SET.digest, {}, {}, sets=(SET,), lane=held(backstop.switch_text(gate.switch)))
    plan = plan_gate(gate, replace(given, **known), NOW)
    assert plan.status is not None
    found: dict[str, Any] = plan.status["backstop"]
    return found


OTHER = "f" * 64
LENIENT = {
    "active": SET.digest,
    "lane": "",
    "namespaces": [],
    "domains": ["nvidia.com"],
    "exceptions": [{"rule": "privileged", "namespace": name} for name in ("fern-dev", "moss")],
    "exemptUsers": ["driver"],
}
NOTHING = {"active": "", "lane": "", "namespaces": [], "domains": [], "exceptions": [], "exemptUsers": []}


def test_what_the_controller_tells() -> None:
    gate = Gate("u", "1", 1, SET.digest)
    lenient = replace(
        SET,
        digest=OTHER,
        exceptions=(exception("privileged"), exception("node-pinning", expires=DAY - 2)),
        settings=replace(SET.settings, exempt_users=frozenset({"driver"})),
    )
    accepted = replace(gate, accepted=(Accepted(OTHER),))
    assert status(gate) == {**NOTHING, "active": SET.digest, "domains": ["nvidia.com"]}
    assert status(accepted) == NOTHING, "a webhook may know it before the controller does"
    assert status(accepted, refused={OTHER: "broken"})["active"] == SET.digest
    counted: dict[str, Any]
    for counted in ({"sets": (SET, lenient)}, {"refused": {OTHER: "broken"}, "recent": (lenient,)}):
        assert status(accepted, **counted) == LENIENT
    assert status(replace(gate, active=OTHER)) == NOTHING
    assert status(gate, sets=()) == NOTHING
    assert status(accepted, sets=(SET, replace(lenient, policies={})))["domains"] == []
    many = replace(SET, settings=replace(SET.settings, exempt_users=frozenset(map(str, range(1001)))))
    assert status(gate, sets=(many,)) == NOTHING


def test_a_namespace_is_told_of_when_its_labels_are_settled() -> None:
    gate = Gate("u", "1", 1, SET.digest)
    labels = {"moss": held("moss/dra/enforce"), "fern": held("fern/dra/enforce", changed=True), "open": held("")}
    assert status(gate, namespaces=labels)["namespaces"] == ["moss/dra/enforce/dra"]
    told = {
        "backstop": {**NOTHING, "active": SET.digest, "namespaces": ["moss/dra/enforce/dra", "fern/dra/enforce/dra"]}
    }
    started = {name: Held(f"{name}/dra/enforce", 0.0, changed=False) for name in ("moss", "fern", "new")}
    started["fern"] = Held("fern/device-plugin/enforce", 0.0, changed=False)
    seen = status(replace(gate, status=told), namespaces=started)
    assert seen["namespaces"] == ["moss/dra/enforce/dra"], "what was settled before a restart is so after it"
    flipped = {"moss": Held("moss/dra/enforce", 0.0, changed=True)}
    assert status(replace(gate, status=told), namespaces=flipped)["namespaces"] == []
    many = {str(number): held(f"{number}/dra/enforce") for number in range(5001)}
    assert status(gate, namespaces=many) == NOTHING


def test_the_lane_that_is_told_is_that_of_switch_tenant_and_label() -> None:
    labels = {
        "moss": held("moss/dra/enforce"),
        "plugin": held("plugin/device-plugin/enforce"),
        "nobody": held("nobody/dra/enforce"),
    }

    def lanes(switch: Switch, *sets: PolicySet) -> str:
        told = status(Gate("u", "1", 1, SET.digest, switch=switch), namespaces=labels, recent=sets)["namespaces"]
        return " ".join(f"{one.partition('/')[0]}:{one.rpartition('/')[2]}" for one in told)

    assert lanes(Switch()) == "moss:dra nobody:dra plugin:device-plugin"
    assert lanes(Switch("dra")) == "moss:dra nobody:dra plugin:dra"
    moss = Switch("", {"moss": "device-plugin"})
    assert lanes(moss) == "moss:device-plugin nobody:dra plugin:device-plugin"
    assert lanes(Switch("device-plugin", {"moss": ""})) == "moss:dra nobody:device-plugin plugin:device-plugin"
    # A set that counted a moment ago gave moss to nobody, whom the switch leaves alone.
    before = replace(SET, digest=OTHER, tenant_by_namespace={})
    assert lanes(moss, before) == "nobody:dra plugin:device-plugin"
    assert lanes(Switch("dra"), before) == lanes(Switch("dra"))


def test_until_the_switch_is_settled_the_status_is_about_nothing() -> None:
    gate = Gate("u", "1", 1, SET.digest, switch=Switch("dra"))
    assert status(gate)["lane"] == "dra"
    assert status(gate, lane=held("dra", changed=True)) == NOTHING
    assert status(gate, lane=Held("dra", 0.0, changed=False)) == NOTHING
    told = replace(gate, status={"backstop": {**NOTHING, "active": SET.digest, "lane": "dra"}})
    assert status(told, lane=Held("dra", 0.0, changed=False))["lane"] == "dra"
    assert status(told, lane=Held("dra", 0.0, changed=True)) == NOTHING


@pytest.mark.parametrize(
    ("change", "refuses"),
    [
        ({}, True),
        ({"status": None}, False),
        ({"status": {"history": []}}, False),
        ({"spec": {"active": OTHER}}, False),  # activated a moment ago: its exceptions are not told yet
        ({"spec": {"active": SET.digest}}, True),  # no lane
        ({"spec": {"active": SET.digest, "lane": {"override": "dra"}}}, False),  # switched a moment ago
        ({"spec": {"active": SET.digest, "lane": {"tenants": [{"name": "moss", "lane": "dra"}]}}}, False),
    ],
)
def test_what_is_not_known_is_let_pass(change: dict[str, Any], refuses: bool) -> None:
    gate = copy.deepcopy(gate_of(setting.facts())) | change
    gate = {key: value for key, value in gate.items() if value is not None}
    labels = {"dra-gate.io/lane": "dra"}
    assert bool(refusing(setting.request(PRIVILEGED), labels, gate)) is refuses
    assert not refusing(setting.request(PRIVILEGED), {}, gate)
    assert not refusing(setting.request(PRIVILEGED), {**labels, "dra-gate.io/mode": "nonsense"}, gate)
    assert not refusing(setting.request(PRIVILEGED), labels, None)


def test_the_registry_has_no_twin_that_is_about_no_pod() -> None:
    assert all(about for _, about in backstop.twins())
    assert {rule.id for rule in ALL if rule.twin} == set(TWINS)
    assert stamps.RULE.id in TWINS
