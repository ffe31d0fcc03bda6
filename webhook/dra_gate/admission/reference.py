"""The reference page of reasons, made from the rules and the guards.

`python -m dra_gate.admission.reference > docs/reference/reasons.md`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dra_gate.admission.guards import GUARDS, REMEDY
from dra_gate.admission.rules import ALL
from dra_gate.policy.model import EXCEPTABLE

_HEAD = """# Reasons

<!-- Made by `python -m dra_gate.admission.reference` from webhook/dra_gate/admission/rules/. Do not edit. -->

Every refusal names a code, the field, what is wrong there, what to do, and the rule that found it:

```
NODE_PINNING spec.nodeName: the Pod names its node itself. Leave nodeName out … [rule node-pinning]
```

All findings are told at once. In mode `warn` they come as warnings, in mode `shadow` only in the log.
"""


def page() -> str:
    """The page as Markdown."""
    codes: dict[str, list[str]] = {}
    for rule in ALL:
        for code in rule.codes:
            codes.setdefault(code, []).append(rule.id)
    for guard in GUARDS:
        codes.setdefault(guard.code, []).append(guard.id)
    lines = [_HEAD, "| code | rules |", "|---|---|"]
    lines += [f"| `{code}` | {', '.join(f'[{one}](#{one})' for one in codes[code])} |" for code in sorted(codes)]
    return "\n".join([*lines, "", *_rules(), *_guards()])


def _rules() -> Iterator[str]:
    for rule in ALL:
        yield f"## {rule.id}\n"
        yield f"**{rule.title}.** Protects {rule.protects}.\n"
        yield f"- code: {', '.join(f'`{code}`' for code in rule.codes)}"
        yield f"- fields: {', '.join(f'`{field}`' for field in rule.fields)}"
        yield f"- asked about: {', '.join(_asked(*kind) for kind in rule.on)}"
        yield f"- remedy: {rule.remedy}"
        yield f"- lanes: {rule.lane or 'all'}"
        yield f"- exception possible: {'yes' if rule.id in EXCEPTABLE else 'no'}\n"


def _asked(group: str, resource: str, operation: str) -> str:
    return f"{operation} {resource}{f'.{group}' if group else ''}"


def _guards() -> Iterator[str]:
    yield "# What only guardians change\n"
    yield "Held by the API server itself, in every namespace, whether the gate is up or not (`dra-gate guards`).\n"
    for guard in GUARDS:
        yield f"## {guard.id}\n"
        yield f"**{guard.title}.**\n"
        yield f"- code: `{guard.code}`"
        kinds = ", ".join(f"{resource}{f'.{guard.group}' if guard.group else ''}" for resource in guard.resources)
        yield f"- asked about: {', '.join(guard.operations)} of {kinds}"
        yield f"- remedy: {REMEDY}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
