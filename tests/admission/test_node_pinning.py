"""Pinning by a label with which the catalogue tells a model, though the settings do not list it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from admission import setting
from dra_gate.admission.facts import Facts
from dra_gate.admission.validate import validate
from dra_gate.cluster.facts import World

HOLDING = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": setting.template_name("fern", "train", 2, 1)}]}


@cache
def facts() -> Facts:
    policies = setting.policy_set()
    shelved = replace(policies.models["l40s"], node_labels={"shelf": ("s1",)})
    world = World(replace(policies, models={**policies.models, "l40s": shelved}))
    world.apply(setting.labelled("fern-dev", lane="dra"))
    for name in ("s1", "s2"):
        world.apply({"kind": "Node", "metadata": {"name": name, "labels": {"shelf": name}}})
    return world.facts()


def requiring(operator: str, *values: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "shelf", "operator": operator, "values": list(values)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "pinned"),
    [
        ({"nodeSelector": {"shelf": "s1"}}, True),
        ({"nodeSelector": {"shelf": "s1"}, **HOLDING}, True),
        ({"nodeSelector": {"shelf": "later"}}, True),
        ({"nodeSelector": {"shelf": "s2"}}, False),
        (requiring("In", "s1", "later"), True),
        (requiring("In", "s1", "s2"), False),
        (requiring("Exists"), False),
        (requiring("NotIn", "s1"), False),
    ],
)
def test_a_neutral_label_pins_where_no_other_node_has_what_is_asked_for(spec: dict[str, Any], pinned: bool) -> None:
    verdict = validate(setting.request(setting.pod(**spec)), facts())
    told = [finding for finding in verdict.findings if finding.code == "NODE_PINNING"]
    assert bool(told) is pinned
    assert all("a model by label shelf" in finding.message for finding in told)
