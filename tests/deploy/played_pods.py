"""Runs the gate's Pods as processes: plays kubelet and kube-proxy for the namespace dra-gate.

A Deployment of the gate becomes as many processes as it has replicas, started with its own arguments, as the service
account's user, with Secret dra-gate-tls brought into a folder. Only addresses and paths are others. Its Pods are marked
running, so that rollouts finish, once the processes are ready.

kube-apiserver reaches the replicas by Service as always. There is no kube-proxy to make the Service's address work, so
the Service is turned into an ExternalName for localhost, and the port in the webhook configurations is set to the
forwarder's: the name that the API server checks in the certificate stays the Service's.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane import kubelet
from controlplane.api import JSON_PATCH, Object
from controlplane.background import Background
from controlplane.control_plane import GATE_CONTROLLER, GATE_WEBHOOK, ControlPlane
from controlplane.forwarder import Forwarder
from controlplane.processes import free_port

NAMESPACE = "dra-gate"
WEBHOOK, CONTROLLER = "dra-gate-webhook", "dra-gate-controller"
_ACCOUNTS = {WEBHOOK: GATE_WEBHOOK, CONTROLLER: GATE_CONTROLLER}
_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


class PlayedPods(Background):
    """A context manager; leaving it stops the processes. While `paused` is set nothing is started."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(self._look, 0.3)
        self._plane = plane
        self._api = plane.api()
        self._ports: dict[str, int] = {}  # process -> its serving port, 0 for a controller
        self._volume = Path(tempfile.mkdtemp(prefix="played-tls-", dir=plane.run_dir))
        self.forwarder = Forwarder()
        self.paused = threading.Event()
        self._lock = threading.Lock()  # who starts and ends processes

    def __enter__(self) -> Self:
        self.forwarder.__enter__()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            for name in list(self._ports):
                self._end(name, kill=True)
            self.forwarder.__exit__(None, None, None)

    def kill(self, deployment: str) -> None:
        """The processes of a Deployment die; while not paused they are started again, as kubelet does."""
        with self._lock:
            for name in [name for name in self._ports if name.rpartition("-")[0] == deployment]:
                self._end(name, kill=True)

    def start_replicas(self) -> None:
        """Brings the Secret and starts the webhook's processes, also while paused."""
        with self._lock:
            self._bring_secret()
            deployment = self._api.get("deployments", WEBHOOK, NAMESPACE)
            for number in range(deployment["spec"]["replicas"]):
                self._begin(f"{WEBHOOK}-{number}", deployment)

    def logs(self) -> str:
        """The end of every process's log."""
        texts = {name: self._plane.log(name).read_text(errors="replace") for name in list(self._ports)}
        return "\n".join(f"-- {name}\n{text[-2000:]}" for name, text in texts.items())

    def _look(self) -> None:
        with self._lock:
            if not self.paused.is_set():
                self._run_deployments()
        self._route()
        for pod in self._api.list("pods"):
            self._play(pod)

    def _run_deployments(self) -> None:
        deployments = {one["metadata"]["name"]: one for one in self._api.list("deployments", NAMESPACE)}
        self._bring_secret()
        wanted: dict[str, Object] = {}
        for name, deployment in deployments.items():
            if name in _ACCOUNTS and (name != WEBHOOK or (self._volume / "tls.crt").exists()):
                wanted |= {f"{name}-{number}": deployment for number in range(deployment["spec"]["replicas"])}
        ended = {name for name, code in self._plane.processes.codes().items() if code is not None}
        for process in [name for name in self._ports if name not in wanted or name in ended]:
            self._end(process, kill=True)
        for process, deployment in wanted.items():
            if process not in self._ports:
                self._begin(process, deployment)

    def _begin(self, process: str, deployment: Object) -> None:
        account = process.rpartition("-")[0]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        port = free_port() if account == WEBHOOK else 0
        own = {
            "--cert-dir": str(self._volume),
            "--listen": f"127.0.0.1:{port}",
            "--status-listen": f"127.0.0.1:{free_port()}",
            "--metrics-listen": f"127.0.0.1:{free_port()}",
        }
        words = [
            f"{flag}={own.get(flag, value)}" if equals else flag
            for flag, equals, value in (word.partition("=") for word in container["args"])
        ]
        words += ["--kubeconfig", str(self._plane.kubeconfig_for(_ACCOUNTS[account]))]
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        program = Path(sys.executable).with_name("dra-gate")
        self._plane.processes.start(process, [program, *words], self._plane.log(process), environment)
        self._ports[process] = port
        if port:
            self.forwarder.add(port)

    def _end(self, process: str, *, kill: bool = False) -> None:
        self._plane.processes.stop(process, kill=kill)
        port = self._ports.pop(process)
        if port:
            self.forwarder.remove(port)

    def _bring_secret(self) -> None:
        """As kubelet does: both files change at once, and what was mounted stays when the Secret is deleted."""
        secret = self._api.find("secrets", "dra-gate-tls", NAMESPACE) or {}
        data = {key: base64.b64decode(secret.get("data", {}).get(key, "")) for key in ("tls.key", "tls.crt")}
        version = self._volume / hashlib.sha256(b"".join(data.values())).hexdigest()
        if not all(data.values()) or version.exists():
            return
        version.mkdir()
        for key, value in data.items():
            (version / key).write_bytes(value)
            if not (self._volume / key).is_symlink():
                (self._volume / key).symlink_to(Path("..data") / key)
        beside = self._volume / "..data_tmp"
        beside.symlink_to(version.name)
        beside.replace(self._volume / "..data")

    def _route(self) -> None:
        service = self._api.find("services", WEBHOOK, NAMESPACE)
        if service is not None and service["spec"]["type"] != "ExternalName":
            external = {"type": "ExternalName", "externalName": "localhost", "clusterIP": None, "clusterIPs": None}
            self._api.patch("services", WEBHOOK, {"spec": external}, NAMESPACE)
        for kind in _CONFIGURATIONS:
            found = self._api.find(kind, "zz-dra-gate") or {"webhooks": []}
            patch = [
                {"op": "replace", "path": f"/webhooks/{n}/clientConfig/service/port", "value": self.forwarder.port}
                for n, hook in enumerate(found["webhooks"])
                if hook["clientConfig"].get("service", {}).get("port", self.forwarder.port) != self.forwarder.port
            ]
            if patch:
                self._api.patch(kind, "zz-dra-gate", patch, content_type=JSON_PATCH)

    def _play(self, pod: Object) -> None:
        meta = pod["metadata"]
        if "nodeName" not in pod["spec"]:
            return
        if "deletionTimestamp" in meta:
            kubelet.delete_now(self._api, meta["namespace"], meta["name"])
            return
        webhook = meta["namespace"] == NAMESPACE and meta["name"].startswith(WEBHOOK)
        ready = len(self.forwarder.ready) >= 3 if webhook else True
        if ready and pod["status"].get("phase", "Pending") == "Pending":
            kubelet.mark_running(self._api, meta["namespace"], meta["name"])
