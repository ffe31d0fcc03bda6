"""Fleets: fake nodes, their DeviceClasses and ResourceSlices, from short data files; and what may befall them.

A fleet file lists node groups:

    nodes:
    - name: hopper          # with a count: hopper-0, hopper-1 …
      count: 3              # default 1
      cpu: 64               # allocatable; also memory (512Gi), pods (110)
      allocatable: {nvidia.com/gpu: 8}          # more of it, as a device plugin would report
      labels: {pool: research}                  # besides those of its kinds of device
      taints: [{key: k, value: v, effect: NoSchedule}]
      devices:              # kinds from fleets/kinds.yaml; one pool per node and driver, named after the node
        h100: 8             # or {count: 8, attributes: {driverVersion: {version: 535.0.0}}, capacity: …, taints: […]}
      slices: 1             # the devices are spread over so many slices
      perRoot: 2            # devices that share a PCIe root

`attributes` and `capacity` change or, with null, take away what the kind publishes; `classes` beside `nodes` does the
same with the specs of DeviceClasses: `{gpu.nvidia.com: {extendedResourceName: null}}`.
Everything here is constructed: real nodes are made by their kubelet and real slices by a driver.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controlplane.api import Api, ApiError, Object, wait_for

FLEETS = Path(__file__).parent / "fleets"
LABEL = "kit.dra-gate.io/fleet"  # on every object a fleet makes
_BUNDLED = ("classes.yaml", "kinds.yaml")  # what fleet files stand on, no fleets themselves
_GROUP_KEYS = {
    "name", "count", "cpu", "memory", "pods", "allocatable", "labels", "taints", "devices", "slices", "perRoot"
}  # fmt: skip
_NUMA_GROUP = 4


class FleetError(ValueError):
    """A fleet file says something that can't be made."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet as objects, ready to be created. Slices name their nodes; their owner is set when they are created."""

    name: str
    nodes: tuple[Object, ...]
    classes: tuple[Object, ...]
    slices: tuple[Object, ...]

    @classmethod
    def load(cls, name: str) -> Fleet:
        """The fleet of `fleets/<name>.yaml`. Raises FleetError."""
        path = FLEETS / f"{name}.yaml"
        if name not in fleet_names():
            raise FleetError(f"no fleet {name}: there are {', '.join(fleet_names())}")
        return cls.of(name, yaml.safe_load(path.read_text()))

    @classmethod
    def of(cls, name: str, description: Mapping[str, Any]) -> Fleet:
        """A fleet from a description of the same shape as a file. Raises FleetError."""
        kinds = yaml.safe_load((FLEETS / "kinds.yaml").read_text())
        nodes: list[Object] = []
        slices: list[Object] = []
        used: set[str] = set()
        for group in description["nodes"]:
            unknown = set(group) - _GROUP_KEYS
            if unknown:
                raise FleetError(
                    f"fleet {name}: unknown {', '.join(sorted(unknown))} in node group {group.get('name')}"
                )
            count = group.get("count", 1)
            for number in range(count):
                node = group["name"] if count == 1 else f"{group['name']}-{number}"
                wanted = _wanted_devices(name, group, kinds)
                used |= {kinds[kind]["deviceClass"] for kind in wanted}
                nodes.append(_node(name, node, group, [kinds[kind] for kind in wanted]))
                slices += _slices(name, node, group, wanted, kinds)
        classes = list(yaml.safe_load_all((FLEETS / "classes.yaml").read_text()))
        changes = dict(description.get("classes", {}))
        for one in classes:
            one["metadata"]["labels"] = {LABEL: name}
            merged = one["spec"] | changes.pop(one["metadata"]["name"], {})
            one["spec"] = {word: value for word, value in merged.items() if value is not None}
        if changes:
            raise FleetError(f"fleet {name}: no class {', '.join(changes)} in classes.yaml")
        return cls(name, tuple(nodes), tuple(c for c in classes if c["metadata"]["name"] in used), tuple(slices))

    def install(self, api: Api) -> None:
        """Creates classes, then nodes, then slices, in parallel; returns when the API server has all of them."""
        for one in self.classes:
            api.apply(one)
        api.list("nodes")  # discovery once, before the threads
        owners = dict(api.parallel(lambda node: _create_node(api, node), self.nodes))

        def publish(published: Object) -> None:
            node = published["spec"]["nodeName"]
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owners[node], "controller": True}
            api.create(published | {"metadata": published["metadata"] | {"ownerReferences": [owner]}})

        api.parallel(publish, self.slices)

    def remove(self, api: Api) -> None:
        """Deletes what `install` and the taint rules of this module made, and waits until it is gone."""
        ours = f"{LABEL}={self.name}"
        for resource in ("devicetaintrules", "resourceslices", "nodes", "deviceclasses"):
            if api.serves(resource):  # DeviceTaintRule is in v1, and on by default, since 1.37
                api.delete_all(resource, labels=ours)

        def gone() -> bool:
            return not (api.list("resourceslices", labels=ours) or api.list("nodes", labels=ours))

        wait_for(gone, 30, f"nodes and slices of {self.name} to go")


def fleet_names() -> list[str]:
    """Names of the fleets that have a file."""
    return sorted(path.stem for path in FLEETS.glob("*.yaml") if path.name not in _BUNDLED)


# -- what may befall a fleet ------------------------------------------------------------------------------------------


def slices_of(api: Api, node: str, driver: str | None = None) -> list[Object]:
    """The slices that a node publishes, by name; of one driver if given."""
    found = [s for s in api.list("resourceslices") if s["spec"].get("nodeName") == node]
    return sorted((s for s in found if driver in (None, s["spec"]["driver"])), key=lambda s: str(s["metadata"]["name"]))


def republish(
    api: Api, node: str, change: Callable[[list[Object]], list[Object]] = list, driver: str | None = None
) -> int:
    """Publishes the node's pool anew, one generation up, each slice with the devices that `change` makes of its own.

    Without `change` only the generation moves. Returns the new generation. A pool of several slices is incomplete for
    the moment between the first and the last update, as it is with a real driver. LookupError if there is no such pool,
    or pools of several drivers and none is named.
    """
    published = slices_of(api, node, driver)
    drivers = {one["spec"]["driver"] for one in published}
    if len(drivers) != 1:
        raise LookupError(f"node {node} publishes pools of {sorted(drivers) or 'no driver'}")
    generation = 1 + max(int(one["spec"]["pool"]["generation"]) for one in published)
    for one in published:
        one["spec"]["devices"] = change(one["spec"]["devices"])
        one["spec"]["pool"]["generation"] = generation
        api.replace(one)
    return generation


def take_away(api: Api, node: str, device: str) -> Object:
    """Takes a device out of its pool by a new generation, as a driver does when it is lost; returns it as it was."""
    home = _slice_with(api, node, device)
    republish(api, node, lambda devices: [d for d in devices if d["name"] != device], str(home["spec"]["driver"]))
    found: Object = next(d for d in home["spec"]["devices"] if d["name"] == device)
    return found


def taint_device(api: Api, node: str, device: str, key: str, value: str = "", effect: str = "NoSchedule") -> None:
    """Adds or changes a taint in the slice, in place, as a driver does that finds a device unhealthy."""
    taint = {"key": key, "effect": effect} | ({"value": value} if value else {})
    _edit_taints(api, node, device, lambda taints: [t for t in taints if t["key"] != key] + [taint])


def untaint_device(api: Api, node: str, device: str, key: str) -> None:
    """Takes the taints of that key off a device's slice entry."""
    _edit_taints(api, node, device, lambda taints: [t for t in taints if t["key"] != key])


def taint_rule(
    api: Api,
    name: str,
    key: str,
    effect: str = "NoSchedule",
    *,
    value: str = "",
    driver: str | None = None,
    pool: str | None = None,
    device: str | None = None,
) -> Object:
    """Creates a DeviceTaintRule for the devices that the selector names, as an operator does."""
    selector = {k: v for k, v in (("driver", driver), ("pool", pool), ("device", device)) if v is not None}
    taint = {"key": key, "effect": effect} | ({"value": value} if value else {})
    fleet = next((n["metadata"]["labels"][LABEL] for n in api.list("nodes", labels=LABEL)), "none")
    return api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name, "labels": {LABEL: fleet}},
            "spec": {"deviceSelector": selector, "taint": taint},
        }
    )


def delete_node(api: Api, node: str) -> None:
    """Deletes the Node object; the garbage collector then takes its slices, Pod GC its Pods (after a minute or so)."""
    api.delete("nodes", node)


def set_ready(api: Api, node: str, *, ready: bool) -> None:
    """Sets the Ready condition and the taints that the node lifecycle controller would then write (it is off here)."""
    api.patch("nodes", node, {"status": {"conditions": [_ready_condition(ready)]}}, subresource="status",
              content_type="application/strategic-merge-patch+json")  # fmt: skip
    key = "node.kubernetes.io/not-ready"
    kept = [t for t in api.get("nodes", node)["spec"].get("taints", []) if t["key"] != key]
    added = [] if ready else [{"key": key, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    api.patch("nodes", node, {"spec": {"taints": kept + added or None}})


def cordon(api: Api, node: str, *, on: bool = True) -> None:
    """Marks the node unschedulable, or schedulable again."""
    api.patch("nodes", node, {"spec": {"unschedulable": on or None}})


# -- making the objects -----------------------------------------------------------------------------------------------


def _wanted_devices(fleet: str, group: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Object]:
    wanted = {}
    for kind, what in group.get("devices", {}).items():
        if kind not in kinds:
            raise FleetError(f"fleet {fleet}: no kind {kind} in kinds.yaml: there are {', '.join(kinds)}")
        wanted[kind] = what if isinstance(what, dict) else {"count": what}
        unknown = set(wanted[kind]) - {"count", "attributes", "capacity", "taints"}
        if unknown:
            raise FleetError(f"fleet {fleet}: unknown {', '.join(sorted(unknown))} in the devices of {group['name']}")
    return wanted


def _node(fleet: str, name: str, group: Mapping[str, Any], kinds: Iterable[Mapping[str, Any]]) -> Object:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", LABEL: fleet}
    for kind in kinds:
        labels |= kind["nodeLabels"]
    amounts = {"cpu": group.get("cpu", 64), "memory": group.get("memory", "512Gi"), "pods": group.get("pods", 110)}
    amounts |= {"ephemeral-storage": "1Ti"} | group.get("allocatable", {})
    quantities = {resource: str(amount) for resource, amount in amounts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | group.get("labels", {})},
        "spec": {"taints": group.get("taints", [])},
        "status": {"capacity": quantities, "allocatable": quantities, "conditions": [_ready_condition(True)]},
    }


def _ready_condition(ready: bool) -> Object:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "Constructed",
        "message": "written by the control-plane kit: there is no kubelet",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def _create_node(api: Api, node: Object) -> tuple[str, str]:
    stored = api.create(node)
    # Admission (TaintNodesByCondition) taints every new node not-ready; here nobody would take that away.
    name = node["metadata"]["name"]
    api.patch("nodes", name, {"spec": {"taints": node["spec"]["taints"] or None}})
    return name, stored["metadata"]["uid"]


def _slices(
    fleet: str, node: str, group: Mapping[str, Any], wanted: Mapping[str, Object], kinds: Mapping[str, Any]
) -> list[Object]:
    pools: dict[str, list[Object]] = {}
    index = 0
    for kind, what in wanted.items():
        for _ in range(what["count"]):
            pools.setdefault(kinds[kind]["driver"], []).append(
                _device(node, index, kinds[kind], what, group.get("perRoot", 2))
            )
            index += 1
    made: list[Object] = []
    for driver, devices in pools.items():
        size = math.ceil(len(devices) / group.get("slices", 1))
        parts = [devices[at : at + size] for at in range(0, len(devices), size)]
        made += [_slice(fleet, driver, node, number, len(parts), part) for number, part in enumerate(parts)]
    return made


def _slice(fleet: str, driver: str, node: str, number: int, count: int, devices: list[Object]) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        # The number comes first, as the drivers' common helper does it: slices are used in the order of their names.
        "metadata": {"name": f"{number:05x}-{driver}-{node}", "labels": {LABEL: fleet}},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": count},
            "devices": devices,
        },
    }


def _device(node: str, index: int, kind: Mapping[str, Any], what: Mapping[str, Any], per_root: int) -> Object:
    root = index // per_root
    bus = f"0000:{0x10 + 0x10 * root:02x}:{index % per_root:02x}.0"
    values: dict[str, str | int] = {
        "node": node,
        "index": index,
        "render": 128 + index,
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{index}.{node}")),
        "bus": bus,
        "dashed-bus": bus.replace(":", "-").replace(".", "-"),
        "root": f"pci0000:{0x10 + 0x10 * root:02x}",
        "numa": index // _NUMA_GROUP,
    }
    device: Object = {"name": _fill(kind["name"], values)}
    for part in ("attributes", "capacity"):
        merged = kind[part] | what.get(part, {})
        device[part] = {name: _fill(value, values) for name, value in merged.items() if value is not None}
    if what.get("taints"):
        device["taints"] = what["taints"]
    return device


def _fill(value: Any, values: Mapping[str, str | int]) -> Any:
    if isinstance(value, dict):
        return {name: _fill(inner, values) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    whole = values.get(value[1:-1]) if value.startswith("{") and value.endswith("}") else None
    if whole is not None:
        return whole  # keeps a number a number
    for name, text in values.items():
        value = value.replace("{" + name + "}", str(text))
    return value


def _slice_with(api: Api, node: str, device: str) -> Object:
    for one in slices_of(api, node):
        if any(d["name"] == device for d in one["spec"]["devices"]):
            return one
    raise LookupError(f"node {node} publishes no device {device}")


def _edit_taints(api: Api, node: str, device: str, change: Callable[[list[Object]], list[Object]]) -> None:
    for attempt in range(5):
        home = _slice_with(api, node, device)
        entry = next(d for d in home["spec"]["devices"] if d["name"] == device)
        entry["taints"] = change(entry.get("taints", []))
        try:
            api.replace(home)
        except ApiError as problem:
            if problem.status != 409 or attempt == 4:  # somebody else wrote the slice in between
                raise
        else:
            return
