"""What is to be written for a grant: the ledger's entry, the claims, the patch of the Pod. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dra_gate.admission import stamp as stamps
from dra_gate.admission.held import CONDITION, Waiting
from dra_gate.controller.arbiter_view import GENERATION, ClaimSeen
from dra_gate.fairness.events import Held, left_of
from dra_gate.fairness.ledger import Grant, GrantedClaim
from dra_gate.kube.group import controller_of
from dra_gate.kube.raw import Object, at
from dra_gate.policy.compile import Template, content_digest, late_claim


def grant_of(
    held: Held,
    pod: Waiting,
    templates: tuple[Template, ...],
    model: str,
    candidates: tuple[str, ...],
    *,
    generation: int,
    at_ms: int,
    borrowed: bool = False,
    lease: int = 0,
) -> Grant:
    """The ledger's entry for a Pod that may go; `templates` are what its late claims are made of, in their order."""
    claims = tuple(
        GrantedClaim(one.entry, one.claim, one.count, late_claim(template, candidates).digest)
        for one, template in zip(pod.late, templates, strict=True)
    )
    return Grant(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        generation=generation,
        at=at_ms,
        queued=held.queued,
        policy=pod.policy,
        policy_set=pod.policy_set,
        model=model,
        candidates=candidates,
        claims=claims,
        borrowed=borrowed,
        lease=lease,
        fixed=held.fixed,
        fixed_models=held.fixed_models,
        priority=held.priority,
        group=held.group,
        members=held.members,
        only=held.only,
    )


def revised(grant: Grant, templates: tuple[Template, ...], candidates: tuple[str, ...], generation: int) -> Grant:
    """The grant with other candidates."""
    claims = tuple(
        replace(claim, digest=late_claim(template, candidates).digest)
        for claim, template in zip(grant.claims, templates, strict=True)
    )
    left = left_of(grant.candidates, grant.left, candidates)
    return replace(grant, candidates=candidates, left=left, generation=generation, claims=claims)


def may_have(templates: tuple[Template, ...], candidates: tuple[str, ...]) -> bool:
    """Claims of these templates can be narrowed to the candidates."""
    return bool(candidates) and all(set(candidates) <= set(template.candidates) for template in templates)


def matches(claim: ClaimSeen, grant: Grant, digest: str) -> bool:
    """A claim in the cache is the grant's as it is now."""
    return (
        claim.owner == grant.uid
        and claim.generation == grant.generation
        and claim.digest == digest
        and not claim.deleting
    )


def may_stay(claim: Object, grant: Grant, digest: str) -> bool:
    """A claim that stands under the name of one of the grant's is that, or has been given to its Pod already."""
    if controller_of(claim).get("uid") != grant.uid:
        return False
    return at(claim, "status", "allocation") is not None or (
        content_digest(claim.get("spec")) == digest
        and at(claim, "metadata", "annotations", GENERATION) == str(grant.generation)
        and not at(claim, "metadata", "deletionTimestamp")
    )


def claim_of(grant: Grant, claim: GrantedClaim, template: Template) -> Mapping[str, Any]:
    """The claim to create."""
    wanted = late_claim(template, grant.candidates)
    # No blockOwnerDeletion: that would want a right on the Pod's finalizers.
    owner = {"apiVersion": "v1", "kind": "Pod", "name": grant.name, "uid": grant.uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": claim.name,
            "namespace": grant.namespace,
            "labels": dict(wanted.metadata["labels"]),
            "annotations": {**wanted.metadata["annotations"], GENERATION: str(grant.generation)},
            "ownerReferences": [owner],
        },
        "spec": wanted.spec,
    }


def gate_patch(uid: str, gates: tuple[str, ...], deadline: object, lease: int) -> list[dict[str, Any]]:
    """Takes our gate off the Pod, after tests that it is this Pod and that the gate is where it was seen.

    With a `lease` the Pod may not run for longer than that (seconds); a `deadline` that is sooner stays. Raises
    ValueError where our gate is not among `gates`.
    """
    path = f"/spec/schedulingGates/{gates.index(stamps.GRANT_GATE)}"
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": f"{path}/name", "value": stamps.GRANT_GATE},
        {"op": "remove", "path": path},
    ]
    return patch + _limit(deadline, lease)


def lease_patch(uid: str, deadline: object, lease: int) -> list[dict[str, Any]]:
    """Limits the life of a Pod whose gate is off, since it had a grant before; empty where its `deadline` is sooner.

    activeDeadlineSeconds of a Pod may be set or lowered (core/v1, PodSpec updates).
    """
    limit = _limit(deadline, lease)
    return [{"op": "test", "path": "/metadata/uid", "value": uid}, *limit] if limit else []


def _limit(deadline: object, lease: int) -> list[dict[str, Any]]:
    if not lease or (isinstance(deadline, int) and deadline <= lease):
        return []
    return [{"op": "add", "path": "/spec/activeDeadlineSeconds", "value": lease}]


def condition(status: str, reason: str, message: str, since: str) -> dict[str, Any]:
    """The entry for the Pod's `status.conditions`; `since` in RFC 3339."""
    return {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message[:1024],
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
