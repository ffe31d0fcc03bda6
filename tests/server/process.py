"""Starts the real `dra-gate serve` (gunicorn master and worker, TLS) for tests, and speaks to it as a client would."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane import processes

HOST = "127.0.0.1"
PROGRAM = [sys.executable, "-c", "from dra_gate.cli.main import main; main()"]

POLICIES = """\
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- {name: h100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA H100*"]}
- {name: a100, deviceClassName: gpu.nvidia.com, products: ["NVIDIA A100*"]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: training, version: 1}
spec:
  serves: [nvidia.com/gpu]
  candidates: [h100, a100]
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: lilac}
spec:
  namespaces: [lilac-train]
  policy: training@1
  quota: {devices: 16}
"""
CLUSTER = """\
apiVersion: v1
kind: Namespace
metadata: {name: lilac-train, labels: {dra-gate.io/lane: dra}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec:
  selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}]
"""


def review(uid: str = "u-1", devices: str = "1") -> bytes:
    """An AdmissionReview for a Pod that asks for `devices` GPUs."""
    resources = {"limits": {"nvidia.com/gpu": devices}, "requests": {"nvidia.com/gpu": devices}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "lilac-train"},
        "spec": {"containers": [{"name": "main", "image": "train:1", "resources": resources}]},
    }
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "lilac-train",
        "name": "train",
        "userInfo": {"username": "ada@lilac.example", "groups": ["lilac-dev", "system:authenticated"]},
        "object": pod,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on and no outgoing connection takes before the server does; each time another."""
    while (port := processes.free_port()) in _given:
        pass
    _given.add(port)
    return port


def issue(certs: Path) -> None:
    """A CA if there is none, and a new serving pair, by the command itself."""
    command = [*PROGRAM, "certs", "--out", str(certs), "--ip", HOST]
    subprocess.run(command, check=True, capture_output=True, timeout=20)


class Served:
    """A running `dra-gate serve`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, status: int, certs: Path, log: Path) -> None:
        self.process = process
        self.port = port
        self.status = status
        self.certs = certs
        self.log = log

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certs / "ca.crt"))

    def connection(self) -> http.client.HTTPSConnection:
        """A client connection that is kept alive."""
        return http.client.HTTPSConnection(HOST, self.port, context=self.tls(), timeout=10)

    def raw(self) -> ssl.SSLSocket:
        """A TLS connection to write bytes to."""
        return self.tls().wrap_socket(socket.create_connection((HOST, self.port), 10), server_hostname=HOST)

    def call(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        with contextlib.closing(self.connection()) as connection:
            return ask(connection, method, path, body, kind)[:2]

    def page(self, path: str, method: str = "GET") -> tuple[int, str]:
        """One request to the second port."""
        with contextlib.closing(http.client.HTTPConnection(HOST, self.status, timeout=10)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics."""
        status, page = self.page("/metrics")
        assert status == 200
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def worker(self) -> int:
        """The process id of gunicorn's worker."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 1, f"one worker expected, {children} found"
        return int(children[0])

    def memory(self) -> float:
        """Resident megabytes of the worker."""
        status = Path(f"/proc/{self.worker()}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def terminate(self, timeout: float = 15) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def lines(self) -> list[dict[str, Any]]:
        """The log so far; every line is JSON. One that is being written is not there yet."""
        written = self.log.read_text()
        return [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]


def ask(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    kind: str = "application/json",
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """One request on `connection`: status, body, headers."""
    connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def read_answer(stream: ssl.SSLSocket) -> tuple[int, bytes, http.client.HTTPMessage]:
    """The next answer on a raw connection."""
    answer = http.client.HTTPResponse(stream)
    answer.begin()
    return answer.status, answer.read(), answer.headers


def lay_out(folder: Path) -> None:
    """Writes the small policy set and cluster above and issues certificates."""
    (folder / "policies").mkdir()
    (folder / "policies" / "policies.yaml").write_text(POLICIES)
    (folder / "cluster.yaml").write_text(CLUSTER)
    issue(folder / "certs")


def serve_command(folder: Path, listen: str, *flags: str, cluster: tuple[str, str] | None = None) -> list[str]:
    """`dra-gate serve` over what `lay_out` wrote; `cluster` is another option than `--cluster` with that file."""
    option, value = cluster or ("--cluster", str(folder / "cluster.yaml"))
    command = [*PROGRAM, "serve", "--policies", str(folder / "policies"), option, value]
    return [*command, "--cert-dir", str(folder / "certs"), "--listen", listen, "--drain-seconds", "0", *flags]


@contextlib.contextmanager
def served(
    folder: Path, *flags: str, read_log: bool = True, cluster: tuple[str, str] | None = None
) -> Iterator[Served]:
    """A server over `folder`, ready, killed at the end. Without `read_log` its stderr is a pipe that nobody reads."""
    lay_out(folder)
    port, status = free_port(), free_port()
    log = folder / "log"
    with log.open("wb") as stream:
        stderr = stream if read_log else subprocess.PIPE
        command = serve_command(
            folder, f"{HOST}:{port}", "--status-listen", f"{HOST}:{status}", *flags, cluster=cluster
        )
        process = subprocess.Popen(command, stderr=stderr, start_new_session=True)
    one = Served(process, port, status, folder / "certs", log)
    try:
        wait_ready(one)
        yield one
    finally:
        with contextlib.suppress(ProcessLookupError):  # the whole group: the worker may have outlived its master
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)
        if process.stderr is not None:
            process.stderr.close()


def wait_ready(one: Served, timeout: float = 20) -> None:
    """Until /readyz of the second port is 200; fails with the log if the process ends or `timeout` passes."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if one.page("/readyz")[0] == 200:
                return
        assert one.process.poll() is None, one.log.read_text()
        assert time.monotonic() < deadline, one.log.read_text()
        time.sleep(0.05)
