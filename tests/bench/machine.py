"""What a measurement on a shared machine has to know: who used the CPU, who holds the memory, and when it is quiet."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
QUIET = 0.15  # of a CPU: what neighbours may take of a measurement that counts as undisturbed


def machine_cpu() -> float:
    """Seconds of CPU that all processes of the machine have used: proc(5), first line of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def family(pid: int) -> list[int]:
    """The process and everything it started that still runs."""
    found = [pid]
    for one in found:
        for thread in Path(f"/proc/{one}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def child_named(parent: int, name: str, word: str = "") -> int:
    """The child of `parent` whose program is called `name`, or which has `word` among its arguments. LookupError."""
    for pid in family(parent)[1:]:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if (name and Path(os.fsdecode(words[0])).name == name) or (word and word.encode() in words):
            return pid
    raise LookupError(f"no process {name or word}")


def cpu(pids: Iterable[int]) -> float:
    """Seconds of CPU, user and system, that the processes have used."""
    used = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / TICK


def pss(pids: Iterable[int]) -> float:
    """Megabytes that the processes hold, pages they share counted once: smaps_rollup, Pss."""
    return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in pids) / 1024


def peak(pid: int) -> float:
    """The most megabytes that the process has had resident at once: VmHWM."""
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmHWM:") / 1024


def _kilobytes(file: Path, field: str) -> int:
    return int(file.read_text().partition(field)[2].split()[0])


class Patience:
    """Waits for quiet moments, `minutes` in all; when they are over it waits no more and takes what it gets."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    @property
    def over(self) -> bool:
        """No waiting and no repeating any more."""
        return time.monotonic() >= self._end

    def wait(self) -> None:
        """Returns when the machine has been idle for half a second, what is under test included."""
        while not self.over:
            before = machine_cpu()
            time.sleep(0.5)
            if machine_cpu() - before < 0.5 * QUIET:
                return


def described() -> str:
    """Processor, CPUs, memory, system, Python."""
    info = Path("/proc/cpuinfo").read_text()
    model = info.partition("model name")[2].partition(":")[2].partition("\n")[0].strip() or platform.machine()
    memory = _kilobytes(Path("/proc/meminfo"), "MemTotal:") / 1024 / 1024
    return (
        f"{os.cpu_count()} CPUs ({model}), {memory:.0f} GB, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def commit() -> str:
    """The short id of the commit that is checked out; a + behind it says that webhook/ was changed since."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=root).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "webhook") else "")
