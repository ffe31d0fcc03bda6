"""A Pod that asks for devices in lane `device-plugin`: its requests stay, and the policy becomes node affinity.

What the Pod must show is its node selector (the policy's pool, and the nodes with a device plugin) and, in every term
of its required node affinity, a term of the policy's placement. Nothing here holds a Pod: the lane works without the
controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dra_gate.admission import convert
from dra_gate.admission.facts import Facts
from dra_gate.admission.scope import Scope
from dra_gate.admission.stamp import stamp_of_request
from dra_gate.admission.verdict import Finding
from dra_gate.fairness.charge import Charge
from dra_gate.fairness.holding import raw_devices
from dra_gate.kube.patch import Patch
from dra_gate.kube.pod import ResourceRequest
from dra_gate.kube.raw import Object, at, mapping, sequence
from dra_gate.policy.model import DevicePolicy, PolicySet
from dra_gate.policy.plugin_lane import Placement, Term, placement, served
from dra_gate.policy.switch import PLUGIN
from dra_gate.policy.words import listed

RULE = "plugin-lane"
TERMS = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
MAX_TERMS = 64  # of one Pod's required node affinity, with ours in each: every node is held against all of them


@dataclass(frozen=True, slots=True)
class PluginPod:
    """What the Pod gets of its policy here: `devices` at once, of the models of `placement`, on nodes of `selector`.

    `why` says of each label of `selector` whose it is.
    """

    devices: int
    placement: Placement
    selector: Mapping[str, str]
    why: Mapping[str, str]
    policy: DevicePolicy

    @property
    def charge(self) -> Charge:
        """The worst case: before the Pod is bound, any of the models may be the one."""
        return Charge(self.devices, dict.fromkeys(self.placement.models, self.devices))


def read(pod: Object, scope: Scope, facts: Facts) -> tuple[PluginPod | None, tuple[Finding, ...]]:
    """The Pod as the lane sees it, or why it cannot be let in; neither elsewhere, or where it asks for no device."""
    tenant, policy = scope.tenant, scope.policy
    if scope.lane != PLUGIN or tenant is None or policy is None:
        return None, ()
    requests = list(islice(convert.device_requests(pod, facts), convert.MAX_REQUESTS + 1))
    if not requests:
        return None, ()
    if len(requests) > convert.MAX_REQUESTS:
        return None, (convert.too_many_requests(RULE),)
    names = served(policy)
    if found := tuple(finding for one in requests if (finding := _finding(one, names))):
        return None, found
    placed = placement(policy, facts.policy_set.models)
    pool, plugin_nodes = policy.constraints.nodes, facts.policy_set.settings.device_plugin_nodes
    if found := tuple(_unplaceable(policy, placed, plugin_nodes, requests[0].field)):
        return None, found
    why = dict.fromkeys(plugin_nodes, "nodes with a device plugin have it (devicePluginNodes)")
    why |= dict.fromkeys(pool, f"policy {policy.ref} keeps its Pods on such nodes")
    return PluginPod(raw_devices(requests), placed, {**plugin_nodes, **pool}, why, policy), ()


def refused_in(namespace: str, policy_set: PolicySet) -> str:
    """Why no Pod with devices can follow another there in lane device-plugin; empty where that depends on the Pod."""
    tenant = policy_set.tenant_of(namespace)
    if tenant is None:
        return f"the next one would be refused: namespace {namespace} belongs to no tenant"
    policy = policy_set.policies[tenant.policy_for(namespace)]
    placed = placement(policy, policy_set.models)
    found = _unplaceable(policy, placed, policy_set.settings.device_plugin_nodes, "")
    return next((f"the next one would be refused: {finding.message}" for finding in found), "")


def stamp(found: PluginPod | None, scope: Scope, facts: Facts) -> dict[str, str]:
    """The stamp of the Pod; empty for one that asks for no device."""
    if found is None or scope.tenant is None:
        return {}
    return stamp_of_request(
        found.policy.ref,
        scope.tenant.name,
        found.placement.models,
        found.devices,
        set_digest=facts.policy_set.digest,
        generation=facts.gate_generation,
        lane=scope.lane,
    )


def warnings(found: PluginPod, facts: Facts) -> Iterator[str]:
    """What the person should know who sends a Pod that is let in."""
    for word, why in found.placement.unkept.items():
        yield f"dra-gate: lane device-plugin does not keep {word} of policy {found.policy.ref}: {why}"
    if not facts.policy_set.settings.device_plugin_nodes:
        yield (
            "dra-gate: the Pod may land on nodes where DRA gives devices, past its policy: ClusterSettings has no "
            "devicePluginNodes"
        )


def _finding(request: ResourceRequest, names: Sequence[str]) -> Finding | None:
    if request.count is None:
        return convert.malformed(request, RULE)
    if request.resource in names:
        return None
    remedy = f"Ask for {' or '.join(names)}: the policy picks the nodes" if names else "Use a namespace in lane dra"
    message = f"{request.resource} is not served in lane device-plugin"
    return Finding(RULE, "UNSUPPORTED_RESOURCE", request.field, message, remedy)


def _unplaceable(
    policy: DevicePolicy, placed: Placement, plugin_nodes: Mapping[str, str], field: str
) -> Iterator[Finding]:
    remedy = "Use a namespace in lane dra, or another policy"
    if policy.strict_plugin_lane:
        for word, why in placed.unkept.items():
            message = f"policy {policy.ref} is strict, and lane device-plugin does not keep {word}: {why}"
            yield Finding(RULE, "LANE_CANNOT_KEEP", field, message, remedy)
    if not placed.models:
        why = listed(placed.left_out.values())
        message = f"lane device-plugin can place on no candidate of policy {policy.ref}: {why}"
        yield Finding(RULE, "LANE_CANNOT_KEEP", field, message, remedy)
    for label, value in policy.constraints.nodes.items():
        if plugin_nodes.get(label, value) != value:
            message = (
                f"policy {policy.ref} keeps its Pods on {label}={value}, and nodes with a device plugin have "
                f"{plugin_nodes[label]!r}"
            )
            yield Finding(RULE, "LANE_CANNOT_KEEP", field, message, remedy)


# -- required node affinity -------------------------------------------------------------------------------------------


def narrow(patch: Patch, pod: Object, wanted: Sequence[Term]) -> None:
    """Puts one of `wanted` in each of the Pod's `nodeSelectorTerms`, and replaces nothing.

    The Pod's terms are alternatives (core v1): each takes the first, and a copy at the end each of the others. One
    without requirements matches no node and stays: with ours in it, it would. Raises PatchError as `Patch` does.
    """
    present = sequence(at(pod, *TERMS))
    if not present:
        for term in wanted:
            patch.append(TERMS, {"matchExpressions": list(term)})
    for index, raw in enumerate(present):
        if lacks(raw, wanted):
            expressions = sequence(raw.get("matchExpressions"))
            first, *others = [[one for one in term if one not in expressions] for term in wanted]
            for one in first:
                patch.append((*TERMS, index, "matchExpressions"), one)
            for more in others:
                patch.append(TERMS, {**raw, "matchExpressions": [*expressions, *more]})


def narrowed_count(pod: Object, wanted: Sequence[Term]) -> int:
    """How many terms the Pod has after that."""
    present = sequence(at(pod, *TERMS))
    return len(present) + sum(lacks(raw, wanted) for raw in present) * (len(wanted) - 1) or len(wanted)


def lacks(raw: object, wanted: Iterable[Term]) -> bool:
    """A term that may match nodes has none of `wanted` in it."""
    term = mapping(raw)
    if not sequence(term.get("matchExpressions")) and not sequence(term.get("matchFields")):
        return False
    return _within(term, wanted) is None


def without(required: object, wanted: Sequence[Term]) -> object:
    """A required node affinity as its author wrote it: without what `narrow` puts in, None if that is all of it."""
    made: list[Any] = []
    for raw in sequence(at(required, "nodeSelectorTerms")):
        own = _within(mapping(raw), wanted)
        kept = raw
        if own is not None:
            rest = [one for one in sequence(raw.get("matchExpressions")) if one not in own]
            kept = {**raw, "matchExpressions": rest}
            if not rest and not sequence(raw.get("matchFields")):
                continue
        # A term that was copied is one term. Of more than there may be, nobody asks that.
        if own is None or len(made) > MAX_TERMS or kept not in made:
            made.append(kept)
    return {"nodeSelectorTerms": made} if made else None


def _within(term: Object, wanted: Iterable[Term]) -> Term | None:
    expressions = sequence(term.get("matchExpressions"))
    return next((one for one in wanted if all(part in expressions for part in one)), None)
