"""The stamp: annotations that say which policy decided a Pod. Written by mutate, checked by validate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_gate.admission.late import counts_text
from dra_gate.kube.raw import Object, at, mapping, sequence
from dra_gate.policy.compile import Template
from dra_gate.policy.model import PolicyRef

DOMAIN = "dra-gate.io/"
POLICY = DOMAIN + "policy"
POLICY_VERSION = DOMAIN + "policy-version"
POLICY_SET = DOMAIN + "policy-set"
GATE_GENERATION = DOMAIN + "gate-generation"
TENANT = DOMAIN + "tenant"
LANE = DOMAIN + "lane"
CANDIDATES = DOMAIN + "candidates"
DEVICES = DOMAIN + "devices"
CLAIMS = DOMAIN + "claims"  # devices of each late claim's entry (`late.counts_text`); absent without late claims
MODEL = DOMAIN + "model"  # what the Pod got, written by the controller once it is allocated; no part of the stamp
KEYS = (POLICY, POLICY_VERSION, POLICY_SET, GATE_GENERATION, TENANT, LANE, CANDIDATES, DEVICES, CLAIMS)
GUARDED = (*KEYS, MODEL)  # what nobody else writes

GRANT_GATE = DOMAIN + "grant"  # the scheduling gate that holds a Pod until its devices are granted


def is_held(pod: Object) -> bool:
    """The Pod has the gate's own scheduling gate, whatever others it has."""
    return any(mapping(gate).get("name") == GRANT_GATE for gate in sequence(at(pod, "spec", "schedulingGates")))


def stamp_of(
    held: Mapping[str, Template], late: Mapping[str, int], *, set_digest: str, generation: int, lane: str
) -> dict[str, str]:
    """The stamp of a Pod that holds these templates, by claim entry; empty for none. `late` are the devices of those
    entries whose claims are late.

    Policy and candidates are those of the first late claim, else of the first: a Pod may hold a kept older version
    beside the present one.
    """
    if not held:
        return {}
    first = held[next(iter(late or held))]
    stamp = stamp_of_request(
        first.policy,
        first.tenant,
        first.candidates,
        sum(template.count for template in held.values()),
        set_digest=set_digest,
        generation=generation,
        lane=lane,
    )
    return stamp | {CLAIMS: counts_text(late)} if late else stamp


def stamp_of_request(
    policy: PolicyRef,
    tenant: str,
    candidates: Iterable[str],
    devices: int,
    *,
    set_digest: str,
    generation: int,
    lane: str,
) -> dict[str, str]:
    """The stamp of a Pod that asks for so many devices and may get these models, in order."""
    return {
        POLICY: policy.name,
        POLICY_VERSION: str(policy.version),
        POLICY_SET: set_digest,
        GATE_GENERATION: str(generation),
        TENANT: tenant,
        LANE: lane,
        CANDIDATES: ",".join(candidates),
        DEVICES: str(devices),
    }


def stamp_on(pod: Object) -> dict[str, object]:
    """The annotations that `pod` carries and only the gate writes, true or not."""
    annotations: Mapping[str, object] = mapping(at(pod, "metadata", "annotations"))
    return {key: annotations[key] for key in GUARDED if key in annotations}


def generation_of(stamp: Mapping[str, object]) -> int:
    """The Gate generation that a stamp names; -1 where it names none."""
    written = stamp.get(GATE_GENERATION)
    return (
        int(written)
        if isinstance(written, str) and written.isascii() and written.isdigit() and len(written) < 19
        else -1
    )
