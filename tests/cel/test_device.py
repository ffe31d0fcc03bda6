"""Devices as published, and as the API server would refuse them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dra_gate.cel import Device, compile, device_of  # noqa: A004
from dra_gate.kube.quantity import Quantity
from dra_gate.kube.semver import Semver

PUBLISHED = {
    "name": "gpu-0",
    "attributes": {
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "driverVersion": {"version": "580.126.20"},
        "index": {"int": -(2**63)},
        "healthy": {"bool": False, "string": None},
        "tags": {"strings": ["a", "b"]},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
    },
    "capacity": {"memory": {"value": "81559Mi"}, "shares": {"value": 10}, "other.io/links": {"value": "4"}},
    "allowMultipleAllocations": True,
}


def test_bare_names_go_under_the_driver() -> None:
    device = device_of("gpu.nvidia.com", PUBLISHED)
    assert device == Device(
        "gpu.nvidia.com",
        {
            "gpu.nvidia.com": {
                "productName": "NVIDIA H100 80GB HBM3",
                "driverVersion": Semver(580, 126, 20),
                "index": -(2**63),
                "healthy": False,
                "tags": ("a", "b"),
            },
            "resource.kubernetes.io": {"pcieRoot": "pci0000:01"},
        },
        {
            "gpu.nvidia.com": {"memory": Quantity.parse("81559Mi"), "shares": Quantity.parse("10")},
            "other.io": {"links": Quantity.parse("4")},
        },
        allow_multiple_allocations=True,
    )


def test_absent_parts() -> None:
    device = device_of("d", {"name": "gpu-0"})
    assert device == Device("d")
    assert not compile("device.allowMultipleAllocations").evaluate(device)


def test_a_device_does_not_follow_its_source() -> None:
    source: dict[str, Any] = {"d": {"x": "a"}}
    device = Device("d", source)
    source["d"]["x"] = "b"
    assert compile("device.attributes['d'].x == 'a'").evaluate(device)


@pytest.mark.parametrize(
    ("device", "path"),
    [
        ({"attributes": {"v": {"version": "1.2"}}}, "attributes[v].version: "),
        ({"attributes": {"v": {"version": "550.127.08"}}}, "attributes[v].version: "),
        ({"attributes": {"v": {}}}, "attributes[v]: exactly one value"),
        ({"attributes": {"v": {"string": "a", "int": 1}}}, "attributes[v]: exactly one value"),
        ({"attributes": {"v": {"float": 1.5}}}, "attributes[v].float: unknown kind"),
        ({"attributes": {"v": {"int": True}}}, "attributes[v].int: "),
        ({"attributes": {"v": {"int": "1"}}}, "attributes[v].int: "),
        ({"attributes": {"v": {"int": 2**63}}}, "attributes[v].int: "),
        ({"attributes": {"v": {"bool": "true"}}}, "attributes[v].bool: "),
        ({"attributes": {"v": {"string": "a" * 65}}}, "attributes[v].string: longer than 64 bytes"),
        ({"attributes": {"v": {"string": "a\ud800"}}}, "attributes[v].string: half a character"),
        ({"attributes": {"v": {"strings": []}}}, "attributes[v].strings: "),
        ({"attributes": {"v": {"versions": ["1.0.0", "x"]}}}, "attributes[v].versions[1]: "),
        ({"attributes": {"v": "a"}}, "attributes[v]: an object"),
        ({"attributes": []}, "attributes: an object"),
        ({"capacity": {"m": {"value": "40GB"}}}, "capacity[m].value: "),
        ({"capacity": {"m": "40Gi"}}, "capacity[m]: an object"),
        ({"allowMultipleAllocations": "yes"}, "allowMultipleAllocations: "),
    ],
)
def test_refused_with_the_path(device: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(path)}"):
        device_of("d", device)


def test_what_is_remembered_is_what_would_be_read() -> None:
    """One text as string, version and capacity stays three values; what cannot be read is refused each time."""
    raw = {
        "attributes": {"a": {"string": "1.0.0"}, "b": {"version": "1.0.0"}, "c": {"bool": True}, "d": {"int": 1}},
        "capacity": {"e": {"value": "1"}, "f": {"value": 1}},
    }
    known: dict[tuple[str, str], object] = {}
    for _ in range(2):
        assert device_of("x.example", raw, known) == device_of("x.example", raw)
        with pytest.raises(ValueError, match=r"attributes\[a\]"):
            device_of("x.example", {"attributes": {"a": {"version": "one"}}}, known)
    assert device_of("x.example", raw, known).attributes["x.example"]["a"] == "1.0.0"
