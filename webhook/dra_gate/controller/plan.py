"""What has to happen to the claim templates, as a function of what is there. No I/O, no clock.

A template is ours if it carries our managed-by label and our name prefix. Nothing else is ever deleted.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra_gate.kube.pod import claim_entries, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.resource_slice import generation_of
from dra_gate.policy.compile import DOMAIN, NAME_PREFIX, Template, TemplateIndex, content_digest
from dra_gate.policy.model import PolicySet, Tenant
from dra_gate.policy.switch import NO_SWITCH, PLUGIN, Switch

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "dra-gate"
USUAL_COUNTS = range(1, 9)  # devices; every tenant namespace has templates for these
LARGE_COUNT = 16  # and for this where a node publishes as many


class Verb(enum.StrEnum):
    """What to do about one template."""

    KEEP = "keep"
    CREATE = "create"
    REPAIR = "repair"  # delete ours, whose content is wrong; the next plan creates it
    COLLECT = "collect"  # delete ours, which nobody needs
    REPORT = "report"  # the name is taken by an object that is not ours and says something else


@dataclass(frozen=True, slots=True)
class Seen:
    """A ResourceClaimTemplate with our name prefix, as far as the plan reads it. `spec` and `stamp` are digests."""

    uid: str
    resource_version: str
    ours: bool
    deleting: bool
    spec: str
    stamp: str


@dataclass(frozen=True, slots=True)
class Action:
    """One verdict of the plan. `urgent`: a Pod waits for it. `template` is set for CREATE, `seen` for all others."""

    verb: Verb
    namespace: str
    name: str
    reason: str
    template: Template | None = None
    seen: Seen | None = None
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Compiled:
    """A policy set and the templates that it compiles to."""

    policy_set: PolicySet
    index: TemplateIndex


def plan(
    sets: Sequence[Compiled],
    *,
    namespaces: Collection[str],
    existing: Mapping[str, Mapping[str, Seen]],
    references: Mapping[str, Collection[str]],
    devices: int,
    switch: Switch = NO_SWITCH,
) -> list[Action]:
    """What to do about each template in `namespaces`, which exist and are not being deleted, so that `sets` can work.

    `existing` has the templates by namespace and name, `references` the template names that Pods may still need a claim
    from by namespace; `devices` is how many the best equipped node has. For a tenant that `switch` sends to lane
    device-plugin only what Pods name is made, for those that were admitted before, and nothing is collected.
    """
    actions: list[Action] = []
    for namespace in sorted(namespaces):
        present = existing.get(namespace, {})
        named = references.get(namespace, ())
        needed: dict[str, _Need] = {}
        for compiled in sets:
            needed |= _needed(compiled, namespace, named, devices)
        held = any(_is_held(compiled, namespace, switch) for compiled in sets)
        owned = any(compiled.policy_set.tenant_of(namespace) is not None for compiled in sets)
        found = [_about_needed(namespace, why, present.get(name)) for name, why in sorted(needed.items())]
        found += (
            _about_rest(namespace, name, seen, owned=owned, named=name in named)
            for name, seen in sorted(present.items())
            if name not in needed
        )
        actions += (action for action in found if not (held and _can_wait(action)))
    return actions


def _is_held(compiled: Compiled, namespace: str, switch: Switch) -> bool:
    tenant = compiled.policy_set.tenant_of(namespace)
    return tenant is not None and switch.lane_of(tenant.name, "") == PLUGIN


def _can_wait(action: Action) -> bool:
    """Whether nothing is lost if it is done when the tenant's lane is dra again."""
    return action.verb is Verb.COLLECT or (action.verb is Verb.CREATE and not action.urgent)


@dataclass(frozen=True, slots=True)
class _Need:
    template: Template
    reason: str
    urgent: bool


def _needed(compiled: Compiled, namespace: str, named: Collection[str], devices: int) -> dict[str, _Need]:
    tenant = compiled.policy_set.tenant_of(namespace)
    if tenant is None:
        return {}
    usual = _usual(compiled, tenant, namespace, devices)
    needed = {t.name: _Need(t, f"{t.policy} for {t.count}, a usual count", urgent=False) for t in usual}
    refs = tenant.valid_refs(namespace)
    for name in named:
        template = compiled.index.by_name(tenant.name, name)
        # The index knows what the tenant may use anywhere; a canary's policy is good in its own namespaces only.
        if template is not None and template.policy in refs:
            needed[name] = _Need(template, f"{template.policy} for {template.count}, named by a Pod", urgent=True)
    return needed


def _usual(compiled: Compiled, tenant: Tenant, namespace: str, devices: int) -> Iterator[Template]:
    counts = [*USUAL_COUNTS, *([LARGE_COUNT] if devices >= LARGE_COUNT else [])]
    for ref in tenant.valid_refs(namespace):
        both = (*compiled.index.of(tenant.name, ref), *compiled.index.exactly(tenant.name, ref).values())
        yield from (template for template in both if template.count in counts)


def missing(
    compiled: Compiled,
    *,
    namespaces: Collection[str],
    existing: Mapping[str, Mapping[str, Seen]],
    devices: int,
    switch: Switch = NO_SWITCH,
) -> int:
    """How many templates of usual counts a set still lacks in those `namespaces`; arguments as `plan` takes them.

    What `plan` does not make because of the switch is not missing.
    """
    lacking = 0
    for namespace in compiled.policy_set.tenant_by_namespace.keys() & set(namespaces):
        tenant = compiled.policy_set.tenant_of(namespace)
        if _is_held(compiled, namespace, switch):
            continue
        present = existing.get(namespace, {})
        for template in _usual(compiled, tenant, namespace, devices) if tenant is not None else ():
            seen = present.get(template.name)
            lacking += seen is None or seen.deleting
    return lacking


def _about_needed(namespace: str, need: _Need, seen: Seen | None) -> Action:
    name, template = need.template.name, need.template
    if seen is None:
        return Action(Verb.CREATE, namespace, name, need.reason, template=template, urgent=need.urgent)
    if seen.deleting:
        return Action(Verb.KEEP, namespace, name, "is being deleted", seen=seen)
    spec, stamp = _digests(template)
    if not seen.ours:
        if seen.spec == spec:
            return Action(Verb.KEEP, namespace, name, "not ours, but right", seen=seen)
        reason = f"not ours (no label {MANAGED_BY}: {MANAGER}) and differs from {template.policy} for {template.count}"
        return Action(Verb.REPORT, namespace, name, reason, seen=seen)
    if (seen.spec, seen.stamp) != (spec, stamp):
        reason = f"differs from {template.policy} for {template.count}"
        return Action(Verb.REPAIR, namespace, name, reason, seen=seen, urgent=need.urgent)
    return Action(Verb.KEEP, namespace, name, need.reason, seen=seen)


def _about_rest(namespace: str, name: str, seen: Seen, *, owned: bool, named: bool) -> Action:
    if not seen.ours:
        return Action(Verb.KEEP, namespace, name, "not ours", seen=seen)
    if seen.deleting:
        return Action(Verb.KEEP, namespace, name, "is being deleted", seen=seen)
    if named:
        return Action(Verb.KEEP, namespace, name, "a Pod still needs a claim from it", seen=seen)
    reason = "its tenant needs it no more" if owned else "no tenant owns the namespace"
    return Action(Verb.COLLECT, namespace, name, reason, seen=seen)


def read_template(template: Object) -> Seen:
    """What the plan reads of a stored template."""
    metadata = mapping(template.get("metadata"))
    return Seen(
        uid=text(metadata.get("uid")),
        resource_version=text(metadata.get("resourceVersion")),
        ours=at(metadata, "labels", MANAGED_BY) == MANAGER,
        deleting="deletionTimestamp" in metadata,
        spec=content_digest(template.get("spec")),
        stamp=_stamp_digest(metadata),
    )


def is_reserved(name: str) -> bool:
    """Whether `name` has the prefix that only the gate's own templates may have."""
    return name.startswith(NAME_PREFIX)


def references(pod: Object) -> frozenset[str]:
    """The templates of ours that `pod` names and may still need: the claim controller reads them by name.

    It does so when it makes the claim, and again when a claim was deleted under a Pod that waits. A Pod that is bound
    and has its claims, is being deleted or has ended needs none.
    """
    if is_finished(pod) or at(pod, "metadata", "deletionTimestamp"):
        return frozenset()
    bound = bool(at(pod, "spec", "nodeName"))
    generated = {at(entry, "name") for entry in sequence(at(pod, "status", "resourceClaimStatuses"))}
    names = (
        text(entry.get("resourceClaimTemplateName"))
        for entry in claim_entries(pod)
        if not (bound and entry.get("name") in generated)
    )
    return frozenset(name for name in names if is_reserved(name))


class SliceSeen(NamedTuple):
    """A ResourceSlice as far as the plan reads it. `node` is empty for devices bound to no single node."""

    driver: str
    pool: str
    generation: int
    node: str
    devices: int


def read_slice(resource_slice: Object) -> SliceSeen:
    """What the plan reads of a ResourceSlice."""
    spec = mapping(resource_slice.get("spec"))
    return SliceSeen(
        driver=text(spec.get("driver")),
        pool=text(at(spec, "pool", "name")),
        generation=generation_of(resource_slice),
        node=text(spec.get("nodeName")),
        devices=len(sequence(spec.get("devices"))),
    )


def most_devices(slices: Collection[SliceSeen]) -> int:
    """The most devices that one driver publishes for one node; of each pool only the newest generation counts.

    Devices bound to no single node count by pool.
    """
    newest: dict[tuple[str, str], int] = {}
    for seen in slices:
        newest[seen.driver, seen.pool] = max(newest.get((seen.driver, seen.pool), 0), seen.generation)
    counts: Counter[tuple[str, str, str]] = Counter()
    for seen in slices:
        if seen.generation == newest[seen.driver, seen.pool]:
            counts[seen.driver, seen.node, "" if seen.node else seen.pool] += seen.devices
    return max(counts.values(), default=0)


def _digests(template: Template) -> tuple[str, str]:
    return content_digest(template.spec), _stamp_digest(mapping(template.spec["metadata"]))


def _stamp_digest(metadata: Object) -> str:
    """Over our own labels and annotations: other people may add theirs."""
    return content_digest(
        {
            kind: {key: value for key, value in mapping(metadata.get(kind)).items() if _is_ours(key)}
            for kind in ("labels", "annotations")
        }
    )


def _is_ours(key: str) -> bool:
    return key == MANAGED_BY or key.startswith(f"{DOMAIN}/")
