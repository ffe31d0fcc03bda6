"""Forty Pods on a real control plane get what the restated allocator foresees; `make prove-allocator` has hundreds."""

from __future__ import annotations

import pytest

from allocation import live
from allocation.oracle import Oracle
from controlplane.api import Api
from controlplane.control_plane import ControlPlane

pytestmark = pytest.mark.controlplane


def test_the_devices_and_the_node_of_each_pod_are_foreseen(control_plane: ControlPlane, api: Api) -> None:
    control_plane.configure_scheduler(profiles=live.ONLY_DEVICES)
    try:
        with Oracle() as oracle:
            judged = live.run(api, oracle, live.clusters(4), 10)
    finally:
        control_plane.configure_scheduler(profiles=None)
    assert judged.problems == []
    assert judged.bound >= 15
    assert judged.one_best >= 5
    assert judged.alternatives[1] > 0 < judged.alternatives[2]
    assert judged.not_evaluated == 0
