"""What an expression reads: a device that has nothing else gets the same verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dra_gate.cel import CelError, Device, EvaluationError, Program, compile, device_of  # noqa: A004

RECORDED = yaml.load((Path(__file__).parent / "selectors.yaml").read_text("utf-8"), yaml.CSafeLoader)
DEVICES = [device_of("d", raw) for raw in RECORDED["devices"]]


def said(program: Program, device: Device) -> bool | str:
    try:
        return program.evaluate(device)
    except EvaluationError as error:
        return str(error)


def only(device: Device, names: frozenset[tuple[str, str, str]]) -> Device:
    """The device with nothing but these."""
    kept: dict[str, dict[str, dict[str, object]]] = {"attributes": {}, "capacity": {}}
    for kind, domain, name in names:
        entries = getattr(device, kind)
        if domain in entries and name in entries[domain]:
            kept[kind].setdefault(domain, {})[name] = entries[domain][name]
    return Device(device.driver, kept["attributes"], kept["capacity"], device.allow_multiple_allocations)  # type: ignore[arg-type]


def test_a_device_with_nothing_else_gets_the_same_verdict() -> None:
    narrow = 0
    for case in RECORDED["cases"] if "cases" in RECORDED else RECORDED["selectors"]:
        try:
            program = compile(case["expression"])
        except CelError:
            continue
        if program.reads is not None:
            narrow += any(program.reads)
            for device in DEVICES:
                assert said(program, device) == said(program, only(device, program.reads)), case["expression"]
    assert narrow > 20


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("device.attributes['a'].x == 1", {("attributes", "a", "x")}),
        ("has(device.attributes['a'].x)", {("attributes", "a", "x")}),
        ("device.attributes['a'].?x.orValue(0) == 1", {("attributes", "a", "x")}),
        ("device.attributes['a'][?'x'].orValue(0) == 1", {("attributes", "a", "x")}),
        ("'x' in device.attributes['a']", {("attributes", "a", "x")}),
        ("device.capacity.a.m.isGreaterThan(quantity('1'))", {("capacity", "a", "m")}),
        ("device.driver == 'd'", set()),
        ("'a' in device.attributes", None),
        ("cel.bind(a, device.attributes['a'], has(a.x))", None),
        ("device.attributes[device.driver].x == 1", None),
        ("device.attributes['a'].exists(k, k == 'x')", None),
    ],
)
def test_names(expression: str, names: set[tuple[str, str, str]] | None) -> None:
    assert compile(expression).reads == names
