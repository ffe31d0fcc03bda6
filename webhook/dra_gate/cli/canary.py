"""`dra-gate canary`: namespaces on their way from device plugins to DRA."""

from __future__ import annotations

import click

from dra_gate.cli.canary_report import report_command
from dra_gate.cli.canary_waves import (
    enroll_command,
    on_stop_command,
    pause_command,
    rollback_command,
    status_command,
    step_command,
)
from dra_gate.cli.options import WholeSentences


@click.group(cls=WholeSentences)
def command() -> None:
    """Move namespaces from device plugins to DRA in waves, and see how Pods fare there.

    \b
    Examples:
      dra-gate canary step --wave 10% --wave 100% --why "first wave"
      dra-gate canary status
      dra-gate canary report --last 6
      dra-gate canary rollback --why "prepare failures"
    """


for _command in (
    status_command,
    enroll_command,
    step_command,
    pause_command,
    on_stop_command,
    rollback_command,
    report_command,
):
    command.add_command(_command)
