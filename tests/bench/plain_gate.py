"""The gate one would write first: Flask, the stdlib's json, cel-python for rules, jsonpatch.make_patch for patches.

It does the same job on the benchmark's requests as dra-gate (the benchmark checks that the answers agree), and is no
straw man: expressions are compiled once, a namespace's policies are looked up, not searched, template names are given.
Run by gunicorn's gthread worker; the file named by PLAIN_GATE says who owns what (see workload.write_plain).
"""

from __future__ import annotations

import base64
import copy
import json
import os
from pathlib import Path
from typing import Any

import celpy
import jsonpatch
from celpy import celtypes
from celpy.adapter import json_to_cel
from flask import Flask, Response, request

_NO_DEVICES = (
    "!has({list}) || {list}.all(c, !has(c.resources) || !has(c.resources.limits) || "
    "!c.resources.limits.exists(k, k.startsWith('nvidia.com/') || k.startsWith('deviceclass.resource.kubernetes.io/')))"
)
# (code, condition): what must hold of the final Pod.
RULES = [
    ("RESERVED_NAME", "!has(object.metadata.name) || !object.metadata.name.startsWith('dra-gate-')"),
    ("RAW_DEVICE_REQUEST", _NO_DEVICES.format(list="object.spec.containers")),
    ("RAW_DEVICE_REQUEST", _NO_DEVICES.format(list="object.spec.initContainers")),
    (
        "FOREIGN_CLAIM",
        "!has(object.spec.resourceClaims) || object.spec.resourceClaims.all(r, "
        "has(r.resourceClaimTemplateName) && r.resourceClaimTemplateName in templates)",
    ),
    (
        "NODE_POOL",
        "!has(object.spec.resourceClaims) || nodes.all(k, has(object.spec.nodeSelector) && "
        "k in object.spec.nodeSelector && object.spec.nodeSelector[k] == nodes[k])",
    ),
    (
        "FORGED_ANNOTATION",
        "stamp.all(k, has(object.metadata.annotations) && k in object.metadata.annotations && "
        "object.metadata.annotations[k] == stamp[k])",
    ),
    ("QUOTA", "used + devices <= quota"),
]

_environment = celpy.Environment()
_programs = [(code, _environment.program(_environment.compile(text))) for code, text in RULES]
_known = json.loads(Path(os.environ["PLAIN_GATE"]).read_text())
for _owner in _known["namespaces"].values():
    _owner["by_name"] = {
        name: (policy, int(count)) for policy in _owner["policies"] for count, name in policy["templates"].items()
    }
    # What does not change from request to request is converted once.
    _owner["cel_templates"] = json_to_cel(list(_owner["by_name"]))
    for _policy in _owner["policies"]:
        _policy["cel_nodes"] = json_to_cel(_policy["nodes"])

app = Flask(__name__)


@app.get("/readyz")
def readyz() -> str:
    return "ok\n"


@app.post("/mutate")
def mutate() -> Response:
    review = request.get_json()
    pod = review["request"]["object"]
    owner = _known["namespaces"].get(review["request"]["namespace"])
    if owner is None:
        return _answer(review, {"allowed": True})
    changed = copy.deepcopy(pod)
    _convert(changed, owner)
    patch = jsonpatch.make_patch(pod, changed).to_string()
    return _answer(
        review,
        {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()},
    )


@app.post("/validate")
def validate() -> Response:
    review = request.get_json()
    pod = review["request"]["object"]
    owner = _known["namespaces"].get(review["request"]["namespace"])
    if owner is None:
        return _answer(review, {"allowed": True})
    held = [
        owner["by_name"][entry["resourceClaimTemplateName"]]
        for entry in pod["spec"].get("resourceClaims", [])
        if entry.get("resourceClaimTemplateName") in owner["by_name"]
    ]
    devices = sum(count for _, count in held)
    policy = held[0][0] if held else owner["policies"][0]
    activation = {
        "object": json_to_cel(pod),
        "templates": owner["cel_templates"],
        "nodes": policy["cel_nodes"],
        "stamp": json_to_cel(_stamp(owner, policy, devices) if held else {}),
        "used": celtypes.IntType(owner["used"]),
        "quota": celtypes.IntType(owner["quota"]),
        "devices": celtypes.IntType(devices),
    }
    failed = [code for code, program in _programs if not program.evaluate(activation)]
    if not failed:
        return _answer(review, {"allowed": True})
    status = {"code": 403, "reason": "Forbidden", "message": ", ".join(failed)}
    return _answer(review, {"allowed": False, "status": status})


def _convert(pod: dict[str, Any], owner: dict[str, Any]) -> None:
    spec = pod["spec"]
    policy = owner["policies"][0]
    entries: dict[int, str] = {}  # an init container's count -> the entry of a later container with the same
    devices = 0
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        resources = container["resources"]
        count = int(resources.get("limits", {}).pop("nvidia.com/gpu", 0))
        resources.get("requests", {}).pop("nvidia.com/gpu", None)
        if not count:
            continue
        init = container not in spec["containers"]
        if init and count in entries:
            name = entries[count]
        else:
            claims = spec.setdefault("resourceClaims", [])
            name = f"gate-{len(claims)}"
            claims.append({"name": name, "resourceClaimTemplateName": policy["templates"][str(count)]})
            entries[count] = name
            devices += count
        resources.setdefault("claims", []).append({"name": name})
    if not devices:
        return
    spec.setdefault("nodeSelector", {}).update(policy["nodes"])
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    if toleration not in spec.setdefault("tolerations", []):
        spec["tolerations"].append(toleration)
    node = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    node.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).extend(policy["preferred"])
    pod["metadata"].setdefault("annotations", {}).update(_stamp(owner, policy, devices))


def _stamp(owner: dict[str, Any], policy: dict[str, Any], devices: int) -> dict[str, str]:
    return {
        "dra-gate.io/policy": policy["name"],
        "dra-gate.io/policy-version": str(policy["version"]),
        "dra-gate.io/policy-set": _known["digest"],
        "dra-gate.io/gate-generation": "0",
        "dra-gate.io/tenant": owner["tenant"],
        "dra-gate.io/lane": "dra",
        "dra-gate.io/candidates": ",".join(policy["candidates"]),
        "dra-gate.io/devices": str(devices),
    }


def _answer(review: dict[str, Any], response: dict[str, Any]) -> Response:
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], **response},
    }
    return Response(json.dumps(body), content_type="application/json")
