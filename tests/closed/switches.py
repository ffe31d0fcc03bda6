"""What is no rule, switched off one at a time: who notices? `python -m closed.switches` prints the table.

Guards, the backstop's twins, the signs that the webhooks' conditions are made of, exceptions, exempt users, redaction.
Noticing is done by tests that need no cluster; of guards the API server says the same (tests/deploy/test_guards.py).
The guard of the policies themselves has no half offline: tests/deploy/test_static_guards.py tries it on the API server.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from closed import changed

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "closed.md"
RULES = Path(__file__).parents[2] / "webhook" / "dra_gate" / "admission" / "rules"
_ADMISSION = "dra_gate.admission"


@dataclass(frozen=True)
class Switch:
    """Something to switch off: `old` in a module becomes `new`, or `new` stands at its end where there is no `old`."""

    what: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    def off(self) -> str:
        """The module's text with it switched off. Raises ValueError when it does not stand there once."""
        text = changed.source(self.module)
        if not self.old:
            return f"{text}\n{self.new}\n"
        if text.count(self.old) != 1:
            message = f"{self.what}: not once in {self.module}: {self.old}"
            raise ValueError(message)
        return text.replace(self.old, self.new)


def switches() -> Iterator[Switch]:
    """All of them."""
    guards = f"{_ADMISSION}.guards"
    # Not by what is committed of the manifests alone: that test notices every change.
    offline = (
        "deploy/test_guards.py",
        "--deselect",
        "tests/deploy/test_guards.py::test_the_committed_guards_are_what_the_command_prints",
    )
    listed = changed.source(guards).partition("GUARDS: tuple")[2].partition("\n)\n")[0]
    for name in re.findall(r'id="(guard-[a-z-]+)"', listed):
        without = f"GUARDS = tuple(replace(one, {{}}) if one.id == {name!r} else one for one in GUARDS)"
        for half, off in (("as policy", "condition='false'"), ("offline", "touched=lambda *_: iter(())")):
            yield Switch(
                f"{name}, {half}", guards, "", f"from dataclasses import replace\n{without.format(off)}", offline
            )
    for file in sorted(RULES.glob("*.py")):
        if re.search(r"^    twin=", file.read_text(), re.MULTILINE):
            rule = file.stem
            new = "from dataclasses import replace\nRULE = replace(RULE, twin='false')"
            tests = ("admission/test_backstop.py", "-k", "simple_ways_around")
            yield Switch(f"twin of {rule.replace('_', '-')}", f"{_ADMISSION}.rules.{rule}", "", new, tests)
    signs = f"{_ADMISSION}.signs"
    tests = ("admission/test_configurations.py", "-k", "denies_in_its_table or new_pod or claims_are")
    for name in re.findall(r"^([A-Z_]+) = Sign\(", changed.source(signs), re.MULTILINE):
        yield Switch(f"sign {name}", signs, "", f"{name} = Sign('off', 'false', lambda _: False)", tests)
    tests = ("admission/test_exceptions.py",)
    for what, old, new in (
        ("end of an exception", " or day > self.expires", ""),
        ("namespaces of an exception", " or namespace not in self.namespaces", ""),
        ("rules of an exception", "rule not in self.rules or ", ""),
        ("users of an exception", "if (self.users or self.owner is not None) and", "if self.owner is not None and"),
        ("owner of an exception", "return self.owner is None or any(", "return True or any("),
        ("who creates the Pods of an owner", "if (self.users or self.owner is not None) and", "if self.users and"),
    ):
        yield Switch(what, "dra_gate.policy.model", old, new, tests)
    yield Switch(
        "exempt users",
        f"{_ADMISSION}.scope",
        "return request.username in facts.policy_set.settings.exempt_users",
        "return True",
        ("admission/test_validate.py",),
    )
    redact = f"{_ADMISSION}.redact"
    for what in ("_variable", "_volume", "_annotations", "_templates"):
        new = f"def {what}(value):\n    return value"
        body = changed.source(redact)
        first = re.search(rf"^def {what}\(.*?(?=\n\n\n)", body, re.MULTILINE | re.DOTALL)
        assert first is not None, what
        yield Switch(f"redaction: {what.strip('_')}", redact, first[0], new, ("admission/test_redact.py",))
    every = "return head | {key: inner(value[key]) for key, inner in fields.items() if key in value}"
    yield Switch("redaction: fields", redact, every, "return dict(value)", ("admission/test_redact.py",))


def main() -> int:
    """Print the table; 1 when something could go unnoticed."""
    parser = argparse.ArgumentParser(prog="python -m closed.switches", description=__doc__)
    parser.add_argument("--append", action="store_true", help=f"add it to docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    lines = ["| switched off | first test that fails |", "|---|---|"]
    print("\n".join(lines))
    unnoticed = 0
    for module, tests in dict.fromkeys((switch.module, switch.tests) for switch in switches()):
        if said := changed.noticed(module, changed.source(module), tests):
            sys.exit(f"{said} fails without any change")
    for switch in switches():
        said = changed.noticed(switch.module, switch.off(), switch.tests)
        unnoticed += not said
        lines.append(f"| {switch.what} | {f'`{said}`' if said else '**none**'} |")
        print(lines[-1], flush=True)
    if options.append:
        head = "## Guards, backstop, signs, exceptions, exempt users and redaction, each switched off"
        PROOF.write_text("\n".join([PROOF.read_text(), head, "", *lines, ""]))
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
