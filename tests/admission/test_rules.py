"""Every rule against its table: `<rule>.yaml` beside the rule's module, with objects that pass and that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from admission import setting
from dra_gate.admission import rules
from dra_gate.admission.rules.rule import Context, Registry
from dra_gate.admission.scope import scope_of

TABLES = Path(rules.__file__).parent
ROWS = [
    pytest.param(rule, row, id=f"{rule.id}-{row['name']}")
    for rule in rules.ALL
    for row in setting.load_table(TABLES / f"{rule.id.replace('-', '_')}.yaml")
]


@pytest.mark.parametrize(("rule", "row"), ROWS)
def test_row(rule: rules.Rule, row: dict[str, Any]) -> None:
    row = setting.resolved(row)
    request = setting.row_request(row)
    facts = setting.world(*row.get("present", ())).facts()
    scope = scope_of(request.namespace, facts)
    assert scope is not None
    found = Registry([rule]).findings(Context.of(request, request.object, scope, facts))
    assert [(finding.code, finding.field) for finding in found] == [
        (wanted["code"], wanted["field"]) for wanted in row.get("findings", ())
    ]
    for finding, wanted in zip(found, row.get("findings", ()), strict=True):
        assert finding.rule == rule.id
        assert finding.code in rule.codes
        assert wanted.get("says", "") in finding.message
        assert finding.remedy
        assert wanted.get("remedy", "") in finding.remedy


@pytest.mark.parametrize("rule", list(rules.ALL), ids=lambda rule: rule.id)
def test_table_shows_both_sides(rule: rules.Rule) -> None:
    rows = setting.load_table(TABLES / f"{rule.id.replace('-', '_')}.yaml")
    assert any(row.get("findings") for row in rows)
    assert any(not row.get("findings") for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)


def test_two_rules_of_one_id_are_refused() -> None:
    rule = next(iter(rules.ALL))
    with pytest.raises(ValueError, match=rule.id):
        Registry([rule, rule])
