"""What claims can reach: how much of other people's CEL is looked at."""

from __future__ import annotations

import time
from typing import Any

import pytest

from admission import setting
from dra_gate.admission.reach import Reach

NARROW = "device.driver == 'nic.example'"


def reach() -> Reach:
    made = Reach(setting.policy_set().models.values())
    made.set_class("everything.example", {})
    made.set_class("nic.example", {"selectors": [{"cel": {"expression": NARROW}}]})
    return made


def asking(device_class: str, *selectors: str) -> dict[str, Any]:
    wanted = {"deviceClassName": device_class, "selectors": [{"cel": {"expression": text}} for text in selectors]}
    return {"name": "r", "exactly": wanted}


@pytest.mark.parametrize(
    ("device_class", "length", "reached"),
    [("everything.example", 3000, False), ("everything.example", 5000, True), ("nic.example", 5000, False)],
)
def test_long_selectors_narrow_nothing(device_class: str, length: int, reached: bool) -> None:
    spec = {"devices": {"requests": [asking(device_class, NARROW, "true" + " && true" * (length // 8))]}}
    assert bool(reach().of_spec(spec)) == reached


def test_a_template_full_of_selectors_takes_no_time() -> None:
    """1 MiB of them, each another, that would take seconds to parse."""
    texts = [f"device.driver != '{number}'" + f" && device.driver != 'x{number}'" * 300 for number in range(128)]
    requests = [asking("everything.example", *texts[number : number + 4]) for number in range(0, 128, 4)]
    begun = time.process_time()
    assert len(reach().of_spec({"devices": {"requests": requests}})) == 32
    assert time.process_time() - begun < 1


def test_a_new_spec_is_judged_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What objects have carried counts; any other selector narrows nothing, however it reads."""
    judged = reach()
    spec = {"devices": {"requests": [asking("everything.example", NARROW)]}}
    assert [reached.request for reached in judged.of_new_spec(spec)] == ["r"]
    assert judged.of_spec(spec) == ()

    def refuse(*_: object) -> bool:
        raise AssertionError("compiled inside a decision")

    monkeypatch.setattr("dra_gate.cel.could_accept", refuse)
    monkeypatch.setattr("dra_gate.cel.compile", refuse)
    assert judged.of_new_spec(spec) == ()
    never_seen = {
        "devices": {"requests": [asking("everything.example", f"{NARROW} && true"), asking("nic.example", "x")]}
    }
    assert [reached.why for reached in judged.of_new_spec(never_seen)] == [
        "device class everything.example and its selectors can accept a device of driver gpu.nvidia.com"
    ]


def big_class(expression: str) -> dict[str, Any]:
    """A class that only a published device makes a gated one."""
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"kind": "DeviceClass", "metadata": {"name": "big.example"}, "spec": spec}


MODEL = "device.attributes['gpu.nvidia.com'].productName"
BIG = f"has({MODEL}) && {MODEL}.startsWith('NVIDIA H')"


def published() -> dict[str, Any]:
    device = {"name": "gpu-0", "attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}}}
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "n", "devices": [device]},
    }


def test_a_gated_class_stays_gated_while_it_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions are made while another thread judges: they see what was before, or what is after."""
    world = setting.world(published(), big_class(BIG))
    spec = {"devices": {"requests": [asking("big.example")]}}
    meanwhile: list[bool] = []
    judge_slice = Reach.judge_slice

    def slowly(judged: Reach, published: Any) -> bool:
        meanwhile.append(bool(world.facts().reached_by(spec)))
        return judge_slice(judged, published)

    monkeypatch.setattr(Reach, "judge_slice", slowly)
    world.apply(big_class(f"{BIG} && true"))
    assert meanwhile
    assert all(meanwhile)
    assert world.facts().reached_by(spec)
    world.apply(big_class("device.driver == 'nic.example'"))
    assert not world.facts().reached_by(spec)
