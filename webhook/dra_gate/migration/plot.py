"""Plots as SVG, by hand: a few lines over one axis, steps of a distribution, intervals below each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP = 880, 260, 56, 22
COLOURS = ("#1b6ca8", "#c33", "#2a8c4a", "#8a5a00", "#666")
Points = Sequence[tuple[float, float]]


def lines(
    title: str, series: Mapping[str, Points], across: str, up: str, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Each series as a line, its name in its colour; both axes begin at 0. `marks` stand across with their names."""
    right = max((x for points in (*series.values(), [(x, 0.0) for x, _ in marks]) for x, _ in points), default=0) or 1.0
    top = max((y for points in series.values() for _, y in points), default=0) * 1.08 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 20) * x / right, HEIGHT - 40 - (HEIGHT - 40 - TOP) * y / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="{WIDTH}" height="{HEIGHT}" fill="white" class="paper"/>',
        f'<text x="{LEFT}" y="13" font-weight="bold">{escape(title)}</text>',
        f'<text x="{WIDTH - 20}" y="{HEIGHT - 8}" text-anchor="end">{escape(across)}</text>',
        f'<text x="{WIDTH - 20}" y="13" text-anchor="end">{escape(up)}</text>',
    ]
    step = _step(right, 8)
    for number in range(int(right / step) + 1):
        x, _ = at(number * step, 0)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 25}" text-anchor="middle">{number * step:g}</text>')
    rise = _step(top, 5)
    for number in range(int(top / rise) + 1):
        _, y = at(0, number * rise)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd" class="grid"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number * rise:g}</text>',
        ]
    before, row = 0.0, 0
    for when, name in sorted(marks):
        x, y = at(when, top / 1.08)
        row = row + 1 if x - before < 12 and row < 8 else 0  # names below each other where they would overlap
        before = x
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{HEIGHT - 40}" stroke="#888" stroke-dasharray="3 3"/>',
            f'<text x="{x + 3:.1f}" y="{y + 9 + 11 * row:.1f}" fill="#555">{escape(name)}</text>',
        ]
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>',
            f'<text x="{LEFT + 180 * number}" y="{HEIGHT - 8}" fill="{colour}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _step(length: float, most: int) -> float:
    """A round number that goes at most so often into the length of an axis."""
    return next(n * 10.0**e for e in range(-6, 12) for n in (1, 2, 5) if length / (n * 10**e) <= most)


def distribution(values: Sequence[float], most: int = 300) -> Points:
    """Percent of the values that are at most so large, thinned out."""
    ordered = sorted(values)
    every = max(1, len(ordered) // most)
    kept = [*range(0, len(ordered), every), len(ordered) - 1]
    return [(0.0, 0.0), *((ordered[n], 100 * (n + 1) / len(ordered)) for n in kept)]


def forest(title: str, rows: Sequence[tuple[str, float, float, float, str]], left: str, right: str) -> str:
    """A row each: its name, a value and the ends of its interval (cut off at 4), its colour. -1 to 1 is grey."""
    most, height = 4.0, 24 * len(rows) + 60
    middle, half = 0.62 * WIDTH, 0.36 * WIDTH

    def at(value: float) -> float:
        return middle + half * max(-most, min(most, value)) / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="white" class="paper"/>',
        f'<text x="8" y="15" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{at(-1):.1f}" width="{at(1) - at(-1):.1f}" y="26" height="{height - 54}" fill="#eee" class="even"/>',
        f'<line x1="{middle}" x2="{middle}" y1="26" y2="{height - 28}" stroke="#888"/>',
        f'<text x="{at(-most):.1f}" y="{height - 10}">← {escape(left)}</text>',
        f'<text x="{at(most):.1f}" y="{height - 10}" text-anchor="end">{escape(right)} →</text>',
    ]
    for number, (name, value, low, high, colour) in enumerate(rows):
        y = 42 + 24 * number
        parts.append(f'<text x="8" y="{y + 4}">{escape(name)}</text>')
        parts.append(
            f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
            f'<circle cx="{at(value):.1f}" cy="{y}" r="5" fill="{colour}"/>'
        )
    return "\n".join([*parts, "</svg>\n"])
