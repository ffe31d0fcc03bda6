"""Kueue's own manager beside the gate, out of cluster, with the objects that its `config/default` installs.

Different from an installation: the manager is a process on loopback and not a Deployment, its webhook Service is an
ExternalName for it, nothing is served for `visibility.kueue.x-k8s.io`. Kueue makes its certificates itself; the kubelet
would mount their Secret into the Pod, here `Kueue` copies it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import yaml

from controlplane.api import Api, ApiError, Object, wait_for
from controlplane.build import ensure_kueue
from controlplane.control_plane import ControlPlane, service_account
from controlplane.processes import free_port

ACCOUNT = service_account("kueue-system", "kueue-controller-manager")
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
_NAMESPACE, _SECRET, _SERVICE = "kueue-system", "kueue-webhook-server-cert", "kueue-webhook-service"
_VERSION = "kueue.x-k8s.io/v1beta2"


class KueueError(RuntimeError):
    """Kueue's manager ended; the message is the end of its log."""


class Kueue:
    """Kueue's manager on a control plane of its own; a context manager.

    The control plane has to know `ACCOUNT` as a user. Entering returns when its webhooks are in force; leaving stops
    the manager and leaves its objects: whoever wants them gone takes the control plane away.
    `frameworks` are the integrations that it has, `mappings` the DeviceClasses by the resource that they are charged
    as, `feature_gates` its own.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        frameworks: Sequence[str] = ("batch/job", "pod"),
        mappings: Mapping[str, Sequence[str]] | None = None,
        feature_gates: Mapping[str, bool] | None = None,
    ) -> None:
        self._plane = plane
        self._api: Api = plane.api()
        self._folder = plane.run_dir / "kueue"
        self._ports = {name: free_port() for name in ("webhook", "health")}
        self._frameworks = list(frameworks)
        self._mappings = mappings or {}
        self._feature_gates = dict(feature_gates or {})

    def __enter__(self) -> Kueue:
        program, manifests = ensure_kueue()
        self._install(manifests.read_text())
        (self._folder / "certificates").mkdir(parents=True, exist_ok=True)
        config = self._folder / "config.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        kubeconfig = f"--kubeconfig={self._plane.kubeconfig_for(ACCOUNT)}"
        # With a proxy in its environment it would ask that for the API server on loopback.
        self._plane.processes.start(
            "kueue",
            [program, f"--config={config}", kubeconfig, "--zap-log-level=2"],
            self._plane.log("kueue"),
            {"HOME": str(self._folder), "PATH": "/usr/bin:/bin"},
        )
        try:
            wait_for(self._mounted, 30, "Kueue to make its certificates")
            wait_for(self._in_force, 60, f"Kueue's webhooks to be in force; its log is {self._plane.log('kueue')}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops the manager. Its webhooks stay and fail: Pods can't be made outside kube-system and kueue-system."""
        self._plane.processes.stop("kueue")

    def queue(
        self, namespace: str, name: str, quota: Mapping[str, int], node_labels: Mapping[str, str] | None = None
    ) -> None:
        """A LocalQueue with a ClusterQueue and a flavor of its own, all called `name`."""
        flavor: Object = {"apiVersion": _VERSION, "kind": "ResourceFlavor", "metadata": {"name": name}}
        self._api.create(flavor | {"spec": {"nodeLabels": dict(node_labels or {})}})
        resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
        group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
        cluster = {"apiVersion": _VERSION, "kind": "ClusterQueue", "metadata": {"name": name}}
        self._api.create(cluster | {"spec": {"namespaceSelector": {}, "resourceGroups": [group]}})
        local = {"apiVersion": _VERSION, "kind": "LocalQueue", "metadata": {"name": name}}
        self._api.create(local | {"spec": {"clusterQueue": name}}, namespace)

    def workload(self, owner: Object, timeout: float = 20) -> Object:
        """The Workload that Kueue made for a Pod or a Job, once it is there."""
        uid, namespace = owner["metadata"]["uid"], owner["metadata"]["namespace"]

        def look() -> Object | None:
            for one in self._api.list("workloads", namespace):
                if any(reference["uid"] == uid for reference in one["metadata"].get("ownerReferences", [])):
                    return one
            return None

        return wait_for(look, timeout, f"the Workload of {owner['kind']} {owner['metadata']['name']}")

    def charge(self, owner: Object, timeout: float = 20) -> dict[str, str]:
        """What Kueue charges a Pod or a Job, by resource, once it has admitted it."""

        def admitted() -> Object | None:
            found: Object | None = self.workload(owner).get("status", {}).get("admission")
            return found

        admission = wait_for(admitted, timeout, f"Kueue to admit {owner['kind']} {owner['metadata']['name']}")
        (assignment,) = admission["podSetAssignments"]
        return dict(assignment.get("resourceUsage", {}))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _config(self) -> Object:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._ports['health']}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {
                "host": "127.0.0.1",
                "port": self._ports["webhook"],
                "certDir": str(self._folder / "certificates"),
            },
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 1000, "burst": 1000},
            "manageJobsWithoutQueueName": False,
            "integrations": {"frameworks": self._frameworks},
            "featureGates": {"VisibilityOnDemand": False, "TopologyAwareScheduling": False} | self._feature_gates,
            "resources": {
                "deviceClassMappings": [
                    {"name": name, "deviceClassNames": list(classes)} for name, classes in self._mappings.items()
                ]
            },
        }

    def _install(self, manifests: str) -> None:
        documents = [one for one in yaml.safe_load_all(manifests) if one]
        documents.sort(key=lambda one: one["kind"] != "Namespace")
        for document in documents:
            kind, name = document["kind"], document["metadata"]["name"]
            if kind in ("Deployment", "APIService") or (
                kind == "Secret" and self._api.find("secrets", _SECRET, _NAMESPACE)
            ):
                continue
            if (kind, name) == ("Service", _SERVICE):
                document["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            for client in _clients(document):
                client["service"]["port"] = self._ports["webhook"]
            self._api.apply(document)

    def _mounted(self) -> bool:
        self._alive()
        data = self._api.get("secrets", _SECRET, _NAMESPACE).get("data", {})
        for name in ("tls.key", "tls.crt"):  # the certificate last: Kueue takes it for a sign that both are there
            if name in data:
                (self._folder / "certificates" / name).write_bytes(base64.b64decode(data[name]))
        return "tls.crt" in data

    def _in_force(self) -> bool:
        """A Pod with a queue's label gets Kueue's gate."""
        self._alive()
        container = {"name": "c", "image": "none"}
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": {QUEUE_LABEL: "none"}}}
        try:
            stored = self._api.create(probe | {"spec": {"containers": [container]}}, "default", dry_run=True)
        except ApiError:
            return False
        return stored["spec"].get("schedulingGates") == [{"name": GATE}]

    def _alive(self) -> None:
        code = self._plane.processes.codes().get("kueue")
        if code is not None:
            tail = self._plane.log("kueue").read_text(errors="replace").strip().splitlines()[-8:]
            raise KueueError("\n".join([f"Kueue's manager ended with code {code}", *tail]))


def _clients(document: Mapping[str, Any]) -> list[Object]:
    """The client configurations of webhook configurations, and of a CustomResourceDefinition's conversion."""
    hooks = [hook["clientConfig"] for hook in document.get("webhooks", [])]
    conversion = (
        document.get("spec", {}).get("conversion", {}) if document["kind"] == "CustomResourceDefinition" else {}
    )
    return hooks + ([conversion["webhook"]["clientConfig"]] if "webhook" in conversion else [])
