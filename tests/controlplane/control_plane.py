"""Runs one control plane on free loopback ports: TLS everywhere, RBAC, an audit log, fake nodes only.

Facts behind the flags were measured on Kubernetes 1.37.2. What is not here: kubelet, kube-proxy, networking, images.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.api import Api, wait_for
from controlplane.authority import Authority, write_key
from controlplane.build import ensure_programs
from controlplane.processes import ProcessError, Processes, free_port

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
COMPONENTS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)
_STARTS = 3  # how often other ports are chosen before a taken one is an error


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may speak to the API server with a token; `system:authenticated` is added by the server."""

    name: str
    groups: tuple[str, ...] = ()


def service_account(namespace: str, name: str) -> User:
    """The user that Pods of a service account are: for playing a controller out of cluster."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


ADMIN = User("admin", ("system:masters",))
TENANT = User("ada@lilac.example", ("lilac-dev",))
GATE_CONTROLLER = service_account("dra-gate", "dra-gate-controller")
GATE_WEBHOOK = service_account("dra-gate", "dra-gate-webhook")
_CONTROLLER_MANAGER_USER = User("system:kube-controller-manager")
_SCHEDULER_USER = User("system:kube-scheduler")

# Bodies of what people and the gate write, metadata of what the control plane writes (which is most of it), no reads.
AUDIT_POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {
            "level": "None",
            "resources": [
                {"group": "", "resources": ["events", "serviceaccounts/token"]},
                {"group": "events.k8s.io"},
                {"group": "coordination.k8s.io"},
                {"group": "authentication.k8s.io"},
                {"group": "authorization.k8s.io"},
            ],
        },
        {"level": "Metadata", "users": ["system:kube-scheduler", "system:kube-controller-manager"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets", "nodes", "nodes/status"]}]},
        {"level": "RequestResponse"},
    ],
}


class ControlPlaneError(RuntimeError):
    """A component didn't come up; the message carries the end of its log and where the rest is."""


class PortTaken(ControlPlaneError):
    """Another program took a component's port after it was chosen: they are free only until somebody binds them."""


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler; a context manager.

    Leaving the context, an exception in it, or the end of this process in whatever way kills all of them. Logs stand in
    `run_dir / "logs"`; the folder is removed at the end unless something failed or `keep` is set.

    `users`: further people with tokens; the token file is read once, so they must be known at start.
    `stock_rates`: leave the controller manager's and the scheduler's client rates at their defaults (20 and 50 requests
    a second). Else they are raised to 1000, so that figures are about the machinery and not about a rate limiter.
    `scheduler_config`: top-level fields of KubeSchedulerConfiguration, such as `percentageOfNodesToScore`.
    `scheduler_verbosity`: 4 shows which PreEnqueue plugin holds a Pod.
    `disable_admission`: ServiceAccount is off by default: it refuses Pods of a namespace until its default service
    account is there, and adds a token volume to every Pod. Pass () for a server like a stock one.
    `api_server_flags`: added last, so they win.
    """

    def __init__(
        self,
        *,
        users: Sequence[User] = (),
        stock_rates: bool = False,
        scheduler_config: Mapping[str, Any] | None = None,
        scheduler_verbosity: int = 2,
        disable_admission: Sequence[str] = ("ServiceAccount",),
        api_server_flags: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        self._stock_rates = stock_rates
        self._scheduler_config = dict(scheduler_config or {})
        self._scheduler_verbosity = scheduler_verbosity
        self._disable_admission = tuple(disable_admission)
        self._api_server_flags = tuple(api_server_flags)
        self._keep = keep
        everyone = (ADMIN, TENANT, GATE_CONTROLLER, GATE_WEBHOOK, _CONTROLLER_MANAGER_USER, _SCHEDULER_USER, *users)
        self._users = {user.name: user for user in everyone}
        self._tokens = {name: secrets.token_hex(16) for name in self._users}
        self._apis: dict[str, Api] = {}
        self._ports: dict[str, int] = {}
        self._programs: Path
        self._authority: Authority
        self.run_dir: Path
        self.processes: Processes

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> ControlPlane:
        self.start_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = kind is not None and issubclass(kind, Exception)
        if failed:
            print(f"controlplane: logs are kept in {self.run_dir}", file=sys.stderr)
        self.close(keep=failed)

    def start_all(self) -> None:
        """Starts everything and returns when the API server is ready and the other two report healthy.

        Where another program was quicker to take a port, it starts again with other ports. Raises ControlPlaneError
        when a component ends or isn't healthy within a minute; nothing is left running then.
        """
        for left in reversed(range(_STARTS)):
            try:
                self._start_all()
            except PortTaken as problem:
                if not left:
                    raise
                shutil.rmtree(self.run_dir)
                ended = str(problem).partition(";")[0]
                print(f"controlplane: {ended}, its port was taken: once more, with other ports", file=sys.stderr)
            else:
                return

    def _start_all(self) -> None:
        self._programs = ensure_programs()
        self.run_dir = Path(tempfile.mkdtemp(prefix="dra-gate-controlplane-"))
        self.processes = Processes()
        try:
            self._prepare()
            self.start(ETCD, wait=False)
            self.start(API_SERVER)
            self.start(CONTROLLER_MANAGER, wait=False)
            self.start(SCHEDULER)
            self._wait_healthy(CONTROLLER_MANAGER)
        except BaseException as problem:
            self.close(keep=isinstance(problem, Exception))
            raise

    def close(self, *, keep: bool = False) -> None:
        """Kills every process; there is nothing to save. Removes the run folder; a kept one loses only etcd's data."""
        self.processes.close()
        for api in self._apis.values():
            api.close()
        kept = keep or self._keep
        shutil.rmtree(self.run_dir / "etcd" if kept else self.run_dir, ignore_errors=True)

    def start(self, component: str, *, wait: bool = True) -> None:
        """Starts a component (again), by default waiting until it is healthy; same port, same data."""
        arguments = {
            ETCD: self._etcd,
            API_SERVER: self._api_server,
            CONTROLLER_MANAGER: self._controller_manager,
            SCHEDULER: self._scheduler,
        }[component]()
        try:
            self.processes.start(
                component, [self._programs / component, *arguments], self.log(component), self._clean_env()
            )
        except ProcessError as problem:
            raise ControlPlaneError(str(problem)) from problem
        if wait:
            self._wait_healthy(component)

    def stop(self, component: str, *, kill: bool = True) -> None:
        """Stops a component: killed like a machine that lost power, or with SIGTERM and up to ten seconds to finish."""
        self.processes.stop(component, kill=kill)

    def restart(self, component: str, *, kill: bool = True) -> None:
        """Stops a component and starts it again."""
        self.stop(component, kill=kill)
        self.start(component)

    def configure_scheduler(self, **fields: Any) -> None:
        """Sets top-level fields of KubeSchedulerConfiguration (None takes one away) and restarts the scheduler."""
        merged = self._scheduler_config | fields
        self._scheduler_config = {name: value for name, value in merged.items() if value is not None}
        self.restart(SCHEDULER)

    # -- access -------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self._ports[API_SERVER]}"

    @property
    def ca_file(self) -> Path:
        """The CA that signed the certificates of everything in this control plane."""
        return self._authority.certificate

    def api(self, user: User | str = ADMIN) -> Api:
        """A client as `user`, made once. Raises KeyError for a user who wasn't known at start."""
        name = user if isinstance(user, str) else user.name
        if name not in self._apis:
            self._apis[name] = Api(self.url, self.ca_file, self._tokens[name])
        return self._apis[name]

    def kubeconfig_for(self, user: User | str = ADMIN) -> Path:
        """A kubeconfig file for `user`, with the CA's certificate in it. Raises KeyError for an unknown user."""
        name = user if isinstance(user, str) else user.name
        token = self._tokens[name]
        path = self.run_dir / "kubeconfigs" / f"{name.replace(':', '.')}.yaml"
        if not path.exists():
            ca_data = base64.b64encode(self.ca_file.read_bytes()).decode()
            cluster = {"server": self.url, "certificate-authority-data": ca_data}
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "kit", "cluster": cluster}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": "kit", "context": {"cluster": "kit", "user": name}}],
                "current-context": "kit",
            }
            _write_private(path, yaml.safe_dump(content, sort_keys=False))
        return path

    def service_account(self, user: User) -> tuple[Path, dict[str, str]]:
        """What a Pod of the account finds: a folder with its token and the CA, and the variables of its environment."""
        folder = self.run_dir / "service-accounts" / user.name.replace(":", ".")
        folder.mkdir(parents=True, exist_ok=True)
        _write_private(folder / "token", self._tokens[user.name])
        _write_private(folder / "ca.crt", self.ca_file.read_text())
        url = urlsplit(self.url)
        return folder, {"KUBERNETES_SERVICE_HOST": str(url.hostname), "KUBERNETES_SERVICE_PORT": str(url.port)}

    def component(self, component: str) -> Api:
        """A raw client for a component's own port as admin, for `/metrics`, `/configz` and such; close it after use.

        etcd answers no such client: it wants a certificate.
        """
        return Api(f"https://127.0.0.1:{self._ports[component]}", self.ca_file, self._tokens[ADMIN.name])

    @property
    def kubectl(self) -> Path:
        """The kubectl of this Kubernetes version."""
        return self._programs / "kubectl"

    def log(self, name: str) -> Path:
        """The log of a component or of any process started in `processes` with this path."""
        return self.run_dir / "logs" / f"{name}.log"

    @property
    def audit_log(self) -> Path:
        """The audit log, one audit.k8s.io/v1 Event a line, written before the response goes out."""
        return self.run_dir / "logs" / "audit.jsonl"

    def audit_events(self) -> Iterator[dict[str, Any]]:
        """The audit events so far, oldest first: writes only, with bodies unless the control plane wrote them.

        Those of objects that are nested by the thousand, as a test of these writes them, are left out.
        """
        with self.audit_log.open() as lines:
            for line in lines:
                if line.endswith("\n"):  # the last one may be half written
                    try:
                        event = json.loads(line)
                    except RecursionError:
                        continue
                    yield event

    def wait_for_default_roles(self, timeout: float = 30.0) -> None:
        """Waits until the ClusterRoles admin, edit and view are aggregated: until then they allow nothing."""

        def filled() -> bool:
            roles = (self.api().get("clusterroles", name) for name in ("admin", "edit", "view"))
            return all(role.get("rules") for role in roles)

        wait_for(filled, timeout, "the default ClusterRoles to be aggregated")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        for folder in ("pki", "logs", "kubeconfigs", "etcd"):
            (self.run_dir / folder).mkdir(mode=0o700)
        self._authority = Authority(self.run_dir / "pki")
        for name in COMPONENTS:
            self._authority.issue(name)
        write_key(ec.generate_private_key(ec.SECP256R1()), self._pki("service-accounts.key"))
        for name in (*COMPONENTS, "etcd-peer"):
            self._ports[name] = free_port()
        rows = (f'{self._tokens[n]},{n},{n},"{",".join(u.groups)}"' for n, u in self._users.items())
        _write_private(self.run_dir / "pki" / "tokens.csv", "\n".join(rows) + "\n")
        (self.run_dir / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))

    def _pki(self, name: str) -> Path:
        return self.run_dir / "pki" / name

    def _serving(self, component: str) -> list[str]:
        return [
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[component]}",
            f"--tls-cert-file={self._pki(component + '.crt')}",
            f"--tls-private-key-file={self._pki(component + '.key')}",
        ]

    def _etcd(self) -> list[str]:
        client = f"https://127.0.0.1:{self._ports[ETCD]}"
        peer = f"https://127.0.0.1:{self._ports['etcd-peer']}"
        flags = ["--name=kit", f"--data-dir={self.run_dir / 'etcd'}", "--unsafe-no-fsync", "--log-level=error"]
        flags += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        flags += [
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=kit={peer}",
        ]
        for prefix in ("", "peer-"):
            flags += [f"--{prefix}cert-file={self._pki('etcd.crt')}", f"--{prefix}key-file={self._pki('etcd.key')}"]
            flags += [f"--{prefix}trusted-ca-file={self.ca_file}", f"--{prefix}client-cert-auth"]
        return flags

    def _api_server(self) -> list[str]:
        key = self._pki("service-accounts.key")
        flags = self._serving(API_SERVER)
        flags += [
            f"--etcd-servers=https://127.0.0.1:{self._ports[ETCD]}",
            f"--etcd-cafile={self.ca_file}",
            f"--etcd-certfile={self._pki(API_SERVER + '.crt')}",
            f"--etcd-keyfile={self._pki(API_SERVER + '.key')}",
            "--endpoint-reconciler-type=none",  # it must not publish a loopback address as the Service `kubernetes`
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self._pki('tokens.csv')}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--enable-admission-plugins=ExtendedResourceToleration",
            f"--audit-policy-file={self.run_dir / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
        ]
        if self._disable_admission:
            flags.append(f"--disable-admission-plugins={','.join(self._disable_admission)}")
        return [*flags, *self._api_server_flags]

    def _controller_manager(self) -> list[str]:
        kubeconfig = self.kubeconfig_for(_CONTROLLER_MANAGER_USER)
        flags = self._serving(CONTROLLER_MANAGER)
        flags += [f"--{name}kubeconfig={kubeconfig}" for name in ("", "authentication-", "authorization-")]
        flags += [
            "--leader-elect=false",
            "--use-service-account-credentials=true",  # else every loop runs as one user who may do next to nothing
            f"--service-account-private-key-file={self._pki('service-accounts.key')}",
            f"--root-ca-file={self.ca_file}",
            "--controllers=*,-node-lifecycle-controller",  # nobody renews node leases here
        ]
        if not self._stock_rates:
            flags += ["--kube-api-qps=1000", "--kube-api-burst=1000"]
        return flags

    def _scheduler(self) -> list[str]:
        kubeconfig = self.kubeconfig_for(_SCHEDULER_USER)
        connection: dict[str, Any] = {"kubeconfig": str(kubeconfig)}
        if not self._stock_rates:
            connection |= {"qps": 1000, "burst": 1000}
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": connection,
        }
        path = self.run_dir / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config | self._scheduler_config, sort_keys=False))
        flags = self._serving(SCHEDULER)
        flags += [f"--{name}kubeconfig={kubeconfig}" for name in ("authentication-", "authorization-")]
        return [*flags, f"--config={path}", f"-v={self._scheduler_verbosity}"]

    def _wait_healthy(self, component: str) -> None:
        if component == ETCD:
            return  # whether it serves shows in the API server's own readiness
        path = "/healthz" if component == CONTROLLER_MANAGER else "/readyz"  # the scheduler's: its caches are filled
        probe = self.component(component)
        started = time.monotonic()
        try:
            while time.monotonic() - started < 60:
                for name, code in self.processes.codes().items():
                    if name in COMPONENTS and code is not None:  # another one may have died after it was healthy
                        text = f"{name} ended with code {code}{self._tail(name)}"
                        raise (PortTaken if "address already in use" in text else ControlPlaneError)(text)
                if probe.healthy(path):
                    return
                time.sleep(0.05)
        finally:
            probe.close()
        raise ControlPlaneError(f"{component} isn't healthy after 60 s{self._tail(component)}")

    def _tail(self, name: str) -> str:
        try:
            lines = self.log(name).read_text(errors="replace").strip().splitlines()[-12:]
        except FileNotFoundError:
            lines = []
        text = "\n".join(line[:400] for line in lines)
        return f"; its whole log is {self.log(name)}\n{text}"

    @staticmethod
    def _clean_env() -> dict[str, str]:
        """No proxy of the machine may stand between two programs on loopback."""
        return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
