"""What a Pod's containers reach on their node, told from what Kubernetes and the device runtimes do with it.

It shares no code with the gate and is written from the other side: not "what is forbidden", but "what would the
scheduler, the kubelet and the runtime give this Pod". It takes the most generous runtime there is: it honours
NVIDIA_VISIBLE_DEVICES, every ConfigMap that envFrom names holds it, and annotations are followed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Whoever can open one of these has every device of the node, or can ask the node's programs for one.
DOORS = (
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/dev/dri/card0",
    "/proc/driver/nvidia",
    "/proc/1/root",
    "/sys/bus/pci/devices",
    "/run/containerd/containerd.sock",
    "/var/run/docker.sock",
    "/run/crio/crio.sock",
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/var/lib/kubelet/pod-resources/kubelet.sock",
    "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",
    "/etc/cdi/nvidia.yaml",
    "/var/run/cdi/nvidia.yaml",
)
VENDOR = re.compile(r"nvidia", re.IGNORECASE)
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
HARMLESS_VALUES = ("", "void", "none")
FOLLOWED = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/", "devices.gke.io/container.", "devices.nri.io/")


@dataclass(frozen=True)
class Site:
    """What the cluster holds: names that give devices, handlers that do, and claims by whether they do.

    In lane device-plugin `served` are the names that Pods may ask for, on nodes that have one of these values of each
    label of `nodes`.
    """

    resources: frozenset[str]  # extended resources that give a device
    domains: tuple[str, ...]  # and every other one under these
    handlers: dict[str, str]  # RuntimeClass -> handler
    device_handlers: frozenset[str]
    own_templates: frozenset[str]  # the tenant's
    harmless_templates: frozenset[str]
    harmless_claims: frozenset[str]
    served: frozenset[str] = frozenset()
    nodes: dict[str, frozenset[str]] = field(default_factory=dict)


def reached(pod: Any, site: Site) -> list[str]:
    """The ways in which the Pod gets at a device other than by a claim of its tenant, or as `site` says it may."""
    spec = pod["spec"]
    own = {entry.get("name") for entry in spec.get("resourceClaims") or [] if _is_own(entry, site)}
    ways = [*_claims(spec, site), *_volumes(spec), *_annotations(pod), *_runtime(spec, site)]
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or []:
            ways += [f"{container.get('name')}: {way}" for way in _container(container, own, site)]
            if _asked(container, site):
                ways += _elsewhere(spec, site)
    return ways


def _asked(container: Any, site: Site) -> bool:
    """It asks for devices under a name that it may."""
    resources = container.get("resources") or {}
    return any(
        name in site.served and not _is_zero(amount)
        for part in ("limits", "requests")
        for name, amount in (resources.get(part) or {}).items()
    )


def _elsewhere(spec: Any, site: Site) -> Iterator[str]:
    """Nodes on which it may run by its selector and its required affinity, beside those where it may have devices."""
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    for label, values in site.nodes.items():
        held = (spec.get("nodeSelector") or {}).get(label) in values or (
            bool(terms)
            and all(
                any(
                    one["key"] == label and one["operator"] == "In" and values.issuperset(one["values"])
                    for one in term.get("matchExpressions") or []
                )
                for term in terms
            )
        )
        if not held:
            yield f"it may run where {label} is something else"
    if spec.get("nodeName"):
        yield "it runs on a node that nobody scheduled"


def _is_own(entry: Any, site: Site) -> bool:
    return entry.get("resourceClaimTemplateName") in site.own_templates


def _container(container: Any, own: set[Any], site: Site) -> Iterator[str]:
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            if name not in site.served and _gives_device(name, site) and not _is_zero(amount):
                yield f"the scheduler gives it {amount} {name}"
    if (container.get("securityContext") or {}).get("privileged") is True:
        yield "privileged: every device file of the node"
    # What its own driver prepares for a container says void, after everything else (dra-driver-nvidia-gpu, CDI edits).
    # A device plugin's answer sets the variable of the containers that it gives devices (k8s-device-plugin, Allocate).
    prepared = any(claim.get("name") in own for claim in resources.get("claims") or []) or _asked(container, site)
    seen = _environment(container).get(VARIABLE)
    if not prepared and seen is not None and seen not in HARMLESS_VALUES:
        yield f"the runtime shows it devices {seen!r}"


def _gives_device(name: str, site: Site) -> bool:
    if name in site.resources:
        return True
    domain = name.partition("/")[0]
    return "/" in name and (domain in site.domains or name.startswith("deviceclass.resource.kubernetes.io/gpu"))


def _is_zero(amount: Any) -> bool:
    digits = re.match(r"[+-]?([0-9.]*)", str(amount))
    return digits is not None and digits[1] != "" and not re.search("[1-9]", digits[1])


def _environment(container: Any) -> dict[str, str]:
    """As the kubelet makes it: envFrom first, then env in order; a later one wins; $(X) stands for what came before."""
    made: dict[str, str] = {}
    if container.get("envFrom"):
        made[VARIABLE] = "all"
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            made[entry["name"]] = "all"
            continue
        value = str(entry.get("value", "") or "")
        for name, known in list(made.items()):
            value = value.replace(f"$({name})", known)
        made[entry["name"]] = value.replace("$$", "$")
    return made


def _claims(spec: Any, site: Site) -> Iterator[str]:
    for entry in spec.get("resourceClaims") or []:
        template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        if template and template not in site.own_templates | site.harmless_templates:
            yield f"template {template}"
        if claim and claim not in site.harmless_claims:
            yield f"claim {claim}"
        if spec.get("nodeName") and template in site.own_templates:
            yield f"a claim from {template} on a node that nobody scheduled"


def _volumes(spec: Any) -> Iterator[str]:
    for volume in spec.get("volumes") or []:
        path = (volume.get("hostPath") or {}).get("path")
        if path is None:
            continue
        real = posixpath.normpath("/" + path)
        real = "/" + real.lstrip("/")
        for door in DOORS:
            for spelled in {door, door.replace("/var/run/", "/run/"), door.replace("/run/", "/var/run/", 1)}:
                if spelled == real or spelled.startswith(real.rstrip("/") + "/") or real.startswith(spelled + "/"):
                    yield f"volume {volume.get('name')}: {path} reaches {door}"
                    break
        if re.match(r"/dev/(nvidia|dri|vfio)", real):
            yield f"volume {volume.get('name')}: {path} is a device"


def _annotations(pod: Any) -> Iterator[str]:
    for key, value in ((pod.get("metadata") or {}).get("annotations") or {}).items():
        if key.startswith(FOLLOWED) and VENDOR.search(str(value)):
            yield f"annotation {key}: {value}"


def _runtime(spec: Any, site: Site) -> Iterator[str]:
    name = spec.get("runtimeClassName")
    if name and site.handlers.get(name, name) in site.device_handlers:
        yield f"runtime class {name} runs {site.handlers.get(name, name)}"
