"""The gate on the session's control plane, for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.api import Api
from controlplane.cluster import install
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from e2e import scene

POLICIES = Path(__file__).parent / "policies"


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane) -> Iterator[object]:
    """Two replicas and the controller; gone again after the module, so that other tests' Pods are not judged."""
    with install(control_plane, POLICIES, replicas=2) as installed:
        yield installed


@pytest.fixture
def clean(api: Api, install_fleet: InstallFleet) -> Iterator[Callable[[str], str]]:
    """Makes a gated namespace, and empties it after the test, before the fleet goes."""
    made: list[str] = []

    def make(name: str) -> str:
        made.append(scene.namespace(api, name))
        return name

    yield make
    scene.clear(api, *made)
