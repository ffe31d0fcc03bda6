"""One control plane with the gate for all end-to-end tests; each module brings its own fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.api import Api
from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from e2e import scene

POLICIES = Path(__file__).parent / "policies"


@pytest.fixture(scope="session")
def gate(control_plane: ControlPlane) -> Iterator[Gate]:
    with Gate(control_plane, POLICIES, replicas=2) as installed:
        yield installed


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Api:
    return control_plane.api()


@pytest.fixture(scope="module")
def fleet_of(api: Api) -> Iterator[Callable[[str], Fleet]]:
    """Installs a fleet by name for one module, and removes it after."""
    installed: list[Fleet] = []

    def install(name: str) -> Fleet:
        fleet = Fleet.load(name)
        fleet.install(api)
        installed.append(fleet)
        return fleet

    yield install
    for fleet in installed:
        fleet.remove(api)


@pytest.fixture
def clean(api: Api) -> Iterator[Callable[[str], str]]:
    """Makes a gated namespace, and empties it after the test."""
    made: list[str] = []

    def make(name: str) -> str:
        made.append(scene.namespace(api, name))
        return name

    yield make
    scene.clear(api, *made)
