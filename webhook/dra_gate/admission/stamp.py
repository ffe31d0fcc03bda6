"""The stamp: annotations that say which policy decided a Pod. Written by mutate, checked by validate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_gate.kube.raw import Object, at, mapping, sequence
from dra_gate.policy.compile import Template

DOMAIN = "dra-gate.io/"
POLICY = DOMAIN + "policy"
POLICY_VERSION = DOMAIN + "policy-version"
POLICY_SET = DOMAIN + "policy-set"
GATE_GENERATION = DOMAIN + "gate-generation"
TENANT = DOMAIN + "tenant"
LANE = DOMAIN + "lane"
CANDIDATES = DOMAIN + "candidates"
DEVICES = DOMAIN + "devices"
MODEL = DOMAIN + "model"  # what the Pod got, written by the controller once it is allocated; no part of the stamp
KEYS = (POLICY, POLICY_VERSION, POLICY_SET, GATE_GENERATION, TENANT, LANE, CANDIDATES, DEVICES)
GUARDED = (*KEYS, MODEL)  # what nobody else writes

GRANT_GATE = DOMAIN + "grant"  # the scheduling gate that holds a Pod until its devices are granted


def is_held(pod: Object) -> bool:
    """The Pod has the gate's own scheduling gate, whatever others it has."""
    return any(mapping(gate).get("name") == GRANT_GATE for gate in sequence(at(pod, "spec", "schedulingGates")))


def stamp_of(templates: Iterable[Template], *, set_digest: str, generation: int, lane: str) -> dict[str, str]:
    """The stamp of a Pod that holds these templates, one for each of its distinct claims; empty for none.

    Policy and candidates are those of the first: a Pod may hold a kept older version beside the present one.
    """
    held = list(templates)
    if not held:
        return {}
    first = held[0]
    return {
        POLICY: first.policy.name,
        POLICY_VERSION: str(first.policy.version),
        POLICY_SET: set_digest,
        GATE_GENERATION: str(generation),
        TENANT: first.tenant,
        LANE: lane,
        CANDIDATES: ",".join(first.candidates),
        DEVICES: str(sum(template.count for template in held)),
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
