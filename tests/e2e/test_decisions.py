"""What the whole gate says on Pods: by its own processes, through its own webhooks, across a change of leader."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from dra_gate.allocation.record import loads
from dra_gate.controller.decision_plan import CONDITION
from e2e import scene
from e2e.conftest import POLICIES

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]


@pytest.fixture(scope="module")
def gate(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gate, Path]]:
    """Two controllers, of which one leads; both keep their records in one folder."""
    folder = tmp_path_factory.mktemp("decisions")
    with Gate(control_plane, POLICIES, controllers=2, controller_flags=("--decisions", str(folder))) as running:
        yield running, folder


def condition(api: Api, namespace: str, name: str) -> dict[str, Any]:
    found = api.get("pods", name, namespace).get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == CONDITION), {})


def told(api: Api, namespace: str, name: str, reason: str) -> str:
    wait_for(lambda: condition(api, namespace, name).get("reason") == reason, 40, f"{name}: {reason}")
    return str(condition(api, namespace, name)["message"])


def events(api: Api, namespace: str) -> Counter[tuple[str, str]]:
    """How often which reason was told of which Pod."""
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    return Counter(
        (one["regarding"]["name"], one["reason"])
        for one in api.request("GET", path).body["items"]
        if one.get("reportingController") == "dra-gate.io/controller"
    )


def lines_in(folder: Path) -> list[bytes]:
    """The whole lines of all records; of the newest one half may be there."""
    return [line for file in folder.iterdir() for line in file.read_bytes().split(b"\n")[:-1]]


def leader(api: Api) -> str:
    return str(api.get("leases", "dra-gate-controller", "dra-gate")["spec"].get("holderIdentity") or "")


def test_a_story_goes_on_under_another_leader_and_nothing_is_said_twice(
    gate: tuple[Gate, Path], api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    running, folder = gate
    install_fleet("four-and-four")
    namespace = clean("e2e-ordered")
    for number in range(9):
        api.create(scene.pod(f"p{number}"), namespace)
        if number < 8:
            scene.bound(api, namespace, f"p{number}")
    assert told(api, namespace, "p3", "FirstChoice").startswith("h100, rank 1 of 3 of ordered@1: hopper/gpu-3 ")
    assert told(api, namespace, "p4", "Fallback").startswith("a100, rank 2 of 3 of ordered@1: ampere/gpu-0 ")
    assert "h100: all 4 in use, 4 by this tenant. a100: all 4 in use, 4 by this tenant." in told(
        api, namespace, "p8", "Retryable"
    )
    # A Pod may have two: the scheduler may have looked at one before it had heard of the fleet.
    wait_for(lambda: len({pod for pod, _ in events(api, namespace)}) == 9, 10, "an Event for each Pod")
    assert len({loads(line).pod for line in lines_in(folder)}) == 9, "a record comes before its Event"
    first = leader(api)
    running.stop_controller(first, kill=True)
    api.delete("pods", "p0", namespace, grace=0)
    scene.bound(api, namespace, "p8")
    wait_for(lambda: leader(api) not in ("", first), 60, "another leader")
    assert told(api, namespace, "p8", "FirstChoice").endswith("hopper/gpu-0 [decision 2]")
    time.sleep(3)
    said = events(api, namespace)
    assert set(said.values()) == {1}
    assert said["p8", "DevicesFirstChoice"] == said["p8", "DevicesRetryable"] == 1
    running.start_controller(first)
    wait_for(lambda: api.get("pods", "p8", namespace)["metadata"]["annotations"].get("dra-gate.io/model"), 10, "it")
    lines = [loads(line) for line in lines_in(folder)]
    assert len({(one.uid, one.sequence) for one in lines}) == len(lines) >= 10
    assert {one.policy for one in lines} == {"ordered@1"}
    assert all(one.policy_set and one.lane == "dra" for one in lines)


def test_only_the_gate_says_what_a_pod_got(
    gate: tuple[Gate, Path], api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    install_fleet("demo")
    namespace = clean("e2e-ordered")
    pod = scene.pod("claimed")
    pod["metadata"]["annotations"] = {"dra-gate.io/model": "h900"}
    made = api.create(pod, namespace)
    assert "dra-gate.io/model" not in made["metadata"]["annotations"], "mutate takes it off"
    told(api, namespace, "claimed", "FirstChoice")

    def annotated() -> bool:
        annotations = api.get("pods", "claimed", namespace)["metadata"]["annotations"]
        return bool(annotations.get("dra-gate.io/model") == "h100")

    wait_for(annotated, 10, "the annotation")
    with pytest.raises(ApiError, match="FORGED_ANNOTATION"):
        api.patch("pods", "claimed", {"metadata": {"annotations": {"dra-gate.io/model": "h900"}}}, namespace)
