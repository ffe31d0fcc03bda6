"""What tenants hold by events equals what they hold counted from everything, whatever came in which order."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_gate.fairness.charge import NOTHING, Charge, given_charge
from dra_gate.fairness.holdings import GRACE, HeldBack, Holdings, Scales, named_model
from dra_gate.policy.load import load_documents
from fairness import account
from fairness.account import Slow, claim, pod
from policy_publish.sets import files

Object = dict[str, Any]
STEPS = ("pod", "claim", "given", "close")
ONE, EITHER = Charge(1, {"h100": 1}), Charge(1, {"h100": 1, "a100": 1})
LATER = "1970-01-01T00:10:00Z"


class Told:
    """The account and the slow one, told the same."""

    def __init__(self, *nodes: str, **more: Any) -> None:
        self.slow, self.now = Slow(), 0
        self.account = Holdings(self.scales(**more))
        for node in nodes or ("n1",):
            self.node(node)

    def scales(self, **more: Any) -> Scales:
        def claim_weight(namespace: str, name: str) -> Charge:
            found = self.slow.claims.get((namespace, name))
            return NOTHING if found is None else account.charge(account.weight(found["spec"]["weight"]))

        return Scales(
            lambda namespace, stamped: self.slow.tenant(namespace, {"dra-gate.io/tenant": stamped}) or None,
            lambda _, name: account.charge(account.weight(name)),
            claim_weight,
            lambda found: given_charge(found, ["gpu.nvidia.com"]),
            lambda name: name == "nvidia.com/gpu",
            **more,
        )

    @property
    def used(self) -> dict[str, Charge]:
        return {tenant: charge for tenant, charge in self.account.used.items() if charge != NOTHING}

    @property
    def maple(self) -> Charge:
        return self.account.used.get("maple", NOTHING)

    def pod(self, *args: Any, **kind: Any) -> None:
        obj = pod(*args, **kind)
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self.slow.set_pod(key, obj, self.now)
        self.account.set_pod(key, obj, self.now)

    def no_pod(self, name: str, namespace: str = "m1") -> None:
        self.slow.drop_pod((namespace, name), self.now)
        self.account.drop_pod((namespace, name), self.now)

    def claim(self, *args: Any, **kind: Any) -> None:
        obj = claim(*args, **kind)
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self.slow.set_claim(key, obj)
        self.account.set_claim(key, obj)

    def no_claim(self, name: str, namespace: str = "m1") -> None:
        self.slow.drop_claim((namespace, name))
        self.account.drop_claim((namespace, name))

    def node(self, name: str, model: str = "") -> None:
        self.slow.nodes[name] = model
        self.account.set_node(name, model)

    def no_node(self, name: str) -> None:
        self.slow.nodes.pop(name, None)
        self.slow.back = {mine: held for mine, held in self.slow.back.items() if held["node"] != name}
        self.account.drop_node(name)

    def grant(self, uid: str, namespace: str = "m1", *, is_open: bool = True) -> None:
        (self.slow.granted.add if is_open else self.slow.granted.discard)((namespace, uid))
        (self.account.open if is_open else self.account.close)(namespace, uid)

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.slow.back = {mine: held for mine, held in self.slow.back.items() if held["until"] > self.now}
        self.account.expire(self.now)

    def move(self, namespace: str, tenant: str) -> None:
        self.slow.owners[namespace] = tenant
        self.account.recharge()


# -- events in any order ----------------------------------------------------------------------------------------------

# What a UID stands for never changes: which Pod it is, and what it asks for.
PODS: list[Object] = [
    {"name": "p", "uid": "u1", "templates": {"g": "t1"}},
    {"name": "p", "uid": "u2", "templates": {"g": "t4", "h": "t1"}, "tenant": "birch"},
    {"name": "q", "uid": "u3", "late": {"l": "late-1"}, "counts": "l=2", "tenant": "maple"},
    {"name": "r", "uid": "u4", "gpus": 2},
    {"name": "r", "uid": "u5", "gpus": 1, "templates": {"g": "t1"}, "tenant": "nobody"},
]
CLAIMS: list[Object] = [
    {"name": "p-g", "uid": "c1", "owner": "u1", "entry": "g", "tenant": "maple"},
    {"name": "p-g", "uid": "c2", "owner": "u2", "entry": "g", "tenant": "birch"},
    {"name": "p-h", "uid": "c3", "owner": "u2", "entry": "h"},
    {"name": "late-1", "uid": "c4", "owner": "u3", "tenant": "maple", "weight": "t1"},
    {"name": "late-1", "uid": "c5", "owner": "u1", "weight": "t4"},  # somebody squats
    {"name": "r-ext", "uid": "c6", "owner": "u4", "extended": True, "weight": "t1"},
    {"name": "own", "uid": "c7", "weight": "t4", "tenant": "birch"},
    {"name": "card", "uid": "c8"},
    {"name": "fake", "uid": "c9", "owner": "u1", "entry": "g", "weight": "t1"},
]
STATES: list[Object] = [
    {"gates": ("dra-gate.io/grant",)},
    {},
    {"node": "n1"},
    {"node": "n2"},
    {"node": "n1", "deleted": "1970-01-01T00:00:30Z"},
    {"node": "n2", "deleted": LATER},
    {"node": "n1", "deleted": "1970-01-01T00:00:30Z", "grace": 0},
    {"node": "n1", "phase": "Succeeded"},
]
SPACES = st.sampled_from(["m1", "m1", "m1", "b1", "x"])
GIVEN = st.none() | st.sampled_from(
    [(), (("gpu-0", "h100"),), (("gpu-1", "a100"), ("gpu-2", "a100")), (("gpu-3", ""), ("gpu-4", "h100"))]
)
POD = st.tuples(st.just("pod"), SPACES, st.sampled_from(PODS), st.sampled_from(STATES))
CLAIM = st.tuples(st.just("claim"), SPACES, st.sampled_from(CLAIMS), GIVEN)
NO_CLAIM = st.tuples(st.just("no_claim"), st.sampled_from([one["name"] for one in CLAIMS]), SPACES)
OTHER = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(["n1", "n2"]), st.sampled_from(["", "h100"])),
    st.tuples(st.just("no_node"), st.sampled_from(["n1", "n2"])),
    st.tuples(st.just("grant"), st.sampled_from([one["uid"] for one in PODS]), SPACES, st.booleans()),
    st.tuples(st.just("pass_time"), st.sampled_from([1, 20_000, 70_000])),
    st.tuples(st.just("move"), st.sampled_from(["m1", "b1"]), st.sampled_from(["maple", "birch", ""])),
    st.tuples(st.just("no_pod"), st.sampled_from("pqr"), SPACES),
)
EVENTS = st.one_of(POD, POD, CLAIM, CLAIM, NO_CLAIM, OTHER)


def tell(told: Told, event: tuple[Any, ...]) -> None:
    match event:
        case "pod", namespace, what, state:
            told.pod(namespace=namespace, **what, **state)
        case "claim", namespace, what, found:
            told.claim(namespace=namespace, **what, given=found)
        case "grant", uid, namespace, is_open:
            told.grant(uid, namespace, is_open=is_open)
        case what, *rest:
            getattr(told, what)(*rest)


@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(EVENTS, min_size=5, max_size=40))
def test_events_in_any_order_give_what_counting_everything_gives(events: list[tuple[Any, ...]]) -> None:
    told, before = Told("n1", "n2"), dict[str, Charge]()
    for event in events:
        tell(told, event)
        assert told.used == told.slow.used()
        moved = {tenant for tenant in {*before, *told.used} if before.get(tenant) != told.used.get(tenant)}
        assert moved <= told.account.changed()
        before = told.used
    devices = {mine: held["devices"] for mine, held in told.slow.back.items()}
    found = {(one.namespace, one.uid): {name for _, _, name in one.devices} for one in told.account.held_back()}
    assert found == devices


def test_a_long_life_is_counted_right_and_leaves_nothing_behind() -> None:
    """Deep states are met by walking long; then everything goes: no charge, and no trace in any index."""
    told, chance = Told("n1", "n2"), random.Random(7)
    found: list[Any] = [None, None, (), (("gpu-0", "h100"),), (("gpu-1", ""), ("gpu-2", "a100"))]
    for step in range(12_000):
        namespace = "m1" if step % 8 else chance.choice(["b1", "x"])
        kind = chance.randrange(12)
        if kind < 4:
            tell(told, ("pod", namespace, chance.choice(PODS), chance.choice(STATES)))
        elif kind < 9:
            tell(told, ("claim", namespace, chance.choice(CLAIMS), chance.choice(found)))
        elif kind < 10:
            tell(told, ("no_claim", chance.choice(CLAIMS)["name"], namespace))
        elif step % 3 == 0:
            tell(told, ("no_pod", chance.choice("pqr"), namespace))
        elif step % 3 == 1:
            told.pass_time(chance.choice([1, 5_000]))
        else:
            told.move("m1", chance.choice(["maple", "birch"]))
            told.grant(chance.choice(PODS)["uid"], namespace, is_open=chance.random() < 0.2)
        assert told.used == told.slow.used(), step
    for namespace, one in itertools.product(["m1", "b1", "x"], PODS):
        told.grant(one["uid"], namespace, is_open=False)
    for namespace in ("m1", "b1", "x"):
        for name in "pqr":
            told.no_pod(name, namespace)
        for one in CLAIMS:
            told.no_claim(one["name"], namespace)
    told.pass_time(GRACE)
    assert told.used == {}
    told.no_node("n1")
    told.no_node("n2")
    kept = {name: value for name, value in vars(told.account).items() if name not in ("used", "_truths", "_changed")}
    assert not any(value for value in kept.values() if isinstance(value, dict | set))


# -- one by one -------------------------------------------------------------------------------------------------------


def test_the_worst_case_then_the_truth_then_nothing() -> None:
    told = Told()
    told.pod("p", templates={"g": "t1"})
    assert told.maple == EITHER
    told.claim("p-g", owner="uid-m1-p", entry="g")
    assert told.maple == EITHER
    told.claim("p-g", owner="uid-m1-p", entry="g", given=(("gpu-0", "h100"),))
    assert told.maple == ONE
    told.pod("p", templates={"g": "t1"}, node="n1", phase="Succeeded")
    assert told.maple == ONE, "the claim is not deallocated yet"
    told.claim("p-g", owner="uid-m1-p", entry="g")
    assert told.maple == NOTHING


@pytest.mark.parametrize("gone", [True, False])
def test_a_claim_that_goes_under_a_running_pod_counts_until_the_pod_ends(gone: bool) -> None:
    told = Told()
    told.pod("p", templates={"g": "t1"}, node="n1")
    told.claim("p-g", owner="uid-m1-p", entry="g", given=(("gpu-0", "h100"),))
    if gone:
        told.no_claim("p-g")
    else:
        told.claim("p-g", owner="uid-m1-p", entry="g")
    assert told.maple == ONE
    told.pod("p", templates={"g": "t1"}, node="n1", phase="Failed")
    assert told.maple == NOTHING


@pytest.mark.parametrize("claim_first", [True, False])
def test_a_deletion_by_force_holds_devices_back_until_the_grace_is_over(claim_first: bool) -> None:
    told = Told()
    told.pod("p", templates={"g": "t1"}, node="n1")
    told.claim("p-g", owner="uid-m1-p", entry="g", given=(("gpu-0", "h100"),))
    told.pass_time(5)
    if claim_first:
        told.no_claim("p-g")
    told.no_pod("p")
    assert told.maple == ONE, "once"
    told.no_claim("p-g")
    assert told.maple == ONE
    (held,) = told.account.held_back()
    assert (held.devices, held.charge, held.until) == ((("gpu.nvidia.com", "n1", "gpu-0"),), ONE, 5 + GRACE)
    after = Holdings(told.scales())
    after.hold_back(held)
    assert after.used == {"maple": ONE}, "a new leader goes on with what the ledger says"
    told.pass_time(GRACE - 1)
    assert told.maple == ONE
    told.pass_time(1)
    assert (told.maple, told.account.held_back()) == (NOTHING, ())


@pytest.mark.parametrize(
    ("last", "devices"),
    [
        ({"deleted": LATER}, 1),  # removed long before its grace was over
        ({"deleted": "1970-01-01T00:00:01Z", "grace": 0}, 1),  # a finalizer held it after the force
        ({"deleted": "1970-01-01T00:00:01Z"}, 0),
        ({"phase": "Failed"}, 0),
        ({"node": ""}, 0),
        ({"node": "elsewhere"}, 0),  # Pod GC: the node is gone
    ],
)
def test_who_was_deleted_by_force(last: Object, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(account.ENDS, "1970-01-01T00:00:01Z", 1000)
    told = Told()
    told.now = 2000
    told.pod("p", templates={"g": "t1"}, **{"node": "n1", **last})
    told.claim("p-g", owner="uid-m1-p", entry="g", given=(("gpu-0", "h100"),))
    told.no_pod("p")
    told.no_claim("p-g")
    assert told.maple.devices == devices == len(told.account.held_back())
    assert told.used == told.slow.used()


def test_a_pod_of_the_same_name_is_another_and_a_node_that_goes_lets_go() -> None:
    told = Told()
    told.pod("p", uid="first", gpus=2, node="n1")
    told.pod("p", uid="second", gpus=2)
    assert told.maple.devices == 4
    told.no_node("n1")
    assert told.maple.devices == 2


def test_a_restored_hold_counts_what_its_claims_still_hold_once() -> None:
    told = Told()
    told.claim("p-g", owner="u", entry="g", given=(("gpu-0", "h100"),))
    two = HeldBack("u", "m1", "p", "n1", "maple", (), Charge(2, {"h100": 2}), GRACE)
    told.account.hold_back(two)
    assert told.maple == two.charge
    told.no_claim("p-g")
    assert told.maple == two.charge


def test_who_waits_and_who_is_granted_hold_nothing_here() -> None:
    told = Told()
    gated = {"templates": {"g": "t1"}, "gates": ("dra-gate.io/grant",)}
    told.pod("p", **gated)
    told.claim("p-g", owner="uid-m1-p", entry="g", weight="t1")
    assert told.maple == NOTHING
    told.grant("uid-m1-p")
    told.pod("p", templates={"g": "t1"})
    told.claim("p-g", owner="uid-m1-p", entry="g", given=(("gpu-0", "h100"),))
    assert told.maple == NOTHING
    told.grant("uid-m1-p", is_open=False)
    assert told.maple == ONE
    told.pod("other", templates={"g": "t1"}, gates=("somebody.else/gate",))
    assert told.maple.devices == 2, "another party's gate is no grant of ours to wait for"


def test_a_pod_whose_grant_was_withdrawn_holds_nothing_until_it_has_a_claim_again() -> None:
    """On a node it holds what it was let go for, whatever becomes of the claim."""
    told = Told()
    late: Object = {"late": {"l": "late-1"}, "counts": "l=1", "tenant": "maple", "templates": {"g": "t1"}}
    told.pod("p", **late)
    assert told.maple == NOTHING == told.slow.used().get("maple", NOTHING)
    told.claim("late-1", owner="uid-m1-p", weight="t1")
    assert told.maple.devices == 2
    told.no_claim("late-1")
    assert told.maple == NOTHING
    told.pod("p", **late, node="n1")
    assert told.maple.devices == 2


@pytest.mark.parametrize(
    "order", [o for o in itertools.permutations(STEPS) if o.index("claim") < min(o.index("given"), o.index("close"))]
)
def test_no_view_that_is_behind_lowers_a_charge_below_what_was_granted(order: tuple[str, ...]) -> None:
    """Kubernetes issue 123434: a controller recounts from a cache that has not seen the newest Pod.

    The Pod is granted one device of its late claim. The cache of Pods shows it waiting still, that of claims nothing;
    each catches up when it does. The tenant is charged for a device by the open grant's worst case, or by what counts
    here when it is closed, if either cache has seen anything of the grant by then. That a grant is not closed before
    its claim was seen is up to who closes it: a Pod that was let go and has no claim had its grant withdrawn.
    """
    told = Told()
    late: Object = {"late": {"l": "late-1"}, "counts": "l=1", "tenant": "maple"}
    told.grant("uid-m1-p")
    told.pod("p", **late, gates=("dra-gate.io/grant",))
    done: set[str] = set()
    for step in order:
        if step == "pod":
            told.pod("p", **late)
        elif step == "claim":
            told.claim("late-1", owner="uid-m1-p", weight="t1")
        elif step == "given":
            told.claim("late-1", owner="uid-m1-p", weight="t1", given=(("gpu-0", "h100"),))
        else:
            told.grant("uid-m1-p", is_open=False)
        done.add(step)
        grant = EITHER if "close" not in done else NOTHING
        if {"pod", "given"} & done:
            assert (grant + told.maple).models["h100"] >= 1
        assert told.used == told.slow.used()


def test_shared_claims_count_once_and_owners_elsewhere_hide_nothing() -> None:
    told = Told()
    for name in ("p", "q"):
        told.pod(name, late={"g": "own"})
    told.claim("own", weight="t1")
    assert told.maple == EITHER
    told.claim("own", weight="t1", given=(("gpu-0", "h100"),))
    assert told.maple == ONE
    told.pod("granted", "b1", uid="u")
    told.grant("u", "b1")
    told.claim("forged", owner="u", given=(("gpu-1", "h100"),), weight="t1")
    assert told.maple == ONE + ONE, "the Pod with an open grant is in another namespace"


def test_device_plugin_pods_count_by_the_model_of_their_node_and_claims_for_them_once() -> None:
    told = Told()
    told.pod("p", gpus=2)
    assert told.maple == Charge(2)
    told.pod("p", gpus=2, node="n1")
    told.node("n1", "h100")
    assert told.maple == Charge(2, {"h100": 2})
    told.node("n1")
    told.claim("p-ext", owner="uid-m1-p", extended=True, given=(("gpu-0", ""), ("gpu-1", "")))
    assert told.maple == Charge(2)


def test_a_device_plugin_pod_counts_as_any_model_that_it_was_stamped_with_until_its_node_tells() -> None:
    told = Told()
    placed = pod("p", tenant="maple", gpus=2)
    placed["metadata"]["annotations"]["dra-gate.io/candidates"] = "h100,a100"
    told.account.set_pod(("m1", "p"), placed)
    assert told.maple == Charge(2, {"h100": 2, "a100": 2})
    placed["spec"]["nodeName"] = "n1"
    told.account.set_pod(("m1", "p"), placed)
    assert told.maple == Charge(2, {"h100": 2, "a100": 2}), "nothing is known of its node"
    told.node("n1", "a100")
    assert told.maple == Charge(2, {"a100": 2})


def test_the_model_of_what_people_claim_is_the_devices_own() -> None:
    models = {"gpu-0": "h100"}
    told = Told(model=lambda device: models.get(device[2], ""))
    told.claim("own", weight="t1", given=(("gpu-0", "a100"), ("gpu-1", "")))
    assert told.maple == Charge(2, {"h100": 1})
    models["gpu-1"] = "a100"
    told.account.devices_changed()
    assert told.maple == Charge(2, {"h100": 1, "a100": 1})
    told.claim("p-g", owner="u", tenant="maple", given=(("gpu-0", "a100"),))
    assert told.maple == Charge(3, {"h100": 1, "a100": 2}), "the gate's own alternatives are called after their models"


def test_a_charge_stays_with_the_tenant_of_the_stamp() -> None:
    told = Told()
    told.pod("p", templates={"g": "t1"}, tenant="maple")
    told.claim("p-g", owner="uid-m1-p", entry="g", given=(("gpu-0", "h100"),), tenant="maple")
    told.claim("own", weight="t1", tenant="birch")
    told.pod("q", gpus=1, tenant="nobody-knows")
    assert told.used == {"maple": ONE + EITHER + Charge(1)}, "a label on a claim of nobody's own says nothing"
    told.move("m1", "birch")
    assert told.used == {"maple": ONE, "birch": EITHER + Charge(1)}
    half = pod("h", tenant="maple", gpus=1)
    del half["metadata"]["annotations"]["dra-gate.io/policy"]
    told.account.set_pod(("m1", "h"), half)
    assert told.account.used["maple"] == ONE, "half a stamp is none"


def test_labels_that_name_one_model() -> None:
    text = files()["catalog.yaml"].decode()
    text = text.replace("name: h100,", "name: h100, nodeLabels: {gpu: [h100, any]},")
    text = text.replace("name: a100,", "name: a100, nodeLabels: {gpu: [a100, any]},")
    models = load_documents({**files(), "catalog.yaml": text.encode()}).models.values()
    assert [named_model({"gpu": one}, models) for one in ("h100", "a100", "any", "")] == ["h100", "a100", "", ""]
