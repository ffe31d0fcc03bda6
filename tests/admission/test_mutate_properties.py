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
from dra_gate.admission import convert, late, rules
from dra_gate.admission.hold import hold_of
from dra_gate.admission.mutate import mutate
from dra_gate.admission.request import respond
from dra_gate.admission.rules.rule import Context
from dra_gate.admission.scope import scope_of
from dra_gate.admission.stamp import is_held
from dra_gate.admission.validate import validate
from dra_gate.kube import pod as pod_reader
from dra_gate.kube.patch import apply

# Enough to notice what has been broken; `make prove-patches` asks for 10,000, which takes some ten minutes.
EXAMPLES = int(os.environ.get("DRA_GATE_EXAMPLES", "1500"))
# Held with templates, held with late claims, not held; and where there is nothing to do. Not lane device-plugin.
NAMESPACES = [
    *("fern-dev", "fern-canary", "moss", "reed", "birch", "alder"),
    *("nobody", "typo", "open", "kube-system", "made-just-now"),
]
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

    again = mutate(setting.request(after, namespace=namespace, uid="another"), facts)
    assert again.allowed
    assert again.patch == ()
    assert not (again.audit.items() ^ verdict.audit.items()), "both rounds say the same"

    scope = scope_of(namespace, facts)
    assert scope is not None
    check_devices(before, after, namespace)
    check_hold(before, after, namespace)
    final = validate(setting.request(after, namespace=namespace), facts)
    as_written = {rule.id for rule in rules.ALL if rule.as_written}
    assert {finding.rule for finding in final.findings} <= {"foreign-claim", *as_written}, final.findings
    written = rules.ALL.findings(Context.of(request, before, scope, facts), as_written=True)
    pinned = {finding for finding in final.findings if finding.code == "NODE_PINNING"}
    assert pinned <= set(written), "what mutate adds pins nothing"


def check_devices(before: dict[str, Any], after: dict[str, Any], namespace: str) -> None:
    """Every container sees as many devices as it asked for, a serial init container perhaps more, which are another's
    and cost nothing; those that run together share none that the gate gave.
    """
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
        sees, wanted = sum(templates[name].count for name in added), asked.get(was.path, 0)
        assert sees == wanted or (was.is_serial_init and sees > wanted > 0)
        if sees > wanted:
            others = [one for one in pod_reader.containers(after) if one.path != was.path and not one.is_sidecar]
            assert any(added[0] in one.claim_names() for one in others), "nobody has devices that nobody asked for"
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


def check_hold(before: dict[str, Any], after: dict[str, Any], namespace: str) -> None:
    """Our gate is on what holds devices of a tenant that has them granted; new claims are late where it says so."""
    facts = setting.facts()
    scope = scope_of(namespace, facts)
    assert scope is not None
    hold, held = hold_of(after, scope, facts), convert.tenant_templates(after, scope, facts)
    assert is_held(after) is (is_held(before) or (hold != "free" and bool(held)))
    was = len(before["spec"].get("resourceClaims", []))
    named = [is_late(entry) for entry in after["spec"].get("resourceClaims", [])]
    assert not any(named[:was])
    assert set(named[was:]) <= {hold == "late"}
    stamp = (after["metadata"].get("annotations") or {}).get("dra-gate.io/claims")
    counts = late.counts_of(stamp) if stamp else {}
    assert counts == {entry: held[entry].count for entry, _ in late.late_entries(after)}


@hypothesis.settings(many, max_examples=EXAMPLES // 5)
@hypothesis.given(
    pod=pods.pods(valid=True),
    namespace=st.sampled_from(["fern-dev", "reed", "alder"]),
    injected=pods.containers("x", [], valid=True),
    kind=st.sampled_from(["initContainers", "containers"]),
)
def test_a_second_round_with_what_another_webhook_added(
    pod: dict[str, Any], namespace: str, injected: list[dict[str, Any]], kind: str
) -> None:
    facts = setting.facts()
    first = mutate(setting.request(pod, namespace=namespace), facts)
    between = copy.deepcopy(apply(pod, list(first.patch)))
    between["spec"].setdefault(kind, []).extend(injected)
    second = mutate(setting.request(between, namespace=namespace, uid="second"), facts)
    hypothesis.assume(first.patch and second.allowed)
    after = apply(between, list(second.patch))
    entries = between["spec"].get("resourceClaims", [])
    assert after["spec"].get("resourceClaims", [])[: len(entries)] == entries, "what was named stays named"
    check_devices(between, after, namespace)
    assert mutate(setting.request(after, namespace=namespace, uid="third"), facts).patch == ()
    found = validate(setting.request(after, namespace=namespace), facts).findings
    assert {one.rule for one in found} <= {"foreign-claim", *(rule.id for rule in rules.ALL if rule.as_written)}
    late_names = [index for index, entry in enumerate(after["spec"].get("resourceClaims", [])) if is_late(entry)]
    assert not [one for one in found if one.field in [f"spec.resourceClaims[{index}]" for index in late_names]]


def is_late(entry: dict[str, Any]) -> bool:
    return late.is_late_name(entry.get("resourceClaimName", ""))


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
