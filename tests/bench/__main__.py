"""`python -m bench`: the gate next to its own floor and to a plain gate, in one run on one machine.

With two CPUs or more the servers are kept on the first and the load generator on the second. The columns server,
generator and others say how much of one CPU each took: where others is high, somebody else was measured too.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import io
import json
import os
import platform
import shlex
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jsonpatch

from bench import workload
from bench.load import Result, closed_loop, open_loop, prepare
from bench.machine import QUIET, Patience, commit, cpu, described, machine_cpu
from bench.workload import Question
from dra_gate.admission.request import parse
from dra_gate.admission.review import answer
from dra_gate.cluster.facts import World
from dra_gate.policy.load import load

HOST = "127.0.0.1"
CLOSED = (1, 8, 32)
OPEN_RATE = 200.0
PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "bench.md"
_PROGRAM = [sys.executable, "-c", "from dra_gate.cli.main import main; main()"]


@dataclass(slots=True)
class Server:
    """A server under test: its command, and where it answers."""

    name: str
    command: list[str]
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def worker(self) -> int:
        """The process id of gunicorn's one worker."""
        assert self.process is not None
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def cpu(self) -> float:
        """Seconds of CPU, user and system, that the worker has used."""
        return cpu([self.worker()])

    def memory(self) -> float:
        """Resident megabytes of the worker."""
        status = Path(f"/proc/{self.worker()}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@dataclass(slots=True)
class Row:
    """One measurement."""

    server: str
    load: str
    result: Result
    cpu: float  # of the server's worker, seconds
    machine: float  # of everything on the machine, seconds

    @property
    def others(self) -> float:
        """CPUs that neither the server nor the generator used."""
        return max(0.0, self.machine - self.cpu - self.result.generator_cpu) / self.result.seconds

    def cells(self) -> list[str]:
        """The row in words, in the order of the table's head."""
        result = self.result
        done = max(1, len(result.latencies))
        return [
            self.load,
            self.server,
            f"{result.rate:,.0f}",
            f"{result.percentile(0.5):.2f}",
            f"{result.percentile(0.99):.2f}",
            f"{max(result.latencies, default=float('nan')) * 1000:.1f}",
            f"{self.cpu / done * 1e6:,.0f}",
            f"{self.cpu / result.seconds * 100:.0f}%",
            f"{result.generator_cpu / result.seconds * 100:.0f}%",
            f"{self.others * 100:.0f}%",
            str(result.errors + result.due - len(result.latencies)),
        ]


HEAD = [
    "load",
    "server",
    "answers/s",
    "p50 ms",
    "p99 ms",
    "max ms",
    "CPU us/req",
    "server",
    "generator",
    "others",
    "lost",
]
_WIDTHS = [12, 7, 10, 8, 9, 8, 11, 7, 10, 7, 5]


def main() -> int:
    """Measure, print, compare. Exit status 1 if answers were wrong or lost, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is made; medians are printed (default 2)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="on a shared machine: wait so long in all for quiet moments, and repeat what neighbours disturbed",
    )
    parser.add_argument("--only", choices=["gate", "floor", "plain"], action="append", help="leave the others out")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--write", action="store_true", help=f"write what is printed to docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    if not options.write:
        return _run(options)
    said = io.StringIO()
    printed = sys.stdout.write

    class Both(io.TextIOBase):
        def write(self, text: str) -> int:
            said.write(text)
            return printed(text)

    with contextlib.redirect_stdout(Both()):
        status = _run(options)
    words = shlex.join(["python", "-m", "bench", *(word for word in sys.argv[1:] if word != "--write")])
    made = f"Made by `{words}` on {dt.datetime.now(dt.UTC).date()} at commit {commit()}.\n{described()}."
    PROOF.write_text(f"# The server beside two baselines\n\n{made}\n\n```\n{said.getvalue().strip()}\n```\n")
    return status


def _run(options: argparse.Namespace) -> int:
    names = options.only or ["floor", "gate", "plain"]
    server_cpu, own_cpu = _cpus()
    with tempfile.TemporaryDirectory(prefix="dra-gate-bench-") as name:
        folder = Path(name)
        known, questions = _prepare(folder)
        sizes = [len(question.body) for question in questions]
        print(
            f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}; ",
            end="",
        )
        print("servers and generator share CPUs" if own_cpu is None else "servers on one CPU, generator on another")
        print(
            f"{workload.TENANTS} tenants, {workload.TENANTS * workload.VERSIONS} policies, {len(questions)} reviews ",
            end="",
        )
        print(
            f"of {min(sizes) / 1024:.1f} to {max(sizes) / 1024:.1f} KB, half mutate, half validate, one in ten refused"
        )
        _micro(known, questions)
        context = ssl.create_default_context(cafile=str(folder / "certs" / "ca.crt"))
        requests = prepare(questions, HOST)
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(_running(_server(name, folder), context, folder, server_cpu)) for name in names
            ]
            if own_cpu is not None:
                os.sched_setaffinity(0, {own_cpu})
            wrong = _check(servers, context, questions)
            rows = _measure(servers, context, requests, options.seconds, options.rounds, Patience(options.patience))
            for server in servers:
                print(f"{server.name}: {server.memory():.0f} MB resident in the worker at the end")
        _compare(rows)
        _targets(rows)
        if options.json:
            options.json.write_text(json.dumps([dict(zip(HEAD, row.cells(), strict=True)) for row in rows], indent=1))
        lost = sum(row.result.errors for row in rows)
        return 1 if wrong or lost else 0


def _undisturbed(patience: Patience, server: Server, name: str, load_it: Callable[[Server], Result]) -> Row:
    """One measurement, made again while neighbours disturb it and there is patience; then it counts as it is."""
    while True:
        patience.wait()
        before, machine = server.cpu(), machine_cpu()
        result = load_it(server)
        row = Row(server.name, name, result, server.cpu() - before, machine_cpu() - machine)
        if row.others <= QUIET or patience.over:
            return row


def _cpus() -> tuple[int | None, int | None]:
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) >= 2 else (None, None)


def _prepare(folder: Path) -> tuple[World, list[Question]]:
    workload.write_policies(folder / "policies")
    workload.write_cluster(folder / "cluster.yaml")
    began = time.perf_counter()
    policy_set = load(folder / "policies")
    print(f"policies loaded in {time.perf_counter() - began:.2f} s, ", end="")
    began = time.perf_counter()
    known = workload.world(folder)
    print(f"loaded again, compiled and cluster read in {time.perf_counter() - began:.2f} s")
    workload.write_plain(folder / "plain.json", policy_set, known)
    certs = [*_PROGRAM, "certs", "--out", str(folder / "certs"), "--ip", HOST]
    subprocess.run(certs, check=True, capture_output=True)
    return known, workload.questions(known)


def _server(name: str, folder: Path) -> Server:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    listen = f"{HOST}:{port}"
    certs = folder / "certs"
    if name == "gate":
        command = [
            *_PROGRAM,
            "serve",
            "--policies",
            str(folder / "policies"),
            "--cluster",
            str(folder / "cluster.yaml"),
            "--status-listen",
            "off",
            "--drain-seconds",
            "0",
        ]
        return Server(name, [*command, "--cert-dir", str(certs), "--listen", listen], port)
    here = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])}
    if name == "floor":
        return Server(name, [sys.executable, "-m", "bench.floor", listen, str(certs)], port, here)
    # Behind TLS a gthread thread belongs to its connection, idle or not: with fewer threads than connections (8, say)
    # the others would not even get their handshake.
    command = [sys.executable, "-m", "gunicorn", "-k", "gthread", "--threads", "64", "--workers", "1"]
    command += ["--keep-alive", "120", "--no-control-socket", "--log-level", "warning", "--bind", listen]
    command += ["--certfile", str(certs / "tls.crt"), "--keyfile", str(certs / "tls.key"), "bench.plain_gate:app"]
    return Server(name, command, port, {**here, "PLAIN_GATE": str(folder / "plain.json")})


@contextlib.contextmanager
def _running(server: Server, context: ssl.SSLContext, folder: Path, cpu: int | None) -> Iterator[Server]:
    """The server, ready; its log goes to a file that nobody reads, as it would to a node's disk."""
    log = folder / f"{server.name}.log"
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})  # children inherit it; the generator moves away afterwards
    with log.open("wb") as stream:
        server.process = subprocess.Popen(
            server.command,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **server.environment},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        began = time.monotonic()
        while not _ready(server.port, context):
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{server.name} did not start:\n{log.read_text()}")
            time.sleep(0.05)
        print(f"{server.name}: ready after {time.monotonic() - began:.2f} s, {server.memory():.0f} MB")
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def _ready(port: int, context: ssl.SSLContext) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), 2) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as stream,
    ):
        stream.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return stream.recv(64).startswith(b"HTTP/1.1 200")
    return False


def _micro(known: World, questions: list[Question]) -> None:
    """`answer()` by itself: no socket, no TLS, no HTTP, no log."""
    facts = known.facts()

    def each(work: Callable[[Question], object], route: str) -> float:
        chosen = [question for question in questions if question.route == route]
        times = []
        for _ in range(15):
            began = time.perf_counter()
            for question in chosen:
                work(question)
            times.append((time.perf_counter() - began) / len(chosen))
        return min(times) * 1e6

    for route in ("mutate", "validate"):
        whole = each(lambda question: answer(question.route, question.body, facts), route)
        parsing = each(lambda question: parse(question.body), route)
        print(f"in process, {route}: {whole:.0f} us a decision, of which {parsing:.0f} us parse the review")


def _check(servers: list[Server], context: ssl.SSLContext, questions: list[Question]) -> int:
    """Every review once to every server that decides: right verdicts, and from both gates the same Pod."""
    import base64  # noqa: PLC0415
    import http.client  # noqa: PLC0415

    deciding = [server for server in servers if server.name != "floor"]
    results: dict[str, list[object]] = {server.name: [] for server in deciding}
    wrong = 0
    for server in deciding:
        connection = http.client.HTTPSConnection(HOST, server.port, context=context, timeout=30)
        for question in questions:
            connection.request("POST", f"/{question.route}", question.body, {"Content-Type": "application/json"})
            response = json.loads(connection.getresponse().read())["response"]
            wrong += response["allowed"] != question.allowed
            pod = json.loads(question.body)["request"]["object"]
            patch = json.loads(base64.b64decode(response["patch"])) if response.get("patch") else []
            results[server.name].append(jsonpatch.apply_patch(pod, patch))
        connection.close()
    if len(deciding) == 2:
        one, other = results.values()
        wrong += sum(left != right for left, right in zip(one, other, strict=True))
    print(
        f"checked: {len(questions)} reviews to {' and '.join(results) or 'nobody'}, {wrong} wrong or different answers"
    )
    return wrong


def _measure(
    servers: list[Server],
    context: ssl.SSLContext,
    requests: list[bytes],
    seconds: float,
    rounds: int,
    patience: Patience,
) -> list[Row]:
    def closed(count: int) -> Callable[[Server], Result]:
        return lambda server: closed_loop((HOST, server.port), context, requests, count, seconds)

    def opened(server: Server) -> Result:
        return open_loop((HOST, server.port), context, requests, OPEN_RATE, 2 * seconds)

    loads = [(f"closed, {count}", closed(count)) for count in CLOSED]
    loads.append((f"open, {OPEN_RATE:.0f}/s", opened))
    for server in servers:
        closed_loop((HOST, server.port), context, requests, 8, min(seconds, 1.0))  # warm up
    print("\n" + _line(HEAD))
    rows = []
    for name, load_it in loads:
        made: dict[str, list[Row]] = {server.name: [] for server in servers}
        for _ in range(rounds):  # in turn, so that a neighbour's burst does not fall on one server alone
            for server in servers:
                made[server.name].append(_undisturbed(patience, server, name, load_it))
        for several in made.values():
            middle = statistics.median_low(row.result.rate for row in several)
            rows.append(next(row for row in several if row.result.rate == middle))
            print(_line(rows[-1].cells()), flush=True)
    print()
    return rows


def _compare(rows: list[Row]) -> None:
    by = {(row.load, row.server): row for row in rows}
    for load_name in dict.fromkeys(row.load for row in rows):
        gate = by.get((load_name, "gate"))
        for other in ("floor", "plain"):
            against = by.get((load_name, other))
            if gate is None or against is None:
                continue
            cost = gate.cpu / len(gate.result.latencies) / (against.cpu / max(1, len(against.result.latencies)))
            median = gate.result.percentile(0.5) / against.result.percentile(0.5)
            answers = gate.result.rate / against.result.rate
            print(
                f"{load_name}: {answers:.2f} times the answers of the {other}, "
                f"{cost:.2f} times its CPU a request, {median:.2f} times its median latency"
            )


def _targets(rows: list[Row]) -> None:
    """What the gate is meant to reach, and what this run says."""
    by = {(row.load, row.server): row for row in rows}
    gate, floor = by.get(("closed, 8", "gate")), by.get(("closed, 8", "floor"))
    opened = by.get((f"open, {OPEN_RATE:.0f}/s", "gate"))
    if gate is None or opened is None:
        return
    median, tail = opened.result.percentile(0.5), opened.result.percentile(0.99)
    per_core = len(gate.result.latencies) / gate.cpu
    told = [
        (f"median at {OPEN_RATE:.0f}/s at most 1 ms", f"{median:.2f} ms", median <= 1),
        (f"p99 at {OPEN_RATE:.0f}/s at most 5 ms", f"{tail:.2f} ms", tail <= 5),
        ("at least 1,000 answers a second of CPU", f"{per_core:,.0f}", per_core >= 1000),
    ]
    if floor is not None:
        share = gate.result.rate / floor.result.rate
        told.append(("at least half of the floor's answers/s, closed, 8", f"{share:.2f}", share >= 0.5))
    for target, value, met in told:
        print(f"{'met   ' if met else 'missed'} {target}: {value}")


def _line(cells: list[str]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:2], _WIDTHS[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], _WIDTHS[2:], strict=True)]
    return " ".join(words + numbers)


if __name__ == "__main__":
    sys.exit(main())
