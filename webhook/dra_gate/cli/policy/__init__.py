"""`dra-gate policy`: policy files, and the policy sets that are published in a cluster."""

from __future__ import annotations

import click

from dra_gate.cli.options import WholeSentences
from dra_gate.cli.policy import cases, diff, explain, files, promote, published


@click.group(name="policy", cls=WholeSentences)
def command() -> None:
    """Check, explain, test and compare policy files; publish them to a cluster, activate, go back.

    \b
    Examples:
      dra-gate policy lint policies/
      dra-gate policy render policies/ --tenant research --count 2
      dra-gate policy explain policies/
      dra-gate policy diff main/policies/ policies/
      dra-gate policy publish policies/ --activate --note "H200 for research"
      dra-gate policy rollback
    """


for verb in (
    files.lint_command,
    files.render_command,
    explain.explain_command,
    cases.test_command,
    diff.diff_command,
    promote.promote_command,
    files.release_command,
    files.schema_command,
    published.publish_command,
    published.list_command,
    published.activate_command,
    published.rollback_command,
    published.withdraw_command,
    published.history_command,
):
    command.add_command(verb)
