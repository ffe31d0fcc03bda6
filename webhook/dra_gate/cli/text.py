"""What several verbs print, and verdicts for people: one look says what was asked, what the gate says, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import yaml

_COLOURS = {"mutate": "green", "admit": "green", "deny": "red", "ignore": "bright_black", "invalid": "red"}


def verdict_text(entry: Mapping[str, Any]) -> str:
    """One entry of `dra-gate review` as lines of text; click takes the colours out where no terminal reads."""
    where = f"{entry['source']}#{entry['index']}"
    word = click.style(f"{entry['verdict']:7}", fg=_COLOURS[entry["verdict"]], bold=True)
    if entry["verdict"] == "invalid":
        return f"{word} {where}: {entry['message']}"
    name = f"{entry['kind']} {entry['namespace']}/{entry['name']}"
    if entry.get("template", "spec.template") != "spec.template":  # of several, which one
        name += f" {entry['template']}"
    lines = [f"{word} {name}  ({where}{', policy ' + entry['policy'] if entry['policy'] else ''})"]
    lines += [
        f"        {reason['code']} {reason['field']}\n          {reason['message']} [rule {reason['rule']}]"
        for reason in entry["reasons"]
    ]
    if entry["verdict"] in ("mutate", "admit") and entry["charge"]["devices"]:
        models = ", ".join(f"{model} {count}" for model, count in entry["charge"]["models"].items())
        lines.append(f"        charge {entry['charge']['devices']} (worst case by model: {models})")
    lines += [f"        {patch_line(operation)}" for operation in entry["patch"]]
    lines += [f"        warning: {warning}" for warning in entry["warnings"]]
    lines += [f"        {entry['note']}"] if entry["note"] else []
    return "\n".join(lines)


def patch_line(operation: Mapping[str, Any]) -> str:
    """One patch operation as a diff line."""
    path = operation["path"].replace("~1", "/").replace("~0", "~")
    if operation["op"] == "remove":
        return click.style(f"- {path}", fg="red")
    return click.style(f"+ {path}: {operation['value']}", fg="green")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as they need; numbers to the right."""
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    right = [bool(rows) and isinstance(rows[0][column], int) for column in range(len(head))]
    for row in cells:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        yield "  " + "  ".join(padded).rstrip()


def printed(body: object, output: str) -> None:
    """Print it as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(body, indent=2, ensure_ascii=False))
    else:
        click.echo(yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=200), nl=False)


def plain(said: str) -> str:
    """What others wrote, without what would move the reader's cursor."""
    return "".join(character if character.isprintable() else " " for character in said)
