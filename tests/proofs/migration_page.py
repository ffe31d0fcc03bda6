"""What a run of `proofs.migration` gave, and its page."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import commit, described
from dra_gate.migration.plot import lines
from proofs.lanes_audited import DRA, FOLLOWED, PLUGIN, Found, Seen

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "migration.md"
MEANT = 2000  # Pods
_WINDOW = 10.0  # seconds of a point in the plots


@dataclass
class Chapter:
    """A stretch of the run; seconds since 1970."""

    title: str
    began: float
    ended: float = 0.0


@dataclass
class Run:
    """What came of it. `wrong` is what the run itself saw; the judge's words are in `found`."""

    seed: int
    seconds: float
    chapters: list[Chapter] = field(default_factory=list)
    rate: float = 0.0  # Pods a second
    devices: dict[str, int] = field(default_factory=dict)  # by pool
    found: Found = field(default_factory=Found)
    held: dict[str, str] = field(default_factory=dict)  # tenant -> what its policy says of held Pods
    most: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # tenant -> quota, most held, most in both
    instants: int = 0
    report: str = ""
    html: str = ""
    said: dict[str, str] = field(default_factory=dict)  # command -> its output
    noticed: float | None = None  # seconds from the first device that could not be prepared to lane device-plugin
    told: dict[str, int] = field(default_factory=dict)  # what the kubelets made up
    checked: list[str] = field(default_factory=list)
    saw: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        unjudged = [] if self.instants > 300 else [f"the judge saw {self.instants} writes"]
        return [*unjudged, *self.saw, *self.checked, *self.found.wrong]


def page(run: Run) -> str:
    """The page."""
    found, began = run.found, run.chapters[0].began
    by_jobs = sum(one.by_controller for one in found.pods)
    pods, short = len(found.pods), "" if len(found.pods) >= MEANT else f" {MEANT:,} Pods are meant."
    chapters = "".join(_chapter(one, began, found.pods) for one in run.chapters)
    wrong = "".join(f"\n- {line}" for line in run.wrong) or " nothing"
    told = ", ".join(f"{times} times {what}" for what, times in sorted(run.told.items()))
    caps = "".join(f"| {name} | {cap} | {most} | {both} |\n" for name, (cap, most, both) in run.most.items())
    noticed = "not within its time" if run.noticed is None else f"{run.noticed:.1f} s"
    return f"""# From device plugins to DRA and back, under load

Made by `make prove-migration` on {dt.datetime.now(dt.UTC).date()} at commit {commit()}, seed {run.seed}, on
{described()}, which control plane, gate and clients shared.{short}
A real control plane; nodes, slices and what a kubelet would write are constructed: {told}.

Six tenants with two namespaces each: {pods} Pods, {by_jobs} of them made by Jobs, of 1, 2 or 4 devices and 1 to 4 s, at
{run.rate:g} a second. {run.devices[PLUGIN]} devices by device plugin, 8 of them of a model below the policies' floor,
and {run.devices[DRA]} under DRA.
Judged from the API server's audit log alone, by what shares no code with the gate.

![Pods created](migration-created.svg)

![Seconds until bound](migration-bound.svg)

Pods by the chapter that they were created in, and the seconds until they were bound:

| chapter | begins at s | lasts s | Pods: plugin | DRA | bound, median: plugin | DRA | 95 %: plugin | DRA |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{chapters}
In *above quotas* `dune`, which holds half of its quota by device plugin, asks for more than all of it under DRA. During
*the switch* the class serves `nvidia.com/gpu` by that name, and two nodes of the old pool are cordoned: what keeps Pods
of the old lane off the nodes under DRA then is the selector that the gate requires of them.

From the first device that could not be prepared until the controller had taken all namespaces back: {noticed}.

## What the judge looked at

| must not be | found |
| --- | ---: |
{_judged(run)}
{_turns(found)}

Pods that waited when their namespace went back ([each by its UID](migration-waited.csv)):

| onRollback | of | were | became | Pods |
| --- | --- | --- | --- | ---: |
{_waited(run)}
The most that tenants with a quota ever held, and the most while it was in both currencies:

| tenant | quota | most | in both |
| --- | ---: | ---: | ---: |
{caps}
What `dra-gate canary report` said when all were under DRA:

```
{run.report.strip()}
```

What was wrong, by judge, checker of the arbiter's log and run:{wrong}
"""


def _chapter(chapter: Chapter, began: float, pods: Iterable[Seen]) -> str:
    mine = [one for one in pods if chapter.began <= one.born < chapter.ended]
    cells = [f"{sum(one.lane == lane for one in mine)}" for lane in (PLUGIN, DRA)]
    for share in (0.5, 0.95):
        for lane in (PLUGIN, DRA):
            waits = sorted(one.bound - one.born for one in mine if one.lane == lane and one.bound is not None)
            cells.append(f"{waits[int(len(waits) * share)]:.1f}" if waits else "")
    row = [chapter.title, f"{chapter.began - began:.0f}", f"{chapter.ended - chapter.began:.0f}", *cells]
    return f"| {' | '.join(row)} |\n"


def _judged(run: Run) -> str:
    found = run.found
    rows = (
        ("creates of Pods that were refused or not answered", found.refused, len(found.pods) + len(found.refused)),
        ("bound Pods that the gate deleted, evicted, or changed the spec of", found.touched, len(found.pods)),
        (
            f"Pods of a lane that was not their namespace's for more than {FOLLOWED:g} s, on a node of the other pool "
            "or below the floor; claims made for a resource's name",
            found.strayed,
            len(found.pods),
        ),
        ("devices given twice, by claim or by device plugin", found.twice, run.instants),
        ("a tenant holds more than its quota, in both currencies together", found.over, run.instants),
        ("Pods that waited when their lane went back, not dealt with as documented", found.unaccounted,
         len(found.waited)),
    )  # fmt: skip
    return "".join(f"| {what} | {len(wrong)} of {of} |\n" for what, wrong, of in rows)


def _turns(found: Found) -> str:
    told = []
    for lane in (DRA, PLUGIN):
        turns = [one for one in found.turns if one.lane == lane]
        late = [one.last for one in turns if one.last > 0]
        told.append(
            f"Namespaces went to lane `{lane}` {len(turns)} times; {len(late)} times a Pod came after that and still "
            f"got the lane before, {max(late, default=0):.2f} s after it at most."
        )
    return "\n".join(told)


def _waited(run: Run) -> str:
    rows = Counter(
        (run.held[one.tenant], "a controller" if one.owner else "nobody", "held" if one.held else "let go", one.end)
        for one in run.found.waited
    )
    return "".join(f"| {' | '.join(row)} | {pods} |\n" for row, pods in sorted(rows.items()))


def waited(run: Run) -> str:
    """A line for each Pod that waited when its namespace went back."""
    text = io.StringIO()
    lines_ = csv.writer(text, lineterminator="\n")
    lines_.writerow(["uid", "pod", "seconds", "onRollback", "owner", "was", "became"])
    for one in run.found.waited:
        was = "held" if one.held else "let go"
        at = f"{one.at - run.chapters[0].began:.1f}"
        lines_.writerow([one.uid, one.pod, at, run.held[one.tenant], one.owner, was, one.end])
    return text.getvalue()


def plots(run: Run) -> dict[str, str]:
    """The plots by the names of their files."""
    began = run.chapters[0].began
    short = {one.title: one.title if "%" in one.title else one.title.split()[-1] for one in run.chapters}
    marks = [(one.began - began, short[one.title]) for one in run.chapters[1:-1]]
    ends = run.chapters[-1].ended - began
    created: dict[str, list[tuple[float, float]]] = {}
    late: dict[str, list[tuple[float, float]]] = {}
    for lane, name in ((PLUGIN, "by device plugin"), (DRA, "under DRA")):
        for number in range(int(ends / _WINDOW) + 1):
            since = began + number * _WINDOW
            mine = [one for one in run.found.pods if one.lane == lane and since <= one.born < since + _WINDOW]
            waits = sorted(one.bound - one.born for one in mine if one.bound is not None)
            created.setdefault(name, []).append((number * _WINDOW, len(mine) / _WINDOW))
            if waits:
                late.setdefault(name, []).append((number * _WINDOW, waits[int(0.95 * len(waits))]))
    return {
        "migration-created.svg": lines("Pods created", created, "seconds", "a second", marks),
        "migration-bound.svg": lines("Until bound, 95th percentile of ten seconds", late, "seconds", "seconds", marks),
    }


def write(run: Run, artifacts: Path | None) -> None:
    """Page, plots and list into docs/proofs, the report as HTML beside what is kept elsewhere."""
    PROOF.write_text(page(run))
    PROOF.with_name("migration-waited.csv").write_text(waited(run))
    for name, drawing in plots(run).items():
        PROOF.with_name(name).write_text(drawing)
    if artifacts is not None:
        artifacts.mkdir(parents=True, exist_ok=True)
        (artifacts / "report.html").write_text(run.html)
