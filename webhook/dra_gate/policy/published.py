"""The devices that a cluster publishes, and which of them are healthy, from raw objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_gate.cel import Device, device_of
from dra_gate.kube.node import node_problem
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.resource_slice import devices_of, generation_of
from dra_gate.kube.taint import BLOCKING


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """One device of the newest generation of its pool. Equal only to itself.

    `node` is empty for a device that is not bound to one node. `unhealthy` says why claims cannot get it now, and is
    empty for a healthy one.
    """

    driver: str
    pool: str
    name: str
    node: str
    device: Device
    unhealthy: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


def published_devices(
    slices: Iterable[Object], nodes: Mapping[str, Object] | None, taint_rules: Iterable[Object] = ()
) -> tuple[list[Published], list[str]]:
    """The devices in the order in which the scheduler looks at them, and what was found wrong with pools and devices.

    `nodes` are Node objects by name; None when they are not known, then no device is unhealthy for its node.
    Only the newest generation of a pool counts, and only when all its slices are there (KEP-4381).
    """
    pools: dict[tuple[str, str], list[Object]] = {}
    for one in slices:
        spec = mapping(one.get("spec"))
        pools.setdefault((text(spec.get("driver")), text(at(spec, "pool", "name"))), []).append(one)
    devices: list[Published] = []
    problems: list[str] = []
    rules = list(taint_rules)
    for (driver, pool), members in sorted(pools.items()):
        newest = max(generation_of(one) for one in members)
        current = sorted((one for one in members if generation_of(one) == newest), key=_name)
        counts = {at(one, "spec", "pool", "resourceSliceCount") for one in current}
        names = [text(raw.get("name")) for one in current for raw in devices_of(one)]
        pool_problem = ""
        if counts != {len(current)}:
            wanted = " or ".join(sorted(str(count) for count in counts))
            pool_problem = f"pool {pool} is incomplete: {len(current)} of {wanted} slices"
        elif len(set(names)) != len(names):
            pool_problem = f"pool {pool} is invalid: a device name is there twice"
        if pool_problem:
            problems.append(f"{driver}: {pool_problem}; its devices are not given to anybody")
        for one in current:
            for raw in devices_of(one):
                name = text(raw.get("name"))
                try:
                    device = device_of(driver, raw)
                except ValueError as error:
                    problems.append(f"{driver}/{pool}/{name}: {error}")
                    continue
                node = text(at(one, "spec", "nodeName")) or text(raw.get("nodeName"))
                unhealthy = pool_problem or _taint(driver, pool, raw, rules) or _node_problem(node, nodes)
                devices.append(Published(driver, pool, name, node, device, unhealthy))
    return devices, problems


def _name(one: Object) -> str:
    return text(at(one, "metadata", "name"))


def _taint(driver: str, pool: str, raw: Object, rules: list[Object]) -> str:
    taints = [mapping(taint) for taint in sequence(raw.get("taints"))]
    for rule in rules:
        selector = at(rule, "spec", "deviceSelector")
        wanted = {"driver": driver, "pool": pool, "device": text(raw.get("name"))}
        # Without a selector a rule selects nothing: resource.k8s.io/v1 DeviceTaintRuleSpec.
        if isinstance(selector, dict) and all(selector.get(key) in (None, value) for key, value in wanted.items()):
            taints.append(mapping(at(rule, "spec", "taint")))
    blocking = (taint for taint in taints if taint.get("effect") in BLOCKING)
    return next((f"tainted {taint.get('key')}:{taint.get('effect')}" for taint in blocking), "")


def _node_problem(name: str, nodes: Mapping[str, Object] | None) -> str:
    if nodes is None or not name:
        return ""
    if name not in nodes:
        return f"node {name} is gone"
    node = nodes[name]
    if not sequence(at(node, "status", "conditions")):  # a Node that somebody wrote for a test is taken as ready
        node = {**node, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    found = node_problem(node)
    return f"node {name} is {found}" if found else ""
