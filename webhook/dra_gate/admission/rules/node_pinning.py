"""Device nodes are chosen by the policy's order and the scheduler, not by the Pod."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.nodes import NAME_FIELD, required_of, terms
from dra_gate.admission.plugin_pod import without
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import (
    CHOOSES_NODES,
    CLAIMS,
    COMMON_NODE_LABELS,
    NAMES_NODE,
    chooses_nodes,
    written_affinity,
)
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, at, mapping, sequence, text

_TERM = "requiredDuringSchedulingIgnoredDuringExecution"
_REQUIRED = f"spec.affinity.nodeAffinity.{_TERM}"
_HOSTNAME = "kubernetes.io/hostname"
# NotIn and DoesNotExist leave nodes out; they say of no node that it is wanted.
_SELECTING = ("In", "Exists", "Gt", "Lt")
# A choice of nodes is compared with every node: one that is longer than this is refused, not looked at.
_MAX_REQUIREMENTS = 64
_MAX_VALUES = 1000


def unscheduled(context: Context) -> Iterator[Finding]:
    """`spec.nodeName` on a Pod that holds devices, or on a node that has or may have some.

    The scheduler never sees such a Pod: nobody allocates its claims, and one that is allocated already is reserved for
    it by the claim controller (Kubernetes docs, "Dynamic Resource Allocation", pre-scheduled Pods).
    """
    name = text(at(context.object, "spec", "nodeName"))
    if not name:
        return
    nodes = context.facts.nodes
    if context.plugin is not None:
        why = "the scheduler never sees such a Pod, and only the scheduler goes by the policy's order"
    elif context.holds_devices or pods.claim_entries(context.object):
        why = "the scheduler never sees such a Pod, and only the scheduler gives devices to a claim"
    elif nodes.is_device_node(name):
        why = f"node {name} has devices, and the Pod passes the scheduler by to get there"
    elif not nodes.knows(name):
        why = f"node {name} is not known, and what is not known may have devices"
    else:
        return
    yield RULE.finding("spec.nodeName", why, remedy="Leave nodeName out: the scheduler sets it")


def _check(context: Context) -> Iterator[Finding]:
    yield from unscheduled(context)
    selector = mapping(at(context.object, "spec", "nodeSelector"))
    required = _written(context)
    if not chooses_nodes(selector, required):
        return
    if _is_too_long(selector, required):
        yield RULE.finding(
            "spec.nodeSelector" if len(selector) > _MAX_REQUIREMENTS else _REQUIRED,
            f"a choice of nodes by more than {_MAX_REQUIREMENTS} labels or {_MAX_VALUES} values is not looked at",
            remedy="Choose nodes by one label that they share",
        )
        return
    by_label = [*_by_selector(selector, context), *_by_affinity(selector, required, context)]
    yield from by_label
    if not by_label and not context.holds_devices:
        yield from _by_inventory(selector, required, context)


def _written(context: Context) -> object:
    """The Pod's required node affinity without what mutate puts in, in lane device-plugin, and its controller."""
    pod = context.object
    if context.plugin is not None:
        required = without(required_of(mapping(pod.get("spec"))), context.plugin.placement.terms)
        pod = {"spec": {"affinity": {"nodeAffinity": {_TERM: required}}}, "metadata": pod.get("metadata")}
    return written_affinity(context.request, pod)


def _is_too_long(selector: Object, required: object) -> bool:
    requirements, values = len(selector), 0
    for term in terms(required):
        requirements += 1
        for _, one in _requirements(term):
            requirements += 1
            values += len(sequence(one.get("values")))
            if requirements > _MAX_REQUIREMENTS or values > _MAX_VALUES:
                return True
    return requirements > _MAX_REQUIREMENTS


def _requirements(term: object) -> Iterator[tuple[str, Object]]:
    """The requirements of a term, each with its path below the term."""
    for kind in ("matchExpressions", "matchFields"):
        for index, one in enumerate(sequence(mapping(term).get(kind))):
            yield f"{kind}[{index}]", mapping(one)


def _by_selector(selector: Object, context: Context) -> Iterator[Finding]:
    own = _own_labels(context) if context.holds_devices else set()
    for label, value in selector.items():
        if isinstance(value, str) and (label, value) in own:
            continue  # mutate puts it there: rule node-pool
        why = _why({"key": label, "operator": "In", "values": [value]}, context)
        if why:
            yield RULE.finding(f"spec.nodeSelector[{label}]", why)


def _own_labels(context: Context) -> set[tuple[str, str]]:
    """The node labels of the policies that the Pod's devices come from, or will."""
    policies = [context.facts.policy_set.policies[template.policy] for template in context.templates.values()]
    if context.scope.policy is not None:
        policies.append(context.scope.policy)
    own = {pair for policy in policies for pair in policy.constraints.nodes.items()}
    return own | (set(context.plugin.selector.items()) if context.plugin is not None else set())


def _by_affinity(selector: Object, required: object, context: Context) -> list[Finding]:
    """The terms are alternatives: one that pins nothing, and that some node fits, frees the Pod of the others."""
    found: list[Finding] = []
    for number, term in enumerate(terms(required)):
        listed = list(_requirements(term))
        if not listed:
            continue  # core v1: an empty term matches no node
        pinned = [
            RULE.finding(f"{_REQUIRED}.nodeSelectorTerms[{number}].{path}", why)
            for path, one in listed
            if (why := _why(one, context, field=path.startswith("matchFields")))
        ]
        if not pinned and _is_alternative(selector, term, context):
            return []
        found += pinned
    return found


def _is_alternative(selector: Object, term: object, context: Context) -> bool:
    nodes = context.facts.nodes
    if not len(nodes):
        return True  # files without nodes: labels are all there is to judge by
    left = nodes.choices(selector, {"nodeSelectorTerms": [term]})
    return left.device if context.holds_devices else left.plain


def _why(requirement: Object, context: Context, *, field: bool = False) -> str:
    """Why a requirement pins the Pod to device nodes by what it names; empty when it does not."""
    key, operator = text(requirement.get("key")), requirement.get("operator")
    if operator not in _SELECTING or key in COMMON_NODE_LABELS:
        return ""
    if key == (NAME_FIELD if field else _HOSTNAME):
        names = operator == "In" and context.holds_devices
        return f"{key} names nodes, and the policy's order of devices would count for nothing" if names else ""
    if context.facts.policy_set.settings.tells_device_node(key):
        return f"nodes with devices are told by label {key}"
    if any(key in model.node_labels for model in context.facts.policy_set.models.values()):
        # A neutral key such as `pool` may tell a model: then other nodes have it too, and choosing those is free.
        others = context.facts.nodes.choices({}, {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}).plain
        return "" if others else f"the catalogue tells nodes of a model by label {key}"
    return ""


def _by_inventory(selector: Object, required: object, context: Context) -> Iterator[Finding]:
    """A Pod that holds no devices and can run on device nodes alone, whatever its labels are called."""
    nodes = context.facts.nodes
    left = nodes.choices(selector, required)
    if left.plain:
        return
    names = list(_names(selector, required))
    keys = [*selector, *(text(one.get("key")) for term in terms(required) for _, one in _requirements(term))]
    listed = ", ".join(dict.fromkeys(key for key in keys if key not in COMMON_NODE_LABELS))
    path = "spec.nodeSelector" if any(key not in COMMON_NODE_LABELS for key in selector) else _REQUIRED
    if left.device:
        yield RULE.finding(path, f"only nodes with devices are left by {listed}, and the Pod holds no device")
    elif names and not all(map(nodes.knows, names)):
        yield RULE.finding(path, f"{listed} names a node that is not known, and what is not known may have devices")


def _names(selector: Object, required: object) -> Iterator[str]:
    """The names of nodes that the Pod wants."""
    if _HOSTNAME in selector:
        yield text(selector[_HOSTNAME])
    for term in terms(required):
        for path, one in _requirements(term):
            key = NAME_FIELD if path.startswith("matchFields") else _HOSTNAME
            if one.get("key") == key and one.get("operator") == "In":
                yield from map(text, sequence(one.get("values")))


RULE = Rule(
    id="node-pinning",
    title="Device nodes are the scheduler's choice",
    protects="the order of the candidates, and devices on nodes where a Pod without a claim could reach them",
    code="NODE_PINNING",
    fields=("spec.nodeName", "spec.nodeSelector", _REQUIRED),
    remedy="Leave it out: the policy's candidates choose the nodes. A preference "
    "(preferredDuringSchedulingIgnoredDuringExecution) is no pinning",
    on=POD_CREATE,
    check=_check,
    as_written=True,
    signs=(NAMES_NODE, CHOOSES_NODES),
    # Which other nodes and labels tell devices only the caches and the policies know.
    twin=f"({NAMES_NODE.condition}) && ({CLAIMS.condition})",
)
