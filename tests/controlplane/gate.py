"""Installs the gate on a control plane, out of cluster: replicas behind a forwarder, the controller, both webhooks.

Everything goes through the command line, as an operator would do it; the service accounts' kubeconfigs carry tokens of
the users that the Pods would be.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import yaml

from controlplane.api import ApiError, wait_for
from controlplane.control_plane import GATE_CONTROLLER, GATE_WEBHOOK, ControlPlane, User
from controlplane.forwarder import Forwarder
from controlplane.processes import free_port

NAMESPACE = "dra-gate"
RBAC = Path(__file__).parents[2] / "deploy" / "base" / "rbac.yaml"
CRDS = sorted((RBAC.parent / "crds").iterdir())
_CONTROLLER = "gate-controller"


class GateError(RuntimeError):
    """A command of the gate failed; the message carries what it said."""


class Gate:
    """The gate with `replicas` of `dra-gate serve` and `controllers` of `dra-gate controller`; a context manager.

    Entering returns when every replica is ready, the controller runs and the webhook configurations are in force.
    Leaving takes the configurations away and stops the processes; objects that the controller made stay.
    `serve_flags` and `controller_flags` are added to the commands, with `{name}` standing for the process's name;
    `controllers` 0 leaves them out. `kubeconfigs` gives single replicas or controllers another way to the API server.
    `published`: the policies are published and activated in the cluster, and the gate follows its Gate; else every
    process reads the folder.
    """

    def __init__(
        self,
        plane: ControlPlane,
        policies: Path,
        *,
        replicas: int = 1,
        controllers: int = 1,
        kubeconfigs: Mapping[str, Path] | None = None,
        published: bool = False,
        serve_flags: Sequence[str] = (),
        controller_flags: Sequence[str] = (),
    ) -> None:
        self.plane = plane
        self.policies = policies
        self._flags = {"serve": tuple(serve_flags), "controller": tuple(controller_flags)}
        self.controllers = tuple(f"{_CONTROLLER}-{number}" if number else _CONTROLLER for number in range(controllers))
        self._kubeconfigs = dict(kubeconfigs or {})
        self._published = published
        self._ports = {f"gate-{number}": free_port() for number in range(replicas)}
        self._status_ports = {name: free_port() for name in self._ports}
        self.folder = plane.run_dir / f"gate-{secrets.token_hex(4)}"  # its own CA: another gate's may have been changed
        self.forwarder: Forwarder

    def __enter__(self) -> Gate:
        self.folder.mkdir(exist_ok=True)
        self.command("certs", "--out", self.folder, "--ip", "127.0.0.1", "--dns", "localhost")
        self.forwarder = Forwarder(self._ports.values()).__enter__()
        try:
            self._prepare_cluster()
            self.start()
            self.register()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ca_file(self) -> Path:
        """The CA of the replicas' certificate."""
        return self.folder / "ca.crt"

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the replicas, for `stop`, `start` and `log`."""
        return tuple(self._ports)

    def replica_url(self, replica: str) -> str:
        """Address of one replica, past the forwarder."""
        return f"https://127.0.0.1:{self._ports[replica]}"

    def status_url(self, replica: str) -> str:
        """Address of one replica's second port: probes, metrics and pages, without TLS."""
        return f"http://127.0.0.1:{self._status_ports[replica]}"

    def log(self, name: str = _CONTROLLER) -> Path:
        """Log of a replica, or of the controller."""
        return self.plane.log(name)

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts whatever doesn't run, and waits until every replica is ready."""
        running = {name for name, code in self.plane.processes.codes().items() if code is None}
        for name in self._ports:
            if name not in running:
                self.start_replica(name, wait=False)
        for name in self.controllers:
            if name not in running:
                self.start_controller(name)
        self._wait_ready(len(self._ports))

    def stop(self, *, kill: bool = False) -> None:
        """Stops every replica and controller, in order or as by a crash. The webhook configurations stay."""
        for name in self._ports:
            self.stop_replica(name, kill=kill)
        for name in self.controllers:
            self.stop_controller(name, kill=kill)
        self.forwarder.wait_ready(0)

    def start_replica(self, name: str, *, wait: bool = True) -> None:
        """Starts one replica, by default waiting until the forwarder sends it connections."""
        listen = f"127.0.0.1:{self._ports[name]}"
        status = f"127.0.0.1:{self._status_ports[name]}"
        words = ["serve", *self._policies(), "--listen", listen, "--cert-dir", self.folder]
        words += ["--status-listen", status, "--drain-seconds", "1.5"]  # the forwarder looks twice a second
        self._spawn(name, GATE_WEBHOOK, [*words, *self._flags["serve"]])
        if wait:
            port = self._ports[name]
            wait_for(
                lambda: self._alive(name) and port in self.forwarder.ready, 30, f"{name} to be ready; {self._say(name)}"
            )

    def stop_replica(self, name: str, *, kill: bool = False) -> None:
        """Stops one replica: SIGTERM and up to ten seconds to drain, or SIGKILL at once."""
        self.plane.processes.stop(name, kill=kill)

    def start_controller(self, name: str = _CONTROLLER) -> None:
        """Starts a controller."""
        words = ["controller", *self._policies(), "--identity", name]
        self._spawn(name, GATE_CONTROLLER, [*words, *self._flags["controller"]])

    def stop_controller(self, name: str = _CONTROLLER, *, kill: bool = False) -> None:
        """Stops a controller: SIGTERM and up to ten seconds to give its Lease back, or SIGKILL at once."""
        self.plane.processes.stop(name, kill=kill)

    # -- the cluster's side -------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Applies what `dra-gate webhooks` prints and waits until the API server calls it (about a second)."""
        words: list[str | Path] = ["--policies", self.policies, "--url", self.forwarder.url, "--ca-file", self.ca_file]
        self.plane.api().apply_yaml(self.command("webhooks", *words))
        self._wait_in_force()

    def unregister(self) -> None:
        """Deletes the gate's webhook configurations."""
        api = self.plane.api()
        for resource in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            for found in api.list(resource):
                hooks = found.get("webhooks", [])
                if any(hook["clientConfig"].get("url", "").startswith(self.forwarder.url) for hook in hooks):
                    api.delete(resource, found["metadata"]["name"], missing_ok=True)

    def close(self) -> None:
        """Takes the configurations away, stops everything and closes the forwarder."""
        try:
            self.unregister()
        finally:
            for name in {_CONTROLLER, *self.controllers}:  # a test may have started one by itself
                self.stop_controller(name)  # a killed one would keep its Lease from the next gate's for 15 s
            for name in self._ports:
                self.stop_replica(name, kill=True)
            self.forwarder.__exit__(None, None, None)

    def command(self, *words: str | Path) -> str:
        """Runs `dra-gate` with the words and returns its output. Raises GateError when it fails."""
        done = subprocess.run([*_program(), *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise GateError(f"dra-gate {words[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def policy(self, verb: str, *words: str | Path) -> str:
        """Runs `dra-gate policy` with the verb, as cluster admin where it asks the cluster."""
        return self.command("policy", verb, *words, "--kubeconfig", self.plane.kubeconfig_for())

    # -- inside -------------------------------------------------------------------------------------------------------

    def _policies(self) -> list[str | Path]:
        return [] if self._published else ["--policies", self.policies]

    def _spawn(self, name: str, account: User, words: Sequence[str | Path]) -> None:
        """Starts `dra-gate`, as in a Pod of `account` unless it has a kubeconfig."""
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        program: list[str | Path] = [*_program()]
        words = [word.replace("{name}", name) if isinstance(word, str) else word for word in words]
        if name in self._kubeconfigs:
            words += ["--kubeconfig", self._kubeconfigs[name]]
        else:
            folder, variables = self.plane.service_account(account)
            environment = {k: v for k, v in environment.items() if k != "KUBECONFIG"} | variables
            search = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment |= {"HOME": str(folder), "PYTHONPATH": os.pathsep.join(search)}
            program = [sys.executable, "-m", "controlplane.in_pod", folder]
        self.plane.processes.start(name, [*program, *words], self.log(name), environment)

    def _prepare_cluster(self) -> None:
        api = self.plane.api()
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        api.apply_yaml(RBAC.read_text())
        for crd in CRDS:
            api.apply_yaml(crd.read_text())
        if self._published:
            # The server answers for a new kind a moment after it has stored its definition.
            wait_for(lambda: api.serves("gates"), 10, "the API server to serve Gates")
            self.policy("publish", self.policies, "--activate", "--no-lint")

    def _alive(self, name: str) -> bool:
        code = self.plane.processes.codes().get(name)
        if code is not None:
            raise GateError(f"{name} ended with code {code}; {self._say(name)}")
        return True

    def _wait_ready(self, count: int) -> None:
        def look() -> bool:
            return all(self._alive(name) for name in self._ports) and len(self.forwarder.ready) == count

        wait_for(look, 30, f"{count} replicas to be ready; logs are in {self.log('gate-0').parent}")
        for name in self.controllers:
            self._alive(name)

    def _say(self, name: str) -> str:
        path = self.log(name)
        lines = path.read_text(errors="replace").strip().splitlines()[-8:] if path.exists() else []
        return "\n".join([f"its log is {path}", *lines])

    def _wait_in_force(self) -> None:
        """Sends dry-run Pods with devices into a gated namespace of nobody until both webhooks have judged one.

        That validate did shows in its denial, that mutate was asked shows in the audit log.
        """
        api = self.plane.api()
        probe = f"kit-probe-{secrets.token_hex(4)}"
        labels = {"dra-gate.io/lane": "dra"}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": probe, "labels": labels}})
        container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": [container]}}

        def judged() -> bool:
            try:
                api.create(pod, probe, dry_run=True)
            except ApiError as problem:
                return "admission webhook" in problem.message and _mutate_was_asked(self.plane.audit_log, probe)
            return False

        try:
            wait_for(judged, 20, "the API server to call both webhooks", every=0.1)
        finally:
            api.delete("namespaces", probe)


def _mutate_was_asked(audit_log: Path, namespace: str) -> bool:
    with audit_log.open() as lines:
        return any(namespace in line and "mutation.webhook.admission.k8s.io/" in line for line in lines)


def _program() -> list[str]:
    """The `dra-gate` that is installed beside this Python."""
    return [str(Path(sys.executable).with_name("dra-gate"))]


def policy_namespaces(policies: Path) -> list[str]:
    """The namespaces that the Tenant documents of a policy folder name, without loading the policies."""
    named: list[str] = []
    for path in sorted(policies.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and document.get("kind") == "Tenant":
                named += document["spec"]["namespaces"]
    return named
