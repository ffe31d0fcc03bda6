"""`python -m proofs.compare`: how often a comparison of cohorts says what is so; a section of docs/migration.md."""

from __future__ import annotations

import argparse
import datetime as dt
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

from bench.machine import commit
from dra_gate.migration.cohort import HOUR, Cell
from dra_gate.migration.compare import ENOUGH, ERROR, LOOK, NOTICED, RATES, TAIL, TIMES, compare, stops
from migration.simulated import ALIKE, HOURS, START, WORSE, Fares, simulate

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
TITLE = "## How sure the comparison is"
WORDS = """\
{title}

Compared are Pods that were created in the same hour, ask for as many devices and
prefer the same model. Whatever comes of a Pod is counted in the hour it was created in; one that is not bound yet has
waited longer than any that is. What has no counterpart is left out, and the report says how much.

{margins}

A measure is **same** when the whole interval of the difference lies within its margin; **worse** or **better** when
the interval lies on one side of no difference; else it is **too few**: more Pods are needed to know. Under {enough}
Pods in either lane ({tail} for the 95th percentile) it is too few whatever they show. All in all it is worse if
anything is, else too few if that is said of anything, else better if anything is.

Intervals are so wide that all {measures} measures together are wrong {error} of the time. Where hours differ by more
than chance has it, intervals grow by as much: then more hours help, not more Pods. Two things no interval knows: who
looks again and again gives chance more throws (decide at a size that you chose before), and Pods of one tenant fare
alike (enrol several before you believe a difference).

Simulated on {today} at commit {commit} (`make prove-compare`): {hours} hours, sizes 1, 2 and 8, two models,
{alike_runs} comparisons a figure where lanes are alike, {worse_runs} where they differ and for the largest.

Alike in truth, and called worse or better in any measure:

{false}

Alike in truth, and called same in all measures:

{same}

Worse in truth, and called worse:

{worse}

A hard stop needs no comparison: a tenant above its cap, a device given to two Pods, or so many failures as chance gives
{look} of the time were the limit (5 % unless told otherwise) their true rate; of all Pods, and of those of the last two
hours by themselves. Of {stop_runs} rollouts of 2,000 Pods, looked at after every tenth Pod, all of them together:

{stopped}
"""
SIZES = (30, 100, 300, 1_000, 3_000)  # Pods a lane, on average
LARGEST = 10_000  # looked at for "same" alone


def verdicts(case: tuple[Fares, Fares, float], pods: int, runs: int) -> Counter[str]:
    """What comparisons say of `pods` Pods a lane on average; under "difference" those in which any measure says one."""
    dra, plugin, share = case
    first = round(2 * pods * share)
    found = Counter[str]()
    for seed in range(runs):
        cohorts = simulate(dra, plugin, (first, 2 * pods - first), seed)
        said = compare(cohorts, START, START + HOURS * HOUR)
        found[said.verdict] += 1
        found["difference"] += any(one.verdict in ("worse", "better") for one in said.measures)
    return found


def looks(rate: float, limit: float, most: int, seed: int, every: int = 10) -> int:
    """After how many Pods, of which `rate` fail, a look at every tenth Pod says stop; 0: never within `most`."""
    draw = random.Random(seed)
    cell = Cell()
    for pods in range(1, most + 1):
        if draw.random() < rate:
            cell.failed += 1
        else:
            cell.started += 1
        if pods % every == 0 and stops(cell, Cell(), limit):
            return pods
    return 0


def section(alike_runs: int, worse_runs: int, stop_runs: int) -> tuple[str, bool]:
    """Its text, and whether all holds that is promised."""
    head = "| Pods a lane, on average | " + " | ".join(f"{pods:,}" for pods in SIZES) + " |"
    rule = "| --- |" + " ---: |" * len(SIZES)
    false, same, alarms = [], [], 0.0
    for name, case in ALIKE.items():
        found = [verdicts(case, pods, alike_runs) for pods in SIZES]
        wrong = [one["difference"] / alike_runs for one in found]
        alarms = max(alarms, *wrong)
        false.append(f"| {name} | " + " | ".join(f"{100 * one:.1f} %" for one in wrong) + " |")
        largest = verdicts(case, LARGEST, worse_runs)["same"] / worse_runs
        shares = (*(one["same"] / alike_runs for one in found), largest)
        same.append(f"| {name} | " + " | ".join(f"{100 * one:.0f} %" for one in shares) + " |")
        print(false[-1], same[-1], sep="\n", flush=True)
    worse = []
    for name, case in WORSE.items():
        found = [verdicts(case, pods, worse_runs) for pods in SIZES]
        worse.append(f"| {name} | " + " | ".join(f"{100 * one['worse'] / worse_runs:.0f} %" for one in found) + " |")
        print(worse[-1], flush=True)
    stopped = []
    for rate in (0.01, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0):
        after = [looks(rate, 0.05, 2_000, seed) for seed in range(stop_runs)]
        yes = sorted(one for one in after if one)
        middle = f"{statistics.median(yes):.0f}" if len(yes) > stop_runs / 2 else "–"
        stopped.append(f"| {100 * rate:.0f} % | {100 * len(yes) / stop_runs:.1f} % | {middle} |")
        print(stopped[-1], flush=True)
    margins = [f"- {one.name}: {one.title}; {100 * one.margin:.0f} points more or less are none." for one in RATES]
    none = f"times as long, or as short, is none, nor is anything below {NOTICED / 1000:g} s"
    margins += [f"- {one.name}: {one.title}; {one.margin:g} {none}." for one in TIMES]
    text = WORDS.format(
        title=TITLE,
        margins="\n".join(margins),
        enough=ENOUGH,
        tail=TAIL,
        measures=len(RATES) + len(TIMES),
        error=f"{100 * ERROR:.0f} %",
        look=f"{LOOK:g}",
        today=dt.datetime.now(dt.UTC).date(),
        commit=commit(),
        hours=HOURS,
        alike_runs=f"{alike_runs:,}",
        worse_runs=f"{worse_runs:,}",
        stop_runs=f"{stop_runs:,}",
        false="\n".join((head, rule, *false)),
        same="\n".join((f"{head} {LARGEST:,} |", f"{rule} ---: |", *same)),
        worse="\n".join((head, rule, *worse)),
        stopped="\n".join(("| Pods that fail | stopped | after Pods, median |", "| ---: | ---: | ---: |", *stopped)),
    )
    slack = 3 * (ERROR * (1 - ERROR) / alike_runs) ** 0.5  # of so many runs it may come out so much above
    return text, alarms <= ERROR + slack


def main() -> int:
    """Simulate, write the section."""
    parser = argparse.ArgumentParser(prog="python -m proofs.compare", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="comparisons for each figure where lanes are alike")
    options = parser.parse_args()
    text, holds = section(options.runs, max(options.runs // 4, 50), options.runs)
    page = PAGE.read_text() if PAGE.exists() else "# From device plugins to DRA and back\n"
    before, found, after = page.partition(TITLE)
    _, next_, rest = after.partition("\n## ") if found else ("", "", "")
    PAGE.write_text(f"{before.rstrip()}\n\n{text}" + (f"\n## {rest}" if next_ else ""))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
