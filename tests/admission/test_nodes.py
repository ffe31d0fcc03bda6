"""Which nodes a selector and a required affinity leave, against a plain reading of core v1, node by node."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from dra_gate.admission.nodes import Choices, Nodes

KEYS = ["rack", "gen", "metadata.name", "absent"]
VALUES = ["a", "b", "3", "n0", ""]
labels = st.dictionaries(st.sampled_from(KEYS[:2]), st.sampled_from(VALUES))
requirements = st.fixed_dictionaries(
    {
        "key": st.sampled_from(KEYS),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"]),
        "values": st.lists(st.sampled_from([*VALUES, "2", "4"]), max_size=2),
    }
)
node_terms = st.fixed_dictionaries(
    {"matchExpressions": st.lists(requirements, max_size=2), "matchFields": st.lists(requirements, max_size=1)}
)


def holds(one: dict[str, Any], has: dict[str, str]) -> bool:
    found, values = has.get(one["key"]), one["values"]
    numbers = [int(value) for value in [found, *values] if value is not None and value.isdigit()]
    compared = numbers if found is not None and len(values) == 1 and len(numbers) == 2 else None
    return {
        "In": found is not None and found in values,
        "NotIn": found is None or found not in values,
        "Exists": found is not None,
        "DoesNotExist": found is None,
        "Gt": compared is not None and compared[0] > compared[1],
        "Lt": compared is not None and compared[0] < compared[1],
        "Like": False,
    }[one["operator"]]


def fits(name: str, has: dict[str, str], selector: dict[str, str], terms: list[dict[str, Any]] | None) -> bool:
    return all(has.get(key) == value for key, value in selector.items()) and (
        terms is None
        or any(
            (term["matchExpressions"] or term["matchFields"])
            and all(holds(one, has) for one in term["matchExpressions"])
            and all(holds(one, {"metadata.name": name}) for one in term["matchFields"])
            for term in terms
        )
    )


@hypothesis.settings(max_examples=1000, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    nodes=st.lists(st.tuples(labels, st.booleans()), max_size=4),
    selector=labels,
    terms=st.none() | st.lists(node_terms, max_size=2),
)
def test_choices(nodes: list[tuple[dict[str, str], bool]], selector: dict[str, str], terms: Any) -> None:
    known = Nodes()
    for number, (has, devices) in enumerate(nodes):
        known.set(f"n{number}", has, devices=devices)
    left = [devices for number, (has, devices) in enumerate(nodes) if fits(f"n{number}", has, selector, terms)]
    required = None if terms is None else {"nodeSelectorTerms": terms}
    assert known.choices(selector, required) == Choices(plain=False in left, device=True in left)


def test_nodes_come_change_and_go() -> None:
    nodes = Nodes()
    nodes.set("n0", {"rack": "a"}, devices=False)
    assert nodes.choices({"rack": "a"}, None) == Choices(plain=True, device=False)
    nodes.set("n0", {"rack": "a"}, devices=True)
    assert nodes.choices({"rack": "a"}, None) == Choices(plain=False, device=True)
    nodes.set("n0", {"rack": "b"}, devices=True)
    assert nodes.choices({"rack": "a"}, None) == Choices(plain=False, device=False)
    assert (nodes.knows("n0"), nodes.is_device_node("n0"), nodes.knows("n1")) == (True, True, False)
    nodes.drop("n0")
    assert nodes.choices({}, None) == Choices(plain=False, device=False)
    assert (nodes.knows("n0"), nodes.is_device_node("n0")) == (False, False)


@pytest.mark.parametrize(
    "required", [3, {}, {"nodeSelectorTerms": 4}, {"nodeSelectorTerms": [None, {"matchExpressions": [7]}]}]
)
def test_wrong_types_select_nothing(required: Any) -> None:
    nodes = Nodes()
    nodes.set("n0", {}, devices=True)
    assert nodes.choices({}, required) == Choices(plain=False, device=False)
    assert nodes.choices({"rack": 3}, None) == Choices(plain=False, device=False)
