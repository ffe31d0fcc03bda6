"""What a ledger says, there and back; the CRD has a place for each word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_gate.fairness.charge import Charge
from dra_gate.fairness.events import Held
from dra_gate.fairness.holdings import HeldBack
from dra_gate.fairness.ledger import (
    Grant,
    GrantedClaim,
    KeptBack,
    LedgerSpec,
    Observed,
    Tag,
    read_spec,
    written_spec,
)
from dra_gate.fairness.resting import Rest

CRD = Path(__file__).parents[2] / "deploy/base/crds/tenantledgers.yaml"
DEVICE = ("gpu.nvidia.com", "n1", "gpu-0")
GRANT = Grant(
    uid="u",
    namespace="n",
    name="p",
    generation=7,
    at=2,
    queued=1,
    policy="train@3",
    policy_set="abc",
    model="h100",
    candidates=("h100", "a100"),
    claims=(GrantedClaim("gate-0", "dra-gate-late-x", 2, "d"),),
    borrowed=True,
    lease=60,
    fixed=1,
    fixed_models={"a100": 1},
    priority=5,
    group="g",
    members=4,
    only="h100",
)
HELD_BACK = HeldBack("v", "n", "q", "n1", "oak", (DEVICE,), Charge(1, {"h100": 1}), 99)
SPEC = LedgerSpec(
    generation=7,
    grants=(GRANT,),
    tags={"h100": Tag(1, 2)},
    held_back=(KeptBack.of(HELD_BACK),),
    resting=(Rest("w", 2, 120_000, "no node"),),
    observed=Observed("10", "11"),
)


def test_there_and_back() -> None:
    assert read_spec(written_spec(SPEC)) == SPEC
    assert SPEC.held_back[0].held("oak") == HELD_BACK
    with pytest.raises(ValueError, match="grants"):
        read_spec({"generation": 1, "grants": [{"uid": "u"}]})


def test_the_next_leader_is_told_what_the_last_one_knew() -> None:
    opened = GRANT.opened("oak")
    assert opened.request == Held(
        uid="u",
        tenant="oak",
        policy="train@3",
        claims=(2,),
        queued=1,
        fixed=1,
        fixed_models={"a100": 1},
        priority=5,
        group="g",
        members=4,
        only="h100",
        pod="n/p",
    )
    assert (opened.model, opened.candidates, opened.borrowed, opened.at) == ("h100", ("h100", "a100"), True, 2)


def test_every_word_has_its_place_in_the_crd() -> None:
    """A field that the schema does not know is dropped by the API server without a word."""
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    _within(written_spec(SPEC), version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")


def _within(value: Any, schema: dict[str, Any], path: str) -> None:
    if isinstance(value, dict):
        assert schema["type"] == "object", path
        for key, inner in value.items():
            known = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            assert known, f"{path}.{key}"
            _within(inner, known, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        assert schema["type"] == "array", path
        for inner in value:
            _within(inner, schema["items"], f"{path}[]")


def test_caches_are_as_new_as_what_was_observed() -> None:
    seen = Observed("10", "20")
    assert seen.reached(Observed())
    assert seen.reached(Observed("9", "20"))
    assert not seen.reached(Observed("11", "1"))
    assert not Observed("", "20").reached(Observed("1", "1")), "while it lists, a cache is as new as nothing"
