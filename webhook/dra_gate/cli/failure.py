"""How a verb says that its input, a policy or the call is wrong: one line on stderr, exit code 2."""

from __future__ import annotations

import click


class Failure(click.ClickException):
    """Ends the command with `message` and exit code 2."""

    exit_code = 2
