"""The main promise: the first candidate, else the next, never one that breaks a constraint; across nodes too."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest

from controlplane.api import Api
from controlplane.fixture_types import InstallFleet
from controlplane.gate import Gate
from controlplane.rate import plain_template
from e2e import scene
from e2e.order import run_pods

pytestmark = pytest.mark.controlplane
Clean = Callable[[str], str]


def test_h100_first_then_a100_in_device_order_and_a_ninth_waits(
    gate: Gate, api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    install_fleet("four-and-four")
    namespace = clean("e2e-ordered")
    got = []
    for number in range(8):
        api.create(scene.pod(f"p{number}"), namespace)
        got += scene.given(api, scene.bound(api, namespace, f"p{number}"))
    assert [given.alternative for given in got] == ["gpu/h100"] * 4 + ["gpu/a100"] * 4
    assert [given.device for given in got] == [f"gpu-{index}" for index in range(4)] * 2
    api.create(scene.pod("p8"), namespace)
    waiting = scene.is_waiting(api, namespace, "p8")
    (told,) = (one["message"] for one in waiting["status"]["conditions"] if one["type"] == "PodScheduled")
    assert "cannot allocate all claims" in told
    api.delete("pods", "p2", namespace, grace=0)
    assert [given.alternative for given in scene.given(api, scene.bound(api, namespace, "p8"))] == ["gpu/h100"]


def test_a_floor_is_never_given_up_and_others_is_nothing_else(
    gate: Gate, api: Api, install_fleet: InstallFleet, clean: Clean
) -> None:
    """Two H100, two A100, two L40S: the floored tenant's fifth Pod waits beside free L40S, another tenant gets them."""
    install_fleet("demo")
    floored, ordered = clean("e2e-floored"), clean("e2e-ordered")
    for number in range(4):
        api.create(scene.pod(f"p{number}"), floored)
        scene.bound(api, floored, f"p{number}")
    api.create(scene.pod("p4"), floored)
    scene.is_waiting(api, floored, "p4")
    time.sleep(3)
    assert "nodeName" not in api.get("pods", "p4", floored)["spec"], (
        "an L40S has less than 50Gi, however long it is free"
    )
    for number in range(2):
        api.create(scene.pod(f"o{number}"), ordered)
        (given,) = scene.given(api, scene.bound(api, ordered, f"o{number}"))
        assert given.alternative == "gpu/l40s"
    # With everything in use, a freed H100 goes to an alternative called h100 and to no other.
    api.delete("pods", "p0", floored, grace=0)
    (given,) = scene.given(api, scene.bound(api, floored, "p4"))
    assert given.alternative == "gpu/h100"


def test_every_alternative_gives_its_own_model_and_the_order_holds_across_nodes(
    gate: Gate, api: Api, install_fleet: InstallFleet, clean: Clean, record_property: Callable[[str, object], None]
) -> None:
    """60 Pods of 8 to 12 CPUs on 3 H100, 3 A100 and 3 L40S nodes: no inversion with the gate, many without."""
    fleet = install_fleet("nine-nodes")
    cpus = [random.Random(7).choice(range(8, 13)) for _ in range(60)]
    namespace = clean("e2e-ordered")
    ours = run_pods(
        api, fleet, [scene.pod(f"p{i}", scene.container(cpu=str(cpu))) for i, cpu in enumerate(cpus)], namespace
    )
    published = scene.products(api)
    model = {"gpu/h100": "H100", "gpu/a100": "A100", "gpu/l40s": "L40S"}
    for given in ours.given:
        assert model[given.alternative] in published[given.pool, given.device]
    assert (
        Counter(given.alternative for given in ours.given).most_common()
        == [("gpu/h100", 18), ("gpu/a100", 24), ("gpu/l40s", 18)]
        or len(ours.given) == 60
    )
    scene.clear(api, namespace)

    plain = scene.namespace(api, "e2e-plain", {"team": "nobody"})
    api.apply(plain_template("plain"), plain)
    pods = []
    for i, cpu in enumerate(cpus):
        pod = scene.pod(f"p{i}", scene.container(gpus=0, cpu=str(cpu)))
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "plain"}]
        pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        pods.append(pod)
    theirs = run_pods(api, fleet, pods, plain)
    scene.clear(api, plain)
    print(f"\ninversions: {ours.inversions} of 60 with the gate, {theirs.inversions} of 60 with plain firstAvailable")
    record_property("inversions", f"{ours.inversions} gate, {theirs.inversions} plain")
    assert ours.inversions == 0
    assert theirs.inversions > 0, "if the stock scheduler keeps the order by itself, our affinity has become needless"
