"""What stands around the devices and decides whether a cluster can move between device plugins and DRA. Pure.

By kind, the objects that were read. A kind that is not there was not read: nobody asked for it, or whoever read the
cluster may not. Three are no kinds of Kubernetes: `FeatureGate` is a line of the API server's /metrics; `Tool` a
program that Pods run and that keys on how devices are asked for, told by its image, with its version and a few
settings; `CanaryPlan` what the plan of waves wants done on a hard stop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import GATE_NAMESPACE

Around = Mapping[str, tuple[Object, ...]]

TOOL: Final = "Tool"
FEATURE_GATE: Final = "FeatureGate"
CANARY_PLAN: Final = "CanaryPlan"
# A tool is told by one part of its image's path; kept are these variables and arguments of its containers.
TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster-autoscaler": ("--enable-dynamic-resource-allocation",),
    "container-toolkit": ("CONTAINERD_SET_AS_DEFAULT", "NVIDIA_RUNTIME_SET_AS_DEFAULT", "CDI_ENABLED"),
    "dcgm-exporter": ("KUBERNETES_ENABLE_DRA", "--kubernetes-enable-dra"),
    "k8s-driver-manager": (),
    "karpenter": ("IGNORE_DRA_REQUESTS", "--ignore-dra-requests"),
    "kube-state-metrics": (),
    "nvsentinel": (),
}
_BINDINGS: Final = frozenset({"ClusterRoleBinding", "RoleBinding"})
_ROLES: Final = frozenset({"ClusterRole", "Role"})
_EVERY_ACCOUNT: Final = frozenset(
    {"system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{GATE_NAMESPACE}"}
)


class Gathering:
    """Takes in a cluster's objects one by one and keeps what stands around. `kinds` are the kinds that are read."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._found: dict[str, list[Object]] = {kind: [] for kind in kinds}

    def see(self, item: Object) -> Object:
        """Take in `item`, and hand it back."""
        kind = text(item.get("kind"))
        if kind in self._found and kind in _KINDS:
            self._found[kind].append(_KINDS[kind](item))
        elif kind == "Pod" and TOOL in self._found:
            self._found[TOOL] += [tool for tool in _tools(item) if tool not in self._found[TOOL]]
        return item

    def around(self) -> Around:
        """What there is. Of roles, of which people may have thousands, those that the gate's accounts are bound to."""
        found = dict(self._found)
        named: set[tuple[str, str]] = set()
        for kind in _BINDINGS & found.keys():
            found[kind] = [one for one in found[kind] if one["subjects"]]
            named |= {(text(one["roleRef"].get("kind")), text(one["roleRef"].get("name"))) for one in found[kind]}
        for kind in _ROLES & found.keys():
            found[kind] = [one for one in found[kind] if (kind, text(one["metadata"].get("name"))) in named]
        return {kind: tuple(sorted(listed, key=_order)) for kind, listed in found.items()}


def _order(item: Object) -> tuple[str, str, str]:
    metadata = mapping(item.get("metadata"))
    return text(metadata.get("namespace")), text(metadata.get("name")), text(item.get("tool"))


def _only(source: object, *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping(source).items() if name in names}


def _runtime(item: Object) -> Object:
    return {"metadata": _only(item.get("metadata"), "name"), "handler": text(item.get("handler"))}


def _configuration(item: Object) -> Object:
    """Who is called for what, in which order; not where and by which certificate, but for the service's name."""
    webhooks = [
        _only(one, "name", "rules", "namespaceSelector", "objectSelector", "failurePolicy", "reinvocationPolicy")
        | {"service": _only(at(one, "clientConfig", "service"), "name", "namespace")}
        for one in sequence(item.get("webhooks"))
    ]
    return {"metadata": _only(item.get("metadata"), "name"), "webhooks": webhooks}


def _role(item: Object) -> Object:
    return {
        "metadata": _only(item.get("metadata"), "name", "namespace"),
        "rules": [
            _only(rule, "apiGroups", "resources", "resourceNames", "verbs") for rule in sequence(item.get("rules"))
        ],
    }


def _binding(item: Object) -> Object:
    """A binding with those of its subjects that are, or may be, the gate's accounts."""
    subjects = [
        subject
        for subject in map(mapping, sequence(item.get("subjects")))
        if (subject.get("kind") == "ServiceAccount" and subject.get("namespace") == GATE_NAMESPACE)
        or (subject.get("kind") == "Group" and subject.get("name") in _EVERY_ACCOUNT)
    ]
    return {
        "metadata": _only(item.get("metadata"), "name", "namespace"),
        "roleRef": _only(item.get("roleRef"), "kind", "name"),
        "subjects": [_only(subject, "kind", "name", "namespace") for subject in subjects],
    }


def _gate(item: Object) -> Object:
    return {"metadata": _only(item.get("metadata"), "name"), "enabled": item.get("enabled") is True}


def _plan(item: Object) -> Object:
    return {"metadata": _only(item.get("metadata"), "name"), "onStop": text(item.get("onStop"))}


def _tools(pod: Object) -> Iterable[Object]:
    metadata = mapping(pod.get("metadata"))
    owners = [text(one.get("name")) for one in map(mapping, sequence(metadata.get("ownerReferences")))]
    for kind in ("initContainers", "containers"):
        for container in map(mapping, sequence(at(pod, "spec", kind))):
            path, _, version = text(container.get("image")).partition("@")[0].rpartition(":")
            parts = (path if path and "/" not in version else text(container.get("image"))).split("/")
            for tool, wanted in TOOLS.items():
                if tool in parts:
                    yield {
                        "metadata": {
                            "namespace": text(metadata.get("namespace")),
                            "name": owners[0] if owners else text(metadata.get("name")),
                        },
                        "tool": tool,
                        "version": version if path and "/" not in version else "",
                        "settings": dict(_settings(container, wanted)),
                    }


def _settings(container: Object, wanted: Collection[str]) -> Iterable[tuple[str, str]]:
    for variable in map(mapping, sequence(container.get("env"))):
        if variable.get("name") in wanted:
            yield text(variable.get("name")), text(variable.get("value"))
    for argument in (*sequence(container.get("command")), *sequence(container.get("args"))):
        name, given, value = text(argument).partition("=")
        if name in wanted:
            yield name, value if given else "true"


_KINDS: Final[Mapping[str, Callable[[Object], Object]]] = {
    "RuntimeClass": _runtime,
    "MutatingWebhookConfiguration": _configuration,
    "ValidatingWebhookConfiguration": _configuration,
    "ClusterRole": _role,
    "Role": _role,
    "ClusterRoleBinding": _binding,
    "RoleBinding": _binding,
    FEATURE_GATE: _gate,
    CANARY_PLAN: _plan,
}
AROUND: Final = (*_KINDS, TOOL)  # all that can be read
