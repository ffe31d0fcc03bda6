"""Nothing that the kit starts outlives whoever started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import control_plane
from controlplane.api import wait_for
from controlplane.control_plane import COMPONENTS, SCHEDULER, ControlPlane, ControlPlaneError
from controlplane.processes import ProcessError, Processes, free_port

TESTS = Path(__file__).parents[1]
# A process with a child of its own, as a server with workers is.
FAMILY = ["sh", "-c", "sleep 1000 & echo $! && sleep 1000"]
OWNER = """
import sys, time
from pathlib import Path
from controlplane.processes import Processes
processes = Processes()
log = Path(sys.argv[1])
child = processes.start("family", ["sh", "-c", "sleep 1000 & echo $! && sleep 1000"], log)
print(processes.supervisor, child, flush=True)
time.sleep(1000)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # ESRCH: it went between open and read
        return False


def with_word(word: str) -> list[int]:
    """Processes that have the word in their command line, this one aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line:
                found.append(int(entry.name))
    return found


def grandchild(log: Path) -> int:
    wait_for(lambda: log.exists() and log.read_text().strip(), 5, "the child to say its child's id")
    return int(log.read_text())


def test_closing_ends_whole_families(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start("family", FAMILY, tmp_path / "log")
        pids = [processes.supervisor, child, grandchild(tmp_path / "log")]
        assert all(map(alive, pids))
    assert not any(map(alive, pids[:2]))
    wait_for(lambda: not alive(pids[2]), 2, "the grandchild to end")


@pytest.mark.parametrize("victim", ["owner", "supervisor"])
def test_a_kill_nine_leaves_nothing(victim: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(log)], cwd=TESTS, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    grand = 0
    try:
        assert owner.stdout is not None
        supervisor, child = map(int, owner.stdout.readline().split())
        grand = grandchild(log)
        assert all(map(alive, (supervisor, child, grand)))
        os.kill(owner.pid if victim == "owner" else supervisor, signal.SIGKILL)
        # The kernel tells direct children of a killed supervisor, not theirs: that takes the owner's own death.
        gone = [supervisor, child] + ([grand] if victim == "owner" else [])
        wait_for(lambda: not any(map(alive, gone)), 5, "all of them to end")
    finally:
        owner.kill()
        owner.wait()
        if alive(grand):
            os.kill(grand, signal.SIGKILL)


def test_stop_asks_first_and_insists(tmp_path: Path) -> None:
    with Processes() as processes:
        processes.start("polite", ["sleep", "1000"], tmp_path / "polite")
        assert processes.stop("polite") == -signal.SIGTERM
        stubborn = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]
        processes.start("stubborn", stubborn, tmp_path / "stubborn")
        wait_for((tmp_path / "stubborn").read_text, 5, "the trap to be set")
        assert processes.stop("stubborn", grace=0.3) == -signal.SIGKILL
        assert processes.stop("never started") is None


def test_mistakes_are_told(tmp_path: Path) -> None:
    with Processes() as processes:
        with pytest.raises(ProcessError, match="no-such-program"):
            processes.start("x", ["no-such-program"], tmp_path / "x")
        processes.start("brief", ["sh", "-c", "exit 7"], tmp_path / "brief")
        wait_for(lambda: processes.codes() == {"brief": 7}, 5, "the exit code")
        with pytest.raises(ProcessError, match="not running"):
            processes.signal("brief", signal.SIGSTOP)
        processes.start("long", ["sleep", "1000"], tmp_path / "long")
        with pytest.raises(ProcessError, match="running already"):
            processes.start("long", ["sleep", "1000"], tmp_path / "long")
    with pytest.raises(ProcessError, match="supervisor is gone"):
        processes.codes()


def test_free_ports_are_free_and_out_of_the_way() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 15
    assert all(20000 <= port < 32000 for port in ports)


@pytest.mark.controlplane
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_a_control_plane_is_left(how: signal.Signals) -> None:
    command = [sys.executable, "-m", "controlplane", "up", "--no-gate"]
    up = subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line.startswith("export KUBECONFIG="), up.stderr and up.stderr.read()
        run_dir = str(Path(line.split("=")[1].split()[0]).parents[1])
        assert len(with_word(run_dir)) == 4
        up.send_signal(how)
        assert up.wait(20) == (0 if how != signal.SIGKILL else -signal.SIGKILL)
        wait_for(lambda: not with_word(run_dir), 5, f"the processes of {run_dir} to end")
        assert Path(run_dir).exists() == (how == signal.SIGKILL)  # who could have removed it then?
        shutil.rmtree(run_dir, ignore_errors=True)
    finally:
        up.kill()
        up.communicate()


@pytest.mark.controlplane
@pytest.mark.parametrize(
    ("plane", "why"),
    [
        (
            ControlPlane(api_server_flags=["--no-such-flag"]),
            r"kube-apiserver ended with code(.|\n)*unknown flag: --no-such-flag",
        ),
        (ControlPlane(scheduler_config={"noSuch": 1}), r"kube-scheduler ended with code(.|\n)*unknown field .+noSuch"),
    ],
)
def test_a_failed_start_says_why_and_leaves_nothing(plane: ControlPlane, why: str) -> None:
    with pytest.raises(ControlPlaneError, match=why):
        plane.start_all()
    assert not with_word(str(plane.run_dir))
    assert plane.log("kube-apiserver").exists()
    shutil.rmtree(plane.run_dir)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        yield somebody.getsockname()[1]


@pytest.mark.controlplane
def test_a_port_that_is_taken_in_between_is_no_failure(
    taken: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As if somebody took the scheduler's after it was chosen.
    chosen = iter([taken if name == SCHEDULER else free_port() for name in COMPONENTS])
    monkeypatch.setattr(control_plane, "free_port", lambda: next(chosen, None) or free_port())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ControlPlane() as plane:
        assert plane.processes.codes() == dict.fromkeys(COMPONENTS)
        assert list(tmp_path.iterdir()) == [plane.run_dir]  # nothing is left of the first start


@pytest.mark.controlplane
def test_ports_that_are_always_taken_are_a_failure(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "free_port", lambda: taken)
    plane = ControlPlane()
    with pytest.raises(ControlPlaneError, match=r"ended with code(.|\n)*address already in use"):
        plane.start_all()
    assert not with_word(str(plane.run_dir))
    shutil.rmtree(plane.run_dir)
