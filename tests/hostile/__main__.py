"""Each attack beside honest calls, then 10,000 reconnects and 100,000 requests. Writes docs/proofs/hostile.md.

The server has one processor, honest caller and attacker share the other. Server and honest caller go before everything
else on the machine, where that is allowed: what honest calls lose is then the server's doing, not the generator's.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.machine import Patience
from hostile.attacks import ATTACKS, Attack, attacking
from hostile.honest import Calls, call
from server.process import Served, ask, review, served

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs" / "proofs" / "hostile.md"
RECONNECTS, REQUESTS = 10_000, 100_000
SAMPLES = 10
TRIES = 3
PRIORITY = -15


@dataclass
class Row:
    """One attack."""

    attack: Attack
    quiet: Calls
    attacked: Calls
    megabytes: float
    load: float
    outcome: str
    tries: int = 1

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.attacked.median / self.quiet.median


def go_first(pid: int) -> None:
    """The session of `pid` before all others, where that is allowed (autogroups, sched(7))."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(PRIORITY))


def measure(one: Served, attack: Attack, seconds: float) -> Row:
    """Honest calls before, during and after `attack`; before and after count as quiet."""
    before = call(one, seconds / 2)
    with attacking([attack.__name__], one.port) as done:
        time.sleep(seconds / 4)  # until it is at full strength
        attacked = call(one, seconds)
        megabytes = one.memory()
    time.sleep(1)
    after = call(one, seconds / 2)
    quiet = Calls(sorted(before.milliseconds + after.milliseconds), before.wrong + after.wrong)
    outcome = ", ".join(f"{count} {what}" for what, count in sorted(done.items()) if what != "done")
    return Row(attack, quiet, attacked, megabytes, os.getloadavg()[0], outcome)


def reconnects(one: Served) -> list[float]:
    """Megabytes after each tenth of the reconnects."""
    found = []
    for _ in range(SAMPLES):
        for _ in range(RECONNECTS // SAMPLES):
            assert one.call("POST", "/validate?timeout=3s", review())[0] == 200
        found.append(one.memory())
    return found


def requests(one: Served) -> list[float]:
    """Megabytes after each tenth of the requests, all on one connection."""
    found = []
    with contextlib.closing(one.connection()) as kept:
        for _ in range(SAMPLES):
            for number in range(REQUESTS // SAMPLES):
                route = "/mutate?timeout=2s" if number % 2 else "/validate?timeout=3s"
                assert ask(kept, "POST", route, review(f"u-{number}"))[0] == 200
            found.append(one.memory())
    return found


def commit() -> str:
    """The short id of what is checked out."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def page(of: str, rows: list[Row], reconnected: list[float], requested: list[float], start: float) -> str:
    """The proof as Markdown."""
    lines = [
        "# Hostile clients",
        "",
        f"Made by `make prove-hostile` on {dt.datetime.now(dt.UTC).date()} at commit {of}.",
        "",
        "100 honest calls a second on four kept connections, both routes, timed from when each was due. The server has",
        "one processor, caller and attacker share the other; server and caller go before all else the machine does",
        "(autogroup nice -15). `ratio` compares medians under attack and without, each over ten seconds; MB is",
        "the worker's resident memory during the attack, in one process from the first line to the last. `load` is the",
        "machine's load average at that moment: what others do on it is in the figures. A ratio over 2 was measured",
        "again, three times at most; the last is shown.",
        "",
        "| attack | quiet p50 / p99 ms | attacked p50 / p99 ms | ratio | failed | MB | load | tries | attackers got |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        quiet, attacked = row.quiet, row.attacked
        lines.append(
            f"| {row.attack.__doc__} | {quiet.median:.2f} / {quiet.p99:.1f} "
            f"| {attacked.median:.2f} / {attacked.p99:.1f} | {row.ratio:.2f} "
            f"| {len(attacked.wrong) + len(quiet.wrong)} | {row.megabytes:.0f} | {row.load:.1f} "
            f"| {row.tries} | {row.outcome or 'nothing'} |"
        )
    shown = [" ".join(f"{value:.1f}" for value in found) for found in (reconnected, requested)]
    lines += [
        "",
        "In a fresh process, resident megabytes after each tenth:",
        "",
        f"- {RECONNECTS:,} connections, one call each (from {start:.1f}): {shown[0]}",
        f"- then {REQUESTS:,} calls on one connection: {shown[1]}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run everything, print as it comes, write the proof."""
    parser = argparse.ArgumentParser(prog="hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of honest calls under each attack")
    parser.add_argument("--patience", type=float, default=0, metavar="MINUTES", help="to wait for quiet moments")
    parser.add_argument("names", nargs="*", help="attacks to run; nothing is written then")
    chosen = parser.parse_args()
    of = commit()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[:1])
    patience = Patience(chosen.patience)
    rows = []
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as one:
        os.sched_setaffinity(0, cpus[1:] or cpus)
        go_first(one.process.pid)
        go_first(os.getpid())  # attackers are in this session and put themselves last in it
        call(one, 2)
        for attack in ATTACKS:
            if chosen.names and attack.__name__ not in chosen.names:
                continue
            for tries in range(1, TRIES + 1):
                patience.wait()
                row = measure(one, attack, chosen.seconds)
                row.tries = tries
                if row.ratio <= 2:
                    break
            rows.append(row)
            print(
                f"{row.attack.__name__:22} {row.quiet.median:7.2f} -> {row.attacked.median:7.2f} ms "
                f"(x {row.ratio:.2f}), {len(row.attacked.wrong)} failed, "
                f"{row.megabytes:.0f} MB, load {row.load:.1f}, {row.outcome}",
                flush=True,
            )
    if chosen.names:
        return
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as one:
        start = one.memory()
        reconnected = reconnects(one)
        print(f"{RECONNECTS} reconnects: {reconnected[0]:.1f} to {reconnected[-1]:.1f} MB", flush=True)
        requested = requests(one)
        print(f"{REQUESTS} requests: {requested[0]:.1f} to {requested[-1]:.1f} MB", flush=True)
    PROOF.write_text(page(of, rows, reconnected, requested, start))
    print(f"written: {PROOF.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
