"""Failures as the controller tells them on a real control plane, with the rights that we ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocation.failures.test_constructed import write_prepare_event
from controller.test_decisions_controlplane import LANE, World, controlling, kubeconfig, metric
from controlplane import fleet as fleets
from controlplane.api import Api, wait_for
from controlplane.fixture_types import InstallFleet, MakeNamespace
from controlplane.rate import plain_template

pytestmark = pytest.mark.controlplane
__all__ = ["kubeconfig"]  # a fixture


@pytest.fixture
def world(api: Api, install_fleet: InstallFleet, make_namespace: MakeNamespace) -> World:
    install_fleet("demo")
    return World(api, make_namespace(labels=LANE))


def failures(controller: object, row: str, klass: str) -> float:
    return metric(controller, "dra_gate_allocation_failures_total", reason=row, **{"class": klass})  # type: ignore[arg-type]


def test_a_missing_template_is_told_from_the_event(world: World, kubeconfig: Path) -> None:
    with controlling(world, kubeconfig) as (controller, _):
        world.pod("early", {"resourceClaimTemplateName": "later"})
        assert world.told("early", "Operator").startswith(
            "template-missing: The template of its claim does not exist. "
        )
        wait_for(lambda: failures(controller, "template-missing", "operator") == 1, 10, "it to be counted")
        assert [event["reason"] for event in world.events("early")] == ["DevicesOperator"]
        world.api.create(plain_template("later"), world.namespace)
        assert "h100" in world.told("early", "FirstChoice")


def test_a_missing_claim_is_told_after_a_while_though_the_scheduler_is_silent(
    world: World,
    kubeconfig: Path,
) -> None:
    with controlling(world, kubeconfig) as (controller, _):
        world.pod("alone", {"resourceClaimName": "never"})
        assert world.told("alone", "Waiting").startswith("claim-missing: The claim that it names does not exist. ")
        wait_for(lambda: failures(controller, "claim-missing", "waiting") == 1, 10, "it to be counted")


def test_a_driver_that_is_gone_is_told_of_a_pod_that_has_its_device(world: World, kubeconfig: Path) -> None:
    """The kubelet's event is constructed (see test_constructed.py)."""
    with controlling(world, kubeconfig) as (controller, _):
        world.pod("bound")
        world.told("bound", "FirstChoice")
        world.quiet("bound")
        write_prepare_event(world.api, world.namespace, "bound", "DRA driver gpu.nvidia.com is not registered")
        wait_for(
            lambda: "; retryable/driver-unregistered: " in world.condition("bound")["message"], 30, "it to be told"
        )
        condition = world.condition("bound")
        assert (condition["status"], condition["reason"]) == ("True", "FirstChoice")
        wait_for(lambda: failures(controller, "driver-unregistered", "retryable") == 1, 10, "it to be counted")
        notes = sorted(event["note"] for event in world.events("bound"))
        assert any("retryable: The driver is not registered on the node. " in note for note in notes)
        allocations = {"tenant": "oak", "policy": "train@1", "model": "h100", "rank": "1"}
        assert metric(controller, "dra_gate_allocations_total", **allocations) == 1, "it was allocated once"


def test_an_eviction_by_a_device_taint_is_told(world: World, kubeconfig: Path) -> None:
    with controlling(world, kubeconfig):
        world.pod("evicted")
        world.told("evicted", "FirstChoice")
        name = f"drain-{world.namespace}"
        fleets.taint_rule(world.api, name, "kit/drain", "NoExecute", driver="gpu.nvidia.com", pool="hopper")
        told = world.told("evicted", "Infrastructure")
        assert told.startswith("evicted-by-device-taint: A taint on its device ended it. ")
