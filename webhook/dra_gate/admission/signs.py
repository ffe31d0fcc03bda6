"""What a request must show for some rule to deny it, or for mutate to change it.

Each sign is said twice: in CEL, for the API server's matchConditions, and here, for requests that come from files; a
property holds the two equal. A sign may hold for more requests than its rules deny, never for fewer: what carries no
sign never reaches the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dra_gate.admission import hostpath, void
from dra_gate.admission import stamp as stamps
from dra_gate.admission.nodes import required_of, terms
from dra_gate.admission.request import Request
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.workload import CONTROLLER_MANAGER, CONTROLLER_PREFIX
from dra_gate.policy.compile import DOMAIN as OUR_DOMAIN
from dra_gate.policy.compile import NAME_PREFIX

DRA_GROUP = "resource.k8s.io"
DOMAIN = f"{OUR_DOMAIN}/"


@dataclass(frozen=True, slots=True)
class Sign:
    """`condition` is CEL over `object`, `oldObject` and `request`; `shown` says the same of a request.

    CEL stops at a field that is not there, so every optional one is asked for with has() first.
    """

    name: str
    condition: str
    shown: Callable[[Request], bool]


def any_of(signs: Iterable[Sign]) -> str:
    """CEL that holds when one of the signs does; each is said once."""
    return " || ".join(f"({condition})" for condition in dict.fromkeys(sign.condition for sign in signs))


def _asks(request: Request) -> bool:
    return any(True for container in pods.containers(request.object) for _ in pods.extended_resource_names(container))


def _reserved(request: Request) -> bool:
    names = (text(at(request.object, "metadata", key)) for key in ("name", "generateName"))
    return any(name.startswith(NAME_PREFIX) for name in names)


# Labels that every node has and that many Pods name. They tell no device node, whatever nodes there are.
COMMON_NODE_LABELS = (
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
_DAEMONS = CONTROLLER_PREFIX + "daemon-set-controller"


def written_affinity(request: Request, pod: Object) -> object:
    """The Pod's required node affinity as far as its author wrote it, None for none.

    The DaemonSet controller puts one term with the node's name in the place of whatever its template requires
    (pkg/controller/daemon/util, ReplaceDaemonSetPodNodeNameNodeAffinity). It is told by who sends the Pod: an owner
    reference can be written by anybody.
    """
    required = required_of(mapping(pod.get("spec")))
    return None if _by_daemon_controller(request, pod) and _is_one_name(required) else required


def chooses_nodes(selector: Object, required: object) -> bool:
    """The node selector or the required affinity says more than the labels that every node has."""
    return any(key not in COMMON_NODE_LABELS for key in selector) or any(
        bool(sequence(mapping(term).get("matchFields")))
        or any(
            mapping(one).get("key") not in COMMON_NODE_LABELS for one in sequence(mapping(term).get("matchExpressions"))
        )
        for term in terms(required)
    )


def _by_daemon_controller(request: Request, pod: Object) -> bool:
    return request.username == _DAEMONS or (
        request.username == CONTROLLER_MANAGER
        and any(
            mapping(owner).get("kind") == "DaemonSet" and mapping(owner).get("controller") is True
            for owner in sequence(at(pod, "metadata", "ownerReferences"))
        )
    )


def _is_one_name(required: object) -> bool:
    listed = list(terms(required))
    return (
        len(listed) == 1
        and not sequence(mapping(listed[0]).get("matchExpressions"))
        and len(sequence(mapping(listed[0]).get("matchFields"))) == 1
    )


def _chooses(request: Request) -> bool:
    selector = mapping(at(request.object, "spec", "nodeSelector"))
    return chooses_nodes(selector, written_affinity(request, request.object))


def our_annotations(obj: object) -> dict[str, Any]:
    """The annotations of our domain."""
    annotations = mapping(at(obj, "metadata", "annotations"))
    return {key: value for key, value in annotations.items() if key.startswith(DOMAIN)}


def _differs(ours: str, theirs: str) -> str:
    """Some annotation of our domain in `ours` is absent from `theirs` or has another value there."""
    return (
        f"(has({ours}.metadata.annotations) && {ours}.metadata.annotations.exists(k, k.startsWith('{DOMAIN}') && "
        f"!(has({theirs}.metadata.annotations) && k in {theirs}.metadata.annotations && "
        f"{theirs}.metadata.annotations[k] == {ours}.metadata.annotations[k])))"
    )


def _both_lists(obj: str) -> str:
    """Both lists that hold devices. Every expression about containers is a macro over this."""
    return f"({obj}.spec.containers + (has({obj}.spec.initContainers) ? {obj}.spec.initContainers : []))"


def _held(obj: str) -> str:
    return f"has({obj}.spec.schedulingGates) && {obj}.spec.schedulingGates.exists(g, g.name == '{stamps.GRANT_GATE}')"


def _may_reach(container: object) -> bool:
    """An ephemeral container says something that may give it devices; the rule knows whether it does."""
    return (
        at(container, "securityContext", "privileged") is True
        or any(at(container, field) is not None for field in ("envFrom", "volumeMounts"))
        or any(at(variable, "name") in (*DEVICE_VARIABLES, void.LEGACY) for variable in sequence(at(container, "env")))
    )


def _extended(pod: object) -> set[tuple[str, str, str, str]]:
    """Container, limits or requests, extended resource, and the quantity as it is written."""
    return {
        (text(at(container, "name")), kind, name, repr(quantity))
        for where in ("containers", "initContainers")
        for container in sequence(at(pod, "spec", where))
        for kind in ("limits", "requests")
        for name, quantity in mapping(at(container, "resources", kind)).items()
        if "/" in name
    }


CONTAINERS = _both_lists("object")
# What the container runtimes of NVIDIA, AMD and Habana read: container toolkit, internal/config/image; AMD Container
# Toolkit; Habana container runtime. CUDA_VISIBLE_DEVICES and its kin only narrow what a program sees of its container.
DEVICE_VARIABLES = (
    void.NAME,
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
)
# Container toolkit, accept-nvidia-visible-devices-as-volume-mounts: what is mounted at /var/run/<this>/all gives all.
DEVICE_MOUNTS = "nvidia-container-devices"
DEVICE_TYPES = ("CharDevice", "BlockDevice")  # core v1, HostPathType
CDI_ANNOTATIONS = (
    "cdi.k8s.io/",  # containerd, CRI-O and the NVIDIA runtime
    "nvidia.cdi.k8s.io",  # the NVIDIA toolkit's NRI plugin; the other two are the NRI device injector's
    "cdi-devices.nri.io",
    "cdi-devices.noderesource.dev",
)
DEVICE_LIST_ANNOTATIONS = (
    "devices.gke.io",
    "devices.nri.io",  # the NRI device injector: devices, and mounts of any path of the node
    "devices.noderesource.dev",
    "mounts.nri.io",
    "mounts.noderesource.dev",
    "io.kubernetes.cri-o.Devices",  # CRI-O, where allowed_annotations has it
    "devices.crio.io",
)
# KAI Scheduler (run:ai): a share of a GPU by annotation alone, without any resource. What HAMi or Volcano hand out is
# asked for as an extended resource, and their annotations give nothing without it.
OTHER_ALLOCATORS = {"gpu-fraction": "KAI Scheduler", "gpu-memory": "KAI Scheduler"}


def _containers(request: Request) -> Iterable[Any]:
    return (raw for _, _, raw in pods.containers_with(request.object))


def _annotated(request: Request) -> Iterable[str]:
    return mapping(at(request.object, "metadata", "annotations"))


def _device_paths(request: Request) -> bool:
    for volume in sequence(at(request.object, "spec", "volumes")):
        source = mapping(mapping(volume).get("hostPath"))
        path = source.get("path")
        if (isinstance(path, str) and hostpath.reached(path)) or source.get("type") in DEVICE_TYPES:
            return True
    return False


def _device_variables(request: Request) -> bool:
    return any(
        any(mapping(item).get("name") in DEVICE_VARIABLES for item in sequence(raw.get("env")))
        or any(DEVICE_MOUNTS in text(mapping(mount).get("mountPath")) for mount in sequence(raw.get("volumeMounts")))
        for raw in _containers(request)
    )


def _any_annotation(condition: str) -> str:
    """CEL: some annotation's key `k` is such."""
    return f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, {condition})"


def _begins(prefixes: Iterable[str]) -> str:
    return " || ".join(f"k.startsWith('{prefix}')" for prefix in prefixes)


# Extended resources, implicit ones included, are exactly the names with a slash (core v1, IsExtendedResourceName). The
# condition does not list ours: a class may get an extendedResourceName at any time, and must not open a way around.
ASKS = Sign(
    "asks-for-an-extended-resource",
    f"{CONTAINERS}.exists(c, "
    "has(c.resources) && ("
    "(has(c.resources.limits) && c.resources.limits.exists(k, k.contains('/'))) || "
    "(has(c.resources.requests) && c.resources.requests.exists(k, k.contains('/')))))",
    _asks,
)
CLAIMS = Sign(
    "names-claims",
    "has(object.spec.resourceClaims) && size(object.spec.resourceClaims) > 0",
    lambda request: bool(pods.claim_entries(request.object)),
)
STAMPED = Sign(
    "carries-a-stamp",
    f"has(object.metadata.annotations) && object.metadata.annotations.exists(k, k.startsWith('{DOMAIN}'))",
    lambda request: bool(our_annotations(request.object)),
)
RESERVED = Sign(
    "bears-our-prefix",
    f"(has(object.metadata.name) && object.metadata.name.startsWith('{NAME_PREFIX}')) || "
    f"(has(object.metadata.generateName) && object.metadata.generateName.startsWith('{NAME_PREFIX}'))",
    _reserved,
)
HELD = Sign("carries-our-gate", _held("object"), lambda request: stamps.is_held(request.object))
GATE_CHANGES = Sign(
    "changes-our-gate",
    f"({_held('object')}) != ({_held('oldObject')})",
    lambda request: stamps.is_held(request.object) != stamps.is_held(request.old_object),
)
# kubectl debug adds a container without any of this; one that it adds for a node or as sysadmin is privileged.
EPHEMERAL_REACH = Sign(
    "an-ephemeral-container-may-reach-devices",
    "has(object.spec.ephemeralContainers) && object.spec.ephemeralContainers.exists(c, "
    "(has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged) || "
    "has(c.envFrom) || has(c.volumeMounts) || "
    f"(has(c.env) && c.env.exists(e, e.name in {[*DEVICE_VARIABLES, void.LEGACY]})))",
    lambda request: any(map(_may_reach, sequence(at(request.object, "spec", "ephemeralContainers")))),
)
RESIZES_DEVICES = Sign(
    "changes-a-request-for-an-extended-resource",
    " || ".join(
        f"{_both_lists('object')}.exists(c, has(c.resources) && has(c.resources.{kind}) && "
        f"c.resources.{kind}.exists(k, k.contains('/') && !{_both_lists('oldObject')}.exists(o, o.name == c.name && "
        f"has(o.resources) && has(o.resources.{kind}) && k in o.resources.{kind} && "
        f"o.resources.{kind}[k] == c.resources.{kind}[k])))"
        for kind in ("limits", "requests")
    ),
    lambda request: not _extended(request.object) <= _extended(request.old_object),
)
STAMP_CHANGES = Sign(
    "changes-a-stamp",
    f"{_differs('object', 'oldObject')} || {_differs('oldObject', 'object')}",
    lambda request: our_annotations(request.object) != our_annotations(request.old_object),
)
PRIVILEGED = Sign(
    "is-privileged",
    f"{CONTAINERS}.exists(c, has(c.securityContext) && has(c.securityContext.privileged) && "
    "c.securityContext.privileged)",
    lambda request: any(at(raw, "securityContext", "privileged") is True for raw in _containers(request)),
)
HOST_DEVICE = Sign(
    "mounts-the-nodes-devices",
    "has(object.spec.volumes) && object.spec.volumes.exists(v, has(v.hostPath) && "
    f"((has(v.hostPath.path) && {hostpath.condition('v.hostPath.path')}) || "
    f"(has(v.hostPath.type) && v.hostPath.type in {list(DEVICE_TYPES)})))",
    _device_paths,
)
VISIBLE_DEVICES = Sign(
    "names-devices-to-the-runtime",
    f"{CONTAINERS}.exists(c, (has(c.env) && c.env.exists(e, e.name in {list(DEVICE_VARIABLES)})) || "
    f"(has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath.contains('{DEVICE_MOUNTS}'))))",
    _device_variables,
)
ENV_FROM = Sign(
    "has-an-environment-from-elsewhere",
    f"{CONTAINERS}.exists(c, (has(c.envFrom) && size(c.envFrom) > 0) || "
    f"(has(c.env) && c.env.exists(e, e.name == '{void.LEGACY}')))",
    lambda request: any(map(void.looks_elsewhere, _containers(request))),
)
RUNTIME_CLASS = Sign(
    "names-a-runtime-class",
    "has(object.spec.runtimeClassName) && object.spec.runtimeClassName != ''",
    lambda request: text(at(request.object, "spec", "runtimeClassName")) != "",
)
DEVICE_ANNOTATION = Sign(
    "names-devices-in-annotations",
    _any_annotation(_begins((*CDI_ANNOTATIONS, *DEVICE_LIST_ANNOTATIONS))),
    lambda request: any(key.startswith((*CDI_ANNOTATIONS, *DEVICE_LIST_ANNOTATIONS)) for key in _annotated(request)),
)
OTHER_ALLOCATOR = Sign(
    "asks-another-allocator",
    _any_annotation(f"k in {list(OTHER_ALLOCATORS)}"),
    lambda request: any(key in OTHER_ALLOCATORS for key in _annotated(request)),
)
# While the settings put a variable on every container without a claim, no Pod is left aside.
ANY_POD = Sign("any-pod", "true", lambda _: True)
NAMES_NODE = Sign(
    "names-its-node",
    "has(object.spec.nodeName) && object.spec.nodeName != ''",
    lambda request: bool(text(at(request.object, "spec", "nodeName"))),
)
_REQUIRED = "object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
_COMMON = ", ".join(f"'{label}'" for label in COMMON_NODE_LABELS)
CHOOSES_NODES = Sign(
    "chooses-nodes",
    f"(has(object.spec.nodeSelector) && object.spec.nodeSelector.exists(k, !(k in [{_COMMON}]))) || "
    f"(has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && has({_REQUIRED}) && "
    f"{_REQUIRED}.nodeSelectorTerms.exists(t, (has(t.matchFields) && size(t.matchFields) > 0) || "
    f"(has(t.matchExpressions) && t.matchExpressions.exists(e, !(e.key in [{_COMMON}])))) && "
    f"!((request.userInfo.username == '{_DAEMONS}' || (request.userInfo.username == '{CONTROLLER_MANAGER}' && "
    "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet' && "
    f"has(o.controller) && o.controller))) && size({_REQUIRED}.nodeSelectorTerms) == 1 && "
    f"{_REQUIRED}.nodeSelectorTerms.all(t, !(has(t.matchExpressions) && size(t.matchExpressions) > 0) && "
    "has(t.matchFields) && size(t.matchFields) == 1)))",
    _chooses,
)
# People rarely make claims and templates: each is looked at.
IS_CLAIM = Sign("is-a-claim", f"request.resource.group == '{DRA_GROUP}'", lambda request: request.group == DRA_GROUP)
