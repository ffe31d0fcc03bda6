from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from controller.policies import policy_set, policy_text
from dra_gate.controller.plan import (
    Action,
    Compiled,
    Seen,
    Verb,
    missing,
    most_devices,
    plan,
    read_slice,
    read_template,
    references,
)
from dra_gate.policy.compile import Template, templates_of
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef
from dra_gate.policy.switch import NO_SWITCH, Switch

SET = policy_set()
INDEX = templates_of(SET)


def template(version: int, count: int) -> Template:
    return INDEX.for_count("maple", PolicyRef("train", version), count)


def stored(made: Template, namespace: str = "maple-a", **metadata: Any) -> dict[str, Any]:
    """As the API server would give it back."""
    obj = made.manifest(namespace)
    have = {"uid": f"uid-{made.name}", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**obj, "metadata": {**obj["metadata"], **have, **metadata}}


def seen(*objects: dict[str, Any]) -> dict[str, Seen]:
    return {obj["metadata"]["name"]: read_template(obj) for obj in objects}


def run(
    existing: Mapping[str, Seen] | None = None,
    named: Collection[str] = (),
    namespace: str = "maple-a",
    devices: int = 8,
    switch: Switch = NO_SWITCH,
) -> list[Action]:
    return plan([Compiled(SET, INDEX)], namespaces={namespace}, existing={namespace: existing or {}},
                references={namespace: named}, devices=devices, switch=switch)  # fmt: skip


def usual(*versions: int) -> dict[str, Seen]:
    return seen(*(stored(template(version, count)) for version in versions for count in range(1, 9)))


def done(actions: list[Action]) -> list[tuple[Verb, str]]:
    return [(action.verb, action.name) for action in actions if action.verb is not Verb.KEEP]


def test_empty_namespace_gets_every_valid_version_at_usual_counts() -> None:
    actions = run()
    assert {action.verb for action in actions} == {Verb.CREATE}
    made = Counter((a.template.policy.version, a.template.count) for a in actions if a.template)
    assert made == Counter((version, count) for version in (1, 2) for count in range(1, 9))
    assert not any(action.urgent for action in actions)
    canary = run(namespace="maple-c")
    assert {a.template.policy.version for a in canary if a.template} == {1, 2, 3}
    assert all(action.namespace == "maple-c" for action in canary)


def test_companions_leave_room_for_fewer_usual_counts() -> None:
    companions = "companions: [{name: nic, deviceClassName: n.example, driver: n.example, count: 29}]"
    text = policy_text().replace("candidates: [a100]", f"candidates: [a100], {companions}")
    own = load_documents({"set.yaml": text.encode()})
    compiled = Compiled(own, templates_of(own))
    actions = plan([compiled], namespaces={"maple-a"}, existing={}, references={}, devices=16)
    made = Counter(a.template.policy.version for a in actions if a.template)
    assert made == {1: 3, 2: 9}
    assert missing(compiled, namespaces={"maple-a"}, existing={}, devices=16) == 12


def test_nothing_to_do_twice() -> None:
    assert done(run(usual(1, 2))) == []


@pytest.mark.parametrize("switch", [Switch("device-plugin"), Switch("", {"maple": "device-plugin"})])
def test_switched_to_device_plugins_only_what_pods_name_is_made_and_nothing_is_collected(switch: Switch) -> None:
    assert done(run(switch=switch)) == []
    compiled = Compiled(SET, INDEX)
    assert missing(compiled, namespaces={"maple-a"}, existing={}, devices=8, switch=switch) == 0
    named = template(2, 3)
    assert done(run(named={named.name}, switch=switch)) == [(Verb.CREATE, named.name)]
    old = stored(template(3, 1))
    assert done(run(usual(1, 2) | seen(old))) == [(Verb.COLLECT, old["metadata"]["name"])]
    assert done(run(usual(1, 2) | seen(old), switch=switch)) == []
    edited = stored(template(2, 1))
    edited["spec"]["metadata"] = {}
    assert done(run(seen(edited), switch=switch)) == [(Verb.REPAIR, edited["metadata"]["name"])]


@pytest.mark.parametrize("switch", [Switch("device-plugin", {"maple": ""}), Switch("", {"birch": "device-plugin"})])
def test_tenants_that_keep_their_lane_keep_their_templates(switch: Switch) -> None:
    assert done(run(switch=switch)) == done(run())


@pytest.mark.parametrize(("devices", "counts"), [(8, 8), (15, 8), (16, 9), (72, 9)])
def test_sixteen_where_a_node_has_as_many(devices: int, counts: int) -> None:
    actions = run(devices=devices)
    assert len(actions) == 2 * counts
    assert any(a.template and a.template.count == 16 for a in actions) == (counts == 9)


def test_absent_terminating_and_foreign_namespaces_get_nothing() -> None:
    assert (
        plan(
            [Compiled(SET, INDEX)], namespaces=(), existing={}, references={"maple-a": {template(2, 1).name}}, devices=8
        )
        == []
    )
    assert run(namespace="kube-system") == []


@pytest.mark.parametrize(("version", "count", "namespace", "made"), [
    (2, 24, "maple-a", True), (1, 32, "maple-a", True), (3, 24, "maple-c", True),
    (3, 24, "maple-a", False),  # the canary's version outside its namespaces
    (2, 24, "kube-system", False),
])  # fmt: skip
def test_what_a_pod_names_is_made_if_the_set_compiles_to_it_there(
    version: int, count: int, namespace: str, made: bool
) -> None:
    name = template(version, count).name
    actions = [action for action in run(named={name}, namespace=namespace) if action.name == name]
    assert [(a.verb, a.urgent, a.template and a.template.count) for a in actions] == (
        [(Verb.CREATE, True, count)] if made else []
    )


def test_unknown_names_make_nothing() -> None:
    assert done(run(usual(1, 2), named={"dra-gate-train-v9-x1-0123456789", "dra-gate-x"})) == []


def test_what_waits_for_a_pod_is_urgent_at_a_usual_count_too() -> None:
    name = template(2, 1).name
    assert [a.name for a in run(named={name}) if a.urgent] == [name]


OLD = stored(template(3, 5))  # a version that maple-a does not honour
LABELS = OLD["metadata"]["labels"]


@pytest.mark.parametrize(("extra", "named", "verb"), [
    (OLD, False, Verb.COLLECT),
    (OLD, True, Verb.KEEP),  # a Pod still needs its claim
    (stored(template(2, 24)), False, Verb.COLLECT),
    (stored(template(2, 24)), True, Verb.KEEP),
    ({**OLD, "metadata": {**OLD["metadata"], "labels": {}}}, False, Verb.KEEP),  # not ours
    ({**OLD, "metadata": {**OLD["metadata"], "labels": {**LABELS, "app.kubernetes.io/managed-by": "helm"}}}, False,
     Verb.KEEP),
    ({**OLD, "metadata": {**OLD["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}, False, Verb.KEEP),
])  # fmt: skip
def test_collecting(extra: dict[str, Any], named: bool, verb: Verb) -> None:
    name = extra["metadata"]["name"]
    actions = run({**usual(1, 2), **seen(extra)}, named={name} if named else ())
    assert [action.verb for action in actions if action.name == name] == [verb]
    assert [action for action in actions if action.name != name and action.verb is not Verb.KEEP] == []


def test_collects_where_no_tenant_owns_the_namespace_any_more() -> None:
    ours = stored(template(2, 1), "former")
    (action,) = run(seen(ours), namespace="former")
    assert (action.verb, action.reason) == (Verb.COLLECT, "no tenant owns the namespace")
    assert action.seen is not None
    assert (action.seen.uid, action.seen.resource_version) == (ours["metadata"]["uid"], "7")


def edited(**changes: Any) -> dict[str, Any]:
    obj = stored(template(2, 1))
    return {**obj, **changes}


def metadata(**changes: Any) -> dict[str, Any]:
    obj = stored(template(2, 1))
    return {**obj, "metadata": {**obj["metadata"], **changes}}


OURS = stored(template(2, 1))["metadata"]["labels"]
OTHER_SPEC = stored(template(1, 1))["spec"]


@pytest.mark.parametrize(("obj", "verb"), [
    (edited(spec=OTHER_SPEC), Verb.REPAIR),
    (metadata(labels={**OURS, "dra-gate.io/tenant": "other"}), Verb.REPAIR),
    (metadata(annotations={}), Verb.REPAIR),
    (metadata(labels={**OURS, "dra-gate.io/new": "x"}), Verb.REPAIR),
    (metadata(labels={**OURS, "team.example/owner": "x"}), Verb.KEEP),  # other people's labels are theirs
    (metadata(managedFields=[{}], selfLink="x"), Verb.KEEP),
    (metadata(labels={}), Verb.KEEP),  # not ours any more, but what a Pod gets from it is right
    ({**edited(spec=OTHER_SPEC), "metadata": metadata(labels={})["metadata"]}, Verb.REPORT),
    ({**edited(spec=None), "metadata": metadata(labels={"a": "b"})["metadata"]}, Verb.REPORT),
    (metadata(deletionTimestamp="2026-01-01T00:00:00Z", labels={**OURS, "dra-gate.io/tenant": "other"}), Verb.KEEP),
])  # fmt: skip
def test_a_needed_name_that_is_taken(obj: dict[str, Any], verb: Verb) -> None:
    name = template(2, 1).name
    actions = run({**usual(1, 2), **seen(obj)})
    assert [a.verb for a in actions if a.name == name] == [verb]
    assert done(actions) == ([] if verb is Verb.KEEP else [(verb, name)])


def test_every_action_has_a_reason() -> None:
    actions = run({**usual(1), **seen(OLD)}, named={template(2, 24).name})
    assert all(action.reason for action in actions)
    assert {a.reason for a in actions if a.name == template(2, 24).name} == {"train@2 for 24, named by a Pod"}


def pod(status: Any = None, phase: str = "Pending", **changes: Any) -> dict[str, Any]:
    claims = [
        {"name": "own", "resourceClaimTemplateName": "dra-gate-a"},
        {"name": "nic", "resourceClaimTemplateName": "nics"},
        {"name": "direct", "resourceClaimName": "dra-gate-b"},
        {"name": "two", "resourceClaimTemplateName": "dra-gate-c"},
    ]
    return {
        "metadata": {"name": "p", **changes.pop("metadata", {})},
        "spec": {"resourceClaims": claims, **changes},
        "status": {"phase": phase, "resourceClaimStatuses": status or []},
    }


DONE = [{"name": "own", "resourceClaimName": "p-own-x"}, {"name": "two", "resourceClaimName": "p-two-x"}]


@pytest.mark.parametrize(("obj", "names"), [
    (pod(), {"dra-gate-a", "dra-gate-c"}),
    (pod(DONE), {"dra-gate-a", "dra-gate-c"}),  # waits: a deleted claim would be made again from the template
    (pod(DONE, nodeName="n"), set()),
    (pod(DONE[:1], nodeName="n"), {"dra-gate-c"}),
    (pod(phase="Succeeded"), set()),
    (pod(phase="Failed"), set()),
    (pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), set()),
    ({"metadata": {"name": "p"}, "spec": {}}, set()),
    ({"metadata": {"name": "p"}, "spec": {"resourceClaims": None}}, set()),
])  # fmt: skip
def test_references(obj: dict[str, Any], names: set[str]) -> None:
    assert references(obj) == names


def a_slice(node: str | None, devices: int, pool: str = "", generation: int = 1, driver: str = "gpu") -> dict[str, Any]:
    spec: dict[str, Any] = {"driver": driver, "pool": {"name": pool or node, "generation": generation},
                            "devices": [{"name": f"d{i}"} for i in range(devices)]}  # fmt: skip
    return {"metadata": {"name": "s"}, "spec": {**spec, **({"nodeName": node} if node else {"allNodes": True})}}


@pytest.mark.parametrize(("slices", "most"), [
    ([], 0),
    ([a_slice("n1", 8), a_slice("n2", 4)], 8),
    ([a_slice("n1", 8), a_slice("n1", 8)], 16),  # two slices of one pool
    ([a_slice("n1", 8, "p1"), a_slice("n1", 8, "p2")], 16),  # two pools of one node
    ([a_slice("n1", 8, driver="gpu"), a_slice("n1", 8, driver="nic")], 8),
    ([a_slice("n1", 16, generation=1), a_slice("n1", 8, generation=2)], 8),  # the old generation is void
    ([a_slice(None, 16, "shared"), a_slice(None, 4, "other")], 16),
    ([{"metadata": {"name": "s"}, "spec": {"driver": "x", "pool": {"name": "p"}}}], 0),
])  # fmt: skip
def test_most_devices(slices: list[dict[str, Any]], most: int) -> None:
    assert most_devices([read_slice(one) for one in slices]) == most


def both(**arguments: Any) -> list[Action]:
    """Under two sets at once: the one above, and a later one without the kept version, with its canary elsewhere."""
    later = policy_set("maple-a", "maple-x", keep=False)
    sets = [Compiled(SET, INDEX), Compiled(later, templates_of(later))]
    defaults: dict[str, Any] = {"namespaces": {"maple-a"}, "existing": {}, "references": {}, "devices": 8}
    return plan(sets, **{**defaults, **arguments})


def test_several_sets_need_what_any_of_them_needs() -> None:
    made = Counter((a.namespace, a.template.policy.version) for a in both() if a.template)
    assert made == {("maple-a", 1): 8, ("maple-a", 2): 8}  # 2 is the same in both sets, and made once
    there = both(namespaces={"maple-c", "maple-x"})
    made = Counter((a.namespace, a.template.policy.version) for a in there if a.template)
    assert made == {**{("maple-c", v): 8 for v in (1, 2, 3)}, **{("maple-x", v): 8 for v in (2, 3)}}


def test_nothing_of_any_set_is_collected() -> None:
    existing = {"maple-a": usual(1, 2) | seen(stored(template(3, 1)))}
    assert done(both(existing=existing)) == [(Verb.COLLECT, template(3, 1).name)]


def test_missing_counts_what_is_not_there() -> None:
    compiled = Compiled(SET, INDEX)
    assert missing(compiled, namespaces={"maple-a", "maple-c", "other"}, existing={}, devices=8) == 16 + 24
    assert missing(compiled, namespaces={"maple-a"}, existing={}, devices=16) == 18
    there = {"maple-a": usual(1, 2)}
    assert missing(compiled, namespaces={"maple-a"}, existing=there, devices=8) == 0
    going = seen(stored(template(2, 1), deletionTimestamp="2026-01-01T00:00:00Z"))
    assert missing(compiled, namespaces={"maple-a"}, existing={"maple-a": usual(1, 2) | going}, devices=8) == 1
    assert missing(compiled, namespaces=set(), existing={}, devices=8) == 0
