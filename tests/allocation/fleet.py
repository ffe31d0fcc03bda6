"""Small fleets as raw objects, and what there is of each model counted the slow way: from all objects at once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from dra_gate.cel import EvaluationError, compile, device_of  # noqa: A004
from dra_gate.policy.compile import model_selector, words
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, PolicySet

Object = dict[str, Any]
API = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
BACK = ("", "held back")
NOW = 1_796_000_000.0
PRODUCTS = {"h100": "NVIDIA H100 80GB HBM3", "a100": "NVIDIA A100-SXM4-80GB", "l40s": "NVIDIA L40S"}


def documents() -> list[Object]:
    models = [
        {"name": name, "deviceClassName": "gpu.nvidia.com", "products": [product[:11] + "*"]}
        for name, product in PRODUCTS.items()
    ]
    policies = [
        ("train", 1, ["h100", "a100", "l40s"], {"memory": {"min": "50Gi"}, "driverVersion": {"min": "550.0.0"}}),
        ("any", 1, ["a100", "others"], {}),
    ]
    tenants = [("maple", "train@1", ["m1", "m2"]), ("birch", "any@1", ["b1"])]
    return [
        {**API, "kind": "DeviceCatalog", "models": models},
        *(
            {
                **API,
                "kind": "DevicePolicy",
                "metadata": {"name": name, "version": version},
                "spec": {"serves": ["nvidia.com/gpu"], "candidates": order, "constraints": constraints},
            }
            for name, version, order, constraints in policies
        ),
        *(
            {**API, "kind": "Tenant", "metadata": {"name": name}, "spec": {"policy": ref, "namespaces": namespaces}}
            for name, ref, namespaces in tenants
        ),
    ]


def policy_set(*more: Object) -> PolicySet:
    return load_documents({f"{n}.yaml": json.dumps(one).encode() for n, one in enumerate([*documents(), *more])})


def device(name: str, model: str, memory: str = "80Gi", driver: str = "580.1.0", **more: Any) -> Object:
    return {
        "name": name,
        "attributes": {
            "productName": {"string": PRODUCTS.get(model, model)},
            "driverVersion": {"version": driver},
            "type": {"string": "gpu"},
        },
        "capacity": {"memory": {"value": memory}},
        **more,
    }


def slice_of(node: str, devices: list[Object], generation: int = 1, count: int = 1, pool: str = "") -> Object:
    where: Object = {"nodeName": node} if node else {"allNodes": True}
    pools = {"name": pool or node, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": "gpu.nvidia.com", **where, "pool": pools, "devices": devices}}


def node(ready: str = "True", *, cordoned: bool = False) -> Object:
    conditions = [{"type": "Ready", "status": ready}]
    return {"spec": {"unschedulable": True} if cordoned else {}, "status": {"conditions": conditions}}


def claim(*devices: tuple[str, str], **more: Any) -> Object:
    results = [
        {"request": "gpu/x", "driver": "gpu.nvidia.com", "pool": pool, "device": name, **more} for pool, name in devices
    ]
    return {"status": {"allocation": {"devices": {"results": results}}}} if devices else {}


def gpu_class(expression: str = "device.attributes['gpu.nvidia.com'].type == 'gpu'") -> Object:
    return {"spec": {"selectors": [{"cel": {"expression": expression}}]}}


def taint_rule(selector: Object | None, effect: str = "NoSchedule", key: str = "bad") -> Object:
    spec: Object = {"taint": {"key": key, "effect": effect, "timeAdded": "2026-11-30T10:00:00Z"}}
    return {"spec": spec if selector is None else {**spec, "deviceSelector": selector}}


# -- the slow way ------------------------------------------------------------------------------------------------------


def counted(sets: PolicySet, kinds: dict[str, dict[tuple[str, str], Object]]) -> dict[str, Any]:
    """By model and by policy and candidate, in the plainest loops there are."""
    rows = list(_rows(sets, kinds))
    models = {}
    for name in sets.models:
        mine = [row for row in rows if row["model"] == name]
        models[name] = {
            "published": len(mine),
            "largest": max(Counter(row["node"] for row in mine).values(), default=0),
            "healthy": sum(not row["why"] for row in mine),
            "free": sum(not row["why"] and not row["tenants"] for row in mine),
            "charged": dict(Counter(tenant for row in mine for tenant in row["tenants"])),
            "unusable": dict(Counter(row["why"] for row in mine if row["why"])),
        }
    orders = {}
    for ref, policy in sets.policies.items():
        for name in policy.candidates:
            tests = words(sets.models[name], policy.constraints)[1:]
            mine = [row for row in rows if row["model"] == name]
            fails = [next((w for w, e in tests if not _true(e, row["device"])), "") for row in mine]
            good = [row for row, failed in zip(mine, fails, strict=True) if not failed]
            free = [row for row in good if not row["why"] and not row["tenants"]]
            orders[ref, name] = {
                "published": len(mine),
                "matching": len(good),
                "usable": sum(not row["why"] for row in good),
                "free": len(free),
                "own": sum("maple" in row["tenants"] for row in good),
                "places": sum(count >= 2 for count in Counter(row["node"] for row in free).values()),
                "turned_away": dict(Counter(failed for failed in fails if failed)),
            }
    return {"models": models, "orders": orders, "kinds": _kinds(sets, rows)}


def _kinds(sets: PolicySet, rows: list[Object]) -> list[Any]:
    """Healthy devices that answer alike to what any policy asks of their model: model, healthy, free, whole."""
    alike: dict[Any, list[Object]] = {}
    for row in rows:
        if row["model"] and not row["why"]:
            asked = {
                expression
                for policy in sets.policies.values()
                if row["model"] in policy.candidates
                for _, expression in words(sets.models[row["model"]], policy.constraints)[1:]
            }
            answers = frozenset(expression for expression in asked if _true(expression, row["device"]))
            alike.setdefault((row["model"], answers), []).append(row)
    return sorted(
        (
            model,
            len(mine),
            sorted(Counter(Counter(row["node"] for row in mine if not row["tenants"]).values()).items()),
            sorted(Counter(Counter(row["node"] for row in mine).values()).items()),
        )
        for (model, _), mine in alike.items()
    )


def _rows(sets: PolicySet, kinds: dict[str, dict[tuple[str, str], Object]]) -> Any:
    slices = [obj["spec"] for obj in kinds["slice"].values()]
    for spec in slices:
        home, pool = spec.get("nodeName", ""), spec["pool"]
        same = [s for s in slices if (s["driver"], s["pool"]["name"]) == (spec["driver"], pool["name"])]
        seen = [s for s in same if s.get("nodeName", "") in ("", home)]
        newest = max(s["pool"]["generation"] for s in seen)
        if pool["generation"] < newest:
            continue
        seen = [s for s in seen if s["pool"]["generation"] == newest]
        everywhere = [s for s in same if s["pool"]["generation"] == newest]
        names = [d["name"] for s in seen for d in s["devices"]]
        why = ""
        if any(s["pool"]["resourceSliceCount"] != len(seen) for s in seen):
            if any(s["pool"]["generation"] > newest for s in same):
                why = "pool replaced"
            elif any(s["pool"]["resourceSliceCount"] != len(everywhere) for s in everywhere):
                most = max(s["pool"]["resourceSliceCount"] for s in everywhere)
                why = "pool with extra slices" if len(everywhere) > most else "pool incomplete"
        if not why and len(names) != len(set(names)):
            why = "pool invalid"
        for raw in spec["devices"]:
            holders = [
                key[0]
                for key, obj in kinds["claim"].items()
                for r in obj.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
                if (r["pool"], r["device"]) == (pool["name"], raw["name"]) and not r.get("adminAccess")
            ]
            if not holders and (spec["driver"], pool["name"], raw["name"]) in kinds.get("back", {}).get(BACK, ()):
                holders = [""]
            reason = why or _node_reason(home, kinds) or _taint_reason(spec, raw, kinds)
            yield {
                "model": _model(sets, raw, kinds),
                "why": reason,
                "tenants": {sets.tenant_by_namespace.get(namespace, "") for namespace in holders},
                "device": device_of("gpu.nvidia.com", raw),
                "node": home,
            }


def _node_reason(home: str, kinds: dict[str, dict[tuple[str, str], Object]]) -> str:
    if not home:
        return ""
    found = kinds["node"].get(("", home))
    if found is None:
        return "node lost"
    if found["status"]["conditions"][0]["status"] != "True":
        return "node not ready"
    return "node cordoned" if found["spec"].get("unschedulable") else ""


def _taint_reason(spec: Object, raw: Object, kinds: dict[str, dict[tuple[str, str], Object]]) -> str:
    taints = list(raw.get("taints", []))
    rules = []
    for key, obj in kinds["rule"].items():
        selector = obj["spec"].get("deviceSelector")
        wanted = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": raw["name"]}
        if selector is not None and all(wanted[word] == value for word, value in selector.items()):
            order = tuple(word in selector for word in ("driver", "pool", "device"))
            rules.append((order, key[1], obj["spec"]["taint"]))
    taints += [taint for _, _, taint in sorted(rules, key=lambda rule: rule[:2])]
    return next((f"taint {t['key']}:{t['effect']}" for t in taints if t["effect"] in ("NoSchedule", "NoExecute")), "")


def _model(sets: PolicySet, raw: Object, kinds: dict[str, dict[tuple[str, str], Object]]) -> str:
    found = kinds["class"].get(("", "gpu.nvidia.com"))
    if found is None:
        return ""
    expressions = [one["cel"]["expression"] for one in found["spec"]["selectors"]]
    seen = device_of("gpu.nvidia.com", raw)
    return next(
        (m.name for m in sets.models.values() if all(_true(e, seen) for e in (*expressions, model_selector(m)))), ""
    )


def _true(expression: str, seen: Any) -> bool:
    try:
        return compile(expression).evaluate(seen)
    except EvaluationError:
        return False


TRAIN = PolicyRef("train", 1)
