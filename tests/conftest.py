"""Fixtures of the control-plane kit. Tests that use them carry the mark `controlplane`; none of them is ever skipped:
the programs are built when they are missing (`controlplane.build`).

With DRA_GATE_TEST_KUBECONFIG set only the tests marked `cluster` run, on the cluster that it names."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings

from controlplane import cluster
from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.fleet import Fleet
from controlplane.kubelet import end_all

# No example fails for the time it took, nor for the time it took to make: a machine may pause for a second. What else
# was chosen before (derandomize in CI, the phases of tests/closed) stays.
settings.register_profile("any machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On somebody's cluster only the tests that are made for it."""
    if os.environ.get(cluster.VARIABLE):
        others = [item for item in items if item.get_closest_marker("cluster") is None]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane | cluster.Cluster]:
    """One control plane for the whole run, without nodes. Its logs are kept when a test failed."""
    plane = cluster.start()
    try:
        plane.wait_for_default_roles()
        yield plane
    finally:
        failed = request.session.testsfailed > 0
        if failed and isinstance(plane, ControlPlane):
            print(f"\ncontrolplane: logs are kept in {plane.run_dir}")
        plane.close(keep=failed)


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """The control plane's client as cluster admin."""
    return control_plane.api()


@pytest.fixture
def install_fleet(api: Api) -> Iterator[InstallFleet]:
    """`install_fleet("four-and-four")` makes the cluster consist of that fleet until the end of the test."""
    installed: list[Fleet] = []

    def install(fleet: str | Fleet) -> Fleet:
        while installed:
            installed.pop().remove(api)
        made = Fleet.load(fleet) if isinstance(fleet, str) else fleet
        installed.append(made)  # first, so that half an installation is removed too
        made.install(api)
        return made

    yield install
    while installed:
        installed.pop().remove(api)


@pytest.fixture
def make_namespace(api: Api, install_fleet: InstallFleet) -> Iterator[MakeNamespace]:
    """`make_namespace(labels={…})` makes a namespace with a name of its own, or with `name=`, for the rest of the test.

    At the end its Pods are taken away at once, and it is waited until no claim of it holds a device any more. It
    depends on `install_fleet` only so that this happens before the fleet is removed.
    """
    made: list[str] = []

    def make(*, name: str | None = None, labels: Mapping[str, str] | None = None) -> str:
        chosen = name or f"t-{secrets.token_hex(4)}"
        if name:  # an earlier test's may still be going
            wait_for(lambda: api.find("namespaces", chosen) is None, 60, f"an older namespace {chosen} to go")
        api.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": chosen, "labels": dict(labels or {})}}
        )
        made.append(chosen)
        return chosen

    yield make
    for namespace in made:
        for resource in ("jobs", "deployments", "statefulsets", "replicasets"):
            api.delete_all(resource, namespace)
        end_all(api, namespace)
        api.delete_all("resourceclaims", namespace)
    for namespace in made:

        def free(namespace: str = namespace) -> bool:
            if api.list("pods", namespace):  # made by a controller in between
                end_all(api, namespace)
                return False
            return not api.list("resourceclaims", namespace)

        wait_for(free, 30, f"Pods and claims of {namespace} to go")
        api.delete("namespaces", namespace, missing_ok=True)


@pytest.fixture
def namespace(make_namespace: MakeNamespace) -> str:
    """A fresh namespace without labels."""
    return make_namespace()
