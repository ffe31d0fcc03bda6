"""Nobody but the gate changes a stamp after creation."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission import stamp as stamps
from dra_gate.admission.rules.rule import NOT_GOING, POD_UPDATE, Context, Rule, is_going
from dra_gate.admission.signs import STAMP_CHANGES
from dra_gate.admission.verdict import Finding


def _check(context: Context) -> Iterator[Finding]:
    if context.request.username in context.facts.writers or is_going(context.request):
        return
    before, after = stamps.stamp_on(context.request.old_object), stamps.stamp_on(context.object)
    for key in stamps.GUARDED:
        if before.get(key) != after.get(key):
            yield RULE.finding(f"metadata.annotations[{key}]", "only the gate changes its stamp after creation")


RULE = Rule(
    id="stamp-edit",
    title="The stamp stays",
    protects="audit, charges and replay: they read the stamp",
    code="FORGED_ANNOTATION",
    fields=("metadata.annotations",),
    remedy="Leave dra-gate.io/ annotations as they are",
    on=POD_UPDATE,
    check=_check,
    signs=(STAMP_CHANGES,),
    # The sign is about all of our domain, the rule about the stamp. Optionals compare by presence and value.
    twin=f"{NOT_GOING} && {list(stamps.GUARDED)}.exists(k, "
    "object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k])",
)
