"""A comparison of both sides as people read it: text, JSON, or one HTML file with its plots. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import inf, log
from typing import Any

from dra_gate.migration import intervals
from dra_gate.migration.cohort import BOUNDS, HOUR, Cell, Cohorts, Mark
from dra_gate.migration.compare import ERROR, FIRST_CHOICE, RATES, Comparison, Figure, Measured, compare
from dra_gate.migration.plot import Points, forest, lines
from dra_gate.migration.sides import LANES, Sides
from dra_gate.policy.words import listed

MOST = 20  # tenants and models that are told of by themselves, those with most Pods
_COLOURS = {"better": "#2a8c4a", "worse": "#c33", "same": "#1b6ca8", "too few": "#999"}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff;max-width:60rem;margin:1rem auto;
padding:0 1rem}table{border-collapse:collapse;width:100%;margin:.6rem 0}th,td{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid #d5dae0;vertical-align:top}th{background:#f4f6f8}.number{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}svg{width:100%;height:auto;margin:.5rem 0}.better{color:#17663a}.worse,.bad
{color:#a61b1b}.same{color:#0b57a4}.few{color:#5b6470}.stop,.verdict{font-weight:600}.faint{color:#5b6470}
td{overflow-wrap:anywhere}.scroll,.wide{overflow-x:auto}.wide svg{min-width:36rem}"""


@dataclass(frozen=True, slots=True)
class HourOf:
    """What became of the Pods that a side was given in one hour. Rates, seconds, devices; None: of no Pods."""

    at: int
    side: str
    pods: int
    success: float | None
    first_choice: float | None
    p50: float | None
    p95: float | None
    device_hours: float


@dataclass(frozen=True, slots=True)
class Report:
    """All Pods; each tenant's, and of lanes each first choice; each hour; what happened meanwhile; the Pods bound so
    far by the time it took, in seconds (a bucket each, its upper bound).
    """

    sides: Sides
    whole: Comparison
    tenants: Mapping[str, Comparison]
    models: Mapping[str, Comparison]
    hours: tuple[HourOf, ...]
    marks: tuple[Mark, ...]
    bound: Mapping[str, Mapping[float, int]]


def report(cohorts: Cohorts, since: int, until: int, failures: float, sides: Sides = LANES) -> Report:
    """Of the Pods created in the hours that begin in [since, until); `failures` as in `compare`."""
    tenants, models = dict[str, int](), dict[str, int]()
    hours: dict[tuple[int, int], Cell] = {}
    whole = (Cell(), Cell())
    for hour, key, cell in cohorts.between(since, until):
        side = sides.of(key)
        if side is None:
            continue
        hours.setdefault((hour, side), Cell()).add(cell)
        whole[side].add(cell)
        # A version has one first choice: by it there is nothing more to tell.
        if not sides.versions and cell.submitted + cell.denied:
            models[key.first] = models.get(key.first, 0) + cell.submitted
        if not side:
            tenants[key.tenant] = tenants.get(key.tenant, 0) + cell.submitted
    shown, by_model = _most(tenants), _most(models)

    def of(error: float, **which: str) -> Comparison:
        return compare(cohorts, since, until, sides=sides, failures=failures, error=error, **which)

    return Report(
        sides,
        of(ERROR),
        {name: of(ERROR / len(shown), tenant=name) for name in shown},
        {name: of(ERROR / len(by_model), first=name) for name in by_model},
        tuple(_hour(at, sides.names[side], cell) for (at, side), cell in sorted(hours.items())),
        tuple(one for one in cohorts.marks if since <= one.at < until),
        {
            name: {BOUNDS[bucket] / 1000: pods for bucket, pods in sorted(cell.waits.items()) if bucket < len(BOUNDS)}
            for name, cell in zip(sides.names, whole, strict=True)
        },
    )


def window(cohorts: Cohorts, hours: int) -> tuple[int, int] | None:
    """The newest `hours` hours of which anything was counted, as [since, until); None where nothing was."""
    if not cohorts.hours:
        return None
    until = max(cohorts.hours) + HOUR
    return max(until - hours * HOUR, min(cohorts.hours)), until


def as_json(found: Report) -> dict[str, Any]:
    """As JSON values; times are milliseconds since 1970."""
    return {
        "sides": list(found.sides.names),
        "whole": asdict(found.whole),
        "tenants": {name: asdict(one) for name, one in found.tenants.items()},
        "models": {name: asdict(one) for name, one in found.models.items()},
        "hours": [asdict(one) for one in found.hours],
        "marks": [{"at": one.at, "text": one.text} for one in found.marks],
        "bound": {side: [[limit, pods] for limit, pods in one.items()] for side, one in found.bound.items()},
    }


def as_text(found: Report) -> str:
    """For a terminal."""
    whole = found.whole
    said = [f"{_beside(found)}: {whole.verdict}  ({when(whole.since)} to {when(whole.until)} UTC)"]
    said += [f"STOP {one.reason}: {one.text}" for one in whole.stops]
    said += ["", *_columns([("", *found.sides.titles, "change", "verdict"), *map(_row, whole.measures)])]
    said += ["", *_notes(found)]
    by_tenant = "tenant" if found.sides.versions else "tenant (its Pods under DRA)"
    for title, parts in ((by_tenant, found.tenants), ("first choice", found.models)):
        if parts:
            said += ["", f"By {title}:", *_columns([(f"  {name}", *_short(one)) for name, one in parts.items()])]
    if found.marks:
        said += ["", "Meanwhile:", *(f"  {when(one.at)} {one.text}" for one in found.marks)]
    return "\n".join(said)


def as_html(found: Report) -> str:
    """One file that needs no other."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(_beside(found))}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>\n{as_body(found)}\n</html>\n"
    )


def as_body(found: Report) -> str:
    """The same as part of a page that has styles for it."""
    whole = found.whole
    start = when(whole.since)
    marks = [((one.at - whole.since) / HOUR, str(number)) for number, one in enumerate(found.marks, 1)]

    def over(title: str, up: str, what: str, times: int = 1) -> str:
        series = {title: _series(found, side, what, times) for title, side in both}
        return lines(title, series, f"hours from {start} UTC", up, marks)

    both = tuple(zip(found.sides.titles, found.sides.names, strict=True))
    distribution: dict[str, Points] = {
        title: _share(found.bound[side], whole.pods[side]) for title, side in both if found.bound[side]
    }
    plots = [
        forest(
            "What differs, and how sure that is (bar: interval; grey: a difference too small to matter)",
            [_placed(one) for one in whole.measures if one.change is not None],
            f"{found.sides.titles[0]} fares worse",
            f"{found.sides.titles[0]} fares better",
        ),
        over("Pods created", "Pods an hour", "pods"),
        over("Pods that started, of those that started or failed", "%", "success", 100),
        over("First choice", "% of bound Pods", "first_choice", 100),
        over("Time from creation to bound, median", "seconds", "p50"),
        over("Time from creation to bound, 95th percentile", "seconds", "p95"),
        over("Device-hours held so far by the Pods created in the hour", "device-hours", "device_hours"),
        lines("Time to bound, how many have it by then", distribution, "seconds", "% of Pods"),
    ]
    columns = ("Measure", *found.sides.titles, "Change", "Verdict")
    rows = [(escape(one.title), *_figures(one), _change(one), _word(one.verdict)) for one in whole.measures]
    parts = [
        f"<h1>{escape(_beside(found))}: {_word(whole.verdict)}</h1>",
        f"<p class=faint>Pods created from {start} to {when(whole.until)} UTC</p>",
        *(f"<p class='stop bad'>Stop: {escape(one.reason)}: {escape(one.text)}</p>" for one in whole.stops),
        _wide(plots[0]),
        _table(columns, (1, 2, 3), rows),
        *(f"<p>{escape(note)}</p>" for note in _notes(found)),
        *(_parts(title, group) for title, group in (("By tenant", found.tenants), ("By first choice", found.models))),
        "<h2>Over time</h2>",
    ]
    if found.marks:
        parts += ["<ol>", *(f"<li>{when(one.at)} {escape(one.text)}</li>" for one in found.marks), "</ol>"]
    return "\n".join([*parts, *map(_wide, plots[1:])])


def _wide(plot: str) -> str:
    """A narrow page scrolls it sideways, for it to be read."""
    return f"<div class=wide>{plot}</div>"


def when(at: int) -> str:
    """Milliseconds since 1970 as day and minute, UTC."""
    return f"{dt.datetime.fromtimestamp(at / 1000, dt.UTC):%Y-%m-%d %H:%M}"


def _beside(found: Report) -> str:
    return " beside ".join(found.sides.titles)


def _notes(found: Report) -> list[str]:
    """What was counted of each side, and what is not compared."""
    whole = found.whole
    notes = [_counted(whole, side) for side in found.sides.names]
    if all(one.name != FIRST_CHOICE for one in whole.measures):
        prefer = "; ".join(f"{side} prefers {listed(whole.firsts[side])}" for side in found.sides.names)
        notes.append(f"{FIRST_CHOICE} is not compared: {prefer}")
    return notes


def _most(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))[:MOST]


def _hour(at: int, side: str, cell: Cell) -> HourOf:
    rates = {one.name: one.of(cell) for one in RATES}
    success, first = (x / n if n else None for x, n in (rates["success"], rates[FIRST_CHOICE]))
    p50, p95 = (_seconds(cell, share) for share in (0.5, 0.95))
    return HourOf(at, side, cell.submitted, success, first, p50, p95, cell.held / 3600)


def _seconds(cell: Cell, share: float) -> float | None:
    bucket = intervals.quantile(cell.waits, cell.submitted, share)
    return BOUNDS[bucket] / 1000 if cell.submitted and bucket < len(BOUNDS) else None


def _series(found: Report, side: str, what: str, times: int) -> Points:
    points = (((one.at - found.whole.since) / HOUR, getattr(one, what)) for one in found.hours if one.side == side)
    return [(x, y * times) for x, y in points if y is not None]


def _share(bound: Mapping[float, int], pods: int) -> Points:
    """Percent of the Pods that are bound by then; without the last two, or the axis would be theirs alone."""
    points, seen = [(0.0, 0.0)], 0
    for limit, count in bound.items():
        if seen > 0.98 * pods:
            break
        points.append((limit, 100 * seen / pods))
        seen += count
        points.append((limit, 100 * seen / pods))
    return points


def _placed(one: Measured) -> tuple[str, float, float, float, str]:
    """A measure in multiples of its margin, better to the right."""
    good = next((rate.good for rate in RATES if rate.name == one.name), False)

    def scaled(value: float | None) -> float:
        if one.unit == "seconds":
            return inf if value is None else -inf if value <= 0 else log(value) / log(one.margin)
        return 0.0 if value is None else value / one.margin

    ends = [scaled(one.change), scaled(one.low), scaled(one.high)]
    value, low, high = ends if good else (-ends[0], -ends[2], -ends[1])
    return f"{one.name}: {one.verdict}", value, low, high, _COLOURS[one.verdict]


def _figures(one: Measured) -> tuple[str, ...]:
    return tuple(_figure(figure, one.unit) for figure in one.figures.values())


def _figure(one: Figure, unit: str) -> str:
    if not one.n:
        return "–"
    if unit == "seconds":
        value = "over 29 h, or not bound" if one.value is None else f"{one.value:.3g} s"
    else:
        value = f"{100 * (one.value or 0):.2f} %"
    return f"{value} (n {one.n:,})"


def _change(one: Measured) -> str:
    if one.change is None:
        return "–"
    if one.unit == "seconds":
        return f"×{_times(one.change)} ({_times(one.low or 0)} … {'?' if one.high is None else _times(one.high)})"
    low, high = (100 * (end or 0) for end in (one.low, one.high))
    return f"{100 * one.change:+.2f} points ({low:+.2f} … {high:+.2f})"


def _times(value: float) -> str:
    """Above a thousand one side has waits that are longer than anything that is counted: more digits say nothing."""
    return f"{value:.2f}" if value < 1000 else "over 1,000"


def _row(one: Measured) -> tuple[str, ...]:
    return one.name, *_figures(one), _change(one), one.verdict


def _word(verdict: str) -> str:
    return f"<span class='verdict {verdict.rpartition(' ')[2]}'>{verdict}</span>"


def _short(one: Comparison) -> tuple[str, ...]:
    """The verdict, what it comes from, the Pods of both sides."""
    named = [each.name for each in one.measures if each.verdict == one.verdict]
    all_of_them = len(named) == len(one.measures)
    stop = "".join(f"; STOP {reason}" for reason in dict.fromkeys(each.reason for each in one.stops))
    why = "all measures" if all_of_them else ", ".join(named)
    return f"{one.verdict}{stop}", " and ".join(f"{pods:,}" for pods in one.pods.values()) + " Pods", why


def _counted(one: Comparison, side: str) -> str:
    held = one.held[side]
    use = "" if held.busy is None else f"; of {held.measured:,.1f} measured {100 * held.busy:.0f} % busy"
    return (
        f"{side}: {one.pods[side]:,} Pods, {one.waiting[side]:,} of them not bound, {one.left_out[side]:,} without "
        f"counterparts and left out; {held.hours:,.1f} device-hours held{use}"
    )


def _parts(title: str, parts: Mapping[str, Comparison]) -> str:
    if not parts:
        return ""
    rows = []
    for name, one in parts.items():
        verdict, pods, why = _short(one)
        said = _word(one.verdict) + f"<span class=bad>{escape(verdict[len(one.verdict) :])}</span>"
        rows.append((escape(name), said, pods, escape(why)))
    return f"<h2>{title}</h2>{_table(('Name', 'Verdict', 'Pods', 'From'), (2,), rows)}"


def _table(columns: Sequence[str], numbers: Sequence[int], rows: Sequence[Sequence[str]]) -> str:
    """Rows of HTML under `columns`. A narrow page shows each cell with the name of its column."""
    kinds = [" class=number" if number in numbers else "" for number in range(len(columns))]
    names = [escape(name) for name in columns]
    head = "".join(f"<th{kind}>{name}</th>" for name, kind in zip(names, kinds, strict=True))
    told = [f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows:
        named = zip(names, kinds, row, strict=True)
        cells = "".join(f"<td data-name='{name}'{kind}><span>{cell}</span></td>" for name, kind, cell in named)
        told.append(f"<tr>{cells}</tr>")
    return "\n".join([*told, "</tbody></table></div>"])


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
