"""What is marked, and who counts as above a cap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocation import fleet as small
from dra_gate.admission.sets import PolicySets
from dra_gate.controller.counter_inbox import Inbox, Space
from dra_gate.controller.counter_marks import ILL_MS, LOWERED_MS, Caps, Marks
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.migration.cohort import Key
from dra_gate.migration.tally import nowhere
from dra_gate.migration.waves import Move
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import Switch

NOW = 1_796_000_000_000
API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}


def tenant_set(**spec: Any) -> PolicySet:
    document = {"policy": "train@1", "namespaces": ["lilac"], **spec}
    return small.policy_set({**API, "kind": "Tenant", "metadata": {"name": "lilac"}, "spec": document})


def look(marks: Marks, known: dict[str, Any], now: int = NOW, **more: Any) -> list[tuple[int, str]]:
    spaces = {name: Space(lane, "", move) for name, (lane, move) in more.get("spaces", {}).items()}
    sets = more.get("sets") or PolicySets(tenant_set())
    return marks.look(known, sets, spaces, more.get("turns", {}), now)


def test_what_is_there_from_the_beginning_is_no_news() -> None:
    assert look(Marks(), {}, spaces={"a": ("dra", None)}, turns={("h100", "unhealthy"): 7}) == []


def test_namespaces_that_were_moved_together_are_one_mark() -> None:
    known: dict[str, Any] = {}
    moves = {f"n{number}": ("dra", Move("", "dra", NOW // 1000 - 9 + number, "admin", "wave 1")) for number in range(7)}
    look(Marks(), known)
    known = json.loads(json.dumps(known))  # another controller goes on
    marks = Marks()
    assert look(marks, known, spaces={**moves, "x": ("device-plugin", None)}) == [
        (NOW - 9000, "7 namespaces to lane dra: n0, n1, n2, n3, n4, …; by admin: wave 1"),
        (NOW, "1 namespace to lane device-plugin: x"),
    ]
    assert look(marks, known, spaces={**moves, "x": ("device-plugin", None)}) == []
    assert look(marks, known, spaces=moves) == [(NOW, "1 namespace gated no more: x")]
    # Somebody else moved it since: the record beside the label is of another lane.
    assert look(marks, known, spaces={**moves, "n0": ("device-plugin", moves["n0"][1])}) == [
        (NOW, "1 namespace to lane device-plugin: n0")
    ]


def test_policies_and_the_switch() -> None:
    known: dict[str, Any] = {}
    marks = Marks()
    look(marks, known)
    other = PolicySets(tenant_set(weight=2), switch=Switch("device-plugin", {"lilac": ""}))
    digest = other.active.digest[:12]
    assert look(marks, known, sets=other) == [
        (NOW, f"policy set {digest} is active"),
        (NOW, "switch: every tenant in lane device-plugin, but lilac as labelled"),
    ]
    assert look(marks, known, sets=PolicySets(other.active)) == [(NOW, "switch: lanes are as labelled")]


def test_devices_that_fell_ill_within_a_minute_are_one_mark() -> None:
    marks, known = Marks(), dict[str, Any]()
    look(marks, known, turns={("h100", "unhealthy"): 3})
    assert look(marks, known, turns={("h100", "unhealthy"): 5, ("h100", "healthy"): 9}) == []
    later = {("h100", "unhealthy"): 6, ("a100", "unhealthy"): 1}
    assert look(marks, known, NOW + ILL_MS - 1, turns=later) == []
    assert look(marks, known, NOW + ILL_MS, turns=later) == [(NOW, "devices fell ill: 1 a100, 3 h100")]
    assert look(marks, known, NOW + 9 * ILL_MS, turns=later) == []


# -- caps -------------------------------------------------------------------------------------------------------------

CAPPED = tenant_set(quota={"devices": 4, "models": {"h100": 2}})
SPACE = {"lilac": Space("dra", "", None)}
DRA, PLUGIN = ("lilac", "dra"), ("lilac", "device-plugin")


def caps(*looks: tuple[Charge, dict[tuple[str, str], int]], spaces: dict[str, Space] | None = None) -> dict[str, Key]:
    one, found = Caps(), dict[str, Key]()
    for used, held in looks:
        found = dict(one.look(CAPPED, {"lilac": used}, held, SPACE if spaces is None else spaces, NOW))
    return found


FULL, ABOVE, ABOVE_MODEL = Charge(4, {"h100": 2, "a100": 2}), Charge(5, {"a100": 5}), Charge(3, {"h100": 3})


@pytest.mark.parametrize("above", [ABOVE, ABOVE_MODEL])
def test_above_a_cap_for_what_it_was_given(above: Charge) -> None:
    assert caps((FULL, {DRA: 4}), (above, {DRA: 5})) == {"lilac": nowhere("dra", "lilac")}
    # What is charged and what Pods are seen to hold come by two caches.
    assert caps((FULL, {DRA: 4}), (above, {DRA: 4}), (above, {DRA: 5})) == {"lilac": nowhere("dra", "lilac")}
    assert caps((FULL, {DRA: 4}), (FULL, {DRA: 5}), (above, {DRA: 5})) == {"lilac": nowhere("dra", "lilac")}


def test_at_its_cap_or_under_a_lowered_one_is_no_breach() -> None:
    assert caps((NOTHING, {}), (FULL, {DRA: 4})) == {}
    assert caps((ABOVE, {DRA: 5}), (ABOVE, {DRA: 5})) == {}
    assert caps((FULL, {DRA: 4}), (ABOVE, {DRA: 5}), (FULL, {DRA: 4})) == {}


def test_what_was_granted_under_a_higher_cap_is_no_breach_of_the_lower_one() -> None:
    """A rollback of all lanes because somebody lowers a quota while Pods start would be the worst of hard stops."""
    lowered, breach = tenant_set(quota={"devices": 2}), {"lilac": nowhere("dra", "lilac")}
    one = Caps()

    def look(active: PolicySet, devices: int, now: int) -> dict[str, Key]:
        return dict(one.look(active, {"lilac": Charge(devices, {"a100": devices})}, {DRA: devices}, SPACE, now))

    assert look(CAPPED, 2, NOW) == look(CAPPED, 3, NOW) == {}
    assert look(lowered, 3, NOW) == {}, "what it had"
    assert look(lowered, 4, NOW) == {}, "what was granted and not allocated"
    assert look(lowered, 5, NOW) == breach, "more than either allows"
    assert look(lowered, 4, NOW) == {}
    assert look(lowered, 4, NOW + LOWERED_MS + 1) == {}
    assert look(lowered, 2, NOW + LOWERED_MS + 1) == {}
    assert look(lowered, 3, NOW + LOWERED_MS + 1) == breach, "of the one that counts now"


def test_a_namespace_that_comes_to_another_tenant_takes_its_devices_along() -> None:
    one, other = Caps(), tenant_set(quota={"devices": 4, "models": {"h100": 2}}, weight=2)
    one.look(CAPPED, {"lilac": FULL}, {DRA: 4}, SPACE, NOW)
    assert not one.look(other, {"lilac": ABOVE}, {DRA: 5}, SPACE, NOW)
    assert not one.look(other, {"lilac": ABOVE}, {DRA: 5}, SPACE, NOW)
    assert one.look(other, {"lilac": ABOVE + Charge(1, {"a100": 1})}, {DRA: 6}, SPACE, NOW)


def test_a_breach_by_device_plugins_is_not_dras() -> None:
    plugin = {"lilac": nowhere("device-plugin", "lilac")}
    assert caps((FULL, {PLUGIN: 4}), (ABOVE, {PLUGIN: 5})) == plugin
    assert caps((FULL, {DRA: 2, PLUGIN: 2}), (ABOVE, {DRA: 3, PLUGIN: 5})) == plugin


@pytest.mark.parametrize("spaces", [{}, {"lilac": Space("dra", "shadow", None)}])
def test_where_nothing_is_enforced_nothing_is_breached(spaces: dict[str, Space]) -> None:
    assert caps((FULL, {DRA: 4}), (ABOVE, {DRA: 5}), spaces=spaces) == {}


def test_the_inbox_keeps_one_of_each() -> None:
    from migration.seen import at, claim, pod, running  # noqa: PLC0415

    inbox = Inbox(client=None)  # type: ignore[arg-type]
    key = ("lilac", "p")
    for seen in (pod(), pod(bound=2, version=2), pod(bound=2, version=3, containerStatuses=running(4))):
        inbox.saw_pod(key, seen)
    inbox.saw_claim(key, claim("h100"))
    inbox.saw_claim(key, {**claim("h100"), "status": {}})
    inbox.saw_pod(key, pod(uid="another"))
    batch = inbox.take()
    assert list(batch.pods) == [pod()["metadata"]["uid"], "another"]
    assert list(batch.gone) == [pod()["metadata"]["uid"]]
    assert len(batch.claims) == 1
    assert inbox.alive() == {"another"}
    assert not inbox.take()
    inbox.saw_pod(key, None)
    inbox.saw_pod(("lilac", "q"), None)
    assert list(inbox.take().gone) == ["another"]
    labels = {"dra-gate.io/lane": "dra", "dra-gate.io/mode": "warn"}
    moved = json.dumps({"from": "", "to": "dra", "at": at(0), "by": "admin", "why": "x"})
    inbox.saw_namespace(("", "lilac"), {"metadata": {"labels": labels, "annotations": {"dra-gate.io/canary": moved}}})
    assert (space := inbox.spaces["lilac"]).mode == "warn"
    assert space.move is not None
    assert space.move.by == "admin"
    inbox.saw_namespace(("", "lilac"), {"metadata": {"labels": {}}})
    assert inbox.spaces == {}
