"""A Pod as the gate reads it: its containers in all three lists, what they ask for, the claims it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.raw import Object, at, mapping, sequence, text

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"  # kubelet writes it on the API object of a static Pod
IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"  # KEP-5004: every DeviceClass is an extended resource too
_FINISHED = ("Succeeded", "Failed")
_MOST = 10**9  # no cluster has as many devices; a quantity may have thousands of digits
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a Pod and where it stands. `kind` is the Pod field: initContainers or containers."""

    kind: str
    index: int
    raw: Object

    @property
    def name(self) -> str:
        """The container's name, empty where it has none."""
        return text(self.raw.get("name"))

    @property
    def field(self) -> str:
        """The path that messages use, such as `spec.containers[0]`."""
        return f"spec.{self.kind}[{self.index}]"

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path that patches use."""
        return ("spec", self.kind, self.index)

    @property
    def is_sidecar(self) -> bool:
        """An init container that keeps running beside the others (KEP-753: restartPolicy Always)."""
        return self.kind == "initContainers" and self.raw.get("restartPolicy") == "Always"

    @property
    def is_serial_init(self) -> bool:
        """An init container that ends before the next container starts."""
        return self.kind == "initContainers" and self.raw.get("restartPolicy") != "Always"

    def claim_names(self) -> tuple[str, ...]:
        """The names of the Pod's claim entries that this container sees, in order."""
        claims = sequence(at(self.raw, "resources", "claims"))
        return tuple(text(mapping(claim).get("name")) for claim in claims)


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one container asks of one extended resource.

    `count` is a whole number of devices, or None when what was written is no such number; `problem` then says why.
    """

    container: Container
    resource: str
    count: int | None
    problem: str
    in_limits: bool
    in_requests: bool

    @property
    def field(self) -> str:
        """The path of the value, such as `spec.containers[0].resources.limits[nvidia.com/gpu]`."""
        return f"{self.container.field}.resources.{'limits' if self.in_limits else 'requests'}[{self.resource}]"


def containers(pod: Object) -> Iterator[Container]:
    """Every container that says something of resources: init containers first, then containers, each list in its order.

    The others hold no device. Ephemeral containers take no resources (core validation) and are left out.
    """
    return (Container(kind, index, raw) for kind, index, raw, _ in _with_resources(pod))


def containers_with(pod: Object, key: str = "", other: str = "") -> Iterator[tuple[str, int, Object]]:
    """Pod field (initContainers or containers), position and value of every container that has `key` or the `other`
    one, or of every one at all, in the order of `containers`. Ephemeral containers come later, by a request of their
    own.
    """
    spec = mapping(pod.get("spec"))
    for kind in ("initContainers", "containers"):
        for index, raw in enumerate(sequence(spec.get(kind))):
            # Two lookups take a third of the time of a set operation.
            if isinstance(raw, dict) and (not key or key in raw or other in raw):
                yield kind, index, raw


def claim_users(pod: Object) -> Iterator[Container]:
    """Those of `containers` that see claims."""
    return (
        Container(kind, index, raw) for kind, index, raw, resources in _with_resources(pod) if "claims" in resources
    )


def _with_resources(pod: Object) -> Iterator[tuple[str, int, Object, Object]]:
    # Bare parts: a Pod of 3 MiB may have 100,000 containers that hold nothing, and to make a value of each takes long.
    spec = mapping(pod.get("spec"))
    for kind in ("initContainers", "containers"):
        for index, raw in enumerate(sequence(spec.get(kind))):
            resources = raw.get("resources") if isinstance(raw, dict) else None
            if resources and isinstance(resources, dict):
                yield kind, index, raw, resources


def extended_resource_names(container: Container) -> Iterator[str]:
    """The names under the container's limits and requests that are not native ones, each once.

    A native resource has no `/`; extended ones, the implicit names of device classes included, always have (core v1,
    IsExtendedResourceName).
    """
    limits, requests = _asked(mapping(container.raw.get("resources")))
    return (name for name in {**limits, **requests} if "/" in name)


def resource_requests(pod: Object, wanted: Callable[[str], bool]) -> Iterator[ResourceRequest]:
    """What the Pod asks of the extended resources whose name is `wanted`, by `containers`; zero quantities aside.

    Extended resources cannot be overcommitted: requests follow limits, and where both stand they must be equal.
    """
    for kind, index, raw, resources in _with_resources(pod):
        limits, requests = _asked(resources)
        for name in limits if not requests or limits == requests else {**limits, **requests}:
            if limits.get(name, "0") == "0" == requests.get(name, "0") or "/" not in name or not wanted(name):
                continue  # a plain zero is told by looking, before anything that takes longer
            in_limits, in_requests = name in limits, name in requests
            count, problem = _count(limits[name] if in_limits else requests[name])
            if count is not None and in_limits and in_requests and _count(requests[name])[0] != count:
                count, problem = None, f"limits say {_cut(limits[name])} and requests say {_cut(requests[name])}"
            if count != 0:
                yield ResourceRequest(Container(kind, index, raw), name, count, problem, in_limits, in_requests)


def devices_by_container(requests: Iterable[ResourceRequest]) -> list[tuple[Container, int]]:
    """The containers of `requests` in order, each with the devices that it asks for in all."""
    found: dict[tuple[str | int, ...], tuple[Container, int]] = {}
    for request in requests:
        container, count = found.get(request.container.path, (request.container, 0))
        found[container.path] = (container, count + (request.count or 0))
    return list(found.values())


def _asked(resources: Object) -> tuple[Object, Object]:
    limits, requests = resources.get("limits"), resources.get("requests")
    return limits if isinstance(limits, dict) else {}, requests if isinstance(requests, dict) else {}


def _count(written: object) -> tuple[int | None, str]:
    if isinstance(written, str) and len(written) < 5 and written.isascii() and written.isdigit():
        return int(written), ""  # how nearly all are written: thirty times faster than the whole grammar
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        return None, f"{_cut(written)} is not a quantity"
    try:
        whole = Quantity.parse(written).whole()
    except QuantityError:
        return None, f"{_cut(written)!r} is not a quantity"
    if whole is None:
        return None, f"{_cut(written)} is not a whole number of devices"
    if whole < 0:
        return None, f"{_cut(written)} is negative"
    if whole > _MOST:
        return None, f"{_cut(written)} is more than any cluster has"
    return whole, ""


def _cut(written: object) -> str:
    """What was written, short enough for a message."""
    if isinstance(written, int) and abs(written) > 10**_SHOWN:  # Python prints no integer of thousands of digits
        return "a number of many digits"
    shown = written if isinstance(written, str) else str(written)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def claim_entries(pod: Object) -> list[Object]:
    """`spec.resourceClaims`, in order."""
    return [entry if isinstance(entry, dict) else {} for entry in sequence(at(pod, "spec", "resourceClaims"))]


def claim_names(pod: Object) -> tuple[str, ...]:
    """The names of its claims, those that its status says were made from templates among them."""
    made = {
        text(status.get("name")): text(status.get("resourceClaimName"))
        for status in map(mapping, sequence(at(pod, "status", "resourceClaimStatuses")))
    }
    entries = claim_entries(pod)
    names = (text(entry.get("resourceClaimName")) or made.get(text(entry.get("name")), "") for entry in entries)
    return tuple(name for name in names if name)


def is_finished(pod: Object) -> bool:
    """The Pod has ended for good and holds nothing any more."""
    return at(pod, "status", "phase") in _FINISHED


def display_name(pod: Object) -> str:
    """The Pod's name, or its generateName while the API server has not yet made one."""
    metadata = mapping(pod.get("metadata"))
    return text(metadata.get("name")) or text(metadata.get("generateName"))
