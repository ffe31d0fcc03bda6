"""`dra-gate policy explain`: a policy folder in plain English."""

from __future__ import annotations

from pathlib import Path

import click

from dra_gate.cli.options import load_policies
from dra_gate.cli.policy.files import folder_argument
from dra_gate.policy.explain import explain
from dra_gate.policy.report import as_html, as_markdown, as_text

_FORMS = {"text": as_text, "markdown": as_markdown, "html": as_html}


@click.command(name="explain")
@folder_argument
@click.option("-o", "--output", type=click.Choice(list(_FORMS)), default="text", show_default=True)
def explain_command(folder: Path, output: str) -> None:
    """Say in plain English who may get what, in which order, and what never happens.

    For people who approve policies and know no Kubernetes. HTML is one page that needs nothing else.

    \b
    Examples:
      dra-gate policy explain policies/
      dra-gate policy explain policies/ -o html > policies.html
    """
    click.echo(_FORMS[output](explain(load_policies(str(folder)))), nl=False)
