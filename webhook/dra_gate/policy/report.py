"""A report for people, and how it looks as text, as Markdown and as one HTML page. Pure.

Names and expressions in it come from files that somebody wrote: each form escapes them, and what cannot be printed is
written out.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH = 110  # characters of a line of text
_LEAST = 6  # characters of a column


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; the report's title is level 1."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list without order."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head; the first column names what a row is about."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Program text, line by line as it was written."""

    text: str


Part = Heading | Paragraph | Items | Table | Listing


@dataclass(frozen=True, slots=True)
class Report:
    """A title and what stands below it."""

    title: str
    parts: tuple[Part, ...]


def printable(text: str) -> str:
    """`text` on one line; characters that do not print, or turn the direction of writing, are written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in re.sub(r"\s+", " ", text))


def _lines(listing: Listing) -> list[str]:
    return [printable(line) if line.strip() else "" for line in listing.text.strip("\n").split("\n")]


# -- text -------------------------------------------------------------------------------------------------------------


def as_text(report: Report) -> str:
    """Plain text, at most `WIDTH` characters wide."""
    blocks = [f"{printable(report.title)}\n{'=' * min(len(report.title), WIDTH)}"]
    blocks += ["\n".join(_text(part)) for part in report.parts]
    return "\n\n".join(blocks) + "\n"


def _text(part: Part) -> Iterator[str]:
    match part:
        case Heading(level, text):
            yield printable(text)
            yield ("-" if level == 2 else "·") * min(len(text), WIDTH)
        case Paragraph(text):
            yield from _wrapped(text, WIDTH)
        case Items(items):
            for item in items:
                first, *more = _wrapped(item, WIDTH - 2)
                yield f"- {first}"
                yield from (f"  {line}" for line in more)
        case Listing():
            yield from (f"    {line}" for line in _lines(part))
        case Table(head, rows):
            yield from _text_table(head, rows)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_on_hyphens=False) or [""]


def _text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(printable(row[column])) for row in (head, *rows)) for column in range(len(head))]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, cells))):
            line = [cell[number] if number < len(cell) else "" for cell in cells]
            yield "  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()


# -- Markdown ---------------------------------------------------------------------------------------------------------

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&])|(?<![\w.-])@(?=\w)")


def as_markdown(report: Report) -> str:
    """GitHub's Markdown. Nothing in a name is taken for markup, a link or a mention."""
    return "\n\n".join([f"# {_marked(report.title)}", *("\n".join(_markdown(part)) for part in report.parts)]) + "\n"


def _markdown(part: Part) -> Iterator[str]:
    match part:
        case Heading(level, text):
            yield f"{'#' * level} {_marked(text)}"
        case Paragraph(text):
            yield _marked(text)
        case Items(items):
            yield from (f"- {_marked(item)}" for item in items)
        case Listing():
            yield from (f"    {line}" for line in _lines(part))
        case Table(head, rows):
            yield f"| {' | '.join(map(_marked, head))} |"
            yield "|" + "---|" * len(head)
            yield from (f"| {' | '.join(map(_marked, row))} |" for row in rows)


def _marked(text: str) -> str:
    return _MARKS.sub(lambda found: f"\\{found[1]}" if found[1] else "&#64;", printable(text))


# -- HTML -------------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #5b6470; --back: #fff; --panel: #f4f6f8; --line: #d5dae0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --faint: #9aa4af; --back: #14171a; --panel: #1e2327; --line: #363d44; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1rem 1.2rem 3rem; font: 16px/1.55 system-ui, sans-serif;
  color: var(--text); background: var(--back); overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .8rem 0; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; padding-bottom: .3rem; border-bottom: 2px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.4rem 0 .4rem; }
p, ul { margin: .5rem 0; max-width: 48rem; }
ul { padding-left: 1.3rem; }
li { margin: .25rem 0; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem;
  white-space: pre-wrap; font: .85rem/1.45 ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; margin: .7rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem; border-bottom: 1px solid var(--line); }
th { background: var(--panel); }
td:first-child { font-weight: 600; }
@media screen and (max-width: 40rem) {
  table, tbody, tr, td { display: block; }
  thead { display: none; }
  tr { border: 1px solid var(--line); border-radius: 6px; margin-bottom: .7rem; padding: .3rem .2rem; }
  td { border: 0; padding: .15rem .7rem; display: grid; grid-template-columns: 7rem 1fr; gap: .6rem; }
  td::before { content: attr(data-name); color: var(--faint); font-weight: 400; }
}
@media print {
  :root { --text: #000; --faint: #444; --back: #fff; --panel: #f0f0f0; --line: #999; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  h2, h3 { break-after: avoid; }
  tr, li, pre { break-inside: avoid; }
  thead { display: table-header-group; }
}
"""


def as_html(report: Report) -> str:
    """One page that needs nothing else: no script, no font, nothing from elsewhere."""
    title = html.escape(printable(report.title))
    body = "\n".join("\n".join(_html(part)) for part in report.parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _html(part: Part) -> Iterator[str]:
    match part:
        case Heading(level, text):
            yield f"<h{level}>{_escaped(text)}</h{level}>"
        case Paragraph(text):
            yield f"<p>{_escaped(text)}</p>"
        case Items(items):
            yield "<ul>"
            yield from (f"<li>{_escaped(item)}</li>" for item in items)
            yield "</ul>"
        case Listing():
            yield f"<pre>{html.escape(chr(10).join(_lines(part)))}</pre>"
        case Table(head, rows):
            yield f"<table>\n<thead><tr>{''.join(f'<th>{_escaped(cell)}</th>' for cell in head)}</tr></thead>\n<tbody>"
            for row in rows:
                cells = zip(head, row, strict=True)
                named = (f'<td data-name="{_escaped(name)}">{_escaped(cell)}</td>' for name, cell in cells)
                yield f"<tr>{''.join(named)}</tr>"
            yield "</tbody>\n</table>"


def _escaped(text: str) -> str:
    return html.escape(printable(text))
