"""Several policy sets, and replicas that see changes a moment apart: what was right just before is not refused."""

from __future__ import annotations

from typing import Any

import pytest

from admission import setting
from admission.setting import asking, labelled, pod, request
from dra_gate.admission.facts import BehindError, Facts
from dra_gate.admission.mutate import mutate
from dra_gate.admission.scope import earlier_scopes, scope_of
from dra_gate.admission.sets import PolicySets
from dra_gate.admission.validate import validate
from dra_gate.cluster.facts import EARLIER_SECONDS, World
from dra_gate.cluster.files import load_manifests
from dra_gate.kube.patch import apply
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import Switch

OLD = setting.policy_set()


def changed(text: bytes) -> PolicySet:
    """The world's policies, and fern's policy another one."""
    return load_documents({"policies.yaml": text})


TEXT = (setting.WORLD / "policies.yaml").read_bytes()
NEW = changed(TEXT.replace(b"policy: train@2", b"policy: train@3").replace(b"keepVersions: [1]", b"keepVersions: [2]"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def world(sets: PolicySets, clock: Clock | None = None) -> World:
    made = World(clock=clock or Clock())
    for obj in load_manifests([str(setting.WORLD / "cluster.yaml")]):
        made.apply(obj)
    made.use(sets)
    return made


def made_by(facts: Facts) -> dict[str, Any]:
    obj = pod(containers=[asking(1)])
    result: dict[str, Any] = apply(obj, list(mutate(request(obj), facts).patch))
    return result


def refused(obj: dict[str, Any], facts: Facts, **more: bool) -> list[str]:
    return [finding.code for finding in validate(request(obj), facts, **more).findings]


def test_new_pods_get_the_active_set_and_old_stamps_are_honoured() -> None:
    ahead = world(PolicySets(NEW, (OLD,), generation=2)).facts()
    behind = world(PolicySets(OLD, (), generation=1)).facts()
    new, old = made_by(ahead), made_by(behind)
    assert new["metadata"]["annotations"]["dra-gate.io/policy-version"] == "3"
    assert new["metadata"]["annotations"]["dra-gate.io/gate-generation"] == "2"
    assert refused(new, ahead) == []
    assert refused(old, ahead) == [], "made a moment ago by a replica that is behind"


def test_a_replica_that_is_behind_asks_again_before_it_refuses() -> None:
    ahead = world(PolicySets(NEW, (OLD,), generation=2))
    behind = world(PolicySets(OLD, (), generation=1))
    new = made_by(ahead.facts())
    with pytest.raises(BehindError) as found:
        validate(request(new), behind.facts(), may_look_again=True)
    assert (found.value.digest, found.value.generation) == (NEW.digest, 2)
    behind.use(PolicySets(NEW, (OLD,), generation=2))
    assert refused(new, behind.facts(), may_look_again=True) == []


def test_a_withdrawn_set_is_refused_and_the_remedy_is_to_create_again() -> None:
    old = made_by(world(PolicySets(OLD)).facts())
    verdict = validate(request(old), world(PolicySets(NEW, (), generation=3)).facts())
    assert "metadata.annotations[dra-gate.io/policy-set]" in [finding.field for finding in verdict.findings]
    assert "Create the Pod again" in verdict.findings[0].remedy


@pytest.mark.parametrize("forged", ["9", "x", "", "-1", "²", "1" * 30])
def test_a_generation_that_never_was_is_refused(forged: str) -> None:
    facts = world(PolicySets(OLD, (), generation=4)).facts()
    obj = made_by(facts)
    obj["metadata"]["annotations"]["dra-gate.io/gate-generation"] = forged
    assert refused(obj, facts) == ["FORGED_ANNOTATION"]
    obj["metadata"]["annotations"]["dra-gate.io/gate-generation"] = "3"
    assert refused(obj, facts) == [], "the Gate changed while the Pod was on its way"


def test_lane_and_mode_may_be_the_present_or_the_ones_just_before() -> None:
    clock = Clock()
    seen = world(PolicySets(OLD), clock)
    seen.apply(labelled("fern-dev", lane="device-plugin"))
    raw = made_by(seen.facts())
    clock.now += 60
    seen.apply(labelled("fern-dev", lane="dra"))
    assert refused(raw, seen.facts()) == [], "another replica may still have seen the old lane"
    clock.now += EARLIER_SECONDS + 1
    assert {"RAW_DEVICE_REQUEST", "NODE_PINNING"} <= set(refused(raw, seen.facts()))


def test_a_namespace_that_was_just_labelled_takes_pods_from_before() -> None:
    clock = Clock()
    seen = world(PolicySets(OLD), clock)
    open_one = {"kind": "Namespace", "metadata": {"name": "fern-dev", "labels": {}}}
    seen.apply(open_one)
    clock.now += 60
    seen.apply(labelled("fern-dev", lane="dra"))
    assert validate(request(pod(containers=[asking(1)])), seen.facts()).ignored
    # So is one whose environment mutate would have told that it sees no device.
    unseen = {"name": "c", "image": "a", "envFrom": [{"configMapRef": {"name": "m"}}]}
    assert validate(request(pod(containers=[unseen])), seen.facts()).ignored
    # Only what mutate left undone: a claim of somebody's own was never right.
    claim = pod(resourceClaims=[{"name": "g", "resourceClaimName": "somebodys"}])
    assert refused(claim, seen.facts()) == ["FOREIGN_CLAIM"]
    # However much that is: no more than a hundred findings are told, and those of mutate's take no other's place.
    privileged = {"name": "p", "image": "a", "securityContext": {"privileged": True}}
    assert "PRIVILEGED" in refused(pod(containers=[*[asking(1)] * 100, privileged]), seen.facts())
    seen.apply({"kind": "Namespace", "metadata": {"name": "nobodys", "labels": {}}})
    clock.now += 60
    seen.apply(labelled("nobodys", lane="dra"))
    verdict = validate(request(pod(containers=[asking(1)]), namespace="nobodys"), seen.facts())
    assert [finding.code for finding in verdict.findings] == ["NO_TENANT"]
    clock.now += EARLIER_SECONDS + 1
    assert refused(pod(containers=[asking(1)]), seen.facts()) == ["RAW_DEVICE_REQUEST"]


def test_the_switch_overrides_labels_and_counts_a_moment_longer() -> None:
    clock = Clock()
    seen = world(PolicySets(OLD), clock)
    made = made_by(seen.facts())
    clock.now += 60
    seen.use(PolicySets(OLD, switch=Switch("device-plugin"), generation=1))
    facts = seen.facts()
    raw = made_by(facts)
    assert "resourceClaims" not in raw["spec"]
    assert refused(raw, facts) == refused(made, facts) == []
    clock.now += EARLIER_SECONDS + 1
    seen.use(PolicySets(OLD, switch_previous=Switch("device-plugin"), generation=2))
    assert refused(raw, seen.facts()) == []
    clock.now += EARLIER_SECONDS + 1
    assert "RAW_DEVICE_REQUEST" in refused(raw, seen.facts())


@pytest.mark.parametrize(
    ("switch", "lanes"),
    [
        (Switch(), "dra dra device-plugin dra"),
        (Switch("device-plugin"), "device-plugin device-plugin device-plugin device-plugin"),
        (Switch("dra"), "dra dra dra dra"),
        (Switch("", {"fern": "device-plugin"}), "device-plugin dra device-plugin dra"),
        (Switch("device-plugin", {"fern": ""}), "dra device-plugin device-plugin device-plugin"),
        (Switch("device-plugin", {"moss": "dra"}), "device-plugin dra device-plugin device-plugin"),
        (Switch("", {"nobodys": "device-plugin"}), "dra dra device-plugin dra"),
    ],
)
def test_lanes_by_switch_tenant_and_label(switch: Switch, lanes: str) -> None:
    facts = world(PolicySets(OLD, switch=switch, generation=1)).facts()
    scopes = [scope_of(name, facts) for name in ("fern-dev", "moss", "plugin", "nobody")]
    assert " ".join(scope.lane for scope in scopes if scope is not None) == lanes
    assert scope_of("open", facts) is None, "a switch gates nobody"


def test_a_tenants_switch_counts_a_moment_longer_and_for_that_tenant() -> None:
    clock = Clock()
    seen = world(PolicySets(OLD), clock)
    made = made_by(seen.facts())
    switched = Switch("", {"fern": "device-plugin"})
    seen.use(PolicySets(OLD, switch=switched, generation=1))
    raw = made_by(seen.facts())
    assert "resourceClaims" not in raw["spec"]
    assert refused(raw, seen.facts()) == refused(made, seen.facts()) == []
    assert earlier_scopes("moss", seen.facts()) == [scope_of("moss", seen.facts())] * 2
    clock.now += EARLIER_SECONDS + 1
    assert earlier_scopes("fern-dev", seen.facts()) == []
    # Taken back by hand, which leaves what the Gate says of before as it was.
    seen.use(PolicySets(OLD, generation=2))
    assert refused(raw, seen.facts()) == []
    clock.now += EARLIER_SECONDS + 1
    assert "RAW_DEVICE_REQUEST" in refused(raw, seen.facts())


def test_changing_sets_keeps_count_of_what_is_held() -> None:
    seen = world(PolicySets(OLD))
    holder = pod(
        resourceClaims=[{"name": "g", "resourceClaimTemplateName": setting.template_name("moss", "pooled", 1, 3)}]
    )
    holder["metadata"] = {"namespace": "moss", "name": "p", "uid": "u"}
    seen.apply(holder)
    assert seen.facts().used["moss"].devices == 3
    seen.use(PolicySets(NEW, (OLD,), generation=2))
    assert seen.facts().used["moss"].devices == 3
    with_amd = TEXT.replace(
        b"models:\n", b"models:\n- {name: mi300x, deviceClassName: gpu.amd.com, products: [AMD_X]}\n", 1
    )
    seen.use(PolicySets(changed(with_amd), (NEW,), generation=3))
    assert "deviceclass.resource.kubernetes.io/gpu.amd.com" in seen.facts().device_resources
    assert seen.facts().used["moss"].devices == 3
    assert not World().ready
