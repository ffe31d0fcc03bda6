"""Small clusters in few words, as the tables under cases/ write them, made into the objects of the API.

slice    {name, driver: d, node | labels (of nodes) | nodeSelector | allNodes | perDevice, pool: the node's name,
          generation: 1, of: 1, devices, counters: {set: {counter: amount}}}
device   "name" or "name model …" in one string, or an object of the API in which `model` and `root` are attributes
request  {name, class: gpu, count, all, admin, model, select: [CEL], tolerations, capacity, first: [the same]}
held     {claim: name, devices: [d/pool/device], share, consumed: {name: amount}, admin}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_gate.allocation import Snapshot, snapshot_of

Object = dict[str, Any]
DRIVER = "d"


def snapshot(case: Mapping[str, Any]) -> Snapshot:
    """The snapshot of a case; its claims are those that hold something."""
    objects = [
        *(_node(name, labels) for name, labels in case.get("nodes", {"n1": {}}).items()),
        *(_slice(one) for one in case.get("slices", ())),
        *(_class(name, selectors) for name, selectors in case.get("classes", {"gpu": []}).items()),
        *(_rule(number, one) for number, one in enumerate(case.get("rules", ()))),
        *(_held(one) for one in case.get("held", ())),
    ]
    return snapshot_of(objects, version=case.get("version", "v1.37.2"), gates=case.get("gates", {}))


def claims(case: Mapping[str, Any]) -> list[Object]:
    """The claims to allocate: `claims`, or one of the name `c` with `requests` and `constraints`."""
    listed = case.get("claims") or [{key: case[key] for key in ("requests", "constraints") if key in case}]
    return [_claim(one, number) for number, one in enumerate(listed)]


def _node(name: str, labels: Object | None) -> Object:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}}


def _slice(one: Object) -> Object:
    one = dict(one)
    node, driver = one.pop("node", None), one.pop("driver", DRIVER)
    spec: Object = {
        "driver": driver,
        "pool": {
            "name": one.pop("pool", node),
            "generation": one.pop("generation", 1),
            "resourceSliceCount": one.pop("of", 1),
        },
    }
    if node:
        spec["nodeName"] = node
    if one.pop("perDevice", False):
        spec["perDeviceNodeSelection"] = True
    if "labels" in one:
        expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in one.pop("labels").items()]
        spec["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    counters = one.pop("counters", None)
    if counters:
        spec["sharedCounters"] = [{"name": name, "counters": _values(of)} for name, of in counters.items()]
    else:
        spec["devices"] = [_device(device) for device in one.pop("devices", ())]
    return {"kind": "ResourceSlice", "metadata": {"name": one.pop("name", node)}, "spec": spec | one}


def _values(amounts: Mapping[str, Any]) -> Object:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}


def _device(source: str | Object) -> Object:
    if isinstance(source, str):
        words = source.split()
        source = {"name": words[0], **({"model": words[1]} if words[1:] else {})}
    device = dict(source)
    attributes = {name: {"string": device.pop(name)} for name in ("model", "root") if name in device}
    if "capacity" in device:
        device["capacity"] = {
            name: value if isinstance(value, dict) else {"value": str(value)}
            for name, value in device["capacity"].items()
        }
    if "consumes" in device:
        device["consumesCounters"] = [
            {"counterSet": name, "counters": _values(of)} for name, of in device.pop("consumes").items()
        ]
    return device | {"attributes": attributes | device.get("attributes", {})}


def _class(name: str, selectors: Iterable[str]) -> Object:
    listed = [{"cel": {"expression": expression}} for expression in selectors or ()]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": listed}}


def _rule(number: int, spec: Object) -> Object:
    return {"kind": "DeviceTaintRule", "metadata": {"name": f"rule-{number}"}, "spec": spec}


def _held(one: Object) -> Object:
    results = []
    for place in one["devices"]:
        driver, pool, device = place.split("/")
        result: Object = {"request": "r", "driver": driver, "pool": pool, "device": device}
        if "share" in one:
            result["shareID"] = one["share"]
        if "consumed" in one:
            result["consumedCapacity"] = one["consumed"]
        if one.get("admin"):
            result["adminAccess"] = True
        results.append(result)
    metadata = {"name": one["claim"], "namespace": "other", "uid": one["claim"]}
    return {"kind": "ResourceClaim", "metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


def _claim(one: Mapping[str, Any], number: int) -> Object:
    name = one.get("name", "c" if number == 0 else f"c{number}")
    devices: Object = {"requests": [_request(request) for request in one["requests"]]}
    if "constraints" in one:
        devices["constraints"] = one["constraints"]
    metadata = {"name": name, "namespace": "t", "uid": name}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}


def _request(one: Object) -> Object:
    if "first" in one:
        return {"name": one["name"], "firstAvailable": [{"name": sub["name"], **_asked(sub)} for sub in one["first"]]}
    return {"name": one["name"], "exactly": _asked(one)}


def _asked(one: Mapping[str, Any]) -> Object:
    selectors = list(one.get("select", ()))
    if "model" in one:
        selectors.append(f"device.attributes['{DRIVER}'].model == '{one['model']}'")
    asked: Object = {
        "deviceClassName": one.get("class", "gpu"),
        "selectors": [{"cel": {"expression": expression}} for expression in selectors],
    }
    if one.get("all"):
        asked["allocationMode"] = "All"
    else:
        asked |= {"allocationMode": "ExactCount", "count": one.get("count", 1)}
    if one.get("admin"):
        asked["adminAccess"] = True
    if "tolerations" in one:
        asked["tolerations"] = one["tolerations"]
    if "capacity" in one:
        asked["capacity"] = {"requests": one["capacity"]}
    return asked
