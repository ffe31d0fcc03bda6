"""Whether a Pod fits on a node, devices aside: as far as that can be told from Pod and Node objects. Pure.

The order is that of kube-scheduler's filters, and the first that says no is what its message counts the node under:
cordoned, node taints, the Pod's node selector and required affinity, then CPU, memory and the like. Not judged are
affinity to other Pods, spreading, host ports and volumes: `not_judged` says which of them a Pod has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dra_gate.allocation.node_selector import selects
from dra_gate.kube.pod import IMPLICIT_PREFIX, is_finished
from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.taint import BLOCKING, tolerated

Amounts = Mapping[str, int]  # by resource, in billionths: no quantity is finer, and integers add up fast

# Volumes that can keep a Pod off a node; the others (secrets, empty directories) are had anywhere.
VOLUMES = (
    "persistentVolumeClaim", "ephemeral", "csi", "iscsi", "rbd", "gcePersistentDisk", "awsElasticBlockStore",
)  # fmt: skip
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CORDON: Object = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_GIB = 2**30
_ONE = 10**9


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a node does not take a Pod. Codes: cordoned, node-taint, node-selector, node-affinity, node-resources.

    `label` is the `key=value` that a node selector asks for.
    """

    code: str
    text: str
    label: str = ""


def not_judged(pod: Object) -> tuple[str, ...]:
    """What `pod` says that may keep it off any node and is not judged here."""
    spec = mapping(pod.get("spec"))
    affinity = mapping(spec.get("affinity"))
    spread = map(mapping, sequence(spec.get("topologySpreadConstraints")))
    listed = (*sequence(spec.get("containers")), *sequence(spec.get("initContainers")))
    has = {
        "affinity to other Pods": bool(sequence(at(affinity, "podAffinity", _REQUIRED))),
        "anti-affinity to other Pods": bool(sequence(at(affinity, "podAntiAffinity", _REQUIRED))),
        "spreading": any(one.get("whenUnsatisfiable") != "ScheduleAnyway" for one in spread),
        "host ports": any(at(port, "hostPort") for container in listed for port in sequence(at(container, "ports"))),
        "volumes": any(kind in mapping(volume) for volume in sequence(spec.get("volumes")) for kind in VOLUMES),
    }
    return tuple(word for word, there in has.items() if there)


class Room:
    """What Pods leave free on each node. `by_claims` are the extended resources that claims serve, not nodes."""

    def __init__(self, pods: Iterable[Object], classes: Iterable[Object] = ()) -> None:
        self._parsed: dict[str, int] = {}
        names = {text(at(one, "spec", "extendedResourceName")) for one in classes}
        self._by_claims = frozenset(names - {""})
        self._used: dict[str, dict[str, int]] = {}
        self._bound: dict[str, tuple[str, Amounts]] = {}
        for pod in pods:
            self.take(pod)

    def take(self, pod: Object) -> None:
        """One Pod more; one that has ended or is on no node takes nothing."""
        node = text(at(pod, "spec", "nodeName"))
        if node and not is_finished(pod):
            needs = self.needs(pod)
            self._bound[_uid(pod)] = node, needs
            _add(self._used.setdefault(node, {}), needs)

    def fitting(self, pod: Object) -> Callable[[Object], tuple[Obstacle, ...]]:
        """A function that says what keeps `pod` from a node, in the scheduler's order; nothing where it fits. What the
        Pod itself takes up there counts as free.
        """
        needs = self.needs(pod)

        def obstacles(node: Object) -> tuple[Obstacle, ...]:
            found = [*_placement(node, pod)]
            lacking = [*self._lacking(node, _uid(pod), needs)]
            return (*found, Obstacle("node-resources", ", ".join(lacking))) if lacking else tuple(found)

        return obstacles

    def needs(self, pod: Object) -> dict[str, int]:
        """What a Pod asks of its node: of containers together, or of a starting one beside the sidecars before it."""
        spec = mapping(pod.get("spec"))
        running: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in map(mapping, sequence(spec.get("initContainers"))):
            asked = self._asked(container)
            if container.get("restartPolicy") == "Always":
                _add(running, asked)
                asked = {}
            _raise(peak, running, asked)
        for container in map(mapping, sequence(spec.get("containers"))):
            _add(running, self._asked(container))
        _raise(peak, running, {})
        peak |= self._asked(spec)  # what the Pod says for all its containers (pod-level resources) wins
        _add(peak, self._amounts(spec.get("overhead")))
        return {**peak, "pods": _ONE}

    def _lacking(self, node: Object, uid: str, needs: Amounts) -> Iterable[str]:
        name = text(at(node, "metadata", "name"))
        allocatable = self._amounts(at(node, "status", "allocatable"))
        used = self._used.get(name, {})
        where, own = self._bound.get(uid, ("", {}))
        for resource, asked in sorted(needs.items()):
            if not asked or ("/" in resource and self._claimed(resource)):
                continue
            if resource == "pods" and resource not in allocatable:
                continue  # the kubelet of a made-up node does not say
            held = used.get(resource, 0) - (own.get(resource, 0) if where == name else 0)
            whole = allocatable.get(resource, 0)
            if asked > whole - held:
                left = f"{_shown(resource, whole - held)} of {_shown(resource, whole)} left"
                yield f"{resource}: asks {_shown(resource, asked)}, {left}"

    def _claimed(self, resource: str) -> bool:
        return resource in self._by_claims or resource.startswith(IMPLICIT_PREFIX)

    def _asked(self, container: Object) -> dict[str, int]:
        resources = mapping(container.get("resources"))
        return self._amounts({**mapping(resources.get("limits")), **mapping(resources.get("requests"))})

    def _amounts(self, written: object) -> dict[str, int]:
        return {name: self._amount(value) for name, value in mapping(written).items()}

    def _amount(self, written: object) -> int:
        key = str(written)
        found = self._parsed.get(key)
        if found is None:
            try:
                found = int(Quantity.parse(key).value * _ONE)
            except QuantityError:
                found = 0
            self._parsed[key] = found
        return found


def _placement(node: Object, pod: Object) -> Iterable[Obstacle]:
    spec, labels = mapping(pod.get("spec")), mapping(at(node, "metadata", "labels"))
    tolerations = sequence(spec.get("tolerations"))
    if at(node, "spec", "unschedulable") is True and not tolerated(_CORDON, tolerations):
        yield Obstacle("cordoned", "cordoned")
    for taint in map(mapping, sequence(at(node, "spec", "taints"))):
        cordon = taint.get("key") == _CORDON["key"]
        if taint.get("effect") in BLOCKING and not cordon and not tolerated(taint, tolerations):
            yield Obstacle("node-taint", f"node taint {taint.get('key')}:{taint.get('effect')}")
    for key, value in mapping(spec.get("nodeSelector")).items():
        if labels.get(key) != value:
            label = f"{key}={value}"
            told = f"the Pod wants nodes with {label}, it has {_label(labels, key)}"
            yield Obstacle("node-selector", told, label)
    required = at(spec, "affinity", "nodeAffinity", _REQUIRED)
    if isinstance(required, dict) and not selects(required, node):
        yield Obstacle("node-affinity", "the Pod's required node affinity leaves it out")


def _uid(pod: Object) -> str:
    metadata = mapping(pod.get("metadata"))
    return text(metadata.get("uid")) or f"{metadata.get('namespace')}/{metadata.get('name')}"


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(peak: dict[str, int], running: Amounts, asked: Amounts) -> None:
    for name in {*running, *asked}:
        peak[name] = max(peak.get(name, 0), running.get(name, 0) + asked.get(name, 0))


def _label(labels: Object, key: str) -> str:
    return f"{key}={labels[key]}" if key in labels else "no such label"


def _shown(resource: str, amount: int) -> str:
    if resource in ("memory", "ephemeral-storage") and abs(amount) >= _GIB * _ONE:
        return f"{amount / _GIB / _ONE:.4g}Gi"
    return f"{amount / _ONE:.6g}"
