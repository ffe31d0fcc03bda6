"""What the gate's accounts may do, by the roles that are bound to them (deploy/base/rbac.yaml)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from dra_gate.allocation.around import CANARY_PLAN
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.model import GATE_NAMESPACE
from dra_gate.policy.words import some

_WEBHOOK: Final = "dra-gate-webhook"
_CONTROLLER: Final = "dra-gate-controller"
_READ: Final = ("list", "watch")
_DRA: Final = "resource.k8s.io"
# API group, resources, verbs, and whether the right is one within the gate's namespace.
_Need: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...], bool]
_NEEDS: Final[dict[str, tuple[_Need, ...]]] = {  # by account
    _WEBHOOK: (
        ("", ("namespaces", "nodes"), _READ, False),
        ("node.k8s.io", ("runtimeclasses",), _READ, False),
        (_DRA, ("deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"), _READ, False),
        ("dra-gate.io", ("gates",), ("get", *_READ), False),
        ("dra-gate.io", ("tenantledgers",), _READ, False),
        ("", ("configmaps",), _READ, True),
    ),
    _CONTROLLER: (
        ("", ("namespaces", "nodes"), _READ, False),
        ("", ("pods",), ("get", "patch", *_READ), False),
        ("", ("pods/status",), ("patch",), False),
        (_DRA, ("deviceclasses", "devicetaintrules", "resourceslices"), _READ, False),
        (_DRA, ("resourceclaims",), ("create", "delete", "get", *_READ), False),
        (_DRA, ("resourceclaimtemplates",), ("create", "delete", *_READ), False),
        ("events.k8s.io", ("events",), ("create",), False),
        ("dra-gate.io", ("gates",), ("get", "patch", *_READ), False),
        ("dra-gate.io", ("tenantledgers",), ("create", "get", "list", "update"), False),
        ("", ("events",), _READ, False),
        ("apps", ("replicasets", "statefulsets"), ("get",), False),
        ("", ("configmaps",), ("create", "update", *_READ), True),
        ("coordination.k8s.io", ("leases",), ("create",), True),
    ),
}
_EVICT: Final[_Need] = ("", ("pods/eviction",), ("create",), False)
_MOVE: Final[_Need] = ("", ("namespaces",), ("patch",), False)


def _check(cluster: Cluster) -> Iterable[Finding]:
    for account, needs in _NEEDS.items():
        rules = list(_rules(cluster, account))
        if not rules:
            yield Finding("block", "no role is bound to it", (f"{GATE_NAMESPACE}/{account}",))
            continue
        wanted = (*needs, *(_more(cluster) if account == _CONTROLLER else ()))
        lacking = [one for need in wanted for one in _lacking(rules, need)]
        if lacking:
            yield Finding("block", f"may not {some(lacking)}", (f"{GATE_NAMESPACE}/{account}",))
        elif account == _CONTROLLER and _recreates(cluster) and any(_lacking(rules, _EVICT)):
            text = "may not evict Pods: those that wait under DRA when a lane goes back are kept (onRollback: recreate)"
            yield Finding("warn", text, (f"{GATE_NAMESPACE}/{account}",))


def _recreates(cluster: Cluster) -> bool:
    known = cluster.policy_set
    return known is not None and any(policy.on_rollback == "recreate" for policy in known.policies.values())


def _lacking(rules: Sequence[tuple[bool, Object]], need: _Need) -> Iterator[str]:
    group, resources, verbs, within = need
    for resource in resources:
        for verb in verbs:
            if not any(_allows(rule, group, resource, verb) for local, rule in rules if within or not local):
                yield f"{verb} {resource}{f'.{group}' if group else ''}"


def _more(cluster: Cluster) -> Iterator[_Need]:
    """What the controller needs for what is switched on."""
    policies = cluster.policy_set.policies.values() if cluster.policy_set is not None else ()
    if any(policy.on_unhealthy == "recreate" for policy in policies):
        yield _EVICT
    if any(plan.get("onStop") == "rollback" for plan in cluster.around(CANARY_PLAN)):
        yield _MOVE


def _rules(cluster: Cluster, account: str) -> Iterator[tuple[bool, Object]]:
    """The rules of roles bound to the account; true with those that hold in the gate's namespace only."""
    roles = {
        (kind, text(at(role, "metadata", "namespace")), text(at(role, "metadata", "name"))): role
        for kind in ("ClusterRole", "Role")
        for role in cluster.around(kind)
    }
    for binding in (*cluster.around("ClusterRoleBinding"), *cluster.around("RoleBinding")):
        local = text(at(binding, "metadata", "namespace"))
        subjects = map(mapping, sequence(binding.get("subjects")))
        if local not in ("", GATE_NAMESPACE) or not any(
            one.get("kind") == "Group" or one.get("name") == account for one in subjects
        ):
            continue
        kind, name = text(at(binding, "roleRef", "kind")), text(at(binding, "roleRef", "name"))
        role = roles.get((kind, local if kind == "Role" else "", name))
        for rule in sequence(at(role, "rules")):
            yield bool(local), mapping(rule)


def _allows(rule: Object, group: str, resource: str, verb: str) -> bool:
    """A rule for objects of certain names allows none of the others, and the gate needs all."""
    if sequence(rule.get("resourceNames")):
        return False
    wanted = (("apiGroups", {group}), ("resources", {resource}), ("verbs", {verb}))
    return all({"*", *values} & set(sequence(rule.get(field))) for field, values in wanted)


CHECK = Check(
    id="rights",
    title="the gate's accounts may do what they have to",
    severity="block",
    remedy="apply deploy/base/rbac.yaml of the version that runs, and components/recreate where a policy says "
    "onUnhealthy: recreate or onRollback: recreate (the default), components/canary-rollback where the plan of waves "
    "says rollback on a hard stop",
    reads=("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"),
    check=_check,
)
