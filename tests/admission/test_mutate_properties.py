"""Promises about every patch, over generated Pods: it applies, a second pass is empty, nothing else changes."""

from __future__ import annotations

import base64
import copy
import json
import os
from typing import Any

import hypothesis
import jsonpatch
from hypothesis import strategies as st

from admission import pods, setting
from cases import invariants
from dra_gate.admission import convert, rules
from dra_gate.admission.mutate import mutate
from dra_gate.admission.request import respond
from dra_gate.admission.scope import scope_of
from dra_gate.admission.validate import validate
from dra_gate.kube import pod as pod_reader
from dra_gate.kube.patch import apply

# 10,000 by default; `DRA_GATE_EXAMPLES` asks for more or fewer.
EXAMPLES = int(os.environ.get("DRA_GATE_EXAMPLES", "10000"))
NAMESPACES = ["fern-dev", "fern-canary", "moss", "nobody", "typo", "plugin", "open", "kube-system", "made-just-now"]
many = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True
)


@many
@hypothesis.given(
    pod=st.one_of(pods.pods(), pods.pods(valid=True)),
    namespace=st.sampled_from(NAMESPACES),
    void=st.sampled_from(["envFrom", "withoutClaim", "off"]),
)
def test_every_patch(pod: dict[str, Any], namespace: str, void: str) -> None:
    before = copy.deepcopy(pod)
    request, facts = setting.request(pod, namespace=namespace), setting.facts_where_void_is_set(void)
    verdict = mutate(request, facts)
    assert pod == before, "a decision changes nothing it is given"
    # What is sent is what was decided, byte for byte as JSON.
    response = json.loads(respond(request, verdict))["response"]
    operations = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    assert operations == list(verdict.patch)

    after = jsonpatch.JsonPatch(operations).apply(copy.deepcopy(pod))
    assert apply(pod, operations) == after, "offline review sees what a strict RFC 6902 library makes"
    assert verdict.allowed or not operations
    if not operations:
        return
    invariants.check(before, after)

    again = mutate(setting.request(after, namespace=namespace), facts)
    assert again.allowed
    assert again.patch == ()
    assert not (again.audit.items() ^ verdict.audit.items()), "both rounds say the same"

    scope = scope_of(namespace, facts)
    assert scope is not None
    check_devices(before, after, namespace)
    final = validate(setting.request(after, namespace=namespace), facts)
    as_written = {rule.id for rule in rules.ALL if rule.as_written}
    assert {finding.rule for finding in final.findings} <= {"foreign-claim", *as_written}, final.findings


def check_devices(before: dict[str, Any], after: dict[str, Any], namespace: str) -> None:
    """Every container sees as many devices as it asked for; those that run together share none that the gate gave."""
    facts = setting.facts()
    scope = scope_of(namespace, facts)
    assert scope is not None
    templates = convert.tenant_templates(after, scope, facts)
    new = {
        entry["name"]
        for entry in after["spec"].get("resourceClaims", [])[len(before["spec"].get("resourceClaims", [])) :]
    }
    asked: dict[Any, int] = {}
    for request in convert.device_requests(before, facts):
        asked[request.container.path] = asked.get(request.container.path, 0) + (request.count or 0)
    running: dict[str, Any] = {}
    for was, now in zip(pod_reader.containers(before), pod_reader.containers(after), strict=True):
        added = now.claim_names()[len(was.claim_names()) :]
        assert sum(templates[name].count for name in added) == asked.get(was.path, 0)
        assert len(added) <= 1, "one claim a container, so that its devices are of one model"
        for name in added:
            if not was.is_serial_init and name in new:
                assert name not in running, "containers that run at the same time share nothing"
                running[name] = was.path
    for container in pod_reader.containers(after):
        if container.is_serial_init:
            continue
        for name in container.claim_names():
            assert name not in running or running[name] == container.path


@hypothesis.settings(max_examples=2000, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(value=pods.ANYTHING, where=st.sampled_from(["spec", "metadata", "containers", "resources", "entry"]))
def test_garbage_never_crashes(value: Any, where: str) -> None:
    pod: dict[str, Any] = setting.pod()
    if where in ("spec", "metadata"):
        pod[where] = value
    elif where == "containers":
        pod["spec"]["containers"] = value
    elif where == "resources":
        pod["spec"]["containers"][0]["resources"] = value
    else:
        pod["spec"]["resourceClaims"] = [value]
    for decide in (mutate, validate):
        verdict = decide(setting.request(pod), setting.facts())
        apply(pod, list(verdict.patch))
