"""Parent of every process that the kit starts; run as a program, it outlives whoever started it just long enough.

It takes commands as JSON lines on stdin and answers each with one line on stdout. When stdin closes or its parent is
gone, however that came about, it kills every process group it started and ends. On Linux the kernel kills its children
too should it be killed itself. It stands in its own session, so that Ctrl-C in a terminal reaches only the caller.

Standard library only, no import of this package: it starts in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Children:
    """The processes by name. One thread, so that the kernel's parent-death signal is bound to this process's life."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def start(self, name: str, argv: list[str], log: str, env: dict[str, str], cwd: str) -> dict[str, Any]:
        """Starts a process group whose output is appended to `log`."""
        if name in self._running and self._running[name].poll() is None:
            return {"error": f"{name} is running already"}
        with open(log, "ab", buffering=0) as out:  # noqa: PTH123 - keeps the start-up short
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                    preexec_fn=self._die_with_me,  # noqa: PLW1509 - there is one thread
                )
            except OSError as problem:
                return {"error": f"{argv[0]}: {problem}"}
        self._running[name] = child
        return {"pid": child.pid}

    def _die_with_me(self) -> None:
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def signal(self, name: str, number: int) -> dict[str, Any]:
        """Sends a signal to the whole process group."""
        child = self._running.get(name)
        if child is None or child.poll() is not None:
            return {"error": f"{name} is not running"}
        self._send(child, number)
        return {}

    def stop(self, name: str, kill: bool, grace: float) -> dict[str, Any]:
        """Ends a process group: SIGTERM and SIGKILL after `grace` seconds, or SIGKILL at once."""
        child = self._running.pop(name, None)
        if child is None:
            return {"code": None}
        if not kill and child.poll() is None:
            self._send(child, signal.SIGCONT)  # a frozen one would never see SIGTERM
            self._send(child, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace)
        self._send(child, signal.SIGKILL)  # also whatever it left in its group
        return {"code": child.wait()}

    def poll(self) -> dict[str, Any]:
        """Exit code of each process that was started and not stopped; null while it runs."""
        return {"codes": {name: child.poll() for name, child in self._running.items()}}

    def kill_all(self) -> None:
        """The last thing: nothing of ours is left afterwards."""
        children = list(self._running.values())
        for child in reversed(children):
            self._send(child, signal.SIGKILL)
        for child in children:
            child.wait()

    @staticmethod
    def _send(child: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS says so of zombies
            os.killpg(child.pid, number)


def _serve(parent: int) -> None:
    children = Children()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "start": children.start,
        "stop": children.stop,
        "signal": children.signal,
        "poll": children.poll,
    }
    pending = b""
    try:
        while os.getppid() == parent:  # a forked relative of the parent may hold our stdin open for ever
            if not select.select([0], [], [], 0.5)[0]:
                continue
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                command = json.loads(line)
                answer = commands[command.pop("do")](**command)
                os.write(1, json.dumps(answer).encode() + b"\n")
    finally:
        children.kill_all()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
