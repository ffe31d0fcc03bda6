"""What a Gate means: tables over the pure functions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from dra_gate.admission.sets import PolicySets
from dra_gate.cluster.gate import Accepted, Activation, Gate, Switched, choose, kept, read_gate, with_switch
from dra_gate.policy.switch import Switch
from policy_publish.sets import made

A, B, C, D = (made(version) for version in (1, 2, 3, 4))
NAMES = {"A": A, "B": B, "C": C, "D": D}
LETTER = {policy_set.digest: letter for letter, policy_set in NAMES.items()}


def gate(active: str, accepted: str = "", history: str = "", generation: int = 7, **rest: Any) -> Gate:
    return Gate(
        "uid",
        "1",
        generation,
        NAMES[active].digest,
        tuple(Accepted(NAMES[letter].digest) for letter in accepted),
        history=tuple(Activation(NAMES[letter].digest, "2026-01-01T00:00:00Z") for letter in history),
        **rest,
    )


@dataclass(frozen=True)
class Case:
    name: str
    gate: Gate | None
    usable: str
    chosen: str  # active, then accepted; empty: nothing to go by
    last: str = ""
    bridged: str = ""
    generation: int = field(default=7)


CASES = (
    Case("no gate, nothing before", None, "AB", ""),
    Case("gate gone: what counted goes on", None, "", "AB", last="AB", generation=3),
    Case("active is there", gate("A"), "AB", "A"),
    Case("accepted too", gate("B", "A"), "AB", "BA"),
    Case("accepted but not usable is left out", gate("B", "AC"), "AB", "BA"),
    Case("active among the accepted counts once", gate("A", "AB"), "AB", "AB"),
    Case("unusable active, nothing before", gate("C"), "AB", ""),
    Case("unusable active: the last one stays, the rest follows the Gate", gate("C", "B"), "AB", "AB", last="A"),
    Case("a last one that is unpublished by now stays all the same", gate("C"), "", "A", last="A"),
    Case("new replica, active never took effect: history", gate("C", history="AB"), "AB", "A"),
    Case("new replica, history's newest is gone: not an older one", gate("C", history="AB"), "B", ""),
    Case("new replica, the active set itself was in use and is lost", gate("A", history="AB"), "B", ""),
    Case("the last one wins over history", gate("C", history="AB"), "AB", "B", last="B"),
    Case("accepted goes on whatever becomes of its ConfigMap", gate("A", "B"), "A", "AB", last="AB"),
    Case("but does not become active without one", gate("B", "A"), "A", "AB", last="AB"),
    Case("withdrawn: no longer accepted", gate("B"), "AB", "B", last="BA"),
    Case("just replaced and not yet accepted: bridged", gate("B"), "AB", "BA", last="A", bridged="A"),
    Case("bridged and accepted counts once", gate("B", "A"), "AB", "BA", last="A", bridged="A"),
    Case("active again: no bridge to itself", gate("A"), "AB", "A", last="B", bridged="A"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_choose(case: Case) -> None:
    last = PolicySets(NAMES[case.last[0]], tuple(NAMES[c] for c in case.last[1:]), 3) if case.last else None
    usable = {NAMES[letter].digest: NAMES[letter] for letter in case.usable}
    chosen = choose(case.gate, usable, last, [NAMES[letter] for letter in case.bridged])
    if not case.chosen:
        assert chosen is None
        return
    assert chosen is not None
    assert "".join(LETTER[policy_set.digest] for policy_set in chosen.all) == case.chosen
    assert chosen.generation == case.generation


def test_lane_and_generation_are_the_gates_even_where_its_set_is_not() -> None:
    said = gate("C", generation=9, switch=Switch("device-plugin"), switch_previous=Switch("dra"))
    chosen = choose(said, {}, PolicySets(A, generation=3))
    assert chosen == PolicySets(A, (), 9, Switch("device-plugin"), Switch("dra"))


@pytest.mark.parametrize(
    ("said", "published", "wanted"),
    [
        (None, {}, ""),
        (None, {"A": "1"}, "A"),
        (None, {"A": "1", "B": "2", "C": "3"}, "CB"),  # before there is a Gate: the newest two
        (gate("A"), {"A": "1"}, "A"),
        (gate("A", "B"), {"A": "1"}, "AB"),  # named and missing: to be looked for
        (gate("B", "A", history="BA"), {"A": "1", "B": "2"}, "BA"),
        (gate("B", history="BA"), {"A": "1", "B": "2"}, "BA"),  # no longer accepted, but what a rollback names
        (gate("B", history="BAD"), {"A": "1", "B": "2", "D": "3"}, "BA"),  # older ones are not
        (gate("B", history="BA"), {"A": "1", "B": "2", "C": "3"}, "BAC"),  # newly published
        (gate("A", history="ABA"), {"A": "1", "B": "2"}, "AB"),
    ],
)
def test_kept(said: Gate | None, published: dict[str, str], wanted: str) -> None:
    found = kept(said, {NAMES[letter].digest: when for letter, when in published.items()})
    assert "".join(LETTER[digest] for digest in found) == wanted


def stored(annotation: object = None, observed: int = 4, **spec: Any) -> dict[str, Any]:
    note = annotation if isinstance(annotation, str) else json.dumps(annotation)
    return {
        "metadata": {
            "name": "default",
            "uid": "u",
            "resourceVersion": "12",
            "generation": 5,
            "annotations": {} if annotation is None else {"dra-gate.io/activation": note},
        },
        "spec": {"active": A.digest, **spec},
        "status": {"observedGeneration": observed, "history": [{"digest": B.digest, "at": "t", "by": "ada"}]},
    }


def test_read_gate() -> None:
    accepted = [{"digest": B.digest, "pinned": True}, {"digest": C.digest, "since": "2026-01-01T00:00:00Z"}]
    read = read_gate(stored(accepted=accepted, lane={"override": "dra", "previous": "", "generation": 2}))
    assert read.accepted == (Accepted(B.digest, True), Accepted(C.digest, False, "2026-01-01T00:00:00Z"))
    assert (read.generation, read.observed) == (5, 4)
    assert (read.switch, read.switch_previous, read.switched) == (Switch("dra"), Switch(), Switched(count=2))
    assert read.history == (Activation(B.digest, "t", "ada"),)
    assert read.named == (A.digest, B.digest, C.digest)
    assert read.previous == B.digest


LILAC = {"name": "lilac", "lane": "device-plugin"}


def test_the_switch_as_it_is_stored() -> None:
    said = {"by": "ada", "at": "2026-11-30T12:00:00Z", "reason": "why", "drainBy": "2026-11-30T13:00:00Z"}
    tenants = [{"name": "mint"}, {**LILAC, "drainBy": "2026-11-30T14:00:00Z"}]
    lane = {"override": "device-plugin", "tenants": tenants, "previousTenants": [LILAC], **said}
    read = read_gate(stored(lane=lane))
    lanes = {"mint": "", "lilac": "device-plugin"}
    assert read.switch == Switch("device-plugin", lanes, said["drainBy"], {"lilac": "2026-11-30T14:00:00Z"})
    assert [read.switch.drain_of(name) for name in ("mint", "lilac", "rose")] == [
        "",
        "2026-11-30T14:00:00Z",
        "2026-11-30T13:00:00Z",
    ]
    assert read.switch_previous == Switch("", {"lilac": "device-plugin"})
    assert read.switched == Switched("ada", said["at"], "why")
    assert read_gate(stored()).switch == read_gate(stored(lane={})).switch == Switch()


def test_the_switch_as_it_is_written() -> None:
    before = stored(lane={"override": "dra", "previous": "device-plugin", "generation": 3, "reason": "old"})
    lanes, until = {"mint": "dra", "lilac": "device-plugin"}, "2026-11-30T13:00:00Z"
    to = Switch("", lanes, drains={"lilac": until})
    written = with_switch(before, to, Switched("ada", "2026-11-30T12:00:00Z", "why"))
    assert written["metadata"]["resourceVersion"] == "12"
    assert written["spec"]["active"] == A.digest
    read = read_gate(written)
    assert (read.switch, read.switch_previous, read.switched.count) == (to, Switch("dra"), 4)
    assert list(read.switch.tenants) == ["lilac", "mint"], "an order of its own, so that the same is the same text"
    again = read_gate(with_switch(written, Switch("", lanes), Switched("bob", "2026-11-30T12:10:00Z", "no drain")))
    assert (again.switch_previous, again.switched.count) == (Switch("dra"), 4), "the lanes did not change"
    assert (again.switched.by, again.switch.drains) == ("bob", {})
    everybody = read_gate(with_switch(before, Switch("device-plugin", drain_by=until), Switched())).switch
    assert everybody == Switch("device-plugin", drain_by=until)
    with pytest.raises(ValueError, match="501 tenants"):
        with_switch(before, Switch("", {str(number): "dra" for number in range(501)}), Switched())


@pytest.mark.parametrize(
    ("annotation", "believed"),
    [
        ({"digest": A.digest, "generation": 5, "by": "ada", "note": "why"}, ("ada", "why")),
        ({"digest": A.digest, "generation": 5, "by": "x" * 999}, ("x" * 256, "")),
        ({"digest": B.digest, "generation": 5, "by": "ada"}, None),  # about another set
        ({"digest": A.digest, "generation": 4, "by": "ada"}, None),  # left from an earlier activation of this set
        ({"digest": A.digest, "generation": True, "by": "ada"}, None),
        ({"digest": A.digest, "by": "ada"}, None),
        ("{", None),
        ("[]", None),
        (None, None),
    ],
)
def test_who_claims_the_activation(annotation: object, believed: tuple[str, str] | None) -> None:
    claimed = read_gate(stored(annotation)).claimed
    assert (None if claimed is None else (claimed.by, claimed.note)) == believed


def test_nonsense_reads_as_absent() -> None:
    assert read_gate({"spec": {"active": 5, "accepted": "x", "lane": []}, "status": []}) == Gate("", "", 0, "")
