"""A cluster that is there already, with the gate installed in it: stands in for the kit in tests marked `cluster`.

`DRA_GATE_TEST_KUBECONFIG` names it. Its policies are replaced for the time of the tests and put back afterwards; fake
nodes, classes and slices are added and taken away. Use one that nobody else works on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from controlplane.api import Api, wait_for
from controlplane.control_plane import ADMIN, ControlPlane, User
from controlplane.gate import Gate

VARIABLE = "DRA_GATE_TEST_KUBECONFIG"


class Cluster:
    """A cluster named by a kubeconfig whose user is cluster admin. Closing it closes the connections."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._api = Api.from_kubeconfig(kubeconfig)

    def api(self, user: User = ADMIN) -> Api:
        """The client. Raises KeyError for anybody but the admin: others are impersonated."""
        if user != ADMIN:
            raise KeyError(user.name)
        return self._api

    def kubeconfig_for(self, user: User = ADMIN) -> Path:
        """The kubeconfig. Raises KeyError for anybody but the admin."""
        self.api(user)
        return self._kubeconfig

    def wait_for_default_roles(self) -> None:
        """They were aggregated long ago."""

    def close(self, *, keep: bool = False) -> None:
        """Closes the connections; `keep` is the kit's and means nothing here."""
        self._api.close()

    @contextmanager
    def install(self, policies: Path) -> Iterator[Cluster]:
        """Publishes and activates the policies, and activates what was active before at the end."""
        gate = self._api.find("gates", "default")
        self._policy("publish", policies, "--activate", "--no-lint", "--wait")
        try:
            wait_for(self._in_use, 30, "every replica to use the policies")
            yield self
        finally:
            if gate is not None:
                self._policy("activate", gate["spec"]["active"])

    def _in_use(self) -> bool:
        conditions = self._api.get("gates", "default").get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _policy(self, *words: str | Path) -> None:
        program = Path(sys.executable).with_name("dra-gate")
        subprocess.run([program, "policy", *words, "--kubeconfig", self._kubeconfig], check=True)


def start() -> ControlPlane | Cluster:
    """The cluster that the environment names, else a control plane of the kit's."""
    named = os.environ.get(VARIABLE)
    if named:
        return Cluster(Path(named))
    plane = ControlPlane()
    plane.start_all()
    return plane


def install(plane: ControlPlane | Cluster, policies: Path, *, replicas: int = 1) -> AbstractContextManager[object]:
    """The gate under these policies: installed by the kit, or the one that the cluster has."""
    return plane.install(policies) if isinstance(plane, Cluster) else Gate(plane, policies, replicas=replicas)
