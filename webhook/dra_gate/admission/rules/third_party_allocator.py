"""No annotation asks another allocator for a share of a device."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import OTHER_ALLOCATOR, OTHER_ALLOCATORS
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping


def _check(context: Context) -> Iterator[Finding]:
    annotations = mapping(at(context.object, "metadata", "annotations"))
    for key, allocator in OTHER_ALLOCATORS.items():
        if key in annotations:
            yield RULE.finding(f"metadata.annotations[{key}]", f"it asks {allocator} for a share of a device")


RULE = Rule(
    id="third-party-allocator",
    title="No other allocator hands out devices",
    protects="order, constraints and quota of the policy: another allocator knows nothing of them",
    code="THIRD_PARTY_ALLOCATOR",
    fields=("metadata.annotations",),
    remedy="Leave the annotation out and ask for whole devices: the policy picks them",
    on=POD_CREATE,
    check=_check,
    signs=(OTHER_ALLOCATOR,),
    as_written=True,
    twin=OTHER_ALLOCATOR.condition,
)
