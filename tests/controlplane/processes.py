"""The caller's side of the supervisor: start, stop and signal named processes that never outlive the caller."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class ProcessError(RuntimeError):
    """A process can't be started, stopped or signalled."""


class Processes:
    """Named processes, all children of one supervisor; closing it, or the end of this process, kills them all.

    Safe to use from several threads; a stop that waits holds the others up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def supervisor(self) -> int:
        """Process id of the supervisor."""
        return self._supervisor.pid

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Starts a process and returns its id; output is appended to `log`. Raises ProcessError if that fails."""
        answer = self._ask(
            do="start",
            name=name,
            argv=[str(word) for word in argv],
            log=str(log),
            env=dict(os.environ if env is None else env),
            cwd=str(cwd or Path.cwd()),
        )
        pid = answer["pid"]
        assert isinstance(pid, int)
        return pid

    def stop(self, name: str, *, kill: bool = False, grace: float = 10.0) -> int | None:
        """Ends a process and its group and returns its exit code, None if there was none.

        SIGTERM, then SIGKILL after `grace` seconds; with `kill` SIGKILL at once.
        """
        code = self._ask(do="stop", name=name, kill=kill, grace=grace)["code"]
        assert code is None or isinstance(code, int)
        return code

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to a process group, such as SIGSTOP to make a server hang. ProcessError if it has ended."""
        self._ask(do="signal", name=name, number=int(number))

    def codes(self) -> dict[str, int | None]:
        """Exit code by name of what was started and not stopped; None while it runs."""
        codes = self._ask(do="poll")["codes"]
        assert isinstance(codes, dict)
        return codes

    def close(self) -> None:
        """Kills everything. Calling it twice is harmless."""
        with self._lock:
            for pipe in (self._supervisor.stdin, self._supervisor.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            try:
                self._supervisor.wait(10)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()

    def _ask(self, **command: Any) -> dict[str, Any]:
        with self._lock:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            try:
                self._supervisor.stdin.write(json.dumps(command).encode() + b"\n")
                self._supervisor.stdin.flush()
                line = self._supervisor.stdout.readline()
            except (OSError, ValueError) as problem:
                raise ProcessError("the supervisor is gone, and with it everything it started") from problem
        if not line:
            raise ProcessError("the supervisor is gone, and with it everything it started")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessError(answer["error"])
        return answer


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on.

    Taken from below the range that outgoing connections use (32768 and up on Linux), so that none of them grabs it
    between this call and the bind.
    """
    for _ in range(200):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ProcessError("no free port between 20000 and 32000 on 127.0.0.1")
